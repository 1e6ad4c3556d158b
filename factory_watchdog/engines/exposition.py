"""The selective reader of the Prometheus text format: a few wanted metrics out of a page of hundreds.

One regular expression finds the lines of wanted metrics in the raw bytes; only those are decoded and taken apart. The
format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import functools
import math
import re

PAGE_LIMIT = 8 * 1024 * 1024
"""The longest page in bytes that is worth reading; whoever fetches pages refuses longer ones. The largest page of a
real server is some hundred kB; eight ranks of vLLM give 340 kB."""

Series = tuple[dict[str, str], float]
"""One series of a metric: its labels and its value."""

# A label's value ends at the first quote that no backslash escapes, whatever else is in it. All repetitions that could
# give back are possessive (`*+`), so that a line is refused in one pass, however it is broken.
_NAME = rb"[a-zA-Z_][a-zA-Z0-9_]*+"
_QUOTED = rb'(?:[^"\\]|\\.)*+'
_PAIR = rb'[ \t]*+(%s)[ \t]*+=[ \t]*+"(%s)"[ \t]*+'
_LABELS = rb"(?:" + _PAIR % (rb"?:" + _NAME, rb"?:" + _QUOTED) + rb"(?:,|(?=\})))*+[ \t]*+"
# No number that a server prints has more than 64 characters; float() need not be tried on megabytes of digits.
_SAMPLE = re.compile(rb"[ \t]*+(?:\{(" + _LABELS + rb")\})?+[ \t]*+([!-~]{1,64}+)(?:[ \t]++-?[0-9.]++)?+[ \t\r]*+")
_LABEL = re.compile(_PAIR % (_NAME, _QUOTED))

_ESCAPE = re.compile(rb'\\([\\"n])')


def read(page: bytes, wanted: frozenset[str]) -> dict[str, list[Series]]:
    """The series of each wanted metric on the page, in the order in which they stand there.

    Names are exact. A metric without a readable series is absent from the result, and so is a series whose value is
    NaN. A line that is broken is as if it were not there: never zero and never an error, whatever the bytes are.
    """
    told: dict[str, list[Series]] = {}
    if not wanted:
        return told
    # The newline before the first line lets every search begin with a plain byte, which is what makes it fast.
    for name, rest in _finder(wanted).findall(b"\n" + page):
        series = _series(rest)
        if series is not None:
            told.setdefault(name.decode(), []).append(series)
    return told


@functools.lru_cache(maxsize=32)  # one entry for each set of wanted names, of which each dialect has one
def _finder(wanted: frozenset[str]) -> re.Pattern[bytes]:
    """Finds the lines of the wanted metrics: the name first, then a brace or blank, then whatever the line has.

    Names that share a namespace (`vllm:`) are tried only behind it: that halves the time of a search.
    """
    namespaces: dict[str, list[str]] = {}
    for name in sorted(wanted):
        namespace, colon, own = name.rpartition(":")
        namespaces.setdefault(namespace + colon, []).append(re.escape(own))
    names = "|".join(f"{re.escape(namespace)}(?:{'|'.join(own)})" for namespace, own in namespaces.items())
    return re.compile(rb"\n[ \t]*+(%s)([{ \t][^\n]*)" % names.encode())


def _series(rest: bytes) -> Series | None:
    """The labels and the value that follow a metric's name, None where they do not tell a number."""
    sample = _SAMPLE.fullmatch(rest)
    if sample is None:
        return None
    labels, number = sample.groups()
    value = _number(number)
    if math.isnan(value):
        return None
    return {name.decode(): _unescaped(text) for name, text in _LABEL.findall(labels or b"")}, value


def _number(token: bytes) -> float:
    """The number in the token, NaN where there is none. `_` is Python's own and no part of the format."""
    try:
        return math.nan if b"_" in token else float(token)
    except ValueError:
        return math.nan


def _unescaped(text: bytes) -> str:
    """A label's value as it was meant; bytes that are not UTF-8 become U+FFFD."""
    if b"\\" in text:
        text = _ESCAPE.sub(_escaped, text)
    return text.decode(errors="replace")


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"\n" if match[1] == b"n" else match[1]
