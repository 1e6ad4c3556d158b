"""Text from outside, made fit to be shown: one line, with nothing that a terminal, a page or a pager would act upon."""

from __future__ import annotations

import unicodedata

LIMIT = 200  # characters; enough for one sentence in a log line or a Nagios line

# Reading on costs time, and what a server sends may be megabytes: only so many times the limit is looked at.
_LOOKED_AT = 16

# Unicode general categories: format characters (bidirectional overrides, zero-width) and lone surrogates.
_DROPPED = frozenset({"Cf", "Cs"})


def clean(text: str, limit: int = LIMIT) -> str:
    """`text` as one line of at most `limit` characters, without control and format characters, surrogates and `|`.

    `|` separates performance data in a Nagios line. Runs of white space become one space.
    """
    looked_at = text[: limit * _LOOKED_AT]
    if not looked_at.isprintable() or "|" in looked_at:
        looked_at = "".join(map(_shown, looked_at))
    return " ".join(looked_at.split())[:limit].rstrip()


def _shown(character: str) -> str:
    """A character as it may be shown: control characters and `|` stand between words, what has no width vanishes.

    The line and paragraph separators (U+2028, U+2029) are white space to `str.split` already.
    """
    category = unicodedata.category(character)
    if category in _DROPPED:
        return ""
    return " " if category == "Cc" or character == "|" else character
