"""How the sentences of verdicts say times and numbers."""

from __future__ import annotations


def span(seconds: float) -> str:
    """A duration for people, at most two units: "43 s", "2 min 30 s", "1 h 5 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def count(number: float, noun: str) -> str:
    """A number with its noun: "1 request", "12 requests"."""
    shown = f"{number:g}"
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"
