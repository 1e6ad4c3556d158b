"""The daemon's half of the control socket; what is said over it is described in `control`.

Who may connect is decided by the socket's mode and group, who may do what by the handler, which is told the caller's
PID and user as the kernel knows them (SO_PEERCRED, unix(7)). A caller can be anybody in the group, so lines, times and
connections are bounded, and nothing that is sent can do more than get an error back.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from factory_watchdog.errors import AnotherDaemonError, ControlError, WatchdogError

MODE = 0o660  # owner and group may connect
LONGEST_LINE = 64 << 10  # bytes; requests have a few words
LINE_TIME = 10.0  # seconds; a caller writes its request at once
HANDLING_TIME = 30.0  # seconds; every request is either answered from memory or only begun
CONNECTIONS = 32  # at once; callers come one by one, and each has its reply in milliseconds

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_PROBE_TIME = 1.0  # seconds; a living daemon accepts at once, also when it is busy


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """The process at the other end, as it was when it connected."""

    pid: int
    uid: int


Handler = Callable[[Mapping[str, Any], Caller], Awaitable[dict[str, Any]]]


class ControlServer:
    """Answers requests at `path` with what `handler` makes of them.

    The handler's result is the reply, with "ok": true added; a WatchdogError that it raises becomes the error in the
    reply. Any other exception is told to `report` and to the caller only by its name.
    """

    def __init__(self, path: Path, handler: Handler, report: Callable[[str], None]) -> None:
        self._path = path
        self._handler = handler
        self._report = report
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._callers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to listen. Raises ControlError, also where another daemon listens there already."""
        try:
            _remove_stale(self._path)
            listener = _bound(self._path)
            self._inode = os.lstat(self._path).st_ino
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise ControlError(f"{self._path} cannot be opened: {reason}") from error
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=LONGEST_LINE)

    async def close(self) -> None:
        """Stop listening, end all connections and remove the socket, unless another daemon has put its own there."""
        if self._server is None:
            return
        self._server.close()
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None
        with contextlib.suppress(OSError):
            if os.lstat(self._path).st_ino == self._inode:
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this as a task
        self._callers.add(task)
        writer.transport.set_write_buffer_limits(high=0)  # so that what was sent has left when drain returns
        try:
            if len(self._callers) > CONNECTIONS:
                await _send(writer, _error("too many connections"))
                return
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._answer_lines(reader, writer)
        except asyncio.CancelledError:
            pass  # we are closing; asyncio would log the cancelled task of a connection as an error
        finally:
            self._callers.discard(task)
            writer.transport.abort()

    async def _answer_lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = _caller(writer)
        while True:
            try:
                async with asyncio.timeout(LINE_TIME):
                    line = await reader.readline()
            except ValueError:  # readline's word for a line beyond the limit
                await _send(writer, _error(f"a request must be shorter than {LONGEST_LINE} bytes"))
                return
            if not line.endswith(b"\n"):
                return
            await _send(writer, await self._answer(line, caller))

    async def _answer(self, line: bytes, caller: Caller) -> dict[str, Any]:
        request = _request(line)
        if request is None:
            return _error('a request must be a JSON object on one line, with "command": "..."')
        try:
            async with asyncio.timeout(HANDLING_TIME):
                reply = await self._handler(request, caller)
        except WatchdogError as error:
            return _error(str(error))
        except TimeoutError:
            return _error("the daemon did not get to it in time")
        except Exception as error:  # a fault of ours must not end the daemon, nor leave the caller without a reply
            self._report(f"control request {str(request['command'])[:40]!r} failed: {error!r}")
            return _error(f"a fault in the daemon: {type(error).__name__}")
        return {"ok": True, **reply}


def _request(line: bytes) -> dict[str, Any] | None:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) and isinstance(request.get("command"), str) else None


def _error(sentence: str) -> dict[str, Any]:
    return {"ok": False, "error": sentence}


async def _send(writer: asyncio.StreamWriter, reply: dict[str, Any]) -> None:
    """Send one line. Raises TimeoutError when the caller does not take it."""
    writer.write(json.dumps(reply, default=str).encode() + b"\n")
    async with asyncio.timeout(LINE_TIME):
        await writer.drain()


def _caller(writer: asyncio.StreamWriter) -> Caller:
    connection = writer.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return Caller(pid, uid)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a daemon that is gone. Raises ControlError where one answers or something else is there."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ControlError(f"{path} is not a socket; it is left alone")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIME)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except TimeoutError:  # its queue is full: somebody has it open
            pass
    raise AnotherDaemonError(f"another daemon answers at {path}; only one can watch with this runtime_dir")


def _bound(path: Path) -> socket.socket:
    """A socket bound at `path`; nobody can connect before it listens, so its mode is right from the first moment."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(MODE)
    except BaseException:
        listener.close()
        raise
    return listener
