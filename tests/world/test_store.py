"""The store, on real SQLite files: what is kept, and that whatever happens to the file is one StoreError."""

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from factory_watchdog.core.model import (
    Answer,
    Form,
    Identity,
    Outcome,
    Proof,
    Purpose,
    Question,
    Reading,
    Reply,
    Restart,
    RestartSettled,
    Sample,
    State,
    Turned,
    Verdict,
    Went,
)
from factory_watchdog.errors import StoreError
from factory_watchdog.world import store as store_module
from factory_watchdog.world.store import Entry, Saved, Store

NOON = 1_750_000_000.0
BUSY = Verdict(State.BUSY, 10.0, "12 requests, steps moved", "busy")
HUNG = Verdict(State.HUNG, 200.0, "no step for 2 min", "flat", engine="1")
QUESTION = Question(7, Form.CHAT, "1", True, Purpose.CONFIRM, 130.0)
FAILED = Answer(7, Outcome.FAILED, 160.0, detail="no answer in 30 s")
READING = Reading(100.0, 100.1, Reply(Went.OK, 200), Reply(Went.OK, 200), True, (Sample("1", running=3.0, kv=0.25),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path, NOON)
    yield store
    store.close()


def restart(attempt: int = 1, why: str = "no step for 2 min") -> Restart:
    proof = Proof(attempt, State.HUNG, "flat", "1", why, 80.0, QUESTION, FAILED, READING)
    return Restart(attempt, Identity(1.0, "abc", 123, 456), proof)


def settled(attempt: int = 1, *, served: bool = True) -> RestartSettled:
    return RestartSettled(attempt, served, "the new life answered after 4 min", Identity())


def test_history_tells_everything_newest_first(store: Store) -> None:
    store.record_change("spark1", Turned(BUSY, None), NOON)
    store.record_change("spark1", Turned(HUNG, BUSY), NOON + 2)
    store.record_question("spark1", QUESTION, FAILED, NOON + 1)
    store.record_change("spark2", Turned(BUSY, None), NOON + 3)
    number = store.begin_restart("spark1", restart(), NOON + 4)
    assert store.history("spark1") == [
        Entry(NOON + 4, "spark1", "restart", "under way", "1", "no step for 2 min", number),
        Entry(NOON + 2, "spark1", "change", "hung", "1", "no step for 2 min", None),
        Entry(NOON + 1, "spark1", "question", "failed", "1", "confirm, chat: no answer in 30 s", None),
        Entry(NOON, "spark1", "change", "busy", None, "12 requests, steps moved", None),
    ]
    assert [entry.backend for entry in store.history(limit=2)] == ["spark1", "spark2"]
    assert store.history("nobody") == []


def test_a_restart_with_its_proof(store: Store) -> None:
    number = store.begin_restart("spark1", restart(), NOON, by="uid 1000")
    (record,) = store.restarts("spark1")
    assert (record.id, record.attempt, record.began, record.by) == (number, 1, NOON, "uid 1000")
    assert (record.ended, record.served, record.outcome) == (None, None, None)
    assert record.proof["answer"]["outcome"] == "failed"
    assert record.proof["reading"]["engines"][0]["kv"] == 0.25

    assert store.settle_restart("spark1", settled(), NOON + 240)
    (record,) = store.restarts()
    assert (record.ended, record.served) == (NOON + 240, True)
    assert record.outcome == "the new life answered after 4 min"
    assert store.history()[0].word == "served"
    assert not store.settle_restart("spark1", settled(), NOON + 300)


def test_a_restart_told_again_after_a_kill_is_the_same(store: Store, path: Path) -> None:
    number = store.begin_restart("spark1", restart(), NOON)
    again = Store(path, NOON)  # the first was never closed, as if its process had been killed
    assert again.begin_restart("spark1", restart(), NOON + 60) == number
    assert again.settle_restart("spark1", settled(served=False), NOON + 90)
    again.close()
    (record,) = store.restarts()
    assert (record.began, record.ended, record.served) == (NOON, NOON + 90, False)


def test_attempts_that_count_from_one_again_are_other_restarts(store: Store) -> None:
    first = store.begin_restart("spark1", restart(), NOON)
    store.settle_restart("spark1", settled(), NOON + 60)
    second = store.begin_restart("spark1", restart(), NOON + 1000)
    third = store.begin_restart("spark1", restart(why="silent"), NOON + 2000)
    assert len({first, second, third}) == 3
    assert [record.outcome for record in store.restarts()] == [
        None,
        "nobody saw how it ended",
        "the new life answered after 4 min",
    ]


def test_saved_states(store: Store, path: Path) -> None:
    assert store.load_state("spark1") is None
    store.save_state("spark1", b'{"a": 1}', NOON)
    store.save_state("spark1", b'{"a": 2}', NOON + 1)
    store.save_state("spark2", b"{}", NOON)
    store.close()
    again = Store(path, NOON)
    assert again.load_state("spark1") == Saved(b'{"a": 2}', NOON + 1)
    again.close()


def test_a_killed_writer_loses_nothing(path: Path) -> None:
    program = f"""
import os
from pathlib import Path
from factory_watchdog.world.store import Store
store = Store(Path({str(path)!r}), {NOON})
for number in range(50):
    store.save_state("spark1", b"%d" % number, {NOON})
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    store = Store(path, NOON)
    assert store.load_state("spark1") == Saved(b"49", NOON)
    assert store.warning is None
    store.close()


def test_keeps_no_more_than_it_should(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "KEPT", {"change": 10, "question": 10, "restart": 10})
    monkeypatch.setattr(store_module, "PRUNE_EVERY", 20)
    for second in range(45):
        store.record_change("spark1", Turned(BUSY, None), NOON + second)
    assert len(store.history()) <= 10 + 20
    store.prune(NOON + 45)
    assert len(store.history()) == 10


def test_keeps_nothing_for_ever(store: Store, path: Path) -> None:
    store.record_change("spark1", Turned(BUSY, None), NOON)
    store.begin_restart("spark1", restart(), NOON)
    store.prune(NOON + store_module.KEPT_FOR - 1)
    assert len(store.history()) == 2
    Store(path, NOON + store_module.KEPT_FOR + 1).close()
    assert store.history() == []


# --- what can happen to a file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", [b"", b"\0" * 8192], ids=["short", "long"])
def test_a_file_that_is_no_database_is_kept_and_a_new_one_begun(path: Path, rest: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database" + rest)
    store = Store(path, NOON)
    assert store.warning is not None
    assert str(path) in store.warning
    assert path.with_name("history.sqlite.corrupt").read_bytes().startswith(b"this is not a database")
    store.save_state("spark1", b"{}", NOON)
    store.close()
    again = Store(path, NOON)
    assert again.warning is None
    again.close()


def test_a_damaged_page_is_found_when_it_is_opened(path: Path) -> None:
    store = Store(path, NOON)
    for second in range(500):
        store.record_change("spark1", Turned(HUNG, BUSY), NOON + second)
    store.close()
    content = bytearray(path.read_bytes())
    content[8 * 4096 : 9 * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    store = Store(path, NOON)
    assert "is damaged" in (store.warning or "")
    assert store.history() == []
    store.close()


def test_a_file_damaged_while_it_is_open_is_a_store_error(path: Path) -> None:
    store = Store(path, NOON)
    store.record_change("spark1", Turned(BUSY, None), NOON)
    store.close()
    store = Store(path, NOON)
    store._db.execute("PRAGMA shrink_memory")  # what it has read already would be read from memory
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(StoreError, match="cannot be read"):
        store.history()
    store.close()


def test_a_newer_file_is_left_alone(path: Path) -> None:
    Store(path, NOON).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer release"):
        Store(path, NOON)
    assert path.read_bytes() == before


def test_a_full_disk_costs_the_record_and_no_more(store: Store) -> None:
    store.save_state("spark1", b"before", NOON)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(StoreError, match="cannot be written"):
            store.save_state("spark1", b"x" * 100_000, NOON)
        assert store.load_state("spark1") == Saved(b"before", NOON)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.save_state("spark1", b"after", NOON)
    assert store.load_state("spark1") == Saved(b"after", NOON)


def test_a_fault_right_after_a_transaction_began_leaves_it_not_open(store: Store) -> None:
    """Otherwise every later one would fail, and the history be broken for good."""

    class Faulty:
        def __getattr__(self, name: str) -> Any:
            return getattr(database, name)

        def execute(self, statement: str, *values: Any) -> Any:
            done = database.execute(statement, *values)
            if statement == "BEGIN IMMEDIATE":
                raise RuntimeError("a fault of our own")
            return done

    database = store._db
    store._db = cast("sqlite3.Connection", Faulty())
    with pytest.raises(RuntimeError):
        store.record_change("sim", Turned(BUSY, None), NOON)
    store._db = database
    store.record_change("sim", Turned(BUSY, None), NOON)
    assert len(store.history()) == 1


def test_a_lock_that_stays_is_a_store_error(store: Store, path: Path) -> None:
    store._db.execute("PRAGMA busy_timeout = 20")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="database is locked"):
        store.save_state("spark1", b"{}", NOON)
    other.execute("ROLLBACK")
    other.close()
    store.save_state("spark1", b"{}", NOON)


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "history.sqlite", Path("/proc/no-folder/history.sqlite")):
        with pytest.raises(StoreError, match="cannot be opened"):
            Store(path, NOON)


USES: list[Callable[[Store], object]] = [
    lambda store: store.record_change("spark1", Turned(BUSY, None), NOON),
    lambda store: store.record_question("spark1", QUESTION, FAILED, NOON),
    lambda store: store.begin_restart("spark1", restart(), NOON),
    lambda store: store.settle_restart("spark1", settled(), NOON),
    lambda store: store.save_state("spark1", b"{}", NOON),
    lambda store: store.load_state("spark1"),
    lambda store: store.history(),
    lambda store: store.restarts(),
    lambda store: store.prune(NOON),
    lambda store: store.begin_restart("spark1", restart(attempt=1 << 80), NOON),
    lambda store: store.begin_restart("spark1", restart(why="\ud800"), NOON),
]


@pytest.mark.parametrize("use", USES)
def test_only_store_errors_come_out(store: Store, use: Callable[[Store], object]) -> None:
    store._db.close()
    with pytest.raises(StoreError):
        use(store)


@pytest.mark.parametrize("use", USES[-2:])
def test_values_that_cannot_be_kept(store: Store, use: Callable[[Store], object]) -> None:
    with pytest.raises(StoreError):
        use(store)
    store.save_state("spark1", b"{}", NOON)


# --- readers ----------------------------------------------------------------------------------------------------------


def test_a_reader_sees_what_the_daemon_writes_and_cannot_write(store: Store, path: Path) -> None:
    reader = Store.reader(path)
    store.record_change("spark1", Turned(BUSY, None), NOON)
    assert len(reader.history()) == 1
    with pytest.raises(StoreError, match="readonly"):
        reader.save_state("spark1", b"{}", NOON)
    reader.close()


def test_no_history_yet(path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        Store.reader(path)


def test_a_reader_of_something_else(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"x" * 5000)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.reader(path)


@pytest.mark.parametrize("running", [True, False], ids=["daemon-running", "daemon-stopped"])
def test_another_user_can_read(path: Path, need: Callable[[object, str], None], *, running: bool) -> None:
    need(os.geteuid() == 0 and shutil.which("setpriv"), "root and setpriv are needed to become another user")
    store = Store(path, NOON)
    store.record_change("spark1", Turned(BUSY, None), NOON)
    if not running:
        store.close()
    for folder in list(path.parents)[:4]:
        folder.chmod(folder.stat().st_mode | 0o055)
    program = (
        "from pathlib import Path; from factory_watchdog.world.store import Store;"
        f"print(Store.reader(Path({str(path)!r})).history()[0].word)"
    )
    command = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-B", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    store.close()
    assert (done.stdout, done.stderr) == ("busy\n", "")
