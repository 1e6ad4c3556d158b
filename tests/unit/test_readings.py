"""The readings that a proof takes along: how far back, how many, and what is never thinned."""

from itertools import pairwise

import pytest

from factory_watchdog.core.model import NOT_ASKED, Reading
from factory_watchdog.readings import BEYOND, MOST, NEWEST, Readings

HOUR = 3600.0


def reading(ended: float) -> Reading:
    return Reading(ended - 0.01, ended, NOT_ASKED, NOT_ASKED)


def kept(reach: float, interval: float, seconds: float, since: float | None = None) -> list[float]:
    """When the readings ended that are kept of so many seconds; a suspicion stands from `since` on."""
    readings = Readings(reach)
    for number in range(int(seconds / interval) + 1):
        at = number * interval
        readings.add(reading(at), since if since is not None and at >= since else None)
    return [one.ended for one in readings]


def test_the_usual_window_is_kept_whole() -> None:
    times = kept(120.0 + BEYOND, 10.0, 5 * HOUR)
    assert times == [5 * HOUR - 10.0 * n for n in range(24, -1, -1)]


def test_a_suspicion_older_than_the_window_is_kept_from_before_its_beginning() -> None:
    times = kept(120.0 + BEYOND, 10.0, HOUR, since=HOUR - 900.0)
    assert times[0] == HOUR - 900.0 - BEYOND
    assert times == [times[0] + 10.0 * n for n in range(len(times))]


@pytest.mark.parametrize("since", [None, 0.7 * HOUR + 0.25])
def test_a_long_window_at_a_short_interval_is_thinned_evenly(since: float | None) -> None:
    reach = HOUR + BEYOND
    times = kept(reach, 0.25, 1.2 * HOUR, since)
    assert len(times) == MOST
    assert times[-NEWEST:] == [1.2 * HOUR - 0.25 * n for n in range(NEWEST - 1, -1, -1)]
    older = times[:-NEWEST]
    spaces = [b - a for a, b in pairwise(older)]
    assert max(spaces) <= 3 * reach / (MOST - NEWEST)
    assert times[0] <= 1.2 * HOUR - reach + max(spaces)
    assert since is None or since in times


def test_a_suspicion_of_a_day_costs_no_more_memory_than_another() -> None:
    times = kept(120.0 + BEYOND, 10.0, 24 * HOUR, since=600.0)
    assert len(times) == MOST
    assert (times[0], 600.0 in times) == (600.0 - BEYOND, True)
