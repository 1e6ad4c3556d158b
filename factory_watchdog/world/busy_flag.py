"""The busy flag of batch jobs: whether somebody holds it, told without disturbing those who do.

A flag is a regular file, and it is held while any of these is so:

- It is *named*: its first line is "PID START BOOT", and that process still lives. START is the process's start time in
  clock ticks since boot (field 22 of /proc/PID/stat), BOOT what /proc/sys/kernel/random/boot_id says; by these a reused
  PID and an earlier boot are known.
- It is *bare* (it has no such line, or we may not read it) and at most `ttl` old by its mtime.
- A process has a flock(2) on it.

The lock is tried last, and only where the flag would otherwise be stale: our try can make somebody's simultaneous
non-blocking try fail, for some microseconds. So a new, named or young flag is never
tried, a lock that is held does not notice a try that fails, and what remains is a job that takes an abandoned flag
with `flock --nonblock` in that very moment. /proc/locks would disturb nobody, but it leaves out locks of other PID
namespaces, shows other device numbers than stat(2) on some file systems and can skip lines while locks change; and a
held flag that is taken for a free one costs a batch job.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from pathlib import Path

from factory_watchdog.core.model import Flag
from factory_watchdog.core.wording import span
from factory_watchdog.world import processes

NO_FLAG = Flag()

_READ_AT_MOST = 128  # bytes; "PID START BOOT" has at most 10 + 20 + 36 of them and two spaces
_NAMED = re.compile(rb"([1-9][0-9]{0,9}) ([0-9]{1,20}) ([0-9a-f-]{36})")
_NOT_A_FILE = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def look(path: Path, ttl: float, wall: float, boottime: float, previous: Flag = NO_FLAG) -> Flag:
    """The flag at `path`; `previous` is what the last look found, so that `since` tells the whole time it is held.

    What cannot be a flag (a link, a FIFO, a directory, a path that we may not look at) counts as stale: it is
    reported and ignored. Never raises OSError for the flag's sake, and never blocks on what stands at `path`.
    """
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
        if kind != stat.S_IFREG:
            return _stale(path, f"{_NOT_A_FILE.get(kind, 'something else')}, not a file")
        return _look_at_file(path, ttl, wall, boottime, previous)
    except FileNotFoundError:
        return NO_FLAG
    except OSError as error:
        return _stale(path, f"cannot be looked at: {os.strerror(error.errno or 0)}")


def _look_at_file(path: Path, ttl: float, wall: float, boottime: float, previous: Flag) -> Flag:
    file = _opened(path)
    try:
        facts = os.lstat(path) if file is None else os.fstat(file)
        age = wall - facts.st_mtime
        held, why = _by_name(_named(file)) or _by_age(age, ttl)
        if not held and file is not None and _locked(file):
            held, why, age = True, "a process has it locked", 0.0
    finally:
        if file is not None:
            os.close(file)
    if not held:
        return _stale(path, why)
    since = previous.since if previous.held and previous.since is not None else boottime - max(age, 0.0)
    return Flag(held=True, why=f"{path.name}: {why}", since=since)


def _stale(path: Path, why: str) -> Flag:
    return Flag(stale=True, why=f"{path.name}: {why}")


def _opened(path: Path) -> int | None:
    """The file opened for reading; None where it may not be read. OSError where it is not what it was a moment ago."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.ESTALE, "replaced while it was looked at")


def _named(file: int | None) -> tuple[int, int, str] | None:
    """The process that the file names; None where it is bare."""
    try:
        content = b"" if file is None else os.read(file, _READ_AT_MOST)
    except OSError:
        return None
    match = _NAMED.fullmatch(content.partition(b"\n")[0])
    return (int(match[1]), int(match[2]), match[3].decode()) if match else None


def _by_name(holder: tuple[int, int, str] | None) -> tuple[bool, str] | None:
    """Whether the process that is named lives, and the words for it; None where none is named."""
    if holder is None:
        return None
    pid, start, boot = holder
    if boot != processes.boot_id():
        return False, f"process {pid} was of an earlier boot"
    if processes.left_over([(pid, start)]):
        return True, f"process {pid} holds it"
    if processes.start_ticks(pid) in (None, start):  # gone, or a zombie
        return False, f"process {pid} is gone"
    return False, f"process {pid} is gone, another has its PID"


def _by_age(age: float, ttl: float) -> tuple[bool, str]:
    """Whether a bare flag is young enough, and the words for it; one from the future is as doubtful as an old one."""
    if age < -ttl:
        return False, f"touched {span(-age)} in the future"
    if age > ttl:
        return False, f"touched {span(age)} ago, more than {span(ttl)}"
    return True, f"touched {span(age)} ago"


def _locked(file: int) -> bool:
    """Whether a process has a lock on the file, of either kind: only an exclusive try meets shared locks, too.

    NFS refuses an exclusive lock on a file that is open for reading only, so there a shared try has to do. Where the
    file system knows no locks, nobody has one.
    """
    for how in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            continue
        fcntl.flock(file, fcntl.LOCK_UN)  # at once, also for a child that was forked meanwhile and shares the file
        return False
    return False
