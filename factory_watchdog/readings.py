"""The readings of one backend that go into the proof of a restart, the oldest first.

Kept are those of the last `reach` seconds, and where a suspicion is older than that, those since its beginning and
`BEYOND` before it. They are at most `MOST`: beyond that they are thinned evenly, so that a long window at a short
interval loses detail in its middle and never its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator

from factory_watchdog.core.model import Reading

BEYOND = 120.0
"""Seconds of readings kept from before a window or a suspicion, to show how it was until then."""

MOST = 240
"""Readings kept: all of the usual window of two minutes, and one for every 20 s of an hour's."""

NEWEST = 60
"""Readings that are never thinned: the confirmation and the moments before it are seen as they were polled."""


class Readings:
    """The readings of a backend; `reach` is how many seconds of them are wanted at least."""

    def __init__(self, reach: float) -> None:
        self._reach = reach
        self._kept: list[Reading] = []

    def __iter__(self) -> Iterator[Reading]:
        return iter(self._kept)

    def add(self, reading: Reading, since: float | None) -> None:
        """Take the newest one in. `since`: when what is suspected now began, None for nothing."""
        kept = self._kept
        kept.append(reading)
        oldest = reading.ended - self._reach
        if since is not None:
            oldest = min(oldest, since - BEYOND)
        del kept[: next(i for i, one in enumerate(kept) if one.ended >= oldest)]
        if len(kept) > MOST:
            self._thin(since)

    def _thin(self, since: float | None) -> None:
        """Drop the one that is missed least: not the first, nor the first of the suspicion, nor one of the newest."""
        kept = self._kept
        begins = next((i for i, one in enumerate(kept) if since is not None and one.ended >= since), 0)
        candidates = (i for i in range(1, len(kept) - NEWEST) if i != begins)
        del kept[min(candidates, key=lambda i: kept[i + 1].ended - kept[i - 1].ended)]
