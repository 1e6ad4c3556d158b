"""The one entrance: events in any order, verdicts, alerts that stand, pause signs, one restart at a time on a host."""

from __future__ import annotations

from typing import Any

import pytest

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import (
    Answer,
    Answered,
    JobEnded,
    JobResult,
    Look,
    Outcome,
    Polled,
    ResetAsked,
    Settings,
    Turned,
)
from factory_watchdog.core.step import step, step_host, wants_pause_signs

EVENTS = [Answered(Answer(1, Outcome.ANSWERED, 5.0)), JobEnded(1, JobResult.DONE), JobEnded(0, JobResult.DENIED)]


@pytest.mark.parametrize("event", [*EVENTS, ResetAsked("root")])
def test_events_before_anything_is_known(event: Any) -> None:
    state, effects = step(Backend(), event, 6.0, Settings())
    assert state == Backend()
    assert effects in ((), (Look(),))


def test_the_same_arguments_give_the_same_result(play: Any) -> None:
    p = play().run("work*2 still*5")
    event = Polled(p.reading())
    assert step(p.state, event, p.now, p.settings) == step(p.state, event, p.now, p.settings)


def test_turned_is_told_once_for_a_state(play: Any) -> None:
    p = play().run("work*5 still*5 work*5 quiet*3")
    turned = [e for _, e in p.effects if isinstance(e, Turned)]
    assert [e.verdict.state for e in turned] == ["busy", "suspect", "busy", "idle"]
    assert [e.previous and str(e.previous.state) for e in turned] == [None, "busy", "suspect", "busy"]


def test_turned_is_told_for_another_engine(play: Any) -> None:
    p = play(engines=2).run("work/work*2 still/work*2 work/still*2")
    assert [e.verdict.engine for _, e in p.effects if isinstance(e, Turned)] == [None, "0", "1"]


def test_the_finding_says_what_the_sentence_says(play: Any) -> None:
    p = play().run("work*2 still*4")
    assert p.state.verdict.why == p.state.finding.why
    assert "3 running and 0 waiting requests stand still for 40 s" in p.state.verdict.why


# --- alerts that stand -----------------------------------------------------------------------------------------------


def test_a_standing_alert_is_raised_once_and_again_when_it_comes_back(play: Any) -> None:
    p = play().run("quiet+stale*5 quiet*2 quiet+stale*5")
    assert p.alerts == ["stale-flag", "stale-flag"]


def test_a_flag_that_is_held_for_long_is_an_alert(play: Any, builders: Any) -> None:
    p = play(flag_alert=100.0)
    for _ in range(30):
        p.poll("quiet", flag=builders.Flag(held=True, why="job", since=1010.0))
    assert p.alerts == ["flag-long"]


# --- pause signs -----------------------------------------------------------------------------------------------------

# Script before, the next reading's words, whether its pause signs are read.
PAUSE_SIGNS = [
    ("", "quiet", False),  # nothing is known yet
    ("refused", "quiet", False),  # not up
    ("work*2", "work", False),
    ("work*2", "still", True),  # this very reading is flat
    ("work*2 still", "work", False),
    ("quiet*3", "quiet", False),
    ("quiet*7", "quiet", False),  # a question is out, unanswered
    ("quiet*7 failed", "quiet", True),  # this reading settles it
    ("work*2 still*13", "still", True),
    ("work*2 still+paused", "work", True),  # read while paused
    ("work*2 503+still", "still", True),
    ("work*2 still+no-pause-signs", "still", False),  # there are none
    ("work*2", "refused", False),
    ("work*2 refused*4", "refused", True),  # being confirmed
]


@pytest.mark.parametrize(("script", "words", "wants"), PAUSE_SIGNS)
def test_pause_signs_are_read_where_they_decide(play: Any, builders: Any, script: str, words: str, wants: bool) -> None:
    p = play().run(script)
    p.now += 10
    fields: dict[str, Any] = {}
    for word in words.split("+"):
        fields |= builders.READING_WORDS.get(word, {})
        if word in builders.ENGINE_WORDS:
            p._engines(word)
    assert wants_pause_signs(p.state, p.reading(**fields), p.settings) is wants


# --- a host ----------------------------------------------------------------------------------------------------------


def test_one_restart_at_a_time_on_a_host(play: Any) -> None:
    p = play(forms=(), others=("other",)).run("work*2 still*20")
    assert p.restarts == []
    assert p.shown == "hung flat 0"
    assert p.alerts == ["hung", "held"]
    p.others = ()
    p.run("still*2")
    assert len(p.restarts) == 1


def test_the_host_sees_the_others_restarts(play: Any) -> None:
    p = play(forms=()).run("work*2 still*14")
    assert p.phase == "restart"
    host = {"a": p.state, "b": Backend()}
    q = play(forms=()).run("work*2 still*13")
    host["b"] = q.state
    for _ in range(3):
        q.now += 10
        host, effects = step_host(host, "b", Polled(q.reading()), q.now, q.settings)
        assert not [e for e in effects if type(e).__name__ == "Restart"]
    assert "other-restart" in host["b"].recovery.holds
    assert host["a"] is p.state
