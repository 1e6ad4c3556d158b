"""Plays a scenario in virtual time through the real watch: its polls, reader, judge and recovery."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from factory_watchdog.config import load, schema
from factory_watchdog.config.durations import show
from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import Alert, Answer, Question, Raise, Reading, Restart, RestartSettled, State, Verdict
from factory_watchdog.engines import DIALECTS
from factory_watchdog.simulate import clock
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.script import Expect, Scenario, Timeline
from factory_watchdog.simulate.server import Server
from factory_watchdog.simulate.transport import SimTransport
from factory_watchdog.watcher import Host, Watcher, World
from factory_watchdog.world.http import Http


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

    def raised(self, name: str, alert: Raise) -> None:
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
    played.failed = [*played.faults, *_held_against(scenario, played)]
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
    watcher = Watcher(config, settings, DIALECTS[config.kind], world, Host(), _Collector(played, now))
    awake = sum(phase.length for phase in scenario.phases)
    watching = loop.create_task(watcher.run())
    await asyncio.sleep(awake + _AFTER)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await watcher.close()


_AFTER = 0.001  # seconds after the end, so that a poll that falls on it is made


# --- expectations ----------------------------------------------------------------------------------------------------


def _held_against(scenario: Scenario, played: Played) -> list[str]:
    """Every expectation that does not hold, each as a sentence."""
    return [
        *(sentence for expect in scenario.expect for sentence in _state_wrong(expect, played)),
        *_counts_wrong(scenario, played),
        *_times_wrong(scenario, played),
        *_alerts_missing(scenario, played),
    ]


def _state_wrong(expect: Expect, played: Played) -> list[str]:
    """Where in the span a state was shown that is not expected there: the first such moment."""
    allowed = " or ".join(expect.states)
    before = [c for c in played.changes if c.t <= expect.begin]
    within = [c for c in played.changes if expect.begin < c.t <= expect.end]
    for change in (*before[-1:], *within):
        if change.state not in expect.states:
            at = max(change.t, expect.begin)
            return [f"at {show(at)}: expected {allowed}, was {change.state} ({change.why})"]
    return [] if before or within else [f"at {show(expect.begin)}: expected {allowed}, nothing was judged yet"]


def _counts_wrong(scenario: Scenario, played: Played) -> list[str]:
    total = scenario.expect_total
    wrong = []
    if total.restarts is not None and len(played.restarts) != total.restarts:
        wrong.append(f"expected {total.restarts} restarts, were {len(played.restarts)}{_at(played.restarts)}")
    if total.questions is not None and len(played.questions) != total.questions:
        wrong.append(f"expected {total.questions} questions, were {len(played.questions)}{_at(played.questions)}")
    if total.questions_max is not None and len(played.questions) > total.questions_max:
        wrong.append(f"expected at most {total.questions_max} questions, were {len(played.questions)}")
    return wrong


def _times_wrong(scenario: Scenario, played: Played) -> list[str]:
    total, first = scenario.expect_total, min(played.restarts, default=None)
    wrong = []
    if total.restart_before is not None and (first is None or first > total.restart_before):
        was = "there was none" if first is None else f"it was at {show(first)}"
        wrong.append(f"expected the first restart no later than {show(total.restart_before)}, {was}")
    if total.restart_after is not None and first is not None and first < total.restart_after:
        wrong.append(f"expected no restart before {show(total.restart_after)}, one was at {show(first)}")
    return wrong


def _alerts_missing(scenario: Scenario, played: Played) -> list[str]:
    raised = {entry.alert for entry in played.alerts}
    return [f"expected the alert {alert}" for alert in scenario.expect_total.alerts if alert not in raised]


def _at(times: Iterable[float]) -> str:
    shown = ", ".join(show(t) for t in times)
    return f" (at {shown})" if shown else ""
