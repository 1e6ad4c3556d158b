"""The files that tell jobs the state, in a real folder."""

import json
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from factory_watchdog.core.model import State, Verdict
from factory_watchdog.errors import RuntimeFilesError
from factory_watchdog.world import runtime_files

NOON = 1_750_000_000.0


def write(folder: Path, state: State = State.BUSY, why: str = "12 requests, steps moved", **changed: Any) -> None:
    told = {"since": NOON, "ready": True, "restarting": False, "updated": NOON + 10.4} | changed
    runtime_files.write(folder, "spark1", Verdict(state, 5.0, why, "moved", "1"), **told)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_tells_the_verdict(tmp_path: Path) -> None:
    write(tmp_path)
    assert json.loads((tmp_path / "spark1.json").read_text()) == {
        "state": "busy",
        "since": "2025-06-15T15:06:40Z",
        "why": "12 requests, steps moved",
        "ready": True,
        "engine": "1",
        "rule": "moved",
        "updated": "2025-06-15T15:06:50Z",
    }
    assert files(tmp_path) == ["spark1.json"]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("restarting", [False, True])
def test_jobs_wait_while_it_is_not_there_for_them(tmp_path: Path, state: State, *, restarting: bool) -> None:
    (tmp_path / "spark1.wait").touch()
    write(tmp_path, state, restarting=restarting)
    waits = restarting or state in (State.STARTING, State.PAUSED, State.HUNG, State.DEAD)
    assert (tmp_path / "spark1.wait").exists() == waits
    write(tmp_path, State.DEAD)
    assert (tmp_path / "spark1.wait").read_bytes() == b""
    write(tmp_path, State.IDLE)
    assert files(tmp_path) == ["spark1.json"]


def test_everybody_may_read_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write(tmp_path, State.DEAD)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_nobody_reads_half_a_file(tmp_path: Path) -> None:
    write(tmp_path)
    done = threading.Event()

    def write_on() -> None:
        for length in range(300):
            write(tmp_path, why="x" * 100 * (length % 7))
        done.set()

    writer = threading.Thread(target=write_on)
    writer.start()
    while not done.is_set():
        assert json.loads((tmp_path / "spark1.json").read_text())["state"] == "busy"
    writer.join()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    write(tmp_path)
    before = (tmp_path / "spark1.json").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(RuntimeFilesError, match="cannot be written to: File too large"):
            write(tmp_path, State.IDLE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == ["spark1.json"]
    assert (tmp_path / "spark1.json").read_bytes() == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFilesError, match=r"no-folder cannot be written to: No such file or directory"):
        write(tmp_path / "no-folder")


def test_a_draft_that_was_left_is_overwritten_and_a_link_not_followed(tmp_path: Path) -> None:
    draft = tmp_path / ".spark1.json.new"
    draft.write_text("x" * 10_000)
    write(tmp_path)
    assert json.loads((tmp_path / "spark1.json").read_text())["state"] == "busy"
    (tmp_path / "elsewhere").write_text("kept")
    draft.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RuntimeFilesError):
        write(tmp_path)
    assert (tmp_path / "elsewhere").read_text() == "kept"
    write(tmp_path)


def test_nothing_is_left_when_nobody_watches(tmp_path: Path) -> None:
    write(tmp_path, State.DEAD)
    (tmp_path / "spark2.json").touch()
    runtime_files.remove(tmp_path, "spark1")
    assert files(tmp_path) == ["spark2.json"]
    runtime_files.remove(tmp_path, "spark1")
