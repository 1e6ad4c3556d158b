"""What came of a run of the watch in virtual time, and the sink that collects it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import Alert, Answer, Question, Raise, Reading, Restart, RestartSettled, State, Verdict
from factory_watchdog.watcher import Watcher
from factory_watchdog.world.clock import Clock
from factory_watchdog.world.evidence import Evidence, Job

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


class Collector:
    """Keeps everything that the watch tells."""

    def __init__(self, played: Played, now: Clock) -> None:
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

    def evidence(self, name: str, attempt: int, evidence: Evidence) -> None:
        """It changes nothing that is counted."""

    def pushed(self, name: str, attempt: int, job: Job) -> None:
        """What came of it is told when it settles."""

    def settled(self, name: str, settled: RestartSettled) -> None:
        """Told by an alert as well."""

    def save(self, name: str, backend: Backend) -> None:
        """A simulation begins anew each time."""

    def warned(self, name: str, what: str) -> None:
        """No ground for anything."""

    def identified(self, name: str, kind: str, why: str) -> None:
        """Seen by what is judged."""

    def fault(self, name: str, what: str) -> None:
        self._played.faults.append(what)


async def watch_for(watcher: Watcher, seconds: float) -> None:
    """Run the watch for so many seconds of the loop's time, a poll at the very end included, and end it."""
    watching = asyncio.get_running_loop().create_task(watcher.run())
    await asyncio.sleep(seconds + _AFTER)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await watcher.close()
