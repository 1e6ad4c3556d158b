"""The story of a restart, word by word: played through the real watch, its recorder and its file, in virtual time.

Where the words change on purpose: `UPDATE_GOLDEN=1 pytest tests/simulate/test_story.py` writes them anew, to be read.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factory_watchdog.cli.story import last_movement, span_of, story
from factory_watchdog.config import load, schema
from factory_watchdog.notify.command import Notifier
from factory_watchdog.ports import Host, World
from factory_watchdog.recorder import Recorder
from factory_watchdog.simulate import clock, scenario
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.played import watch_for
from factory_watchdog.simulate.script import Timeline
from factory_watchdog.simulate.server import Server
from factory_watchdog.simulate.transport import SimTransport
from factory_watchdog.watcher import watcher_of
from factory_watchdog.world.http import Http
from factory_watchdog.world.store import Entry, RestartRecord, Store

GOLDEN = Path(__file__).parents[1] / "golden/story"
BUSY = (
    '[[phase]]\nfor = "5m"\nrunning = 3\nwaiting = 2\nsteps = 5.0\ntokens = 10.0\nfinished = 0.1\nkv = 0.5\ncpu = 1.5\n'
)
FROZEN = '[[phase]]\nfor = "30m"\nsteps = 0.0\ntokens = 0.0\nfinished = 0.0\nquestion = "timeout"\ncpu = 1.0\n'
GONE = '[[phase]]\nfor = "30m"\nhealth = "refused"\nmetrics = "refused"\nmodels = "refused"\nquestion = "refused"\n'
WEDGED = '[[phase]]\nfor = "7m"\n[[phase]]\nfor = "40m"\nquestion = "timeout"\n'

CASES: dict[str, tuple[str, float]] = {
    "hang": ('[server]\nload_time = "65s"\n' + BUSY + FROZEN, 900.0),
    "refused": (BUSY + GONE, 900.0),
    "idle-wedge": (WEDGED, 1500.0),
    "under-way": (BUSY + FROZEN, 450.5),
    "not-served": ('[server]\nrestart = "hangs-again"\n' + BUSY + FROZEN, 1400.0),
    "never-ends": ('[server]\nrestart = "never-ends"\n' + BUSY + FROZEN, 3000.0),
}


class Quiet:
    """A log that nobody reads."""

    def __getattr__(self, _level: str) -> Any:
        return lambda event, **fields: None


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day as in Greenwich, whatever the machine's zone is."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def played(folder: Path, text: str, seconds: float) -> Store:
    """The history that a daemon keeps of a scenario."""

    async def main() -> Store:
        script = scenario.loads(f'[backend]\nkind = "vllm"\nunit = "vllm.service"\n{text}')
        now = clock.ScriptedClock(Timeline(script.phases), asyncio.get_running_loop().time)
        server = Server(script, now.boottime)
        store = Store(folder / "history.sqlite3", now.wall())
        told = Recorder(Quiet(), now, "boot", store, folder, Notifier((), lambda _: None), lambda: None)
        world = World(Http(SimTransport(server)), SimManager(server), now, lambda: server.flag(0.0), lambda: None)
        config = load.from_table({"name": "spark1", **script.backend}, file="test")
        await watch_for(watcher_of(config, schema.Daemon(), world, Host(), told), seconds)
        return store

    return clock.run(main)


def told(store: Store, number: int = 1) -> list[str]:
    record = store.restart(number)
    assert record is not None
    since, until = span_of(record)
    return story(record, store.history(record.backend, 200, since, until))


@pytest.mark.parametrize("name", CASES)
def test_a_story_word_by_word(name: str, tmp_path: Path) -> None:
    store = played(tmp_path, *CASES[name])
    text = "\n".join(told(store)) + "\n"
    store.close()
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


# --- what a host shows besides ---------------------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path: Path) -> RestartRecord:
    store = played(tmp_path, *CASES["hang"])
    found = store.restart(1)
    store.close()
    assert found is not None
    return found


def shown(record: RestartRecord, **parts: object) -> str:
    assert record.evidence is not None
    return "\n".join(story(replace(record, evidence={**record.evidence, **parts}), ()))


def test_processes_with_their_states_and_what_they_mean(record: RestartRecord) -> None:
    main = {
        "pid": 10,
        "ppid": 1,
        "role": "api",
        "state": "S",
        "threads": 9,
        "age": 3720.0,
        "resident": 1 << 31,
        "cpu": 0.5,
    }
    seen = [main, {**main, "pid": 12, "state": "?"}, {**main, "pid": 11, "role": "engine", "state": "D", "cpu": None}]
    lines = shown(record, processes={"seen": seen, "left_out": 7}).splitlines()
    table = [line.split() for line in lines if line.strip().startswith(("PID", "10 ", "11 ", "12 "))]
    assert table[0] == ["PID", "parent", "role", "cores", "age", "memory", "threads", "state"]
    assert " ".join(table[1]) == "10 1 api 0.50 1 h 2 min 2.0 GiB 9 S (sleeping)"
    assert " ".join(table[3]) == "11 1 engine - 1 h 2 min 2.0 GiB 9 D (in the kernel, cannot be interrupted)"
    assert "? (not known)" in "\n".join(lines)
    assert "  and 7 more" in lines


def test_gpus_and_what_they_do_not_tell(record: RestartRecord) -> None:
    gpu = {"index": 0, "name": "NVIDIA GB10", "used": 0.0, "power": 12.4, "memory": None, "temperature": None}
    assert "GPU 0 (NVIDIA GB10): 0 % used, 12 W, memory not told, temperature not told" in shown(record, gpus=[gpu])


def test_a_control_group(record: RestartRecord) -> None:
    pressure = {"some": 12.5, "full": 3.0}
    group = {"cpu": 1.004, "memory": 3 << 30, "memory_pressure": pressure, "cpu_pressure": None}
    said = shown(record, group=group)
    assert "control group: 1.00 cores, 3.0 GiB, 12.5 % of the time some task waited for memory" in said


def test_systemds_properties_as_people_say_them(record: RestartRecord) -> None:
    unit = {
        "ActiveState": "active",
        "NRestarts": 0,
        "ActiveEnterTimestamp": 1_750_000_000_000_000,
        "CPUUsageNSec": 90 * 10**9,
    }
    said = shown(record, unit={**unit, "TimeoutStopUSec": 90_000_000, "MemoryCurrent": 1 << 20, "TasksCurrent": None})
    assert (
        "unit: ActiveState=active, NRestarts=0, ActiveEnterTimestamp=2025-06-15 15:06:40, "
        "CPUUsageNSec=1 min 30 s, TimeoutStopUSec=1 min 30 s, MemoryCurrent=1.0 MiB\n" in said
    )


def test_parts_that_could_not_be_had_say_why(record: RestartRecord) -> None:
    no = {"missing": "not told within 3 s"}
    said = shown(record, unit=no, processes=no, group=no, gpus=no)
    for part in ("unit", "processes", "control group", "GPU"):
        assert f"  {part}: not told within 3 s" in said


def test_a_record_from_before_evidence_was_kept(record: RestartRecord) -> None:
    proof = {name: value for name, value in record.proof.items() if name != "held"}
    said = story(replace(record, evidence=None, job=None, proof=proof), ())
    assert said[-1] == "  nothing is recorded"
    assert "  holds: none" in said


def test_holds_of_the_episode_and_the_operator_who_asked(record: RestartRecord) -> None:
    said = "\n".join(story(replace(record, by="uid 1000", proof={**record.proof, "held": ["flag", "breaker"]}), ()))
    assert "holds: none; earlier in this episode: busy flag, breaker open: the restarts allowed are used up" in said
    assert "asked for by: uid 1000" in said


def test_pause_signs_as_read(record: RestartRecord) -> None:
    def pause(told: object) -> str:
        reading = {**record.proof["reading"], "pause": told}
        said = story(replace(record, proof={**record.proof, "reading": reading}), ())
        return next(line.partition("pause signs: ")[2] for line in said if "pause signs" in line)

    assert pause(None) == "none in the metrics; no endpoint was asked for them"
    assert pause({"sign": None, "absent": True}) == "there are none here"
    assert pause({"sign": None, "absent": False}) == "read, none says paused"


def test_the_turn_to_hung_is_told_with_the_restart_though_it_was_written_down_just_before(
    record: RestartRecord,
) -> None:
    """On a real host some milliseconds lie between the two; what confirms them comes first all the same."""
    turn = Entry(record.began - 0.02, "spark1", "change", "hung", "0", "proven", None)
    said = "\n".join(story(record, [turn]))
    assert said.index("the reading that confirms it") < said.index("hung: proven") < said.index("restart 1 is decided")


def test_a_story_of_more_than_one_day_says_the_date(record: RestartRecord) -> None:
    late = replace(
        record, began=record.began + 9 * 3600.0 - 760, ended=record.began + 9 * 3600.0, evidence=None, job=None
    )
    assert "  2025-06-16" in story(late, ())


def reading(ended: float, **signals: float | None) -> dict[str, Any]:
    told = {"steps": None, "prompt": None, "generated": None, "finished": None, "kv": None, **signals}
    return {"ended": ended, "engines": [{"engine": "0", **told}]}


@pytest.mark.parametrize(
    ("readings", "at"),
    [
        ([], None),
        ([reading(1, steps=5)], None),
        ([reading(1, steps=5), reading(2, steps=5)], None),
        ([reading(1, steps=5), reading(2, steps=6), reading(3, steps=6)], 2),
        ([reading(1, kv=0.5), reading(2, kv=0.4), reading(3, kv=0.4 + 1e-12)], 2),
        ([reading(1, steps=5), {"ended": 2, "engines": []}, reading(3, steps=6)], 3),
        ([reading(1, steps=5), reading(2, steps=None), reading(3, steps=6)], None),
    ],
)
def test_the_last_movement(readings: list[dict[str, Any]], at: float | None) -> None:
    found = last_movement(readings, "0")
    assert (found and found["ended"]) == at
    assert last_movement(readings, "1") is None


def test_the_record_is_json_and_holds_no_command_line(record: RestartRecord) -> None:
    text = json.dumps([record.proof, record.evidence, record.job])
    for never in ("ExecStart", "Environment", "cmdline", "argv"):
        assert never not in text
