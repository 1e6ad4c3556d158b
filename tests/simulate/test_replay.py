"""Recordings of real servers: what is judged agrees with what the experimenter knew."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from factory_watchdog.cli.app import run_command_line
from factory_watchdog.simulate.replay import RecordingError, load

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
NAMES = sorted(path.name.removesuffix(".json") for path in RECORDINGS.glob("*.json"))

# What may be shown for what is known. Suspicion is right wherever requests stand still for a while, and a pooling
# server is busy with no request in nearly every reading; without metrics nobody can tell.
SHOWN = {
    "idle": {"idle", "blind"},
    "busy": {"busy", "suspect", "idle", "blind"},
    "paused": {"paused"},
    "starting": {"starting"},
    "hung": {"suspect", "hung", "blind"},
    "dead": {"suspect", "dead"},
}
SETTLING = 2.0
"""Seconds at the beginning of a phase in which the reading of before may still be shown: two polls."""


def replay(name: str, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    label = json.loads((RECORDINGS / f"{name}.json").read_text())
    settings = [f"--set={key}={value}" for key, value in label["replay"]["settings"].items()]
    question = f"--question={label['replay']['question']}"
    code = run_command_line(["replay", str(RECORDINGS / f"{name}.jsonl.gz"), "--json", question, *settings, *more])
    assert code == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_judged_as_it_was(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    *changes, last = replay(name, capsys)
    summary = last["summary"]
    assert summary["failed"] == []
    label = json.loads((RECORDINGS / f"{name}.json").read_text())
    for phase in label["phases"]:
        begin, end = phase["from"] - label["interval"] / 2, phase["to"] - label["interval"] / 2
        restarts = [t for t in summary["restarts"] if begin <= t <= end]
        if phase["state"] == "unknown":
            continue
        if not phase["restart"]:
            assert not restarts, phase
        shown = {c["state"] for c in changes if begin + SETTLING < c["t"] <= end}
        before = [c["state"] for c in changes if c["t"] <= begin + SETTLING][-1:] if begin + SETTLING < end else []
        assert {*before, *shown} <= SHOWN[phase["state"]], phase
        if phase["restart"]:
            assert phase["state"] in {*before, *shown}
    assert bool(summary["restarts"]) is any(phase["restart"] for phase in label["phases"])


@pytest.mark.parametrize("name", NAMES)
def test_answered_questions_never_lead_to_a_restart_of_what_answers(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer vetoes; only a port that refuses is asked nothing."""
    summary = replay(name, capsys, "--question=ok")[-1]["summary"]
    label = json.loads((RECORDINGS / f"{name}.json").read_text())
    dead = any(phase["state"] == "dead" for phase in label["phases"])
    assert bool(summary["restarts"]) is dead


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("llama")] + ["busy_decode", "embedding"])
def test_the_kind_is_found_out(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind = replay(name, capsys)[:-1]
    found = replay(name, capsys, "--set=kind=auto")[:-1]
    assert [entry["state"] for entry in found] == [entry["state"] for entry in kind]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has no rows"),
        (gzip.compress(b""), "has no rows"),
        (gzip.compress(b'{"t": 0}\nnonsense\n'), "line 2: not a JSON object"),
        (gzip.compress(b'{"wall": 1}\n'), "line 1: not a JSON object"),
        (gzip.compress(b"[1]\n"), "line 1: not a JSON object"),
        (b"not gzip", "cannot be read"),
        (gzip.compress(b'{"t": 0}\n')[:-4], "cannot be read"),
    ],
)
def test_a_bad_recording_is_told(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl.gz"
    file.write_bytes(content)
    with pytest.raises(RecordingError, match=says):
        load(file)


def test_settings_that_are_wrong_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(RECORDINGS / "idle.jsonl.gz")
    assert run_command_line(["replay", trace, "--set", "hang_aftr=1s", "--set", "mode=watch"]) != 0
    told = capsys.readouterr().err
    assert "hang_aftr" in told
    assert "hang_after" in told
    assert "mode" in told
