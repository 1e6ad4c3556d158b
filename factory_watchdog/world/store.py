"""The history and the saved state, in one SQLite file.

What blocks: a write takes as long as the page cache needs, since in WAL mode with synchronous=NORMAL only a checkpoint
(after about a thousand pages) waits for the disk. So a power loss may cost the last entries, never the file, and a
killed daemon costs nothing. Another writer is waited for at most `_BUSY_TIMEOUT`; readers block nobody. Opening checks
the whole file.

Every method raises StoreError, and only that, whatever happens to the file: the caller reports it and goes on. Times
are wall-clock times, since people read them and files outlive a boot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from factory_watchdog.core.model import Answer, Question, Restart, RestartSettled, Turned
from factory_watchdog.errors import StoreError
from factory_watchdog.world.evidence import Evidence, Job

VERSION = 2  # of the tables, in user_version
KEPT_FOR = 90 * 86400.0  # seconds; a quarter of a year back is what somebody asks about
KEPT = {"change": 20_000, "question": 20_000, "restart": 1_000}  # rows; some MiB of changes and questions
KEPT_PROOFS = 64 << 20  # bytes of restarts; one has 30 kB as a rule, below 1 MiB at most (eight engines, an hour)
PRUNE_EVERY = 500  # writes; rows over the limit in between are few

_BUSY_TIMEOUT = 1.0  # seconds; the loop that watches backends must not wait longer for another writer
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_TABLES = """
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
    engine TEXT, why TEXT NOT NULL, by TEXT, proof TEXT NOT NULL, ended REAL, served INTEGER, outcome TEXT,
    evidence TEXT, job TEXT
) STRICT;
CREATE UNIQUE INDEX under_way ON restart (backend) WHERE ended IS NULL;
CREATE TABLE state (name TEXT PRIMARY KEY, json BLOB NOT NULL, saved REAL NOT NULL) STRICT;
"""

_CHANGES = {1: "ALTER TABLE restart ADD COLUMN evidence TEXT; ALTER TABLE restart ADD COLUMN job TEXT;"}
"""What makes the tables of a version those of the next one."""

_HISTORY = """
SELECT wall, backend, kind, word, engine, why, restart FROM (
    SELECT wall, backend, 'change' AS kind, state AS word, engine, why, NULL AS restart, id FROM change
    UNION ALL
    SELECT wall, backend, 'question', outcome, engine,
        purpose || ', ' || form || iif(detail = '', '', ': ' || detail), NULL, id FROM question
    UNION ALL
    SELECT wall, backend, 'restart', CASE served WHEN 1 THEN 'served' WHEN 0 THEN 'not served' ELSE 'under way' END,
        engine, why || iif(outcome IS NULL, '', '; ' || outcome), id, id FROM restart
) WHERE (:backend IS NULL OR backend = :backend) AND wall BETWEEN :since AND :until
ORDER BY wall DESC, id DESC LIMIT :limit
"""

_RESTARTS = """
SELECT id, backend, attempt, wall, ended, served, engine, why, outcome, by, proof, {evidence}, {job} FROM restart
WHERE (:backend IS NULL OR backend = :backend) AND (:id IS NULL OR id = :id) ORDER BY id DESC LIMIT :limit
"""

_TOO_MUCH = """
DELETE FROM restart WHERE id IN (
    SELECT id FROM (
        SELECT id, sum(length(proof) + ifnull(length(evidence), 0)) OVER (ORDER BY id DESC) AS bytes FROM restart
    ) WHERE bytes > ?
) AND ended IS NOT NULL
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One line of the history: `kind` is change, question or restart, `word` what it came to, `restart` its id."""

    wall: float
    backend: str
    kind: str
    word: str
    engine: str | None
    why: str
    restart: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class RestartRecord:
    """One restart with its proof; `ended`, `served` and `outcome` are None while it is under way.

    `by` names the operator who asked for it, None where the watchdog decided. `evidence` is what the host showed and
    `job` what was asked of the service manager, None where neither was recorded (yet).
    """

    id: int
    backend: str
    attempt: int
    began: float
    ended: float | None
    served: bool | None
    engine: str | None
    why: str
    outcome: str | None
    by: str | None
    proof: dict[str, Any]
    evidence: dict[str, Any] | None = None
    job: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """A saved state, and when it was saved."""

    json: bytes
    wall: float


class Store:
    """The file at `path`, opened for the daemon, which alone writes; `reader` opens it for everybody else.

    A file that is no sound database is moved aside to NAME.corrupt, over an earlier one, and a new one is begun;
    `warning` then says so. A file of a newer release is left alone and refused.
    """

    def __init__(self, path: Path, wall: float) -> None:
        self.warning: str | None = None
        self._path = path
        self._writes = 0
        with _told(path, "opened"):
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            try:
                self._db = _open(path)
            except sqlite3.DatabaseError as error:
                if not _is_corrupt(error):
                    raise
                self.warning = f"{path} is damaged ({error}); it is kept as {_move_aside(path)}, and a new one is begun"
                self._db = _open(path)
        self.prune(wall)

    @classmethod
    def reader(cls, path: Path) -> Store:
        """The file opened for reading only, also by a user who cannot write to its folder."""
        store = cls.__new__(cls)
        store.warning, store._path, store._writes = None, path, 0
        with _told(path, "opened"):
            store._db = _open_to_read(path)
        return store

    def close(self) -> None:
        """Close the file; an error then is of no use to anybody."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    # --- written by the daemon ---------------------------------------------------------------------------------------

    def record_change(self, backend: str, turned: Turned, wall: float) -> None:
        """A change of the verdict."""
        verdict, previous = turned.verdict, turned.previous and turned.previous.state
        row = (wall, backend, verdict.state, previous, verdict.engine, verdict.rule, verdict.why)
        columns = "wall, backend, state, previous, engine, rule, why"
        self._write(f"INSERT INTO change ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row, wall)  # noqa: S608

    def record_question(self, backend: str, question: Question, answer: Answer, wall: float) -> None:
        """A question and how it ended."""
        seconds = answer.ended - question.sent
        row = (wall, backend, question.purpose, question.form, question.engine, answer.outcome, seconds, answer.detail)
        columns = "wall, backend, purpose, form, engine, outcome, seconds, detail"
        self._write(f"INSERT INTO question ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row, wall)  # noqa: S608

    def begin_restart(self, backend: str, restart: Restart, wall: float, by: str | None = None) -> int:
        """The id of a restart that begins, recorded with its proof.

        The same attempt with the same proof, told again by a daemon that was killed meanwhile, is the same row. One
        that is still under way otherwise (a saved state was lost, and attempts count from 1 again) is closed first.
        """
        with self._transaction(wall) as db:
            proof = msgspec.json.encode(restart.proof).decode()
            same = "SELECT id FROM restart WHERE backend = ? AND attempt = ? AND proof = ? AND ended IS NULL"
            if row := db.execute(same, (backend, restart.attempt, proof)).fetchone():
                return int(row[0])
            lost = "UPDATE restart SET ended = ?, served = 0, outcome = ? WHERE backend = ? AND ended IS NULL"
            db.execute(lost, (wall, "nobody saw how it ended", backend))
            columns = "wall, backend, attempt, engine, why, by, proof"
            values = (wall, backend, restart.attempt, restart.proof.engine, restart.proof.why, by, proof)
            new = db.execute(f"INSERT INTO restart ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id", values)  # noqa: S608
            return int(new.fetchone()[0])

    def record_evidence(self, backend: str, attempt: int, evidence: Evidence, wall: float) -> bool:
        """What the host showed before a restart; False where that attempt was not under way."""
        return self._add_to_restart("evidence", backend, attempt, evidence, wall, wall)

    def record_job(self, backend: str, attempt: int, job: Job, wall: float) -> bool:
        """How a restart's job ended, which may be after the restart itself was given up; False where there is none."""
        return self._add_to_restart("job", backend, attempt, job, job.asked, wall)

    def _add_to_restart(
        self, column: str, backend: str, attempt: int, value: Evidence | Job, at: float, wall: float
    ) -> bool:
        """Add to the attempt that was under way `at` a time: an earlier one may have had the same number."""
        under_way = "backend = ? AND attempt = ? AND ifnull(ended >= ?, 1)"
        with self._transaction(wall) as db:
            values = (msgspec.json.encode(value).decode(), backend, attempt, at)
            return db.execute(f"UPDATE restart SET {column} = ? WHERE {under_way}", values).rowcount > 0  # noqa: S608

    def settle_restart(self, backend: str, settled: RestartSettled, wall: float) -> bool:
        """How a restart ended; False where that attempt was not under way."""
        statement = (
            "UPDATE restart SET ended = ?, served = ?, outcome = ? WHERE backend = ? AND attempt = ? AND ended IS NULL"
        )
        return self._write(statement, (wall, settled.served, settled.why, backend, settled.attempt), wall) > 0

    def save_state(self, name: str, state: bytes, wall: float) -> None:
        """Keep `state` under `name`, in place of what was kept there."""
        self._write("INSERT OR REPLACE INTO state (name, json, saved) VALUES (?, ?, ?)", (name, state, wall), wall)

    def prune(self, wall: float) -> None:
        """Delete what is too old or too much."""
        self._writes = 0
        with self._transaction(wall) as db:
            for table, kept in KEPT.items():
                oldest = f"(SELECT max(id) FROM {table}) - {kept}"  # noqa: S608 - names and numbers of this file
                db.execute(f"DELETE FROM {table} WHERE wall < ? OR id <= {oldest}", (wall - KEPT_FOR,))  # noqa: S608
            db.execute(_TOO_MUCH, (KEPT_PROOFS,))

    # --- read by anybody ---------------------------------------------------------------------------------------------

    def load_state(self, name: str) -> Saved | None:
        """What was kept under `name`."""
        rows = self._read("SELECT json, saved FROM state WHERE name = ?", (name,))
        return Saved(*rows[0]) if rows else None

    def history(
        self, backend: str | None = None, limit: int = 100, since: float = -math.inf, until: float = math.inf
    ) -> list[Entry]:
        """The newest `limit` entries of one backend or of all between two times, the newest first."""
        values = {"backend": backend, "limit": limit, "since": since, "until": until}
        return [Entry(*row) for row in self._read(_HISTORY, values)]

    def restarts(self, backend: str | None = None, limit: int = 100) -> list[RestartRecord]:
        """The newest `limit` restarts of one backend or of all, the newest first."""
        return self._restarts({"backend": backend, "id": None, "limit": limit})

    def restart(self, number: int) -> RestartRecord | None:
        """One restart by its id, None where there is none."""
        return next(iter(self._restarts({"backend": None, "id": number, "limit": 1})), None)

    def _restarts(self, values: dict[str, Any]) -> list[RestartRecord]:
        """A file that no daemon of this release has opened yet lacks the columns of later versions."""
        version = self._read("PRAGMA user_version", ())[0][0]
        columns = {name: name if version >= 2 else "NULL" for name in ("evidence", "job")}
        return [_restart(row) for row in self._read(_RESTARTS.format(**columns), values)]

    # --- the file ----------------------------------------------------------------------------------------------------

    def _read(self, statement: str, values: tuple[Any, ...] | dict[str, Any]) -> list[tuple[Any, ...]]:
        with _told(self._path, "read"):
            return self._db.execute(statement, values).fetchall()

    def _write(self, statement: str, values: tuple[Any, ...], wall: float) -> int:
        """Run one statement; how many rows it wrote."""
        with self._transaction(wall) as db:
            return db.execute(statement, values).rowcount

    @contextlib.contextmanager
    def _transaction(self, wall: float) -> Iterator[sqlite3.Connection]:
        with _told(self._path, "written"):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        self._writes += 1
        if self._writes >= PRUNE_EVERY:
            self.prune(wall)


@contextlib.contextmanager
def _told(path: Path, done: str) -> Iterator[None]:
    """Turns whatever happens to the file into a StoreError; `done` says what cannot be done with it."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError, OverflowError) as error:  # the last two: what SQLite cannot hold
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise StoreError(f"{path} cannot be {done}: {reason}") from error


def _open(path: Path) -> sqlite3.Connection:
    """The file opened for writing, checked, with its tables."""
    db = sqlite3.connect(path, timeout=_BUSY_TIMEOUT, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        _check(db)
        _make_tables(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection) -> None:
    finding = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if finding != "ok":
        error = sqlite3.DatabaseError(finding)
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _make_tables(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise StoreError(f"{path} was written by a newer release (tables {version}, this one knows {VERSION})")
    if version < VERSION:
        changes = " ".join(_CHANGES[old] for old in range(version, VERSION)) if version else _TABLES
        db.executescript(f"BEGIN IMMEDIATE; {changes} PRAGMA user_version = {VERSION}; COMMIT;")


def _open_to_read(path: Path) -> sqlite3.Connection:
    """The file opened for reading.

    Where no daemon has it open there is no -wal file, and without one a user who cannot write to the folder can read
    the file only as one that does not change.
    """
    if not path.exists():
        raise StoreError(f"{path} does not exist: no daemon has kept a history here")
    uri = f"{path.absolute().as_uri()}?mode=ro"
    for options in ("", "&immutable=1"):
        db = sqlite3.connect(uri + options, uri=True, timeout=_BUSY_TIMEOUT, isolation_level=None)
        try:
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError:
            db.close()
            if options or Path(f"{path}-wal").exists():
                raise
        except BaseException:
            db.close()
            raise
        else:
            break
    return db


def _is_corrupt(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", None) in _CORRUPT


def _move_aside(path: Path) -> Path:
    """Rename a damaged file with its log, so that both can still be looked at; its new name."""
    aside = path.with_name(f"{path.name}.corrupt")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


def _restart(row: tuple[Any, ...]) -> RestartRecord:
    record = RestartRecord(*row)
    told: list[Any] = [json.loads(text) if text is not None else None for text in row[-3:]]
    served = None if record.served is None else bool(record.served)
    return dataclasses.replace(record, served=served, proof=told[0], evidence=told[1], job=told[2])
