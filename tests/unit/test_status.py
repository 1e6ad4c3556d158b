"""What others are told of a backend."""

import json

import pytest

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import MEANING, Reading, Reply, Sample, State, Verdict, Went
from factory_watchdog.status import is_ready, status_of

OK = Reply(Went.OK, 200)
SILENT = Reply(Went.TIMEOUT)


def backend(state: State, *samples: Sample, health: Reply = OK, engine: str | None = None) -> Backend:
    reading = Reading(began=99.0, ended=99.5, health=health, metrics=OK, known=True, engines=samples)
    return Backend(verdict=Verdict(state, 40.0, "because", "rule", engine), reading=reading)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("health", [OK, SILENT], ids=["healthy", "silent"])
def test_ready_is_what_the_state_means_and_while_blind_what_health_says(state: State, health: Reply) -> None:
    expected = MEANING[state].ready
    assert is_ready(backend(state, health=health)) is (health is OK if expected is None else expected)


def test_blind_without_a_reading_is_not_ready() -> None:
    assert not is_ready(Backend(verdict=Verdict(State.BLIND, 0.0, "because", "rule")))


def test_a_backend_that_was_not_judged_yet_is_alive_and_not_ready() -> None:
    assert status_of("spark1", Backend(), 100.0, 1000.0) == {
        "name": "spark1",
        "state": None,
        "why": "not judged yet",
        "ready": False,
        "live": True,
    }


def test_a_verdict_is_told_with_wall_time_and_sums_over_the_engines() -> None:
    samples = Sample("0", running=3.0, waiting=1.0), Sample("1", running=2.0, waiting=None)
    assert status_of("spark1", backend(State.HUNG, *samples, engine="1"), 100.0, 1000.0) == {
        "name": "spark1",
        "state": "hung",
        "since": 940.0,
        "why": "because",
        "rule": "rule",
        "engine": "1",
        "live": False,
        "ready": False,
        "running": 5.0,
        "waiting": 1.0,
    }


def test_a_number_that_was_not_told_is_none_and_never_zero() -> None:
    told = status_of("spark1", backend(State.BUSY, Sample("0")), 100.0, 1000.0)
    assert (told["running"], told["waiting"]) == (None, None)
    told = status_of("spark1", backend(State.BUSY, Sample("0", running=0.0)), 100.0, 1000.0)
    assert (told["running"], told["waiting"]) == (0.0, None)


@pytest.mark.parametrize("state", State)
def test_machines_can_read_it(state: State) -> None:
    told = status_of("spark1", backend(state), 100.0, 1000.0)
    assert json.loads(json.dumps(told)) == told
