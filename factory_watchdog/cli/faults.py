"""How faults are told, and the exit codes they give: no supervisor may take a fault of ours for a dead server."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Container, Sequence

from factory_watchdog.core.text import clean
from factory_watchdog.errors import ConfigError, WatchdogError

CHECK = "check"
UNKNOWN = 3
"""Exit code of `check` for every fault of its own; 2 means hung or dead."""

BAD_CONFIG = 78
"""Exit code of `run` for a bad file: EX_CONFIG of sysexits.h, for which the unit says not to restart."""

USAGE = 2
"""Exit code of all commands but `check` for wrong usage, as is usual."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: that of a shell's command ended by SIGINT."""

PROBE_FAULTS = {"liveness": 0, "readiness": 1, "startup": 1}
"""Exit codes of `check --for` for a fault of its own: what we do not know is no ground for a restart."""


def tell(error: BaseException, arguments: Sequence[str], commands: Container[str]) -> int:
    """Tell a fault on standard error, for `check` in one line on standard output as well; the exit code."""
    # A mistyped `check` must not say 2 either; without any argument it is a person who sees the help.
    command = next((a for a in arguments if a in commands), CHECK if arguments else "")
    if command == CHECK:
        _say_unknown(error, as_json="--json" in arguments)
    if command == CHECK or not isinstance(error, BrokenPipeError):  # `llm-health history | head` is no fault
        _explain(error)
    if _is_output(error):
        _drop_output()
    return _code(error, command, arguments)


def _code(error: BaseException, command: str, arguments: Sequence[str]) -> int:
    if command == CHECK:
        return PROBE_FAULTS.get(_purpose(arguments), UNKNOWN)
    if _interrupted(error):
        return INTERRUPTED
    if _is_usage(error):
        return USAGE
    return BAD_CONFIG if command == "run" and isinstance(error, ConfigError) else 1


def _purpose(arguments: Sequence[str]) -> str:
    """What `--for` was given, also where the rest of the line cannot be parsed."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    after = words.index("--for") + 1 if "--for" in words else len(words)
    return words[after] if after < len(words) else ""


def _is_usage(error: BaseException) -> bool:
    """Whether it is the command line that is wrong: such an exception of typer's can show itself."""
    return hasattr(error, "show")


def _interrupted(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort"


def _sentence(error: BaseException) -> str:
    if _interrupted(error):
        return "interrupted"
    if _is_usage(error):
        return str(getattr(error, "message", "wrong usage"))
    if isinstance(error, WatchdogError):
        return str(error)
    if _is_output(error):
        return f"output cannot be written: {getattr(error, 'strerror', error)}"
    return f"internal error: {type(error).__name__}: {error}"


def _is_output(error: BaseException) -> bool:
    """Whether whoever reads our output has gone, or has no room for it."""
    return isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC) and error.filename is None


def _say_unknown(error: BaseException, *, as_json: bool) -> None:
    """The line for those who read standard output only, as Nagios does; a person at a terminal has standard error."""
    if _is_output(error) or (sys.stdout.isatty() and not as_json):
        return
    sentence = clean(_sentence(error))
    line = json.dumps({"exit": UNKNOWN, "error": sentence}) if as_json else f"LLM-HEALTH UNKNOWN - {sentence}"
    sys.stdout.write(line + "\n")


def _explain(error: BaseException) -> None:
    if _is_usage(error):
        error.show()  # type: ignore[attr-defined]
    elif isinstance(error, ConfigError):
        sys.stderr.write(f"{error}\n")
    elif isinstance(error, WatchdogError) or _is_output(error):
        sys.stderr.write(f"llm-health: {_sentence(error)}\n")
    elif not _interrupted(error):
        traceback.print_exception(error, file=sys.stderr)


def _drop_output() -> None:
    """Let what is still to be written vanish, so that the interpreter does not fail for it at its end."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
