"""HTTP to a backend: small requests, each under one deadline, with a cap on what is taken. The only user of httpx.

Only httpx's transport is used, not its client: so there are no redirects, no cookies, no proxies and no credentials
from the environment. No compression is asked for and none accepted. The whole request is under one `asyncio.timeout`,
since httpx's own deadlines are for each chunk, and a body that drips would never reach them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import ssl
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import httpx

from factory_watchdog.core.model import Reply, Went
from factory_watchdog.core.text import clean
from factory_watchdog.engines import HEADERS

# httpcore tries to import sniffio four times in a request, and Python searches anew each time for what it did not find:
# more than a quarter of a request's CPU time. None says that it is not there, as it is not beside a newer anyio.
with contextlib.suppress(ImportError):
    importlib.import_module("sniffio")
cast("dict[str, Any]", sys.modules).setdefault("sniffio", None)

USER_AGENT = "factory-watchdog"
"""Names our requests in the backend's own logs, so that nobody takes them for a user's."""

_HEADERS = {"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": "identity"}

_CONNECTING = 0.9
"""Part of the deadline that each step of connecting may take: httpx closes a TLS handshake that it ends by its own
time limit, and leaves one open that is cancelled from outside."""

_LIMITS = httpx.Limits(max_connections=8, max_keepalive_connections=4)
"""A poll has two requests at once, four with the pause signs, and a question may be out beside them."""

ABSENT_STATUS = frozenset({404, 405, 501})
"""What servers say of a path that they do not have; llama.cpp says 501 for metrics that are switched off."""

SMALL = 256 * 1024
"""Bytes taken of any page but the metrics: an answer of one token has about 1 kB, a list of models some."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """How a request went, and the body: whole for status 200, what came of it otherwise, empty without an answer.

    `headers` are those of the answer that tell an engine something, by their names in lower case, cleaned.
    """

    reply: Reply
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Http:
    """A client of one backend over kept-alive connections. `transport` stands in for the network in a simulation.

    `tls_ca` names a file of certificates to trust instead of the system's; OSError (ssl.SSLError is one) if unusable.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None, tls_ca: str | None = None) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._trusts = tls_ca is not None
        if tls_ca is not None:
            self._tls.load_verify_locations(tls_ca)
        self._transport = transport or httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False, limits=_LIMITS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.aclose()

    async def get(
        self, url: str, deadline: float, cap: int = SMALL, headers: Mapping[str, str] | None = None
    ) -> Fetched:
        """GET `url` within `deadline` seconds, at most `cap` bytes. Never raises for what the network or server does.

        A connection that was kept alive may have been closed by the server a moment ago (vLLM's closes after 5 s), so
        one reset is tried again within the same deadline.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        fetched = await self._request("GET", url, deadline, cap, headers, None)
        left = deadline - (loop.time() - began)
        if fetched.reply.went is Went.RESET and left > 0:
            fetched = await self._request("GET", url, left, cap, headers, None)
        return replace(fetched, reply=replace(fetched.reply, seconds=loop.time() - began))

    async def post(self, url: str, deadline: float, body: bytes, headers: Mapping[str, str]) -> Fetched:
        """POST `body` as JSON within `deadline` seconds, once. Never raises for what the network or server does."""
        return await self._request("POST", url, deadline, SMALL, {"Content-Type": "application/json", **headers}, body)

    async def _request(
        self, method: str, url: str, deadline: float, cap: int, headers: Mapping[str, str] | None, body: bytes | None
    ) -> Fetched:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            limits = {"timeout": {"connect": _CONNECTING * deadline}}
            sent = {**_HEADERS, **(headers or {})}
            request = httpx.Request(method, url, headers=sent, content=body, extensions=limits)
            self._trust_for(request.url)
            async with asyncio.timeout(deadline):
                response = await self._transport.handle_async_request(request)
                async with contextlib.aclosing(response):
                    fetched = await _take(response, cap)
        except (TimeoutError, httpx.TimeoutException):
            fetched = Fetched(Reply(Went.TIMEOUT, detail=f"no whole answer within {deadline:.3g} s"))
        except Exception as error:  # the library's, the system's, or a fault of theirs: a failed request either way
            fetched = Fetched(Reply(_went(error), detail=clean(str(error) or type(error).__name__)))
        return replace(fetched, reply=replace(fetched.reply, seconds=loop.time() - began))

    def _trust_for(self, url: httpx.URL) -> None:
        """Trust the system's certificates from the first https address on: reading them takes 20 ms of CPU."""
        if url.scheme == "https" and not self._trusts:
            self._trusts = True
            self._tls.load_default_certs()


async def _take(response: httpx.Response, cap: int) -> Fetched:
    """The body of an answer, raw and capped. That of any other status than 200 only explains it, and may be cut."""
    status = response.status_code
    ok = status == 200
    went = Went.OK if ok else Went.ABSENT if status in ABSENT_STATUS else Went.STATUS
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        detail = clean(f"compressed ({encoding}), which was not asked for")
        return Fetched(Reply(Went.UNREADABLE if ok else went, status, detail=detail))
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > cap:
            return Fetched(Reply(Went.UNREADABLE if ok else went, status, detail=f"more than {cap} bytes"))
    told = {name: clean(value) for name, value in response.headers.items() if name.lower() in HEADERS}
    return Fetched(Reply(went, status), bytes(body), told)


def _went(error: Exception) -> Went:
    """What an exception of httpx means for the server; the operating system's word, where there is one, decides."""
    codes = {e.errno for e in _causes(error) if isinstance(e, OSError) and not isinstance(e, ssl.SSLError)}
    if errno.ECONNREFUSED in codes:
        return Went.REFUSED
    if codes & {errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED}:
        return Went.RESET
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.CloseError):
        return Went.RESET
    if isinstance(error, httpx.RemoteProtocolError):
        return Went.RESET if "disconnected" in str(error) or "closed connection" in str(error) else Went.UNREADABLE
    return Went.ERROR


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception with all that led to it, groups (several addresses tried) taken apart."""
    seen: list[BaseException] = [error]
    for current in seen:
        yield current
        nested = current.exceptions if isinstance(current, BaseExceptionGroup) else ()
        following = (current.__cause__, current.__context__, *nested)
        seen.extend(e for e in following if e is not None and e not in seen)
        if len(seen) > 100:  # a chain is a handful long; this bounds a cycle that a library might build
            return
