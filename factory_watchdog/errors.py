"""The errors that the program expects; their text says what is wrong and, where it can, what would be right."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


class WatchdogError(Exception):
    """Base of all expected errors; its text is meant for people."""


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a configuration file.

    `place` is the table ('backend "spark1"', empty at the top of the file), `key` the setting (empty where the whole
    table is meant), `value` the value as written (empty where none was given), `what` says what is wrong and what would
    be right.
    """

    file: str
    place: str
    key: str
    value: str
    what: str

    def __str__(self) -> str:
        entry = f"{self.key} = {self.value}" if self.value else self.key
        return ": ".join(part for part in (self.file, self.place, entry, self.what) if part)


class ConfigError(WatchdogError):
    """The configuration cannot be used; `problems` has everything that is wrong with it, the text one line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class StoreError(WatchdogError):
    """The history or the saved state cannot be read or written."""


class RuntimeFilesError(WatchdogError):
    """The files that tell others the state cannot be written."""


class ControlError(WatchdogError):
    """The control socket cannot be opened or used, or what came over it cannot be understood."""


class NoDaemonError(ControlError):
    """Nobody answers on the control socket."""


class AnotherDaemonError(ControlError):
    """Another daemon has the control socket: two would ask and restart twice."""
