"""From suspicion to a restart: what confirms, drops, delays and vetoes it, every hold, and the breaker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from factory_watchdog.core.holds import LONGEST_WINDOW
from factory_watchdog.core.model import Hold, Outcome, Purpose, Settings

HANG = "work*2 still*14 "  # a question is out to confirm it
HUNG = HANG + "failed still "  # restarted


# --- confirm ---------------------------------------------------------------------------------------------------------


def test_one_question_and_a_fresh_reading_before_a_restart(play: Any) -> None:
    p = play().run(HANG)
    assert [q.purpose for q in p.asks] == [Purpose.CONFIRM]
    assert p.shown == "suspect flat 0", "only a confirmed backend is hung"
    p.run("still*2")
    assert p.restarts == []
    p.run("failed")
    assert p.restarts == []
    p.run("still")
    assert p.shown == "hung flat 0"
    assert p.alerts == ["hung", "restart"]


def test_the_proof_has_finding_question_answer_and_reading(play: Any) -> None:
    p = play().restarted()
    proof = p.restarts[0].proof
    assert (proof.attempt, str(proof.state), proof.rule, proof.engine) == (1, "hung", "flat", "0")
    assert proof.question == p.asks[0]
    assert proof.answer is not None
    assert proof.answer.outcome is Outcome.FAILED
    assert proof.suspected == pytest.approx(1020.0, abs=0.1)
    assert proof.reading is p.state.reading
    assert p.restarts[0].identity == p.memory.life.identity
    assert proof.held == ()


# What drops a confirmation: the script after HANG.
DROPPED = [
    ("work failed work", "busy working"),
    ("kv failed still", "suspect flat 0"),
    ("failed still+paused", "paused paused"),
    ("failed still+maintenance", "paused maintenance"),
    ("failed still+unit-deactivating", "stopped unit-set-aside"),
    ("gap still failed still", "suspect flat 0"),
    ("life quiet failed quiet", "idle idle"),
    ("failed quiet", "suspect unanswered 0"),  # its requests are gone; the failure counts for an idle one
    ("failed counter-down", "busy working"),
]


@pytest.mark.parametrize(("script", "shown"), DROPPED)
def test_what_drops_a_confirmation(play: Any, script: str, shown: str) -> None:
    p = play().run(HANG + script)
    assert p.shown == shown
    assert p.phase == "watch"
    p.run("still+untold*3")
    assert p.restarts == []


DELAYED = ["metrics-timeout*5", "silent*3", "metrics-500", "no-kv*2", "503+still now"]


@pytest.mark.parametrize("script", DELAYED)
def test_what_only_delays_it(play: Any, script: str) -> None:
    p = play().run(HANG + script)
    assert p.phase == "confirm"
    p.run("failed still")
    assert len(p.restarts) == 1


def test_a_first_time_that_it_says_it_died_does_not_end_the_confirmation(play: Any) -> None:
    p = play().run(HANG + "503+still failed still")
    assert [r.proof.rule for r in p.restarts] == ["flat"]


def test_an_answer_vetoes_and_what_still_stands_is_degraded(play: Any) -> None:
    p = play().run(HANG + "answered still+own")
    assert p.shown == "degraded flat 0"
    p.run("still*2")
    assert p.shown == "degraded stand-still 0"
    assert p.alerts == ["stand-still", "vetoed"]


def test_ghosts_in_the_gauges_are_vetoed_each_time_and_told_once(play: Any) -> None:
    """vLLM 0.9.2 leaves running 4 for ever on a healthy idle server."""
    p = play().run(HANG)
    for _ in range(400):
        p.run("answered still+own" if p.question is not None else "still")
    assert p.restarts == []
    assert 20 <= len(p.asks) <= 34, "about one in each window of two minutes"
    assert set(p.states[20:]) == {"degraded"}, "also while it is asked again"
    assert p.alerts.count("stand-still") == 1


def test_a_slow_answer_with_a_poll_in_between_is_still_a_veto(play: Any) -> None:
    p = play().run(HANG + "still*2 answered still+own still*2")
    assert p.shown == "degraded stand-still 0"


def test_every_form_is_tried_to_confirm(play: Any) -> None:
    p = play().run(HANG + "cannot still cannot still")
    assert p.restarts == []
    p.run("cannot still")
    assert len(p.restarts) == 1
    assert len({q.form for q in p.asks}) == 3


def test_an_idle_question_that_is_out_comes_first(play: Any) -> None:
    p = play(question_timeout=200.0).run("work*2 quiet*7")
    assert [q.purpose for q in p.asks] == [Purpose.IDLE]
    p.run("still*15")
    assert p.phase == "confirm"
    assert len(p.asks) == 1
    p.run("failed still")
    assert [q.purpose for q in p.asks] == [Purpose.IDLE, Purpose.CONFIRM]
    p.run("failed still")
    assert len(p.restarts) == 1


def test_a_refusing_port_is_asked_nothing_but_looked_at_again(play: Any) -> None:
    p = play().run("work*2 refused*4")
    assert p.shown == "suspect refused"
    p.run("now refused")
    assert p.asks == []
    assert [r.proof.rule for r in p.restarts] == ["refused"]


def test_silence_is_confirmed_by_a_question(play: Any) -> None:
    p = play().run("work*2 silent*61 failed silent")
    assert [r.proof.rule for r in p.restarts] == ["silent"]


def test_a_server_error_to_the_confirming_question_is_no_way_out(play: Any) -> None:
    p = play().run("quiet*7 answered own work*2 still*14 error still")
    assert [r.proof.rule for r in p.restarts] == ["flat"]


def test_a_life_that_never_served_is_confirmed_though_nothing_can_be_read(play: Any) -> None:
    p = play().run("503+metrics-500*181 not-now 503+metrics-500")
    assert [r.proof.rule for r in p.restarts] == ["never-served"]


def test_a_life_that_answers_the_question_has_served(play: Any) -> None:
    p = play().run("503+quiet*181 answered 503+quiet")
    assert p.restarts == []
    assert p.memory.life.up


def test_an_answer_is_never_shown_as_dead(play: Any) -> None:
    """The reading with which the veto comes may fit another rule that would be a ground."""
    p = play().run("503+quiet*181 answered 503+quiet+own")
    assert p.alerts == ["overdue", "vetoed"]
    assert p.shown == "suspect says-dead"


@pytest.mark.parametrize("forms", [(), Settings().forms])
def test_a_paused_server_is_not_silent(play: Any, forms: Any) -> None:
    """Its health and metrics time out, and its pause endpoint says that it is paused: not everything says nothing."""
    p = play(forms=forms).run("work*2 silent*61")
    p.run("silent+paused*90" if p.question is None else "failed silent+paused*90")
    assert p.restarts == []
    p.run("work*2 silent*59")
    assert p.shown == "blind silent", "the clock began again"


def test_not_now_beside_an_engine_that_moves_is_not_asked_again_at_once(play: Any) -> None:
    p = play(engines=2).run("work/work*2 work/still*14")
    for _ in range(60):
        p.run("not-now work/still" if p.question is not None else "work/still")
    assert p.restarts == []
    assert len(p.asks) <= 11


# --- several engines -------------------------------------------------------------------------------------------------


def test_a_question_that_said_nothing_long_ago_delays_no_confirmation(play: Any) -> None:
    """It was dropped since work moved; hours later the server falls quiet, and at once says that it died."""
    p = play().run("work quiet*7 work failed work*30 quiet 503+quiet")
    assert [q.purpose for q in p.asks] == [Purpose.IDLE]
    p.run("503+quiet")
    assert [q.purpose for q in p.asks] == [Purpose.IDLE, Purpose.CONFIRM]


def test_an_answer_vetoes_only_if_that_engine_booked_it(play: Any) -> None:
    p = play(engines=2).run("work/work*2 work/still*14")
    assert p.asks[-1].engine == "1"
    assert p.asks[-1].pinned
    q = play(engines=2).run("work/work*2 work/still*14 answered work/own*2")
    assert q.alerts == ["stand-still", "vetoed"]
    assert q.restarts == []
    p.run("answered work/still work/still")
    assert [r.proof.engine for r in p.restarts] == ["1"]


def test_the_veto_of_one_engine_does_not_protect_another(play: Any) -> None:
    p = play(engines=2).run("work/work*2 still/work*6 still/still*8")
    assert p.asks[-1].engine == "0"
    p.run("answered own/still")
    assert "vetoed" in p.alerts
    for _ in range(20):
        p.run("failed still/still" if p.question is not None else "still/still")
        if p.restarts:
            break
    assert [r.proof.engine for r in p.restarts] == ["1"]
    assert p.now < 1000 + 80 + 120 + 30 + 10, "no later than by its own clock"


def test_an_answer_meant_for_another_engine_vetoes_nothing(play: Any) -> None:
    p = play(engines=2).run("work/work*2 still/still*14")
    assert p.asks[-1].engine == "0"
    p.run("work/still")
    assert p.state.recovery.ground.engine == "1"
    p.run("answered own/still")
    assert p.phase == "confirm"
    assert p.alerts == []
    assert [q.engine for q in p.asks] == ["0", "1"]


# --- holds -----------------------------------------------------------------------------------------------------------

HOLDS: list[tuple[dict[str, Any], str, tuple[Hold, ...]]] = [
    ({"enforce": False}, "", (Hold.OBSERVE,)),
    ({"has_unit": False}, "", (Hold.NO_UNIT,)),
    ({}, "+flag", (Hold.FLAG,)),
    ({}, "+untold", (Hold.UNIT,)),
    ({}, "+job", (Hold.UNIT,)),
    ({"max_restarts": 0}, "", (Hold.BREAKER,)),
    ({}, "+left-over", (Hold.LEFT_OVER,)),
    ({"enforce": False, "max_restarts": 0}, "+flag", (Hold.OBSERVE, Hold.FLAG, Hold.BREAKER)),
]


@pytest.mark.parametrize(("settings", "word", "holds"), HOLDS)
def test_each_hold_holds_is_named_and_is_alerted_once(
    play: Any, settings: dict[str, Any], word: str, holds: tuple[Hold, ...]
) -> None:
    p = play(**settings).run("work*2 still*13")
    for _ in range(60):
        p.run(f"failed still{word}" if p.question is not None else f"still{word}")
    assert p.restarts == []
    assert p.shown == "hung flat 0"
    assert p.phase == "held"
    assert p.state.recovery.holds == holds
    assert "held: " in p.state.verdict.why
    breaker = ["breaker"] if Hold.BREAKER in holds else []
    assert p.alerts == ["hung", "held", *breaker]


def test_a_failed_unit_is_held_unless_it_is_to_be_revived(play: Any) -> None:
    p = play().run("work*2 refused+unit-failed*10")
    assert p.shown == "dead unit-failed"
    assert p.state.recovery.holds == (Hold.FAILED_UNIT,)
    assert p.restarts == []
    assert p.alerts == ["unit-failed", "dead", "held"]
    p = play(revive=True).run("work*2 refused+unit-failed*2")
    assert [r.revive for r in p.restarts] == [True]


def test_no_question_while_the_flag_is_held(play: Any) -> None:
    assert play().run("work*2 still*3 still+flag*60").asks == []


def test_when_the_hold_ends_it_is_confirmed_again(play: Any) -> None:
    p = play().run("work*2 still*3 still+flag*20")
    assert p.phase == "held"
    p.run("still")
    assert p.phase == "confirm"
    assert p.shown == "hung flat 0", "it was confirmed before, and told"
    p.run("failed still")
    assert [r.proof.held for r in p.restarts] == [(Hold.FLAG,)]
    assert p.alerts == ["hung", "held", "restart"]


HELD_ENDS = ["work", "still+paused", "still+unit-inactive", "life quiet", "gap still"]


@pytest.mark.parametrize("script", HELD_ENDS)
def test_what_ends_a_held_finding(play: Any, script: str) -> None:
    p = play().run("work*2 still*3 still+flag*20 " + script)
    assert p.phase == "watch"
    assert p.state.recovery.holds == ()


def test_held_for_days_it_is_asked_every_five_minutes_and_a_recovery_is_seen(play: Any) -> None:
    p = play(enforce=False).run(HANG)
    sizes = set()
    for i in range(2000):
        p.run("failed still" if p.question is not None else "still")
        if i > 1000:
            sizes.add(len(repr(p.state.recovery.told)) + len(repr(p.state.recovery.restarts)))
    assert 60 <= len(p.asks) <= 70
    assert len(sizes) == 1, "nothing piles up"
    assert p.alerts == ["hung", "held"]
    while p.question is None:
        p.run("still")
    p.run("answered still+own still*2")
    assert p.shown == "degraded stand-still 0"


def test_ten_minutes_between_two_restarts(play: Any) -> None:
    p = play(forms=()).restarted("work*2 still*14")
    p.run("done-job life quiet*3 token")
    assert p.settled[-1].served
    first = p.now
    p.run("still*200")
    assert len(p.restarts) == 2
    second = next(t for t, e in p.effects if e is p.restarts[1])
    assert second - first >= 560
    assert "held" in p.alerts


def test_the_ten_minutes_outlast_a_window_that_is_shorter(play: Any) -> None:
    p = play(forms=(), restart_window=100.0).restarted("work*2 still*14")
    p.run("done-job life quiet*3 token still*40")
    assert len(p.restarts) == 1
    assert p.state.recovery.holds == (Hold.TEN_MINUTES,)


# --- breaker ---------------------------------------------------------------------------------------------------------


def test_the_breaker_opens_after_so_many_and_closes_with_the_window(play: Any) -> None:
    p = play(forms=(), restart_window=7200.0).poison(400)
    assert len(p.restarts) == 3
    assert Hold.BREAKER in p.state.recovery.holds
    assert p.alerts.count("breaker") == 1
    began = [t for t, e in p.effects if e in p.restarts]
    p.poison(600, "still")
    times = [t for t, e in p.effects if e in p.restarts]
    assert times[3] - began[0] >= 7200
    assert all(b - a >= 7200 for a, b in zip(times, times[3:], strict=False))


def test_a_longer_window_counts_what_a_shorter_one_had_let_go(play: Any) -> None:
    p = play(forms=(), max_restarts=1, restart_window=1200.0).poison(260)
    assert len(p.restarts) == 3
    p.settings = replace(p.settings, max_restarts=3, restart_window=21600.0)
    p.resume()
    p.poison(200, "still")
    assert len(p.restarts) == 3
    assert Hold.BREAKER in p.state.recovery.holds


def test_restarts_that_no_window_reaches_are_forgotten(play: Any) -> None:
    p = play(forms=()).restarted("work*2 still*14").run("done-job life quiet token")
    p.now += LONGEST_WINDOW
    p.restarted("work*2 still*14")
    assert len(p.state.recovery.restarts) == 1


def test_a_reset_while_held_and_unreadable(play: Any) -> None:
    """The hold that named the last restart is told of until the next reading, though the restart is forgotten."""
    p = play(forms=()).restarted("work*2 still*14").run("done-job life quiet*3 token still*20")
    assert p.state.recovery.holds == (Hold.TEN_MINUTES,)
    p.run("reset-breaker metrics-timeout")
    assert p.shown == "hung flat 0"


def test_a_failed_unit_with_a_job_queued_is_not_revived(play: Any) -> None:
    job = play(revive=True).run("work*2")
    for _ in range(5):
        job.poll("refused", unit=job.base["unit"].__class__(True, "failed", job=4, invocation="i1"))
    assert job.restarts == []
    assert job.state.recovery.holds == (Hold.UNIT,)


def test_reset_closes_the_breaker(play: Any) -> None:
    p = play(forms=()).poison(400)
    assert len(p.restarts) == 3
    p.run("reset-breaker still*2")
    assert len(p.restarts) == 4
