"""Asking the running daemon over its control socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from factory_watchdog.cli.app import CONFIG
from factory_watchdog.errors import ControlError, NoDaemonError
from factory_watchdog.world.control import SOCKET, call

RUNTIME_DIR = Path("/run/factory-watchdog")
TIMEOUT = 5.0
"""Seconds for a reply: the daemon answers from memory."""


def socket_of(config: Path) -> Path:
    """Where the daemon listens. A default installation is found without reading its configuration."""
    usual = RUNTIME_DIR / SOCKET
    if config == CONFIG and (usual.exists() or not config.exists()):
        return usual
    from factory_watchdog.config.load import load

    return Path(load(config).daemon.runtime_dir) / SOCKET


def ask(config: Path, request: dict[str, Any], timeout: float = TIMEOUT) -> dict[str, Any]:
    """The daemon's reply. Raises NoDaemonError where none answers, ControlError for its error sentence."""
    try:
        reply = call(socket_of(config), request, timeout)
    except NoDaemonError as error:
        raise NoDaemonError(f"{error}; does factory-watchdog.service run?") from None
    if not reply["ok"]:
        raise ControlError(str(reply.get("error", "the daemon refused")))
    return reply
