"""The values of scenario files, one at a time: each check gives what a value means or says what would be right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from factory_watchdog.config import durations
from factory_watchdog.core.model import State
from factory_watchdog.simulate.script import ANSWERS, OK, Behaviour, Way

Check = Callable[[Any], Any]
"""Takes a value as TOML has it and gives what it means; raises ValueError with a sentence that says what is right."""

_STATES = frozenset(State)


class _WrongError(ValueError):
    """A value is not what its key takes; the text says what would be right."""


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise _WrongError("must be a number, 0 or more")
    return float(value)


def whole(least: int) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _WrongError(f"must be a whole number, {least} or more")
        return value

    return check


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongError("must be true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongError("must be a string")
    return value


def duration(value: Any) -> float:
    if not isinstance(value, str):
        raise _WrongError('must be a duration in quotes, as in "90s", "8m30s" or "2h"')
    return durations.parse(value)


def length(value: Any) -> float:
    seconds = duration(value)
    if seconds <= 0:
        raise _WrongError("must be longer than nothing")
    return seconds


def step(value: Any) -> float:
    """A duration that may go backwards: "1h", "-1h"."""
    if isinstance(value, str) and value.startswith("-"):
        return -duration(value[1:])
    return duration(value)


def level(value: Any) -> tuple[float, float]:
    ends = value if isinstance(value, list) else [value, value]
    if len(ends) != 2 or not all(_is_share(end) for end in ends):
        raise _WrongError("must be a level from 0 to 1, or [from, to]")
    return float(ends[0]), float(ends[1])


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def one_of(*words: str) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise _WrongError(f"must be one of: {', '.join(words)}")
        return value

    return check


def several_of(*words: str) -> Check:
    def check(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(word, str) and word in words for word in value):
            raise _WrongError(f"must be a list of: {', '.join(words)}")
        return tuple(value)

    return check


def states(value: Any) -> tuple[State, ...]:
    words = value if isinstance(value, list) else [value]
    if not words or not all(isinstance(word, str) and word in _STATES for word in words):
        raise _WrongError(f"must be a state or a list of states: {', '.join(State)}")
    return tuple(State(word) for word in words)


def version(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", value):
        raise _WrongError('must be a release in quotes, as in "0.32"')
    return value


def paused(value: Any) -> bool | None:
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
        if len(parts) == 2 and parts[0] == "status" and re.fullmatch(r"[2-5][0-9]{2}", parts[1]):
            return Behaviour(Way.STATUS, status=int(parts[1]))
        raise _WrongError(f"must be one of: {words}")

    return check


_FAULTS = {way.value: Behaviour(way) for way in (Way.TIMEOUT, Way.REFUSED)}
endpoint = _behaviour(
    _ENDPOINT,
    {"ok": OK, **_FAULTS, **{way.value: Behaviour(way) for way in (Way.RESET, Way.EMPTY, Way.GARBAGE)}},
    "slow",
)
question = _behaviour(_QUESTION, {"ok": ANSWERS, **_FAULTS, "empty": Behaviour(Way.EMPTY, ANSWERS.delay)}, "ok")
