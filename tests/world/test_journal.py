"""The journal as it is read for a person, with a journalctl that does anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from factory_watchdog.world import journal
from factory_watchdog.world.journal import JournalError, read

LIFE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make journalctl this shell script; until then there is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("API_KEY", "sk-very-secret")

    def make(script: str) -> None:
        (tmp_path / "journalctl").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "journalctl").chmod(0o755)

    return make


def test_it_is_asked_for_one_life_and_one_time_and_no_more_than_some_screens(
    journalctl: Callable[[str], None], tmp_path: Path
) -> None:
    journalctl(f'echo "$@"; /usr/bin/env >{tmp_path}/environment')
    (asked,) = read(LIFE, 1_750_000_000.6, 1_750_000_100.2)
    between = "--since=@1750000000 --until=@1750000101"
    assert asked == f"_SYSTEMD_INVOCATION_ID={LIFE} {between} --output=short-iso --no-pager --lines=200"
    assert "sk-very-secret" not in (tmp_path / "environment").read_text()


def test_lines_keep_their_indentation_and_lose_what_a_terminal_acts_upon(journalctl: Callable[[str], None]) -> None:
    journalctl(r"printf '%s\n' '-- Boot 1 --'; printf '  File \033[31mx\302\233\342\200\250 | \377\n\ttabbed\r\n'")
    assert read(LIFE, 0, 1) == ["  File  [31mx   | �", " tabbed"]


def test_a_line_that_is_too_long_is_cut(journalctl: Callable[[str], None]) -> None:
    journalctl("printf '%01000d\\n' 7")
    assert [len(line) for line in read(LIFE, 0, 1)] == [journal.WIDEST]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 1", "journalctl ended with status 1"),
        ("echo >&2; echo 'No journal files were opened' >&2; exit 1", "status 1: No journal files were opened"),
        ("echo '-- No entries --'", "it has none of that time"),
        ("echo 'Hint: you see\033[2J only your own' >&2", "it has none of that time: Hint: you see [2J only your own"),
    ],
)
def test_a_journal_that_shows_nothing_says_why(script: str, why: str, journalctl: Callable[[str], None]) -> None:
    journalctl(script)
    with pytest.raises(JournalError) as caught:
        read(LIFE, 0, 1)
    assert str(caught.value).endswith(why)


def test_no_journalctl(journalctl: Callable[[str], None]) -> None:
    with pytest.raises(JournalError, match="journalctl cannot be started: No such file or directory"):
        read(LIFE, 0, 1)


def test_one_that_says_too_much_is_ended(journalctl: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LARGEST", 10_000)
    journalctl("while :; do echo again; done")
    assert read(LIFE, 0, 1)[:2] == ["again", "again"]
    assert len(read(LIFE, 0, 1)) == journal.NEWEST


def test_one_that_hangs_is_ended(journalctl: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LONGEST", 0.3)
    journalctl("exec /bin/sleep 60")
    with pytest.raises(JournalError, match="status -9"):
        read(LIFE, 0, 1)
