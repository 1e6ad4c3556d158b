"""The daemon in a real systemd: killed, frozen, stopped, reloaded, badly configured."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.system

UNIT = "factory-watchdog.service"
SERVER = "spark1.service"
SLOW_TO_STOP = {"options": "--ignore-term", "service": "TimeoutStopSec=5s"}
CONFIG = "/etc/factory-watchdog/config.toml"
WRONG = 'must be a duration from "10s" to "1h" or "auto"'


def killed(host: Any) -> None:
    host.box.systemctl("kill", "--signal=KILL", "--kill-who=main", UNIT)


@pytest.mark.parametrize("back", ["100ms", "7s"], ids=["back before the job ends", "back after it"])
def test_killed_in_the_middle_of_a_restart(host: Any, back: str) -> None:
    host.drop_in(f"RestartSec={back}")
    host.watch(**SLOW_TO_STOP)
    host.refuses()
    host.wait(lambda: host.show("ActiveState", SERVER) == "deactivating", 10, "the restart")
    killed(host)
    host.alerted("served", 20)
    host.looks_on(4)
    assert host.show("NRestarts") == "1"
    assert host.starts(SERVER) == 2
    (restart,) = host.history("restart")
    record = host.explained(restart["restart"])
    assert (record["served"], record["attempt"]) == (True, 1)
    assert record["outcome"].startswith("serving again ")
    assert host.alerts() == ["dead", "restart", "served"]
    assert not host.waits()


def test_killed_in_the_middle_of_a_restart_that_was_held_before(host: Any) -> None:
    """The verdict does not change when the hold ends, so that nothing but the restart itself has the state saved."""
    flag = "/run/factory-watchdog/flags/spark1.busy"
    host.drop_in("RestartSec=100ms")
    host.box.exec("touch", flag)
    host.watch(**SLOW_TO_STOP)
    host.refuses()
    host.alerted("held")
    host.box.exec("rm", flag)
    host.wait(lambda: host.show("ActiveState", SERVER) == "deactivating", 10, "the restart")
    killed(host)
    host.alerted("served", 20)
    assert (host.show("NRestarts"), host.starts(SERVER)) == ("1", 2)
    assert [restart["word"] for restart in host.history("restart")] == ["served"]


def test_killed_between_the_decision_and_the_restart(host: Any) -> None:
    """Nobody knows whether the job was asked for: the attempt counts, and there is no second one of this life."""
    host.unit("evidence.service", "[Service]\nType=oneshot\nExecStart=/bin/sleep infinity\n")
    host.drop_in("RestartSec=100ms")
    host.watch(evidence_unit="evidence.service")
    host.refuses()
    host.wait(lambda: host.show("ActiveState", "evidence.service") == "activating", 10, "the evidence unit")
    killed(host)
    host.alerted("not-served")
    host.alerted("held")
    host.looks_on()
    assert host.starts(SERVER) == 1
    (restart,) = host.history("restart")
    assert restart["word"] == "not served"


def test_frozen_it_is_brought_back(host: Any) -> None:
    host.drop_in("WatchdogSec=2s\nRestartSec=100ms")
    host.watch()
    before = host.show("InvocationID")
    host.box.systemctl("kill", "--signal=STOP", "--kill-who=main", UNIT)
    host.wait(lambda: host.show("InvocationID") not in ("", before), 10, "another run of the daemon")
    host.wait(lambda: host.show("ActiveState") == "active", 10, "its readiness")
    host.looks_on(2)
    assert host.starts(SERVER) == 1


def test_its_own_beats_keep_it_alive(host: Any) -> None:
    host.drop_in("WatchdogSec=1s")
    host.watch()
    before = host.show("InvocationID")
    host.looks_on(6)  # 3 s
    assert (host.show("InvocationID"), host.show("NRestarts")) == (before, "0")


def test_it_ends_within_two_seconds_whatever_is_under_way(host: Any) -> None:
    """A question that nobody answers, a restart that is followed, and a notification command that hangs."""
    host.server("spark1", **SLOW_TO_STOP)
    host.server("spark2")
    host.configure(
        {"spark1": {}, "spark2": {"question_timeout": "5m"}},
        notify=[{"command": ["/bin/sleep", "infinity"]}],
    )
    host.allow()
    host.start()
    for name in ("spark1", "spark2"):
        host.becomes("idle", name)
    host.works("spark2")
    host.hangs("spark2")
    host.wait(lambda: host.told("spark2")["why"].endswith("; confirming"), 15, "the question")
    host.refuses("spark1")
    host.wait(lambda: host.show("ActiveState", SERVER) == "deactivating", 10, "the restart")
    saved = host.saved_at("spark2")
    host.box.systemctl("stop", UNIT)
    left = int(host.show("ActiveExitTimestampMonotonic"))
    assert int(host.show("InactiveEnterTimestampMonotonic")) - left < 2_000_000
    assert (host.show("Result"), host.show("ExecMainStatus")) == ("success", "0")
    assert host.saved_at("spark2") > saved
    host.start()
    host.alerted("served", 15)
    assert (host.starts(SERVER), len(host.history("restart"))) == (2, 1)


def test_a_bad_configuration_is_told_once_and_not_tried_again(host: Any) -> None:
    host.drop_in("RestartSec=100ms")
    host.configure({"spark1": {"hang_after": "1s", "modle": "x"}})
    assert host.box.exec("systemctl", "start", UNIT, check=False).returncode != 0
    host.wait(lambda: host.show("ActiveState") == "failed", 5, "the end")
    assert (host.show("ExecMainStatus"), host.show("NRestarts")) == ("78", "0")
    said = [entry["MESSAGE"] for entry in host.journal() if entry["_COMM"] != "systemd"]
    assert said == [
        f'{CONFIG}: backend "spark1": hang_after = "1s": {WRONG}',
        f'{CONFIG}: backend "spark1": modle = "x": unknown setting; did you mean mode?',
    ]


def test_a_good_file_is_taken_up_and_what_did_not_change_is_watched_on(host: Any) -> None:
    host.server("spark1")
    host.server("spark2")
    host.configure({"spark1": {}, "spark2": {}})
    host.allow()
    host.start()
    host.becomes("idle", "spark2")
    host.works("spark1")
    host.hangs("spark1")
    since = host.told("spark1")["since"]
    host.configure({"spark1": {}, "spark2": {"mode": "observe"}})
    host.box.systemctl("reload", UNIT)
    host.wait(lambda: host.log("reloaded"), 5, "the reload")
    assert host.log("reloaded")[0]["changed"] == ["spark2"]
    assert host.show("ActiveState") == "active"
    assert host.told("spark1")["since"] == since
    host.refuses("spark2")
    assert host.alerted("held", name="spark2") == "held: observe mode"
    host.alerted("served", 15, "spark1")  # its clock was not started again
    assert (host.starts("spark1.service"), host.starts("spark2.service")) == (2, 1)


def test_a_backend_that_is_taken_out_leaves_no_files(host: Any) -> None:
    host.server("spark1")
    host.server("spark2")
    host.configure({"spark1": {}, "spark2": {}})
    host.start()
    host.becomes("idle", "spark2")
    host.configure({"spark1": {}})
    host.box.systemctl("reload", UNIT)
    host.wait(lambda: not host.told("spark2"), 5, "the end of its files")
    said = host.box.exec("/srv/bin/llm-health", "explain", "spark2", check=False).stderr
    assert "unknown backend 'spark2'; known are spark1" in said


def test_a_bad_file_keeps_the_old_configuration_and_says_what_is_wrong(host: Any) -> None:
    host.watch()
    before = host.show("InvocationID")
    host.configure({"spark1": {"hang_after": "1s"}})
    host.box.systemctl("reload", UNIT)
    host.wait(lambda: host.log("configuration kept: the file is wrong"), 5, "what is wrong")
    (line,) = host.log("configuration kept: the file is wrong")
    assert line["what"] == f'{CONFIG}: backend "spark1": hang_after = "1s": {WRONG}'
    assert (host.show("ActiveState"), host.show("InvocationID")) == ("active", before)
    host.looks_on(2)
    host.refuses()
    host.alerted("served")  # it still restarts


def test_two_reloads_at_once(host: Any) -> None:
    host.watch()
    host.configure({"spark1": {"hang_after": "20s"}})
    for _ in range(5):
        host.box.systemctl("kill", "--signal=HUP", "--kill-who=main", UNIT)
    host.wait(lambda: len(host.log("reloaded")) >= 1, 5, "the reload")
    host.looks_on(4)
    assert host.faults() == []
    assert json.loads(host.run("check", "--json", "spark1"))["exit"] == 0
