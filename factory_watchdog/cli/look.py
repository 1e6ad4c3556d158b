"""A look at backends without a daemon: one poll each by the same rules, with what was seen before in a state file."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from factory_watchdog.cli.state_file import StateFile, usual_file
from factory_watchdog.config import load, schema
from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import (
    Answer,
    Flag,
    Question,
    Raise,
    Reading,
    Restart,
    RestartSettled,
    Settings,
    State,
    Verdict,
)
from factory_watchdog.errors import WatchdogError
from factory_watchdog.ports import Host, World
from factory_watchdog.status import status_of
from factory_watchdog.watcher import Watcher, watcher_of
from factory_watchdog.world import busy_flag
from factory_watchdog.world.clock import HostClock
from factory_watchdog.world.evidence import Evidence, Job
from factory_watchdog.world.http import Http
from factory_watchdog.world.processes import boot_id

FORGET_AFTER = 1200.0
"""Seconds between two looks after which the earlier one is forgotten: cron's usual steps are up to 15 min."""

ROUNDS = 8
"""Polls at most in one look: one, then one after each answer that has to be settled (four forms, one confirmation)."""

SECOND_LOOK = 1.0
"""Seconds after which a person's first look at a busy engine looks again: movement needs two readings."""


LEAST = 0.05
"""Seconds for a request of a probe at least, and those kept for all but the requests."""

LOCK_TIME = 5.0
"""Seconds to wait for another look at the same backend; one with a question takes longer, then ours asks nothing."""


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

    def evidence(self, name: str, attempt: int, evidence: Evidence) -> None: ...

    def pushed(self, name: str, attempt: int, job: Job) -> None: ...

    def settled(self, name: str, settled: RestartSettled) -> None: ...

    def save(self, name: str, backend: Backend) -> None: ...

    def warned(self, name: str, what: str) -> None: ...

    def identified(self, name: str, kind: str, why: str) -> None: ...

    def fault(self, name: str, what: str) -> None:
        sys.stderr.write(f"llm-health: {name}: {what}\n")


def look(
    names: Sequence[str] | None,
    urls: Sequence[str],
    config: Path,
    *,
    wait: bool,
    ends: float | None,
    everything: bool,
    file: Path | None,
) -> list[dict[str, Any]]:
    """Each target's status. `ends`: one poll, over by this monotonic time, and no question. Raises WatchdogError."""
    targets = [*_configured(names or (), config, everything=everything), *map(_from_url, urls)]
    if file is not None and len(targets) > 1:
        raise LookError("--state-file is for one target; several have a file each in the usual place")
    return asyncio.run(_look_at_all(targets, wait=wait, ends=ends, file=file))


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
    return load.from_table({"name": name, "url": url, "unit": ""}, file="command line"), schema.Daemon()


async def _look_at_all(
    targets: Iterable[tuple[schema.Backend, schema.Daemon]], *, wait: bool, ends: float | None, file: Path | None
) -> list[dict[str, Any]]:
    looks = (_look_at(backend, daemon, wait=wait, ends=ends, file=file) for backend, daemon in targets)
    return list(await asyncio.gather(*looks))


async def _look_at(
    backend: schema.Backend, daemon: schema.Daemon, *, wait: bool, ends: float | None, file: Path | None
) -> dict[str, Any]:
    clock = HostClock()
    with StateFile(file or usual_file(backend), boot_id()) as memory:
        alone = await memory.lock(LOCK_TIME if ends is None else 0.0)

        def only_looking(settings: Settings) -> Settings:
            looking = replace(settings, enforce=False, gap_factor=FORGET_AFTER / daemon.interval)
            return replace(looking, forms=()) if ends is not None or not alone else looking

        async with _world(backend, daemon, clock) as world:
            host = Host(memory.recall(backend.name))
            watcher = watcher_of(backend, daemon, world, host, _Silent(), only_looking)
            if ends is not None:
                watcher.deadline = max(
                    LEAST, (ends - time.monotonic() - LEAST) / 2
                )  # two requests may follow each other
            try:
                await _polls(watcher, wait=wait, ends=ends)
            finally:
                await watcher.close()
            memory.keep(watcher.state, clock)
            told = status_of(backend.name, watcher.state, clock.boottime(), clock.wall())
            return {**told, "tokens_per_second": watcher.tokens_per_second}


@contextlib.asynccontextmanager
async def _world(backend: schema.Backend, daemon: schema.Daemon, clock: HostClock) -> AsyncIterator[World]:
    """The outside of a backend that is only looked at."""
    flag_path = schema.busy_flag(backend, daemon)

    def flag() -> Flag:
        return busy_flag.look(flag_path, backend.busy_flag_ttl, clock.wall(), clock.boottime())

    try:
        http = Http(tls_ca=backend.tls_ca)
    except OSError as error:
        raise LookError(f"{backend.name}: tls_ca {backend.tls_ca}: {error.strerror or error}") from None
    if backend.unit is None:
        yield World(http, None, clock, flag, lambda: None)
        return
    from factory_watchdog.world.systemd import Manager

    manager = Manager("user" if backend.bus == "user" else "system")
    try:
        yield World(http, manager, clock, flag, lambda: None)
    finally:
        await manager.close()


async def _polls(watcher: Watcher, *, wait: bool, ends: float | None) -> None:
    """One poll, and those that it asks for; a person's first look at a busy engine looks again."""
    first = watcher.state.memory is None
    await watcher.poll()
    if ends is not None:
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
