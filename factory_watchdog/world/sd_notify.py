"""What we tell the service manager that started us. Protocol: sd_notify(3), sd_watchdog_enabled(3)."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

from factory_watchdog.core.text import clean

_BEATS = 2  # beats in a watchdog's time: sd_watchdog_enabled(3) advises half of it
_MICROSECONDS = 1_000_000  # in a second


class Notifier:
    """Sends datagrams to NOTIFY_SOCKET, never waits, never raises; without the variable it does nothing.

    A datagram that does not fit now is lost, which is right for a status line, and for a beat the next one follows
    before the watchdog's time is over.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._socket: socket.socket | None = None
        path = environment.get("NOTIFY_SOCKET", "")
        if not path.startswith(("/", "@")):
            return
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        with contextlib.suppress(OSError):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)

    def ready(self, status: str = "") -> None:
        """Started, or done with reloading."""
        self._send("READY=1", *_status(status))

    def status(self, line: str) -> None:
        """What `systemctl status` shows: one line for people."""
        self._send(*_status(line))

    def watchdog(self) -> None:
        """A beat: everything that has to move has moved."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Reading the configuration again; `ready` ends it. The time is required by Type=notify-reload."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}")

    def stopping(self) -> None:
        """On the way out."""
        self._send("STOPPING=1")

    def watchdog_interval(self) -> float | None:
        """Seconds between two beats; None where no watchdog waits for ours."""
        if self._environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            return None
        told = self._environment.get("WATCHDOG_USEC", "")
        microseconds = int(told) if told.isascii() and told.isdigit() else 0
        return microseconds / _MICROSECONDS / _BEATS or None

    def close(self) -> None:
        """Give the socket back; nothing is sent from now on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *lines: str) -> None:
        if self._socket is None or not lines:
            return
        with contextlib.suppress(OSError, ValueError):  # nobody listens, no room, or no valid address
            self._socket.sendto("\n".join(lines).encode(errors="replace"), self._address)


def _status(line: str) -> tuple[str, ...]:
    shown = clean(line)
    return (f"STATUS={shown}",) if shown else ()
