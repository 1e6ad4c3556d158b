"""The two clocks: one that decides, one that labels."""

from __future__ import annotations

import time
from typing import Protocol


def boottime() -> float:
    """Seconds since boot that go on during suspend (CLOCK_BOOTTIME); every decision is made in these."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall() -> float:
    """Seconds since 1970 (CLOCK_REALTIME); it may jump, so it only labels."""
    return time.time()


class Clock(Protocol):
    """Both clocks, so that virtual ones can take their place."""

    def boottime(self) -> float: ...

    def wall(self) -> float: ...


class HostClock:
    """The clocks of this host."""

    def boottime(self) -> float:
        return boottime()

    def wall(self) -> float:
        return wall()
