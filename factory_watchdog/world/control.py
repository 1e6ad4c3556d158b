"""The client of the daemon's control socket: one JSON object a line, there and back.

A request is {"command": "...", ...}, a reply {"ok": true, ...} or {"ok": false, "error": "a sentence"}. This half
needs nothing but the standard library's socket and json, so that a command starts fast; the daemon's half is
`control_server`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from factory_watchdog.errors import ControlError, NoDaemonError

SOCKET = "control.sock"  # its name in the daemon's runtime_dir
LONGEST_REPLY = 16 << 20  # bytes; the whole state of some hundred backends is far less


def call(path: Path, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """The daemon's reply to `request`, whether it says ok or not; the whole exchange ends within `timeout` seconds.

    Raises NoDaemonError where nobody answers, ControlError where we may not ask or the reply cannot be understood.
    """
    try:
        line = _exchange(path, json.dumps(request).encode() + b"\n", time.monotonic() + timeout)
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoDaemonError(f"no daemon answers at {path}") from None
    except TimeoutError:
        raise NoDaemonError(f"the daemon at {path} did not answer within {timeout:g} s") from None
    except OSError as error:
        raise ControlError(f"{path} cannot be used: {_reason(error)}") from None
    return _reply(line, path)


def _exchange(path: Path, line: bytes, deadline: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_left(deadline))
        connection.connect(str(path))
        with contextlib.suppress(BrokenPipeError):  # cut off before we wrote; the reply that says why can be read still
            connection.sendall(line)
        reply = bytearray()
        while not reply.endswith(b"\n") and len(reply) <= LONGEST_REPLY:
            connection.settimeout(_left(deadline))
            chunk = connection.recv(65536)
            if not chunk:
                break
            reply += chunk
        return bytes(reply)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reply(line: bytes, path: Path) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ControlError(f"the daemon at {path} closed the connection without a whole reply")
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict) or not isinstance(reply.get("ok"), bool):
        raise ControlError(f"what answers at {path} is no daemon of ours")
    return reply


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
