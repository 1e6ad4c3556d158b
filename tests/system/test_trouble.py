"""The daemon in a real systemd when something around it fails: it says so, and goes on judging."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytestmark = pytest.mark.system

STATE = "/var/lib/factory-watchdog"
LONGEST_PAUSE = 0.5 + 0.4  # seconds: the interval, and what a loaded machine takes


def test_a_silent_backend_does_not_delay_another(host: Any) -> None:
    """The silent one takes a whole deadline for each poll; the other is polled on its grid all the same."""
    for name in ("spark1", "spark2"):
        host.server(name)
    host.configure({"spark1": {"silent_after": "never", "question_timeout": "5s"}, "spark2": {}})
    host.start()
    for name in ("spark1", "spark2"):
        host.becomes("idle", name)
    host.is_silent("spark1")
    host.becomes("blind", "spark1")
    told = host.box.path("/run/factory-watchdog/spark2.json")
    looks: list[int] = []

    def looked() -> bool:
        at = told.stat().st_mtime_ns
        if at not in looks:
            looks.append(at)
        return len(looks) > 8

    host.wait(looked, 10, "eight looks at spark2")
    pauses = [(after - before) / 1e9 for before, after in itertools.pairwise(looks)]
    assert max(pauses) < LONGEST_PAUSE
    assert host.told("spark1")["state"] == "blind"


def test_a_full_disk_costs_the_record_and_not_the_restart(host: Any) -> None:
    host.box.exec("mkdir", "-p", STATE)
    host.box.exec("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", STATE)
    host.watch()
    host.box.exec("dd", "if=/dev/zero", f"of={STATE}/fill", "bs=4k", check=False)
    host.refuses()
    host.alerted("served")
    assert host.starts("spark1.service") == 2
    assert host.faults() == [f"history: {STATE}/history.sqlite3 cannot be written: database or disk is full"]
    assert host.history("restart") == []
    host.box.path(f"{STATE}/fill").unlink()
    host.works()  # a change, which is recorded
    assert [line["what"] for line in host.log("fault over")] == ["history can be written again"]
    assert host.history("change")[-1]["word"] == "busy"


def test_a_state_folder_that_cannot_be_written_to(host: Any) -> None:
    host.server()
    host.configure(daemon={"state_dir": "/srv/history"})  # read-only for the service, as all that is not its own
    host.allow()
    host.start()
    host.becomes("idle")
    host.refuses()
    host.alerted("served")
    assert host.starts("spark1.service") == 2
    (fault,) = host.faults()
    assert fault.startswith("/srv/history/history.sqlite3 cannot be opened: Read-only file system; watching without")


def test_a_reload_forgets_no_restart_where_nothing_can_be_saved(host: Any) -> None:
    host.server()
    host.configure(daemon={"state_dir": "/srv/history"})
    host.allow()
    host.start()
    host.becomes("idle")
    host.refuses()
    host.alerted("served")
    host.configure({"spark1": {"hang_after": "20s"}}, daemon={"state_dir": "/srv/history"})
    host.box.systemctl("reload", "factory-watchdog.service")
    host.wait(lambda: host.log("reloaded"), 5, "the reload")
    host.refuses()
    assert host.alerted("held").startswith("held: last restart too recent")
    assert host.starts("spark1.service") == 2


def test_without_the_bus_verdicts_go_on_and_the_restart_waits_for_it(host: Any) -> None:
    host.watch()
    host.box.systemctl("stop", "dbus.socket", "dbus.service")
    try:
        host.refuses()
        held = host.alerted("held")
        assert held.startswith("held: unit not known to be active, or a job of it queued (")
        assert "bus" in held
        assert host.told()["state"] == "dead"
        host.looks_on()
        assert host.starts("spark1.service") == 1
    finally:
        host.box.systemctl("start", "dbus.service", "polkit.service")
    host.alerted("served")
    assert host.starts("spark1.service") == 2
    assert host.alerts().count("held") == 1


def test_notification_commands_that_fail_or_hang_delay_nothing(host: Any) -> None:
    page, paged = "/srv/bin/page-me", f"{STATE}/paged"
    host.box.write(page, f'#!/bin/sh\necho "$FW_EVENT" >>{paged}\n', 0o755)
    host.server()
    commands = (["/bin/false"], ["/nowhere/page"], ["/bin/sleep", "infinity"], [page])
    host.configure(notify=[{"command": command} for command in commands])
    host.allow()
    host.start()
    host.becomes("idle")
    host.refuses()
    host.alerted("served")
    told = host.box.path(paged)
    host.wait(lambda: told.exists() and len(told.read_text().split()) == 3, 5, "the command that works")
    assert told.read_text().split() == ["dead", "restart", "served"]
    host.wait(lambda: len(host.faults()) == 6, 5, "the faults")
    for alert in ("dead", "restart", "served"):
        said = f"failed for the alert {alert} of spark1:"
        assert f"/bin/false {said} exit status 1" in host.faults()
        missing = "[Errno 2] No such file or directory: '/nowhere/page'"
        assert f"/nowhere/page {said} cannot be started: {missing}" in host.faults()


def test_without_its_folder_in_run_it_watches_all_the_same(host: Any) -> None:
    host.watch()
    host.box.exec("rm", "-rf", "/run/factory-watchdog")
    host.refuses()
    host.alerted("served")
    assert host.faults() == ["runtime files: /run/factory-watchdog cannot be written to: No such file or directory"]
