"""Plays a scenario in virtual time through the real watch: its polls, reader, judge and recovery."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from factory_watchdog.config import load, schema
from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import Alert, Answer, Question, Raise, Reading, Restart, RestartSettled, State, Verdict
from factory_watchdog.engines import dialect_of
from factory_watchdog.simulate import clock, expect
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.script import Scenario, Timeline
from factory_watchdog.simulate.server import Server
from factory_watchdog.simulate.transport import SimTransport
from factory_watchdog.watcher import Host, Watcher, World
from factory_watchdog.world.http import Http

_AFTER = 0.001  # seconds after the end, so that a poll that falls on it is made


@dataclass(frozen=True, slots=True)
class Change:
    """A change of state at `t` seconds from the start."""

    t: float
    state: State
    engine: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An alert at `t` seconds from the start."""

    t: float
    alert: Alert
    why: str


@dataclass
class Played:
    """What came of a scenario: changes, the times of restarts and questions, alerts, faults of our own."""

    name: str
    changes: list[Change] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    questions: list[float] = field(default_factory=list)
    alerts: list[Raised] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class _Collector:
    """Keeps everything that the watch tells."""

    def __init__(self, played: Played, now: clock.ScriptedClock) -> None:
        self._played = played
        self._clock = now

    def polled(self, name: str, backend: Backend) -> None:
        """A poll that changed nothing is not kept."""

    def turned(self, name: str, verdict: Verdict, previous: Verdict | None) -> None:
        self._played.changes.append(Change(self._clock.boottime(), verdict.state, verdict.engine, verdict.why))

    def raised(self, name: str, alert: Raise, state: State | None) -> None:
        self._played.alerts.append(Raised(self._clock.boottime(), alert.alert, alert.why))

    def asking(self, name: str, question: Question) -> None:
        self._played.questions.append(question.sent)

    def asked(self, name: str, question: Question, answer: Answer) -> None:
        """What counts is that it was sent."""

    def restarting(self, name: str, order: Restart, readings: Iterable[Reading]) -> None:
        self._played.restarts.append(self._clock.boottime())

    def settled(self, name: str, settled: RestartSettled) -> None:
        """Told by an alert as well."""

    def save(self, name: str, backend: Backend) -> None:
        """A simulation begins anew each time."""

    def fault(self, name: str, what: str) -> None:
        self._played.faults.append(what)


def play(scenario: Scenario) -> Played:
    """Play a scenario to its end and hold it against its expectations. Raises ConfigError for its [backend] table."""
    config = load.from_table(scenario.backend, file=f"scenario {scenario.name}")
    played = Played(scenario.name)
    clock.run(lambda: _watch(scenario, config, played))
    states = [(change.t, change.state) for change in played.changes]
    alerts = [raised.alert for raised in played.alerts]
    result = expect.Result(states, played.restarts, played.questions, alerts)
    played.failed = [*played.faults, *expect.failed(scenario, result)]
    return played


async def _watch(scenario: Scenario, config: schema.Backend, played: Played) -> None:
    loop = asyncio.get_running_loop()
    now = clock.ScriptedClock(Timeline(scenario.phases), loop.time)
    server = Server(scenario, now.boottime)
    world = World(
        http=Http(SimTransport(server)),
        units=SimManager(server),
        clock=now,
        flag=lambda: server.flag(config.busy_flag_ttl),
        maintenance=server.maintenance,
    )
    settings = schema.settings(config, schema.Daemon())
    watcher = Watcher(config, settings, dialect_of(config.kind), world, Host(), _Collector(played, now))
    awake = sum(phase.length for phase in scenario.phases)
    watching = loop.create_task(watcher.run())
    await asyncio.sleep(awake + _AFTER)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await watcher.close()
