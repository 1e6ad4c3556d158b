"""The N-th call to the world fails, for N = 1, 2, 3 ... until a whole restart completes without reaching the fault.

Idle, busy, hung, confirmed, restarted, served: in virtual time with the simulated server and service manager, the real
watch, recorder, history and files. Whatever fails once, the watch goes on, restarts once, and loses nothing in silence.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from factory_watchdog.config import load, schema
from factory_watchdog.core.model import Flag, JobResult, Port, State, UnitFacts
from factory_watchdog.notify.command import Notifier
from factory_watchdog.ports import Host, World
from factory_watchdog.recorder import Recorder
from factory_watchdog.simulate import clock, scenario
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.script import Timeline
from factory_watchdog.simulate.server import Server
from factory_watchdog.simulate.transport import SimTransport
from factory_watchdog.watcher import Watcher, watcher_of
from factory_watchdog.world import runtime_files
from factory_watchdog.world.bus import BusError
from factory_watchdog.world.evidence import Evidence
from factory_watchdog.world.http import SMALL, Fetched, Http
from factory_watchdog.world.store import Store

SCENARIO = """
[backend]
name = "sim"
kind = "vllm"
unit = "vllm.service"
hang_after = "10s"
question_timeout = "5s"

[server]
load_time = "5s"

[[phase]]
for = "10s"

[[phase]]
for = "10s"
running = 2
steps = 5.0
tokens = 10.0
finished = 0.1
kv = 0.5

[[phase]]
for = "1h"
running = 2
steps = 0.0
tokens = 0.0
finished = 0.0
kv = 0.5
question = "timeout"
"""
HUNG_AT = 20.0
FIRST_TRY = HUNG_AT + 90.0  # seconds; a fault may cost a poll, or begin the window anew
SECOND_TRY = FIRST_TRY + 660.0  # what failed as a restart is tried again after ten minutes
STILL = 25.0  # seconds for which the watch is watched when all is over

BOOT_JUMP = 40.0  # seconds that the host sleeps
WALL_JUMP = -3600.0  # seconds that somebody sets the wall clock back

DISK_FULL = OSError(errno.ENOSPC, "No space left on device")
BY_THE_WORLD: dict[str, Exception] = {
    "http": TimeoutError("no answer"),
    "bus": BusError("the bus hung up"),
    "store": sqlite3.OperationalError("database or disk is full"),
    "file": DISK_FULL,
    "flag": OSError(errno.EACCES, "Permission denied"),
}
BY_US: dict[str, Exception] = {kind: RuntimeError("a fault of our own") for kind in BY_THE_WORLD}


@dataclasses.dataclass
class Faults:
    """Counts calls to the world; the `nth` fails with its kind's error, before it is done or `after`."""

    nth: int
    errors: Mapping[str, Exception]
    after: bool
    count: int = 0
    failed: str = ""

    def due(self, kind: str, what: str) -> bool:
        self.count += 1
        if self.count == self.nth:
            self.failed = f"{kind}: {what}"
        return self.count == self.nth

    def call(self, kind: str, work: Callable[..., Any], *args: Any) -> Any:
        due = self.due(kind, getattr(work, "__name__", "") + (f" {args[0]}" if args else ""))
        if due and not self.after:
            raise self._fresh(kind)
        result = work(*args)
        if due:
            raise self._fresh(kind)
        return result

    def _fresh(self, kind: str) -> Exception:
        """An error of its own each time: one that was raised keeps what it passed through alive, cursors too."""
        error = self.errors[kind]
        return type(error)(*error.args)

    async def wait(self, kind: str, work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        due = self.due(kind, getattr(work, "__name__", ""))
        if due and not self.after:
            raise self._fresh(kind)
        result = await work(*args)
        if due:
            raise self._fresh(kind)
        return result


# --- the world, wrapped ----------------------------------------------------------------------------------------------


class FaultyHttp(Http):
    def __init__(self, server: Server, faults: Faults) -> None:
        super().__init__(SimTransport(server))
        self._faults = faults

    async def get(
        self, url: str, deadline: float, cap: int = SMALL, headers: Mapping[str, str] | None = None
    ) -> Fetched:
        return cast("Fetched", await self._faults.wait("http", super().get, url, deadline, cap, headers))

    async def post(self, url: str, deadline: float, body: bytes, headers: Mapping[str, str]) -> Fetched:
        return cast("Fetched", await self._faults.wait("http", super().post, url, deadline, body, headers))


class FaultyManager(SimManager):
    """Keeps how many restarts were made, and that no two were at once."""

    def __init__(self, server: Server, faults: Faults) -> None:
        super().__init__(server)
        self._faults = faults
        self.restarts = self.at_once = 0

    async def facts(self, unit: str) -> UnitFacts:
        return cast("UnitFacts", await self._faults.wait("bus", super().facts, unit))

    async def try_restart(self, unit: str, deadline: float) -> tuple[JobResult, str]:
        return cast("tuple[JobResult, str]", await self._faults.wait("bus", self._try_restart, unit, deadline))

    async def _try_restart(self, unit: str, deadline: float) -> tuple[JobResult, str]:
        self.restarts += 1
        self.at_once += 1
        assert self.at_once == 1
        ended = await super().try_restart(unit, deadline)
        self.at_once -= 1
        return ended

    async def processes(self, control_group: str) -> list[tuple[int, int]]:
        return cast("list[tuple[int, int]]", await self._faults.wait("bus", super().processes, control_group))

    async def evidence(self, unit: str | None, control_group: str | None) -> Evidence:
        return cast("Evidence", await self._faults.wait("bus", super().evidence, unit, control_group))

    async def port_owner(self, url: str, unit: str, control_group: str | None) -> Port:
        return cast("Port", await self._faults.wait("bus", super().port_owner, url, unit, control_group))

    async def left_over(self, before: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        return cast("tuple[int, ...]", await self._faults.wait("bus", super().left_over, before))


class JumpingClock:
    """A clock does not fail: at its call of that number it jumps, and stays there."""

    def __init__(self, inner: clock.ScriptedClock, faults: Faults) -> None:
        self._inner, self._faults = inner, faults
        self._slept = self._set = 0.0

    def boottime(self) -> float:
        if self._faults.due("clock", "boottime"):
            self._slept = BOOT_JUMP
        return self._inner.boottime() + self._slept

    def wall(self) -> float:
        if self._faults.due("clock", "wall"):
            self._set = WALL_JUMP
        return self._inner.wall() + self._slept + self._set


class FaultyDatabase:
    """The store's connection to SQLite; each statement can fail."""

    def __init__(self, inner: sqlite3.Connection, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def execute(self, statement: str, *values: Any) -> Any:
        return self._faults.call("store", self._inner.execute, statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, _level: str) -> Any:
        return lambda event, **fields: self.lines.append((event, fields))

    def faults(self) -> list[str]:
        return [fields["what"] for event, fields in self.lines if event == "fault"]

    def count(self, event: str) -> int:
        return sum(1 for seen, _ in self.lines if seen == event)


# --- one run ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """A run with at most one fault, and what can be seen afterwards."""

    faults: Faults
    folder: Path
    log: Log = dataclasses.field(default_factory=Log)

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        played = scenario.loads(SCENARIO)
        config = load.from_table(played.backend, file="test")
        now = clock.ScriptedClock(Timeline(played.phases), loop.time)
        jumping = JumpingClock(now, self.faults)
        self.server = Server(played, now.boottime)
        self.units = FaultyManager(self.server, self.faults)
        store = Store(self.folder / "history.db", now.wall())
        store._db = cast("sqlite3.Connection", FaultyDatabase(store._db, self.faults))
        recorder = Recorder(
            self.log, jumping, "boot", store, self.folder, Notifier((), lambda _: None), told=lambda: None
        )
        world = World(
            FaultyHttp(self.server, self.faults),
            self.units,
            jumping,
            flag=lambda: cast("Flag", self.faults.call("flag", Flag)),
            maintenance=lambda: cast("str | None", self.faults.call("flag", lambda: None)),
        )
        watcher = watcher_of(config, schema.Daemon(), world, Host(), recorder)
        watching = loop.create_task(watcher.run())
        for _ in range(int(SECOND_TRY / 5.0)):
            await asyncio.sleep(5.0)
            if self._is_over(watcher):
                break
        self.over = loop.time()
        await asyncio.sleep(STILL)
        self.watching, self.last, self.state = not watching.done(), watcher.finished, watcher.state
        self.end = loop.time()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await watcher.close()
        self.faults.nth = 0
        recorder.save("sim", self.state)  # each part is used once more, so that it can tell that it works again
        recorder.polled("sim", self.state)
        store.close()

    def _is_over(self, watcher: Watcher) -> bool:
        memory = watcher.state.memory
        served = memory is not None and memory.life.outcome and not watcher.state.recovery.phase.restarting
        return self.units.restarts > 0 and self.server.unit_state == "active" and served

    def hold(self) -> None:
        """What must be so whatever failed."""
        # the watch goes on
        assert self.watching
        assert self.end - self.last <= 11.0
        assert self.state.verdict is not None
        assert self.state.verdict.state is State.IDLE
        # one restart, in time
        assert self.units.restarts == 1
        failed = [f for event, f in self.log.lines if event == "restart settled" and not f["served"]]
        assert self.over <= (SECOND_TRY if failed else FIRST_TRY)
        # a fault is told, but for a clock's, which is none
        if self.faults.failed and not self.faults.failed.startswith("clock"):
            assert self.log.faults() or failed or self._in_the_evidence()
        self._recorded()
        # one fault breaks no part for good
        for part in ("history: ", "runtime files: "):
            begun = sum(what.startswith(part) for what in self.log.faults())
            over = [f for event, f in self.log.lines if event == "fault over" and f["what"].startswith(part[:-2])]
            assert begun == len(over), part

    def _in_the_evidence(self) -> bool:
        """Whether the restart's record says what could not be seen of the host: that costs the record alone."""
        store = Store.reader(self.folder / "history.db")
        seen = [str(row.evidence) for row in store.restarts()]
        store.close()
        return any(str(error) in text for error in self.faults.errors.values() for text in seen)

    def _recorded(self) -> None:
        """The history has all that the log tells, or the log tells that it has not."""
        store = Store.reader(self.folder / "history.db")
        rows = store.restarts()[::-1]
        kinds = [entry.kind for entry in store.history(limit=1000)]
        store.close()
        settled = [fields["served"] for event, fields in self.log.lines if event == "restart settled"]
        complete = (
            [row.served for row in rows] == settled
            and len(settled) == self.log.count("restart")
            and kinds.count("change") == self.log.count("state")
        )
        assert complete or any(what.startswith("history: ") for what in self.log.faults())


@pytest.mark.parametrize(
    ("errors", "after"), [(BY_THE_WORLD, False), (BY_US, True)], ids=["the world fails", "we fail after it was done"]
)
def test_one_fault_anywhere(
    errors: dict[str, Exception], after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = runtime_files._replace
    faults = Faults(0, errors, after)
    monkeypatch.setattr(runtime_files, "_replace", lambda *args: faults.call("file", replace, *args))
    for nth in range(1, 10_000):
        faults = Faults(nth, errors, after)
        folder = tmp_path / str(nth)
        folder.mkdir()
        run = Run(faults, folder)
        clock.run(run.play)
        try:
            run.hold()
        except AssertionError as error:
            error.add_note(f"call {nth} failed: {faults.failed}; log: {run.log.lines}")
            raise
        if not faults.failed:
            assert run.log.faults() == []
            return
    raise AssertionError("the fault was reached in every run")
