"""What a watch needs of the outside, and whom it tells: the borders at which a simulation takes the world's place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import (
    Answer,
    Flag,
    JobResult,
    Port,
    Question,
    Raise,
    Reading,
    Restart,
    RestartSettled,
    State,
    UnitFacts,
    Verdict,
)
from factory_watchdog.world.clock import Clock
from factory_watchdog.world.evidence import Evidence, Job
from factory_watchdog.world.http import Http
from factory_watchdog.world.processes import Process


class Units(Protocol):
    """The service manager, real or simulated."""

    async def facts(self, unit: str) -> UnitFacts: ...

    async def try_restart(self, unit: str, deadline: float) -> tuple[JobResult, str]: ...

    async def start(self, unit: str, deadline: float) -> tuple[JobResult, str]: ...

    async def reset_failed(self, unit: str) -> tuple[JobResult, str]: ...

    async def processes(self, control_group: str) -> list[Process]: ...

    async def left_over(self, before: Iterable[Process]) -> tuple[int, ...]: ...

    async def port_owner(self, url: str, unit: str, control_group: str | None) -> Port: ...

    async def evidence(self, unit: str | None, control_group: str | None) -> Evidence: ...


class Sink(Protocol):
    """Who is told what happened. Nothing here may raise or block."""

    def polled(self, name: str, backend: Backend) -> None: ...

    def turned(self, name: str, verdict: Verdict, previous: Verdict | None) -> None: ...

    def raised(self, name: str, alert: Raise, state: State | None) -> None: ...

    def asking(self, name: str, question: Question) -> None: ...

    def asked(self, name: str, question: Question, answer: Answer) -> None: ...

    def restarting(self, name: str, order: Restart, readings: Iterable[Reading]) -> None: ...

    def evidence(self, name: str, attempt: int, evidence: Evidence) -> None: ...

    def pushed(self, name: str, attempt: int, job: Job) -> None: ...

    def settled(self, name: str, settled: RestartSettled) -> None: ...

    def save(self, name: str, backend: Backend) -> None: ...

    def fault(self, name: str, what: str) -> None: ...

    def warned(self, name: str, what: str) -> None: ...

    def identified(self, name: str, kind: str, why: str) -> None: ...


@dataclass
class Host:
    """What is known of all backends of this host: one place, so that no two are restarted at once."""

    states: dict[str, Backend] = field(default_factory=dict)


@dataclass(frozen=True)
class World:
    """The outside of one backend: HTTP, service manager (None: no unit), clock, busy flag, maintenance."""

    http: Http
    units: Units | None
    clock: Clock
    flag: Callable[[], Flag]
    maintenance: Callable[[], str | None]
