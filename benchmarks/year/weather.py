"""What happens to one backend in a week, drawn at random: phases of a scenario, and which of them are hangs.

Each episode adds phases for one thing that happens to model servers. Whoever draws them knows the truth, so that the
watch can be held against it. Everything that is no `Hang` must not be restarted.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from factory_watchdog.core.model import Settings
from factory_watchdog.simulate.script import Behaviour, Engine, Phase, Way

DAY = 86400.0
"""Seconds that the host is awake in a day; it may sleep before them."""

LONGEST = 7000.0
"""Seconds that one episode may last, with the recovery after it: the last stretch of a day is plain traffic."""

TIMEOUT = Behaviour(Way.TIMEOUT)
REFUSED = Behaviour(Way.REFUSED)
IDLE = Engine()


def status(code: int) -> Behaviour:
    return Behaviour(Way.STATUS, status=code)


@dataclass(frozen=True, slots=True)
class Machine:
    """What one backend of the host is like; its settings are the program's own defaults but for what these say."""

    name: str
    settings: Settings
    engines: int = 1
    start_time: bool = True
    multi: bool = False
    pause_signs: bool = True
    load_time: float = 120.0

    @property
    def slow(self) -> bool:
        return self.settings.slow_evidence


MACHINES = (
    Machine("plain", Settings()),
    Machine("parallel", Settings(), engines=2, load_time=240.0),
    Machine("bare", Settings(hang_after=180.0), start_time=False, multi=True, pause_signs=False, load_time=60.0),
    Machine("slow", Settings(slow_evidence=True), load_time=20.0),
)
"""A plain server; one with two engines; one without start time and pause signs; one on a CPU, with host evidence."""

DEADLINE = 9.0
"""Seconds until a poll gives up on an endpoint, as the watcher does at an interval of 10 s; the pause signs, which come
after it, may take as long again."""

STALL = 100.0
"""Seconds of the longest stall that is no hang: below every window of these machines, a poll on either side."""

Bound = Callable[[Settings], float]
Episodes = tuple[tuple[Callable[["Weather"], None], float], ...]
"""Everything that may happen, each with its weight."""


@dataclass(slots=True)
class Hang:
    """A hang from `begin` to `end`, in which it must be restarted within `bound` of its beginning.

    `restart` is what a restart in it comes to. `idle`: only a question can show it.
    """

    kind: str
    begin: float
    end: float
    bound: Bound
    idle: bool = False
    restart: str = "works"


def _grace(s: Settings) -> float:
    return 3 * s.interval + s.question_timeout


BOUNDS: dict[str, Bound] = {
    "requests": lambda s: s.hang_after + _grace(s),
    "first request": lambda s: max(s.hang_after, s.first_outcome) + _grace(s),
    "spinning": lambda s: 3 * s.hang_after + _grace(s),
    "idle": lambda s: s.hang_after + 2 * max(300.0, s.question_every) + _grace(s),
    "silent": lambda s: (s.silent_after or 0.0) + _grace(s) + 2 * DEADLINE,
    "says dead": _grace,
    "refused": lambda s: s.dead_after + 3 * s.interval,
}
"""Within how many seconds each kind of hang must be restarted where nothing holds it: the promises of the design."""


@dataclass
class Weather:
    """The phases of a week of one machine, with its hangs; `draw` makes them from `rng` and a table of `episodes`.

    Before each day the host sleeps for as many seconds as `suspends` say.
    """

    machine: Machine
    rng: random.Random
    suspends: tuple[float, ...]
    episodes: Episodes
    phases: list[Phase] = dataclasses.field(default_factory=list)
    hangs: list[Hang] = dataclasses.field(default_factory=list)
    now: float = 0.0
    _left: float = 0.0
    _instance: int = 1
    _suspend: float = 0.0

    def draw(self) -> Weather:
        episodes, weights = zip(*self.episodes, strict=True)
        for suspend in self.suspends:
            self._left, self._suspend = DAY, suspend
            self.settle()
            while self._left > LONGEST:
                self.rng.choices(episodes, weights)[0](self)
            while self._left > 0:
                self.add(self.between(8, 300), *self.engines())
                self.add(self.between(2, 600))
        return self

    # --- phases ------------------------------------------------------------------------------------------------------

    def add(self, length: float, *engines: Engine, cpu: float | None = None, **keys: Any) -> None:
        """A phase of so many seconds, to the end of the day at most. One engine given stands for all."""
        shown = engines if len(engines) == self.machine.engines else (engines or (IDLE,)) * self.machine.engines
        length = min(round(length, 3), self._left)
        if length <= 0:
            return
        if self.machine.slow:
            cpu = cpu if cpu is not None else 1.0 if any(moves(e) for e in shown) else 0.02
        paused = keys.pop("paused", False) if self.machine.pause_signs else None
        self.phases.append(
            Phase(length, shown, cpu=cpu, paused=paused, instance=self._instance, suspend=self._suspend, **keys)
        )
        self.now += self._suspend + length
        self._left -= length
        self._suspend = 0.0

    def between(self, least: float, most: float) -> float:
        return self.rng.uniform(least, most)

    def busy(self) -> Engine:
        """An engine with requests that make progress."""
        running = self.rng.randint(1, 32)
        steps = self.between(2, 40)
        kv = self.between(0.05, 0.9)
        return Engine(
            running=running,
            waiting=self.rng.choice((0, 0, 0, self.rng.randint(1, 40))),
            steps=steps,
            tokens=steps * running,
            prompt=self.rng.choice((0.0, self.between(10, 4000))),
            finished=self.between(0.01, 2),
            kv=(kv, self.between(0.05, 0.9)),
        )

    def engines(self) -> tuple[Engine, ...]:
        """One busy engine at least; the others may have nothing to do."""
        count = self.machine.engines
        first = self.rng.randrange(count)
        return tuple(self.busy() if i == first or self.rng.random() < 0.7 else IDLE for i in range(count))

    def frozen(self) -> Engine:
        """An engine whose requests stand still, and which answers nothing."""
        return stuck(self.busy())

    def one_of(self, engine: Engine) -> tuple[Engine, ...]:
        """`engine` for one of the engines; what the others do is busy or nothing."""
        count = self.machine.engines
        place = self.rng.randrange(count)
        return tuple(engine if i == place else self.rng.choice((IDLE, self.busy())) for i in range(count))

    def new_life(self) -> None:
        self._instance += 1

    def settle(self, life: bool = False) -> None:
        """Work on every engine, after which a new life has served and every clock of before has ended."""
        loading = self.machine.load_time if life else 0.0
        self.add(loading + self.between(120, 300), *(self.busy() for _ in range(self.machine.engines)))

    def first_requests(self) -> tuple[Engine, ...]:
        return tuple(Engine(running=1 + i, kv=(0.01, 0.01), question=TIMEOUT) for i in range(self.machine.engines))

    def hang(self, kind: str, bound: str, *engines: Engine, begin: float = 0.0, **keys: Any) -> None:
        """A hang that lasts long beyond its bound, so that holds can end in it; then the server is well again."""
        limit = BOUNDS[bound](self.machine.settings)
        start = self.now + begin
        self.add(begin + limit + self.between(1200, 2400), *engines, **keys)
        restart = self.rng.choices(("works", "hangs-again", "fails"), (20, 1, 1))[0]
        self.hangs.append(Hang(kind, start, self.now, BOUNDS[bound], bound == "idle", restart))
        if restart == "fails":
            self.new_life()
        self.settle(life=True)


def stuck(engine: Engine) -> Engine:
    """The engine as it stands still: what it shows stays, and no question is answered."""
    level = engine.kv[0]
    return dataclasses.replace(
        engine, steps=0.0, tokens=0.0, prompt=0.0, finished=0.0, kv=(level, level), question=TIMEOUT
    )


def moves(engine: Engine) -> bool:
    """Whether any work moves in it."""
    return bool(engine.steps or engine.tokens or engine.prompt or engine.finished) or engine.kv[0] != engine.kv[1]


def serves_users(engine: Engine) -> bool:
    """Whether it has requests that make progress: such an engine must never be asked anything."""
    return bool(engine.running or engine.waiting) and moves(engine)
