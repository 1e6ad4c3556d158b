from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

from factory_watchdog.world.processes import boot_id, left_over, processes, start_ticks


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def _members(top: pathlib.Path, group: str, *pids: int) -> None:
    folder = top / group
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def _seconds_since_boot() -> float:
    return float(pathlib.Path("/proc/uptime").read_text().split()[0])


def test_start_ticks_are_clock_ticks_since_boot(child: subprocess.Popen[bytes]) -> None:
    ticks = start_ticks(child.pid)
    assert ticks is not None
    assert ticks / os.sysconf("SC_CLK_TCK") == pytest.approx(_seconds_since_boot(), abs=5)
    assert start_ticks(child.pid) == ticks


def test_a_command_name_with_spaces_and_parentheses_is_skipped(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([program, "60"])
    try:
        plain = pathlib.Path(f"/proc/{process.pid}/stat").read_text().split(") ")[-1].split()[19]
        assert start_ticks(process.pid) == int(plain)
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_gone_has_no_start() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert start_ticks(process.pid) is None


@pytest.mark.parametrize("text", ["", "1 (x", "1 (x) S 1 2 3"])
def test_a_stat_that_is_cut_is_no_start(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/stat").write_text(text)
    assert start_ticks(1, proc=tmp_path) is None


def test_boot_id() -> None:
    assert boot_id() == pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_processes_of_a_group_and_all_below_it(tmp_path: pathlib.Path, child: subprocess.Popen[bytes]) -> None:
    _members(tmp_path, "system.slice/x.service", os.getpid())
    _members(tmp_path, "system.slice/x.service/worker/inner", child.pid, child.pid, 0)
    _members(tmp_path, "system.slice/y.service", 1)
    found = processes("/system.slice/x.service", cgroups=tmp_path)
    assert found == sorted((pid, start_ticks(pid)) for pid in (os.getpid(), child.pid))


@pytest.mark.parametrize("group", ["", "/", "/system.slice/gone.service", "/../..", "/system.slice/../.."])
def test_no_group_has_no_processes(tmp_path: pathlib.Path, group: str) -> None:
    _members(tmp_path, "inside", os.getpid())
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert processes(group, cgroups=tmp_path) == []


def test_a_process_that_ended_meanwhile_is_left_out(tmp_path: pathlib.Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    _members(tmp_path, "x.service", process.pid, os.getpid())
    assert [pid for pid, _ in processes("/x.service", cgroups=tmp_path)] == [os.getpid()]


def test_left_over_are_those_that_live_on(child: subprocess.Popen[bytes]) -> None:
    start = start_ticks(child.pid)
    assert start is not None
    assert left_over([(child.pid, start)]) == (child.pid,)
    assert left_over([(child.pid, start + 1)]) == ()  # the PID, but another process
    child.send_signal(signal.SIGSTOP)
    assert left_over([(child.pid, start)]) == (child.pid,)  # stopped, but it holds its memory
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(child.pid) == start
    assert left_over([(child.pid, start)]) == ()  # a zombie
    child.wait()
    assert left_over([(child.pid, start)]) == ()
