"""Records what a server shows from outside, row by row, for `replay`: whole pages, times, its processes."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from factory_watchdog.core.model import Reply, Went
from factory_watchdog.engines.exposition import PAGE_LIMIT
from factory_watchdog.world import clock
from factory_watchdog.world.http import Fetched, Http
from factory_watchdog.world.processes import Process, described

PATHS: Mapping[str, str] = {"health": "/health", "metrics": "/metrics", "models": "/v1/models"}
"""What every row has, by the name in the row. None of these takes an inference slot on a model server."""

PAUSE_PATHS: Mapping[str, str] = {"paused": "/is_paused", "sleeping": "/is_sleeping"}
"""What a row has besides with `pause`: signs of vLLM's development mode, a round trip into the engine each."""

LONGEST = 3.0
"""Seconds for each request: a row must not hold up the next ones for long."""

_ERRORS = {Went.REFUSED: "refused", Went.RESET: "reset", Went.TIMEOUT: "timeout"}


async def record(
    url: str,
    file: Path,
    *,
    every: float,
    seconds: float | None,
    pause: bool = False,
    processes: Callable[[], list[Process]] | None = None,
) -> int:
    """Write a row every `every` seconds to `file` until `seconds` have passed or the task is cancelled; how many rows.

    Raises OSError where the file cannot be written.
    """
    paths = {**PATHS, **(PAUSE_PATHS if pause else {})}
    began, rows = clock.boottime(), 0
    async with Http() as http:
        with gzip.open(file, "wt", compresslevel=6) as sink:
            while seconds is None or clock.boottime() - began < seconds:
                row = await _row(http, url.rstrip("/"), paths, began)
                if processes is not None:
                    row["procs"] = described(processes())
                sink.write(json.dumps(row) + "\n")
                rows += 1
                await asyncio.sleep(every - (clock.boottime() - began) % every)
    return rows


async def _row(http: Http, url: str, paths: Mapping[str, str], began: float) -> dict[str, Any]:
    row: dict[str, Any] = {"t": round(clock.boottime() - began, 3), "wall": round(clock.wall(), 3)}
    fetched = await asyncio.gather(*(http.get(url + path, LONGEST, PAGE_LIMIT) for path in paths.values()))
    return {**row, **dict(zip(paths, map(_told, fetched), strict=True))}


def _told(fetched: Fetched) -> dict[str, Any]:
    reply: Reply = fetched.reply
    latency = round(reply.seconds, 4)
    if reply.status is None:
        return {"error": _ERRORS.get(reply.went, "other"), "detail": reply.detail, "latency": latency}
    return {"status": reply.status, "latency": latency, "body": fetched.body.decode("utf-8", "replace")}
