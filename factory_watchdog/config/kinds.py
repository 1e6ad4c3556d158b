"""The kinds of values that settings have: what TOML must hold, what is right, and how text becomes a plain value.

A kind's `read` takes a value of its TOML type and raises ValueError with a sentence that says what is wrong and what
would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from factory_watchdog.config import durations

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
# systemd.unit(5): these characters before the suffix, 255 in all; a template needs its instance to be a unit
_SERVICE = re.compile(r"[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\@-]+)?\.service", re.ASCII)
_UNIT_LENGTH = 255  # characters
_TEXT_LENGTH = 200  # characters; as for any text that reaches a log line
_RESTARTS = re.compile(r"([0-9]{1,3}) per ([0-9a-z.]+)", re.ASCII)
_MOST_RESTARTS = 100  # more in one window is no limit any more


AUTO = "auto"
"""What a setting says that leaves the choice to the kind of server."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value: the type that TOML must hold, what is right in words, and the conversion to a plain value."""

    toml: Any
    right: str
    read: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """At most `count` restarts within `window` seconds."""

    count: int
    window: float


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` was probably meant to be, None where nothing is near."""
    return next(iter(difflib.get_close_matches(word.lower(), list(known), n=1)), None)


def one_of(words: Sequence[str]) -> str:
    """The words quoted and joined for a sentence: '"a", "b" or "c"'."""
    return _joined([f'"{word}"' for word in words])


def _joined(parts: Sequence[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} or {last}" if most else last


def boolean() -> Kind:
    return Kind(bool, "true or false", bool)


def duration(lowest: str, highest: str, *words: str) -> Kind:
    """Seconds from `lowest` to `highest`, or one of `words`: None for "never", AUTO for "auto"."""
    low, high = durations.parse(lowest), durations.parse(highest)
    right = f'a duration from "{lowest}" to "{highest}"'
    right = _joined([right, *(f'"{word}"' for word in words)])

    def read(text: str) -> float | str | None:
        if text in words:
            return None if text == "never" else AUTO
        seconds = durations.parse(text)
        if not low <= seconds <= high:
            raise ValueError(f"must be {right}")
        return seconds

    return Kind(str, right, read)


def word(*known: str, later: Sequence[str] = ()) -> Kind:
    """One of a few words; those in `later` are told apart from slips: another release will know them."""
    right = one_of(known)

    def read(text: str) -> str:
        if text in known:
            return text
        if text in later:
            raise ValueError(f"not in this release; it must be {right}")
        near = nearest(text, known)
        raise ValueError(f"must be {right}" + (f'; did you mean "{near}"?' if near else ""))

    return Kind(str, right, read)


def name() -> Kind:
    right = "1 to 32 of the characters a-z, 0-9 and -, not beginning with -"

    def read(text: str) -> str:
        if not NAME.fullmatch(text):
            raise ValueError(f"must be {right}")
        return text

    return Kind(str, right, read)


def text() -> Kind:
    """Printable text on one line, None where it is empty."""
    right = f"text on one line, at most {_TEXT_LENGTH} characters"

    def read(value: str) -> str | None:
        if len(value) > _TEXT_LENGTH or not value.isprintable():
            raise ValueError(f"must be {right}")
        return value or None

    return Kind(str, right, read)


def path() -> Kind:
    """An absolute path, None where it is empty."""
    right = 'an absolute path, beginning with "/"'

    def read(value: str) -> str | None:
        if value and not (value.startswith("/") and value.isprintable()):
            raise ValueError(f"must be {right}")
        return value or None

    return Kind(str, right, read)


def folder() -> Kind:
    """An absolute path that must be given."""
    right = 'an absolute path, beginning with "/"'

    def read(value: str) -> str:
        if not value.startswith("/") or not value.isprintable():
            raise ValueError(f"must be {right}")
        return value

    return Kind(str, right, read)


def service() -> Kind:
    """The name of a systemd service, None where it is empty."""
    right = 'the full name of a service, as in "vllm.service" or "vllm@spark1.service"'

    def read(value: str) -> str | None:
        if not value:
            return None
        if not _SERVICE.fullmatch(value) or len(value) > _UNIT_LENGTH:
            near = f"{value}.service"
            hint = f'; did you mean "{near}"?' if _SERVICE.fullmatch(near) and "." not in value else ""
            raise ValueError(f"must be {right}{hint}")
        return value

    return Kind(str, right, read)


def _port_is_sound(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:  # urllib tells of it only when asked for the port
        return False


def _web_address(value: str) -> str:
    """`value` without trailing slashes where it is a plain http(s) address; raises ValueError with what is wrong."""
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("an address cannot have spaces, control characters or characters beyond ASCII")
    parts = urlsplit(value)
    if not _port_is_sound(parts):
        raise ValueError("has a port that is not a number from 1 to 65535")
    if parts.scheme not in ("http", "https"):
        raise ValueError('must begin with "http://" or "https://"')
    if not parts.hostname:
        raise ValueError('has no host; it must be like "http://127.0.0.1:8000"')
    if "@" in parts.netloc:
        raise ValueError("cannot have a user or password in it; a key belongs into api_key_file")
    if "?" in value or "#" in value:
        raise ValueError("cannot have a query or fragment")
    return value.rstrip("/")


def base_url() -> Kind:
    """The address below which a server has its routes, without a trailing slash."""
    right = 'the base address of the server, as in "http://127.0.0.1:8000"'

    def read(value: str) -> str:
        address = _web_address(value)
        if address.endswith("/v1"):
            raise ValueError(f'must be {right}, without "/v1": /metrics and /health are beside it')
        return address

    return Kind(str, right, read)


def page_url() -> Kind:
    """The full address of one page, None where it is empty."""
    right = 'the full address of the page, as in "http://127.0.0.1:9000/metrics"'
    return Kind(str, right, lambda value: _web_address(value) if value else None)


def restarts(lowest: str, highest: str, apart: float) -> Kind:
    """A budget, as in "3 per 6h". Restarts are `apart` seconds apart, so a window must have room for all of them."""
    right = f'a number and a window from "{lowest}" to "{highest}", as in "3 per 6h"'
    window_kind = duration(lowest, highest)

    def read(value: str) -> Budget:
        match = _RESTARTS.fullmatch(value)
        if match is None:
            raise ValueError(f"must be {right}")
        count, window = int(match[1]), window_kind.read(match[2])
        if not 1 <= count <= _MOST_RESTARTS:
            raise ValueError(f'must allow 1 to {_MOST_RESTARTS} restarts; for none, use mode = "observe"')
        if window < count * apart:
            gap, room = durations.show(apart), durations.show(count * apart)
            raise ValueError(f"is never reached, as restarts are {gap} apart; the window must be at least {room}")
        return Budget(count, window)

    return Kind(str, right, read)


def command() -> Kind:
    """A command and its arguments; no shell reads it."""
    right = 'a command and its arguments, as in ["/usr/local/bin/page-me", "--urgent"]'

    def read(value: list[str]) -> tuple[str, ...]:
        if not value or not value[0].startswith("/"):
            raise ValueError(f"must be {right}, with the command as an absolute path")
        if any("\0" in argument for argument in value):
            raise ValueError("arguments cannot have NUL characters")
        return tuple(value)

    return Kind(list[str], right, read)


def some_of(known: Sequence[str]) -> Kind:
    """One or several of the known words."""
    right = f"a list of one or several of {one_of(known)}"

    def read(value: list[str]) -> frozenset[str]:
        if not value:
            raise ValueError(f"must be {right}; leave it out for all of them")
        for item in value:
            if item not in known:
                near = nearest(item, known)
                hint = f'; did you mean "{near}"?' if near else ""
                raise ValueError(f'"{item}" is unknown{hint}; must be {right}')
        return frozenset(value)

    return Kind(list[str], right, read)
