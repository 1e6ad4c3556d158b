"""`llm-health check`: how backends are, for people, cron, Nagios and exec probes.

Asks the daemon, which knows best and costs nothing. Where none runs it looks by itself, with the same rules, and
remembers between calls in a state file; then it never restarts anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from factory_watchdog.cli.daemon import socket_of
from factory_watchdog.cli.faults import PROBE_FAULTS, UNKNOWN
from factory_watchdog.core.model import MEANING, State
from factory_watchdog.errors import ControlError, NoDaemonError, WatchdogError
from factory_watchdog.world.clock import boottime
from factory_watchdog.world.control import call
from factory_watchdog.world.processes import start_ticks

Told = dict[str, Any]
"""One backend as the daemon's `status` tells it; `state` is None where nothing is known."""

PURPOSES = tuple(PROBE_FAULTS)

PROBE_TIME = 0.75
"""Seconds from the start of the process in which `--for` ends: an exec probe's default limit is 1 s (Kubernetes,
timeoutSeconds), and 0.8 s are promised."""

PROBE_LEAST = 0.3
"""Seconds of it that are left at least, however long the interpreter took to start on a host at full load."""

PROBE_ASK = 0.15
"""Seconds of it for the daemon's reply, so that a look is still possible where it does not come."""

ASK_TIME = 2.0
"""Seconds for the daemon's reply: it answers from memory, within milliseconds."""

LOOK_AGAIN = 1.0
"""Seconds until `--wait` asks the daemon again."""

WORST_FIRST = (2, 1, 3, 0)
"""Exit codes in the order in which several backends give one."""

WORDS = {0: "OK", 1: "WARNING", 2: "CRITICAL", UNKNOWN: "UNKNOWN"}
"""The states of a Nagios plugin, by exit code (Monitoring Plugins Development Guidelines)."""


class CheckError(WatchdogError):
    """The command line asks for what there is not."""


def check(targets: Sequence[str], config: Path, *, wait: bool, purpose: str, as_json: bool, file: Path | None) -> int:
    """Print how the targets are; the exit code. Raises WatchdogError for every fault of our own."""
    if purpose and purpose not in PURPOSES:
        raise CheckError(f"--for {purpose}: must be {', '.join(PURPOSES[:-1])} or {PURPOSES[-1]}")
    with _ending(purpose) if purpose else contextlib.nullcontext() as ends:
        told = _told(targets, config, wait=wait, ends=ends, file=file)
        _print(told, as_json=as_json)
    if purpose:
        return 0 if all(_passes(t, purpose) for t in told) else 1
    return worst(_exit(t) for t in told)


@contextlib.contextmanager
def _ending(purpose: str) -> Iterator[float]:
    """End the process in time, whatever it waits for: a name server, the bus, a slow disk. Gives the monotonic time."""

    def end(_number: int, _frame: object) -> None:
        os.write(2, f"llm-health: not known in time for {purpose}\n".encode())
        os._exit(PROBE_FAULTS[purpose])

    left = max(PROBE_TIME - _age(), PROBE_LEAST)
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        yield time.monotonic() + left
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _age() -> float:
    """Seconds since this process began."""
    began = start_ticks(os.getpid())
    return boottime() - began / os.sysconf("SC_CLK_TCK") if began is not None else 0.0


def worst(codes: Iterable[int]) -> int:
    """The one exit code of several backends."""
    return min(codes, key=WORST_FIRST.index, default=UNKNOWN)


def _exit(told: Told) -> int:
    return MEANING[State(told["state"])].exit if told["state"] is not None else UNKNOWN


def _passes(told: Told, purpose: str) -> bool:
    if purpose == "liveness":
        return bool(told["live"])
    if purpose == "readiness":
        return bool(told["ready"])
    return told["state"] not in (None, State.STARTING)


# --- asking the daemon, or looking -----------------------------------------------------------------------------------


def _told(targets: Sequence[str], config: Path, *, wait: bool, ends: float | None, file: Path | None) -> list[Told]:
    """The targets as the daemon tells them; what it does not watch, and all where there is none, by our own look."""
    names = [t for t in targets if "://" not in t]
    urls = [t for t in targets if "://" in t]
    known = _from_daemon(names, config, wait=wait, probe=ends is not None) if names or not targets else []
    if known is not None and not urls:
        return known
    from factory_watchdog.cli import look

    looked_at = look.look(
        names if known is None else None,
        urls,
        config,
        wait=wait,
        ends=ends,
        everything=known is None and not targets,
        file=file,
    )
    return [*(known or []), *looked_at]


def _from_daemon(names: Sequence[str], config: Path, *, wait: bool, probe: bool) -> list[Told] | None:
    """What the daemon says of these backends (none named: of all); None where no daemon answers."""
    path = socket_of(config)
    while True:
        try:
            reply = call(path, {"command": "status"}, PROBE_ASK if probe else ASK_TIME)
        except NoDaemonError:
            return None
        if not reply["ok"]:
            raise ControlError(str(reply.get("error")))
        told = _chosen(reply["backends"], names)
        if not wait or probe or all(t["state"] not in (None, State.SUSPECT) for t in told):
            return told
        time.sleep(LOOK_AGAIN)


def _chosen(backends: list[Told], names: Sequence[str]) -> list[Told]:
    known = {t["name"]: t for t in backends}
    missing = [name for name in names if name not in known]
    if missing:
        raise ControlError(f"the daemon does not watch {', '.join(missing)}; it watches {', '.join(known)}")
    return [known[name] for name in names] if names else backends


# --- printing --------------------------------------------------------------------------------------------------------


def _print(told: list[Told], *, as_json: bool) -> None:
    if as_json:
        text = json.dumps({"exit": worst(_exit(t) for t in told), "backends": told})
    elif sys.stdout.isatty():
        text = _table(told)
    else:
        text = nagios_line(told)
    sys.stdout.write(text + "\n")


def _table(told: list[Told]) -> str:
    """Aligned columns for a terminal."""
    rows = [("BACKEND", "STATE", "RUNNING", "WAITING", "TOKENS/S", "WHY")]
    rows += [
        (t["name"], str(t["state"] or "unknown"), *(_number(t.get(key)) for key in _NUMBERS), t["why"]) for t in told
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[-1]]) for r in rows)


_NUMBERS = {"running": "running", "waiting": "waiting", "tokens_per_second": "tokens"}
"""The numbers always shown, by their key, with their name in performance data."""


def nagios_line(told: list[Told]) -> str:
    """One line of a monitoring plugin, performance data after the bar; U where a number is not told."""
    code = worst(_exit(t) for t in told)
    says = "; ".join(f"{t['name']} {t['state'] or 'unknown'}: {t['why']}" for t in told)
    data = " ".join(f"'{t['name']}_{name}'={_number(t.get(key), 'U')}" for t in told for key, name in _NUMBERS.items())
    return f"LLM-HEALTH {WORDS[code]} - {says} | {data}"


def _number(value: float | None, missing: str = "-") -> str:
    if value is None:
        return missing
    return f"{value:.1f}" if value % 1 else f"{value:.0f}"
