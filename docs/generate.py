"""Writes the pages of docs/reference from the code: `make docs`. A test fails where they have drifted."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from factory_watchdog.core.catalog import ALERT_ABOUT, HOLD_STANDS, PHASE_ABOUT
from factory_watchdog.core.memory import Phase
from factory_watchdog.core.model import MEANING, Alert, Hold, State
from factory_watchdog.core.recovery import TRANSITIONS

REFERENCE = Path(__file__).resolve().parent / "reference"
YES = {True: "yes", False: "no", None: "as `/health` says"}


def states() -> str:
    """States, the phases between suspicion and a served restart, holds and alerts."""
    return "\n".join(
        (
            "# States, phases, holds and alerts",
            "",
            "Made from the code by `make docs`. What leads to them: [how it decides](../how-it-decides.md).",
            "",
            "## States",
            "",
            "`live` no is the only ground for a restart; `ready` no takes a backend out of traffic; `exit` is the exit",
            "code of `llm-health check`.",
            "",
            *table(("state", "live", "ready", "exit", "what it means"), map(_state, State)),
            "",
            "## Phases of a recovery",
            "",
            *table(("phase", "what happens in it"), ((f"`{p}`", PHASE_ABOUT[p]) for p in Phase)),
            "",
            "```mermaid",
            "stateDiagram-v2",
            "    [*] --> watch",
            *(f"    {before} --> {after}: {_label(why)}" for (before, after), why in TRANSITIONS.items()),
            "```",
            "",
            "## Holds",
            "",
            "Each forbids a restart while it stands, is named in the verdict, and is alerted once.",
            "",
            *table(("hold", "stands while"), ((f"`{h}`", HOLD_STANDS[h]) for h in Hold)),
            "",
            "## Alerts",
            "",
            "Each is told once when it begins: in the log with priority `crit`, and to the commands of `[[notify]]`.",
            "",
            *table(("alert", "what happened"), ((f"`{a}`", ALERT_ABOUT[a]) for a in Alert)),
            "",
        )
    )


def _state(state: State) -> tuple[str, ...]:
    meaning = MEANING[state]
    return f"`{state}`", YES[meaning.live], YES[meaning.ready], str(meaning.exit), meaning.about


def _label(why: str) -> str:
    """A transition's words as the diagram takes them: a semicolon would end its line."""
    return why.replace(";", ",")


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A table in Markdown, line by line."""
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


PAGES = {"states.md": states}


def main() -> int:
    """Write every page; 0."""
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
