"""A real vLLM on the CPU as a unit of the box's systemd: its unit file, its processes by role, its pages.

The box has a network of its own. `Server.inside` puts the calling thread there, with all threads that it starts
meanwhile, so that tests, load and a daemon in the box all reach the server as 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pathlib
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from factory_watchdog.core.model import Form, Sample, Went
from factory_watchdog.engines import exposition
from factory_watchdog.engines.dialect import Classified, Page
from factory_watchdog.engines.exposition import PAGE_LIMIT
from factory_watchdog.engines.vllm import VLLM
from factory_watchdog.world.http import Fetched, Http

READY_TIMEOUT = 400.0  # seconds; loading takes 20 to 45, most of it imports, and ten times as long where others compute
APPEARS_TIMEOUT = 20.0  # seconds within which a change must show in the gauges; a starved server takes some
STOPPED_TIMEOUT = 5.0  # seconds; from SIGSTOP until the kernel has stopped the process
PAGE_TIMEOUT = 15.0  # seconds; a page takes some ms, that of a starved server took up to 7 seconds
METRICS = "/metrics"
_REQUESTS = "http_requests_total"
PLACES = 4  # requests that run at once; more wait
MODELS = "/srv/models"  # inside the box, in memory
_POLL = 0.1  # seconds between two looks

# What a process calls itself (vLLM sets its title), and so its role; the first that fits, else the API server. A
# data-parallel engine has its rank at the end: "VLLM::EngineCore_DP1" is "engine1".
_TITLES = {
    "VLLM::EngineCore": "engine",
    "VLLM::Worker": "worker",
    "VLLM::DPCoordinator": "coordinator",
    "resource_tracker": "tracker",
}
_RANK = re.compile(r"_DP(\d+)")

# Without "nobind" and one thread the server binds itself to cores and spins on all of them. Nothing may be fetched or
# sent home, and every place that is written to lies in the unit's own state folder: the box's root is read-only.
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HOME": "/var/lib/vllm",
    "XDG_CACHE_HOME": "/var/lib/vllm",
}

_UNIT = """[Unit]
Description=A real vLLM on the CPU

[Service]
Type=exec
ExecStart={command}
{environment}
WorkingDirectory={models}
StateDirectory=vllm
KillMode=control-group
Restart=no
TimeoutStopSec=5
"""


def unit_text(
    venv: pathlib.Path, model: str, port: int, *arguments: str, environment: Mapping[str, str] | None = None
) -> str:
    """The unit file of a server of the model folder `model` below MODELS; `environment` is added to the usual one.

    A server that ends by itself does so within 3 s; one that was frozen is killed after 5.
    """
    command = [
        *(f"{venv}/bin/vllm", "serve", model, "--host", "127.0.0.1", "--port", str(port)),
        *("--load-format", "dummy", "--dtype", "bfloat16", "--max-model-len", "8192"),
        *("--max-num-seqs", str(PLACES), "--enforce-eager", *arguments),
    ]
    variables = _ENVIRONMENT | {"PATH": f"{venv}/bin:/usr/bin:/bin"} | dict(environment or {})
    lines = "\n".join(f"Environment={name}={value}" for name, value in variables.items())
    return _UNIT.format(command=" ".join(command), environment=lines, models=MODELS)


class Server:
    """One vLLM in a box: `begin` it, then look at it and harm it. What is sent needs the thread to be `inside`."""

    def __init__(self, box: Any, unit: str, port: int) -> None:
        self.box, self.unit, self.port = box, unit, port
        self.name = unit.removesuffix(".service")
        self.base = f"http://127.0.0.1:{port}"

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread is in the box's network until the context ends."""
        first = (self.box.cgroup / "init.scope" / "cgroup.procs").read_text().split()[0]
        with open("/proc/thread-self/ns/net", "rb") as own, open(f"/proc/{first}/ns/net", "rb") as its:
            _enter_network(its.fileno())
            try:
                yield
            finally:
                _enter_network(own.fileno())

    def begin(self, text: str) -> None:
        """Write the unit and start it; it does not answer yet."""
        self.box.unit(self.unit, text)
        self.box.systemctl("start", self.unit)

    def answers(self) -> None:
        """Wait for the end of the start."""
        self.wait(lambda: self.get("/health").reply.status == 200, READY_TIMEOUT, "the start")

    def restart(self) -> None:
        """Restart through systemd, thawed before, and return once it answers."""
        for role in self.processes():
            self.thaw(role)
        self.box.systemctl("restart", self.unit)
        self.answers()

    @property
    def invocation(self) -> str:
        """Which run of its unit it is, as systemd names it."""
        return str(self.box.show(self.unit, "InvocationID"))

    def wait(self, condition: Callable[[], object], timeout: float, what: str) -> float:
        """Look until `condition` holds, and return the seconds it took; AssertionError with the journal if not."""
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            if waited > timeout:
                raise AssertionError(f"{what} did not come within {timeout:g} s\n{self.journal()}")
            time.sleep(_POLL)
        return time.monotonic() - began

    def journal(self, lines: int = 30) -> str:
        """The last lines that the unit wrote."""
        done = self.box.exec("journalctl", "--unit", self.unit, "--lines", str(lines), "--no-pager", check=False)
        return str(done.stdout)

    # --- what it shows ---------------------------------------------------------------------------------------------

    def get(self, path: str, deadline: float = PAGE_TIMEOUT) -> Fetched:
        """One page over a connection of its own."""

        async def fetch() -> Fetched:
            async with Http() as http:
                return await http.get(self.base + path, deadline, PAGE_LIMIT)

        return asyncio.run(fetch())

    def post(self, path: str) -> Fetched:
        """Send an order without a body, as those of development mode are."""

        async def send() -> Fetched:
            async with Http() as http:
                return await http.post(self.base + path, PAGE_TIMEOUT, b"", {})

        return asyncio.run(send())

    def posts(self) -> float:
        """How many POST requests it has answered, by its own count."""
        told = exposition.read(self.get(METRICS).body, frozenset({_REQUESTS}))
        return sum(value for labels, value in told.get(_REQUESTS, ()) if labels.get("method") == "POST")

    def page(self) -> Page:
        """Its metrics, as the dialect reads them."""
        return _read(self.get(METRICS))

    def sample(self) -> Sample:
        """The signals of its only engine."""
        (sample,) = self.page().engines
        return sample

    def shows(self, running: int, waiting: int = 0) -> None:
        """Wait until its gauges show so many requests."""

        def seen() -> bool:
            sample = self.sample()
            return (sample.running, sample.waiting) == (running, waiting)

        self.wait(seen, APPEARS_TIMEOUT, f"{running} running and {waiting} waiting")

    def ask(self, form: Form = Form.CHAT, deadline: float = PAGE_TIMEOUT) -> Classified:
        """Our question, and what its answer is worth."""

        async def send() -> Classified:
            async with Http() as http:
                return await self._ask(http, form, deadline)

        return asyncio.run(send())

    def ask_between_samples(self, form: Form, times: int) -> list[tuple[Sample, Classified, Sample]]:
        """Samples right before and right after each of so many questions, over one kept-alive client."""

        async def look(http: Http) -> Sample:
            (sample,) = _read(await http.get(self.base + METRICS, PAGE_TIMEOUT, PAGE_LIMIT)).engines
            return sample

        async def alternate() -> list[tuple[Sample, Classified, Sample]]:
            async with Http() as http:
                return [(await look(http), await self._ask(http, form), await look(http)) for _ in range(times)]

        return asyncio.run(alternate())

    async def _ask(self, http: Http, form: Form, deadline: float = PAGE_TIMEOUT) -> Classified:
        question = VLLM.question(form)
        fetched = await http.post(self.base + question.path, deadline, question.body, dict(question.headers))
        return VLLM.classify(form, fetched.reply, fetched.body)

    # --- its processes ---------------------------------------------------------------------------------------------

    def processes(self) -> dict[str, int]:
        """The unit's processes, role to PID as the host numbers them: api, engine, worker, tracker."""
        group = self.box.show(self.unit, "ControlGroup").lstrip("/")
        if not group:
            return {}
        files = (self.box.cgroup / group).rglob("cgroup.procs")
        found = {pid: _role(pid) for file in files for pid in map(int, file.read_text().split())}
        return {role: pid for pid, role in found.items() if role is not None}

    def freeze(self, role: str) -> None:
        """Stop a process where it stands; returns once it has stopped."""
        pid = self.processes()[role]
        os.kill(pid, signal.SIGSTOP)
        self.wait(lambda: _state(pid) == "T", STOPPED_TIMEOUT, f"the stop of {role}")

    def thaw(self, role: str) -> None:
        """Let a frozen process go on; one that is not frozen does not notice."""
        os.kill(self.processes()[role], signal.SIGCONT)

    def kill(self, role: str) -> None:
        """End a process with SIGKILL."""
        os.kill(self.processes()[role], signal.SIGKILL)


def _read(fetched: Fetched) -> Page:
    assert fetched.reply.went is Went.OK, fetched.reply
    return VLLM.read(fetched.body)


def _role(pid: int) -> str | None:
    """What the process does; None once it has ended."""
    try:
        title = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    if not title:
        return None
    rank = _RANK.search(title)
    return next((role for sign, role in _TITLES.items() if sign in title), "api") + (rank[1] if rank else "")


def _state(pid: int) -> str:
    """The state letter of a process."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _enter_network(descriptor: int) -> None:
    """Put the calling thread into a network namespace (setns(2)); os.setns exists from Python 3.12 on."""
    network = 0x40000000  # CLONE_NEWNET in <linux/sched.h>
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, network):
        raise OSError(ctypes.get_errno(), "setns")
