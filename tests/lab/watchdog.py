"""Our installation in the box, as an operator sets it up, watching real servers there."""

from __future__ import annotations

from typing import Any

# Windows as short as a real server allows: a question is answered within a second, a starved one takes longer.
QUICK = {
    "hang_after": "10s",
    "dead_after": "5s",
    "silent_after": "2m",  # a starved server that is healthy says nothing for some looks
    "startup_timeout": "3m",
    "first_outcome": "0s",
    "question_every": "10s",
    "question_timeout": "5s",
}


class Watchdog:
    """One test's daemon: `watch` servers, then ask what it found. `host` has everything else (see system/host.py)."""

    def __init__(self, host: Any) -> None:
        self.host = host

    def watch(self, *servers: Any, interval: str = "2s", **settings: Any) -> None:
        """Watch servers, each as the backend of its unit's name; `settings` are what differs from QUICK."""
        self.start({s.name: {"url": s.base, "unit": s.unit, **settings} for s in servers}, interval)

    def start(self, backends: dict[str, dict[str, Any]], interval: str = "2s") -> None:
        """Watch backends that are more than one server by itself."""
        tables = {name: {**QUICK, **settings} for name, settings in backends.items()}
        self.host.configure(tables, daemon={"interval": interval})
        self.host.allow()
        self.host.start()

    def states(self, name: str) -> list[str]:
        """The states that a backend was in, in their order."""
        return [entry["word"] for entry in self._history(name, "change")]

    def questions(self, name: str) -> list[tuple[str, str]]:
        """The questions that a backend was sent, each with its purpose and what came of it."""
        return [(entry["why"].partition(",")[0], entry["word"]) for entry in self._history(name, "question")]

    def restarts(self, name: str) -> list[str]:
        """What came of each restart of a backend."""
        return [entry["word"] for entry in self._history(name, "restart")]

    def resident(self) -> int:
        """Bytes of memory that the daemon has to itself now."""
        status = self.host.box.exec("cat", f"/proc/{self.host.show('MainPID')}/status").stdout
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def user(self) -> str:
        """Who the daemon runs as."""
        return str(self.host.box.exec("stat", "--format=%U", f"/proc/{self.host.show('MainPID')}").stdout.strip())

    def _history(self, name: str, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.host.history(kind) if entry["backend"] == name]
