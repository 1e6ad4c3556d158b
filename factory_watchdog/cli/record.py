"""`llm-health record`: a server from outside into a file that `llm-health replay` plays."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from pathlib import Path

from factory_watchdog.config import durations
from factory_watchdog.errors import WatchdogError
from factory_watchdog.record import record
from factory_watchdog.world.processes import processes


class RecordError(WatchdogError):
    """The recording cannot be made as asked."""


def run(url: str, file: Path, *, every: str, seconds: str, pause: bool, group: str) -> None:
    """Record until the time is over or Ctrl-C. Raises RecordError."""
    recording = record(
        url,
        file,
        every=_duration("--every", every),
        seconds=_duration("--for", seconds) if seconds else None,
        pause=pause,
        processes=functools.partial(processes, group) if group else None,
    )
    sys.stderr.write(f"recording {url} into {file}; Ctrl-C ends it\n")
    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.stderr.write(f"{asyncio.run(recording)} rows\n")
        except OSError as error:
            raise RecordError(f"{file}: {error.strerror or error}") from None


def _duration(option: str, text: str) -> float:
    try:
        value = durations.parse(text)
    except ValueError as error:
        raise RecordError(f"{option} {text}: {error}") from None
    if value <= 0:
        raise RecordError(f"{option} {text}: must be more than nothing")
    return value
