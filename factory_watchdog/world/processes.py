"""What the kernel says of processes: start times, control groups, states. See proc(5) and cgroups(7)."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable

_PROC = pathlib.Path("/proc")
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_STATE = 0  # place of field 3 of /proc/PID/stat, counted after the command name
_PARENT = 1  # place of field 4, likewise
_USER_TIME, _SYSTEM_TIME = 11, 12  # places of fields 14 and 15, likewise
_THREADS = 17  # place of field 20, likewise
_START = 19  # place of field 22, likewise
_RESIDENT = 21  # place of field 24, likewise; in pages
_PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes
_GONE = frozenset("ZX")  # a zombie and a dead process hold no memory, no port and no device

# What a process of a model server is, by the name that it gives itself; the kernel keeps 15 characters of it.
_ROLES = {
    "VLLM::EngineCor": "engine",
    "VLLM::Worker": "worker",
    "VLLM::DPCoordin": "coordinator",
    "VLLM::APIServer": "api",
    "VLLM::ApiServer": "api",
    "vllm": "api",
    "llama-server": "api",
}

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


def described(some: Iterable[Process], proc: pathlib.Path = _PROC) -> list[dict[str, object]]:
    """Facts of each process that is still the same one: never its command line, which may hold secrets.

    `role` is what its name says (see `_ROLES`), `cpu` and `start` are clock ticks, `state` is the kernel's letter,
    `resident` is memory in bytes.
    """
    return [facts for pid, start in some if (facts := _facts(pid, start, proc)) is not None]


def _facts(pid: int, start: int, proc: pathlib.Path) -> dict[str, object] | None:
    fields = _stat(pid, proc)
    if fields is None or int(fields[_START]) != start:
        return None
    return {
        "pid": pid,
        "ppid": int(fields[_PARENT]),
        "role": _role(_name(pid, proc)),
        "state": fields[_STATE],
        "cpu": int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME]),
        "start": start,
        "threads": int(fields[_THREADS]),
        "resident": int(fields[_RESIDENT]) * _PAGE,
    }


def _role(name: str) -> str:
    return next((role for prefix, role in _ROLES.items() if name.startswith(prefix)), "child")


def _name(pid: int, proc: pathlib.Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


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
    return fields if len(fields) > _RESIDENT else None


def _members(folder: pathlib.Path) -> list[int]:
    try:
        lines = (folder / "cgroup.procs").read_text(encoding="ascii").split()
    except OSError:  # the group vanished between the walk and the look, or is a threaded one (EOPNOTSUPP)
        return []
    return [int(line) for line in lines if line != "0"]  # 0: a process outside our own PID namespace
