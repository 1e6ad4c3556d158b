"""`llm-health history`: what happened, from the daemon's own file; the daemon need not run."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

from factory_watchdog.config.load import load
from factory_watchdog.config.schema import STORE_NAME
from factory_watchdog.errors import StoreError
from factory_watchdog.world.store import Entry, Store


def open_store(config: Path) -> Store:
    """The history file of a configuration, to read. Raises ConfigError and StoreError."""
    return Store.reader(Path(load(config).daemon.state_dir) / STORE_NAME)


def history(name: str | None, limit: int, config: Path, *, as_json: bool) -> None:
    """Print the newest entries, the newest last. Raises ConfigError and StoreError, also for an unknown name."""
    store = open_store(config)
    try:
        entries = list(reversed(store.history(name, limit)))
    finally:
        store.close()
    if not entries and name is not None:
        _must_be_known(name, config)
    for entry in entries:
        sys.stdout.write((_as_json(entry) if as_json else _as_text(entry)) + "\n")
    if not entries and not as_json:
        sys.stdout.write("nothing has happened yet\n")


def _must_be_known(name: str, config: Path) -> None:
    """A backend that is not configured any more may still have a history; one without either is a slip."""
    known = [backend.name for backend in load(config).backends]
    if name not in known:
        raise StoreError(f"nothing is known of {name}; {config} has {', '.join(known)}")


def _as_json(entry: Entry) -> str:
    return json.dumps(
        {
            "time": iso(entry.wall),
            "backend": entry.backend,
            "kind": entry.kind,
            "word": entry.word,
            "engine": entry.engine,
            "why": entry.why,
            "restart": entry.restart,
        }
    )


def _as_text(entry: Entry) -> str:
    """One line; only a question's engine is added, since every other sentence names it where there are several."""
    number = f" #{entry.restart}" if entry.restart is not None else ""
    engine = f" (engine {entry.engine})" if entry.kind == "question" and entry.engine is not None else ""
    return f"{local(entry.wall)}  {entry.backend:<12} {entry.kind}{number} {entry.word}{engine}: {entry.why}"


def iso(wall: float) -> str:
    """A wall-clock time for machines, in UTC."""
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).isoformat(timespec="milliseconds")


def local(wall: float) -> str:
    """A wall-clock time for people, in the host's zone."""
    return datetime.datetime.fromtimestamp(wall).astimezone().strftime("%Y-%m-%d %H:%M:%S")
