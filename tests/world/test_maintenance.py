"""world/maintenance.py: windows in which an operator sets backends aside, and the file that keeps them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from factory_watchdog.world.maintenance import LONGEST, Maintenance, MaintenanceError


@dataclass
class Clock:
    """Two clocks that move only when told to."""

    now: float = 1000.0
    time: float = 5000.0

    def boottime(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.time

    def moves(self, seconds: float) -> None:
        self.now += seconds
        self.time += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "maintenance.json"


def test_a_window_stands_until_its_end(path: Path, clock: Clock) -> None:
    windows = Maintenance(path, clock)
    assert windows.standing("spark1") is None
    windows.begin("spark1", 3600, "uid 0")
    assert windows.standing("spark1") == "for another 1 h, by uid 0"
    assert windows.standing("spark2") is None
    clock.moves(3599)
    assert windows.standing("spark1") == "for another 1 s, by uid 0"
    clock.moves(1)
    assert windows.standing("spark1") is None


def test_it_is_ended_by_hand_and_replaced_by_another(path: Path, clock: Clock) -> None:
    windows = Maintenance(path, clock)
    assert not windows.end("spark1")
    windows.begin("spark1", 3600, "uid 0")
    windows.begin("spark1", 60, "uid 1000")
    assert windows.standing("spark1") == "for another 1 min, by uid 1000"
    assert windows.end("spark1")
    assert windows.standing("spark1") is None
    assert json.loads(path.read_text()) == {}


def test_the_next_daemon_goes_on_with_it(path: Path, clock: Clock) -> None:
    Maintenance(path, clock).begin("spark1", 3600, "uid 0")
    clock.moves(600)
    clock.now = 20.0  # the host was booted meanwhile
    windows = Maintenance(path, clock)
    assert windows.standing("spark1") == "for another 50 min, by uid 0"
    clock.moves(3000)
    assert (windows.standing("spark1"), Maintenance(path, clock).standing("spark1")) == (None, None)


def test_the_wall_clock_moves_no_window_of_a_running_daemon(path: Path, clock: Clock) -> None:
    windows = Maintenance(path, clock)
    windows.begin("spark1", 60, "uid 0")
    clock.time += 3600
    assert windows.standing("spark1") is not None
    clock.time -= 7200
    clock.now += 60
    assert windows.standing("spark1") is None


def test_no_window_is_longer_than_the_longest(path: Path, clock: Clock) -> None:
    Maintenance(path, clock).begin("spark1", 10 * LONGEST, "uid 0")
    clock.time -= 90 * 86400.0
    windows = Maintenance(path, clock)
    clock.now += LONGEST
    assert windows.standing("spark1") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[1]", '{"spark1": 5}', '{"spark1": {}}', '{"spark1": {"until": "x", "by": "y"}}', "[" * 100_000],
)
def test_a_damaged_file_is_told_and_sets_nobody_aside(path: Path, clock: Clock, text: str) -> None:
    path.write_text(text)
    windows = Maintenance(path, clock)
    assert windows.standing("spark1") is None
    assert windows.warning is not None
    assert windows.warning.startswith(f"{path} cannot be read (")
    windows.begin("spark1", 60, "uid 0")
    assert Maintenance(path, clock).standing("spark1") is not None


def test_without_a_file_nothing_is_wrong(path: Path, clock: Clock) -> None:
    assert Maintenance(path, clock).warning is None


def test_a_window_that_cannot_be_kept_is_in_force_all_the_same(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "nowhere" / "maintenance.json"
    windows = Maintenance(path, clock)
    with pytest.raises(MaintenanceError) as told:
        windows.begin("spark1", 60, "uid 0")
    assert str(told.value) == f"{path} cannot be written: No such file or directory; a restart of ours forgets it"
    assert windows.standing("spark1") is not None
