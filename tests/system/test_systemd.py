"""world/systemd.py against a real systemd, bus and polkit."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from factory_watchdog.config import polkit
from factory_watchdog.world.systemd import SHOWN

pytestmark = pytest.mark.system

SLEEPER = "[Service]\nType=exec\nExecStart=/bin/sleep infinity\n"
STUBBORN = SLEEPER + "ExecStop=/bin/sleep infinity\nTimeoutStopSec=infinity\n"
UNMOVED = """[Service]
Type=notify
NotifyAccess=all
ExecStart=/bin/sh -c 'trap "" TERM; systemd-notify --ready; while :; do sleep 0.05; done'
TimeoutStopSec=300ms
"""
GATED = SLEEPER + "ExecStop=/bin/sh -c 'until [ -e /run/gate ]; do sleep 0.05; done'\n"
FAILING = "[Service]\nType=oneshot\nExecStart=/bin/false\n"
ONESHOT = "[Service]\nType=oneshot\nExecStart=/bin/touch /run/oneshot-ran\n"

Units = Callable[[dict[str, str]], None]
Probes = Callable[..., Any]
Rules = Callable[[str], None]
WaitFor = Callable[..., None]


def test_facts_of_a_running_service(box: Any, units: Units, probe: Probes) -> None:
    units({"running.service": SLEEPER})
    box.systemctl("start", "running.service")
    facts = probe().ask("facts", "running.service")
    pid = box.show("running.service", "MainPID")
    stat = box.exec("cat", f"/proc/{pid}/stat").stdout.rpartition(")")[2].split()
    assert facts == {
        "told": True,
        "active": "active",
        "sub": "running",
        "job": 0,
        "invocation": box.show("running.service", "InvocationID"),
        "main_pid": int(pid),
        "main_start": int(stat[19]),
        "cpu": pytest.approx(int(box.show("running.service", "CPUUsageNSec")) / 1e9),
        "control_group": "/system.slice/running.service",
        "left_over": [],
        "own_exit": None,
        "restarts_on": None,
        "detail": "",
    }


def test_the_properties_of_a_record_are_as_systemd_shows_them_and_no_others(
    box: Any, units: Units, probe: Probes
) -> None:
    units({"running.service": SLEEPER + "Environment=API_KEY=sk-very-secret\nTimeoutStopSec=infinity\n"})
    box.systemctl("start", "running.service")
    told = probe().ask("properties", "running.service")
    assert set(told) == {name for names in SHOWN.values() for name in names}
    for name in ("ActiveState", "SubState", "InvocationID", "Type", "Result", "ControlGroup", "Restart", "KillMode"):
        assert told[name] == box.show("running.service", name), name
    for name in ("NRestarts", "MainPID", "ExecMainCode", "ExecMainStatus"):
        assert told[name] == int(box.show("running.service", name)), name
    assert told["TimeoutStopUSec"] is None
    assert 0 <= time.time() - told["ActiveEnterTimestamp"] / 1e6 < 60
    assert "secret" not in json.dumps(told)
    assert "ExecStart" not in json.dumps(list(told)).replace("ExecMainStart", "")


def test_the_properties_of_a_unit_that_is_no_service(probe: Probes) -> None:
    told = probe().ask("properties", "basic.target")
    assert set(told) == set(SHOWN["Unit"])
    assert told["ActiveState"] == "active"


def test_a_stopped_service_that_is_not_in_memory_is_told_as_inactive(units: Units, probe: Probes) -> None:
    units({"stopped.service": SLEEPER})
    facts = probe().ask("facts", "stopped.service")
    assert (facts["told"], facts["active"], facts["sub"], facts["job"]) == (True, "inactive", "dead", 0)
    unset = ("invocation", "main_pid", "main_start", "cpu", "control_group")
    assert [facts[name] for name in unset] == [None] * len(unset)


def test_a_failed_service_is_told_as_failed(box: Any, units: Units, probe: Probes) -> None:
    units({"failed.service": FAILING})
    box.systemctl("start", "failed.service", check=False)
    facts = probe().ask("facts", "failed.service")
    assert (facts["told"], facts["active"], facts["main_pid"]) == (True, "failed", None)


@pytest.mark.parametrize(
    ("text", "verb", "told"),
    [
        (SLEEPER, "stop", ("inactive", False)),
        (SLEEPER, "kill", ("inactive", True)),  # SIGTERM by hand: systemd was not asked to stop it
        (SLEEPER + "ExecStop=/bin/sleep 0.2\n", "stop", ("inactive", False)),
        (UNMOVED, "stop", ("failed", False)),
        (UNMOVED, "kill --signal=KILL", ("failed", True)),
        ("[Service]\nType=notify\nExecStart=/bin/true\n", "", ("failed", None)),  # it never got active
    ],
)
def test_who_ended_a_service(
    box: Any, units: Units, probe: Probes, wait_for: WaitFor, text: str, verb: str, told: tuple[str, bool | None]
) -> None:
    units({"ended.service": text, "wanting.target": "[Unit]\nWants=ended.service\n"})
    box.systemctl("start", "wanting.target", "ended.service", check=False)
    if verb:
        box.systemctl(*verb.split(), "ended.service")
    wait_for(lambda: box.show("ended.service", "ActiveState") == told[0], 10, "its end")
    facts = probe().ask("facts", "ended.service")
    assert ((facts["active"], facts["own_exit"]), facts["restarts_on"]) == (told, "no")


def test_facts_are_of_one_moment(box: Any, units: Units, probe: Probes) -> None:
    """Of a service that is started anew all the time, a PID is never told with another run's InvocationID."""
    flapping = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=always\nRestartSec=0\nExecStart=/bin/sleep 0.01\n"
    units({"flapping.service": flapping})
    box.systemctl("start", "flapping.service")
    manager = probe()
    runs: dict[tuple[int, int], set[str | None]] = {}
    for _ in range(400):
        facts = manager.ask("facts", "flapping.service")
        if facts["main_start"]:
            runs.setdefault((facts["main_pid"], facts["main_start"]), set()).add(facts["invocation"])
    assert len(runs) > 1
    assert [seen for seen in runs.values() if len(seen) > 1] == []


@pytest.mark.parametrize(
    ("unit", "detail"),
    [
        ("nowhere.service", "systemd says of nowhere.service: not-found"),
        ("broken.service", "systemd says of broken.service: bad-setting"),
        ("no unit", "systemd does not take 'no unit' for a unit's name"),
        ("a\n|.service", "systemd does not take 'a\\n .service' for a unit's name"),
        ("", "systemd does not take '' for a unit's name"),
    ],
)
def test_what_cannot_be_loaded_is_not_told(units: Units, probe: Probes, unit: str, detail: str) -> None:
    units({"broken.service": "[Service]\nType=exec\n"})
    facts = probe().ask("facts", unit)
    assert (facts["told"], facts["active"], facts["detail"]) == (False, None, detail)


def test_a_unit_that_is_no_service_has_no_process(probe: Probes) -> None:
    facts = probe().ask("facts", "basic.target")
    assert (facts["told"], facts["active"]) == (True, "active")
    assert (facts["main_pid"], facts["control_group"], facts["cpu"]) == (None, None, None)


def test_try_restart_begins_a_new_life(box: Any, units: Units, probe: Probes) -> None:
    units({"running.service": SLEEPER})
    box.systemctl("start", "running.service")
    manager = probe()
    before = manager.ask("facts", "running.service")
    assert manager.ask("try_restart", "running.service", 10) == ["done", ""]
    after = manager.ask("facts", "running.service")
    for name in ("invocation", "main_pid", "main_start"):
        assert after[name] not in (None, before[name])


def test_try_restart_leaves_a_stopped_unit_stopped(units: Units, probe: Probes) -> None:
    units({"stopped.service": SLEEPER})
    manager = probe()
    assert manager.ask("try_restart", "stopped.service", 10) == ["done", ""]
    assert manager.ask("facts", "stopped.service")["active"] == "inactive"


def test_a_job_that_never_ends(box: Any, units: Units, probe: Probes) -> None:
    units({"stubborn.service": STUBBORN})
    box.systemctl("start", "stubborn.service")
    manager = probe()
    assert manager.ask("try_restart", "stubborn.service", 0.5) == [
        "never-ended",
        "the job is still queued at the deadline; stubborn.service is deactivating (stop)",
    ]
    assert manager.ask("facts", "stubborn.service")["job"] > 0


def test_a_queued_job_is_not_overruled(box: Any, units: Units, probe: Probes) -> None:
    units({"stubborn.service": STUBBORN})
    box.systemctl("start", "stubborn.service")
    box.systemctl("stop", "--no-block", "stubborn.service")
    manager = probe()
    stopping = manager.ask("facts", "stubborn.service")
    assert (stopping["active"], stopping["job"] > 0) == ("deactivating", True)
    result, detail = manager.ask("start", "stubborn.service", 5)
    assert result == "failed"
    assert detail.startswith("another job is queued that ours must not overrule: ")
    assert manager.ask("try_restart", "stubborn.service", 5) == ["done", ""]  # systemd: a unit being stopped stays so
    assert manager.ask("facts", "stubborn.service")["job"] == stopping["job"]


def test_a_job_that_somebody_cancels(box: Any, units: Units, probe: Probes, wait_for: WaitFor) -> None:
    units({"stubborn.service": STUBBORN})
    box.systemctl("start", "stubborn.service")
    manager = probe()
    manager.send("try_restart", "stubborn.service", 20)
    wait_for(lambda: box.show("stubborn.service", "Job"), 5, "the job")
    box.systemctl("cancel")
    assert manager.receive() == ["failed", "the job ended as 'canceled'"]


def test_nobody_else_can_end_our_job(box: Any, units: Units, probe: Probes, wait_for: WaitFor) -> None:
    units({"stubborn.service": STUBBORN})
    box.systemctl("start", "stubborn.service")
    manager = probe()
    manager.send("try_restart", "stubborn.service", 2)
    wait_for(lambda: box.show("stubborn.service", "Job"), 5, "the job")
    job = box.show("stubborn.service", "Job")
    path, interface = "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"
    forged = (job, f"{path}/job/{job}", "stubborn.service", "done")
    box.exec("busctl", "emit", path, interface, "JobRemoved", "uoss", *forged, user="daemon")
    assert manager.receive()[0] == "never-ended"


def test_start_of_what_fails_and_what_runs_once(box: Any, units: Units, probe: Probes) -> None:
    units({"failed.service": FAILING, "oneshot.service": ONESHOT, "running.service": SLEEPER})
    manager = probe()
    assert manager.ask("start", "failed.service", 10) == ["failed", "the job ended as 'failed'"]
    assert manager.ask("start", "oneshot.service", 10) == ["done", ""]
    assert box.path("/run/oneshot-ran").exists()
    assert manager.ask("start", "running.service", 10) == ["done", ""]
    assert manager.ask("start", "running.service", 10) == ["done", ""]
    result, detail = manager.ask("start", "nowhere.service", 10)
    assert (result, detail) == ("failed", "systemd refused: Unit nowhere.service not found.")


def test_reset_failed(box: Any, units: Units, probe: Probes) -> None:
    units({"failed.service": FAILING})
    box.systemctl("start", "failed.service", check=False)
    manager = probe()
    assert manager.ask("reset_failed", "failed.service") == ["done", ""]
    assert manager.ask("facts", "failed.service")["active"] == "inactive"
    assert manager.ask("reset_failed", "nowhere.service")[0] == "failed"


def test_without_a_rule_everything_but_looking_is_denied(box: Any, units: Units, probe: Probes) -> None:
    units({"running.service": SLEEPER})
    box.systemctl("start", "running.service")
    manager = probe(user="daemon")
    before = manager.ask("facts", "running.service")
    assert before["told"]
    for question in (("try_restart", "running.service", 10), ("start", "running.service", 10)):
        result, detail = manager.ask(*question)
        assert (result, detail.partition(":")[0]) == ("denied", "systemd does not allow it")
    assert manager.ask("reset_failed", "running.service")[0] == "denied"
    assert manager.ask("facts", "running.service")["invocation"] == before["invocation"]


def test_the_rule_allows_its_units_and_verbs_alone(box: Any, units: Units, rules: Rules, probe: Probes) -> None:
    units({"running.service": SLEEPER, "other.service": SLEEPER, "oneshot.service": ONESHOT})
    box.systemctl("start", "running.service", "other.service")
    rules(polkit.rule([("running.service", ["try-restart"]), ("oneshot.service", ["start"])], user="daemon"))
    manager, other = probe(user="daemon"), probe(user="games")
    assert manager.ask("try_restart", "running.service", 10) == ["done", ""]
    assert manager.ask("start", "oneshot.service", 10) == ["done", ""]
    denied = [
        manager.ask("start", "running.service", 10),
        manager.ask("reset_failed", "running.service"),
        manager.ask("try_restart", "oneshot.service", 10),
        manager.ask("try_restart", "other.service", 10),
        other.ask("try_restart", "running.service", 10),
    ]
    assert [result for result, _ in denied] == ["denied"] * len(denied)


def test_a_bus_that_goes_and_comes_back(box: Any, units: Units, probe: Probes, wait_for: WaitFor) -> None:
    units({"running.service": SLEEPER})
    box.systemctl("start", "running.service")
    manager = probe()
    assert manager.ask("facts", "running.service")["told"]
    box.systemctl("stop", "dbus.socket", "dbus.service")
    try:
        facts = manager.ask("facts", "running.service")
        assert (facts["told"], facts["active"]) == (False, None)
        assert facts["detail"]
        assert manager.ask("try_restart", "running.service", 5)[0] == "no-bus"
        assert manager.ask("start", "running.service", 5)[0] == "no-bus"
        assert manager.ask("reset_failed", "running.service")[0] == "no-bus"
    finally:
        box.systemctl("start", "dbus.service", "polkit.service")
    assert manager.ask("facts", "running.service")["told"]
    box.systemctl("restart", "dbus.service", "polkit.service")
    wait_for(lambda: box.exec("busctl", "status", "org.freedesktop.systemd1", check=False).returncode == 0, 10)
    assert manager.ask("facts", "running.service")["told"]  # a restart between two polls costs none of them


@pytest.mark.parametrize(
    ("returns", "deadline", "result"),
    [
        (True, 30, ["done", ""]),
        (False, 5, ["no-bus", "the job's end cannot be seen: no connection to the system bus: "]),
    ],
)
def test_a_bus_that_goes_in_the_middle_of_a_job(
    box: Any, units: Units, probe: Probes, wait_for: WaitFor, returns: bool, deadline: float, result: list[str]
) -> None:
    units({"gated.service": GATED})
    box.path("/run/gate").unlink(missing_ok=True)
    box.systemctl("start", "gated.service")
    manager = probe()
    manager.send("try_restart", "gated.service", deadline)
    wait_for(lambda: box.show("gated.service", "Job"), 5, "the job")
    box.systemctl("stop", "dbus.socket", "dbus.service")
    try:
        box.write("/run/gate", "")
        wait_for(lambda: not box.show("gated.service", "Job"), 10, "the end of the job")
        if returns:
            box.systemctl("start", "dbus.service")
        ended, detail = manager.receive()
        assert [ended, detail[: len(result[1])]] == result
    finally:
        box.systemctl("start", "dbus.service", "polkit.service")


def test_the_users_manager_is_on_the_session_bus(
    box: Any, units: Units, wait_for: WaitFor, need: Callable[[object, str], None]
) -> None:
    need(os.path.exists("/usr/lib/systemd/user/dbus.socket"), "a user's bus needs the package dbus-user-session")
    runtime = "XDG_RUNTIME_DIR=/run/user/0"
    manager = "ExecStart=/lib/systemd/systemd --user --unit=basic.target\n"
    units({"user.service": f"[Service]\nEnvironment={runtime}\nDelegate=yes\nType=notify\n{manager}"})
    box.write("/run/user/0/systemd/user/mine.service", SLEEPER)
    box.systemctl("start", "user.service")
    present = ("env", runtime, "busctl", "--user", "status", "org.freedesktop.systemd1")
    wait_for(lambda: box.exec(*present, check=False).returncode == 0, 10, "the user's manager on its bus")
    for variable in (runtime, "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/0/bus"):
        questions = '["start", "mine.service", 10]\n["facts", "mine.service"]\n'
        probe = ("/srv/bin/python", "/srv/project/tests/system/probe.py", "user")
        started, told = map(json.loads, box.exec("env", variable, *probe, stdin=questions).stdout.splitlines())
        assert started == ["done", ""]
        assert told["control_group"] == "/system.slice/user.service/app.slice/mine.service"


def test_our_unit_is_hardened(box: Any) -> None:
    box.install_project()
    said = box.exec("systemd-analyze", "security", "--no-pager", "factory-watchdog.service").stdout
    exposure = float(re.findall(r"exposure level for factory-watchdog.service: ([0-9.]+)", said)[0])
    assert exposure <= 2.0, said
    box.exec("systemd-analyze", "verify", "/run/systemd/system/factory-watchdog.service")


def test_the_folders_of_our_user(box: Any) -> None:
    box.install_project()
    folders = ("/run/factory-watchdog", "/run/factory-watchdog/flags")
    assert box.exec("stat", "--format=%A %U %G", *folders).stdout.splitlines() == [
        "drwxr-xr-x factory-watchdog factory-watchdog",
        "drwxrwx--T root llm-batch",
    ]
    assert box.exec("id", "-Gn", "factory-watchdog").stdout.split() == ["factory-watchdog", "llm-batch"]
    box.exec("touch", "/run/factory-watchdog/flags/spark1.busy")
    box.exec("chmod", "644", "/run/factory-watchdog/flags/spark1.busy")
    box.exec("cat", "/run/factory-watchdog/flags/spark1.busy", user="factory-watchdog")
    kept = box.exec("rm", "-f", "/run/factory-watchdog/flags/spark1.busy", user="factory-watchdog", check=False)
    assert kept.returncode != 0
    box.exec("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/factory-watchdog.conf")
    assert box.path("/run/factory-watchdog/flags/spark1.busy").exists()


INSIDE_OUR_UNIT = """
import asyncio, json, signal
from factory_watchdog.world.processes import boot_id, processes
from factory_watchdog.world.sd_notify import Notifier
from factory_watchdog.world.systemd import Manager

async def main():
    notifier, manager = Notifier(), Manager("system")
    facts = await manager.facts("running.service")
    seen = processes(facts.control_group)
    result = await manager.try_restart("running.service", 10)
    with open("/run/factory-watchdog/proof.json", "w") as file:
        json.dump([facts.main_start, seen, boot_id(), notifier.watchdog_interval(), result], file)
    open("/var/lib/factory-watchdog/history", "w").close()
    notifier.ready("watching | 1 backend")
    await manager.close()

asyncio.run(main())
signal.pause()
"""


def test_what_we_need_works_inside_the_hardening_of_our_unit(box: Any, units: Units, rules: Rules) -> None:
    units({"running.service": SLEEPER, "factory-watchdog.service": ""})
    box.systemctl("start", "running.service")
    box.install_project()
    rules(polkit.rule([("running.service", ["try-restart"])]))
    box.write("/srv/bin/proof.py", INSIDE_OUR_UNIT)
    ours = box.path("/run/systemd/system/factory-watchdog.service").read_text()
    box.unit("factory-watchdog.service", ours.replace("/srv/bin/llm-health run", "/srv/bin/python /srv/bin/proof.py"))
    before = int(box.show("running.service", "MainPID"))
    box.systemctl("start", "factory-watchdog.service")
    start, seen, boot, beat, result = json.loads(box.path("/run/factory-watchdog/proof.json").read_text())
    assert start > 0
    assert seen == [[before, start]]
    assert boot == box.exec("cat", "/proc/sys/kernel/random/boot_id").stdout.strip()
    assert (beat, result) == (60.0, ["done", ""])
    assert box.show("factory-watchdog.service", "StatusText") == "watching 1 backend"
    assert box.exec("stat", "--format=%A %U", "/var/lib/factory-watchdog").stdout == "drwxr-x--- factory-watchdog\n"
    box.systemctl("stop", "factory-watchdog.service")
    assert box.path("/run/factory-watchdog/proof.json").exists()
