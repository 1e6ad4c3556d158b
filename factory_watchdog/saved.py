"""A backend's state as it is kept across our own death, with the clocks that it was written by.

Times inside are CLOCK_BOOTTIME, which begins anew with each boot of the host. What must outlive a boot (the restarts
that count against the budget) is moved over by the wall clock; everything else is of the boot it was seen in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from factory_watchdog.core.memory import Backend, Phase, Recovery
from factory_watchdog.core.recovery import resume
from factory_watchdog.errors import WatchdogError

FORMAT = 1
"""Raised whenever an older release could misread the saved state."""


class SavedStateError(WatchdogError):
    """A saved state cannot be read back; the backend begins afresh."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A state with the moment of its writing on both clocks, and the boot that the first one belongs to."""

    format: int
    boot_id: str
    boottime: float
    wall: float
    backend: Backend


@dataclass(frozen=True, slots=True)
class _Kind:
    """What every release can read of a saved state."""

    format: int


def encode(backend: Backend, boot_id: str, boottime: float, wall: float) -> bytes:
    """The state as JSON."""
    return msgspec.json.encode(Saved(FORMAT, boot_id, boottime, wall, backend))


def decode(text: bytes) -> Saved:
    """The state as it was written. Raises SavedStateError."""
    try:
        kind = msgspec.json.decode(text, type=_Kind).format
        if kind != FORMAT:
            raise SavedStateError(f"a saved state has format {kind}, this release reads {FORMAT}")
        return msgspec.json.decode(text, type=Saved)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SavedStateError(f"a saved state cannot be read ({error})") from None


def taken_up(text: bytes, boot_id: str, boottime: float, wall: float) -> Backend:
    """The state with which a daemon goes on. Raises SavedStateError.

    In the same boot: clocks start again, a restart under way goes on. In another one nothing is left but the budget
    and what a restart costs.
    """
    saved = decode(text)
    if saved.boot_id == boot_id:
        return resume(saved.backend)
    behind = boottime - saved.boottime - max(0.0, wall - saved.wall)
    return _after_boot(saved.backend, behind)


def _after_boot(backend: Backend, behind: float) -> Backend:
    """Restarts of an earlier boot, at times of this one (before its beginning: negative)."""
    recovery = backend.recovery
    restarts = tuple(t + behind for t in recovery.restarts)
    if recovery.phase.restarting:
        recovery = replace(recovery, phase=Phase.SERVE, since=recovery.since + behind, restarts=restarts)
    else:
        recovery = Recovery(attempt=recovery.attempt, restarts=restarts)
    return Backend(recovery=recovery, restart_cost=backend.restart_cost)
