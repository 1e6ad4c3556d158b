"""The simulated service manager: it shows a simulated server as a systemd unit and takes its restarts.

It has the methods of `world.systemd.Manager`, and the looks at a unit's processes and its port that go with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from factory_watchdog.core.model import JobResult, Owner, Port, UnitFacts
from factory_watchdog.simulate.lives import Life
from factory_watchdog.simulate.server import Server
from factory_watchdog.world.evidence import LOOKS_APART, Evidence, Group, Missing, Processes, Seen

Ended = tuple[JobResult, str]

STOP_TIME = 0.5
"""Seconds that a restart's job lasts: the unit starts as "simple", loading comes after the job."""

_JOB = 4711  # the id of whatever job is queued
_CHANGING = frozenset({"activating", "deactivating", "reloading"})
_DOWN = frozenset({"inactive", "failed"})
_SUB = {
    "active": "running",
    "activating": "start",
    "deactivating": "stop-sigterm",
    "reloading": "reload",
    "inactive": "dead",
    "failed": "failed",
}


class SimManager:
    """The service manager of `server`, which is the one service that it knows.

    Of other units it knows what the server's scenario says of them in its backend table: an `action_unit` restarts the
    server, an `evidence_unit` does nothing.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stopping: Life | None = None
        self.evidence_units: list[str] = []

    async def facts(self, unit: str) -> UnitFacts:
        """What the manager says of `unit` now."""
        return self.shown(unit)

    def shown(self, unit: str) -> UnitFacts:
        """The same at once, for who does not wait."""
        server, state = self._server, self._state()
        up = state not in _DOWN
        life = self._stopping or server.life
        return UnitFacts(
            told=True,
            active=state,
            sub=_SUB[state],
            job=_JOB if self._stopping or server.stuck_job or state in _CHANGING else 0,
            invocation=life.invocation,
            main_pid=life.main_pid if up else None,
            main_start=life.main_start if up else None,
            cpu=server.cpu() if up else None,
            control_group=_control_group(unit) if up else None,
        )

    async def try_restart(self, unit: str, deadline: float) -> Ended:
        """Restart the server if its unit runs, and follow the job, at most `deadline` seconds from now."""
        if self._state() in _DOWN:
            return JobResult.DONE, ""
        if self._state() in _CHANGING:
            return JobResult.FAILED, "another job is queued that ours must not overrule"
        return await self._restart(deadline)

    async def start(self, unit: str, deadline: float) -> Ended:
        """Start a unit: the server's own if it is down, or one that acts for it."""
        backend = self._server.scenario.backend
        if unit == backend.get("evidence_unit"):
            self.evidence_units.append(unit)
            return JobResult.DONE, ""
        if unit == backend.get("action_unit") or self._state() in _DOWN:
            return await self._restart(deadline)
        return JobResult.DONE, ""

    async def reset_failed(self, unit: str) -> Ended:
        return JobResult.DONE, ""

    async def processes(self, control_group: str) -> list[tuple[int, int]]:
        """PID and start, in clock ticks, of each process of the server's control group."""
        own = () if self._state() in _DOWN else self._server.life.processes
        return sorted({*own, *self._server.orphans})

    async def left_over(self, before: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """The PIDs of `before` that are alive still."""
        alive = set(await self.processes(""))
        return tuple(pid for pid, start in before if (pid, start) in alive)

    async def port_owner(self, url: str, unit: str, control_group: str | None) -> Port:
        """Nobody else listens at a simulated server's port."""
        return Port(Owner.UNIT)

    async def evidence(self, unit: str | None, control_group: str | None) -> Evidence:
        """What a host would show of the server: its unit, its processes, the CPU that its scenario tells of."""
        before = self._server.cpu()
        await asyncio.sleep(LOOKS_APART)
        after = self._server.cpu()
        cpu = None if before is None or after is None else round(max(0.0, after - before) / LOOKS_APART, 3)
        facts = await self.facts(unit or "")
        return Evidence(
            seconds=LOOKS_APART,
            unit={"ActiveState": facts.active, "SubState": facts.sub, "InvocationID": facts.invocation},
            processes=await self._seen(cpu),
            group=Group(cpu, None, None, None),
            gpus=Missing("a simulated host has no GPU"),
        )

    async def _seen(self, cpu: float | None) -> Processes:
        """The API server, and the engine core beside it, which is the one that computes."""
        main = self._server.life.main_pid
        return Processes(
            tuple(
                Seen(
                    pid=pid,
                    ppid=1 if pid == main else main,
                    role="api" if pid == main else "engine",
                    state="S",
                    threads=None,
                    age=self._server.age(start),
                    resident=None,
                    cpu=0.0 if pid == main else cpu,
                )
                for pid, start in await self.processes("")
            )
        )

    async def close(self) -> None:
        """There is nothing to hang up."""

    def _state(self) -> str:
        return "deactivating" if self._stopping else self._server.unit_state

    async def _restart(self, deadline: float) -> Ended:
        if not self.push():
            await asyncio.sleep(deadline)
            return JobResult.NEVER_ENDED, "the job is still queued at the deadline"
        try:
            await asyncio.sleep(min(STOP_TIME, deadline))
        finally:
            ended = self.pushed()
        return ended

    def push(self) -> bool:
        """Begin a restart's job; false where it will never end. Whoever begins it tells by `pushed` when it ends."""
        old = self._server.life
        self._server.restart()
        if not self._server.stuck_job:
            self._stopping = old  # the manager shows the old life until it starts the new one
        return self._stopping is not None

    def pushed(self) -> Ended:
        """End the job, STOP_TIME after it began: how it went."""
        self._stopping = None
        if self._server.life.failed:
            return JobResult.FAILED, "the job ended as 'failed'"
        return JobResult.DONE, ""


def _control_group(unit: str) -> str:
    return f"/system.slice/{unit}"
