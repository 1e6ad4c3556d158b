"""Lines of the journal, read for a person at the moment of asking. Kept nowhere: they may hold anything."""

from __future__ import annotations

import math
import os
import subprocess
import threading

from factory_watchdog.core.text import clean
from factory_watchdog.errors import WatchdogError

NEWEST = 200
"""Lines shown: some screens; whoever wants more has the command."""

LONGEST = 10.0
"""Seconds for the journal to be read; on a slow disk with years of it a filtered read takes some."""

WIDEST = 500
"""Characters of a line shown."""

LARGEST = 1 << 20
"""Bytes read: 200 lines have some 30 kB, but a line may hold a page of a program's output."""


class JournalError(WatchdogError):
    """The journal cannot be read here; the text says why."""


def command(invocation: str, since: float, until: float) -> list[str]:
    """The command that shows what one life of a unit said between two wall-clock times, the newest lines of it."""
    match = f"_SYSTEMD_INVOCATION_ID={invocation}"
    span = (f"--since=@{math.floor(since)}", f"--until=@{math.ceil(until)}")
    return ["journalctl", match, *span, "--output=short-iso", "--no-pager", f"--lines={NEWEST}"]


def read(invocation: str, since: float, until: float) -> list[str]:
    """Those lines, without control characters. Raises JournalError where there are none to be had, with the reason."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"}
    if "TZ" in os.environ:
        environment["TZ"] = os.environ["TZ"]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command(invocation, since, until), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment
        )
    except OSError as error:
        raise JournalError(f"journalctl cannot be started: {error.strerror or error}") from None
    said, complaint, status = _collect(process)
    lines = [_shown(line) for line in said.split("\n") if line and not line.startswith("-- ")]
    if not lines:
        why = next((clean(line) for line in complaint.splitlines() if line.strip()), "")
        ended = f"journalctl ended with status {status}" if status else "it has none of that time"
        raise JournalError(f"{ended}{f': {why}' if why else ''}")
    return lines[-NEWEST:]


def _collect(process: subprocess.Popen[bytes]) -> tuple[str, str, int]:
    """What it said, what it complained of, and its exit status; ended where it takes too long or says too much."""
    timer = threading.Timer(LONGEST, process.kill)
    timer.start()
    try:
        with process:
            assert process.stdout is not None  # noqa: S101 - both were asked for
            assert process.stderr is not None  # noqa: S101
            said = process.stdout.read(LARGEST)
            if len(said) == LARGEST:
                process.kill()
            complaint = process.stderr.read(LARGEST)
    finally:
        timer.cancel()
    return said.decode("utf-8", "replace"), complaint.decode("utf-8", "replace"), process.returncode


def _shown(line: str) -> str:
    """A line with its indentation, without what a terminal would act upon."""
    return "".join(c if c.isprintable() else " " for c in line[:WIDEST]).rstrip()
