"""`hang_after = "auto"`: what a restart costs, and the window that it gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from factory_watchdog.core.forecast import forecast
from factory_watchdog.core.model import Settings
from factory_watchdog.core.recovery import resume
from factory_watchdog.core.window import explained, with_window
from factory_watchdog.saved import encode, taken_up

AUTO = Settings(hang_auto=True)


@pytest.mark.parametrize(
    ("auto", "cost", "window"),
    [
        (True, None, 120.0),
        (True, 20.0, 120.0),
        (True, 120.0, 120.0),
        (True, 300.0, 300.0),
        (True, 900.0, 900.0),
        (True, 7200.0, 900.0),
        (False, 300.0, 120.0),
    ],
)
def test_window(auto: bool, cost: float | None, window: float) -> None:
    assert with_window(Settings(hang_auto=auto), cost).hang_after == window


RESTARTED = "done-job life "


@pytest.mark.parametrize(
    ("script", "cost"),
    [
        # our own: from its order to the first token of the new life
        (RESTARTED + "refused*20 quiet answered quiet", 200.5),
        (RESTARTED + "refused*20 token", 200.0),
        (RESTARTED + "refused*20 quiet*3", None),  # it is up, and has given nothing
        (RESTARTED + "refused*20 token work*9", 200.0),
        ("token", None),  # the old life ends its requests while it is being stopped
    ],
)
def test_what_our_restart_costs(play: Any, script: str, cost: float | None) -> None:
    p = play().restarted()
    p.samples = [replace(p.samples[0], generated=0, finished=0)]
    p.run(script)
    assert p.state.restart_cost == (None if cost is None else pytest.approx(cost, abs=0.1))


@pytest.mark.parametrize(
    ("script", "cost"),
    [
        ("work*2 life refused*20 quiet work", 200.0),  # from the first sight of the new life
        ("refused*20 quiet", None),  # nobody saw when it began
        ("work*2 life refused*5 gap quiet", None),
        ("work*2 refused*2 work", None),  # the same life
        ("work*2 life work", None),  # it was up before anybody looked
    ],
)
def test_what_a_restart_by_others_costs(play: Any, script: str, cost: float | None) -> None:
    p = play()
    p.run(script)
    assert p.state.restart_cost == (None if cost is None else pytest.approx(cost, abs=1))


def test_the_window_decides(play: Any) -> None:
    p = play(hang_auto=True)
    p.state = replace(p.state, restart_cost=300.0)
    p.run("work*2 still*20")
    assert p.shown == "suspect flat 0"
    assert p.question is None
    p.run("still*12")
    assert p.question is not None


def test_it_outlives_a_daemon_and_a_boot(play: Any) -> None:
    p = play().run("work*2")
    state = replace(p.state, restart_cost=300.0)
    assert resume(state).restart_cost == 300.0
    saved = encode(state, "boot", 1000.0, 5000.0)
    assert taken_up(saved, "boot", 1010.0, 5010.0).restart_cost == 300.0
    assert taken_up(saved, "another", 10.0, 5010.0).restart_cost == 300.0


@pytest.mark.parametrize(
    ("settings", "cost", "sentence"),
    [
        (Settings(), 300.0, None),
        (AUTO, None, "hang_after is auto: 2 min, for no restart was measured yet."),
        (AUTO, 300.0, "hang_after is auto: 5 min, for the last restart took 5 min to its first answer."),
        (
            AUTO,
            20.0,
            "hang_after is auto: 2 min, for the last restart took 20 s to its first answer, within 2 min and 15 min.",
        ),
    ],
)
def test_it_is_explained(play: Any, settings: Settings, cost: float | None, sentence: str | None) -> None:
    assert explained(settings, cost) == sentence
    p = play()
    p.run("work*2 still*2")
    told = forecast(replace(p.state, restart_cost=cost), settings, p.now)
    assert (sentence in told) is (sentence is not None)
