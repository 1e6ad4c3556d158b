"""Every rule, and that their order matters: script -> state, rule, engine."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from factory_watchdog.core.judge import RULES, judge, window
from factory_watchdog.core.model import MEANING, State

WARM = "work*2 "

# Script -> state, rule and engine of the verdict after it.
VERDICTS = [
    # 1. set aside
    (WARM + "still*3 still+maintenance", "paused maintenance"),
    (WARM + "still+unit-inactive", "stopped unit-set-aside"),
    (WARM + "work+unit-deactivating", "stopped unit-set-aside"),
    (WARM + "work+unit-reloading", "stopped unit-set-aside"),
    (WARM + "refused+unit-failed", "suspect unit-failed"),
    (WARM + "refused+unit-failed*2", "dead unit-failed"),
    (WARM + "refused+stopped-failed*9", "stopped unit-set-aside"),
    (WARM + "refused+gave-up", "suspect unit-failed"),
    (WARM + "refused+gave-up*2", "dead unit-failed"),
    # 2. starting
    ("refused*3", "starting starting"),
    ("503+quiet*3", "starting starting"),
    ("metrics-timeout+health-timeout*3", "starting starting"),
    ("health-timeout+work", "busy working"),  # counters of this life say that it served
    (WARM + "work+unit-activating", "starting starting"),
    # 3. gone
    (WARM + "refused", "suspect refused"),
    (WARM + "refused*3", "suspect refused"),
    (WARM + "refused*5", "dead refused"),
    (WARM + "refused*2 silent refused*2", "suspect refused"),
    (WARM + "refused*2 work", "busy working"),
    (WARM + "503+still", "suspect says-dead"),
    (WARM + "503+still now 503+still", "suspect says-dead"),  # milliseconds apart is no second reading
    (WARM + "503+still*2", "suspect says-dead"),
    (WARM + "503+still*2 failed 503+still", "dead says-dead"),
    (WARM + "503+work*5", "busy working"),
    (WARM + "503+still 503+work 503+still", "suspect says-dead"),
    (WARM + "500+still*5", "suspect flat 0"),  # vLLM says so with 503 alone
    (WARM + "503+metrics-500*5", "blind metrics"),  # nothing tells whether anything moves
    (WARM + "503+still silent", "blind silent"),
    (WARM + "503+no-kv*3", "blind signals-missing 0"),
    # 4. blind
    (WARM + "metrics-timeout", "blind metrics"),
    (WARM + "metrics-500", "blind metrics"),
    (WARM + "metrics-empty", "blind metrics"),
    (WARM + "metrics-absent", "blind metrics"),
    (WARM + "silent", "blind silent"),
    (WARM + "reset", "blind silent"),
    (WARM + "no-kv", "blind signals-missing 0"),
    (WARM + "no-kv+steps", "busy working"),  # it moves: that is enough
    (WARM + "no-gauges", "blind signals-missing 0"),
    (WARM + "no-gauges+token", "busy working"),
    ("quiet*2 no-kv+quiet", "idle idle"),  # without requests it lacks nothing
    # 5. paused
    (WARM + "still*3 still+paused", "paused paused"),
    (WARM + "quiet+paused", "paused paused"),
    # 6. with requests
    ("work", "busy working"),
    ("still", "busy working"),  # the first look
    (WARM, "busy working"),
    (WARM + "still", "suspect flat 0"),
    (WARM + "still*11", "suspect flat 0"),
    (WARM + "queue*3", "suspect flat 0"),
    (WARM + "still*3 kv", "busy working"),
    (WARM + "health-timeout+work*5", "busy working"),
    # 7. without requests
    (WARM + "quiet", "idle idle"),
    (WARM + "done", "idle idle"),
    (WARM + "quiet*8 failed quiet", "suspect unanswered 0"),
    (WARM + "quiet*8 own answered quiet", "idle idle"),
]


@pytest.mark.parametrize(("script", "shown"), VERDICTS)
def test_verdict(play: Any, script: str, shown: str) -> None:
    assert play().run(script).shown == shown


def test_every_rule_decides_somewhere(play: Any) -> None:
    """Rows of the table are deleted in turn; none may go unnoticed."""
    decided = {play().run(script).state.finding.rule for script, _ in VERDICTS}
    named = {"stand-still": "with-requests", "flat": "with-requests", "working": "with-requests"}
    named |= {"metrics": "without-metrics", "idle": "without-requests", "unanswered": "without-requests"}
    named |= {"never-served": "starting"}
    rules = {named.get(rule, rule) for rule in decided}
    assert {row.name for row in RULES} - rules == {"proxy", "server-errors"}  # have tests of their own


# Two rules that both fit one reading: the first decides.
ORDER = [
    ("maintenance", "still*14 still+maintenance+unit-inactive", "paused maintenance"),
    ("unit-set-aside", "refused*2 refused+unit-inactive", "stopped unit-set-aside"),
    ("unit-failed", "refused*2 refused+unit-failed*2", "dead unit-failed"),
    ("starting", "refused*2 refused+unit-activating", "starting starting"),
    ("says-dead", "still*6 503+still", "suspect says-dead"),
    ("silent", "silent*3", "blind silent"),
    ("signals-missing", "still*3 no-kv+paused", "blind signals-missing 0"),
    ("paused", "still*13 still+paused", "paused paused"),
]


@pytest.mark.parametrize(("first", "script", "shown"), ORDER)
def test_order(play: Any, first: str, script: str, shown: str) -> None:
    assert play().run(WARM + script).shown == shown


def test_the_order_of_the_rules() -> None:
    assert [row.name for row in RULES] == [
        "maintenance",
        "unit-set-aside",
        "unit-failed",
        "starting",
        "refused",
        "says-dead",
        "server-errors",
        "proxy",
        "silent",
        "without-metrics",
        "signals-missing",
        "paused",
        "with-requests",
        "without-requests",
    ]
    assert [row.name for row in RULES if row.resets] == ["maintenance", "unit-set-aside", "proxy", "paused"]


def test_the_last_rule_fits_everything(play: Any) -> None:
    p = play().run(WARM + "quiet")
    finding, resets = judge(p.memory, p.reading(), p.settings)
    assert finding.rule == "idle"
    assert not resets


# --- times -----------------------------------------------------------------------------------------------------------

# Settings, script before, word, the poll at which it first is a ground, what it is shown as then.
GROUNDS = [
    ({}, WARM, "still", 13, "flat"),
    ({"hang_after": 60.0}, WARM, "still", 7, "flat"),
    ({"hang_after": 10.0}, WARM, "still", 2, "flat"),  # two readings at least
    ({}, WARM, "refused", 4, "refused"),
    ({"dead_after": 1.0}, WARM, "refused", 2, "refused"),
    ({}, WARM, "503+still", 2, "says-dead"),
    ({}, WARM, "silent", 61, "silent"),
    ({}, WARM, "reset", 61, "silent"),
    ({}, "", "refused", 181, "never-served"),
    ({}, "", "503+metrics-500", 181, "never-served"),
    ({}, "", "503+quiet+unit-activating", 181, "never-served"),
]


@pytest.mark.parametrize(("settings", "before", "word", "polls", "rule"), GROUNDS)
def test_when_a_rule_is_a_ground(
    play: Any, settings: dict[str, Any], before: str, word: str, polls: int, rule: str
) -> None:
    p = play(forms=(), **settings).run(before)
    for _ in range(polls - 1):
        p.run(word)
        assert not p.state.finding.candidate, p.state.finding
    p.run(word)
    assert p.state.finding.candidate
    assert p.state.finding.rule == rule


@pytest.mark.parametrize("word", ["quiet+unit-activating", "503+prompt", "503+still+paused"])
def test_what_serves_moves_or_is_paused_is_starting_for_as_long_as_it_takes(play: Any, word: str) -> None:
    p = play(forms=()).run(f"{word}*400")
    assert p.shown == "starting starting"
    assert p.alerts == ["overdue"]
    assert p.restarts == []


def test_a_unit_that_activates_for_ever_is_dead_and_held(play: Any) -> None:
    p = play(forms=()).run("refused+unit-activating*200")
    assert p.shown == "dead never-served"
    assert p.restarts == []
    assert [str(hold) for hold in p.state.recovery.holds] == ["unit"]


def test_silence_is_never_a_ground_where_it_is_not_set(play: Any) -> None:
    p = play(silent_after=None).run(WARM + "silent*400")
    assert p.shown == "blind silent"
    assert p.restarts == []


def test_silence_counts_only_after_having_served(play: Any) -> None:
    p = play(startup_timeout=36000.0).run("silent*100")
    assert p.shown == "starting starting"


def test_a_life_without_an_outcome_may_compile(play: Any) -> None:
    p = play(forms=())
    p.life()
    p.run("quiet still*60")
    assert p.shown == "suspect flat 0"
    assert window(p.memory, p.settings) == 600
    assert p.run("still*3").restarts != []
    p = play(forms=(), first_outcome=0.0)
    p.life()
    assert p.run("quiet still*15").restarts != []


def test_starving_is_degraded_and_never_a_ground(play: Any) -> None:
    p = play().run(WARM + "steps*180")
    assert p.shown == "busy working"
    assert p.run("steps").shown == "degraded starved 0"
    assert p.run("steps*500").restarts == []
    assert p.alerts == ["starved"]
    assert p.run("token").shown == "busy working"


def test_overdue_is_alerted_at_half_the_time(play: Any) -> None:
    p = play().run("refused*90")
    assert p.alerts == []
    assert p.run("refused").alerts == ["overdue"]


def test_a_crash_loop_is_overdue_though_no_life_lasts(play: Any) -> None:
    p = play()
    for _ in range(10):
        p.run("refused*10").life()
    assert p.shown == "starting starting"
    assert p.alerts == ["overdue"]


def test_paused_for_long_is_an_alert_and_never_a_ground(play: Any) -> None:
    p = play().run(WARM + "still*2 still+paused*180")
    assert p.alerts == []
    assert p.run("still+paused*200").alerts == ["paused-long"]
    assert p.restarts == []
    assert p.run("still+not-paused*12").shown == "suspect flat 0", "all clocks start again"


# --- several engines -------------------------------------------------------------------------------------------------

ENGINES = [
    ("work/work*2 work/still*3", "suspect flat 1"),
    ("work/work*2 work/quiet*3", "busy working"),
    ("work/work*2 quiet/quiet*3", "idle idle"),
    ("work/work*2 still/work*3", "suspect flat 0"),
    ("work/work*2 still/work*2 still/still*2", "suspect flat 0"),  # the one that stands longer
    ("work/work*2 work/no-kv", "blind signals-missing 1"),
]


@pytest.mark.parametrize(("script", "shown"), ENGINES)
def test_the_worst_engine_is_shown(play: Any, script: str, shown: str) -> None:
    assert play(engines=2).run(script).shown == shown


def test_a_sum_hides_nothing(play: Any) -> None:
    p = play(engines=2, forms=()).run("work/work*2 work/still*14")
    assert [(r.proof.rule, r.proof.engine) for r in p.restarts] == [("flat", "1")]


# --- words -----------------------------------------------------------------------------------------------------------


def test_every_state_has_a_meaning() -> None:
    assert set(MEANING) == set(State)
    assert {state for state in State if not MEANING[state].live} == {State.HUNG, State.DEAD}


def test_since_is_when_the_state_began(play: Any) -> None:
    p = play().run(WARM + "still*5")
    assert p.state.verdict.since == pytest.approx(p.now - 40, abs=0.1)
    assert all(a != b for a, b in pairwise(t for t, e in p.effects if type(e).__name__ == "Turned"))
