"""`llm-health config`: the configuration file checked, shown, and turned into a polkit rule."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tomli_w

from factory_watchdog.config import durations
from factory_watchdog.config import polkit as rules
from factory_watchdog.config.kinds import Budget
from factory_watchdog.config.load import load
from factory_watchdog.config.schema import SETTINGS, Backend, Config, Daemon, Notify, Setting


def check(file: Path) -> None:
    """Say that the file is sound, with its warnings. Raises ConfigError."""
    config = load(file)
    for warning in config.warnings:
        sys.stdout.write(f"{file}: warning: {warning}\n")
    names = ", ".join(backend.name for backend in config.backends)
    sys.stdout.write(f"{file}: sound; backends: {names}\n")


def show(file: Path, *, as_json: bool) -> None:
    """Every setting as it is used. Raises ConfigError. Keys are in files of their own and not shown."""
    config = load(file)
    table = {
        "daemon": _table("daemon", config.daemon),
        "backend": [_table("backend", backend) for backend in config.backends],
        "notify": [_table("notify", entry) for entry in config.notify],
    }
    text = json.dumps(table, indent=2) + "\n" if as_json else tomli_w.dumps(table)
    sys.stdout.write(text)


def _table(kind: str, values: Daemon | Backend | Notify) -> dict[str, Any]:
    """The settings of one table as they would stand in a file."""
    return {name: _shown(getattr(values, name), setting) for name, setting in SETTINGS[kind].items()}


def _shown(value: Any, setting: Setting) -> Any:
    match value:
        case None:
            return "never" if setting.default != "" else ""
        case Budget(count=count, window=window):
            return f"{count} per {durations.show(window)}"
        case float():
            return durations.show(value)
        case frozenset() | tuple():
            return sorted(value) if isinstance(value, frozenset) else list(value)
    return value


def polkit(file: Path) -> None:
    """Print the rule that lets the service user do what the configuration needs. Raises ConfigError."""
    sys.stdout.write(rules.rule(units(load(file))))


def units(config: Config) -> list[tuple[str, list[str]]]:
    """What has to be allowed, by unit. Units of a user's own manager need no rule."""
    verbs: dict[str, set[str]] = {}
    for backend in config.backends:
        if backend.bus != "system":
            continue
        for unit, verb in _needs(backend):
            verbs.setdefault(unit, set()).add(verb)
    return [(unit, sorted(allowed)) for unit, allowed in verbs.items()]


def _needs(backend: Backend) -> list[tuple[str, str]]:
    needs = []
    if backend.action_unit:
        needs.append((backend.action_unit, "start"))
    elif backend.unit:
        needs.append((backend.unit, "try-restart"))
        if backend.revive:
            needs += [(backend.unit, "start"), (backend.unit, "reset-failed")]
    if backend.evidence_unit:
        needs.append((backend.evidence_unit, "start"))
    return needs
