"""What a scenario says, as data, and its time line: which phase is played when, and how far counters have come then.

Three clocks are told apart. `t` is seconds of boot time from the start, in which suspends count; monotonic time is the
same without the suspends, which is what timers run on; the wall clock is boot time with the scripted steps added.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
import math
from collections.abc import Sequence

from factory_watchdog.core.model import Alert, Form, State

RATES = ("steps", "prompt", "tokens", "finished")
"""The counters of an engine, by the key that has their rate."""

IDLE_CPU = 0.01  # cores; servers without work were measured at 0 to 0.03


class Way(enum.StrEnum):
    """What an endpoint or a question comes to."""

    OK = "ok"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    RESET = "reset"
    STATUS = "status"
    EMPTY = "empty"
    GARBAGE = "garbage"


@dataclasses.dataclass(frozen=True, slots=True)
class Behaviour:
    """How requests of one kind go: after `delay` seconds, with the HTTP `status`."""

    way: Way = Way.OK
    delay: float = 0.0
    status: int = 200


OK = Behaviour()
ANSWERS = Behaviour(delay=0.3)  # what a question is worth where a scenario does not say: "ok 0.3s"


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """One engine in one phase: gauges, rates a second, KV usage from one level to another, how a question goes."""

    running: float = 0.0
    waiting: float = 0.0
    steps: float = 0.0
    tokens: float = 0.0
    prompt: float = 0.0
    finished: float = 0.0
    kv: tuple[float, float] = (0.0, 0.0)
    question: Behaviour = ANSWERS


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """What the backend shows for a while; `paused` None means that the pause endpoints do not exist."""

    length: float
    engines: tuple[Engine, ...] = (Engine(),)
    metrics: Behaviour = OK
    health: Behaviour = OK
    models: Behaviour = OK
    paused: bool | None = False
    asleep: bool = False
    cpu: float | None = None
    unit: str = "active"
    instance: int = 1
    carry_counters: bool = False
    counters: str = "up"
    flag: str = "none"
    maintenance: bool = False
    suspend: float = 0.0
    clock_step: float = 0.0

    def idle(self) -> Phase:
        """The phase as a restarted server shows it: without work, answering; what is around the server stays."""
        return dataclasses.replace(
            self,
            engines=(Engine(),) * len(self.engines),
            metrics=OK,
            health=OK,
            models=OK,
            paused=None if self.paused is None else False,
            asleep=False,
            cpu=None if self.cpu is None else min(self.cpu, IDLE_CPU),
            unit="active",
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ServerSpec:
    """The simulated server itself."""

    fresh: bool = False
    engines: int = 1
    start_time: bool = True
    load_time: float = 240.0
    answers: frozenset[Form] = frozenset({Form.CHAT, Form.COMPLETION})
    template: bool = True
    restart: str = "works"
    api_server: str = "single"
    version: str = "0.32"

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))


@dataclasses.dataclass(frozen=True, slots=True)
class Expect:
    """One of `states` throughout from `begin` to `end`, both included."""

    begin: float
    end: float
    states: tuple[State, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ExpectTotal:
    """What must hold of the whole run; None where a scenario does not say."""

    restarts: int | None = None
    questions: int | None = None
    questions_max: int | None = None
    restart_before: float | None = None
    restart_after: float | None = None
    alerts: tuple[Alert, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """A script and what must come of it. `backend` is the raw table of backend settings."""

    name: str
    phases: tuple[Phase, ...]
    about: str = ""
    backend: dict[str, object] = dataclasses.field(default_factory=dict)
    server: ServerSpec = ServerSpec()
    expect: tuple[Expect, ...] = ()
    expect_total: ExpectTotal = ExpectTotal()

    @property
    def length(self) -> float:
        """Seconds of boot time from the start to the end of the last phase."""
        return sum(phase.suspend + phase.length for phase in self.phases)

    def at(self, t: float) -> tuple[Phase, float]:
        """The phase that is played at `t`, and for how many seconds; the last one goes on for good."""
        span = Timeline(self.phases).span(t)
        return span.phase, max(0.0, t - span.awake)


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A phase at its place: it begins at `begin`, the host is back from suspend at `awake`.

    `mono` is the monotonic time of both, `step` what the wall clock is ahead of boot time from `begin` on. `totals`
    has each engine's integrals of its rates up to `begin`, in the order of RATES, and `cpu` that of the cores used.
    """

    phase: Phase
    begin: float
    awake: float
    mono: float
    step: float
    totals: tuple[tuple[float, ...], ...]
    cpu: float

    def playing(self, t: float) -> float:
        """Seconds of this phase that have been played at `t`; none of them while the host sleeps."""
        return min(max(0.0, t - self.awake), self.phase.length)

    def total(self, engine: int, t: float) -> tuple[float, ...]:
        """The integrals of an engine's rates up to `t`, in the order of RATES; written out, since every poll asks."""
        playing = max(0.0, t - self.awake)
        rates = self.phase.engines[engine]
        steps, prompt, tokens, finished = self.totals[engine]
        return (
            steps + rates.steps * playing,
            prompt + rates.prompt * playing,
            tokens + rates.tokens * playing,
            finished + rates.finished * playing,
        )

    def cores(self, t: float) -> float:
        return self.cpu + (self.phase.cpu or 0.0) * max(0.0, t - self.awake)

    def kv(self, engine: int, t: float) -> float:
        level, goal = self.phase.engines[engine].kv
        if level == goal or math.isinf(self.phase.length):
            return level
        return level + (goal - level) * (self.playing(t) / self.phase.length)


class Timeline:
    """Phases laid out one after the other from 0 on. Integrals are exact at any time: no tick adds them up."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self.spans = tuple(_lay_out(phases))
        self._begins = [span.begin for span in self.spans]
        self._monos = [span.mono for span in self.spans]
        self._last = 0.0, self.ends_of(0), 0  # the span that was looked for last: most looks are for the same again

    def index(self, t: float) -> int:
        begin, end, index = self._last
        if begin <= t < end:
            return index
        index = max(0, bisect.bisect_right(self._begins, t) - 1)
        self._last = self._begins[index], self.ends_of(index), index
        return index

    def span(self, t: float) -> Span:
        return self.spans[self.index(t)]

    def ends(self, t: float) -> float:
        """When the phase that is played at `t` ends; the last one never does."""
        return self.ends_of(self.index(t))

    def ends_of(self, index: int) -> float:
        """When the span at `index` ends."""
        return self._begins[index + 1] if index + 1 < len(self._begins) else math.inf

    def boottime(self, mono: float) -> float:
        """Boot time at monotonic time `mono`: at the start of a phase its suspend is over."""
        span = self.spans[max(0, bisect.bisect_right(self._monos, mono) - 1)]
        return span.awake + (mono - span.mono)

    def cut(self, t: float, phase: Phase) -> Timeline:
        """The same time line up to `t`, then `phase` for good."""
        kept = [span.phase for span in self.spans[: self.index(t) + 1]]
        kept[-1] = _shortened(self.span(t), t)
        return Timeline([*kept, dataclasses.replace(phase, length=math.inf)])


def _lay_out(phases: Sequence[Phase]) -> list[Span]:
    spans: list[Span] = []
    begin, mono, step, cpu = 0.0, 0.0, 0.0, 0.0
    totals: tuple[tuple[float, ...], ...] = ((0.0,) * len(RATES),) * len(phases[0].engines)
    for phase in phases:
        step += phase.clock_step
        span = Span(phase, begin, begin + phase.suspend, mono, step, totals, cpu)
        spans.append(span)
        begin, mono = span.awake + phase.length, mono + phase.length
        if math.isfinite(begin):
            totals = tuple(span.total(engine, begin) for engine in range(len(phase.engines)))
            cpu = span.cores(begin)
    return spans


def _shortened(span: Span, t: float) -> Phase:
    """The phase of `span` as if it had been written to end at `t`."""
    engines = tuple(
        dataclasses.replace(engine, kv=(engine.kv[0], span.kv(number, t)))
        for number, engine in enumerate(span.phase.engines)
    )
    return dataclasses.replace(span.phase, length=span.playing(t), engines=engines)
