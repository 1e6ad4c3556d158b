"""What a reading is worth: new lives, gaps, movement, the flat clock, our own share. Each row is a script of polls."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from factory_watchdog.core import compare, observe
from factory_watchdog.core.memory import Engine, Memory
from factory_watchdog.core.model import Identity, Purpose
from factory_watchdog.core.observe import START_TIMES_KEPT, is_new

WARM = "work*2 "


@pytest.mark.parametrize(("module", "made"), [(observe, Memory), (compare, Engine)])
def test_a_poll_says_what_becomes_of_every_field(play: Any, monkeypatch: Any, module: Any, made: Any) -> None:
    """Both are made anew in each poll, without a copy: a field that is left out would be forgotten."""
    p = play().run(WARM)
    told: set[str] = set()
    names = [f.name for f in fields(made)]

    def make(*values: Any, **named: Any) -> Any:
        told.update(names[: len(values)], named)
        return made(*values, **named)

    monkeypatch.setattr(module, made.__name__, make)
    p.run("work")
    assert told == set(names)


# --- identity --------------------------------------------------------------------------------------------------------

WHO = Identity(50.0, "i1", 100, 5)


@pytest.mark.parametrize(
    ("told", "new"),
    [
        (Identity(50.0, "i1", 100, 5), False),
        (Identity(51.0, "i1", 100, 5), True),
        (Identity(50.0, "i2", 100, 5), True),
        (Identity(50.0, "i1", 101, 5), True),
        (Identity(50.0, "i1", 100, 6), True),
        (Identity(None, "i1", 100, 5), False),
        (Identity(50.0, None, None, None), False),
        (Identity(), False),
        (Identity(None, "i2", None, None), True),
    ],
)
def test_a_told_value_replaced_by_another_is_a_new_life(told: Identity, new: bool) -> None:
    assert is_new(WHO, told) is new


def test_a_value_that_is_told_later_is_no_new_life(play: Any) -> None:
    p = play().run("work+no-start+untold work+no-start work")
    assert p.memory.life.number == 1
    assert p.memory.life.identity == Identity(50.0, "i1", 100, 5)


def test_a_value_that_goes_missing_is_remembered(play: Any) -> None:
    p = play().run(WARM + "work+untold*5 work+no-start*5")
    p.life()
    p.run("quiet+untold+no-start quiet+untold")
    assert p.memory.life.number == 2


@pytest.mark.parametrize("part", ["start_time", "invocation", "main_pid"])
def test_any_part_alone_shows_a_new_life(play: Any, builders: Any, part: str) -> None:
    p = play().run(WARM + "still*8")
    if part == "start_time":
        p.base["start_time"] = 51.0
    else:
        p.base["unit"] = builders.replace(p.base["unit"], **{part: "i2" if part == "invocation" else 101})
    p.run("still")
    assert p.memory.life.number == 2
    assert p.memory.new_life
    assert p.shown == "busy working", "the first look of a life"


def test_an_old_page_under_a_new_unit_is_one_life_more_and_never_a_proxy(play: Any, builders: Any) -> None:
    p = play().run(WARM + "still*8")
    p.base["unit"] = builders.replace(p.base["unit"], invocation="i2", main_pid=101, main_start=6)
    p.run("still").base["start_time"] = 60.0
    p.run("quiet*3")
    assert p.memory.life.number == 3
    assert not p.memory.proxy


def test_start_times_that_come_back_are_a_proxy_until_another_unit_run(play: Any) -> None:
    p = play()
    for start in (50.0, 60.0, 50.0, 60.0):
        p.base["start_time"] = start
        p.run("work")
    assert p.shown == "blind proxy"
    assert p.alerts == ["proxy"], "raised once"
    p.run("work*20")
    assert p.shown == "blind proxy"
    p.life()
    p.run("quiet*2")
    assert p.shown == "idle idle"


def test_start_times_do_not_pile_up(play: Any) -> None:
    p = play()
    for start in range(100):
        p.base["start_time"] = float(start)
        p.run("work")
    assert len(p.memory.start_times) == START_TIMES_KEPT


# --- movement --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "moved"),
    [
        ("steps", True),
        ("prompt", True),
        ("token", True),
        ("finish", True),
        ("kv", True),
        ("kv-down", True),
        ("kv-noise", False),
        ("still", False),
        ("queue", False),
    ],
)
def test_what_is_work(play: Any, word: str, moved: bool) -> None:
    p = play().run(WARM + word)
    assert p.memory.engines[0].moved is moved
    assert p.memory.engines[0].flat == (0 if moved else 1)


@pytest.mark.parametrize(("word", "produced"), [("token", True), ("finish", True), ("steps", False), ("kv", False)])
def test_what_is_outcome(play: Any, word: str, produced: bool) -> None:
    assert play().run(WARM + word).memory.engines[0].produced is produced


# Script, then: flat readings, seconds from the first standing reading to the begin of the newest.
CLOCK = [
    ("work*2 still", 1, 10),
    ("work*2 still*3", 3, 30),
    ("work quiet still", 0, None),  # no requests before: the clock starts at the first reading that shows them
    ("work quiet still*2", 1, 10),
    ("work*2 still*2 metrics-timeout*3 still", 3, 60),  # skipped, and reset nothing
    ("work*2 still*2 metrics-empty*2 still", 3, 50),
    ("work*2 still*2 silent still", 3, 40),
    ("work*2 still*2 no-kv*3 still", 3, 60),  # a required signal is missing: as good as unreadable
    ("work*2 still*2 steps still", 1, 10),
    ("work*2 still*2 quiet still*2", 1, 10),
    ("work*2 still*2 counter-down", 0, None),  # a new baseline
    ("work*2 still*2 counter-down still*2", 2, 20),
    ("work*2 still*5 gap still", 0, None),
    ("work*2 still*5 gap still*3", 2, 20),
    ("work*2 still*5 still+maintenance still*3", 2, 20),
    ("work*2 still*5 still+paused still+not-paused*3", 2, 20),
    ("work*2 still+health-timeout*5", 5, 50),
    ("work*2 queue*4", 4, 40),
]


@pytest.mark.parametrize(("script", "flat", "seconds"), CLOCK)
def test_the_flat_clock(play: Any, script: str, flat: int, seconds: float | None) -> None:
    p = play().run(script)
    engine = p.memory.engines[0]
    shown = None if engine.flat_since is None else round(p.now - engine.flat_since)
    assert (engine.flat, shown) == (flat, seconds)


def test_a_reading_that_moves_without_a_required_signal_is_no_base_for_the_next(play: Any) -> None:
    """Missing in either of the two readings compared: KV usage may have moved in between."""
    p = play().run(WARM + "no-kv+steps")
    assert p.shown == "busy working"
    p.run("still")
    assert p.shown == "blind signals-missing 0"
    p.run("still")
    assert p.shown == "suspect flat 0"
    assert p.memory.engines[0].flat == 1


@pytest.mark.parametrize(("pause", "gap"), [(29.9, False), (30.1, True)])
def test_a_gap_is_more_than_three_intervals(play: Any, pause: float, gap: bool) -> None:
    p = play().run(WARM + "still*5")
    p.pause = pause
    p.run("still")
    assert p.memory.gap is gap
    assert p.memory.engines[0].flat == (0 if gap else 6)


def test_a_host_that_slept_inside_a_poll_is_a_gap_too(play: Any) -> None:
    p = play().run(WARM + "still*5")
    p.now += 10
    p.poll("still", ended=p.now + 3600)
    p.now += 3600
    p.run("still*3")
    assert p.states[-3:] == ["suspect"] * 3
    assert p.phase == "watch"


def test_a_gap_starts_the_startup_clock_again(play: Any) -> None:
    p = play().run("refused*90")
    p.pause = 7200
    p.run("refused*2")
    assert p.shown == "starting starting"
    assert p.alerts == []


def test_no_gap_while_readings_are_unreadable(play: Any) -> None:
    p = play().run(WARM + "metrics-timeout*30 work")
    assert not p.memory.gap


# --- requests --------------------------------------------------------------------------------------------------------

REQUESTS = [
    ("work*2", 3.0),
    ("work queue", 6.0),
    ("work quiet", 0.0),
    ("work negative", 0.0),  # a gauge that miscounts
    ("no-gauges", None),  # not told is not zero
]


@pytest.mark.parametrize(("script", "requests"), REQUESTS)
def test_requests(play: Any, script: str, requests: float | None) -> None:
    assert play().run(script).memory.engines[0].requests == requests


def test_gauges_that_are_absent_with_all_counters_at_zero_are_no_requests(play: Any) -> None:
    p = play()
    p.life()
    p.run("no-gauges*2")
    assert p.memory.engines[0].requests == 0
    assert p.shown == "idle idle"


def test_negative_gauges_are_no_ground_for_a_restart(play: Any) -> None:
    assert set(play().run("done*2 negative*8 own answered negative*12").states) == {"idle"}


# --- own share -------------------------------------------------------------------------------------------------------

OWN_SHARE = [
    "quiet*8 answered own quiet",  # one reading shows all of it
    "quiet*8 answered own-step own-finish",  # booked in two portions
    "quiet*8 answered quiet own",  # booked a moment later
    "quiet*8 answered own-kv quiet",  # blocks of the cache come and go with it
]


@pytest.mark.parametrize("script", OWN_SHARE)
def test_our_own_share_moves_nothing(play: Any, script: str) -> None:
    p = play().run(script)
    assert p.memory.engines[0].moved_at is None
    assert p.memory.life.answered


def test_a_user_beside_our_question_is_seen(play: Any) -> None:
    p = play().run("quiet*8 answered own+token quiet")
    assert p.memory.engines[0].moved_at is not None


def test_a_share_that_never_shows_does_not_eat_the_users_tokens_for_ever(play: Any) -> None:
    p = play().run("quiet*8 answered quiet*3")
    assert p.memory.engines[0].own is None
    p.run("own")
    assert p.memory.engines[0].moved


def test_more_than_one_token_of_ours_is_more_than_one_step(play: Any, builders: Any) -> None:
    p = play().run("quiet*8")
    p.answer(builders.Outcome.ANSWERED, completion_tokens=4)
    p.run("own+own-step+own-step+own-step")
    assert p.memory.engines[0].moved_at is None


def test_our_own_request_in_the_gauges_is_no_users(play: Any) -> None:
    p = play().run("work done quiet*8")
    assert p.question is not None
    p.run("one*2 failed one*30")
    assert {s for s in p.states[10:] if s not in ("idle", "suspect")} == set()
    assert p.memory.engines[0].requests == 0


def test_a_users_request_beside_ours_is_seen(play: Any) -> None:
    p = play().run("work done quiet*8 one*2 failed one*2 still*2")
    assert p.memory.engines[0].requests == 2


def test_our_request_stays_ours_where_nothing_could_be_compared_before(play: Any, builders: Any) -> None:
    p = play()
    p.samples = [builders.Sample("0", running=0, waiting=0)]
    p.run("quiet*8")
    assert p.question is not None
    p.samples = [builders.Sample("0", 1, 0, 0, 0, 0, 0.1, 0)]
    p.poll()
    p.poll()
    assert p.memory.engines[0].requests == 0


# --- life ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "up"),
    [
        ("refused", False),
        ("503+quiet", False),
        ("health-timeout+quiet", True),  # its counters say that it served; a server at its limit starves /health
        ("health-timeout+metrics-timeout*3", False),
        ("quiet", True),
        ("health-absent+quiet", True),  # no /health: from the metrics
        ("health-absent+metrics-timeout", False),
        ("health-absent+metrics-absent", True),  # neither by nature: it answers, and is not waited for
        ("503+quiet 503+token", True),  # users get something
    ],
)
def test_up(play: Any, script: str, up: bool) -> None:
    assert play().run(script).memory.life.up is up


def test_a_life_with_counters_at_zero_and_a_silent_health_has_not_served(play: Any) -> None:
    p = play()
    p.samples = [replace(p.samples[0], generated=0, finished=0)]
    assert not p.run("health-timeout+still*3").memory.life.up


def test_outcome_by_counters_by_traffic_and_by_an_answer(play: Any) -> None:
    assert play().run("quiet").memory.life.outcome, "the counters tell of it"
    p = play()
    p.life()
    assert not p.run("quiet*8").memory.life.outcome
    assert p.run("own answered quiet").memory.life.outcome
    p.life()
    assert not p.run("quiet*3").memory.life.outcome
    assert p.run("still token").memory.life.outcome


def test_totals_carried_over_from_the_life_before_prove_nothing(play: Any, builders: Any) -> None:
    p = play().run("work*3")
    samples = p.samples
    p.life()
    p.samples = [builders.replace(s, running=0) for s in samples]
    p.run("quiet*3")
    assert p.memory.life.number == 2
    assert not p.memory.life.outcome
    assert p.run("token").memory.life.outcome


def test_engines_come_and_go(play: Any, builders: Any) -> None:
    p = play(engines=2).run("work/work*2")
    p.samples = [*p.samples[:1], builders.replace(p.samples[1], engine="2"), builders.replace(p.samples[1], engine="3")]
    p.engines = 3
    p.run("work/still/still")
    assert [e.sample.engine for e in p.memory.engines] == ["0", "2", "3"]
    assert p.shown == "busy working"
    p.samples, p.engines = [], 0
    p.poll()
    assert p.memory.engines == ()


# --- host evidence ---------------------------------------------------------------------------------------------------


def computing(p: Any, builders: Any, cores: float, polls: int) -> Any:
    """Stand still for so many polls while the unit uses so many cores."""
    for _ in range(polls):
        used = p.base["unit"].cpu + cores * p.pause
        p.base["unit"] = builders.replace(p.base["unit"], cpu=used)
        p.run("still")
    return p


@pytest.mark.parametrize(("slow", "cores", "polls"), [(True, 1.0, 38), (True, 0.09, 14), (False, 1.0, 14)])
def test_time_in_which_the_host_computes_counts_a_third(
    play: Any, builders: Any, slow: bool, cores: float, polls: int
) -> None:
    p = play(forms=(), slow_evidence=slow)
    p.base["unit"] = builders.replace(p.base["unit"], cpu=100.0)
    p.run("work*2")
    assert computing(p, builders, cores, polls - 2).restarts == []
    assert len(computing(p, builders, cores, 3).restarts) == 1


def test_a_computing_host_is_asked_nothing_until_no_step_lasts_so_long(play: Any, builders: Any) -> None:
    p = play(slow_evidence=True)
    p.base["unit"] = builders.replace(p.base["unit"], cpu=100.0)
    p.run("work*2")
    assert computing(p, builders, 1.0, 36).asks == []
    assert [question.purpose for question in computing(p, builders, 1.0, 2).asks] == [Purpose.CONFIRM]
    assert p.restarts == []
    p.run("failed still")
    assert len(p.restarts) == 1


def test_a_wedge_that_spins_while_idle_is_asked_and_found(play: Any, builders: Any) -> None:
    p = play(slow_evidence=True)
    p.base["unit"] = builders.replace(p.base["unit"], cpu=100.0)
    p.run("work*2 done")
    for _ in range(200):
        p.base["unit"] = builders.replace(p.base["unit"], cpu=p.base["unit"].cpu + p.pause)
        p.run("failed quiet" if p.question is not None else "quiet")
    assert len(p.restarts) == 1


def test_a_look_at_once_measures_nothing(play: Any, builders: Any) -> None:
    """Where in its poll each look took the CPU time matters more than what was used in between."""
    p = play(slow_evidence=True)
    p.base["unit"] = builders.replace(p.base["unit"], cpu=100.0)
    p.run("work*2 still*5")
    p.base["unit"] = builders.replace(p.base["unit"], cpu=100.05)
    p.run("now still")
    assert p.memory.computing_since is None
    p.run("still")
    assert p.memory.computing_since is None
