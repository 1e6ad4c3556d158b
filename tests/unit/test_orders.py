"""What an operator orders: a restart with the same holds, record and end as one of the watchdog's own."""

from __future__ import annotations

from typing import Any

import pytest

from factory_watchdog.core.model import Restart, RestartAsked
from factory_watchdog.core.orders import why_not
from factory_watchdog.core.step import step

BY = "uid 1000"


def ordered(p: Any) -> str | None:
    """Order a restart; the reason where it is refused."""
    reason = why_not(p.state, p.now, p.settings, p.others)
    p.feed(RestartAsked(BY))
    return reason


@pytest.mark.parametrize("script", ["work*2", "quiet*3", "work*2 still*3", "refused*3", "work*2 metrics-timeout*2"])
def test_a_restart_that_an_operator_orders_begins_at_once_whatever_the_state(play: Any, script: str) -> None:
    p = play().run(script)
    assert ordered(p) is None
    (order,) = p.restarts
    assert (order.by, order.revive, order.proof.rule, order.proof.why) == (BY, False, "operator", f"asked for by {BY}")
    assert p.alerts[-1] == "restart"
    assert p.settled == []


def test_it_is_followed_to_its_end_and_counts(play: Any) -> None:
    p = play().run("work*2")
    ordered(p)
    p.run("work")
    assert p.state.verdict.why.startswith(f"asked for by {BY}; restart 1 under way")
    p.run("done-job life quiet answered quiet")
    assert p.settled[-1].served
    assert ordered(p).startswith("held: last restart too recent")
    assert len(p.restarts) == 1


@pytest.mark.parametrize(
    ("settings", "script", "reason"),
    [
        ({}, "", "not judged yet"),
        ({"has_unit": False}, "work*2", "held: no unit configured, watched only"),
        ({}, "work*2 work+flag", "held: busy flag (a batch job)"),
        ({}, "work*2 work+maintenance", "held: maintenance (by an operator)"),
        ({}, "work*2 work+job", "held: unit not known to be active, or a job of it queued (active, job 9 queued)"),
        ({}, "work*2 work+untold", "held: unit not known to be active, or a job of it queued (no answer)"),
        (
            {},
            "work*2 refused+unit-inactive",
            "held: unit not known to be active, or a job of it queued (inactive)",
        ),
        ({"max_restarts": 0}, "work*2", "held: breaker open: the restarts allowed are used up (0 restarts in 6 h)"),
        ({}, "work*2 work+left-over", "held: processes of the old life are still there (PIDs 77)"),
    ],
)
def test_the_holds_forbid_it(play: Any, settings: dict[str, Any], script: str, reason: str) -> None:
    p = play(**settings).run(script)
    assert ordered(p) == reason
    assert p.restarts == []


def test_observe_mode_forbids_only_what_the_watchdog_decides(play: Any) -> None:
    p = play(enforce=False).run("work*2")
    assert ordered(p) is None
    assert len(p.restarts) == 1


def test_never_two_at_once_on_a_host(play: Any) -> None:
    p = play().run("work*2")
    p.others = ("spark2",)
    assert ordered(p) == "held: another restart on this host (spark2)"
    p.others = ()
    assert ordered(p) is None
    assert ordered(p) == "restart 1 is under way"
    assert len(p.restarts) == 1


def test_it_ends_a_confirmation_that_is_under_way(play: Any) -> None:
    p = play().run("work*2 still*13")
    assert p.question is not None
    assert ordered(p) is None
    p.run("failed still*3")
    assert len(p.restarts) == 1


def test_the_step_refuses_by_itself(play: Any) -> None:
    """Between the look and the order another backend's restart may have begun."""
    p = play().run("work*2")
    state, effects = step(p.state, RestartAsked(BY), p.now, p.settings, ("spark2",))
    assert (state, effects) == (p.state, ())
    _, effects = step(p.state, RestartAsked(BY), p.now, p.settings)
    assert any(isinstance(effect, Restart) for effect in effects)
