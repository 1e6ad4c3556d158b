"""The daemon in a real systemd: what an operator stopped stays stopped, whenever it was stopped."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.system

SERVER = "spark1.service"
SLOW_TO_STOP = "ExecStop=/bin/sleep 2"
STUBBORN = "TimeoutStopSec=2s"  # with --ignore-term; systemd has to kill it, and calls it failed
GATED = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'until [ -e /run/gate ]; do sleep 0.05; done'\n"


def assert_stays_stopped(host: Any) -> None:
    """For longer than the time after which a server that refuses is dead."""
    host.becomes("stopped")
    host.wait(lambda: host.show("ActiveState", SERVER) == "inactive", 10, "the end of the server")
    host.looks_on()
    assert (host.show("ActiveState", SERVER), host.starts(SERVER)) == ("inactive", 1)
    assert host.told()["state"] == "stopped"


def test_stopped_by_hand_stays_stopped(host: Any) -> None:
    host.watch()
    host.box.systemctl("stop", SERVER)
    assert_stays_stopped(host)
    assert host.told()["why"] == "the unit is inactive: nobody restarts what was stopped"
    assert (host.alerts(), host.history("restart")) == ([], [])
    host.box.systemctl("start", SERVER)
    host.becomes("idle")
    assert host.alerts() == []


def test_stopped_while_the_confirming_question_is_out(host: Any) -> None:
    host.watch(question_timeout="5s")
    host.works()
    host.hangs()
    host.wait(lambda: host.told()["why"].endswith("; confirming"), 15, "the confirmation")
    host.box.systemctl("stop", SERVER)
    assert_stays_stopped(host)
    assert (host.alerts(), host.history("restart")) == ([], [])


def test_stopped_between_the_decision_and_the_restart(host: Any) -> None:
    """An evidence unit makes that moment long enough for an operator."""
    host.unit("evidence.service", GATED)
    host.box.path("/run/gate").unlink(missing_ok=True)
    host.watch(evidence_unit="evidence.service")
    host.refuses()
    host.wait(lambda: host.show("ActiveState", "evidence.service") == "activating", 10, "the evidence unit")
    host.box.systemctl("stop", SERVER)
    host.box.write("/run/gate", "")
    assert_stays_stopped(host)
    assert host.alerts() == ["dead", "restart", "not-served"]
    dropped = "the restart was dropped: the backend changed while evidence was taken"
    assert host.alerted("not-served") == dropped


def test_stopped_while_the_restart_runs(host: Any) -> None:
    host.watch(service=SLOW_TO_STOP)
    host.refuses()
    host.wait(lambda: host.show("ActiveState", SERVER) == "deactivating", 10, "the restart")
    host.box.systemctl("stop", SERVER)
    assert host.alerted("not-served") == "the restart failed: the job ended as 'canceled'"
    assert_stays_stopped(host)
    assert len(host.history("restart")) == 1


def test_being_stopped_when_it_would_be_restarted(host: Any) -> None:
    """The operator's job stands, and is not overruled."""
    host.watch(service=SLOW_TO_STOP)
    host.refuses()
    host.box.systemctl("stop", "--no-block", SERVER)
    assert_stays_stopped(host)
    assert (host.alerts(), host.history("restart")) == ([], [])


@pytest.mark.parametrize("revive", [False, True])
def test_stopped_by_hand_and_killed_for_it(host: Any, revive: bool) -> None:
    """A wedged server ignores SIGTERM, so that its unit fails of the stop: it stays stopped all the same."""
    host.watch(options="--ignore-term", service=STUBBORN, revive=revive)
    host.box.systemctl("stop", SERVER)
    assert host.show("ActiveState", SERVER) == "failed"
    host.looks_on()
    assert (host.show("ActiveState", SERVER), host.starts(SERVER)) == ("failed", 1)
    assert (host.alerts(), host.history("restart")) == ([], [])


def test_a_restart_that_an_operator_orders(host: Any) -> None:
    """In observe mode too: what is forbidden there is what the watchdog decides."""
    host.watch(mode="observe")
    told = host.run("restart", "spark1")
    assert told == "spark1: restart 1 began; llm-health explain spark1 shows how it goes\n"
    host.alerted("served")
    assert host.starts(SERVER) == 2
    (restart,) = host.history("restart")
    assert (restart["word"], restart["why"].startswith("asked for by uid 0; serving again")) == ("served", True)
    assert host.alerts() == ["restart", "served"]
    again = host.box.exec("/srv/bin/llm-health", "restart", "spark1", check=False)
    assert again.returncode == 1
    assert again.stderr.startswith("llm-health: spark1 is not restarted: held: last restart too recent (")
    assert host.starts(SERVER) == 2


def test_a_server_in_maintenance_is_left_alone(host: Any) -> None:
    """Also by the next daemon, until the window is ended."""
    host.watch()
    host.run("maintenance", "spark1", "--for", "1h")
    host.becomes("paused")
    host.refuses()
    host.looks_on()
    host.box.systemctl("restart", "factory-watchdog.service")
    host.becomes("paused")
    host.looks_on()
    assert (host.alerts(), host.starts(SERVER)) == ([], 1)
    host.run("maintenance", "spark1", "--end")
    host.alerted("served", 30)
    assert host.starts(SERVER) == 2
