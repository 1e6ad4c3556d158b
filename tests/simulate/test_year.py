"""A virtual week of everything that happens to model servers, and whether its law sees what is wrong."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Self

import pytest
from year.__main__ import main, play, table, weeks
from year.hangs import refused, under_flag, with_requests
from year.host import Host
from year.law import Law, Tally, WrongError
from year.spells import traffic
from year.weather import BOUNDS, DAY, MACHINES, REFUSED, Hang, Machine, Weather, status, stuck

from factory_watchdog.core import judge, recovery
from factory_watchdog.core.model import Hold, Settings
from factory_watchdog.simulate.script import Engine


def test_a_week_holds() -> None:
    """Seven days of four backends: no false restart, every hang found in time, nothing asked that works."""
    total = Tally()
    with ProcessPoolExecutor(2) as pool:
        for part in pool.map(play, (20, 20), (0, 1), (4, 3)):
            assert part.wrong == ""
            assert part.polls > 4 * part.days * 8000
            total.add(part.tally)
    assert len(total.found) >= 12
    assert sum(map(len, total.found.values())) >= 50
    assert "frozen with requests" in "\n".join(table(total))


def test_the_same_seed_gives_the_same_week() -> None:
    one, other, another = (play(seed, 3, 1, MACHINES[1:2]) for seed in (5, 5, 6))
    assert one == other != another


@pytest.mark.parametrize(("days", "expected"), [(1, [(0, 1)]), (7, [(0, 7)]), (9, [(0, 7), (1, 2)])])
def test_a_year_is_made_of_weeks(days: int, expected: list[tuple[int, int]]) -> None:
    assert weeks(days) == expected


def test_a_hang_that_begins_while_we_are_away_is_timed_from_our_return() -> None:
    law = Law()
    weather = Weather(MACHINES[0], random.Random(1), (0.0,), ((refused, 1),)).draw()
    watched = Host([weather], law, random.Random(1)).watched[0]
    hang = watched.hangs[0]
    law.interrupted(watched, hang.begin + 50)
    law.polled(watched, hang.begin + 100)
    with pytest.raises(WrongError, match="not restarted after"):
        law.polled(watched, hang.begin + 120)


# --- the law sees ----------------------------------------------------------------------------------------------------


def a_day(episode: Callable[[Weather], None], *machines: Machine) -> None:
    """A day on which `episode` happens again and again, to each of these backends at the same time."""
    weathers = [
        Weather(machine, random.Random(1), (0.0,), ((episode, 1),)).draw() for machine in machines or MACHINES[:1]
    ]
    quiet = random.Random(1)
    quiet.expovariate = lambda lambd=1.0: 2 * DAY  # type: ignore[method-assign]  # no trouble of our own
    Host(weathers, Law(), quiet).run()


def long_stall(weather: Weather) -> None:
    """A hang that the law is not told of: to it, a restart of this is false."""
    weather.add(600, weather.frozen())


def unseen_hang(weather: Weather) -> None:
    """A hang that is none: work goes on, so nobody finds it."""
    weather.settle()
    weather.hang("not there", "requests", weather.busy())


def paused_hang(weather: Weather) -> None:
    """The server is paused, and the law told that it hangs."""
    weather.settle()
    weather.hang("paused", "requests", weather.frozen(), paused=True)


@pytest.mark.parametrize(
    ("episode", "says"),
    [(long_stall, "false"), (unseen_hang, "not restarted after"), (paused_hang, "not restarted after")],
)
def test_the_law_sees_what_the_weather_gets_wrong(episode: Callable[[Weather], None], says: str) -> None:
    with pytest.raises(WrongError, match=says):
        a_day(episode)


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (dataclasses.replace(MACHINES[0], settings=Settings(hang_after=20.0, first_outcome=20.0)), "false"),
        (dataclasses.replace(MACHINES[0], settings=Settings(enforce=False)), "not restarted after"),
        (dataclasses.replace(MACHINES[0], settings=Settings(has_unit=False)), "not restarted after"),
    ],
)
def test_the_law_sees_settings_that_are_wrong(machine: Machine, says: str) -> None:
    def stall_then_hang(weather: Weather) -> None:
        weather.settle()
        weather.add(100, stuck(Engine(running=3, kv=(0.5, 0.5))))
        with_requests(weather)

    with pytest.raises(WrongError, match=says):
        a_day(stall_then_hang, machine)


def test_the_law_sees_a_question_to_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_due", lambda memory, now: now.finding.rule == "working")
    with pytest.raises(WrongError, match="while requests make progress"):
        a_day(traffic)


def test_the_law_sees_a_judge_that_is_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(row for row in judge.RULES if row.name != "refused")
    monkeypatch.setattr(judge, "RULES", rows)
    with pytest.raises(WrongError, match="refuses after serving"):
        a_day(refused)


def refused_twice(weather: Weather) -> None:
    """Two hangs within ten minutes."""
    for _ in range(2):
        weather.settle(life=True)
        start = weather.now
        weather.add(100, health=REFUSED, metrics=REFUSED)
        weather.hangs.append(Hang("refused twice", start, weather.now, BOUNDS["refused"]))


@pytest.mark.parametrize(
    ("hold", "episode", "says"),
    [
        (Hold.FLAG, under_flag, "though it is set aside"),
        (Hold.BREAKER, refused, "beyond the budget"),
        (Hold.TEN_MINUTES, refused_twice, "beyond the budget"),
        (Hold.OTHER_RESTART, refused, "beside that of"),
    ],
)
def test_the_law_sees_a_hold_that_does_not_hold(
    hold: Hold, episode: Callable[[Weather], None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = recovery.holds_now
    monkeypatch.setattr(recovery, "holds_now", lambda r, now: tuple(h for h in held(r, now) if h is not hold))
    with pytest.raises(WrongError, match=says):
        a_day(episode, MACHINES[0], dataclasses.replace(MACHINES[0], name="other"))


def test_the_law_sees_an_answer_that_does_not_veto(monkeypatch: pytest.MonkeyPatch) -> None:
    def says_dead_and_answers(weather: Weather) -> None:
        weather.settle()
        weather.add(300, health=status(503))

    monkeypatch.setattr(recovery, "_veto", recovery._confirmed)
    with pytest.raises(WrongError, match="false"):
        a_day(says_dead_and_answers)


def test_what_is_wrong_is_told_with_seed_and_verdicts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("year.__main__.EPISODES", ((unseen_hang, 1),))
    monkeypatch.setattr("year.__main__.ProcessPoolExecutor", _Here)
    assert main(["--seed", "4", "--days", "1"]) == 1
    told = capsys.readouterr().out
    for words in ("seed 4", "WRONG, seed 4: week 0, at ", "plain ", "busy: ", "1 weeks were wrong"):
        assert words in told


class _Here:
    """In place of a pool: the patches above hold in this process alone."""

    def __init__(self, _workers: int) -> None:
        self.map = map

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass
