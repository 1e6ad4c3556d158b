"""Reading scenario files: TOML in, a `Scenario` out, or everything that is wrong with the file at once."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from factory_watchdog.core.model import Alert, Form
from factory_watchdog.errors import Problem, WatchdogError
from factory_watchdog.simulate import values
from factory_watchdog.simulate.script import (
    Engine,
    Expect,
    ExpectTotal,
    Phase,
    Scenario,
    ServerSpec,
)
from factory_watchdog.simulate.values import Check


class ScenarioError(WatchdogError):
    """A scenario file cannot be played; `problems` has everything that is wrong with it, the text one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def load(path: str | Path) -> Scenario:
    """The scenario in the file `path`. Raises ScenarioError, also where the file cannot be read."""
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError([Problem(file, "", "", "", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ScenarioError([Problem(file, "", "", "", "cannot be read: it is not UTF-8")]) from error
    return loads(text, file, Path(path).stem)


def loads(text: str, file: str = "scenario", name: str = "scenario") -> Scenario:
    """The scenario that `text` describes; `file` is how errors call it, `name` what it is called unless it says so."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError([Problem(file, "", "", "", f"not valid TOML: {error}")]) from error
    problems = Problems(file)
    scenario = _scenario(table, name, problems)
    if scenario is None or problems.found:
        raise ScenarioError(problems.found)
    return scenario


# --- the keys of each table ------------------------------------------------------------------------------------------

_ENGINE_KEYS: dict[str, Check] = {
    **dict.fromkeys(("running", "waiting", "steps", "tokens", "prompt", "finished"), values.number),
    "kv": values.level,
    "question": values.question,
}
_KEPT_KEYS: dict[str, Check] = {
    **_ENGINE_KEYS,
    **dict.fromkeys(("metrics", "health", "models"), values.endpoint),
    "paused": values.paused,
    **dict.fromkeys(("asleep", "carry_counters", "maintenance"), values.boolean),
    "cpu": values.number,
    "unit": values.one_of("active", "activating", "deactivating", "reloading", "inactive", "failed"),
    "instance": values.whole(0),
    "counters": values.one_of("up", "alternate"),
    "flag": values.one_of("none", "locked", "touched", "stale"),
}
_OWN_KEYS: dict[str, Check] = {
    "for": values.length,
    "suspend": values.duration,
    "clock_step": values.step,
    "repeat": values.whole(1),
}
_PHASE_KEYS: dict[str, Check] = {**_OWN_KEYS, **_KEPT_KEYS, "engine": lambda value: value}
_SERVER_KEYS: dict[str, Check] = {
    **dict.fromkeys(("fresh", "start_time", "template"), values.boolean),
    "engines": values.whole(1),
    "load_time": values.duration,
    "answers": values.several_of(*Form),
    "restart": values.one_of("works", "hangs-again", "never-answers", "never-ends", "fails", "leaves-orphan"),
    "api_server": values.one_of("single", "multi"),
    "version": values.version,
}
_EXPECT_KEYS: dict[str, Check] = {
    "at": values.duration,
    "from": values.duration,
    "to": values.duration,
    "state": values.states,
}
_TOTAL_KEYS: dict[str, Check] = {
    **dict.fromkeys(("restarts", "questions", "questions_max"), values.whole(0)),
    **dict.fromkeys(("restart_before", "restart_after"), values.duration),
    "alerts": values.several_of(*Alert),
}
_TABLES = ("backend", "server", "phase", "expect", "expect_total")
_TOP_KEYS: dict[str, Check] = {"name": values.text, "about": values.text, **dict.fromkeys(_TABLES, lambda value: value)}


class Problems:
    """Everything that is wrong with one file, in the order in which it was met."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Problem] = []

    def add(self, place: str, key: str, value: str, what: str) -> None:
        self.found.append(Problem(self.file, place, key, value, what))

    def check(self, table: Any, keys: Mapping[str, Check], place: str) -> dict[str, Any]:
        """The right values of `table`; what is unknown or wrong in it is noted."""
        if not isinstance(table, dict):
            self.add(place, "", "", f"must be a table, not {_shown(table)}")
            return {}
        right: dict[str, Any] = {}
        for key, value in table.items():
            if key not in keys:
                self.add(place, key, _shown(value), _unknown(key, keys))
                continue
            try:
                right[key] = keys[key](value)
            except ValueError as error:
                self.add(place, key, _shown(value), str(error))
        return right


def _unknown(key: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(key, list(known), n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are: {', '.join(known)}"
    return f"unknown key; {hint}"


def _shown(value: Any) -> str:
    """A value as the file would have it, cut to a line's length."""
    return json.dumps(value, default=str, ensure_ascii=False)[:200]


# --- tables into data ------------------------------------------------------------------------------------------------


def _scenario(table: dict[str, Any], name: str, problems: Problems) -> Scenario | None:
    top = problems.check(table, _TOP_KEYS, "")
    server = ServerSpec(**_server(top.get("server", {}), problems))
    phases = _phases(top.get("phase"), server.engines, problems)
    if not isinstance(top.get("backend", {}), dict):
        problems.add("backend", "", "", f"must be a table, not {_shown(top['backend'])}")
    if not phases:
        return None
    return Scenario(
        name=top.get("name", name),
        about=top.get("about", ""),
        backend=top.get("backend", {}),
        server=server,
        phases=phases,
        expect=_expectations(top.get("expect", []), problems),
        expect_total=_expect_total(top.get("expect_total", {}), problems),
    )


def _server(table: Any, problems: Problems) -> dict[str, Any]:
    right = problems.check(table, _SERVER_KEYS, "server")
    if "answers" in right:
        right["answers"] = frozenset(Form(word) for word in right["answers"])
    return right


class PhaseReader:
    """Reads one phase table after another; a key that is not given keeps the value it had last."""

    def __init__(self, engines: int, problems: Problems) -> None:
        self._engines = engines
        self._problems = problems
        self._kept: dict[str, Any] = {}
        self._overrides: dict[int, dict[str, Any]] = {}

    def read(self, table: Any, place: str) -> tuple[Phase, int]:
        """The phase that `table` describes, and how many times it is played. Its length is 0 where none is given."""
        right = self._problems.check(table, _PHASE_KEYS, place)
        own = {key: right.pop(key) for key in _OWN_KEYS if key in right}
        if "engine" in right:
            self._overrides = self._read_overrides(right.pop("engine"), place)
        self._kept.update(right)
        phase = self._phase(own)
        self._settle_kv()
        return phase, own.get("repeat", 1)

    def _read_overrides(self, table: Any, place: str) -> dict[int, dict[str, Any]]:
        numbers = {str(number): (lambda value: value) for number in range(self._engines)}
        known: dict[str, Check] = dict(numbers)
        tables = self._problems.check(table, known, f"{place}, engine")
        return {
            int(number): self._problems.check(keys, _ENGINE_KEYS, f"{place}, engine {number}")
            for number, keys in tables.items()
        }

    def _phase(self, own: dict[str, Any]) -> Phase:
        base = {key: value for key, value in self._kept.items() if key in _ENGINE_KEYS}
        engines = tuple(Engine(**{**base, **self._overrides.get(number, {})}) for number in range(self._engines))
        rest = {key: value for key, value in self._kept.items() if key not in _ENGINE_KEYS}
        return Phase(
            length=own.get("for", 0.0),
            engines=engines,
            suspend=own.get("suspend", 0.0),
            clock_step=own.get("clock_step", 0.0),
            **rest,
        )

    def _settle_kv(self) -> None:
        """After a phase whose KV usage went from one level to another, the end value is kept."""
        for kept in (self._kept, *self._overrides.values()):
            if "kv" in kept:
                kept["kv"] = (kept["kv"][1],) * 2


def _phases(tables: Any, engines: int, problems: Problems) -> tuple[Phase, ...]:
    if not isinstance(tables, list) or not tables:
        problems.add("", "phase", "", "a scenario needs at least one [[phase]]")
        return ()
    reader = PhaseReader(engines, problems)
    phases: list[Phase] = []
    for number, table in enumerate(tables, 1):
        phase, times = reader.read(table, f"phase {number}")
        if isinstance(table, dict) and "for" not in table:
            problems.add(f"phase {number}", "for", "", 'is missing: how long the phase lasts, as in "5m"')
        phases += [phase] * times
    return tuple(phases)


def _expectations(tables: Any, problems: Problems) -> tuple[Expect, ...]:
    if not isinstance(tables, list):
        problems.add("", "expect", "", "must be written as [[expect]]")
        return ()
    read = (_expectation(table, f"expect {number}", problems) for number, table in enumerate(tables, 1))
    return tuple(expectation for expectation in read if expectation)


def _expectation(table: Any, place: str, problems: Problems) -> Expect | None:
    right = problems.check(table, _EXPECT_KEYS, place)
    if not isinstance(table, dict) or len(right) != len(table):
        return None
    moment, span = {"at", "state"}, {"from", "to", "state"}
    if right.keys() != moment and right.keys() != span:
        problems.add(place, "", "", "needs state with either at, or from and to")
        return None
    begin, end = (right["at"], right["at"]) if "at" in right else (right["from"], right["to"])
    if begin > end:
        problems.add(place, "to", _shown(table["to"]), f"must not be before from ({table['from']})")
    return Expect(begin, end, right["state"])


def _expect_total(table: Any, problems: Problems) -> ExpectTotal:
    right = problems.check(table, _TOTAL_KEYS, "expect_total")
    if "alerts" in right:
        right["alerts"] = tuple(Alert(word) for word in right["alerts"])
    return ExpectTotal(**right)


def present(engines: int) -> Callable[[dict[str, Any]], Phase]:
    """A reader for changes of the present: each call takes keys of a phase and gives the phase that they make of it.

    Raises ScenarioError, after which the present is as it was.
    """
    given: dict[str, Any] = {}

    def change(keys: dict[str, Any]) -> Phase:
        problems = Problems("request")
        wanted = {**given, **keys}
        phase, _ = PhaseReader(engines, problems).read(wanted, "")
        if problems.found:
            raise ScenarioError(problems.found)
        given.update({key: value for key, value in keys.items() if key not in _OWN_KEYS})
        return dataclasses.replace(phase, length=math.inf)

    return change
