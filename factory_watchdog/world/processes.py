"""What the kernel says of processes: start times, control groups, states. See proc(5) and cgroups(7)."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

_PROC = pathlib.Path("/proc")
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_STATE = 0  # place of field 3 of /proc/PID/stat, counted after the command name
_START = 19  # place of field 22, likewise
_GONE = frozenset("ZX")  # a zombie and a dead process hold no memory, no port and no device

Process = tuple[int, int]  # PID and start time in clock ticks since boot: together they never name another process


def start_ticks(pid: int, proc: pathlib.Path = _PROC) -> int | None:
    """The start time of process `pid` in clock ticks since boot; None when it is gone or cannot be seen."""
    fields = _stat(pid, proc)
    return int(fields[_START]) if fields else None


def boot_id(proc: pathlib.Path = _PROC) -> str:
    """The id of this boot of the host, which start times belong to. OSError where the kernel does not tell it."""
    return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def processes(control_group: str, proc: pathlib.Path = _PROC, cgroups: pathlib.Path = _CGROUPS) -> list[Process]:
    """The processes in `control_group` (as systemd names it: "/system.slice/x.service") and all groups below it.

    Those that end meanwhile are left out, as are those in a group that vanishes; a group that is gone has none.
    """
    top = cgroups / control_group.strip("/")
    if not control_group.strip("/") or ".." in top.parts:
        return []
    found = {pid for folder, _, _ in os.walk(top) for pid in _members(pathlib.Path(folder))}
    started = ((pid, start_ticks(pid, proc)) for pid in sorted(found))
    return [(pid, start) for pid, start in started if start is not None]


def left_over(before: Iterable[Process], proc: pathlib.Path = _PROC) -> tuple[int, ...]:
    """The PIDs of `before` that are the same processes still and alive; zombies are not."""
    return tuple(pid for pid, start in before if _alive(pid, start, proc))


def _alive(pid: int, start: int, proc: pathlib.Path) -> bool:
    fields = _stat(pid, proc)
    return fields is not None and int(fields[_START]) == start and fields[_STATE] not in _GONE


def _stat(pid: int, proc: pathlib.Path) -> list[str] | None:
    """The fields after the command name, which may itself contain spaces and parentheses."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # gone, or hidden by a hidepid mount
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > _START else None


def _members(folder: pathlib.Path) -> list[int]:
    try:
        lines = (folder / "cgroup.procs").read_text(encoding="ascii").split()
    except OSError:  # the group vanished between the walk and the look, or is a threaded one (EOPNOTSUPP)
        return []
    return [int(line) for line in lines if line != "0"]  # 0: a process outside our own PID namespace
