"""`llm-health explain`: a backend as the daemon sees it now, or a past restart from its proof."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from factory_watchdog.cli import daemon
from factory_watchdog.cli.history import iso, local, open_store
from factory_watchdog.core.wording import span
from factory_watchdog.errors import StoreError
from factory_watchdog.world.store import RestartRecord

_NUMBER = re.compile(r"#?([0-9]{1,18})")
"""A restart as `history` shows it."""

_ENOUGH = 1_000_000
"""Restarts looked through for one by its number; the file keeps a thousand."""


def explain(what: str, config: Path, *, as_json: bool) -> None:
    """Print the story. Raises WatchdogError where there is none."""
    if number := _NUMBER.fullmatch(what):
        _restart(_found(int(number[1]), config), as_json=as_json)
        return
    told = daemon.ask(config, {"command": "explain", "name": what})["backends"][0]
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
        return
    sys.stdout.write(f"{told['name']}\n")
    for sentence in told["explained"]:
        sys.stdout.write(f"  {sentence}\n")


def _found(number: int, config: Path) -> RestartRecord:
    store = open_store(config)
    try:
        record = next((r for r in store.restarts(limit=_ENOUGH) if r.id == number), None)
    finally:
        store.close()
    if record is None:
        raise StoreError(f"there is no restart {number}; llm-health history shows them")
    return record


def _restart(record: RestartRecord, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(_as_json(record)) + "\n")
        return
    for sentence in _story(record):
        sys.stdout.write(f"{sentence}\n")


def _as_json(record: RestartRecord) -> dict[str, Any]:
    ended = iso(record.ended) if record.ended is not None else None
    return {
        "restart": record.id,
        "backend": record.backend,
        "attempt": record.attempt,
        "began": iso(record.began),
        "ended": ended,
        "served": record.served,
        "why": record.why,
        "outcome": record.outcome,
        "proof": record.proof,
    }


def _story(record: RestartRecord) -> list[str]:
    """The restart in plain words."""
    proof = record.proof
    return [
        f"restart {record.id} of {record.backend}, {local(record.began)}",
        f"  ground: {record.why} (rule {proof['rule']}, {proof['state']})",
        f"  {_question(proof)}",
        f"  outcome: {record.outcome or 'under way'}" + _took(record),
    ]


def _question(proof: dict[str, Any]) -> str:
    question, answer = proof.get("question"), proof.get("answer")
    if question is None:
        return "no confirming question could be sent; a fresh reading confirmed it"
    engine = f", engine {question['engine']}" if question["engine"] is not None else ""
    asked = f"confirming question ({question['form']}{engine})"
    if answer is None:
        return f"{asked}: no answer is recorded"
    took = span(answer["ended"] - question["sent"])
    return f"{asked}: {answer['outcome']} after {took}: {answer['detail'] or 'nothing said'}"


def _took(record: RestartRecord) -> str:
    return f" ({span(record.ended - record.began)} after it began)" if record.ended is not None else ""
