"""The busy flag, with real processes that hold real locks."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from factory_watchdog.core.model import Flag
from factory_watchdog.world import busy_flag, clock, processes

TTL = 7200.0
LOCKER = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(file, int(sys.argv[2]))
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    return tmp_path / "spark1.busy"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def look(path: Path, *, later: float = 0.0, previous: Flag = busy_flag.NO_FLAG) -> Flag:
    return busy_flag.look(path, TTL, clock.wall() + later, clock.boottime() + later, previous)


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def named(pid: int, *, start: int = 0, boot: str = "") -> str:
    return f"{pid} {start or processes.start_ticks(pid)} {boot or processes.boot_id()}\n"


class Locker:
    """A process that has a lock on a file until it is told to end."""

    def __init__(self, path: Path, how: int) -> None:
        command = [sys.executable, "-c", LOCKER, str(path), str(int(how))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "locked\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def test_no_flag(flag: Path) -> None:
    assert look(flag) == Flag()
    assert look(flag.parent / "no-folder" / "spark1.busy") == Flag()


def test_touched(flag: Path) -> None:
    flag.touch()
    found = look(flag)
    assert (found.held, found.stale, found.why) == (True, False, "spark1.busy: touched 0 s ago")


@pytest.mark.parametrize("content", ["", "\n", "1\n", "busy since noon", "1 2 3", "x" * 100_000])
def test_what_names_nobody_is_bare(flag: Path, content: str) -> None:
    flag.write_text(content)
    age(flag, TTL - 60)
    assert look(flag).held
    age(flag, TTL + 60)
    assert look(flag) == Flag(stale=True, why="spark1.busy: touched 2 h 1 min ago, more than 2 h")


def test_a_flag_from_the_near_future_is_held_one_from_the_far_future_is_not(flag: Path) -> None:
    flag.touch()
    age(flag, -TTL / 2)
    assert look(flag).held
    age(flag, -TTL - 60)
    assert look(flag).stale


@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_locked_however_old(flag: Path, how: int) -> None:
    flag.touch()
    age(flag, 10 * TTL)
    with Locker(flag, how):
        assert look(flag).held
        assert look(flag).why == "spark1.busy: a process has it locked"
    assert look(flag).stale


def test_a_file_system_without_exclusive_locks_for_readers(flag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock

    def as_on_nfs(file: int, how: int) -> None:
        if how & fcntl.LOCK_EX:
            raise OSError(9, "Bad file descriptor")
        real(file, how)

    flag.touch()
    age(flag, 10 * TTL)
    monkeypatch.setattr(fcntl, "flock", as_on_nfs)
    assert look(flag).stale
    with Locker(flag, fcntl.LOCK_EX):
        assert look(flag).held


def test_a_process_that_is_killed_leaves_no_held_flag(flag: Path) -> None:
    flag.touch()
    age(flag, 10 * TTL)
    with Locker(flag, fcntl.LOCK_EX) as locker:
        assert look(flag).held
        locker.process.kill()
        locker.process.wait()
        assert look(flag).stale


def test_looking_leaves_no_lock(flag: Path) -> None:
    flag.touch()
    age(flag, 10 * TTL)
    assert look(flag).stale
    with flag.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_child_forked_meanwhile_keeps_no_lock(flag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", shared.append)  # as if a child had the file open still
        flag.touch()
        age(flag, 10 * TTL)
        assert look(flag).stale
        with flag.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for file in shared:
        os.close(file)


def test_young_and_named_flags_are_not_even_tried(flag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(*_: object) -> None:
        raise AssertionError("the lock was tried")

    monkeypatch.setattr(fcntl, "flock", tried)
    flag.touch()
    assert look(flag).held
    flag.write_text(named(os.getpid()))
    age(flag, 10 * TTL)
    assert look(flag).held
    flag.write_text("")
    age(flag, 10 * TTL)
    with pytest.raises(AssertionError):
        look(flag)


def test_named_while_the_process_lives(flag: Path, sleeper: subprocess.Popen[bytes]) -> None:
    flag.write_text(named(sleeper.pid))
    age(flag, 10 * TTL)
    assert look(flag).held
    assert look(flag).why == f"spark1.busy: process {sleeper.pid} holds it"
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    zombie = look(flag)
    sleeper.wait()
    assert zombie == look(flag) == Flag(stale=True, why=f"spark1.busy: process {sleeper.pid} is gone")


def test_named_and_young_but_dead_is_stale(flag: Path, sleeper: subprocess.Popen[bytes]) -> None:
    flag.write_text(named(sleeper.pid))
    sleeper.kill()
    sleeper.wait()
    assert look(flag).stale


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"start": 1}, "is gone, another has its PID"),
        ({"boot": "00000000-0000-0000-0000-000000000000"}, "was of an earlier boot"),
    ],
)
def test_another_process_of_that_pid_does_not_count(flag: Path, changed: dict[str, object], why: str) -> None:
    flag.write_text(named(os.getpid(), **changed))  # type: ignore[arg-type]
    assert look(flag) == Flag(stale=True, why=f"spark1.busy: process {os.getpid()} {why}")


def test_dead_by_name_but_locked_is_held(flag: Path) -> None:
    flag.write_text(named(os.getpid(), start=1))
    with Locker(flag, fcntl.LOCK_EX):
        assert look(flag).held


def test_what_is_no_file_is_reported_and_ignored(flag: Path) -> None:
    target = flag.parent / "target"
    target.touch()
    flag.symlink_to(target)
    assert look(flag) == Flag(stale=True, why="spark1.busy: a symbolic link, not a file")
    flag.unlink()
    os.mkfifo(flag)
    assert look(flag) == Flag(stale=True, why="spark1.busy: a FIFO, not a file")
    flag.unlink()
    flag.mkdir()
    assert look(flag) == Flag(stale=True, why="spark1.busy: a directory, not a file")
    flag.rmdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(flag))
        assert look(flag) == Flag(stale=True, why="spark1.busy: a socket, not a file")
    assert look(Path("/dev/null")) == Flag(stale=True, why="null: a device, not a file")


def test_a_path_through_a_file_cannot_be_looked_at(flag: Path) -> None:
    flag.touch()
    assert look(flag / "below") == Flag(stale=True, why="below: cannot be looked at: Not a directory")


def test_what_becomes_a_fifo_meanwhile_does_not_block(flag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regular = flag.parent / "regular"
    regular.touch()
    os.mkfifo(flag)
    before = os.lstat(regular)
    monkeypatch.setattr(os, "lstat", lambda _: before)
    assert look(flag).stale


def test_unreadable_counts_as_bare(flag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    flag.write_text(named(os.getpid(), start=1))
    monkeypatch.setattr(os, "open", refuse)
    assert look(flag).held
    age(flag, TTL + 60)
    assert look(flag).stale


def test_unreadable_for_another_user(flag: Path, need: object) -> None:
    need(os.geteuid() == 0 and shutil.which("setpriv"), "root and setpriv are needed to become another user")  # type: ignore[operator]
    flag.write_text(named(os.getpid(), start=1))
    flag.chmod(0o600)
    for folder in (flag.parent, flag.parent.parent, flag.parent.parent.parent):
        folder.chmod(0o755)
    program = (
        "import sys, time; from pathlib import Path; from factory_watchdog.world import busy_flag;"
        f"print(busy_flag.look(Path({str(flag)!r}), 7200.0, time.time(), 1e6).held)"
    )
    command = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-B", "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


def test_since_tells_the_whole_time(flag: Path) -> None:
    flag.touch()
    age(flag, 600)
    first = look(flag)
    assert first.since == pytest.approx(clock.boottime() - 600, abs=5)
    flag.touch()
    assert look(flag, previous=first).since == first.since
    age(flag, TTL + 60)
    with Locker(flag, fcntl.LOCK_EX):
        assert look(flag).since == pytest.approx(clock.boottime(), abs=5)
        assert look(flag, later=50_000, previous=first).since == first.since
