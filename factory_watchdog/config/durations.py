"""Durations as people write them: "90s", "2h", "8m30s", "0.25s", "250ms", "1d"."""

from __future__ import annotations

import re

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = r"(?:([0-9]+(?:\.[0-9]+)?){})?"
_WHOLE = re.compile("".join(_PART.format(unit) for unit in _UNITS), re.ASCII)

LONGEST = 3650 * 86400.0  # seconds; ten years: beyond it a number is a slip of the keyboard, and sums stay exact
_PLAIN_SECONDS = 120  # seconds; up to here "90s" reads better than "1m30s"
_RIGHT = 'a number with its unit, as in "250ms", "90s", "8m30s", "2h" or "1d"'


def parse(text: str) -> float:
    """The seconds that `text` names: numbers with the units d, h, m, s, ms, each once and in this order, no spaces.

    Raises ValueError with a sentence that says what is wrong and what would be right.
    """
    if not text:
        raise ValueError(f"an empty duration; it must be {_RIGHT}")
    if text.startswith("-"):
        raise ValueError(f"a duration cannot be negative; it must be {_RIGHT}")
    if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", text):
        raise ValueError(f"a duration needs a unit; it must be {_RIGHT}")
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a duration; it must be {_RIGHT}")
    parts = zip(match.groups(), _UNITS.values(), strict=True)
    seconds = round(sum(float(number) * unit for number, unit in parts if number), 6)
    if seconds > LONGEST:
        raise ValueError(f"a duration cannot be longer than {show(LONGEST)}")
    return seconds


def show(seconds: float) -> str:
    """`seconds` in words that `parse` reads back, to the millisecond; the same in configuration and in sentences.

    Below one second in milliseconds, up to 120 s in seconds ("90s"), above it composed ("8m30s", "2h", "1d12h").
    Raises ValueError for what is no duration: negative, NaN, infinite.
    """
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{seconds} is not a duration")
    milliseconds = round(seconds * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds <= _PLAIN_SECONDS * 1000:
        return f"{milliseconds / 1000:g}s"
    text, rest = "", milliseconds
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text + (f"{rest / 1000:g}s" if rest else "")
