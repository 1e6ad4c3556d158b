"""What a look without a daemon remembers from one call to the next: a file for each backend, locked while we look."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import stat
import sys
import time
from pathlib import Path
from typing import Self

from factory_watchdog.config import schema
from factory_watchdog.core.memory import Backend
from factory_watchdog.saved import SavedStateError, decode, encode
from factory_watchdog.world.clock import Clock

LOCK_EVERY = 0.05
"""Seconds between two tries to lock the file: a blocking try would stop the looks at other backends as well."""

LARGEST = 16 << 20
"""Bytes read; one backend's state has some kB."""

MARK = b'{"format":'
"""How a state file begins; a file that begins otherwise is somebody's, and is left alone."""


def usual_file(backend: schema.Backend) -> Path | None:
    """The file of a backend's address in the user's own state folder; None for a user without a home."""
    if os.geteuid() == 0:
        folder = "/var/lib/factory-watchdog/check"
    else:
        state = os.environ.get("XDG_STATE_HOME", "")
        folder = (state if state.startswith("/") else os.path.expanduser("~/.local/state")) + "/factory-watchdog"
    mark = hashlib.sha256(backend.url.encode()).hexdigest()[:8]
    return Path(folder) / f"{backend.name}-{mark}.json" if folder.startswith("/") else None


class StateFile:
    """The file at `path`. Two checks at once must not send two questions, so it is locked while one looks.

    Who does not get the lock may still read what is known, and writes nothing. Where the file cannot be used a look
    still works, but a hang can never be proven; that is said on standard error.
    """

    def __init__(self, path: Path | None, boot: str) -> None:
        self._path, self._boot = path, boot
        self._file: int | None = None
        self._writable = False
        try:
            self._file = _opened(path)
        except OSError as error:
            self._complain(error.strerror or str(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    async def lock(self, patience: float) -> bool:
        """Lock the file within `patience` seconds; False where another look has it. A file that we lack nobody has."""
        if self._file is None:
            return True
        ends = time.monotonic() + patience
        while not _locked(self._file):
            if time.monotonic() >= ends:
                return False
            await asyncio.sleep(LOCK_EVERY)
        self._writable = True
        return True

    def recall(self, name: str) -> dict[str, Backend]:
        """What was seen before, if it was in this boot of the host."""
        if self._file is None:
            return {}
        text = os.pread(self._file, LARGEST, 0)
        if not text:
            return {}
        if not text.startswith(MARK):
            self._writable = False
            self._complain("has something else in it and is left alone")
            return {}
        try:
            saved = decode(text)
        except SavedStateError as error:
            sys.stderr.write(f"llm-health: state file {self._path}: {error}; it is begun afresh\n")
            return {}
        return {name: saved.backend} if saved.boot_id == self._boot else {}

    def keep(self, backend: Backend, clock: Clock) -> None:
        """Put what is known now in place of what was, if the file is ours to write."""
        if self._file is None or not self._writable:
            return
        text = encode(backend, self._boot, clock.boottime(), clock.wall())
        try:
            written = os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, written)
        except OSError as error:
            self._complain(error.strerror or str(error))

    def _complain(self, why: str) -> None:
        sys.stderr.write(f"llm-health: state file {self._path or ''}: {why}; nothing is remembered between calls\n")


def _opened(path: Path | None) -> int:
    """The file, made where there is none. Raises OSError, also for what is no file."""
    if path is None:
        raise OSError(errno.ENOENT, "you have no home folder; give a file with --state-file")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "is not a regular file")


def _locked(file: int) -> bool:
    """Whether the lock is ours now; on a file system that knows no locks nobody else can have it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
