"""What the file keeps of restarts: what is added to them, how large they get, and files of an earlier release."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from factory_watchdog.core.model import (
    Answer,
    Flag,
    Form,
    Hold,
    Identity,
    JobResult,
    Outcome,
    Pause,
    Proof,
    Purpose,
    Question,
    Reading,
    Reply,
    Restart,
    RestartSettled,
    Sample,
    State,
    UnitFacts,
    Went,
)
from factory_watchdog.core.text import LIMIT
from factory_watchdog.readings import BEYOND, MOST, Readings
from factory_watchdog.world import store as store_module
from factory_watchdog.world.evidence import (
    MOST_GPUS,
    MOST_PROCESSES,
    Evidence,
    Gpu,
    Group,
    Job,
    Journal,
    Missing,
    Pressure,
    Processes,
    Seen,
    nothing,
)
from factory_watchdog.world.store import Store
from factory_watchdog.world.systemd import SHOWN

NOON = 1_750_000_000.0
LARGEST_RECORD = 1 << 20  # bytes, as docs/proof.md says
LONG = "x" * LIMIT  # as much text as any one thing from outside may have
OK = Reply(Went.OK, 200, 0.123456, LONG)
JOB = Job("vllm.service", NOON, NOON + 3.0, JobResult.DONE, "")

# The tables as the first release made them.
VERSION_1 = """
CREATE TABLE change (
    id INTEGER PRIMARY KEY, wall REAL NOT NULL, backend TEXT NOT NULL,
    state TEXT NOT NULL, previous TEXT, engine TEXT, rule TEXT NOT NULL, why TEXT NOT NULL
) STRICT;
CREATE TABLE question (
    id INTEGER PRIMARY KEY, wall REAL NOT NULL, backend TEXT NOT NULL,
    purpose TEXT NOT NULL, form TEXT NOT NULL, engine TEXT, outcome TEXT NOT NULL, seconds REAL NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE TABLE restart (
    id INTEGER PRIMARY KEY AUTOINCREMENT, wall REAL NOT NULL, backend TEXT NOT NULL, attempt INTEGER NOT NULL,
    engine TEXT, why TEXT NOT NULL, by TEXT, proof TEXT NOT NULL, ended REAL, served INTEGER, outcome TEXT
) STRICT;
CREATE UNIQUE INDEX under_way ON restart (backend) WHERE ended IS NULL;
CREATE TABLE state (name TEXT PRIMARY KEY, json BLOB NOT NULL, saved REAL NOT NULL) STRICT;
INSERT INTO restart VALUES (7, 1750000000.0, 'spark1', 3, '0', 'why', NULL, '{"rule": "flat"}', 1750000060.0, 1, 'ok');
INSERT INTO restart VALUES (8, 1750000100.0, 'spark1', 4, '0', 'again', NULL, '{"rule": "flat"}', NULL, NULL, NULL);
INSERT INTO state VALUES ('spark1', x'7b7d', 1750000000.0);
PRAGMA user_version = 1;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path, NOON)
    yield store
    store.close()


def sample(number: int, at: float) -> Sample:
    counted = 1e9 + at
    return Sample(str(number), 123.0, 4567.0, counted, counted, counted, 0.123456789012, counted)


def reading(at: float, engines: int = 1) -> Reading:
    unit = UnitFacts(True, "active", "running", 12345, "a" * 32, 1234567, 123456789, 1e6 + at, f"/{LONG}", (), "")
    return Reading(
        began=at,
        ended=at + 0.123456,
        health=OK,
        metrics=OK,
        known=True,
        engines=tuple(sample(number, at) for number in range(engines)),
        start_time=1.75e9,
        unit=unit,
        pause=Pause(),
        flag=Flag(stale=True, why=LONG, since=1.0),
    )


def restart(attempt: int, readings: tuple[Reading, ...]) -> Restart:
    question = Question(7, Form.CHAT, "1", True, Purpose.CONFIRM, 130.0)
    answer = Answer(7, Outcome.FAILED, 160.0, detail=LONG)
    proof = Proof(attempt, State.HUNG, "flat", "1", LONG, 80.0, question, answer, readings[-1], readings, tuple(Hold))
    return Restart(attempt, Identity(), proof)


def full() -> Evidence:
    """As much evidence as there can be."""
    unit: dict[str, str | int | None] = {name: LONG for names in SHOWN.values() for name in names}
    seen = Seen(1234567, 1234567, "coordinator", "D", 12345, 1234567.8, 1 << 40, 123.456)
    gpu = Gpu(12, "x" * 60, 100.0, 1234.56, 1 << 40, 100.0)
    pressure = Pressure(12.34, 12.34)
    return Evidence(
        seconds=1.234,
        unit=unit,
        processes=Processes((seen,) * MOST_PROCESSES, 12345),
        group=Group(123.456, 1 << 40, pressure, pressure),
        gpus=(gpu,) * MOST_GPUS,
        journal=Journal("a" * 32, NOON, NOON),
    )


def size(path: Path) -> int:
    """Bytes of the newest restart as it is in the file."""
    with sqlite3.connect(path) as db:
        lengths = "length(proof) + ifnull(length(evidence), 0) + ifnull(length(job), 0)"
        found = db.execute(f"SELECT {lengths} FROM restart ORDER BY id DESC").fetchone()
    db.close()
    return int(found[0])


# --- what is added to a restart --------------------------------------------------------------------------------------


def test_evidence_and_job_are_added_to_the_restart_that_is_under_way(store: Store) -> None:
    number = store.begin_restart("spark1", restart(1, (reading(1.0),)), NOON)
    assert store.record_evidence("spark1", 1, full(), NOON)
    assert store.record_job("spark1", 1, JOB, NOON)
    record = store.restart(number)
    assert record is not None
    assert record.evidence is not None
    assert record.evidence["processes"]["seen"][0]["role"] == "coordinator"
    assert record.evidence["journal"]["invocation"] == "a" * 32
    assert record.job == {"unit": "vllm.service", "asked": NOON, "ended": NOON + 3, "result": "done", "detail": ""}
    assert record.proof["held"][0] == "observe"
    assert not store.record_evidence("spark1", 2, full(), NOON)
    assert not store.record_evidence("spark2", 1, full(), NOON)
    store.settle_restart("spark1", RestartSettled(1, True, "served", Identity()), NOON + 9)
    assert store.record_job("spark1", 1, JOB, NOON + 10)  # asked for before the end, and told after it
    assert not store.record_job("spark1", 1, replace(JOB, asked=NOON + 10), NOON + 11)
    assert not store.record_evidence("spark1", 1, full(), NOON + 10)


def test_a_part_that_is_missing_says_why_in_its_place(store: Store) -> None:
    number = store.begin_restart("spark1", restart(1, (reading(1.0),)), NOON)
    store.record_evidence("spark1", 1, nothing("not told"), NOON)
    record = store.restart(number)
    assert record is not None
    assert record.evidence is not None
    assert record.evidence["gpus"] == record.evidence["unit"] == {"missing": "not told"}


def test_the_same_restart_told_again_keeps_its_evidence(store: Store) -> None:
    order = restart(1, (reading(1.0),))
    number = store.begin_restart("spark1", order, NOON)
    store.record_evidence("spark1", 1, full(), NOON)
    assert store.begin_restart("spark1", order, NOON + 60) == number
    record = store.restart(number)
    assert record is not None
    assert record.evidence is not None


def test_a_restart_by_its_number(store: Store) -> None:
    assert store.restart(1) is None
    number = store.begin_restart("spark1", restart(1, (reading(1.0),)), NOON)
    assert [store.restart(number)] == store.restarts()
    assert store.restart(number + 1) is None


def test_history_between_two_times(store: Store) -> None:
    number = store.begin_restart("spark1", restart(1, (reading(1.0),)), NOON)
    assert [entry.restart for entry in store.history("spark1", since=NOON, until=NOON)] == [number]
    assert store.history("spark1", since=NOON + 1) == store.history("spark1", until=NOON - 1) == []


# --- a file of the first release --------------------------------------------------------------------------------------


@pytest.fixture
def earlier(path: Path) -> Path:
    with sqlite3.connect(path) as db:
        db.executescript(VERSION_1)
    db.close()
    return path


def test_a_file_of_the_first_release_keeps_its_rows_and_takes_new_ones(earlier: Path) -> None:
    store = Store(earlier, NOON)
    assert store.warning is None
    assert [(r.id, r.proof, r.evidence, r.job) for r in store.restarts()] == [
        (number, {"rule": "flat"}, None, None) for number in (8, 7)
    ]
    assert store.load_state("spark1") is not None
    assert store.record_evidence("spark1", 4, full(), NOON)  # that one was under way when the daemon was renewed
    assert store.begin_restart("spark1", restart(5, (reading(1.0),)), NOON + 200) == 9
    store.close()
    again = Store(earlier, NOON)
    assert [record.evidence is not None for record in again.restarts()] == [False, True, False]
    again.close()
    with sqlite3.connect(earlier) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (store_module.VERSION,)
    db.close()


def test_a_file_of_the_first_release_is_read_as_it_is(earlier: Path) -> None:
    before = earlier.read_bytes()
    reader = Store.reader(earlier)
    record = reader.restart(7)
    assert record is not None
    assert (record.outcome, record.served, record.evidence, record.job) == ("ok", True, None, None)
    reader.close()
    assert earlier.read_bytes() == before


# --- how large it gets ------------------------------------------------------------------------------------------------


def test_the_largest_record(store: Store, path: Path) -> None:
    """An hour's window, a look every quarter of a second, eight engines, every text as long as it may be."""
    readings = Readings(3600.0 + BEYOND)
    for number in range(4 * 3720):
        at = number * 0.25
        readings.add(reading(at, engines=8), since=120.0)
    kept = tuple(readings)
    assert len(kept) == MOST
    store.begin_restart("spark1", restart(1, kept), NOON)
    store.record_evidence("spark1", 1, full(), NOON)
    store.record_job("spark1", 1, replace(JOB, detail=LONG), NOON)
    assert LARGEST_RECORD / 2 < size(path) < LARGEST_RECORD


def test_the_usual_record_is_small(store: Store, path: Path) -> None:
    readings = Readings(120.0 + BEYOND)
    for number in range(1000):
        readings.add(replace(reading(number * 10.0), health=Reply(Went.OK, 200), metrics=Reply(Went.OK, 200)), None)
    store.begin_restart("spark1", restart(1, tuple(readings)), NOON)
    assert size(path) < 40_000


def test_no_more_bytes_of_restarts_are_kept_than_allowed(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = restart(1, tuple(reading(float(at)) for at in range(50)))
    store.begin_restart("spark1", order, NOON)
    each = size(path)
    monkeypatch.setattr(store_module, "KEPT_PROOFS", 10 * (each + 10))
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 7)
    for number in range(2, 200):
        store.begin_restart("spark1", restart(number, order.proof.readings), NOON + number)
    store.prune(NOON + 200)
    numbers = [record.id for record in store.restarts(limit=1000)]
    assert numbers == [199, 198, 197, 196, 195, 194, 193, 192, 191, 190]
    store.close()
    assert path.stat().st_size < 30 * each  # what was deleted is written over


def test_one_that_is_under_way_is_never_deleted_for_its_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "KEPT_PROOFS", 10)
    store.begin_restart("spark1", restart(1, (reading(1.0),)), NOON)
    store.begin_restart("spark2", restart(1, (reading(1.0),)), NOON)
    store.begin_restart("spark2", restart(2, (reading(1.0),)), NOON)
    store.prune(NOON)
    assert [(record.backend, record.attempt) for record in store.restarts()] == [("spark2", 2), ("spark1", 1)]


def test_evidence_that_no_file_can_hold_is_a_store_error(store: Store) -> None:
    store.begin_restart("spark1", restart(1, (reading(1.0),)), NOON)
    with pytest.raises(store_module.StoreError):
        store.record_evidence("spark1", 1, replace(full(), gpus=Missing("\ud800")), NOON)
    assert store.record_evidence("spark1", 1, full(), NOON)
