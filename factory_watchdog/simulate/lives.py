"""The lives of a simulated server: when each began, from when it answers and plays its phases, what it has counted."""

from __future__ import annotations

import dataclasses
import math

from factory_watchdog.simulate.script import RATES

_FIRST_AGE = 86400.0  # seconds for which the first life has been up when a scenario starts
_TICKS = 100  # clock ticks a second, as in /proc
_GRAIN = 2.0**20  # counters are cut to this part of one, so that one more is one more, exactly

USED = (100_000.0, 250_000.0, 400_000.0, 1_000.0)
"""What each engine of a first life has counted before the scenario starts, in the order of RATES."""


@dataclasses.dataclass(slots=True, eq=False)
class Asked:
    """A question that a life has taken: it is in `engine` from `begin` to `end`, and then counts `gains`.

    `end` is infinite where it is never answered. `given_up`: the client has gone.
    """

    engine: int
    begin: float
    end: float
    gains: tuple[float, ...]
    given_up: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Life:
    """One run of the server.

    It began at `began`, answers from `ready` on (never where that is infinite), and shows its phases as they are
    written from `plays` on; in between it is idle. `start_time` is what its metrics say. `counted` has each engine's
    counters without what its phases add. `failed`: the unit could not bring it up; `had_request`: an engine has shown
    one.
    """

    number: int
    began: float
    ready: float
    plays: float
    start_time: float
    counted: list[list[float]]
    failed: bool = False
    had_request: bool = False
    asked: list[Asked] = dataclasses.field(default_factory=list)

    @property
    def invocation(self) -> str:
        return f"{self.number:032x}"

    @property
    def main_pid(self) -> int:
        return 1000 + 10 * self.number

    @property
    def main_start(self) -> int:
        """The main process's start in clock ticks since boot; the host was up for two days when a scenario starts."""
        return int((2 * _FIRST_AGE + self.began) * _TICKS)

    @property
    def processes(self) -> tuple[tuple[int, int], ...]:
        """PID and start of the API server and of its engine core, which is started a little later."""
        return (self.main_pid, self.main_start), (self.main_pid + 1, self.main_start + 2 * _TICKS)

    def settle(self, now: float) -> None:
        """Count what has been answered by `now`. A step also sweeps out what clients have left behind in the engine."""
        if not self.asked:
            return
        for asked in [asked for asked in self.asked if asked.end <= now]:
            self.asked.remove(asked)
            for index, gain in enumerate(asked.gains):
                self.counted[asked.engine][index] += gain
            self.sweep(asked.engine)

    def sweep(self, engine: int) -> None:
        self.asked = [asked for asked in self.asked if not (asked.given_up and asked.engine == engine)]

    def in_flight(self, engine: int) -> int:
        """Questions that are in the engine: unanswered ones too, for as long as their clients wait."""
        return sum(asked.engine == engine for asked in self.asked) if self.asked else 0


def first(engines: int, *, fresh: bool, load_time: float, epoch: float) -> Life:
    """The life that a scenario finds: it has served for a day, or, where `fresh`, has just loaded."""
    age = load_time if fresh else _FIRST_AGE
    counted = [[0.0] * len(RATES) if fresh else list(USED) for _ in range(engines)]
    return Life(0, -age, -math.inf, 0.0, epoch - age, counted)


def age(start: int, now: float) -> float:
    """Seconds at `now` since a process's start in clock ticks since boot."""
    return 2 * _FIRST_AGE + now - start / _TICKS


def exact(count: float) -> float:
    """`count` cut to a binary fraction, so that differences of counters carry no rounding."""
    return math.floor(count * _GRAIN) / _GRAIN
