"""`llm-health demo`: the main job in about a minute, against a simulated server, told as it happens."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import textwrap
from collections import Counter

from factory_watchdog.core.model import MEANING, State
from factory_watchdog.simulate import demo as show
from factory_watchdog.simulate.demo import Act, Kind, Line, Report
from factory_watchdog.world.clock import HostClock

SEEN, NOT_SEEN, INTERRUPTED = 0, 1, 130

WIDTH = 96  # columns; fits a terminal of 100 and a page of documentation
BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
COLOURS = {
    Kind.LOOK: DIM,
    Kind.QUESTION: CYAN,
    Kind.ANSWER: CYAN,
    Kind.ALERT: BOLD,
    Kind.RESTART: BOLD,
    Kind.FAULT: RED,
}
OF_STATES = {0: GREEN, 1: YELLOW, 2: RED, 3: YELLOW}
"""Colours of states by what `check` exits with."""

INTRODUCTION = (
    "A model server made of numbers listens on {url}, with a service manager made of numbers beside it. The watchdog "
    "is the real one, over real HTTP, by the real clock. Only its windows are short: it looks every second (default "
    "10 s), and requests that stand still for 10 s are suspicious (default 120 s). This takes {seconds:.0f} s; Ctrl-C "
    "ends it."
)


def demo() -> int:
    """Perform the play; 0 when everything that it promises was seen, 1 when not, 130 when it was interrupted."""
    try:
        report = asyncio.run(show.play(show.over_http, HostClock(), Screen(), _introduce))
    except KeyboardInterrupt:
        _say("\ninterrupted: the simulated server is gone, nothing is left behind")
        return INTERRUPTED
    except OSError as error:
        sys.stderr.write(f"llm-health demo: no port of 127.0.0.1 can be had: {error}\n")
        return NOT_SEEN
    return summarise(report)


class Screen(show.Viewer):
    """Tells the play on standard output, line by line."""

    def begins(self, t: float, number: int, act: Act) -> None:
        _say(f"\n{_coloured(f'{number}. {act.title}', BOLD)}")
        _say(_wrapped(f"   {act.words}", "   "))

    def sees(self, line: Line) -> None:
        colour = COLOURS[line.kind] if line.kind is not Kind.STATE else OF_STATES[MEANING[State(line.word)].exit]
        _say(_coloured(_wrapped(f"{line.t:6.1f} s  {line.kind:<9} {line.text}", hanging=" " * 20), colour))


def _introduce(url: str) -> None:
    _say(_coloured("factory-watchdog: look without asking, restart only what is proven hung", BOLD))
    _say(_wrapped(INTRODUCTION.format(url=url, seconds=show.SECONDS), ""))


def summarise(report: Report) -> int:
    """Say what came of the play; the exit code."""
    _say(f"\n{_coloured('What happened', BOLD)}")
    for name, value in _figures(report):
        _say(f"  {name:<26} {value}")
    _say(f"\n{_coloured('What a chat request every few minutes would have done', BOLD)}")
    _say(_wrapped(f"  {_classic(report)}", "  "))
    missing = [promise for promise, seen in report.promises().items() if not seen]
    for promise in missing:
        _say(_coloured(f"\nnot seen, though promised: {promise}", RED))
    _say(f"\n{_coloured('Next', BOLD)}")
    for command, about in _next_commands():
        _say(f"  {command}\n      {about}")
    return NOT_SEEN if missing else SEEN


def _figures(report: Report) -> list[tuple[str, str]]:
    """What was counted: restarts by the watch, requests by the server."""
    purposes = Counter(report.words(Kind.QUESTION))
    asked = ", ".join(f"{number} {purpose}" for purpose, number in purposes.items())
    figures = [
        ("restarts", str(len(report.words(Kind.RESTART)))),
        ("questions sent while busy", str(report.asked_while_working())),
        ("questions sent in all", f"{purposes.total()} ({asked or 'none'})"),
    ]
    hung, restarted, served = (
        report.at(Kind.STATE, State.SUSPECT),
        report.at(Kind.RESTART, "restart"),
        report.at(Kind.ALERT, "served"),
    )
    if hung is not None and restarted is not None and served is not None:
        figures.append(("from suspicion", f"{restarted - hung:.1f} s to the restart, {served - hung:.1f} s to served"))
    promises = report.promises()
    figures.append(("seen as promised", f"{sum(promises.values())} of {len(promises)}"))
    requests = [f"{number:4} x {kind}" for kind, number in report.by_kind().items()]
    figures += [("requests to the server" if i == 0 else "", request) for i, request in enumerate(requests)]
    return figures


def _classic(report: Report) -> str:
    users = report.most_running + report.most_waiting
    return (
        f"In acts 2 and 3 it would have joined the queue, behind up to {report.most_waiting} waiting requests, and its "
        "lateness would have said nothing about the server. How late it would have been was not measured: this demo "
        f"sends none. A restart for it would have broken off up to {users} requests of users. In act 4 a restart was "
        "right, but a late answer cannot tell act 4 from acts 2 and 3."
    )


def _next_commands() -> list[tuple[str, str]]:
    program = "llm-health" if shutil.which("llm-health") else os.path.relpath(sys.argv[0])
    return [
        (f"{program} check http://127.0.0.1:8000", "how a vLLM server of yours is: one look, no daemon needed"),
        (f"{program} simulate SCENARIO.toml", "cases from the field in virtual time (tests/simulate/scenarios)"),
        (f"{program} --help", "everything else"),
    ]


# --- output ----------------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    """Write a line at once. Who reads us may have gone (`demo | head`): then there is nobody to play for."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is buffered must not fail once more when the interpreter ends (Python's documentation on SIGPIPE).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(NOT_SEEN) from None


def _wrapped(text: str, hanging: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=hanging, break_long_words=False)


def _coloured(text: str, colour: str) -> str:
    """`text` in an ANSI colour where standard output shows it; NO_COLOR (no-color.org) forbids."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"
