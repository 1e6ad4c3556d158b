"""The simulated server over real sockets, and as a process of its own."""

import asyncio
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest

from factory_watchdog.simulate import scenario
from factory_watchdog.simulate.real import RealServer, clock
from factory_watchdog.simulate.server import Server

DEADLINE = 20.0  # seconds; never reached unless something is broken
HOUR = '[[phase]]\nfor = "1h"\n'


def serve(work: Callable[[RealServer, httpx.AsyncClient], Awaitable[None]], text: str = HOUR) -> None:
    """Do `work` with a real server and a client."""

    async def main() -> None:
        server = Server(scenario.loads(text), clock(time.monotonic))
        async with (
            asyncio.timeout(DEADLINE),
            RealServer(server, control_port=0) as real,
            httpx.AsyncClient(base_url=real.url, trust_env=False, timeout=DEADLINE) as client,
        ):
            await work(real, client)

    asyncio.run(main())


async def change(real: RealServer, **keys: object) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(f"http://127.0.0.1:{real.control_port}/_sim", json=keys)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  numbers are no events
        await asyncio.sleep(0)


def test_one_connection_serves_many_requests() -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        first = await client.get("/metrics")
        assert first.status_code == 200
        assert first.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"vllm:num_requests_running" in first.content
        local = first.extensions["network_stream"].get_extra_info("client_addr")
        for path, status in (("/health", 200), ("/nowhere", 404), ("/v1/models?x=1", 200)):
            response = await client.get(path)
            assert response.status_code == status
            assert response.extensions["network_stream"].get_extra_info("client_addr") == local

    serve(work)


def test_a_question_is_answered_and_counted() -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        before = real.server.numbers()[0].steps
        response = await client.post("/v1/chat/completions", json={"max_tokens": 1})
        assert response.json()["usage"]["completion_tokens"] == 1
        await until(lambda: real.server.numbers()[0].steps == before + 1)

    serve(work, f'{HOUR}question = "ok 0.01s"')


def test_a_silent_server_notices_that_its_client_has_gone() -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json={"max_tokens": 1}))
        await until(lambda: real.server.numbers()[0].running == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: real.server.numbers()[0].running == 0)

    serve(work, f'{HOUR}question = "timeout"')


def test_silence_ends_by_the_clients_own_patience() -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/metrics", timeout=0.05)
        assert (await client.get("/health")).status_code == 200

    serve(work, f'{HOUR}metrics = "timeout"')


@pytest.mark.parametrize("words", ["reset", "refused"])
def test_one_endpoint_is_broken_off(words: str) -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await client.get("/metrics")
        assert (await client.get("/health")).status_code == 200

    serve(work, f'{HOUR}metrics = "{words}"')


def test_a_port_that_refuses_is_closed_and_can_be_opened_again() -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        assert (await client.get("/health")).status_code == 200
        assert (await change(real, health="refused", metrics="refused")).status_code == 200
        await real.tend()
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
        await change(real, health="ok", metrics="ok")
        await asyncio.gather(*(real.tend() for _ in range(3)))
        assert (await client.get("/health")).status_code == 200

    serve(work)


def test_the_port_follows_the_script_by_itself() -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
        while True:
            try:
                assert (await client.get("/health")).status_code == 200
            except httpx.ConnectError:
                await asyncio.sleep(0.01)
            else:
                return

    text = '[[phase]]\nfor = "0.3s"\nhealth = "refused"\nmetrics = "refused"\n[[phase]]\nfor = "1h"\nhealth = "ok"'
    serve(work, text)


def test_changes_of_the_present_on_the_servers_own_port() -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        assert (await client.post("/_sim", json={"running": 4, "steps": 0})).status_code == 200
        assert real.server.numbers()[0].running == 4
        wrong = await client.post("/_sim", json={"running": -1, "stepz": 0})
        assert wrong.status_code == 400
        assert wrong.text == (
            "request: running = -1: must be a number, 0 or more\nrequest: stepz = 0: unknown key; did you mean steps?\n"
        )
        assert (await client.post("/_sim", content=b"[1]")).text == "must be a JSON object with keys of a phase\n"
        assert (await client.post("/_sim", content=b"{")).status_code == 400
        assert real.server.numbers()[0].running == 4

    serve(work)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"GET /health HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"GET /" + b"x" * 200_000,
        b"POST /_sim HTTP/1.1\r\ncontent-length: 9\r\n\r\n{",
    ],
    ids=["no HTTP", "negative length", "no length", "endless", "cut off"],
)
def test_what_is_not_http_ends_its_connection_and_nothing_else(sent: bytes) -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", real.port)
        writer.write(sent)
        writer.write_eof()
        try:
            assert await reader.read() == b""
        except ConnectionError:
            pass
        finally:
            writer.close()
        assert (await client.get("/health")).status_code == 200

    serve(work)


def test_a_body_that_is_too_long_is_not_waited_for() -> None:
    async def work(real: RealServer, client: httpx.AsyncClient) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", real.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 9999999999\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        assert (await client.get("/health")).status_code == 200

    serve(work)


# --- as a process ----------------------------------------------------------------------------------------------------


class Process:
    """`python -m factory_watchdog.simulate`, with a socket that it notifies."""

    def __init__(self, folder: pathlib.Path, *options: str) -> None:
        self.port, self.control = free_port(), free_port()
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.settimeout(DEADLINE)
        self.notified.bind(str(folder / "notify"))
        ports = ["--port", str(self.port), "--control-port", str(self.control)]
        self.child = subprocess.Popen(
            [sys.executable, "-m", "factory_watchdog.simulate", *ports, *options],
            env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify")},
            stderr=subprocess.PIPE,
        )

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", trust_env=False)

    def end(self) -> None:
        self.notified.close()
        self.child.kill()
        self.child.communicate(timeout=DEADLINE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def process(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    started = Process(tmp_path, *getattr(request, "param", []))
    yield started
    started.end()


@pytest.mark.parametrize("process", [["--load-time", "0.2s"]], indirect=True)
def test_a_unit_refuses_while_it_loads_then_is_ready_and_ends_on_sigterm(process: Process) -> None:
    before = time.time()
    assert process.notified.recv(100) == b"READY=1"
    assert process.get("/health").status_code == 200
    page = process.get("/metrics").text
    started = next(line for line in page.splitlines() if line.startswith("process_start_time_seconds "))
    assert abs(float(started.split()[1]) - before) < DEADLINE
    assert 'vllm:generation_tokens_total{engine="0",model_name="simulated"} 0.0' in page
    process.child.send_signal(signal.SIGTERM)
    assert process.child.wait(DEADLINE) == 0


@pytest.mark.parametrize("process", [["--load-time", "1h"]], indirect=True)
def test_a_unit_can_be_stopped_while_it_loads(process: Process) -> None:
    while True:
        try:
            httpx.post(f"http://127.0.0.1:{process.control}/_sim", json={}, trust_env=False)
        except httpx.ConnectError:
            continue
        break
    with pytest.raises(httpx.ConnectError):
        process.get("/health")
    process.child.send_signal(signal.SIGTERM)
    assert process.child.wait(DEADLINE) == 0
    process.notified.setblocking(False)
    with pytest.raises(BlockingIOError):
        process.notified.recv(100)


@pytest.mark.parametrize("process", [["--ignore-term"]], indirect=True)
def test_a_stop_that_never_ends_and_a_crash(process: Process) -> None:
    assert process.notified.recv(100) == b"READY=1"
    process.child.send_signal(signal.SIGTERM)
    assert process.get("/health").status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{process.control}/_sim", json={"crash": True}, trust_env=False)
    assert process.child.wait(DEADLINE) == 1


def test_a_scenario_plays_and_a_wrong_one_ends_with_2(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f"{HOUR}running = 7", encoding="utf-8")
    process = Process(tmp_path, "--scenario", str(file))
    try:
        assert process.notified.recv(100) == b"READY=1"
        assert 'vllm:num_requests_running{engine="0",model_name="simulated"} 7.0' in process.get("/metrics").text
        file.write_text(f"{HOUR}running = -7", encoding="utf-8")
        command = [sys.executable, "-m", "factory_watchdog.simulate", "--port", "1", "--scenario", str(file)]
        wrong = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert (wrong.returncode, wrong.stderr) == (2, f"{file}: phase 1: running = -7: must be a number, 0 or more\n")
    finally:
        process.end()


def test_a_port_that_is_taken(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "factory_watchdog.simulate", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"cannot serve on port {port}: ")


def test_the_simulated_server_brings_neither_the_bus_nor_the_command_line_with_it() -> None:
    heavy = ("jeepney", "typer", "httpx", "structlog", "sqlite3")
    modules = ", ".join(f"factory_watchdog.simulate.{name}" for name in ("real", "manager", "clock"))
    code = f"import json, sys, {modules}; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == []
