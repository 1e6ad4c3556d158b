"""A look at backends without a daemon: one poll each by the same rules, with what was seen before in a state file."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from factory_watchdog.config import load, schema
from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import Answer, Flag, Question, Raise, Reading, Restart, RestartSettled, State, Verdict
from factory_watchdog.engines import dialect_of
from factory_watchdog.errors import WatchdogError
from factory_watchdog.saved import SavedStateError, decode, encode
from factory_watchdog.status import status_of
from factory_watchdog.watcher import Host, Watcher, World
from factory_watchdog.world import busy_flag
from factory_watchdog.world.clock import HostClock
from factory_watchdog.world.http import Http
from factory_watchdog.world.processes import boot_id

FORGET_AFTER = 1200.0
"""Seconds between two looks after which the earlier one is forgotten: cron's usual steps are up to 15 min."""

ROUNDS = 8
"""Polls at most in one look: one, then one after each answer that has to be settled (four forms, one confirmation)."""

SECOND_LOOK = 1.0
"""Seconds after which a person's first look at a busy engine looks again: movement needs two readings."""


class LookError(WatchdogError):
    """A target cannot be looked at."""


@dataclass
class _Silent:
    """Nobody is told anything but faults, which a person should see."""

    def polled(self, name: str, backend: Backend) -> None: ...

    def turned(self, name: str, verdict: Verdict, previous: Verdict | None) -> None: ...

    def raised(self, name: str, alert: Raise, state: State | None) -> None: ...

    def asking(self, name: str, question: Question) -> None: ...

    def asked(self, name: str, question: Question, answer: Answer) -> None: ...

    def restarting(self, name: str, order: Restart, readings: Iterable[Reading]) -> None: ...

    def settled(self, name: str, settled: RestartSettled) -> None: ...

    def save(self, name: str, backend: Backend) -> None: ...

    def fault(self, name: str, what: str) -> None:
        sys.stderr.write(f"llm-health: {name}: {what}\n")


def look(
    names: Sequence[str] | None,
    urls: Sequence[str],
    config: Path,
    *,
    wait: bool,
    probe: float | None,
    everything: bool,
    file: Path | None,
) -> list[dict[str, Any]]:
    """Each target's status. `probe`: one poll within so many seconds, and no question. Raises WatchdogError."""
    targets = [*_configured(names or (), config, everything=everything), *map(_from_url, urls)]
    if file is not None and len(targets) > 1:
        raise LookError("--state-file is for one target; several have a file each in the usual place")
    return asyncio.run(_look_at_all(targets, wait=wait, probe=probe, file=file))


def _configured(names: Sequence[str], config: Path, *, everything: bool) -> list[tuple[schema.Backend, schema.Daemon]]:
    if not names and not everything:
        return []
    loaded = load.load(config)
    known = {backend.name: backend for backend in loaded.backends}
    missing = [name for name in names if name not in known]
    if missing:
        raise LookError(f"{config}: no backend {', '.join(missing)}; there are {', '.join(known)}")
    return [(known[name], loaded.daemon) for name in (names or known)]


def _from_url(url: str) -> tuple[schema.Backend, schema.Daemon]:
    """A backend that is in no file, watched only."""
    name = re.sub(r"[^a-z0-9]+", "-", url.partition("://")[2].lower()).strip("-")[:32] or "backend"
    return load.from_table({"name": name, "url": url, "unit": ""}, file=url), schema.Daemon()


async def _look_at_all(
    targets: Iterable[tuple[schema.Backend, schema.Daemon]], *, wait: bool, probe: float | None, file: Path | None
) -> list[dict[str, Any]]:
    looks = (_look_at(backend, daemon, wait=wait, probe=probe, file=file) for backend, daemon in targets)
    return list(await asyncio.gather(*looks))


async def _look_at(
    backend: schema.Backend, daemon: schema.Daemon, *, wait: bool, probe: float | None, file: Path | None
) -> dict[str, Any]:
    clock, boot = HostClock(), boot_id()
    host = Host()
    manager = None
    if backend.unit is not None:
        from factory_watchdog.world.systemd import Manager

        manager = Manager("user" if backend.bus == "user" else "system")
    flag_path = schema.busy_flag(backend, daemon)

    def flag() -> Flag:
        return busy_flag.look(flag_path, backend.busy_flag_ttl, clock.wall(), clock.boottime())

    world = World(Http(tls_ca=backend.tls_ca), manager, clock, flag, lambda: False)
    settings = replace(schema.settings(backend, daemon), enforce=False, gap_factor=FORGET_AFTER / daemon.interval)
    if probe is not None:
        settings = replace(settings, forms=())
    watcher = Watcher(backend, settings, dialect_of(backend.kind), world, host, _Silent())
    if probe is not None:
        watcher.deadline = probe / 2
    memory = _Memory(file or _usual_file(backend), boot)
    try:
        host.states.update(memory.recall(backend.name))
        await _polls(watcher, wait=wait, probe=probe)
        memory.keep(backend.name, watcher.state, clock)
        told = status_of(backend.name, watcher.state, clock.boottime(), clock.wall())
        return {**told, "tokens_per_second": watcher.tokens_per_second}
    finally:
        memory.close()
        await watcher.close()
        if manager is not None:
            await manager.close()


async def _polls(watcher: Watcher, *, wait: bool, probe: float | None) -> None:
    """One poll, and those that it asks for; a person's first look at a busy engine looks again."""
    first = watcher.state.memory is None
    await watcher.poll()
    if probe is not None:
        return
    for _ in range(ROUNDS):
        if not watcher.wants_look:
            break
        await watcher.settle()
        await watcher.poll()
    verdict = watcher.state.verdict
    if first and verdict is not None and verdict.state is State.BUSY and sys.stdout.isatty():
        await asyncio.sleep(SECOND_LOOK)
        await watcher.poll()
    if wait:
        await _until_decided(watcher)


async def _until_decided(watcher: Watcher) -> None:
    """Poll on until the state is no longer suspect; every suspicion ends in a verdict or in its refutation."""
    while (verdict := watcher.state.verdict) is not None and verdict.state is State.SUSPECT:
        if not watcher.wants_look:
            await asyncio.sleep(watcher.settings.interval)
        await watcher.settle()
        await watcher.poll()


# --- what is remembered ----------------------------------------------------------------------------------------------


def _usual_file(backend: schema.Backend) -> Path:
    """Where what was seen of a backend is kept: one file for each address, under the user's own state folder."""
    if os.geteuid() == 0:
        folder = Path("/var/lib/factory-watchdog/check")
    else:
        state = os.environ.get("XDG_STATE_HOME", "")
        folder = (Path(state) if state.startswith("/") else Path.home() / ".local/state") / "factory-watchdog"
    mark = hashlib.sha256(backend.url.encode()).hexdigest()[:8]
    return folder / f"{backend.name}-{mark}.json"


class _Memory:
    """The state file, locked while we look: two checks at once must not send two questions.

    Where it cannot be used a look still works, but a hang can never be proven; that is said on standard error.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self._path, self._boot = path, boot
        self._file: int | None = None
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            self._complain(error.strerror or str(error))

    def recall(self, name: str) -> dict[str, Backend]:
        """What was seen before, if it was in this boot of the host."""
        if self._file is None:
            return {}
        text = b"".join(iter(lambda: os.read(self._file or -1, 1 << 20), b""))
        if not text:
            return {}
        try:
            saved = decode(text)
        except SavedStateError as error:
            self._complain(f"{error}; beginning afresh")
            return {}
        return {name: saved.backend} if saved.boot_id == self._boot else {}

    def keep(self, name: str, backend: Backend, clock: HostClock) -> None:
        """Put what is known now in place of what was."""
        if self._file is None:
            return
        try:
            text = encode(backend, self._boot, clock.boottime(), clock.wall())
            os.lseek(self._file, 0, os.SEEK_SET)
            os.ftruncate(self._file, 0)
            os.write(self._file, text)
        except OSError as error:
            self._complain(error.strerror or str(error))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def _complain(self, why: str) -> None:
        sys.stderr.write(f"llm-health: state file {self._path}: {why}; nothing is remembered between calls\n")
