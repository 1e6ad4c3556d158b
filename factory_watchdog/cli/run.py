"""`llm-health run`: the daemon in the foreground, as systemd wants it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO, cast

import structlog

from factory_watchdog.config.load import load
from factory_watchdog.daemon import Daemon

PRIORITY = {"critical": 2, "error": 3, "warning": 4, "info": 6}
"""The journal's priorities; an alert is `critical`. The prefix is that of sd-daemon(3)."""


def run(config: Path) -> int:
    """Watch until stopped; the exit code. Raises ConfigError for a bad file."""
    loaded = load(config)
    log = _log()

    async def watch() -> int:
        return await Daemon(loaded, log).run()

    return asyncio.run(watch())


def _log() -> Any:
    """JSON lines on standard error; under the journal each with its priority before it."""
    to_journal = "JOURNAL_STREAM" in os.environ
    processors: list[Any] = [structlog.processors.add_log_level]
    if not to_journal:
        processors.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
    processors.append(structlog.processors.JSONRenderer(sort_keys=False))
    if to_journal:
        processors.append(_with_priority)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    return structlog.get_logger()


class _Unfailing:
    """A stream whose failures are nobody's: a full disk or a reader that has gone must not end the watch."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def _with_priority(_logger: object, method: str, line: str) -> str:
    return f"<{PRIORITY.get(method, 6)}>{line}"
