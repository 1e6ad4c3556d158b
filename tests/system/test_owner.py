"""The daemon in a real systemd, where the port is the unit's own, another unit's, or a container's."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.system

KEY, KEY_FILE = "sk-very-secret", "/var/lib/factory-watchdog/key"
RELAY = "/srv/bin/relay.py"
TAKEN = "port 8001 is listened on by intruder.service, not by spark1.service"

# Passes connections from port 8001 on to the model server at 8002, and says in the journal what was asked for.
RELAY_TEXT = """
import asyncio

async def passed_on(reader, writer, say):
    while data := await reader.read(65536):
        if say:
            head = data.partition(b"\\r\\n\\r\\n")[0].decode(errors="replace")
            print(head.partition("\\r")[0], "with the key" if "authorization" in head.lower() else "", flush=True)
        writer.write(data)
    writer.close()

async def relay(reader, writer):
    there, back = await asyncio.open_connection("127.0.0.1", 8002)
    await asyncio.gather(passed_on(reader, back, True), passed_on(there, writer, False), return_exceptions=True)

async def main():
    async with await asyncio.start_server(relay, "127.0.0.1", 8001) as server:
        await server.serve_forever()

asyncio.run(main())
"""


def key(host: Any) -> None:
    """A key file that the daemon can read."""
    host.box.write(KEY_FILE, KEY, 0o600)
    host.box.exec("chown", "-R", "factory-watchdog:", "/var/lib/factory-watchdog")


def relay(host: Any, unit: str) -> None:
    """Let `unit` listen at port 8001, in front of the model server spark2."""
    host.server("spark2")
    host.box.write(RELAY, RELAY_TEXT)
    host.unit(unit, f"[Service]\nType=exec\nExecStart=/srv/bin/python {RELAY}\n")
    host.box.systemctl("start", unit)


def asked(host: Any, unit: str) -> list[str]:
    """What was asked for at the relay of `unit`."""
    return [entry["MESSAGE"] for entry in host.journal(unit) if "HTTP/1.1" in str(entry["MESSAGE"])]


def test_another_unit_on_the_port_is_told_gets_no_key_and_nothing_is_restarted(host: Any) -> None:
    relay(host, "intruder.service")
    host.unit("spark1.service", "[Service]\nType=exec\nExecStart=/bin/sh -c 'echo runs; exec sleep infinity'\n")
    host.box.systemctl("start", "spark1.service")
    key(host)
    host.configure({"spark1": {"api_key_file": KEY_FILE, "startup_timeout": "10s"}})
    host.allow()
    host.start()
    assert host.alerted("foreign-process") == f"foreign process on the port: {TAKEN}"
    assert host.alerted("cannot-ask", 15) == f"cannot be asked: no key is sent: {TAKEN}"
    host._simulate("spark2", {"running": 4, "steps": 20, "tokens": 60, "finished": 1})
    host.becomes("busy")
    host._simulate("spark2", {"steps": 0, "tokens": 0, "finished": 0, "question": "timeout"})
    assert host.alerted("held", 20) == f"held: foreign process on the port ({TAKEN})"
    host.becomes("hung")
    host.looks_on()
    assert TAKEN in host.told()["why"]
    assert (host.starts("spark1.service"), host.starts("intruder.service")) == (1, 1)
    assert host.alerts().count("foreign-process") == 1
    requests = asked(host, "intruder.service")
    assert any(request.startswith("GET /v1/models") for request in requests)
    assert [r for r in requests if r.startswith("POST") or "with the key" in r] == []
    assert host.run("explain", "spark1").count(f"A restart would be held: foreign process on the port ({TAKEN}).") == 1
    assert host.faults() == []


def test_the_unit_s_own_port_gets_the_key_and_is_restarted(host: Any) -> None:
    relay(host, "spark1.service")
    key(host)
    host.configure({"spark1": {"api_key_file": KEY_FILE}})
    host.allow()
    host.start()
    host.wait(lambda: any(r.startswith("POST") for r in asked(host, "spark1.service")), 15, "the question")
    sent = [request for request in asked(host, "spark1.service") if "with the key" in request]
    assert {request.split()[1] for request in sent} == {"/v1/models", "/v1/chat/completions"}
    host._simulate("spark2", {"running": 4, "steps": 0, "tokens": 0, "finished": 0, "question": "timeout"})
    host.alerted("restart", 25)
    host.wait(lambda: host.starts("spark1.service") == 2, 5, "the restart")
    assert host.explained(1)["proof"]["reading"]["port"] == {"owner": "unit", "detail": ""}
    assert "foreign-process" not in host.alerts()
    assert host.log("warning") == []


def test_a_port_that_is_a_container_s_is_warned_of_and_restarted(host: Any) -> None:
    """As with an engine that publishes ports by a process of its own: it may be what the unit started."""
    relay(host, "docker.service")
    host.unit("spark1.service", "[Service]\nType=exec\nExecStart=/bin/sh -c 'echo runs; exec sleep infinity'\n")
    host.box.systemctl("start", "spark1.service")
    host.configure({"spark1": {}})
    host.allow()
    host.start()
    host.becomes("idle", within=20)
    host._simulate("spark2", {"running": 4, "question": "timeout"})
    host.alerted("restart", 25)
    host.wait(lambda: host.starts("spark1.service") == 2, 5, "the restart")
    (warning, *more) = [line["what"] for line in host.log("warning")]
    said = "port 8001 is listened on by a container or its engine (docker.service)"
    assert warning == f"whose the port is cannot be told: {said}"
    assert len(more) <= 1, "once in each life"
