"""The files that tell batch jobs the state, in the daemon's runtime_dir.

`NAME.json` has the verdict; `NAME.wait` is empty and exists while a job had better wait, for `[ -e ]` in a shell. Both
are replaced or made at once, so nobody ever reads half a file. They are on a tmpfs, so nothing is synced.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterator
from pathlib import Path

from factory_watchdog.core.model import State, Verdict
from factory_watchdog.errors import RuntimeFilesError

MODE = 0o644  # everybody may read them, whatever the daemon's umask is
WAIT = frozenset({State.STARTING, State.PAUSED, State.HUNG, State.DEAD})


def write(
    folder: Path, name: str, verdict: Verdict, *, since: float, ready: bool, restarting: bool, updated: float
) -> None:
    """Tell `verdict` of backend `name`; `since` and `updated` are wall-clock times.

    Raises RuntimeFilesError; then each of the two files is as before or as it should be, never between.
    """
    told = {
        "state": verdict.state,
        "since": _iso(since),
        "why": verdict.why,
        "ready": ready,
        "engine": verdict.engine,
        "rule": verdict.rule,
        "updated": _iso(updated),
    }
    wait = restarting or verdict.state in WAIT
    with _told(folder):
        if wait:  # first, so that no job begins between the two
            _replace(folder / f"{name}.wait", b"")
        _replace(folder / f"{name}.json", json.dumps(told).encode() + b"\n")
        if not wait:
            (folder / f"{name}.wait").unlink(missing_ok=True)


def remove(folder: Path, name: str) -> None:
    """Remove both files: nobody watches `name` any more, and a job must not wait for ever. Raises RuntimeFilesError."""
    with _told(folder):
        for kind in ("json", "wait"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RuntimeFilesError(f"{folder} cannot be written to: {os.strerror(error.errno or 0)}") from error


def _replace(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step."""
    draft = path.with_name(f".{path.name}.new")
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
        with open(file, "wb") as stream:
            os.fchmod(file, MODE)
            stream.write(content)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _iso(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
