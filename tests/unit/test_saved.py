"""States kept across our own death: what is read back is what was written, and another boot leaves only the budget."""

import json
import pathlib

import pytest

from factory_watchdog.core.memory import Backend, Life, Memory, Phase, Recovery
from factory_watchdog.core.model import Identity, Reading, Reply, State, Verdict, Went
from factory_watchdog.core.recovery import resume
from factory_watchdog.saved import FORMAT, SavedStateError, decode, encode, taken_up
from factory_watchdog.simulate import run, scenario
from factory_watchdog.simulate.played import Collector

BOOT, OTHER = "boot-one", "boot-two"
FOLDER = pathlib.Path(__file__).parents[1] / "simulate/scenarios"
SCENARIOS = (
    "chat-400-no-template",
    "classic-hang",
    "core-dead-question-500",
    "dp-one-engine-stuck",
    "operator-stopped",
    "paused-keep",
    "poison-loop-never-serves",
    "poison-loop",
    "startup-never",
    "unit-failed",
)


@pytest.fixture(scope="module")
def states() -> list[Backend]:
    """States of every kind that the scenarios bring about: each change of verdict or phase, and some between."""
    found: list[Backend] = []
    told: set[object] = set()

    def keep(_collector: object, _name: str, backend: Backend) -> None:
        asking = backend.memory.asking if backend.memory is not None else None
        shape = (
            backend.verdict and (backend.verdict.state, backend.verdict.rule),
            backend.recovery.phase,
            asking and (asking.question is None, asking.answer is None, asking.settled, asking.form),
            backend.alerted,
        )
        if shape not in told:
            told.add(shape)
            found.append(backend)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collector, "polled", keep)
        for name in SCENARIOS:
            run.play(scenario.load(FOLDER / f"{name}.toml"))
    # A restart of ours while a job runs is what brings about the last of the phases.
    return [*found, *(resume(backend) for backend in found if backend.recovery.phase is Phase.RESTART)]


def test_what_is_read_back_is_what_was_written(states: list[Backend]) -> None:
    assert {b.verdict.state for b in states if b.verdict} >= set(State) - {State.BLIND, State.DEGRADED}
    assert {b.recovery.phase for b in states} == set(Phase)
    for backend in states:
        saved = decode(encode(backend, BOOT, 100.0, 1000.0))
        assert saved.backend == backend
        assert (saved.format, saved.boot_id, saved.boottime, saved.wall) == (FORMAT, BOOT, 100.0, 1000.0)


def test_what_is_taken_up_in_the_same_boot_is_the_state_resumed(states: list[Backend]) -> None:
    for backend in states:
        assert taken_up(encode(backend, BOOT, 100.0, 1000.0), BOOT, 130.0, 1030.0) == resume(backend)


def test_in_another_boot_only_the_budget_is_left(states: list[Backend]) -> None:
    for backend in states:
        after = taken_up(encode(backend, BOOT, 5000.0, 100_000.0), OTHER, 20.0, 100_300.0)
        assert (after.memory, after.finding, after.verdict, after.reading) == (None, None, None, None)
        assert after.recovery.attempt == backend.recovery.attempt
        # 300 s passed by the wall clock, and this boot is 20 s old: what was at 5000 is at -280.
        assert after.recovery.restarts == tuple(t - 5280.0 for t in backend.recovery.restarts)
        # After a boot a new life is certain, so a restart that was under way has yet to serve.
        assert after.recovery.phase is (Phase.SERVE if backend.recovery.phase.restarting else Phase.WATCH)


@pytest.mark.parametrize(
    ("wall", "moved"),
    [
        (1300.0, -280.0),
        (1000.0, 20.0),
        (500.0, 20.0),  # the wall clock went back: as if no time had passed, so that the budget is not forgotten
    ],
)
def test_restarts_of_an_earlier_boot_are_moved_by_the_wall_clock(wall: float, moved: float) -> None:
    backend = Backend(recovery=Recovery(attempt=2, restarts=(4900.0, 5000.0)))
    after = taken_up(encode(backend, BOOT, 5000.0, 1000.0), OTHER, 20.0, wall)
    assert after.recovery.restarts == (moved - 100.0, moved)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"\0" * 4096,
        b'{"format": 1}',
        b"[" * 100_000,
        b'{"format":1,"boot_id":"x","boottime":NaN,"wall":0,"backend":{}}',
    ],
)
def test_what_is_broken_is_told(text: bytes) -> None:
    with pytest.raises(SavedStateError, match="cannot be read"):
        decode(text)


def test_a_torn_write_is_told(states: list[Backend]) -> None:
    text = encode(states[-1], BOOT, 100.0, 1000.0)
    for length in range(0, len(text), 97):
        with pytest.raises(SavedStateError):
            decode(text[:length])


@pytest.mark.parametrize("number", [0, FORMAT + 1])
def test_another_format_is_told_as_such(number: int) -> None:
    changed = json.loads(encode(Backend(), BOOT, 100.0, 1000.0)) | {"format": number}
    with pytest.raises(SavedStateError, match=f"has format {number}, this release reads {FORMAT}"):
        decode(json.dumps(changed).encode())


def test_another_format_is_told_as_such_whatever_else_it_has() -> None:
    text = json.dumps({"format": FORMAT + 1, "boot_id": BOOT, "states": ["of another shape"]}).encode()
    with pytest.raises(SavedStateError, match=f"has format {FORMAT + 1}, this release reads {FORMAT}"):
        decode(text)


@pytest.mark.parametrize("text", ["plain", "with \x1b[2J and \0", "日本語 \u2028 \U0001f600", '"\\'])
def test_any_text_goes_there_and_back(text: str) -> None:
    life = Life(1, 0.0, Identity(invocation=text))
    reading = Reading(0.0, 1.0, Reply(Went.ERROR, detail=text), Reply(Went.ABSENT))
    backend = Backend(Memory(life), verdict=Verdict(State.BLIND, 0.0, text, "rule", text), reading=reading)
    assert decode(encode(backend, BOOT, 0.0, 0.0)).backend == backend
