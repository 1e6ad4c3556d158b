"""What the tests of the command line share: a simulated server, a daemon that says what it is told, real processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from factory_watchdog.cli.app import run_command_line
from factory_watchdog.simulate import scenario
from factory_watchdog.simulate.real import RealServer, clock
from factory_watchdog.simulate.server import Server
from factory_watchdog.world.control import SOCKET
from factory_watchdog.world.control_server import ControlServer

LONG = 30.0  # seconds; never reached unless something is broken
PROGRAM = (sys.executable, "-m", "factory_watchdog")
IDLE = '[[phase]]\nfor = "1h"\nquestion = "ok 10ms"\n'


class InThread:
    """An event loop in a thread of its own, in which parts of the world run beside the command that is tested."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LONG)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LONG)
        self._loop.close()


@pytest.fixture
def beside() -> Iterator[InThread]:
    thread = InThread()
    yield thread
    thread.close()


class Served:
    """A simulated server on a real port; `paths` are what it was asked for."""

    def __init__(self, beside: InThread, text: str) -> None:
        self._beside = beside
        self._change = scenario.present(1)
        self.server = Server(scenario.loads(text), clock(time.monotonic))
        self.paths: list[str] = []
        respond = self.server.respond

        def recorded(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Any:
            self.paths.append(path)
            return respond(method, path, headers, body)

        self.server.respond = recorded  # type: ignore[method-assign]
        self._real = RealServer(self.server)
        beside.run(self._real.start())

    @property
    def url(self) -> str:
        return self._real.url

    @property
    def questions(self) -> int:
        return len([path for path in self.paths if path.startswith("/v1/") and path != "/v1/models"])

    def change(self, **keys: object) -> None:
        async def now() -> None:
            self.server.change(self._change(keys))
            await self._real.tend()

        self._beside.run(now())

    def close(self) -> None:
        self._beside.run(self._real.close())


@pytest.fixture
def serve(beside: InThread) -> Iterator[Callable[..., Served]]:
    """Serve a scenario, idle for an hour if none is given."""
    with contextlib.ExitStack() as stack:

        def start(text: str = IDLE) -> Served:
            served = Served(beside, text)
            stack.callback(served.close)
            return served

        yield start


@dataclasses.dataclass
class Configured:
    """A configuration file with its folders."""

    path: Path
    runtime: Path
    state: Path

    def write(self, backends: str, daemon: str = 'interval = "250ms"') -> Self:
        folders = f'runtime_dir = "{self.runtime}"\nstate_dir = "{self.state}"\n'
        self.path.write_text(f"[daemon]\n{folders}{daemon}\n{backends}")
        return self

    def watching(self, url: str, *, name: str = "sim", **settings: object) -> Self:
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        return self.write(f'[[backend]]\nname = "{name}"\nurl = "{url}"\n{lines}')


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configured:
    for name in ("run", "state", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home/state"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # root has a fixed place for state files
    return Configured(tmp_path / "config.toml", tmp_path / "run", tmp_path / "state").watching("http://127.0.0.1:1")


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command in this process."""

    def run(*arguments: object) -> Ended:
        code = run_command_line([str(a) for a in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def process() -> Callable[..., Ended]:
    """Run a command as a process of its own."""

    def run(*arguments: object, **options: Any) -> Ended:
        given = {"capture_output": True, "text": True, "timeout": LONG, **options}
        done = subprocess.run([*PROGRAM, *map(str, arguments)], check=False, **given)
        return Ended(done.returncode, done.stdout or "", done.stderr or "")

    return run


@pytest.fixture
def says(configured: Configured, beside: InThread) -> Iterator[Callable[[Sequence[dict[str, Any]]], None]]:
    """A daemon at the configured place whose `status` is what it is told."""
    told: list[dict[str, Any]] = []

    async def handle(request: Mapping[str, Any], _caller: object) -> dict[str, Any]:
        return {"backends": told}

    server = ControlServer(configured.runtime / SOCKET, handle, lambda _: None)
    beside.run(server.start())

    def say(backends: Sequence[dict[str, Any]]) -> None:
        told[:] = backends

    yield say
    beside.run(server.close())


class Running:
    """A real daemon in a process of its own."""

    def __init__(self, configured: Configured, program: Sequence[str]) -> None:
        self.log = configured.path.with_name("log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*program, "run", "--config", str(configured.path)], stderr=log)
        try:
            self.until(lambda: "started" in self.words())
        except BaseException:
            self.process.kill()
            self.process.wait(LONG)
            raise

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def words(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until something is so, for as long as the daemon runs."""
        ends = time.monotonic() + LONG
        while not holds():
            assert time.monotonic() < ends, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(LONG)


@pytest.fixture
def daemon(configured: Configured) -> Iterator[Callable[..., Running]]:
    """Start a real daemon by the configuration as it is now."""
    with contextlib.ExitStack() as stack:

        def start(program: Sequence[str] = PROGRAM) -> Running:
            running = Running(configured, program)
            stack.callback(running.process.wait, LONG)
            stack.callback(running.process.kill)
            return running

        yield start
