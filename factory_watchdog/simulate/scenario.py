"""Reading scenario files: TOML in, a `Scenario` out, or everything that is wrong with the file at once."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from factory_watchdog.config import durations
from factory_watchdog.core.model import Alert, Form, State
from factory_watchdog.errors import Problem, WatchdogError
from factory_watchdog.simulate.script import (
    ANSWERS,
    OK,
    Behaviour,
    Engine,
    Expect,
    ExpectTotal,
    Phase,
    Scenario,
    ServerSpec,
    Way,
)

Check = Callable[[Any], Any]
"""Takes a value as TOML has it and gives what it means; raises ValueError with a sentence that says what is right."""

_STATES = frozenset(State)


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


class _WrongError(ValueError):
    """A value is not what its key takes; the text says what would be right."""


# --- one value at a time ---------------------------------------------------------------------------------------------


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise _WrongError("must be a number, 0 or more")
    return float(value)


def _whole(least: int) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _WrongError(f"must be a whole number, {least} or more")
        return value

    return check


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongError("must be true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongError("must be a string")
    return value


def _duration(value: Any) -> float:
    if not isinstance(value, str):
        raise _WrongError('must be a duration in quotes, as in "90s", "8m30s" or "2h"')
    return durations.parse(value)


def _length(value: Any) -> float:
    seconds = _duration(value)
    if seconds <= 0:
        raise _WrongError("must be longer than nothing")
    return seconds


def _step(value: Any) -> float:
    """A duration that may go backwards: "1h", "-1h"."""
    if isinstance(value, str) and value.startswith("-"):
        return -_duration(value[1:])
    return _duration(value)


def _level(value: Any) -> tuple[float, float]:
    ends = value if isinstance(value, list) else [value, value]
    if len(ends) != 2 or not all(_is_share(end) for end in ends):
        raise _WrongError("must be a level from 0 to 1, or [from, to]")
    return float(ends[0]), float(ends[1])


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _one_of(*words: str) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise _WrongError(f"must be one of: {', '.join(words)}")
        return value

    return check


def _several_of(*words: str) -> Check:
    def check(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(word, str) and word in words for word in value):
            raise _WrongError(f"must be a list of: {', '.join(words)}")
        return tuple(value)

    return check


def _states(value: Any) -> tuple[State, ...]:
    words = value if isinstance(value, list) else [value]
    if not words or not all(isinstance(word, str) and word in _STATES for word in words):
        raise _WrongError(f"must be a state or a list of states: {', '.join(State)}")
    return tuple(State(word) for word in words)


def _version(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,4}(\.\d{1,4}){1,3}", value):
        raise _WrongError('must be a release in quotes, as in "0.32"')
    return value


def _paused(value: Any) -> bool | None:
    if value != "absent" and not isinstance(value, bool):
        raise _WrongError('must be true, false or "absent"')
    return None if value == "absent" else bool(value)


_ENDPOINT = "ok, timeout, refused, reset, status 500, empty, slow 8s, garbage"
_QUESTION = "ok 0.3s, timeout, status 503, empty, refused"


def _behaviour(words: str, plain: Mapping[str, Behaviour], timed: str) -> Check:
    """A check of how requests go: a `plain` word, `status N`, or the `timed` word with a duration."""

    def check(value: Any) -> Behaviour:
        parts = value.split() if isinstance(value, str) else []
        if len(parts) == 1 and parts[0] in plain:
            return plain[parts[0]]
        if len(parts) == 2 and parts[0] == timed:
            return Behaviour(delay=durations.parse(parts[1]))
        if len(parts) == 2 and parts[0] == "status" and re.fullmatch(r"[2-5]\d\d", parts[1]):
            return Behaviour(Way.STATUS, status=int(parts[1]))
        raise _WrongError(f"must be one of: {words}")

    return check


_FAULTS = {way.value: Behaviour(way) for way in (Way.TIMEOUT, Way.REFUSED)}
_endpoint = _behaviour(
    _ENDPOINT,
    {"ok": OK, **_FAULTS, **{way.value: Behaviour(way) for way in (Way.RESET, Way.EMPTY, Way.GARBAGE)}},
    "slow",
)
_question = _behaviour(_QUESTION, {"ok": ANSWERS, **_FAULTS, "empty": Behaviour(Way.EMPTY, ANSWERS.delay)}, "ok")


# --- the keys of each table ------------------------------------------------------------------------------------------

_ENGINE_KEYS: dict[str, Check] = {
    **dict.fromkeys(("running", "waiting", "steps", "tokens", "prompt", "finished"), _number),
    "kv": _level,
    "question": _question,
}
_KEPT_KEYS: dict[str, Check] = {
    **_ENGINE_KEYS,
    **dict.fromkeys(("metrics", "health", "models"), _endpoint),
    "paused": _paused,
    **dict.fromkeys(("asleep", "carry_counters", "maintenance"), _boolean),
    "cpu": _number,
    "unit": _one_of("active", "activating", "deactivating", "reloading", "inactive", "failed"),
    "instance": _whole(0),
    "counters": _one_of("up", "alternate"),
    "flag": _one_of("none", "locked", "touched", "stale"),
}
_OWN_KEYS: dict[str, Check] = {"for": _length, "suspend": _duration, "clock_step": _step, "repeat": _whole(1)}
_PHASE_KEYS: dict[str, Check] = {**_OWN_KEYS, **_KEPT_KEYS, "engine": lambda value: value}
_SERVER_KEYS: dict[str, Check] = {
    **dict.fromkeys(("fresh", "start_time", "template"), _boolean),
    "engines": _whole(1),
    "load_time": _duration,
    "answers": _several_of(*Form),
    "restart": _one_of("works", "hangs-again", "never-answers", "never-ends", "fails", "leaves-orphan"),
    "api_server": _one_of("single", "multi"),
    "version": _version,
}
_EXPECT_KEYS: dict[str, Check] = {"at": _duration, "from": _duration, "to": _duration, "state": _states}
_TOTAL_KEYS: dict[str, Check] = {
    **dict.fromkeys(("restarts", "questions", "questions_max"), _whole(0)),
    **dict.fromkeys(("restart_before", "restart_after"), _duration),
    "alerts": _several_of(*Alert),
}
_TABLES = ("backend", "server", "phase", "expect", "expect_total")
_TOP_KEYS: dict[str, Check] = {"name": _text, "about": _text, **dict.fromkeys(_TABLES, lambda value: value)}


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
        for values in (self._kept, *self._overrides.values()):
            if "kv" in values:
                values["kv"] = (values["kv"][1],) * 2


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
