"""Runs the operator's commands for alerts, so that no command, however slow, delays a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

LONGEST = 30.0  # seconds; a command that hands a message on needs one or two
QUEUE = 100  # alerts that wait for a command; more at once is a storm, of which the newest matter
FAREWELL = 5.0  # seconds that commands have left when the daemon ends; a service manager waits 90

# What the environment says, by the alert's own names.
_ENVIRONMENT = {
    "FW_EVENT": "event",
    "FW_BACKEND": "backend",
    "FW_STATE": "state",
    "FW_WHY": "why",
    "FW_ENGINE": "engine",
    "FW_TIME": "time",
}
# The service manager's words to the daemon itself; see sd_notify(3) and sd_listen_fds(3).
_NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")

Report = Callable[[str], None]


class Command(Protocol):
    """A command with its arguments, and the events that it is run for."""

    @property
    def command(self) -> tuple[str, ...]: ...

    @property
    def events(self) -> AbstractSet[str]: ...


class Notifier:
    """Runs each command for each alert that it was chosen for, one alert at a time and each command by itself.

    An alert is a JSON object with "event", "backend", "state", "why", "engine" and "time". The command finds these in
    its environment (FW_EVENT and so on; empty where there is none) and the whole object on its standard input.
    `report` gets a sentence for whatever goes wrong.
    """

    def __init__(self, commands: Iterable[Command], report: Report) -> None:
        self._lines = [_Line(command, report) for command in commands]
        self._running: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def put(self, alert: Mapping[str, Any]) -> None:
        """Have the commands run for `alert`. Returns at once."""
        for line in self._lines:
            line.put(alert)

    async def run(self) -> None:
        """Run commands until `close`."""
        self._running = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            for line in self._lines:
                group.create_task(line.run())
            await self._ended.wait()

    async def close(self) -> None:
        """Let commands finish what waits for them, for `FAREWELL` at most, and end `run`."""
        self._ended.set()
        for line in self._lines:
            line.end()
        if self._running is None:
            return
        done, _ = await asyncio.wait([self._running], timeout=FAREWELL)
        if not done:
            self._running.cancel()
            await asyncio.wait([self._running])


class _Line:
    """The alerts that wait for one command."""

    def __init__(self, command: Command, report: Report) -> None:
        self._command = command
        self._report = report
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._woken = asyncio.Event()
        self._ending = False

    def put(self, alert: Mapping[str, Any]) -> None:
        if alert["event"] not in self._command.events:
            return
        if len(self._waiting) == QUEUE:
            oldest = self._waiting.popleft()
            self._report(f"{self._name} is too slow: the alert {_named(oldest)} is dropped")
        self._waiting.append(dict(alert))
        self._woken.set()

    def end(self) -> None:
        """Let `run` return when nothing waits any more."""
        self._ending = True
        self._woken.set()

    async def run(self) -> None:
        while self._waiting or not self._ending:
            if not self._waiting:
                self._woken.clear()
                await self._woken.wait()
                continue
            alert = self._waiting.popleft()
            if failure := await _failure(self._command.command, alert):
                self._report(f"{self._name} failed for the alert {_named(alert)}: {failure}")

    @property
    def _name(self) -> str:
        return self._command.command[0]


def _named(alert: Mapping[str, Any]) -> str:
    return f"{alert['event']} of {alert.get('backend')}"


async def _failure(command: tuple[str, ...], alert: Mapping[str, Any]) -> str | None:
    """Run `command` for `alert`; what went wrong, None where nothing did.

    It is the leader of a session of its own, so that it can be killed with all that it started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            env=_environment(alert),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: text that no environment can hold
        return f"cannot be started: {error}"
    try:
        async with asyncio.timeout(LONGEST):
            await _feed(process, json.dumps(alert).encode() + b"\n")
            status = await process.wait()
    except TimeoutError:
        return f"killed after {LONGEST:g} s"
    finally:
        await _end(process)
    if status < 0:
        return f"ended by signal {-status}"
    return f"exit status {status}" if status else None


def _environment(alert: Mapping[str, Any]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    told = {name: alert.get(key) for name, key in _ENVIRONMENT.items()}
    return inherited | {name: "" if value is None else str(value) for name, value in told.items()}


async def _feed(process: asyncio.subprocess.Process, content: bytes) -> None:
    """Write to the command's standard input; many do not read it, and that is no failure."""
    assert process.stdin is not None  # noqa: S101 - it was asked for
    with contextlib.suppress(ConnectionError):
        process.stdin.write(content)
        await process.stdin.drain()
    process.stdin.close()
    with contextlib.suppress(ConnectionError):
        await process.stdin.wait_closed()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a command that has not ended, and all that it started; either way leave nothing open."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    assert process.stdin is not None  # noqa: S101 - it was asked for
    process.stdin.close()
