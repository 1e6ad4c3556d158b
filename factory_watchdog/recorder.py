"""Tells others what the watch found: the log, the history, the files for batch jobs, notifications, systemd's status.

Each of these can fail by itself (a full disk, a missing folder). A failure is logged once when it begins and once when
it is over; the watch goes on all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import (
    Answer,
    Question,
    Raise,
    Reading,
    Restart,
    RestartSettled,
    State,
    Turned,
    Verdict,
)
from factory_watchdog.errors import StoreError, WatchdogError
from factory_watchdog.notify.command import Notifier
from factory_watchdog.saved import encode
from factory_watchdog.status import is_ready
from factory_watchdog.world import runtime_files
from factory_watchdog.world.clock import Clock
from factory_watchdog.world.evidence import Evidence, Job
from factory_watchdog.world.store import Store


class Log(Protocol):
    """A structured logger, as far as it is used here."""

    def info(self, event: str, **fields: object) -> None: ...

    def warning(self, event: str, **fields: object) -> None: ...

    def error(self, event: str, **fields: object) -> None: ...

    def critical(self, event: str, **fields: object) -> None: ...


@dataclass
class Recorder:
    """The sink of every watch of the daemon. `store` None: there is no history, which was told when it failed to open.

    `told` is called after each change of a verdict, to renew the daemon's status line.
    """

    log: Log
    clock: Clock
    boot_id: str
    store: Store | None
    runtime_dir: Path
    notifier: Notifier
    told: Callable[[], None]

    def __post_init__(self) -> None:
        self._broken: set[str] = set()

    def polled(self, name: str, backend: Backend) -> None:
        self._attempt("runtime files", lambda: self._write_files(name, backend))

    def turned(self, name: str, verdict: Verdict, previous: Verdict | None) -> None:
        self.log.info(
            "state",
            backend=name,
            state=verdict.state.value,
            previous=previous.state.value if previous is not None else None,
            engine=verdict.engine,
            rule=verdict.rule,
            why=verdict.why,
        )
        self._record(lambda store: store.record_change(name, Turned(verdict, previous), self.clock.wall()))
        self.told()

    def raised(self, name: str, alert: Raise, state: State | None) -> None:
        told = {"backend": name, "state": state, "engine": alert.engine, "why": alert.why}
        self.log.critical("alert", alert=alert.alert.value, **told)
        self.notifier.put({"event": alert.alert.value, "time": self.clock.wall(), **told})

    def asking(self, name: str, question: Question) -> None:
        """Recorded with its answer."""

    def asked(self, name: str, question: Question, answer: Answer) -> None:
        self._record(lambda store: store.record_question(name, question, answer, self.clock.wall()))

    def restarting(self, name: str, order: Restart, readings: Iterable[Reading]) -> None:
        self.log.warning("restart", backend=name, attempt=order.attempt, rule=order.proof.rule, why=order.proof.why)
        whole = replace(order, proof=replace(order.proof, readings=tuple(readings)))
        self._record(lambda store: store.begin_restart(name, whole, self.clock.wall(), order.by))

    def evidence(self, name: str, attempt: int, evidence: Evidence) -> None:
        self._record(
            lambda store: _recorded(name, attempt, store.record_evidence(name, attempt, evidence, self.clock.wall()))
        )

    def pushed(self, name: str, attempt: int, job: Job) -> None:
        self._record(lambda store: _recorded(name, attempt, store.record_job(name, attempt, job, self.clock.wall())))

    def settled(self, name: str, settled: RestartSettled) -> None:
        log = self.log.info if settled.served else self.log.error
        log("restart settled", backend=name, attempt=settled.attempt, served=settled.served, why=settled.why)
        attempt = settled.attempt
        self._record(lambda store: _recorded(name, attempt, store.settle_restart(name, settled, self.clock.wall())))

    def save(self, name: str, backend: Backend) -> None:
        def write(store: Store) -> None:
            wall = self.clock.wall()
            store.save_state(name, encode(backend, self.boot_id, self.clock.boottime(), wall), wall)

        self._record(write)

    def fault(self, name: str, what: str) -> None:
        self.log.error("fault", backend=name, what=what)

    def warned(self, name: str, what: str) -> None:
        self.log.warning("warning", backend=name, what=what)

    def identified(self, name: str, kind: str, why: str) -> None:
        self.log.info("kind", backend=name, kind=kind, why=why)

    def ordered(self, name: str, what: str, by: str, **details: object) -> None:
        """What an operator wants, before anything comes of it."""
        self.log.warning(what, backend=name, by=by, **details)

    def report(self, what: str) -> None:
        """A fault of a part that belongs to no backend."""
        self.log.error("fault", what=what)

    def forget(self, name: str) -> None:
        """Remove the files of a backend that is not watched any more."""
        self._attempt("runtime files", lambda: runtime_files.remove(self.runtime_dir, name))

    # --- parts that may fail -----------------------------------------------------------------------------------------

    def _record(self, write: Callable[[Store], object]) -> None:
        store = self.store
        if store is not None:
            self._attempt("history", lambda: write(store))

    def _write_files(self, name: str, backend: Backend) -> None:
        verdict = backend.verdict
        if verdict is None:
            return
        wall = self.clock.wall()
        runtime_files.write(
            self.runtime_dir,
            name,
            verdict,
            since=wall - (self.clock.boottime() - verdict.since),
            ready=is_ready(backend),
            restarting=backend.recovery.phase.restarting,
            updated=wall,
        )

    def _attempt(self, part: str, work: Callable[[], object]) -> None:
        """Do it; tell when a part begins to fail and when it works again, not each time in between.

        No exception goes on from here, not even one by a fault of ours: what comes after it may be a restart.
        """
        try:
            work()
        except Exception as error:
            if part not in self._broken:
                self._broken.add(part)
                name = "" if isinstance(error, WatchdogError | OSError) else f"{type(error).__name__}: "
                self.report(f"{part}: {name}{error}")
        else:
            if part in self._broken:
                self._broken.discard(part)
                self.log.info("fault over", what=f"{part} can be written again")


def _recorded(name: str, attempt: int, found: bool) -> None:
    """Say so where the beginning of a restart is not recorded (the disk was full): what belongs to it is lost too."""
    if not found:
        raise StoreError(f"restart {attempt} of {name} is not recorded: its beginning could not be written")
