"""`python -m factory_watchdog` and the command `llm-health`."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from typing import NoReturn, TextIO


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.stdout, sys.stderr = _writable(sys.stdout), _writable(sys.stderr)
    checking = "check" in sys.argv[1:2]
    if checking:
        gc.disable()  # it lives for a tenth of a second, of which collecting would take a tenth
    from factory_watchdog.cli.app import run_command_line

    code = run_command_line(sys.argv[1:])
    if checking:
        _end(code)
    sys.exit(code)


def _end(code: int) -> NoReturn:
    """End at once: taking the interpreter apart costs a check 20 ms of CPU, and there is nothing left to be done."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _writable(stream: TextIO | None) -> TextIO:
    """The stream, able to take any text in any locale; one that leads nowhere where it was closed by who started us."""
    if not isinstance(stream, io.TextIOWrapper):
        return open(os.devnull, "w")
    stream.reconfigure(errors="backslashreplace")
    return stream


if __name__ == "__main__":
    main()
