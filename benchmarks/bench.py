"""Measures what the design promises, each figure against its budget: `make bench`.

Machines differ and are busy, so wherever two sides can be compared they are run in turn in the same run, and the ratio
of the medians counts. Exits 1 when a budget is not met. Nothing else should run meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from factory_watchdog.config import load, schema
from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import (
    Answer,
    Answered,
    Ask,
    Flag,
    Outcome,
    Polled,
    Reading,
    Reply,
    Sample,
    Settings,
    UnitFacts,
    Went,
)
from factory_watchdog.core.step import step_host
from factory_watchdog.engines.vllm import VLLM
from factory_watchdog.ports import Host, World
from factory_watchdog.simulate import clock as virtual
from factory_watchdog.simulate import scenario as scenarios
from factory_watchdog.simulate.exposition import Numbers, Page
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.played import Collector, Played
from factory_watchdog.simulate.real import RealServer, clock
from factory_watchdog.simulate.script import Timeline
from factory_watchdog.simulate.server import Server
from factory_watchdog.simulate.transport import SimTransport
from factory_watchdog.watcher import watcher_of
from factory_watchdog.world.http import Http

MIB = 1 << 20
RUNS = 7
"""Runs of each side; the median of so many is steady to some percent on a machine that does nothing else."""

IDLE = """
name = "idle"
[backend]
kind = "vllm"
[[phase]]
for = "{length}"
running = 4
steps = 20.0
tokens = 80.0
finished = 0.1
kv = 0.4
"""


@dataclass(frozen=True)
class Figure:
    """One measured figure with its budget; `better` says what it was measured against."""

    name: str
    value: float
    budget: float
    unit: str
    against: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.budget


def main() -> int:
    """Measure everything; 1 when a budget is not met."""
    met = True
    for measure in (check, reader, core_day, growth, daemon_of_four, many_backends):
        for figure in measure():
            met = met and figure.met
            mark = "ok  " if figure.met else "MISS"
            against = f"  ({figure.against})" if figure.against else ""
            print(
                f"{mark} {figure.name:<52} {figure.value:8.2f} of {figure.budget:g} {figure.unit}{against}", flush=True
            )
    return 0 if met else 1


# --- llm-health check ------------------------------------------------------------------------------------------------


def check() -> Iterator[Figure]:
    """CPU of a whole `llm-health check` of one backend, over that of a bare interpreter."""
    with _simulated(1) as ports, tempfile.TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{ports[0]}"
        looks = [sys.executable, "-m", "factory_watchdog", "check", url, "--state-file", f"{folder}/state.json"]
        bare, looking = _in_turn([sys.executable, "-c", "pass"], looks)
        yield Figure("check, looking by itself", (looking - bare) * 1e3, 200, "ms CPU", f"bare {bare * 1e3:.0f} ms")
        with _daemon(folder, [url], "1s") as process:
            config = f"{folder}/config.toml"
            _wait_for(lambda: Path(folder, "run", "b0.json").exists(), process)
            bare, asking = _in_turn(
                [sys.executable, "-c", "pass"], [sys.executable, "-m", "factory_watchdog", "check", "b0", "-c", config]
            )
            yield Figure("check, asking the daemon", (asking - bare) * 1e3, 150, "ms CPU", f"bare {bare * 1e3:.0f} ms")


_INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""As an installed program runs: pip compiles what it installs."""


def _in_turn(*commands: list[str]) -> list[float]:
    """The median CPU seconds of each command, run in turn."""
    spent: list[list[float]] = [[] for _ in commands]
    for _ in range(RUNS):
        for i, command in enumerate(commands):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_INSTALLED, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent[i].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [statistics.median(s) for s in spent]


# --- the reader ------------------------------------------------------------------------------------------------------


def reader() -> Iterator[Figure]:
    """Reading a page, in percent of the time that prometheus_client's parser takes for it.

    One engine's page has 52 kB, that of ten more than 340 kB: a node of eight GPUs with a longer model name.
    """
    for engines in (1, 10):
        page = Page((0, 32), engines, start_time=True, multi=False, model="Qwen3-8B").render(
            tuple(Numbers(running=4.0, steps=1e6, tokens=1e7, kv=0.5) for _ in range(engines)), 1.75e9
        )
        text = page.decode()
        ours = _median(functools.partial(VLLM.read, page))
        theirs = _median(functools.partial(_parsed, text))
        name = f"reading a page of {len(page) // 1000} kB"
        yield Figure(name, 100 * ours / theirs, 3, "% of prometheus_client", f"{ours * 1e6:.0f} us")


def _parsed(text: str) -> list[object]:
    return list(text_string_to_metric_families(text))


def _median(work: Callable[[], object]) -> float:
    """Seconds for one call."""
    times = []
    for _ in range(RUNS * 3):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


# --- the core --------------------------------------------------------------------------------------------------------

DAY = 8640  # polls at 10 s
OK = Reply(Went.OK, 200, 0.01)
UNIT = UnitFacts(True, "active", "running", invocation="a" * 32, main_pid=5, main_start=7, cpu=1.0)


def core_day() -> Iterator[Figure]:
    """A day of four backends through the core: an hour of work, an hour of quiet, in turn."""
    readings = [_reading(i) for i in range(DAY)]
    spent = statistics.median(_seconds(lambda: _day(readings)) for _ in range(3))
    yield Figure("a day of four backends through the core", spent, 1, "s", f"{spent / DAY / 4 * 1e6:.0f} us a poll")


def _reading(i: int) -> Reading:
    hour = i // 360
    worked = i if hour % 2 == 0 else hour * 360
    busy = 12.0 if hour % 2 == 0 else 0.0
    kv = 0.3 + i % 7 / 100 if busy else 0.0
    sample = Sample("0", busy, 3.0 if busy else 0.0, 200.0 * worked, 10.0 * worked, 1e3 * worked, kv, float(worked))
    return Reading(i * 10.0, i * 10.0 + 0.01, OK, OK, True, (sample,), 1e9, UNIT)


def _day(readings: list[Reading]) -> None:
    host: Mapping[str, Backend] = dict.fromkeys("abcd", Backend())
    settings = Settings()
    for reading in readings:
        for name in "abcd":
            host, effects = step_host(host, name, Polled(reading), reading.ended, settings)
            for effect in effects:
                if isinstance(effect, Ask):
                    ended = reading.ended + 0.3
                    answer = Answer(effect.question.id, Outcome.ANSWERED, ended, 9, 1)
                    host, _ = step_host(host, name, Answered(answer), ended, settings)


def _seconds(work: Callable[[], object]) -> float:
    """CPU seconds: the machine may do something else meanwhile."""
    began = time.process_time()
    work()
    return time.process_time() - began


# --- memory over many polls ------------------------------------------------------------------------------------------

POLLS = 100_000
WARM = 10_000
"""Polls before the first look, in which caches and rings fill."""


def growth() -> Iterator[Figure]:
    """Resident memory after 110,000 virtual polls through the whole watch, over that after 10,000."""
    grown = virtual.run(_grown)
    yield Figure(f"growth over {POLLS:,} polls", grown / MIB, 1, "MiB resident")


async def _grown() -> float:
    scenario = scenarios.loads(IDLE.format(length="400d"))
    now = virtual.ScriptedClock(Timeline(scenario.phases), asyncio.get_running_loop().time)
    server = Server(scenario, now.boottime)
    world = World(Http(SimTransport(server)), SimManager(server), now, Flag, lambda: None)
    daemon = schema.Daemon()
    config = load.from_table(scenario.backend)
    watcher = watcher_of(config, daemon, world, Host(), Collector(Played("growth"), now))
    watching = asyncio.get_running_loop().create_task(watcher.run())
    await asyncio.sleep(WARM * daemon.interval)
    gc.collect()
    before = _resident(os.getpid())
    await asyncio.sleep(POLLS * daemon.interval)
    gc.collect()
    after = _resident(os.getpid())
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await watcher.close()
    return float(after - before)


# --- the daemon ------------------------------------------------------------------------------------------------------


def daemon_of_four() -> Iterator[Figure]:
    """The daemon with four backends, polled every second; what that costs at 10 s is a tenth."""
    with _watching(4, 4, "1s") as process:
        share = _cpu_share(process.pid, 30.0) * 100 / 10
        yield Figure("daemon, four backends at 10 s: CPU", share, 0.5, "% of one core", "measured at 1 s")
        yield Figure("daemon, four backends: resident", _resident(process.pid) / MIB, 56, "MiB")


def many_backends() -> Iterator[Figure]:
    """500 backends at 10 s, on sixteen simulated servers in another process."""
    with _watching(500, 16, "10s") as process:
        share = _cpu_share(process.pid, 30.0) * 100
        yield Figure("daemon, 500 backends at 10 s: CPU", share, 100, "% of one core")


@contextlib.contextmanager
def _watching(backends: int, servers: int, interval: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that has judged each of so many backends, which share the servers."""
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(_simulated(servers))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        urls = [f"http://127.0.0.1:{ports[i % servers]}" for i in range(backends)]
        process = stack.enter_context(_daemon(folder, urls, interval))
        _wait_for(lambda: Path(folder, "run", f"b{backends - 1}.json").exists(), process)
        yield process


@contextlib.contextmanager
def _daemon(folder: str, urls: list[str], interval: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that watches these, by itself in a folder."""
    Path(folder, "run").mkdir(exist_ok=True)
    daemon = f'[daemon]\ninterval = "{interval}"\nstate_dir = "{folder}/state"\nruntime_dir = "{folder}/run"\n'
    backends = "".join(f'[[backend]]\nname = "b{i}"\nurl = "{url}"\n' for i, url in enumerate(urls))
    config = Path(folder, "config.toml")
    config.write_text(daemon + backends)
    command = [sys.executable, "-m", "factory_watchdog", "run", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(10)


def _wait_for(done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while not done():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError("the daemon did not come up")
        time.sleep(0.1)


def _cpu_share(pid: int, seconds: float) -> float:
    """Cores that a process uses, over so many seconds."""
    before = _ticks(pid)
    time.sleep(seconds)
    return (_ticks(pid) - before) / os.sysconf("SC_CLK_TCK") / seconds


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def _simulated(count: int) -> Iterator[list[int]]:
    """So many simulated servers that work, in a process of their own; their ports."""
    command = [sys.executable, __file__, "--serve", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield [int(port) for port in process.stdout.readline().split()]
        finally:
            process.terminate()


async def _serve(count: int) -> None:
    scenario = scenarios.loads(IDLE.format(length="24h"))
    async with contextlib.AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(RealServer(Server(scenario, clock(time.monotonic)))) for _ in range(count)
        ]
        print(*(server.url.rpartition(":")[2] for server in servers), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(_serve(int(sys.argv[2])))
    sys.exit(main())
