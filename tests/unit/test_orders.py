"""What an operator orders: a restart with the same holds, record and end as one of the watchdog's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import Restart, RestartAsked, Settings
from factory_watchdog.core.orders import still_due, why_not
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


# --- still due, once the evidence is taken ---------------------------------------------------------------------------


def due(p: Any, order: Restart, others: tuple[str, ...] = ()) -> bool:
    return still_due(p.state, order, p.now, p.settings, others)


# What is seen between the order and the job, and whether the restart is still to be made.
STILL_DUE = [
    ("", True),
    ("still", True),
    ("work", False),
    ("quiet", False),
    ("still+paused", False),
    ("still+flag", False),
    ("still+foreign", False),
    ("still+job", False),
    ("still+left-over", False),
    ("metrics-timeout", False),  # no ground that can be seen
    ("refused*5", False),  # a ground, and another one
    ("unit-failed+refused", False),
    ("done-job", False),
]


@pytest.mark.parametrize(("script", "still"), STILL_DUE)
def test_a_restart_of_ours_is_due_on_the_same_ground_and_without_a_hold(play: Any, script: str, still: bool) -> None:
    p = play().restarted()
    p.run(script)
    assert due(p, p.restarts[0]) is still


def test_it_is_not_due_for_another_engine(play: Any) -> None:
    p = play(engines=2).restarted("work*2 still/work*14 failed still/work")
    order = p.restarts[0]
    assert due(p, order)
    p.run("work/still*14")
    assert p.state.finding.candidate
    assert not due(p, order)


@pytest.mark.parametrize("words", ["still", "work"])
def test_it_is_not_due_in_a_new_life(play: Any, words: str) -> None:
    p = play().run("work*2")
    ordered(p)
    order = p.restarts[0]
    unit = replace(p.base["unit"], invocation="i2")
    assert due(p, order)
    p.state = replace(p.state, reading=replace(p.state.reading, unit=unit))
    assert not due(p, order)


def test_it_is_not_due_where_another_backend_restarts_or_another_attempt_was_made(play: Any) -> None:
    p = play().restarted()
    order = p.restarts[0]
    assert not due(p, order, ("spark2",))
    assert not due(p, replace(order, attempt=2))


OPERATORS = [
    ({}, "", True),
    ({}, "work", True),
    ({}, "quiet", True),
    ({"enforce": False}, "work", True),
    ({}, "work+flag", False),
    ({"enforce": False}, "work+flag", False),
]


@pytest.mark.parametrize(("settings", "script", "still"), OPERATORS)
def test_an_operators_restart_needs_no_ground(play: Any, settings: Any, script: str, still: bool) -> None:
    p = play(**settings).run("work*2")
    ordered(p)
    p.run(script)
    assert due(p, p.restarts[0]) is still


def test_nothing_is_due_of_a_backend_of_which_nothing_is_known(play: Any) -> None:
    order = play().restarted().restarts[0]
    assert not still_due(Backend(), order, 5.0, Settings(), ())
    assert why_not(Backend(), 5.0, Settings(), ()) == "not judged yet"


def test_the_record_of_an_operators_restart(play: Any) -> None:
    """Its proof begins with the order, and the alert says who gave it."""
    p = play().run("work*2")
    ordered(p)
    assert p.restarts[0].proof.suspected == p.now + 0.006
    assert p.effects[-2][1].why == f"restart 1: asked for by {BY}"
