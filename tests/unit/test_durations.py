"""Durations: what is read, what is shown, what is refused and with which words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factory_watchdog.config import durations

READ = {
    "90s": 90.0,
    "2h": 7200.0,
    "8m30s": 510.0,
    "0.25s": 0.25,
    "250ms": 0.25,
    "1d": 86400.0,
    "1d2h3m4s5ms": 93784.005,
    "1.5h": 5400.0,
    "0s": 0.0,
    "007s": 7.0,
    "3650d": durations.LONGEST,
}

SHOWN = {
    0: "0s",
    0.0004: "0s",
    0.25: "250ms",
    0.9999: "1s",
    1.5: "1.5s",
    90: "90s",
    119.999: "119.999s",
    120: "120s",
    121: "2m1s",
    510: "8m30s",
    1800: "30m",
    3600: "1h",
    129600: "1d12h",
    3723.25: "1h2m3.25s",
    durations.LONGEST: "3650d",
}

REFUSED = {
    "": "an empty duration",
    "90": "needs a unit",
    "1.5": "needs a unit",
    "-90s": "cannot be negative",
    "s": "not a duration",
    "90 s": "not a duration",
    " 90s": "not a duration",
    "90s\n": "not a duration",
    "90S": "not a duration",
    "30s8m": "not a duration",
    "1s1s": "not a duration",
    "1e3s": "not a duration",
    "+1s": "not a duration",
    ".5s": "not a duration",
    "1.s": "not a duration",
    "nan": "not a duration",
    "infs": "not a duration",
    "two hours": "not a duration",
    "1w": "not a duration",
    "٣s": "not a duration",
    "3651d": "cannot be longer than 3650d",
    "9" * 400 + "s": "cannot be longer than 3650d",
}


@pytest.mark.parametrize(("text", "seconds"), READ.items())
def test_reads(text: str, seconds: float) -> None:
    assert durations.parse(text) == seconds


@pytest.mark.parametrize(("seconds", "text"), SHOWN.items())
def test_shows(seconds: float, text: str) -> None:
    assert durations.show(seconds) == text


@pytest.mark.parametrize(("text", "words"), REFUSED.items())
def test_refuses(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        durations.parse(text)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_shows_no_nonsense(seconds: float) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        durations.show(seconds)


@given(st.floats(min_value=0, max_value=durations.LONGEST))
def test_what_is_shown_is_read_back_to_the_millisecond(seconds: float) -> None:
    assert durations.parse(durations.show(seconds)) == pytest.approx(seconds, abs=0.0006)
