"""HTTP against a hostile server: each fault has its name and one clean line, each request ends by its deadline."""

import asyncio
import contextlib
import errno
import gzip
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from factory_watchdog.core.model import Went
from factory_watchdog.world.http import SMALL, Fetched, Http

DEADLINE = 0.25  # seconds of one request in these tests
SLACK = 1.0  # seconds that a loaded machine may be late
LONG = 30.0  # seconds; never reached unless something is broken


class Reader:
    """What comes over one connection; the heads of requests are kept in `heads`."""

    def __init__(self, reader: asyncio.StreamReader, heads: list[str]) -> None:
        self._reader, self._heads = reader, heads

    async def request(self) -> None:
        self._heads.append((await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1"))

    async def until_closed(self) -> None:
        while await self._reader.read(65536):
            pass


Behaviour = Callable[[Reader, asyncio.StreamWriter], Awaitable[None]]


class Hostile:
    """A server of raw bytes: `behaviour` gets each connection; `heads` are the requests' first lines and headers."""

    def __init__(self, behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self.heads: list[str] = []
        self._behaviour, self._tls = behaviour, tls
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        scheme = "https" if self._tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._behaviour(Reader(reader, self.heads), writer)
            await writer.drain()
        writer.close()


def says(content: bytes) -> Behaviour:
    """Answers the first request with these bytes and hangs up."""

    async def behaviour(reader: Reader, writer: asyncio.StreamWriter) -> None:
        await reader.request()
        writer.write(content)

    return behaviour


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def keeps_answering(content: bytes) -> Behaviour:
    async def behaviour(reader: Reader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.request()
            writer.write(content)
            await writer.drain()

    return behaviour


def drips(first: bytes, drop: bytes) -> Behaviour:
    """Sends `first`, then `drop` every 10 ms for ever: each chunk alone is in time."""

    async def behaviour(reader: Reader, writer: asyncio.StreamWriter) -> None:
        await reader.request()
        writer.write(first)
        while True:
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.write(drop)

    return behaviour


def pours(first: bytes, drop: bytes, times: int = 1_000_000) -> Behaviour:
    """Sends `first`, then `drop` as fast as it is taken."""

    async def behaviour(reader: Reader, writer: asyncio.StreamWriter) -> None:
        await reader.request()
        writer.write(first)
        for _ in range(times):
            writer.write(drop)
            await writer.drain()

    return behaviour


def resets(content: bytes) -> Behaviour:
    """Sends these bytes and breaks the connection off with a reset."""

    async def behaviour(reader: Reader, writer: asyncio.StreamWriter) -> None:
        await reader.request()
        writer.write(content)
        await writer.drain()
        await asyncio.sleep(0.02)  # so that what was sent is read before the reset overtakes it
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return behaviour


async def silent(reader: Reader, writer: asyncio.StreamWriter) -> None:
    await reader.until_closed()


OK = b"HTTP/1.1 200 OK\r\n"
TWO_LENGTHS = OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ZIPPED = gzip.compress(b"vllm:num_requests_running 1\n")


def self_signed(folder: Path) -> tuple[str, str]:
    """A certificate for 127.0.0.1 and its key."""
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    how = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    subprocess.run(
        ["openssl", *how.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key],
        check=True,
        capture_output=True,
    )
    return certificate, key


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LONG):
            await work()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def against(
    behaviour: Behaviour, tls: ssl.SSLContext | None = None, tls_ca: str | None = None
) -> AsyncIterator[tuple[Hostile, Http]]:
    async with Hostile(behaviour, tls) as server, Http(tls_ca=tls_ca) as http:
        yield server, http


def fetched(behaviour: Behaviour, deadline: float = DEADLINE, method: str = "GET") -> Fetched:
    """What comes of one request to a server that behaves so."""
    result: list[Fetched] = []

    async def work() -> None:
        async with against(behaviour) as (server, http):
            began = time.monotonic()
            url = f"{server.url}/metrics"
            get = http.get(url, deadline) if method == "GET" else http.post(url, deadline, b"{}", {})
            result.append(await get)
            assert time.monotonic() - began < deadline + SLACK

    run(work)
    return result[0]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("behaviour", "went", "status", "detail"),
    [
        pytest.param(says(b""), Went.RESET, None, "disconnected", id="closed before an answer"),
        pytest.param(resets(b""), Went.RESET, None, "", id="reset before an answer"),
        pytest.param(resets(OK + b"Content-Length: 9\r\n\r\nabc"), Went.RESET, None, "", id="reset in a body"),
        pytest.param(says(OK + b"Content-Length: 9\r\n\r\nabc"), Went.RESET, None, "closed", id="cut body"),
        pytest.param(says(CHUNKED + b"3\r\nabc\r\n"), Went.RESET, None, "closed", id="cut chunked body"),
        pytest.param(says(OK + b"Content-Le"), Went.RESET, None, "disconnected", id="cut headers"),
        pytest.param(silent, Went.TIMEOUT, None, "no whole answer within 0.25 s", id="accepts and says nothing"),
        pytest.param(drips(OK, b"X"), Went.TIMEOUT, None, "no whole answer", id="slow headers"),
        pytest.param(drips(OK, b"X-A: b\r\n"), Went.TIMEOUT, None, "no whole answer", id="endless slow headers"),
        pytest.param(drips(OK + b"Content-Length: 9999\r\n\r\n", b"x"), Went.TIMEOUT, None, "no whole", id="drip"),
        pytest.param(drips(OK + b"\r\n", b"#\n"), Went.TIMEOUT, None, "no whole answer", id="drip without length"),
        pytest.param(drips(b"HTTP/1.1 100 Continue\r\n\r\n", b""), Went.TIMEOUT, None, "no whole", id="only 100"),
        pytest.param(
            drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), Went.TIMEOUT, None, "no whole", id="one 100 after another"
        ),
        pytest.param(pours(OK, b"X-Header: yes\r\n" * 999), Went.UNREADABLE, None, "", id="huge headers"),
        pytest.param(pours(OK + b"X: ", b"x" * 65536), Went.UNREADABLE, None, "", id="one huge header"),
        pytest.param(pours(OK + b"\r\n", b"x" * 65536), Went.UNREADABLE, 200, f"more than {SMALL} bytes", id="endless"),
        pytest.param(says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), Went.UNREADABLE, None, "", id="not HTTP"),
        pytest.param(says(b"\x15\x03\x01\x00\x02\x02F"), Went.UNREADABLE, None, "", id="TLS where plain was meant"),
        pytest.param(says(CHUNKED + b"zz\r\nabc\r\n"), Went.UNREADABLE, None, "", id="chunked nonsense"),
        pytest.param(says(CHUNKED + b"-3\r\nabc\r\n"), Went.UNREADABLE, None, "", id="chunk of negative length"),
        pytest.param(says(OK + b"Content-Length: -1\r\n\r\n"), Went.UNREADABLE, None, "", id="negative length"),
        pytest.param(
            says(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), Went.UNREADABLE, None, "", id="two"
        ),
        pytest.param(says(OK + b"no colon\r\n\r\n"), Went.UNREADABLE, None, "", id="a header without a colon"),
        pytest.param(
            says(answer("200 OK", ZIPPED, "Content-Encoding: gzip")), Went.UNREADABLE, 200, "(gzip)", id="compressed"
        ),
        pytest.param(
            says(answer("200 OK", b"x", "Content-Encoding: \x1b[2J|")), Went.UNREADABLE, 200, "", id="odd encoding"
        ),
        pytest.param(says(answer("200 OK", b"x", "Content-Encoding: a|b")), Went.UNREADABLE, 200, "(a b)", id="bar"),
    ],
)
def test_every_fault_has_its_name_and_one_clean_line(
    behaviour: Behaviour, went: Went, status: int | None, detail: str, method: str
) -> None:
    reply = fetched(behaviour, method=method).reply
    assert (reply.went, reply.status) == (went, status)
    assert detail in reply.detail
    assert reply.detail.isprintable()
    assert reply.detail
    assert "|" not in reply.detail
    assert 0 < reply.seconds < DEADLINE + SLACK


@pytest.mark.parametrize(
    ("content", "went", "status", "body"),
    [
        pytest.param(answer("200 OK", b"# page\n"), Went.OK, 200, b"# page\n", id="200"),
        pytest.param(answer("200", b"x"), Went.OK, 200, b"x", id="without a reason phrase"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nold", Went.OK, 200, b"old", id="HTTP/1.0"),
        pytest.param(answer("200 OK", b"x", "Content-Encoding: Identity"), Went.OK, 200, b"x", id="identity"),
        pytest.param(CHUNKED + b"3;x=y\r\nabc\r\n0\r\n\r\n", Went.OK, 200, b"abc", id="chunked"),
        pytest.param(answer("200 OK", b"\xff\xfe"), Went.OK, 200, b"\xff\xfe", id="not UTF-8: bytes are kept"),
        pytest.param(answer("200 OK", b"<html>", "Content-Type: text/html"), Went.OK, 200, b"<html>", id="HTML"),
        pytest.param(
            b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer("200 OK", b"x"), Went.OK, 200, b"x", id="a 103 before it"
        ),
        pytest.param(answer("201 Created", b"x"), Went.STATUS, 201, b"x", id="201"),
        pytest.param(answer("204 No Content"), Went.STATUS, 204, b"", id="204"),
        pytest.param(answer("401 Unauthorized", b"key"), Went.STATUS, 401, b"key", id="401"),
        pytest.param(answer("404 Not Found", b"no"), Went.ABSENT, 404, b"no", id="404"),
        pytest.param(answer("405 Method Not Allowed"), Went.ABSENT, 405, b"", id="405"),
        pytest.param(answer("501 Not Implemented"), Went.ABSENT, 501, b"", id="501"),
        pytest.param(answer("500 Oops", b"Traceback"), Went.STATUS, 500, b"Traceback", id="500"),
        pytest.param(answer("503 Busy"), Went.STATUS, 503, b"", id="503"),
        pytest.param(answer("503 B", ZIPPED, "Content-Encoding: gzip"), Went.STATUS, 503, b"", id="503 compressed"),
        pytest.param(answer("404 N", ZIPPED, "Content-Encoding: gzip"), Went.ABSENT, 404, b"", id="404 compressed"),
        pytest.param(answer("503 B", b"x" * (SMALL + 1)), Went.STATUS, 503, b"", id="503 with a huge page"),
        pytest.param(answer("999 Odd"), Went.STATUS, 999, b"", id="999"),
    ],
)
def test_an_answer_is_told_by_its_status(content: bytes, went: Went, status: int, body: bytes) -> None:
    result = fetched(says(content), LONG)
    assert (result.reply.went, result.reply.status, result.body) == (went, status, body)


@pytest.mark.parametrize("place", ["/elsewhere", "http://127.0.0.1:1/", "http://[", "\x7f", "ftp://x"])
def test_a_redirect_is_not_followed(place: str) -> None:
    async def work() -> None:
        async with against(keeps_answering(answer("302 Found", b"", f"Location: {place}"))) as (server, http):
            reply = (await http.get(f"{server.url}/metrics", LONG)).reply
            assert (reply.went, reply.status) == (Went.STATUS, 302)
            assert len(server.heads) == 1

    run(work)


def test_a_cookie_is_not_kept() -> None:
    async def work() -> None:
        async with against(keeps_answering(answer("200 OK", b"", "Set-Cookie: a=b; Path=/"))) as (server, http):
            for _ in range(2):
                await http.get(f"{server.url}/metrics", LONG)
            assert "cookie" not in server.heads[1].lower()

    run(work)


def test_nobody_listens() -> None:
    async def work() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port
            async with Http() as http:
                for host in ("127.0.0.1", "localhost"):
                    reply = (await http.get(f"http://{host}:{taken.getsockname()[1]}/", LONG)).reply
                    assert reply.went is Went.REFUSED
                    assert reply.detail

    run(work)


def test_a_full_queue_of_connections_is_silence() -> None:
    async def work() -> None:
        with socket.socket() as listener, contextlib.ExitStack() as waiting:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(2):  # what the queue of length 0 takes
                client = waiting.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(listener.getsockname())
            async with Http() as http:
                reply = (await http.get(f"http://127.0.0.1:{listener.getsockname()[1]}/", DEADLINE)).reply
                assert reply.went is Went.TIMEOUT
                assert reply.seconds < DEADLINE + SLACK

    run(work)


@pytest.mark.parametrize(
    "url",
    [
        "http://no-such-host.invalid/",
        "http://127.0.0.1:99999/",
        "http://[::1/",
        "http://",
        "gopher://127.0.0.1/",
        "http://\x00/",
        "http://" + "a" * 300 + "/",
        "http://xn--zzzzzzzzz--/",
    ],
)
def test_a_bad_address_is_an_error_and_no_exception(url: str) -> None:
    async def work() -> None:
        async with Http() as http:
            reply = (await http.get(url, 5.0)).reply
            assert reply.went in (Went.ERROR, Went.TIMEOUT)
            assert reply.detail
            assert reply.detail.isprintable()

    run(work)


def test_no_time_left_is_a_timeout() -> None:
    assert fetched(says(answer("200 OK")), 0.0).reply.went is Went.TIMEOUT


def test_memory_is_bounded_whatever_is_sent() -> None:
    mebibyte = bytes(1 << 20)

    async def work() -> None:
        async with against(pours(OK + b"\r\n", mebibyte, 50)) as (server, http):
            tracemalloc.start()
            try:
                result = await http.get(f"{server.url}/metrics", LONG, cap=1 << 20)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert result.reply.went is Went.UNREADABLE
            assert result.body == b""
            assert peak < 8 << 20

    run(work)


def test_a_body_of_very_many_chunks_is_taken_up_to_the_cap() -> None:
    reply = fetched(pours(CHUNKED, b"1\r\nx\r\n" * 9999), LONG).reply
    assert (reply.went, reply.status) == (Went.UNREADABLE, 200)


def test_a_body_as_long_as_the_cap_is_taken() -> None:
    async def work() -> None:
        async with against(keeps_answering(answer("200 OK", b"x" * 1000))) as (server, http):
            assert len((await http.get(server.url, LONG, cap=1000)).body) == 1000
            assert (await http.get(server.url, LONG, cap=999)).reply.went is Went.UNREADABLE

    run(work)


def test_polls_use_one_connection_and_say_who_they_are() -> None:
    async def work() -> None:
        async with against(keeps_answering(answer("200 OK", b"x"))) as (server, http):
            for _ in range(5):
                assert (await http.get(f"{server.url}/metrics", LONG)).reply.went is Went.OK
            assert server.connections == 1
            for head in server.heads:
                assert head.startswith("GET /metrics HTTP/1.1\r\n")
                assert "\r\nUser-Agent: factory-watchdog\r\n" in head
                assert "\r\nAccept-Encoding: identity\r\n" in head

    run(work)


def test_a_connection_that_was_closed_between_two_polls_is_no_fault() -> None:
    async def once(reader: Reader, writer: asyncio.StreamWriter) -> None:
        await reader.request()
        writer.write(answer("200 OK", b"x"))

    async def work() -> None:
        async with against(once) as (server, http):
            for _ in range(3):
                assert (await http.get(f"{server.url}/metrics", LONG)).reply.went is Went.OK
            assert len(server.heads) == 3

    run(work)


def test_a_connection_that_is_closed_under_a_request_is_tried_once_more() -> None:
    """The server's patience ends in the moment in which the next poll begins."""

    async def twice(reader: Reader, writer: asyncio.StreamWriter) -> None:
        await reader.request()
        writer.write(answer("200 OK", b"x"))
        await writer.drain()
        await reader.request()

    async def work() -> None:
        async with against(twice) as (server, http):
            for _ in range(2):
                assert (await http.get(f"{server.url}/metrics", LONG)).reply.went is Went.OK
            assert (len(server.heads), server.connections) == (3, 2)

    run(work)


def test_a_question_is_never_sent_twice() -> None:
    async def work() -> None:
        async with against(says(b"")) as (server, http):
            assert (await http.post(server.url, LONG, b"{}", {})).reply.went is Went.RESET
            assert len(server.heads) == 1
            assert (await http.get(server.url, LONG)).reply.went is Went.RESET
            assert len(server.heads) == 3

    run(work)


def test_a_question_carries_its_body_and_headers() -> None:
    async def work() -> None:
        async with against(keeps_answering(answer("200 OK", b"{}"))) as (server, http):
            headers = {"Content-Type": "application/json", "Authorization": "Bearer k"}
            assert (await http.post(f"{server.url}/v1/x", LONG, b"", headers)).body == b"{}"
            head = server.heads[0].lower()
            assert head.count("content-type: application/json") == 1
            assert "authorization: bearer k" in head

    run(work)


def test_requests_that_hang_do_not_use_up_the_connections() -> None:
    async def work() -> None:
        async with against(silent) as (server, http):
            for _ in range(3):
                hanging = [http.get(server.url, 0.05) for _ in range(8)]
                assert {f.reply.went for f in await asyncio.gather(*hanging)} == {Went.TIMEOUT}
            assert server.connections == 24

    run(work)


def test_no_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert fetched(says(answer("200 OK", b"x")), LONG).reply.went is Went.OK


def test_cancelling_ends_a_request_at_once() -> None:
    async def work() -> None:
        async with against(silent) as (server, http):
            asking = asyncio.create_task(http.get(server.url, LONG))
            while not server.connections:  # noqa: ASYNC110  a number is no event
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    run(work)


@pytest.fixture(scope="session")
def certificate(need: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    need(shutil.which("openssl"), "openssl makes the certificate")
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("trusted", ["no", "tls_ca", "system"])
def test_tls_needs_a_certificate_that_is_trusted(
    certificate: tuple[str, str], trusted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*certificate)
    if trusted == "system":  # OpenSSL's own way to say where the system's certificates are
        monkeypatch.setenv("SSL_CERT_FILE", certificate[0])

    async def work() -> None:
        tls_ca = certificate[0] if trusted == "tls_ca" else None
        async with against(keeps_answering(answer("200 OK", b"x")), server_side, tls_ca) as (server, http):
            reply = (await http.get(server.url, LONG)).reply
            assert reply.went is (Went.ERROR if trusted == "no" else Went.OK)
            assert trusted != "no" or "self-signed certificate" in reply.detail
            # The certificate is for 127.0.0.1 and for no other name of it.
            other = (await http.get(server.url.replace("127.0.0.1", "localhost"), LONG)).reply
            assert other.went is Went.ERROR

    run(work)


@pytest.mark.parametrize("behaviour", [silent, says(answer("200 OK", b"x"))], ids=["silent", "plain HTTP"])
def test_tls_to_a_server_that_has_none(behaviour: Behaviour) -> None:
    async def work() -> None:
        async with against(behaviour) as (server, http):
            reply = (await http.get(server.url.replace("http:", "https:"), DEADLINE)).reply
            assert reply.went in (Went.TIMEOUT, Went.ERROR, Went.RESET)
            assert reply.detail
            assert reply.seconds < DEADLINE + SLACK

    run(work)


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
        Http(tls_ca=str(tmp_path / "missing"))
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    with pytest.raises(ssl.SSLError):
        Http(tls_ca=str(nonsense))


class Searched:
    """Finds no module, and keeps the names of those that are searched for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, *_: object) -> None:
        self.names.append(name)


def test_a_request_searches_for_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the first one; what httpcore would do without is searched for anew in each."""

    async def work() -> None:
        async with against(keeps_answering(answer("200 OK", b"x"))) as (server, http):
            await http.get(server.url, LONG)
            searched = Searched()
            monkeypatch.setattr(sys, "meta_path", [searched, *sys.meta_path])
            assert (await http.get(server.url, LONG)).reply.went is Went.OK
            assert searched.names == []

    run(work)


SNIFFIO = "def current_async_library():\n    asked.append(1)\n    return 'asyncio'\nasked = []\n"
ASKS = """
import asyncio, sys
from factory_watchdog.world.http import Http
async def work():
    async with Http() as http:
        print((await http.get(sys.argv[1], 30.0)).reply.went, bool(sys.modules["sniffio"].asked))
asyncio.run(work())
"""


def test_sniffio_is_used_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "sniffio.py").write_text(SNIFFIO)
    (tmp_path / "asks.py").write_text(ASKS)  # beside it: a program's own folder is searched first

    async def work() -> None:
        async with against(keeps_answering(answer("200 OK", b"x"))) as (server, _):
            program = await asyncio.create_subprocess_exec(
                sys.executable, str(tmp_path / "asks.py"), server.url, stdout=asyncio.subprocess.PIPE
            )
            told, _ = await program.communicate()
            assert told.decode().split() == ["ok", "True"]

    run(work)
