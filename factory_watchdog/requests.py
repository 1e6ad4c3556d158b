"""What comes over the control socket: questions about backends, and an operator's orders, with the caller recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from factory_watchdog.core.forecast import forecast
from factory_watchdog.core.model import ResetAsked
from factory_watchdog.errors import ControlError
from factory_watchdog.recorder import Recorder
from factory_watchdog.status import status_of
from factory_watchdog.watcher import Watcher
from factory_watchdog.world.clock import Clock
from factory_watchdog.world.control_server import Caller
from factory_watchdog.world.maintenance import LONGEST, Maintenance, MaintenanceError

Reply = dict[str, Any]


@dataclass(frozen=True)
class Requests:
    """Answers them. `watchers` gives the watch of each backend by name, as they are now."""

    watchers: Callable[[], Mapping[str, Watcher]]
    recorder: Recorder
    clock: Clock
    maintenance: Maintenance

    async def answer(self, request: Mapping[str, Any], caller: Caller) -> Reply:
        """The reply to one request. Raises ControlError, whose text the caller gets."""
        by = f"uid {caller.uid}"
        match request.get("command"):
            case "status":
                return {"backends": [self._status(watcher) for watcher in self._named(request, every=True)]}
            case "explain":
                return {"backends": [self._explained(watcher) for watcher in self._named(request, every=True)]}
            case "reset":
                return self._reset(self._named(request)[0], by)
            case "restart":
                return await self._restart(self._named(request)[0], by)
            case "maintenance":
                return self._maintain(self._named(request)[0], request.get("seconds"), by)
            case other:
                known = "status, explain, reset, restart, maintenance"
                raise ControlError(f"unknown command {other!r}; known are {known}")

    def _named(self, request: Mapping[str, Any], *, every: bool = False) -> tuple[Watcher, ...]:
        watchers, name = self.watchers(), request.get("name")
        if name is None and every:
            return tuple(watchers.values())
        if not isinstance(name, str) or name not in watchers:
            raise ControlError(f"unknown backend {name!r}; known are {', '.join(watchers)}")
        return (watchers[name],)

    def _status(self, watcher: Watcher) -> Reply:
        told = status_of(watcher.name, watcher.state, self.clock.boottime(), self.clock.wall())
        return {**told, "tokens_per_second": watcher.tokens_per_second}

    def _explained(self, watcher: Watcher) -> Reply:
        sentences = forecast(watcher.state, watcher.settings, self.clock.boottime())
        return {**self._status(watcher), "explained": list(sentences)}

    def _reset(self, watcher: Watcher, by: str) -> Reply:
        self.recorder.ordered(watcher.name, "reset", by)
        watcher.feed(ResetAsked(by))
        self.recorder.save(watcher.name, watcher.state)
        return {}

    async def _restart(self, watcher: Watcher, by: str) -> Reply:
        self.recorder.ordered(watcher.name, "restart", by)
        reason = await watcher.order_restart(by)
        if reason is not None:
            raise ControlError(f"{watcher.name} is not restarted: {reason}")
        return {"attempt": watcher.state.recovery.attempt}

    def _maintain(self, watcher: Watcher, seconds: object, by: str) -> Reply:
        """Set a backend aside for `seconds`, or with None end that."""
        name = watcher.name
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST
        ):
            raise ControlError(f"seconds = {seconds!r}: must be a number above 0 and at most {LONGEST:g}")
        self.recorder.ordered(name, "maintenance", by, seconds=seconds)
        ended, warning = False, ""
        try:
            if seconds is None:
                ended = self.maintenance.end(name)
            else:
                self.maintenance.begin(name, float(seconds), by)
        except MaintenanceError as error:
            warning = str(error)
            self.recorder.report(warning)
        watcher.look()
        return {"ended": ended, "warning": warning}
