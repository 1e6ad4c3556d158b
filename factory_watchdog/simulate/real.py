"""The simulated server over real HTTP on 127.0.0.1: for demonstrations, for tests, and as a model server under systemd.

HTTP/1.1 with connections that are kept alive, as much of it as a watchdog's requests need. "Refused" closes the
listening socket, for the port as a whole; where only one endpoint refuses, its requests are reset instead, since one
port cannot do both.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Self
from urllib.parse import urlsplit

from factory_watchdog.simulate import scenario as scenarios
from factory_watchdog.simulate.server import Scripted, Server

HOST = "127.0.0.1"
CONTROL_PATH = "/_sim"

_LOOK_EVERY = 0.02  # seconds between two looks at whether the port should be open
_HEAD_LIMIT = 64 * 1024  # bytes of a request's first line and headers
_BODY_LIMIT = 1024 * 1024  # bytes
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: closing sends a reset


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


_Answer = Callable[[_Request, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""Answers one request; gives whether its connection goes on."""


class _Port:
    """A port of 127.0.0.1 that can be opened and shut again, connections and all."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._listener: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    async def open(self, port: int) -> int:
        """Listen, unless it does already, and give the port's number. Raises OSError where another has it."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, HOST, port, limit=_HEAD_LIMIT)
        return int(self._listener.sockets[0].getsockname()[1])

    async def shut(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        connections = dict(self._connections)
        for task, writer in connections.items():
            _reset(writer)
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections[task] = writer
            task.add_done_callback(self._connections.pop)
        with contextlib.suppress(OSError, ValueError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            while request := await _read(reader):
                if not await self._answer(request, reader, writer):
                    break
        writer.close()


class RealServer:
    """Serves `server` on a port of 127.0.0.1, and takes changes of the present at POST /_sim.

    With `port` 0 the system chooses one. `control_port` is another port that takes the same changes and never closes;
    without it a server that refuses can only be changed by `Server.change`. Use as an asynchronous context.
    """

    def __init__(self, server: Server, port: int = 0, control_port: int | None = None) -> None:
        self.server = server
        self.port = port
        self.control_port = control_port
        self._change = scenarios.present(server.spec.engines)
        self._main = _Port(self._answer)
        self._control = _Port(self._answer_control)
        self._tending: asyncio.Task[None] | None = None
        self._turning = asyncio.Lock()  # a port that is being opened must not be opened again

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def start(self) -> None:
        """Take the port, and from then on open and close it as the server says. Raises OSError where it is taken."""
        if self.port == 0:
            self.port = _free_port()
        if self.control_port is not None:
            self.control_port = await self._control.open(self.control_port)
        await self.tend()
        self._tending = asyncio.create_task(self._tend_for_good())

    async def close(self) -> None:
        """Close the ports and break off what is open."""
        if self._tending is not None:
            self._tending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._tending
        await self._control.shut()
        await self._main.shut()

    async def tend(self) -> None:
        """Open or close the port, as the server is now."""
        async with self._turning:
            if self.server.refusing:
                await self._main.shut()
            else:
                await self._main.open(self.port)

    async def _tend_for_good(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            with contextlib.suppress(OSError):  # somebody else has the port at the moment: try again
                await self.tend()

    async def _answer(self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if request.path == CONTROL_PATH:
            return await self._answer_control(request, reader, writer)
        scripted = self.server.respond(request.method, request.path, request.headers, request.body)
        if scripted.fault in ("refused", "reset"):
            _reset(writer)
            return False
        try:
            await _wait(reader, None if scripted.fault else scripted.delay)
        except (ConnectionError, asyncio.CancelledError):
            self.server.give_up(scripted)
            raise
        return await _write(writer, scripted)

    async def _answer_control(
        self, request: _Request, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Change the present by the keys of a phase in a JSON object; {"crash": true} ends the process at once."""
        try:
            keys = _object(request.body)
            if keys.pop("crash", False):
                os._exit(1)
            if keys:
                self.server.change(self._change(keys))
        except (ValueError, scenarios.ScenarioError) as error:
            return await _write(writer, Scripted(400, (("content-type", "text/plain"),), f"{error}\n".encode()))
        return await _write(writer, Scripted(200, (("content-type", "application/json"),), b"{}"))


def _object(body: bytes) -> dict[str, Any]:
    content = json.loads(body or b"{}")
    if not isinstance(content, dict):
        raise ValueError("must be a JSON object with keys of a phase")  # noqa: TRY004  a wrong value from outside
    return content


async def _read(reader: asyncio.StreamReader) -> _Request | None:
    """The next request of a connection, None where the client has ended it. ValueError for what is not HTTP."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= _BODY_LIMIT:
        raise ValueError("too long a body")
    return _Request(method, urlsplit(target).path, headers, await reader.readexactly(length))


async def _wait(reader: asyncio.StreamReader, seconds: float | None) -> None:
    """Wait `seconds`, None for good, or until the client hangs up, which raises ConnectionError."""
    if seconds == 0:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await reader.read(1)
        raise ConnectionAbortedError("the client has gone")


async def _write(writer: asyncio.StreamWriter, scripted: Scripted) -> bool:
    reason = http.HTTPStatus(scripted.status).phrase if scripted.status in http.HTTPStatus._value2member_map_ else ""
    headers = (*scripted.headers, ("content-length", str(len(scripted.body))))
    head = f"HTTP/1.1 {scripted.status} {reason}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers)
    writer.write(head.encode("latin-1") + b"\r\n" + scripted.body)
    await writer.drain()
    return True


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off, so that its client sees a reset and not an end."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    writer.transport.abort()


def _free_port() -> int:
    """A port that is free now, for a server that begins by refusing."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def clock(now: Callable[[], float]) -> Callable[[], float]:
    """Seconds since this call, by the clock `now`."""
    began = now()
    return lambda: now() - began
