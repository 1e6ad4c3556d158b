"""`llm-health restart`, `maintenance` and `reset`: what an operator asks of the running daemon."""

from __future__ import annotations

import sys
from pathlib import Path

from factory_watchdog.cli import daemon
from factory_watchdog.config import durations
from factory_watchdog.errors import WatchdogError

LOOK_TIME = 40.0
"""Seconds for the reply to a restart: the daemon looks once more first, at most 30 s."""


class OrderError(WatchdogError):
    """What was asked for makes no sense; the text says what would."""


def restart(name: str, config: Path) -> None:
    """Order a restart. Raises WatchdogError where it cannot be made now."""
    reply = daemon.ask(config, {"command": "restart", "name": name}, LOOK_TIME)
    sys.stdout.write(f"{name}: restart {reply['attempt']} began; llm-health explain {name} shows how it goes\n")


def maintenance(name: str, length: str, config: Path, *, end: bool) -> None:
    """Begin a maintenance window of `length`, or end it."""
    if end == bool(length):
        raise OrderError("give one of --for DURATION and --end")
    if end:
        reply = daemon.ask(config, {"command": "maintenance", "name": name})
        ended = reply["ended"]
        _warn(reply["warning"])
        sys.stdout.write(f"{name}: {'maintenance has ended' if ended else 'no maintenance was in force'}\n")
        return
    try:
        seconds = durations.parse(length)
    except ValueError as error:
        raise OrderError(f"--for {length}: {error}") from None
    _warn(daemon.ask(config, {"command": "maintenance", "name": name, "seconds": seconds})["warning"])
    sys.stdout.write(f"{name}: set aside for {durations.show(seconds)}; llm-health maintenance {name} --end ends it\n")


def _warn(warning: str) -> None:
    """Tell that a window could not be kept; it is in force all the same."""
    if warning:
        sys.stderr.write(f"llm-health: {warning}\n")


def reset(name: str, config: Path) -> None:
    """Close a backend's breaker."""
    daemon.ask(config, {"command": "reset", "name": name})
    sys.stdout.write(f"{name}: restarts forgotten, the breaker is closed\n")
