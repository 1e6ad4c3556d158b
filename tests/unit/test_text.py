"""Text from outside becomes one harmless line."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factory_watchdog.core import text

# Plain names: mutmut collects the tests twice in one process, and an id with a backslash in it is not found again.
CLEANED = {
    "nothing": ("", ""),
    "as it is": ("as it is", "as it is"),
    "spaces": ("  around  and   between ", "around and between"),
    "lines": ("two\nlines\r\nand\ta tab", "two lines and a tab"),
    "a bar between spaces": ("performance | data", "performance data"),
    "a bar": ("a|b", "a b"),
    "colour": ("\x1b[31mred\x07\x00", "[31mred"),
    "C1": ("\x7f\x9b delete and C1", "delete and C1"),
    "separators": ("line\u2028separator\u2029s", "line separator s"),
    "directions": ("right\u202eto\u2066left\u200f", "righttoleft"),
    "no width": ("zero\u200bwidth\ufeff\u00ad", "zerowidth"),
    "a surrogate": ("lone \ud800surrogate", "lone surrogate"),
    "not ASCII": ("café 模型 🙂", "café 模型 🙂"),
}


@pytest.mark.parametrize(("dirty", "cleaned"), CLEANED.values(), ids=CLEANED)
def test_clean(dirty: str, cleaned: str) -> None:
    assert text.clean(dirty) == cleaned


def test_it_is_cut_to_the_limit_without_a_space_at_its_end() -> None:
    assert text.clean("x" * 500) == "x" * text.LIMIT
    assert text.clean("abc def", 4) == "abc"
    assert text.clean("abc def", 5) == "abc d"


def test_what_vanishes_does_not_count() -> None:
    assert text.clean("\u200b" * 300 + "x" * 300) == "x" * text.LIMIT


@given(st.text(), st.integers(1, 300))
def test_whatever_it_is_one_line_within_the_limit(dirty: str, limit: int) -> None:
    cleaned = text.clean(dirty, limit)
    assert len(cleaned) <= limit
    assert "|" not in cleaned
    assert not {unicodedata.category(character) for character in cleaned} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert cleaned == cleaned.strip()
    assert text.clean(cleaned, limit) == cleaned
    cleaned.encode()
