"""The daemon in a real systemd: what is proven hung or dead is restarted, once, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.system

UNIT, STATE = "factory-watchdog.service", "/var/lib/factory-watchdog"
PAGE = "/srv/bin/page-me"
PAGED = "/var/lib/factory-watchdog/paged"  # the only folder that a command of the service may write to

# Beside the server, in its unit: a worker that a signal stopped, and one who says each second whose life it is.
SPEAKS = """#!/bin/sh
cp /bin/sleep /run/VLLM::Worker
/run/VLLM::Worker 3600 &
until grep -q VLLM /proc/$!/comm; do sleep 0.05; done
kill -STOP $!
while :; do echo "life $INVOCATION_ID speaks"; sleep 1; done &
"""


def test_a_hang_is_proven_restarted_and_served(host: Any) -> None:
    host.box.write(PAGE, f'#!/bin/sh\necho "$FW_EVENT $FW_BACKEND" >>{PAGED}\n', 0o755)
    host.server(options="--load-time 1s")
    host.configure(notify=[{"command": [PAGE], "events": ["hung", "restart", "served"]}])
    host.allow()
    host.start()
    host.becomes("idle")
    assert not host.waits()
    before = host.show("InvocationID", "spark1.service")
    host.works()
    host.hangs()
    assert (host.told()["ready"], host.waits()) == (True, False)
    host.becomes("hung", within=15)
    told = host.told()
    assert told["why"].startswith("4 running and 2 waiting requests stand still for 1")
    assert (told["ready"], host.waits()) == (False, True)
    host.becomes("idle")
    served = host.alerted("served")
    host.wait(lambda: not host.waits(), 2, "the end of NAME.wait")

    assert host.show("InvocationID", "spark1.service") not in ("", before)
    assert host.starts("spark1.service") == 2
    user = host.box.exec("stat", "--format=%U", f"/proc/{host.show('MainPID')}").stdout.strip()
    assert user == "factory-watchdog"
    assert host.alerts() == ["hung", "restart", "served"]
    assert {alert["priority"] for alert in host.log("alert")} == {2}
    paged = host.box.path(PAGED)
    host.wait(lambda: paged.exists() and len(paged.read_text().splitlines()) == 3, 5, "the notification commands")
    assert paged.read_text().splitlines() == ["hung spark1", "restart spark1", "served spark1"]

    (restart,) = host.history("restart")
    assert (restart["word"], restart["restart"]) == ("served", 1)
    record = host.explained(1)
    assert (record["served"], record["outcome"]) == (True, served)
    proof = record["proof"]
    assert (proof["state"], proof["rule"]) == ("hung", "flat")
    assert (proof["question"]["purpose"], proof["answer"]["outcome"]) == ("confirm", "failed")
    assert proof["reading"]["engines"][0]["running"] == 4
    assert proof["reading"]["unit"]["invocation"] == before
    assert len(proof["readings"]) > 10 / 0.5  # the whole of the standing still
    story = host.run("explain", "1")
    assert "confirming question (chat, engine 0): failed after 1 s: no whole answer within 1 s" in story
    assert f"outcome: {served}" in story
    assert host.faults() == []


def test_a_restart_leaves_a_record_that_tells_all_and_holds_no_secret(host: Any) -> None:
    """The server has a secret in its environment and one on its command line, as many have."""
    keys = ("sk-in-the-environment", "sk-on-the-command-line")
    host.box.write(f"/run/{keys[1]}.toml", '[[phase]]\nfor = "1h"\n')
    host.box.write("/srv/bin/speaks", SPEAKS, 0o755)
    server = (
        f"/srv/bin/python -m factory_watchdog.simulate --port 8001 --control-port 9001 --scenario /run/{keys[1]}.toml"
    )
    host.watch(
        service=f"Environment=API_KEY={keys[0]}\nExecStart=\nExecStart={server}\nExecStartPost=/srv/bin/speaks\n"
    )
    before, main = (host.show(name, "spark1.service") for name in ("InvocationID", "MainPID"))
    assert keys[0] in host.box.exec("cat", f"/proc/{main}/environ").stdout
    assert keys[1] in host.box.exec("cat", f"/proc/{main}/cmdline").stdout
    host.works()
    host.hangs()
    served = host.alerted("served", within=25)
    after = host.show("InvocationID", "spark1.service")
    assert after not in ("", before)

    story = host.run("explain", "1")
    what = ["the last movement", "the first reading that shows", "suspect:", "the confirming question goes out"]
    what += ["the question ends: failed", "the reading that confirms it", "hung:", "restart 1 is decided"]
    what += ["what the host shows is recorded", "the restart is asked"]
    for shown in ("the job ends: done", "a new life:"):  # which of them is seen first depends on the next poll
        places = [story.index(words, story.index("What happened")) for words in (*what, shown, served)]
        assert places == sorted(places), story
    rows = [line.split() for line in story.splitlines()]
    assert [main, "1", "child"] in [row[:3] for row in rows]
    worker = next(row for row in rows if row[2:3] == ["worker"])
    assert (worker[3], worker[-5:]) == ("0.00", ["T", "(stopped", "by", "a", "signal)"])
    assert f"InvocationID={before}" in story
    assert "GPU: no nvidia-smi on this host" in story
    assert f"life {before} speaks" in story
    assert f"life {after} speaks" not in story

    record = host.explained(1)
    assert record["evidence"]["group"]["cpu"] is not None
    assert 1.0 <= record["evidence"]["seconds"] < 6.0
    assert (record["job"]["unit"], record["job"]["result"]) == ("spark1.service", "done")
    assert record["job"]["asked"] - record["evidence"]["journal"]["until"] < 1.0
    host.box.systemctl("stop", UNIT)
    kept = b"".join(host.box.path(f"{STATE}/{name}").read_bytes() for name in host.files(STATE))
    told = json.dumps(record).encode()
    for text in (kept, told):
        assert before.encode() in text
        for never in (*keys, "factory_watchdog.simulate", "speaks", "ExecStart", "Environment"):
            assert never.encode() not in text.replace(b"ExecMainStart", b""), never
    assert host.faults() == []


def test_a_server_that_refuses_is_restarted_without_a_question(host: Any) -> None:
    host.watch()
    host.refuses()
    host.alerted("served")
    assert host.starts("spark1.service") == 2
    assert host.alerts() == ["dead", "restart", "served"]
    assert [(q["word"], q["why"]) for q in host.history("question")] == [("answered", "serve, chat")]
    assert host.explained(1)["proof"]["rule"] == "refused"


def test_without_the_polkit_rule_it_is_denied_and_said(host: Any) -> None:
    host.server("spark1")
    host.server("spark2")
    host.configure({"spark1": {}, "spark2": {}})
    host.start()
    host.becomes("idle", "spark1")
    daemon = host.show("InvocationID")
    host.refuses()
    why = host.alerted("not-served")
    assert why.startswith("no permission to restart the unit: systemd does not allow it: ")
    host.works("spark2")
    host.looks_on(4)
    assert host.starts("spark1.service") == 1
    assert (host.show("InvocationID"), host.show("NRestarts")) == (daemon, "0")
    (restart,) = host.history("restart")
    assert (restart["word"], host.explained(1)["outcome"]) == ("not served", why)
    assert host.told("spark1")["state"] == "dead"
    assert host.faults() == []


def test_a_server_that_crashed_is_left_to_systemd(host: Any) -> None:
    host.watch(service="Restart=always\nRestartSec=3s")  # three times `dead_after`
    host.crashes()
    host.becomes("starting")
    host.becomes("idle")
    host.looks_on()
    assert (host.starts("spark1.service"), host.show("NRestarts", "spark1.service")) == (2, "1")
    assert (host.history("restart"), host.alerts()) == ([], [])


def test_a_server_that_systemd_gave_up_is_told_and_not_revived(host: Any) -> None:
    host.watch()
    host.crashes()
    assert "the unit is down and revive is off" in host.alerted("held")
    host.looks_on()
    assert host.show("ActiveState", "spark1.service") == "failed"
    assert host.starts("spark1.service") == 1
    assert host.history("restart") == []


def test_a_server_that_systemd_gave_up_is_revived_where_that_is_wanted(host: Any) -> None:
    host.watch(revive=True)
    host.crashes()
    host.alerted("served")
    assert (host.starts("spark1.service"), len(host.history("restart"))) == (2, 1)


@pytest.mark.parametrize("revive", [False, True])
def test_a_server_that_ended_by_itself_with_success_is_told_and_revived_only_where_that_is_wanted(
    host: Any, revive: bool
) -> None:
    """As vLLM does when its engine dies. Its unit is wanted by another one, as an enabled one is."""
    host.unit("wanting.target", "[Unit]\nWants=spark1.service\n")
    host.box.systemctl("start", "wanting.target")
    host.watch(service="SuccessExitStatus=1\nRestart=on-failure", revive=revive)
    host.crashes()
    assert "inactive, for the server ended by itself" in host.alerted("unit-failed")
    assert "(Restart=on-failure)" in host.alerted("dead")
    if revive:
        host.alerted("served")
        assert (host.starts("spark1.service"), len(host.history("restart"))) == (2, 1)
        return
    assert "the unit is down and revive is off" in host.alerted("held")
    host.looks_on()
    assert (host.show("ActiveState", "spark1.service"), host.starts("spark1.service")) == ("inactive", 1)


def test_a_held_busy_flag_forbids_question_and_restart(host: Any) -> None:
    flag = "/run/factory-watchdog/flags/spark1.busy"
    host.box.write("/etc/sysusers.d/batch.conf", "u batch -\nm batch llm-batch\n")
    host.box.exec("systemd-sysusers", "/etc/sysusers.d/batch.conf")
    host.box.exec("touch", "--date=1 day ago", flag, user="batch")  # so that nothing but the lock holds it
    host.unit("batch.service", f"[Service]\nType=exec\nUser=batch\nExecStart=flock {flag} sleep infinity\n")
    host.watch()
    host.alerted("stale-flag")
    host.box.systemctl("start", "batch.service")
    host.works()
    host.hangs()
    assert host.alerted("held", within=15) == "held: busy flag (spark1.busy: a process has it locked)"
    assert host.told()["state"] == "hung"
    assert "; held: busy flag (spark1.busy: a process has it locked)" in host.told()["why"]
    host.looks_on()
    assert host.history("question") == []
    assert (host.starts("spark1.service"), host.history("restart")) == (1, [])
    host.box.systemctl("stop", "batch.service")
    host.alerted("served")
    assert host.starts("spark1.service") == 2
    assert [(q["word"], q["why"].partition(",")[0]) for q in host.history("question")] == [
        ("failed", "confirm"),
        ("answered", "serve"),
    ]
    assert host.alerts().count("held") == 1


def test_one_restart_at_a_time_on_a_host(host: Any) -> None:
    for name in ("spark1", "spark2"):
        host.server(name, "--load-time 2s")
    host.configure({"spark1": {}, "spark2": {}})
    host.allow()
    host.start()
    for name in ("spark1", "spark2"):
        host.becomes("idle", name)
    for name in ("spark1", "spark2"):
        host.refuses(name)
    for name in ("spark1", "spark2"):
        host.alerted("served", 15, name)
    lines = [line for line in host.log() if line["event"] in ("restart", "restart settled")]
    assert [line["event"] for line in lines] == ["restart", "restart settled"] * 2
    assert lines[0]["backend"] == lines[1]["backend"] != lines[2]["backend"] == lines[3]["backend"]
