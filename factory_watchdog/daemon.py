"""The daemon: watches begun, ended and reloaded, one a backend; the rest happens in the watches and the core."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from factory_watchdog.config import load, schema
from factory_watchdog.core.model import Flag, State
from factory_watchdog.core.recovery import resume
from factory_watchdog.errors import AnotherDaemonError, ConfigError, ControlError, StoreError
from factory_watchdog.notify.command import Notifier as Commands
from factory_watchdog.ports import Host, World
from factory_watchdog.recorder import Log, Recorder
from factory_watchdog.requests import Requests
from factory_watchdog.saved import SavedStateError, taken_up
from factory_watchdog.watcher import Watcher, watcher_of
from factory_watchdog.world import busy_flag
from factory_watchdog.world.bus import Which
from factory_watchdog.world.clock import HostClock
from factory_watchdog.world.control import SOCKET
from factory_watchdog.world.control_server import ControlServer
from factory_watchdog.world.http import Http
from factory_watchdog.world.maintenance import NAME as MAINTENANCE
from factory_watchdog.world.maintenance import Maintenance
from factory_watchdog.world.processes import boot_id
from factory_watchdog.world.sd_notify import Notifier
from factory_watchdog.world.store import Store
from factory_watchdog.world.systemd import Manager

STOP_TIME = 1.5
"""Seconds for everything under way to end on SIGTERM; with the saving of the states the daemon is gone within 2 s."""

BAD_ORDER = (State.HUNG, State.DEAD, State.SUSPECT, State.DEGRADED, State.BLIND, State.STARTING, State.PAUSED)
"""Whose sentence the status line shows first."""


@dataclass
class _Watched:
    watcher: Watcher
    task: asyncio.Task[None]


class Daemon:
    """Everything that runs for one configuration file. `run` returns the process's exit code."""

    def __init__(self, config: schema.Config, log: Log) -> None:
        self._config = config
        self._log = log
        self._clock = HostClock()
        self._boot_id = boot_id()
        self._host = Host()
        self._systemd = Notifier()
        self._managers: dict[str, Manager] = {}
        self._watched: dict[str, _Watched] = {}
        self._stop = asyncio.Event()
        self._hangup = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recorder = Recorder(
            log=log,
            clock=self._clock,
            boot_id=self._boot_id,
            store=self._open_store(),
            runtime_dir=Path(config.daemon.runtime_dir),
            notifier=Commands(config.notify, self._report),
            told=self._tell_status,
        )
        self._maintenance = Maintenance(Path(config.daemon.state_dir) / MAINTENANCE, self._clock)
        if self._maintenance.warning is not None:
            self._report(self._maintenance.warning)

    async def run(self) -> int:
        """Watch until SIGTERM or SIGINT; 1 at once where another daemon has the same runtime_dir."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)
        requests = Requests(self._watchers, self._recorder, self._clock, self._maintenance)
        control = ControlServer(Path(self._config.daemon.runtime_dir) / SOCKET, requests.answer, self._report)
        try:
            await control.start()
        except AnotherDaemonError as error:
            self._report(str(error))
            self._close_store()
            return 1
        except ControlError as error:
            self._report(f"control socket: {error}")
        self._notifying = loop.create_task(self._recorder.notifier.run())
        for backend in self._config.backends:
            self._begin(backend)
        self._log.info("started", backends=[b.name for b in self._config.backends], config=str(self._config.path))
        for warning in self._config.warnings:
            self._log.warning("configuration", what=warning)
        self._systemd.ready(self._status())
        beats, reloads = loop.create_task(self._beat()), loop.create_task(self._reload_when_asked())
        await self._stop.wait()
        self._systemd.stopping()
        for task in (beats, reloads, self._notifying):
            task.cancel()
        await self._end(tuple(self._watched))
        await control.close()
        await asyncio.gather(beats, reloads, self._notifying, return_exceptions=True)
        await asyncio.gather(*(m.close() for m in self._managers.values()), return_exceptions=True)
        self._close_store()
        self._log.info("stopped")
        return 0

    # --- watches -----------------------------------------------------------------------------------------------------

    def _begin(self, backend: schema.Backend) -> None:
        """Begin the watch over a backend, with what is known of it. Starts are spread over one interval."""
        if backend.name not in self._host.states:
            self._take_up(backend.name)
        try:
            http = Http(tls_ca=backend.tls_ca)
        except OSError as error:
            self._log.error("fault", backend=backend.name, what=f"tls_ca {backend.tls_ca}: {error}; not trusted now")
            http = Http()
        world = World(
            http=http,
            units=self._manager(backend) if backend.unit or backend.action_unit else None,
            clock=self._clock,
            flag=self._flag_of(backend),
            maintenance=lambda: self._maintenance.standing(backend.name),
        )
        watcher = watcher_of(backend, self._config.daemon, world, self._host, self._recorder)
        delay = random.uniform(0.0, min(1.0, self._config.daemon.interval))  # noqa: S311  spreads starts, guards nothing
        task = asyncio.get_running_loop().create_task(watcher.run(delay))
        self._watched[backend.name] = _Watched(watcher, task)

    async def _end(self, names: Iterable[str]) -> None:
        """End watches, and save what they knew."""
        ending = [self._watched.pop(name) for name in names]
        for watched in ending:
            watched.task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIME):
                await asyncio.gather(*(w.task for w in ending), return_exceptions=True)
                await asyncio.gather(*(w.watcher.close() for w in ending), return_exceptions=True)
        for watched in ending:
            self._recorder.save(watched.watcher.name, watched.watcher.state)

    def _take_up(self, name: str) -> None:
        """The state that an earlier daemon saved, if there is one that can be read."""
        store = self._recorder.store
        if store is None:
            return
        try:
            saved = store.load_state(name)
            if saved is not None:
                self._host.states[name] = taken_up(
                    saved.json, self._boot_id, self._clock.boottime(), self._clock.wall()
                )
        except (StoreError, SavedStateError) as error:
            self._log.error("fault", backend=name, what=f"{error}; the backend begins afresh, its budget is full")

    def _watchers(self) -> dict[str, Watcher]:
        return {name: watched.watcher for name, watched in self._watched.items()}

    def _manager(self, backend: schema.Backend) -> Manager:
        which: Which = "user" if backend.bus == "user" else "system"
        return self._managers.setdefault(which, Manager(which))

    def _flag_of(self, backend: schema.Backend) -> Callable[[], Flag]:
        path = schema.busy_flag(backend, self._config.daemon)
        seen = Flag()

        def look() -> Flag:
            nonlocal seen
            seen = busy_flag.look(path, backend.busy_flag_ttl, self._clock.wall(), self._clock.boottime(), seen)
            return seen

        return look

    # --- reload ------------------------------------------------------------------------------------------------------

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that the daemon does beside its watches; a fault in it is told and ends nothing."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(f"{type(error).__name__}: {error}")

    async def _reload_when_asked(self) -> None:
        """One reload at a time: signals that come meanwhile are one more, however many."""
        while True:
            await self._hangup.wait()
            self._hangup.clear()
            try:
                await self._reload()
            except Exception as error:
                self._report(f"reload: {type(error).__name__}: {error}")

    async def _reload(self) -> None:
        """Take up the configuration file as it is now; one that is wrong changes nothing."""
        self._systemd.reloading()
        try:
            await self._change_to(load.load(self._config.path))
        except ConfigError as error:
            for problem in error.problems:
                self._log.error("configuration kept: the file is wrong", what=str(problem))
        finally:
            self._systemd.ready(self._status())

    async def _change_to(self, config: schema.Config) -> None:
        """Backends that did not change are watched on; a changed one keeps its restarts, and its clocks start again."""
        fixed = replace(
            config.daemon, state_dir=self._config.daemon.state_dir, runtime_dir=self._config.daemon.runtime_dir
        )
        if fixed != config.daemon:
            self._log.warning("configuration", what="state_dir and runtime_dir change only with a restart")
        same = fixed == self._config.daemon
        before = {b.name: b for b in self._config.backends}
        after = {b.name: b for b in config.backends}
        ending = [name for name, backend in before.items() if not same or after.get(name) != backend]
        await self._end(ending)
        for name in ending:
            known = self._host.states.pop(name, None)
            if name not in after:
                self._recorder.forget(name)
            elif known is not None:
                self._host.states[name] = resume(known)  # not from the file: it may be one that cannot be written
        self._config = replace(config, daemon=fixed)
        self._notify_by(config.notify)
        for name, backend in after.items():
            if name not in self._watched:
                self._begin(backend)
        self._log.info("reloaded", backends=list(after), changed=[n for n in after if n in ending or n not in before])

    def _notify_by(self, commands: tuple[schema.Notify, ...]) -> None:
        """Alerts from now on go to these commands; those that wait for the old ones are still run."""
        old = self._recorder.notifier
        self._recorder.notifier = Commands(commands, self._report)
        loop = asyncio.get_running_loop()
        self._background(old.close())
        self._notifying = loop.create_task(self._recorder.notifier.run())

    # --- being seen --------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """WATCHDOG=1 as long as every watch is alive: a daemon that watches nothing must be restarted as well."""
        interval = self._systemd.watchdog_interval()
        if interval is None:
            return
        loop = asyncio.get_running_loop()
        while True:
            late = [
                w.watcher.name for w in self._watched.values() if w.task.done() or w.watcher.overdue_at < loop.time()
            ]
            if late:
                self._log.error("fault", what=f"no poll ended in time: {', '.join(late)}; systemd will restart us")
            else:
                self._systemd.watchdog()
            await asyncio.sleep(interval)

    def _tell_status(self) -> None:
        self._systemd.status(self._status())

    def _status(self) -> str:
        """One line for people: the backends by state, the worst one's sentence last."""
        verdicts = {n: b.verdict for n, b in self._host.states.items() if b.verdict is not None and n in self._watched}
        if not verdicts:
            return f"watching {len(self._watched)} backends, none judged yet"
        line = ", ".join(f"{name} {verdict.state}" for name, verdict in sorted(verdicts.items()))
        bad = [v for v in verdicts.values() if v.state in BAD_ORDER]
        worst = min(bad, key=lambda v: BAD_ORDER.index(v.state), default=None)
        return line if worst is None else f"{line}: {worst.why}"

    def _report(self, what: str) -> None:
        self._recorder.report(what)

    def _open_store(self) -> Store | None:
        path = Path(self._config.daemon.state_dir) / schema.STORE_NAME
        try:
            store = Store(path, self._clock.wall())
        except StoreError as error:
            self._log.error("fault", what=f"{error}; watching without history, a restart of ours forgets the budget")
            return None
        if store.warning is not None:
            self._log.error("fault", what=store.warning)
        return store

    def _close_store(self) -> None:
        if self._recorder.store is not None:
            self._recorder.store.close()
