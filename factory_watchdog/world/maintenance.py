"""Windows in which an operator sets backends aside, kept in one file so that they outlive the daemon and a boot.

While the daemon runs a window ends by CLOCK_BOOTTIME, which no change of the wall clock moves; only what is read back
from the file goes by the wall clock. The file is a JSON object: backend -> {"until": wall-clock seconds, "by": who}.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from factory_watchdog.core.text import clean
from factory_watchdog.core.wording import span
from factory_watchdog.errors import WatchdogError
from factory_watchdog.world.clock import Clock

LONGEST = 7 * 86400.0
"""Seconds at most: a server that nobody watches for longer has been forgotten."""

NAME = "maintenance.json"  # in state_dir


class MaintenanceError(WatchdogError):
    """The file of windows cannot be read or written; the text names it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Window:
    until: float  # boottime
    by: str


class Maintenance:
    """All windows of this host. `warning` says what was wrong with the file when it was read, if anything was."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._windows: dict[str, _Window] = {}
        self.warning: str | None = None
        try:
            self._windows = self._read()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self.warning = f"{path} cannot be read ({type(error).__name__}: {error}); no maintenance is in force"

    def standing(self, name: str) -> str | None:
        """For how long a backend is set aside still, and by whom, as part of a sentence; None where it is not."""
        window, now = self._windows.get(name), self._clock.boottime()
        if window is None or now >= window.until:
            return None
        return f"for another {span(window.until - now)}, by {window.by}"

    def begin(self, name: str, seconds: float, by: str) -> None:
        """Set a backend aside from now on, in place of an earlier window. In force also where MaintenanceError says
        that it could not be kept.
        """
        self._windows[name] = _Window(self._clock.boottime() + min(seconds, LONGEST), by)
        self._write()

    def end(self, name: str) -> bool:
        """End a backend's window; False where there was none. Raises MaintenanceError as `begin` does."""
        stood = self.standing(name) is not None
        if self._windows.pop(name, None) is not None:
            self._write()
        return stood

    def _read(self) -> dict[str, _Window]:
        told: dict[str, dict[str, Any]] = json.loads(self._path.read_text(encoding="utf-8"))
        now, wall = self._clock.boottime(), self._clock.wall()
        left = {name: min(float(window["until"]) - wall, LONGEST) for name, window in told.items()}
        return {name: _Window(now + left[name], clean(str(told[name]["by"]))) for name in told if left[name] > 0}

    def _write(self) -> None:
        now, wall = self._clock.boottime(), self._clock.wall()
        standing = {name: window for name, window in self._windows.items() if window.until > now}
        told = {name: {"until": wall + window.until - now, "by": window.by} for name, window in standing.items()}
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            new.write_text(json.dumps(told) + "\n", encoding="utf-8")
            os.replace(new, self._path)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise MaintenanceError(f"{self._path} cannot be written: {reason}; a restart of ours forgets it") from error
