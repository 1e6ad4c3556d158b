"""What the host shows: real processes in every state, a made-up control group, an nvidia-smi that does anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from factory_watchdog.world import evidence
from factory_watchdog.world.evidence import Evidence, Gpu, Group, Missing, Pressure, Processes, Seen, gather, nothing

GROUP = "/system.slice/vllm.service"
SECRET = "sk-very-secret"
UNIT: dict[str, str | int | None] = {"ActiveState": "active", "MainPID": 7, "TasksCurrent": None}
LINE = "0, NVIDIA GB10, 96, 12.34, 1024, 55\n"
BUSY = "while True: pass"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Looks close together, and no nvidia-smi but the test's own."""
    monkeypatch.setattr(evidence, "LOOKS_APART", 0.3)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("API_KEY", SECRET)


@pytest.fixture
def start() -> Iterator[Callable[..., int]]:
    """Start a process; its PID. It ends with the test."""
    with contextlib.ExitStack() as stack:

        def started(*command: str) -> int:
            process = subprocess.Popen(command)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process.pid

        yield started


def members(top: Path, *pids: int, **files: str) -> None:
    folder = top / GROUP.strip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)


async def _unit() -> Mapping[str, str | int | None]:
    return UNIT


def gathered(
    top: Path,
    properties: Callable[[], Awaitable[Mapping[str, str | int | None]]] | None = _unit,
    group: str | None = GROUP,
) -> Evidence:
    return asyncio.run(gather(properties, group, cgroups=top))


def by_pid(shown: Evidence) -> dict[int, Seen]:
    assert isinstance(shown.processes, Processes), shown.processes
    return {seen.pid: seen for seen in shown.processes.seen}


def in_state(pid: int, letter: str) -> None:
    ends = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != letter:
        assert time.monotonic() < ends
        time.sleep(0.005)


# --- processes -------------------------------------------------------------------------------------------------------


def test_processes_as_they_are(tmp_path: Path, start: Callable[..., int]) -> None:
    worker = tmp_path / "VLLM::Worker_TP0"
    shutil.copy("/bin/sleep", worker)
    stopped, busy = start(str(worker), "60"), start(sys.executable, "-c", BUSY, SECRET)
    os.kill(stopped, signal.SIGSTOP)
    in_state(stopped, "T")
    members(tmp_path, stopped, busy)
    shown = gathered(tmp_path)
    seen = by_pid(shown)
    assert list(seen) == [stopped, busy]  # those with a role come first
    assert (seen[stopped].role, seen[stopped].state, seen[stopped].cpu) == ("worker", "T", 0.0)
    assert (seen[stopped].ppid, seen[stopped].threads) == (os.getpid(), 1)
    assert 0 <= seen[stopped].age < 60
    assert (seen[stopped].resident or 0) > 100_000
    assert (seen[busy].role, seen[busy].state) == ("child", "R")
    assert (seen[busy].cpu or 0.0) > 0.2  # of a core, on a machine that others use as well
    written = msgspec.json.encode(shown).decode()
    assert SECRET not in written
    assert "VLLM::" not in written


def test_a_zombie_is_seen_as_one(tmp_path: Path) -> None:
    process = subprocess.Popen(["/bin/true"])
    in_state(process.pid, "Z")
    members(tmp_path, process.pid)
    assert by_pid(gathered(tmp_path))[process.pid].state == "Z"
    process.wait()


def test_one_that_came_between_the_looks_has_no_cpu_yet_and_one_that_went_is_left_out(
    tmp_path: Path, start: Callable[..., int]
) -> None:
    first, second = start("/bin/sleep", "60"), start("/bin/sleep", "60")
    members(tmp_path, first)

    async def change() -> Mapping[str, str | int | None]:
        await asyncio.sleep(0.1)  # between the two looks
        members(tmp_path, second)
        return UNIT

    seen = by_pid(gathered(tmp_path, change))
    assert [(one.pid, one.cpu) for one in seen.values()] == [(second, None)]


def test_too_many_processes_are_counted(
    tmp_path: Path, start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "MOST_PROCESSES", 2)
    monkeypatch.setattr(evidence, "_LOOKED_AT", 3)
    members(tmp_path, *(start("/bin/sleep", "60") for _ in range(5)))
    processes = gathered(tmp_path).processes
    assert isinstance(processes, Processes)
    assert (len(processes.seen), processes.left_out) == (2, 3)


@pytest.mark.parametrize("group", [None, ""])
def test_without_a_control_group_there_are_no_processes(group: str | None, tmp_path: Path) -> None:
    shown = gathered(tmp_path, group=group)
    assert shown.processes == shown.group == Missing("no control group is known")
    assert shown.unit == UNIT


# --- the control group -----------------------------------------------------------------------------------------------


def test_a_control_group(tmp_path: Path) -> None:
    line = "some avg10=12.50 avg60=1.00 avg300=0.10 total=5\nfull avg10=3.00 avg60=1.00 avg300=0.10 total=5\n"
    members(tmp_path, cpu_stat="usage_usec 1000000\nuser_usec 1\n", memory_current="4096\n", memory_pressure=line)

    async def use() -> Mapping[str, str | int | None]:
        await asyncio.sleep(0.1)
        members(tmp_path, cpu_stat="usage_usec 1600000\n")
        return UNIT

    group = gathered(tmp_path, use).group
    assert isinstance(group, Group)
    assert group.cpu == pytest.approx(2.0, rel=0.2)
    assert (group.memory, group.memory_pressure, group.cpu_pressure) == (4096, Pressure(12.5, 3.0), None)


def test_a_control_group_that_tells_nothing_or_is_gone(tmp_path: Path) -> None:
    members(
        tmp_path, cpu_stat="nonsense\nusage_usec x\n", memory_current="max\n", cpu_pressure="\xff some\nfull avg10=x"
    )
    assert gathered(tmp_path).group == Group(None, None, None, Pressure(None, None))
    assert gathered(tmp_path / "elsewhere").group == Missing("the control group is gone")
    assert gathered(tmp_path, group="/../..").processes == Processes(())


# --- the unit --------------------------------------------------------------------------------------------------------


def test_a_part_that_fails_or_hangs_says_why_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "PART_TIME", 0.4)
    members(tmp_path, os.getpid())

    async def fails() -> Mapping[str, str | int | None]:
        raise OSError("the bus\x1b[2J is gone")

    async def hangs() -> Mapping[str, str | int | None]:
        await asyncio.sleep(60)
        raise AssertionError

    for properties, why in ((fails, "OSError: the bus [2J is gone"), (hangs, "not told within 0.4 s")):
        shown = gathered(tmp_path, properties)
        assert shown.unit == Missing(why)
        assert list(by_pid(shown)) == [os.getpid()]
        assert shown.seconds < 5
    assert gathered(tmp_path, None).unit == Missing("no unit is configured")


def test_nothing_is_the_same_reason_everywhere() -> None:
    shown = nothing("because")
    assert {shown.unit, shown.processes, shown.group, shown.gpus} == {Missing("because")}


# --- GPUs ------------------------------------------------------------------------------------------------------------


def gpus(tmp_path: Path, script: str) -> tuple[Gpu, ...] | Missing:
    """What comes of an nvidia-smi that is this shell script."""
    program = tmp_path / "bin/nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return gathered(tmp_path).gpus


def test_no_nvidia_smi(tmp_path: Path) -> None:
    assert gathered(tmp_path).gpus == Missing("no nvidia-smi on this host")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (LINE, [Gpu(0, "NVIDIA GB10", 96.0, 12.34, 1024 << 20, 55.0)]),
        (LINE + LINE.replace("0,", "1,", 1), [Gpu(n, "NVIDIA GB10", 96.0, 12.34, 1024 << 20, 55.0) for n in (0, 1)]),
        ("0, NVIDIA GB10, 0, 4.5, [N/A], 41", [Gpu(0, "NVIDIA GB10", 0.0, 4.5, None, 41.0)]),
        ("0, A, B, [Not Supported], nan, inf, -", [Gpu(0, "A, B", None, None, None, None)]),
        (f"warning: something\n{LINE}", [Gpu(0, "NVIDIA GB10", 96.0, 12.34, 1024 << 20, 55.0)]),
    ],
)
def test_what_gpus_tell(said: str, expected: list[Gpu], tmp_path: Path) -> None:
    (tmp_path / "said").write_text(said)
    assert gpus(tmp_path, f"/bin/cat {tmp_path}/said") == tuple(expected)


def test_it_is_asked_for_figures_alone_and_gets_nothing_of_our_environment(tmp_path: Path) -> None:
    gpus(tmp_path, f'echo "$@" >{tmp_path}/asked; /usr/bin/env >{tmp_path}/environment')
    fields = "index,name,utilization.gpu,power.draw,memory.used,temperature.gpu"
    assert (tmp_path / "asked").read_text() == f"--query-gpu={fields} --format=csv,noheader,nounits\n"
    assert SECRET not in (tmp_path / "environment").read_text()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'cannot reach the driver' >&2; exit 9", "nvidia-smi ended with status 9: cannot reach the driver"),
        ("exit 3", "nvidia-smi ended with status 3: it said nothing"),
        ("echo 'no devices were found'", "nvidia-smi told of no GPU: no devices were found"),
        (r"printf '\033[2J\377garbage, 1, 2, 3, 4, 5\n'", "nvidia-smi told of no GPU: [2J�garbage, 1, 2, 3, 4, 5"),
        ("while :; do echo 0, x, 1, 2, 3; done", "nvidia-smi ended with status -9: 0, x, 1, 2, 3"),
        ("kill -SEGV $$", "nvidia-smi ended with status -11: it said nothing"),
    ],
)
def test_an_nvidia_smi_that_is_of_no_use_says_why(script: str, why: str, tmp_path: Path) -> None:
    assert gpus(tmp_path, script) == Missing(why)


def test_an_nvidia_smi_that_hangs_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "PART_TIME", 0.5)
    assert gpus(tmp_path, f"/bin/sleep 60 & echo $! $$ >{tmp_path}/pids; wait") == Missing("not told within 0.5 s")
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        ends = time.monotonic() + 10
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                assert time.monotonic() < ends
                time.sleep(0.005)


def test_an_nvidia_smi_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    (tmp_path / "bin/nvidia-smi").write_bytes(b"\x7fELF")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    found = gathered(tmp_path).gpus
    assert isinstance(found, Missing)
    assert found.missing.startswith("OSError: ")
