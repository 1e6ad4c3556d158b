"""Cases from the field, played through the real poll, reader, judge and recovery."""

import pathlib

import pytest

from factory_watchdog.simulate import scenario
from factory_watchdog.simulate.run import play

SCENARIOS = sorted((pathlib.Path(__file__).parent / "scenarios").glob("*.toml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_a_scenario_expects_comes_true(path: pathlib.Path) -> None:
    assert play(scenario.load(path)).failed == []
