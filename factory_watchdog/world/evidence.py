"""What the host shows at the moment of a restart: the unit, its processes, its control group, the GPUs.

It is for the record alone and decides nothing, so it may cost a restart a second and never fail it: each part has a
deadline of its own, and where one cannot be had its reason stands in its place. Nothing here reads a command line, an
environment or the journal: all of them may hold secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from factory_watchdog.core.model import JobResult
from factory_watchdog.core.text import clean
from factory_watchdog.world import processes as kernel
from factory_watchdog.world.clock import boottime
from factory_watchdog.world.processes import Process

LOOKS_APART = 1.0
"""Seconds between the two looks at CPU times: a hundred clock ticks, so that a hundredth of a core shows."""

PART_TIME = 3.0
"""Seconds for each part, all at once: the bus answers within 1 ms, `nvidia-smi` within 1 s where the driver is well."""

LONGEST = 6.0
"""Seconds for all of it, whatever happens: every one of them is outage."""

MOST_PROCESSES = 48
"""Processes recorded; a server with eight GPUs has about twenty. Those that tell most come first."""

MOST_GPUS = 16
"""GPUs recorded; the largest hosts have as many."""

_LOOKED_AT = 512  # processes that the two looks read, so that a fork bomb in the unit does not hold us up
_TICK = os.sysconf("SC_CLK_TCK")  # clock ticks a second
_END_TIME = 0.5  # seconds that a killed nvidia-smi gets to end: a wedged driver may keep it for good
_SAID = 16 * 1024  # bytes of nvidia-smi's output; a line is below 100
_FIELDS = "index,name,utilization.gpu,power.draw,memory.used,temperature.gpu"
_COLUMNS = len(_FIELDS.split(","))
_ABSURD = 1e9  # percent, watts, MiB, degrees: nothing has so much of any of them
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_SMALL = 4096  # bytes of a file of a control group

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Missing:
    """In place of a part that could not be had: one sentence why."""

    missing: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One process: `role` by its name, the kernel's letter of its state, `age` in seconds, `resident` memory in bytes.

    `cpu` is what it used between the two looks, in cores; None for one that the first look did not have. The simulated
    host does not tell of threads and memory.
    """

    pid: int
    ppid: int
    role: str
    state: str
    threads: int | None
    age: float
    resident: int | None
    cpu: float | None


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of the unit, those that tell most first; `left_out` is how many more there are."""

    seen: tuple[Seen, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Pressure:
    """Percent of the last ten seconds in which some, or all, of the tasks waited for a resource."""

    some: float | None
    full: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """The unit's control group: CPU between the two looks in cores, memory in bytes; None where the kernel has none."""

    cpu: float | None
    memory: int | None
    memory_pressure: Pressure | None
    cpu_pressure: Pressure | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: use in percent, power in watts, memory in bytes, temperature in Celsius; None where it does not tell."""

    index: int
    name: str
    used: float | None
    power: float | None
    memory: int | None
    temperature: float | None


@dataclass(frozen=True, slots=True)
class Journal:
    """Where the journal has the lines of the old life: its InvocationID and the range in wall-clock seconds."""

    invocation: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the host showed, and how many seconds it took to see it. The unit's properties are as systemd tells them."""

    seconds: float
    unit: Mapping[str, str | int | None] | Missing
    processes: Processes | Missing
    group: Group | Missing
    gpus: tuple[Gpu, ...] | Missing
    journal: Journal | Missing = Missing("no InvocationID is known")


@dataclass(frozen=True, slots=True)
class Job:
    """What was asked of the service manager, and how it ended; times of the wall clock."""

    unit: str
    asked: float
    ended: float
    result: JobResult
    detail: str


def nothing(why: str, seconds: float = 0.0) -> Evidence:
    """Evidence where there is none, and why."""
    no = Missing(why)
    return Evidence(seconds, no, no, no, no)


async def bounded(work: Awaitable[Evidence]) -> Evidence:
    """The evidence, or why there is none, within `LONGEST` and whatever happens: a restart waits for it."""
    try:
        async with asyncio.timeout(LONGEST):
            return await work
    except TimeoutError:
        return nothing(f"not told within {LONGEST:g} s", LONGEST)
    except Exception as error:
        return nothing(_why(error))


async def gather(
    properties: Callable[[], Awaitable[Mapping[str, str | int | None]]] | None,
    control_group: str | None,
    proc: pathlib.Path = pathlib.Path("/proc"),
    cgroups: pathlib.Path = _CGROUPS,
) -> Evidence:
    """Everything at once, within `PART_TIME` and the end of a killed nvidia-smi. `properties` asks for the unit's,
    where there is one.
    """
    began = boottime()
    unit, (seen, group), gpus = await asyncio.gather(
        _unit(properties), _kernel(control_group, proc, cgroups), _part(_gpus())
    )
    return Evidence(round(boottime() - began, 3), unit, seen, group, gpus)


async def _unit(properties: Callable[[], Awaitable[Mapping[str, T]]] | None) -> Mapping[str, T] | Missing:
    return Missing("no unit is configured") if properties is None else await _part(properties())


async def _part(work: Awaitable[T]) -> T | Missing:
    """The part, or why it is missing, within its time."""
    try:
        async with asyncio.timeout(PART_TIME):
            return await work
    except TimeoutError:
        return Missing(f"not told within {PART_TIME:g} s")
    except Exception as error:  # no fault in a part, not even one of ours, may cost the others or the restart
        return Missing(_why(error))


def _why(error: Exception) -> str:
    return clean(f"{type(error).__name__}: {error}")


# --- what the kernel shows -------------------------------------------------------------------------------------------


async def _kernel(
    control_group: str | None, proc: pathlib.Path, cgroups: pathlib.Path
) -> tuple[Processes | Missing, Group | Missing]:
    """Processes and control group, by two looks. Each look is some reads of /proc, which wait for nothing."""
    if not control_group:
        why = Missing("no control group is known")
        return why, why
    folder = cgroups / control_group.strip("/")
    both = await _part(_two_looks(lambda: _look(control_group, folder, proc, cgroups)))
    if isinstance(both, Missing):
        return both, both
    return _processes(*both), _group(*both, folder)


@dataclass(frozen=True, slots=True)
class _Look:
    """One look: when, each process's facts, how many more there are, and the group's CPU seconds."""

    at: float
    facts: dict[Process, dict[str, Any]]
    more: int
    cpu: float | None


async def _two_looks(look: Callable[[], _Look]) -> tuple[_Look, _Look]:
    first = look()
    await asyncio.sleep(LOOKS_APART)
    return first, look()


def _look(control_group: str, folder: pathlib.Path, proc: pathlib.Path, cgroups: pathlib.Path) -> _Look:
    members = kernel.processes(control_group, proc, cgroups)
    described: list[dict[str, Any]] = kernel.described(members[:_LOOKED_AT], proc)
    facts = {(int(one["pid"]), int(one["start"])): one for one in described}
    return _Look(boottime(), facts, max(0, len(members) - _LOOKED_AT), _cpu_seconds(folder))


def _processes(first: _Look, second: _Look) -> Processes:
    seen = [_seen(one, first.facts.get(process), first.at, second.at) for process, one in second.facts.items()]
    seen.sort(key=lambda one: (one.role == "child", -(one.cpu or 0.0), one.pid))
    kept = seen[:MOST_PROCESSES]
    return Processes(tuple(kept), len(seen) - len(kept) + second.more)


def _seen(now: dict[str, Any], before: dict[str, Any] | None, then: float, at: float) -> Seen:
    used = None if before is None else round((now["cpu"] - before["cpu"]) / _TICK / max(at - then, 1e-3), 3)
    age = round(max(0.0, at - now["start"] / _TICK), 1)
    return Seen(now["pid"], now["ppid"], now["role"], now["state"], now["threads"], age, now["resident"], used)


def _group(first: _Look, second: _Look, folder: pathlib.Path) -> Group | Missing:
    if not folder.is_dir():
        return Missing("the control group is gone")
    told = first.cpu is not None and second.cpu is not None
    cpu = ((second.cpu or 0.0) - (first.cpu or 0.0)) / max(second.at - first.at, 1e-3) if told else None
    memory = _text(folder / "memory.current")
    return Group(
        cpu=None if cpu is None else round(cpu, 3),
        memory=int(memory) if memory is not None and memory.strip().isdecimal() else None,
        memory_pressure=_pressure(folder / "memory.pressure"),
        cpu_pressure=_pressure(folder / "cpu.pressure"),
    )


def _cpu_seconds(folder: pathlib.Path) -> float | None:
    """`usage_usec` of cpu.stat, see the kernel's documentation of control groups, version 2."""
    for line in (_text(folder / "cpu.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec" and value.isdecimal():
            return int(value) / 1e6
    return None


def _pressure(file: pathlib.Path) -> Pressure | None:
    """Lines of the form "some avg10=0.00 avg60=...", see the kernel's documentation of pressure stall information."""
    text = _text(file)
    if text is None:
        return None
    averages = {words[0]: words[1] for line in text.splitlines() if len(words := line.split()) > 1}
    return Pressure(*(_number(averages.get(kind, "").partition("avg10=")[2]) for kind in ("some", "full")))


def _text(file: pathlib.Path) -> str | None:
    try:
        with file.open("rb") as opened:
            return opened.read(_SMALL).decode("ascii", "replace")
    except OSError:  # the controller is off, the group vanished, or the kernel has no such file
        return None


# --- what the GPUs show ----------------------------------------------------------------------------------------------


async def _gpus() -> tuple[Gpu, ...] | Missing:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Missing("no nvidia-smi on this host")
    process = await asyncio.create_subprocess_exec(
        program,
        f"--query-gpu={_FIELDS}",
        "--format=csv,noheader,nounits",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},  # nothing of ours, which may hold secrets
        start_new_session=True,
    )
    try:
        said = await _said(process)
        status = await process.wait()
    finally:
        await _end(process)
    lines = said.decode("utf-8", "replace").splitlines()
    if status != 0:
        return Missing(f"nvidia-smi ended with status {status}: {clean(lines[0]) if lines else 'it said nothing'}")
    gpus = tuple(gpu for line in lines if (gpu := _gpu(line)) is not None)
    return gpus[:MOST_GPUS] or Missing(f"nvidia-smi told of no GPU: {clean(said.decode('utf-8', 'replace'))}")


async def _said(process: asyncio.subprocess.Process) -> bytes:
    """All that it says; one that says too much is ended."""
    said = b""
    while process.stdout is not None and (more := await process.stdout.read(_SAID)):
        said += more
        if len(said) > _SAID:
            _kill(process)
            return said[:_SAID]
    return said


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it with all that it started, if it has not ended. One that a wedged driver holds is left behind."""
    if process.returncode is None:
        _kill(process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_TIME):
                await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _gpu(line: str) -> Gpu | None:
    """One line of the answer; None for one that is none. The name may itself contain a comma."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) < _COLUMNS or not (cells[0].isascii() and cells[0].isdecimal()):
        return None
    used, power, memory, temperature = map(_number, cells[-4:])
    name = clean(", ".join(cells[1:-4]), 60)
    mebibytes = None if memory is None else int(memory * 2**20)
    return Gpu(int(cells[0][:6]), name, used, power, mebibytes, temperature)


def _number(text: str) -> float | None:
    """A number, None for "[N/A]", "[Not Supported]" and the like, which are said where hardware does not measure."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < _ABSURD else None  # not a NaN either
