"""`llm-health explain`: a backend as the daemon sees it now, or a past restart from its record and the journal."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from factory_watchdog.cli import daemon
from factory_watchdog.cli.history import iso, open_store
from factory_watchdog.cli.story import span_of, story
from factory_watchdog.errors import StoreError
from factory_watchdog.world import journal
from factory_watchdog.world.store import Entry, RestartRecord

_NUMBER = re.compile(r"#?([0-9]{1,18})")
"""A restart as `history` shows it."""

_ENTRIES = 200
"""Entries of the history in one story; a restart has about ten."""

_AFTERWARDS = 120.0
"""Seconds of the journal read beyond the evidence: what is said to an evidence unit, and in stopping, tells most."""


def explain(what: str | None, config: Path, *, as_json: bool) -> None:
    """Print the story of a restart, or what is known of one backend or of all. Raises WatchdogError."""
    if what is not None and (number := _NUMBER.fullmatch(what)):
        _restart(int(number[1]), config, as_json=as_json)
        return
    for told in daemon.ask(config, {"command": "explain", "name": what})["backends"]:
        lines = [json.dumps(told)] if as_json else [told["name"], *(f"  {line}" for line in told["explained"])]
        sys.stdout.write("\n".join(lines) + "\n")


def _restart(number: int, config: Path, *, as_json: bool) -> None:
    record, entries = _found(number, config)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(record)) + "\n")
        return
    for line in (*story(record, entries), "", *_journal(record)):
        sys.stdout.write(f"{line}\n")


def _found(number: int, config: Path) -> tuple[RestartRecord, list[Entry]]:
    """A restart, and the history of its backend around it."""
    store = open_store(config)
    try:
        record = store.restart(number)
        if record is None:
            raise StoreError(f"there is no restart {number}; llm-health history shows them")
        since, until = span_of(record)
        return record, store.history(record.backend, _ENTRIES, since, until)
    finally:
        store.close()


def _as_json(record: RestartRecord) -> dict[str, Any]:
    ended = iso(record.ended) if record.ended is not None else None
    return {
        "restart": record.id,
        "backend": record.backend,
        "attempt": record.attempt,
        "began": iso(record.began),
        "ended": ended,
        "served": record.served,
        "by": record.by,
        "why": record.why,
        "outcome": record.outcome,
        "proof": record.proof,
        "evidence": record.evidence,
        "job": record.job,
    }


def _journal(record: RestartRecord) -> list[str]:
    """What the life that ended said in that time, read now: for people only."""
    head = "What the old life said in the journal"
    where: dict[str, Any] = (record.evidence or {}).get("journal", {"missing": "no InvocationID is recorded"})
    if "missing" in where:
        return [head, f"  nothing to be found: {where['missing']}"]
    try:
        lines = journal.read(where["invocation"], where["since"], where["until"] + _AFTERWARDS)
    except journal.JournalError as error:
        return [head, f"  cannot be shown: {error}"]
    return [f"{head} (the newest {len(lines)} lines)", *(f"  {line}" for line in lines)]
