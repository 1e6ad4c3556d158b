"""`python -m factory_watchdog` and the command `llm-health`."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.stdout, sys.stderr = _writable(sys.stdout), _writable(sys.stderr)
    from factory_watchdog.cli.app import run_command_line

    sys.exit(run_command_line(sys.argv[1:]))


def _writable(stream: TextIO | None) -> TextIO:
    """The stream, able to take any text in any locale; one that leads nowhere where it was closed by who started us."""
    if not isinstance(stream, io.TextIOWrapper):
        return open(os.devnull, "w")
    stream.reconfigure(errors="backslashreplace")
    return stream


if __name__ == "__main__":
    main()
