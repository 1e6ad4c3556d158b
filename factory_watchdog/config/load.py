"""Reads a configuration file and tells everything that is wrong with it at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from factory_watchdog.config import checks
from factory_watchdog.config.checks import Complaint
from factory_watchdog.config.kinds import nearest
from factory_watchdog.config.schema import SETTINGS, Backend, Config, Daemon, Notify, Setting
from factory_watchdog.errors import ConfigError, Problem

T = TypeVar("T")

DEFAULT_PATH = Path("/etc/factory-watchdog/config.toml")

_LARGEST = 1 << 20  # bytes; 500 backends with every setting written out are less
_VALUE_SHOWN = 80  # characters of a value in a message
_TOP = {
    "daemon": dict[str, Any],
    "defaults": dict[str, Any],
    "backend": list[dict[str, Any]],
    "notify": list[dict[str, Any]],
}
_OWN = ("name", "url")  # settings that only a [[backend]] itself can have
_SECRET = re.compile(r"key|token|secret|passw", re.IGNORECASE)
# A backend's table in a scenario or a replay may leave out what only a real server has.
_SIMULATED = {"name": "sim", "url": "http://sim.invalid", "unit": "sim.service"}


def load(path: Path) -> Config:
    """The configuration in the file at `path`.

    Raises ConfigError with all problems of the file, also where it cannot be read.
    """
    return _Reader(str(path)).config(path)


def from_table(table: Mapping[str, Any], *, file: str = "[backend]", words: bool = False) -> Backend:
    """The backend of a scenario's [backend] table, where name, url and unit may be left out.

    With `words` every value is text as on a command line ("true"). `file` is what the problems name.
    Raises ConfigError with all problems of the table.
    """
    reader = _Reader(file, strict=not words)
    backend = reader.build("", SETTINGS["backend"], {**_SIMULATED, **table}, lambda own: Backend(**own))
    if backend:
        reader.note_all("", checks.backend(backend))
    reader.stop_if_wrong()
    assert backend is not None  # noqa: S101 - without a backend there were problems
    return backend


class _Reader:
    """Converts the tables of one file and collects what is wrong with them."""

    def __init__(self, file: str, *, strict: bool = True) -> None:
        self._file = file
        self._strict = strict
        self._problems: list[Problem] = []

    def config(self, path: Path) -> Config:
        tables = self._top(self._document(path))
        before = len(self._problems)
        daemon = Daemon(**self._values("[daemon]", SETTINGS["daemon"], tables.get("daemon", {})))
        defaults = self._defaults(tables.get("defaults", {}))
        basis = daemon if before == len(self._problems) else None
        backends = self._backends(tables.get("backend", []), defaults, basis)
        notify = self._notify(tables.get("notify", []))
        self.stop_if_wrong()
        return Config(daemon, backends, notify, path, checks.warnings(backends))

    def build(
        self, place: str, known: Mapping[str, Setting], table: Mapping[str, Any], make: Callable[[dict[str, Any]], T]
    ) -> T | None:
        """What `make` makes of one table's values; None, with the problems noted, where the table is not sound."""
        before = len(self._problems)
        own = self._values(place, known, table)
        for setting in known.values():
            if setting.default is None and setting.name not in table:
                self._note(place, Complaint("", None, f"{setting.name} is missing; it must be {setting.kind.right}"))
        return make(own) if before == len(self._problems) else None

    def note_all(self, place: str, complaints: Iterable[Complaint]) -> None:
        for complaint in complaints:
            self._note(place, complaint)

    def stop_if_wrong(self) -> None:
        if self._problems:
            raise ConfigError(self._problems)

    def _note(self, place: str, complaint: Complaint) -> None:
        value = _shown(complaint.key, complaint.value) if complaint.key else ""
        self._problems.append(Problem(self._file, place, _on_one_line(complaint.key), value, complaint.what))

    def _values(self, place: str, known: Mapping[str, Setting], table: Mapping[str, Any]) -> dict[str, Any]:
        """The converted values of one table; each key by itself, so that one problem does not hide the next."""
        converted = {}
        for key, value in table.items():
            try:
                converted[key] = self._value(known, key, value)
            except ValueError as error:
                self._note(place, Complaint(key, value, str(error)))
        return converted

    def _value(self, known: Mapping[str, Setting], key: str, value: Any) -> Any:
        setting = known.get(key)
        if setting is None:
            raise ValueError(_unknown("setting", key, known))
        try:
            written = msgspec.convert(value, setting.kind.toml, strict=self._strict)
        except msgspec.ValidationError:
            raise ValueError(f"must be {setting.kind.right}") from None
        return setting.kind.read(written)

    def _document(self, path: Path) -> dict[str, Any]:
        import tomllib  # here, since a look at an address reads no file

        try:
            return tomllib.loads(_text(path))
        except tomllib.TOMLDecodeError as error:
            why = f"is not valid TOML: {error}"
        except (OSError, ValueError, RecursionError) as error:
            why = _why_unreadable(error)
        raise ConfigError([Problem(self._file, "", "", "", why)])

    def _top(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The tables of the file that have the right shape."""
        tables: dict[str, Any] = {}
        for key, value in document.items():
            if key not in _TOP:
                self._note("", Complaint(key, value, _unknown("table", key, _TOP)))
                continue
            try:
                tables[key] = msgspec.convert(value, _TOP[key])
            except msgspec.ValidationError:
                header = f"[[{key}]]" if key in ("backend", "notify") else f"[{key}]"
                self._note("", Complaint(key, value, f"must be a table that begins with {header}"))
        if not document.get("backend"):
            self._note("", Complaint("", None, "has no [[backend]]; at least one with name and url is needed"))
        return tables

    def _defaults(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """The values of [defaults], which may have every setting of a backend but those that tell backends apart."""
        for key in _OWN:
            if key in table:
                self._note("[defaults]", Complaint(key, table[key], "belongs to one [[backend]], not to all"))
        known = {key: setting for key, setting in SETTINGS["backend"].items() if key not in _OWN}
        return self._values("[defaults]", known, {key: value for key, value in table.items() if key not in _OWN})

    def _backends(
        self, tables: list[dict[str, Any]], defaults: dict[str, Any], daemon: Daemon | None
    ) -> tuple[Backend, ...]:
        """The sound backends; without a sound daemon and defaults nothing is checked that depends on them."""
        backends = []
        for number, table in enumerate(tables, start=1):
            place = _place("backend", number, table.get("name"))
            backend = self.build(place, SETTINGS["backend"], table, lambda own: Backend(**{**defaults, **own}))
            if backend and daemon:
                self.note_all(place, checks.backend(backend, daemon))
            if backend:
                backends.append(backend)
        self.note_all("", checks.names([str(table["name"]) for table in tables if "name" in table]))
        return tuple(backends)

    def _notify(self, tables: list[dict[str, Any]]) -> tuple[Notify, ...]:
        entries = (
            self.build(_place("notify", number, None), SETTINGS["notify"], table, lambda own: Notify(**own))
            for number, table in enumerate(tables, start=1)
        )
        return tuple(entry for entry in entries if entry)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"is larger than {_LARGEST} bytes; that is no configuration file")
    return content.decode()


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return f"is not valid TOML: byte {error.start} is not UTF-8"
    if isinstance(error, RecursionError):
        return "is not valid TOML: nested too deeply"
    return str(error)


def _unknown(what: str, key: str, known: Iterable[str]) -> str:
    near = nearest(key, known)
    return f"unknown {what}" + (f"; did you mean {near}?" if near else "")


def _place(table: str, number: int, name: object) -> str:
    """How a message names one of several tables: by its name where it has one, else by its number."""
    return f"{table} {_shown('name', name)}" if isinstance(name, str) else f"[[{table}]] number {number}"


def _on_one_line(key: str) -> str:
    return key if key.isprintable() else json.dumps(key)


def _shown(key: str, value: Any) -> str:
    """`value` as it may stand in a message: on one line, cut, without what may be a secret."""
    if _SECRET.search(key):
        return "(not shown)"
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
        return "{...}"
    text = re.sub(r"//[^/\s\"]*@", "//...@", json.dumps(value, default=str))
    return text if len(text) <= _VALUE_SHOWN else text[:_VALUE_SHOWN] + "..."
