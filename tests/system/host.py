"""A host as an operator sets it up: the watchdog in the box, watching simulated model servers that are units."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

import tomli_w

PYTHON, PROGRAM = "/srv/bin/python", "/srv/bin/llm-health"  # as box.py puts them there
UNIT = "factory-watchdog.service"
STATE, RUNTIME = "/var/lib/factory-watchdog", "/run/factory-watchdog"
CONFIG = "/etc/factory-watchdog/config.toml"

# The shortest windows that the configuration takes, so that a hang is proven after 10 s and a refusal after 1 s.
SHORT = {
    "hang_after": "10s",
    "dead_after": "1s",
    "silent_after": "10s",
    "startup_timeout": "30s",
    "first_outcome": "0s",
    "question_every": "10s",
    "question_timeout": "1s",
}
_WORKS = {"running": 4, "steps": 20, "tokens": 60, "finished": 1}
_HANGS = {"running": 4, "waiting": 2, "steps": 0, "tokens": 0, "finished": 0, "question": "timeout"}
_REFUSES = {"health": "refused", "metrics": "refused"}
_SILENT = {"health": "timeout", "metrics": "timeout", "question": "timeout"}

_SERVER = """[Service]
Type=notify
ExecStart={python} -m factory_watchdog.simulate --port {port} --control-port {control} {options}
{service}
"""
_PORTS = {"spark1": 8001, "spark2": 8002}
_STARTED = "39f53479d3a045ac8e11786248231fbf"  # MESSAGE_ID of the journal's "Started ...", see systemd's sd-messages.h
_DROP_IN = f"/run/systemd/system/{UNIT}.d/test.conf"


class Host:
    """The box with our installation in it; `clear` leaves the box as it was found."""

    def __init__(self, box: Any) -> None:
        self.box = box
        self._units: list[str] = []
        shown = box.exec("journalctl", "--show-cursor", "--lines=0").stdout.strip()
        self._cursor = shown.rpartition("-- cursor: ")[2]
        box.install_project()

    def clear(self) -> None:
        box = self.box
        box.remove_units([UNIT, *self._units])
        box.path(_DROP_IN).unlink(missing_ok=True)
        box.systemctl("daemon-reload")
        box.exec("umount", "--quiet", STATE, check=False)
        box.exec("rm", "-rf", STATE, RUNTIME, CONFIG)
        box.remove_rules()

    # --- what is set up ----------------------------------------------------------------------------------------------

    def server(self, name: str = "spark1", options: str = "", service: str = "") -> None:
        """Start the model server `name` as NAME.service; `options` are the simulator's, `service` more of its unit."""
        port = _PORTS[name]
        text = _SERVER.format(python=PYTHON, port=port, control=port + 1000, options=options, service=service)
        self.unit(f"{name}.service", text)
        self.box.systemctl("start", f"{name}.service")

    def unit(self, name: str, text: str) -> None:
        """Write a unit that goes when the test ends."""
        self._units.append(name)
        self.box.unit(name, text)

    def configure(
        self,
        backends: Mapping[str, Mapping[str, Any]] | None = None,
        notify: list[dict[str, Any]] | None = None,
        daemon: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the configuration: of each backend what differs from the short windows.

        One that is not a server of ours (see `server`) needs its `url`, and its `unit` where it has one.
        """
        tables = [
            {"name": name, **_address(name), **settings} for name, settings in (backends or {"spark1": {}}).items()
        ]
        config: dict[str, Any] = {"daemon": {"interval": "500ms", **(daemon or {})}, "defaults": SHORT}
        config |= {"backend": tables, "notify": notify or []}
        self.box.write(CONFIG, tomli_w.dumps(config))

    def allow(self) -> None:
        """Put the rule in force that the program itself prints for its configuration."""
        self.box.rules(self.box.exec(PROGRAM, "config", "polkit").stdout)

    def drop_in(self, service: str) -> None:
        """Change our unit for this test."""
        self.box.write(_DROP_IN, f"[Service]\n{service}\n")
        self.box.systemctl("daemon-reload")

    def start(self) -> None:
        """Start the daemon; returns when it is ready."""
        if self.box.exec("systemctl", "start", UNIT, check=False).returncode != 0:
            raise AssertionError(f"{UNIT} does not start:\n{self.journal_text()}")

    def watch(self, name: str = "spark1", options: str = "", service: str = "", **settings: Any) -> None:
        """The usual: one server, allowed to be restarted, and the daemon that has judged it."""
        self.server(name, options, service)
        self.configure({name: settings})
        self.allow()
        self.start()
        self.becomes("idle", name)

    def works(self, name: str = "spark1") -> None:
        """From now on a model server has requests, and they move."""
        self._simulate(name, _WORKS)
        self.becomes("busy", name)

    def hangs(self, name: str = "spark1") -> None:
        """From now on it has requests, and nothing moves or answers: hung after `hang_after` and a question."""
        self._simulate(name, _HANGS)
        self.becomes("suspect", name)

    def refuses(self, name: str = "spark1") -> None:
        """From now on it refuses connections, its unit goes on: dead after `dead_after`, without a question."""
        self._simulate(name, _REFUSES)

    def is_silent(self, name: str = "spark1") -> None:
        """From now on it accepts connections and says nothing."""
        self._simulate(name, _SILENT)

    def crashes(self, name: str = "spark1") -> None:
        """Its process ends at once, with status 1."""
        self._simulate(name, {"crash": True})

    def _simulate(self, name: str, changes: Mapping[str, Any]) -> None:
        url = f"http://127.0.0.1:{_PORTS[name] + 1000}/_sim"
        say = f"import urllib.request as r; r.urlopen({url!r}, {json.dumps(changes).encode()!r}, 5)"
        self.box.exec(PYTHON, "-c", say, check="crash" not in changes)  # a server that crashed does not answer

    # --- what is seen ------------------------------------------------------------------------------------------------

    def told(self, name: str = "spark1") -> dict[str, Any]:
        """NAME.json, as a batch job reads it; empty before there is one."""
        try:
            return dict(json.loads(self.box.path(f"{RUNTIME}/{name}.json").read_text()))
        except FileNotFoundError:
            return {}

    def waits(self, name: str = "spark1") -> bool:
        """Whether NAME.wait exists."""
        return bool(self.box.path(f"{RUNTIME}/{name}.wait").exists())

    def becomes(self, state: str, name: str = "spark1", within: float = 10.0) -> None:
        """Wait until a backend is in `state`."""
        self.wait(lambda: self.told(name).get("state") == state, within, f"{name} {state}")

    def wait(self, condition: Any, within: float = 10.0, what: str = "the condition") -> None:
        """Wait for `condition`; where it does not come true, the journal says why."""
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come true within {within:g} s:\n{self.journal_text()}")
            time.sleep(0.05)

    def looks_on(self, times: int = 6, name: str = "spark1") -> None:
        """Wait until the daemon has looked at a backend so many times more: to see that nothing happens meanwhile."""
        path = self.box.path(f"{RUNTIME}/{name}.json")
        for _ in range(times):
            before = path.stat().st_mtime_ns
            self.wait(lambda before=before: path.stat().st_mtime_ns != before, 30, f"another look at {name}")

    def journal(self, unit: str = UNIT) -> list[dict[str, Any]]:
        """The journal's entries of a unit since this test began."""
        said = self._journalctl("--output=json", f"--unit={unit}")
        return [json.loads(line) for line in said.splitlines()]

    def journal_text(self) -> str:
        """All of the journal since this test began, for people."""
        return self._journalctl("--output=short-precise")

    def _journalctl(self, *options: str) -> str:
        self.box.exec("journalctl", "--sync")
        return str(self.box.exec("journalctl", f"--after-cursor={self._cursor}", *options).stdout)

    def log(self, event: str | None = None) -> list[dict[str, Any]]:
        """The daemon's own lines, each with its priority; those of one event, or all."""
        lines = []
        for entry in self.journal():
            with contextlib.suppress(ValueError):
                line = json.loads(entry["MESSAGE"])
                if event in (None, line["event"]):
                    lines.append({**line, "priority": int(entry["PRIORITY"])})
        return lines

    def alerts(self, name: str = "spark1") -> list[str]:
        """The alerts of a backend by name, in their order."""
        return [line["alert"] for line in self.log("alert") if line["backend"] == name]

    def alerted(self, alert: str, within: float = 10.0, name: str = "spark1") -> str:
        """Wait for an alert; its sentence."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [a["why"] for a in self.log("alert") if (a["alert"], a["backend"]) == (alert, name)]
            return bool(found)

        self.wait(look, within, f"the alert {alert} of {name}")
        return found[0]

    def faults(self) -> list[str]:
        """Everything that the daemon says of its own troubles."""
        return [line["what"] for line in self.log("fault")]

    def starts(self, unit: str) -> int:
        """How often a unit was started since this test began."""
        return sum(entry.get("MESSAGE_ID") == _STARTED for entry in self.journal(unit))

    def history(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What `llm-health history` says, the newest last; entries of one kind, or all."""
        lines = self.run("history", "--json", "--limit", "200").splitlines()
        return [entry for entry in map(json.loads, lines) if kind in (None, entry["kind"])]

    def explained(self, restart: int) -> dict[str, Any]:
        """A restart with its proof."""
        return dict(json.loads(self.run("explain", str(restart), "--json")))

    def run(self, *arguments: str) -> str:
        """What `llm-health` says to an operator."""
        return str(self.box.exec(PROGRAM, *arguments).stdout)

    def show(self, name: str, unit: str = UNIT) -> str:
        """One property of a unit."""
        return str(self.box.show(unit, name))

    def files(self, folder: str) -> list[str]:
        """The names of what is in a folder."""
        return sorted(str(path.name) for path in self.box.path(folder).iterdir() if path.is_file())

    def saved_at(self, name: str = "spark1") -> float:
        """The wall-clock time at which the state of a backend was last saved."""
        ask = f"SELECT saved FROM state WHERE name = '{name}'"
        look = f"import sqlite3; print(sqlite3.connect('{STATE}/history.sqlite3').execute({ask!r}).fetchone()[0])"
        return float(self.box.exec(PYTHON, "-c", look).stdout)


def _address(name: str) -> dict[str, str]:
    """Where the simulated model server of that name is; nothing of any other backend."""
    if name not in _PORTS:
        return {}
    return {"url": f"http://127.0.0.1:{_PORTS[name]}", "unit": f"{name}.service"}
