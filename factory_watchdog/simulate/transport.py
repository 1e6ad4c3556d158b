"""The simulated server as a transport of httpx: requests go to it without a socket, in whatever time the loop keeps."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

import httpx

from factory_watchdog.simulate.server import Scripted, Server

_FOR_GOOD = 10 * 365 * 86400.0  # seconds; longer than any deadline, so that it is the caller's that ends the wait

# What the operating system says at the root of httpx's errors; the caller may look there.
_REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
_RESET = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


class Body(httpx.AsyncByteStream):
    """A body that is read as it would be from a socket; one given as `content` counts as read already."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


class SimTransport(httpx.AsyncBaseTransport):
    """Carries requests to `server`. Its faults come as httpx's own errors; a silent server is waited for in vain."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        headers = {name.lower(): value for name, value in request.headers.items()}
        scripted = self._server.respond(request.method, request.url.path, headers, body)
        try:
            return await _carried(scripted, request)
        except (asyncio.CancelledError, httpx.TransportError):
            self._server.give_up(scripted)
            raise


async def _carried(scripted: Scripted, request: httpx.Request) -> httpx.Response:
    match scripted.fault:
        case "refused":
            raise httpx.ConnectError("connection refused", request=request) from _REFUSED
        case "reset":
            raise httpx.ReadError("connection reset", request=request) from _RESET
        case "timeout":
            await asyncio.sleep(_FOR_GOOD)
            raise httpx.ReadTimeout("no answer", request=request)
    if scripted.delay:
        await asyncio.sleep(scripted.delay)
    return httpx.Response(scripted.status, headers=list(scripted.headers), stream=Body(scripted.body))
