"""The control socket: a real server, real clients, and what hostile ones get."""
# ruff: noqa: ASYNC110, ASYNC240 - tests look at the server's callers in turn with it, and their files are small

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from factory_watchdog.errors import ControlError, NoDaemonError, WatchdogError
from factory_watchdog.world import control, control_server
from factory_watchdog.world.control_server import Caller, ControlServer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / control.SOCKET


async def echo(request: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    match request["command"]:
        case "refuse":
            raise WatchdogError("no backend is called spark9; did you mean spark1?")
        case "break":
            raise KeyError("of ours")
        case "sleep":
            await asyncio.sleep(3600)
        case "big":
            return {"state": "x" * request.get("size", 4 << 20)}
    return {"request": dict(request), "pid": caller.pid, "uid": caller.uid}


def served(path: Path, test: Callable[[ControlServer], Awaitable[None]]) -> list[str]:
    """Run `test` beside a server; what the server reported."""
    reports: list[str] = []

    async def main() -> None:
        server = ControlServer(path, echo, reports.append)
        await server.start()
        try:
            async with asyncio.timeout(20):
                await test(server)
        finally:
            await server.close()

    asyncio.run(main())
    return reports


async def call(path: Path, request: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:  # noqa: ASYNC109
    return await asyncio.to_thread(control.call, path, request, timeout)


def exchange(path: Path, content: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
    return bytes(received)


async def raw(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The replies to bytes that are sent as they are."""
    received = await asyncio.to_thread(exchange, path, content)
    return [json.loads(line) for line in received.splitlines()]


def test_a_request_and_its_reply(path: Path) -> None:
    async def test(_: ControlServer) -> None:
        reply = await call(path, {"command": "maintenance", "name": "spark1", "seconds": 60.5})
        assert reply == {
            "ok": True,
            "request": {"command": "maintenance", "name": "spark1", "seconds": 60.5},
            "pid": os.getpid(),
            "uid": os.getuid(),
        }
        assert len((await call(path, {"command": "big"}))["state"]) == 4 << 20

    assert served(path, test) == []
    assert not path.exists()


def test_a_reply_is_whole_for_a_caller_that_closed_its_half_and_reads_late(path: Path) -> None:
    async def test(_: ControlServer) -> None:
        for size in range(180_000, 320_000, 8_000):  # somewhere here the kernel takes all but a little
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(path))
                caller.sendall(json.dumps({"command": "big", "size": size}).encode() + b"\n")
                caller.shutdown(socket.SHUT_WR)
                for _ in range(20):
                    await asyncio.sleep(0)
                with caller.makefile("rb") as stream:
                    reply = await asyncio.to_thread(stream.read)
                assert len(json.loads(reply)["state"]) == size

    assert served(path, test) == []


def test_errors_are_replies(path: Path) -> None:
    async def test(_: ControlServer) -> None:
        error = "no backend is called spark9; did you mean spark1?"
        assert await call(path, {"command": "refuse"}) == {"ok": False, "error": error}
        assert await call(path, {"command": "break"}) == {"ok": False, "error": "a fault in the daemon: KeyError"}
        assert (await call(path, {"command": "status"}))["ok"]

    assert served(path, test) == ["control request 'break' failed: KeyError('of ours')"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b'"status"',
        b"not json",
        b'{"command": 1}',
        b'{"command": "\xff"}',
        b"[" * 50_000,
        b'{"command": ' + b"9" * 10_000 + b"}",
        b"\0\0\0",
    ],
    ids=lambda line: line[:12].decode(errors="replace"),
)
def test_what_is_no_request_gets_an_error_and_the_next_one_a_reply(path: Path, line: bytes) -> None:
    async def test(_: ControlServer) -> None:
        bad, good = await raw(path, line + b'\n{"command": "status"}\n')
        assert bad["error"] == 'a request must be a JSON object on one line, with "command": "..."'
        assert good["ok"]

    assert served(path, test) == []


def test_a_line_without_an_end_is_no_request(path: Path) -> None:
    async def test(_: ControlServer) -> None:
        assert await raw(path, b'{"command": "status"}') == []

    served(path, test)


def test_a_line_without_bounds_is_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "LONGEST_LINE", 1000)

    async def test(_: ControlServer) -> None:
        (reply,) = await raw(path, b"x" * 2000 + b'\n{"command": "status"}\n')
        assert reply["error"] == "a request must be shorter than 1000 bytes"
        assert (await call(path, {"command": "status"}))["ok"]

    assert served(path, test) == []


def test_callers_that_say_nothing_are_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "LINE_TIME", 0.05)

    async def test(_: ControlServer) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b""
        writer.transport.abort()

    assert served(path, test) == []


def test_callers_that_take_nothing_are_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "LINE_TIME", 0.2)

    async def test(server: ControlServer) -> None:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))
            caller.sendall(b'{"command": "big"}\n')
            while not server._callers:
                await asyncio.sleep(0)
            await asyncio.gather(*server._callers)

    assert served(path, test) == []


def test_handling_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "HANDLING_TIME", 0.05)

    async def test(_: ControlServer) -> None:
        reply = await call(path, {"command": "sleep"})
        assert reply == {"ok": False, "error": "the daemon did not get to it in time"}

    assert served(path, test) == []


def test_connections_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "CONNECTIONS", 2)

    async def test(server: ControlServer) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                connection.connect(str(path))
            while len(server._callers) < 2:
                await asyncio.sleep(0)
            assert await raw(path, b"") == [{"ok": False, "error": "too many connections"}]
        while server._callers:
            await asyncio.sleep(0)
        assert (await call(path, {"command": "status"}))["ok"]

    assert served(path, test) == []


def test_closing_ends_requests_under_way(path: Path) -> None:
    async def test(server: ControlServer) -> None:
        waiting = asyncio.create_task(raw(path, b'{"command": "sleep"}\n'))
        while not server._callers:
            await asyncio.sleep(0)
        await server.close()
        assert await waiting == []

    assert served(path, test) == []


# --- the socket -------------------------------------------------------------------------------------------------------


def test_owner_and_group_may_connect(path: Path) -> None:
    async def test(_: ControlServer) -> None:
        assert path.stat().st_mode & 0o777 == 0o660

    served(path, test)


def test_the_caller_is_who_the_kernel_says(path: Path, need: Callable[[object, str], None]) -> None:
    need(os.geteuid() == 0 and shutil.which("setpriv"), "root and setpriv are needed to become another user")

    async def test(_: ControlServer) -> None:
        path.chmod(0o666)
        for folder in list(path.parents)[:3]:
            folder.chmod(folder.stat().st_mode | 0o055)
        program = (
            "import os; from pathlib import Path; from factory_watchdog.world import control;"
            f"reply = control.call(Path({str(path)!r}), {{'command': 'status', 'uid': 0}}, 5);"
            "print(reply['uid'], reply['pid'] == os.getpid())"
        )
        command = ("setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-B", "-c", program)
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("65534 True\n", "")

    served(path, test)


def test_a_stale_socket_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def test(_: ControlServer) -> None:
        assert (await call(path, {"command": "status"}))["ok"]

    served(path, test)


def test_a_second_daemon_is_refused_and_harms_nothing(path: Path) -> None:
    async def test(_: ControlServer) -> None:
        second = ControlServer(path, echo, print)
        with pytest.raises(ControlError, match="another daemon answers"):
            await second.start()
        await second.close()
        assert (await call(path, {"command": "status"}))["ok"]

    served(path, test)


def test_a_socket_of_somebody_else_is_not_removed(path: Path) -> None:
    async def test(server: ControlServer) -> None:
        path.unlink()
        path.touch()
        await server.close()
        assert path.exists()

    served(path, test)


@pytest.mark.parametrize(
    ("below", "words"),
    [("no/folder", "No such file"), ("x" * 120, "too long"), ("file", "not a socket")],
)
def test_sockets_that_cannot_be_opened(tmp_path: Path, below: str, words: str) -> None:
    (tmp_path / "file").touch()

    async def main() -> None:
        with pytest.raises(ControlError, match=words):
            await ControlServer(tmp_path / below, echo, print).start()

    asyncio.run(main())
    assert (tmp_path / "file").exists()


# --- the client -------------------------------------------------------------------------------------------------------


def test_no_daemon(path: Path) -> None:
    with pytest.raises(NoDaemonError, match="no daemon answers at"):
        control.call(path, {"command": "status"}, 1)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(NoDaemonError, match="no daemon answers at"):
        control.call(path, {"command": "status"}, 1)
    with pytest.raises(ControlError, match="too long"):
        control.call(path.with_name("x" * 120), {"command": "status"}, 1)


@pytest.mark.parametrize("drip", [b"", b" "], ids=["silent", "dripping"])
def test_a_daemon_that_does_not_answer_in_time(path: Path, drip: bytes) -> None:
    program = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen();"
        "print(flush=True); c, _ = s.accept()\n"
        f"while True: c.send({drip!r}); time.sleep(0.01)"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        began = time.monotonic()
        with pytest.raises(NoDaemonError, match=r"did not answer within 0\.2 s"):
            control.call(path, {"command": "status"}, 0.2)
        assert time.monotonic() - began < 2
        daemon.kill()


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"", "without a whole reply"),
        (b'{"ok": true}', "without a whole reply"),
        (b"hello\n", "no daemon of ours"),
        (b"[]\n", "no daemon of ours"),
        (b'{"ok": 1}\n', "no daemon of ours"),
    ],
)
def test_replies_that_are_none(path: Path, reply: bytes, words: str) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(reply)
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_unix_server(answer, path):
            with pytest.raises(ControlError, match=words):
                await call(path, {"command": "status"})

    asyncio.run(main())


def test_the_client_imports_little() -> None:
    program = (
        "import sys; import factory_watchdog.world.control; print('asyncio' in sys.modules, 'msgspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
