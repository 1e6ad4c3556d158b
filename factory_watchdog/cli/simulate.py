"""`llm-health simulate`: scenario files in virtual time."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from factory_watchdog.config.durations import show
from factory_watchdog.errors import WatchdogError
from factory_watchdog.simulate.played import Change, Played
from factory_watchdog.simulate.run import play
from factory_watchdog.simulate.scenario import load

HELD, NOT_HELD, WRONG_FILE = 0, 1, 2


def simulate(files: Sequence[Path], *, as_json: bool) -> int:
    """Play each file; the worst exit code. A file that is wrong does not keep the others from being played."""
    return max(_one(file, as_json=as_json) for file in files)


def _one(file: Path, *, as_json: bool) -> int:
    try:
        played = play(load(file))
    except WatchdogError as error:
        sys.stderr.write(f"{error}\n")
        return WRONG_FILE
    report(played, as_json=as_json)
    if not played.failed and not as_json:
        sys.stdout.write("  all expectations hold\n")
    return NOT_HELD if played.failed else HELD


def report(played: Played, *, as_json: bool) -> None:
    """Print what came of a scenario or a recording."""
    (_print_json if as_json else _print_text)(played)


def _print_json(played: Played) -> None:
    for change in played.changes:
        _line({"t": round(change.t, 3), "state": change.state.value, "engine": change.engine, "why": change.why})
    _line({"summary": summary(played)})


def summary(played: Played) -> dict[str, Any]:
    """What came of a scenario, as the last line of `--json` tells it."""
    return {
        "name": played.name,
        "restarts": [round(t, 3) for t in played.restarts],
        "questions": [round(t, 3) for t in played.questions],
        "alerts": list(dict.fromkeys(raised.alert.value for raised in played.alerts)),
        "failed": played.failed,
    }


def _line(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def _print_text(played: Played) -> None:
    """The timeline for people: changes, questions, restarts and alerts in their order."""
    rows: list[tuple[float, str]] = [(c.t, _change(c)) for c in played.changes]
    rows += [(t, "         ? a question is sent") for t in played.questions]
    rows += [(t, "         ! restart") for t in played.restarts]
    rows += [(r.t, f"         * alert {r.alert}: {r.why}") for r in played.alerts]
    sys.stdout.write(f"{played.name}\n")
    for t, text in sorted(rows, key=lambda row: row[0]):
        sys.stdout.write(f"  {show(t):>9}  {text}\n")
    for sentence in played.failed:
        sys.stdout.write(f"  does not hold: {sentence}\n")


def _change(change: Change) -> str:
    engine = f" (engine {change.engine})" if change.engine is not None else ""
    return f"{change.state:<9}{engine} {change.why}"
