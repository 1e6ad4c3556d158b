"""Plays a recording of a real server through the real watch, in virtual time: what would have been judged, and done.

A recording is gzipped JSON lines, one a poll of the recorder: {"t", "wall", "health", "metrics", "models"}, and where
they were recorded "paused", "sleeping", "slots", "procs". Each request is {"status", "latency", "body"} or {"error",
"detail", "latency"}. A recording holds no answers to questions, and what we do does not change it.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import errno
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx

from factory_watchdog.config import schema
from factory_watchdog.core.model import Flag, JobResult, Owner, Port, Settings, UnitFacts
from factory_watchdog.errors import WatchdogError
from factory_watchdog.ports import Host, World
from factory_watchdog.simulate import clock
from factory_watchdog.simulate.played import Collector, Played, watch_for
from factory_watchdog.simulate.transport import Body
from factory_watchdog.watcher import watcher_of
from factory_watchdog.world.evidence import Evidence, nothing
from factory_watchdog.world.http import Http
from factory_watchdog.world.processes import Process

Questions = Literal["never", "timeout", "ok"]

LARGEST = 512 << 20
"""Bytes of a recording, unpacked: a day at 10 s of 50 kB pages."""

_KEYS = {
    "/health": "health",
    "/metrics": "metrics",
    "/v1/models": "models",
    "/is_paused": "paused",
    "/is_sleeping": "sleeping",
    "/slots": "slots",
}
MAIN_ROLES = ("api", "launcher")
"""Roles of the process that a unit of a model server starts: the API server, or what launches several of them."""

_FOR_GOOD = 10 * 365 * 86400.0  # seconds; longer than any deadline
_TICK = 100.0  # clock ticks a second in /proc/PID/stat (USER_HZ, the same on every Linux that we run on)
_ANSWER = b'{"choices":[{"message":{"content":"ok"},"finish_reason":"length"}],"usage":{"completion_tokens":1}}'


class RecordingError(WatchdogError):
    """A recording cannot be played; the text names the file, the line and what is wrong."""


class Recording:
    """The rows of one file, found by time."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows = rows
        self._times = [float(row["t"]) for row in rows]

    @property
    def length(self) -> float:
        """Seconds from the first row's beginning to the last one's."""
        return self._times[-1]

    def at(self, t: float) -> dict[str, Any]:
        """The row nearest to `t`: rows and polls both fall on the seconds, give or take what the recorder was late."""
        after = bisect.bisect_left(self._times, t)
        near = [i for i in (after - 1, after) if 0 <= i < len(self.rows)]
        return self.rows[min(near, key=lambda i: abs(self._times[i] - t))]


def load(path: Path) -> Recording:
    """The recording in `path`. Raises RecordingError."""
    rows = []
    try:
        with gzip.open(path, "rb") as lines:
            text = lines.read(LARGEST + 1)
    except (OSError, EOFError) as error:
        raise RecordingError(f"{path}: cannot be read: {error}") from None
    if len(text) > LARGEST:
        raise RecordingError(f"{path}: larger than {LARGEST} bytes unpacked")
    for number, line in enumerate(text.splitlines(), 1):
        rows.append(_row(line, path, number))
    if not rows:
        raise RecordingError(f"{path}: has no rows")
    return Recording(rows)


def _row(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
        time = float(row["t"])
    except (ValueError, TypeError, KeyError) as error:
        raise RecordingError(f'{path}: line {number}: not a JSON object with a time "t" ({error!r})') from None
    return {**row, "t": time}


class ReplayTransport(httpx.AsyncBaseTransport):
    """Answers requests with what the recording has for their path at the time of the request."""

    def __init__(self, recording: Recording, questions: Questions) -> None:
        self._recording = recording
        self._questions = questions

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return await self._question(request)
        key = _KEYS.get(request.url.path, "")
        told = self._recording.at(asyncio.get_running_loop().time()).get(key)
        if told is None:
            return httpx.Response(404, stream=Body(b""), request=request)
        await _wait(told, request)
        body = str(told.get("body", "")).encode()
        return httpx.Response(int(told["status"]), stream=Body(body), request=request)

    async def _question(self, request: httpx.Request) -> httpx.Response:
        if self._questions != "ok":
            await asyncio.sleep(_FOR_GOOD)
        return httpx.Response(200, stream=Body(_ANSWER), request=request)


async def _wait(told: dict[str, Any], request: httpx.Request) -> None:
    """The recorded time of the request, or its error."""
    match told.get("error"):
        case None:
            await asyncio.sleep(float(told.get("latency", 0.0)))
        case "refused":
            raise httpx.ConnectError("refused", request=request) from OSError(errno.ECONNREFUSED, "refused")
        case "reset":
            raise httpx.ReadError("reset", request=request) from OSError(errno.ECONNRESET, "reset")
        case "timeout":
            await asyncio.sleep(_FOR_GOOD)
        case other:
            raise httpx.ReadError(f"{other}: {told.get('detail', '')}", request=request)


class RecordedUnit:
    """The recorded processes as a unit that nobody but the recording changes."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def facts(self, unit: str) -> UnitFacts:
        """The unit as a service manager would show these processes.

        A main process that was reaped was stopped by its owner: inactive. One that lies there dead (a zombie) is a
        unit that has not noticed yet: active, without a main PID.
        """
        processes = self._recording.at(asyncio.get_running_loop().time()).get("procs")
        if processes is None:
            return UnitFacts(told=True, active="active", sub="running")
        main = next((p for p in processes if str(p.get("role")).startswith(MAIN_ROLES)), None)
        if main is None:
            return UnitFacts(told=True, active="inactive", sub="dead")
        alive = main["state"] not in "ZX"
        return UnitFacts(
            told=True,
            active="active",
            sub="running",
            main_pid=main["pid"] if alive else None,
            main_start=main["start"] if alive else None,
            cpu=sum(p["cpu"] for p in processes) / _TICK,
        )

    async def try_restart(self, unit: str, deadline: float) -> tuple[JobResult, str]:
        return JobResult.DONE, ""

    async def start(self, unit: str, deadline: float) -> tuple[JobResult, str]:
        return JobResult.DONE, ""

    async def reset_failed(self, unit: str) -> tuple[JobResult, str]:
        return JobResult.DONE, ""

    async def processes(self, control_group: str) -> list[Process]:
        return []

    async def left_over(self, before: Iterable[Process]) -> tuple[int, ...]:
        return ()

    async def port_owner(self, url: str, unit: str, control_group: str | None) -> Port:
        return Port(Owner.UNKNOWN, "a recording does not tell who listened")

    async def evidence(self, unit: str | None, control_group: str | None) -> Evidence:
        return nothing("what was recorded shows no host")


class _ReplayClock:
    """Boot time is the recording's own time; the wall clock is the recorder's."""

    def __init__(self, recording: Recording) -> None:
        self._epoch = float(recording.rows[0].get("wall", 0.0))

    def boottime(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._epoch + self.boottime()


def replay(recording: Recording, name: str, config: schema.Backend, interval: float, questions: Questions) -> Played:
    """What the watch would have judged, asked and done, had it watched what was recorded."""
    played = Played(name)
    clock.run(lambda: _watch(recording, config, interval, questions, played))
    return played


async def _watch(
    recording: Recording, config: schema.Backend, interval: float, questions: Questions, played: Played
) -> None:
    now = _ReplayClock(recording)
    world = World(Http(ReplayTransport(recording, questions)), RecordedUnit(recording), now, Flag, lambda: None)
    daemon = schema.Daemon(interval=interval)

    def asked_as_told(settings: Settings) -> Settings:
        return dataclasses.replace(settings, forms=()) if questions == "never" else settings

    watcher = watcher_of(config, daemon, world, Host(), Collector(played, now), asked_as_told)
    await watch_for(watcher, recording.length)
