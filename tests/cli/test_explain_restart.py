"""`llm-health explain ID`: the story with the journal for people, the record alone for machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factory_watchdog.core.model import (
    NOT_ASKED,
    Identity,
    JobResult,
    Proof,
    Reading,
    Restart,
    RestartSettled,
    State,
    Turned,
    Verdict,
)
from factory_watchdog.world.evidence import Evidence, Job, Journal, Missing, nothing
from factory_watchdog.world.store import Store

NOON = 1_750_000_000.0
LIFE = "0123456789abcdef0123456789abcdef"
READING = Reading(99.9, 100.0, NOT_ASKED, NOT_ASKED)
PROOF = Proof(1, State.DEAD, "refused", None, "refuses connections", 70.0, None, None, READING, (READING,))

Explain = Callable[..., Any]


@pytest.fixture
def explain(configured: Any, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Explain:
    """Explain a restart with this evidence, with a journalctl that is this script."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def run(*arguments: str, evidence: Evidence | None = None, script: str = "") -> Any:
        store = Store(configured.state / "history.sqlite3", NOON)
        number = store.begin_restart("sim", Restart(1, Identity(), PROOF), NOON, by="uid 7")
        if evidence is not None:
            store.record_evidence("sim", 1, evidence, NOON)
            store.record_job("sim", 1, Job("sim.service", NOON + 1, NOON + 3, JobResult.DONE, ""), NOON)
        store.record_change("sim", Turned(Verdict(State.STARTING, 0, "loading", "starting"), None), NOON + 4)
        store.record_change("other", Turned(Verdict(State.BUSY, 0, "somebody else", "working"), None), NOON + 4)
        store.settle_restart("sim", RestartSettled(1, True, "serving again", Identity()), NOON + 9)
        store.record_change("sim", Turned(Verdict(State.BUSY, 0, "long after", "working"), None), NOON + 500)
        store.close()
        if script:
            (tmp_path / "journalctl").write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / "journalctl").chmod(0o755)
        return command("explain", str(number), *arguments, "--config", configured.path)

    return run


def seen() -> Evidence:
    unit = {"ActiveState": "active"}
    why = Missing("x")
    return Evidence(1.0, unit, why, why, why, Journal(LIFE, NOON - 30, NOON + 1))


def test_people_get_the_story_and_the_journal(explain: Explain) -> None:
    ended = explain(evidence=seen(), script=r"printf 'a last word\033[2J\n'; echo $*")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    told = ended.out.split("What the old life said in the journal (the newest 2 lines)\n")[1].splitlines()
    assert told[0] == "  a last word [2J"
    assert f"_SYSTEMD_INVOCATION_ID={LIFE} --since=@1749999970 --until=@1750000121" in told[1]
    assert "a new life: starting: loading" in ended.out
    assert "the job ends: done after 2.0 s" in ended.out
    assert "asked for by: uid 7" in ended.out
    assert "somebody else" not in ended.out
    assert "long after" not in ended.out


def test_machines_get_the_record_and_no_journal(explain: Explain, tmp_path: Path) -> None:
    ended = explain("--json", evidence=seen(), script=f"echo asked >{tmp_path}/asked")
    record = json.loads(ended.out)
    assert (record["proof"]["rule"], record["job"]["result"], record["by"]) == ("refused", "done", "uid 7")
    assert record["evidence"]["journal"] == {"invocation": LIFE, "since": NOON - 30, "until": NOON + 1}
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("evidence", "script", "why"),
    [
        (None, "", "nothing to be found: no InvocationID is recorded"),
        (nothing("not told"), "", "nothing to be found: no InvocationID is known"),
        (seen(), "", "cannot be shown: journalctl cannot be started: No such file or directory"),
        (seen(), "exit 1", "cannot be shown: journalctl ended with status 1"),
    ],
)
def test_a_journal_that_cannot_be_had_is_said(
    explain: Explain, evidence: Evidence | None, script: str, why: str
) -> None:
    ended = explain(evidence=evidence, script=script)
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == f"  {why}"
