"""The daemon beside a real vLLM that freezes, again and again: what goes on by itself is left alone.

The short form runs with the lab. The long one (`make soak`) takes its time, and ends with a table of detection times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

Load = Callable[..., Any]
Detected = Callable[[str, float], None]

LONG = 8000  # tokens of an answer that outlasts every freeze
WINDOW = 20  # seconds of `hang_after`: the longest of the short freezes must stay well below it on a slow machine
SOON = 60.0  # seconds for what takes a few: a starved server takes several for a page
SERVED = 180.0  # seconds from a restart to the first token; 25 to 60, most of it imports


@pytest.fixture
def detected(record_property: Callable[[str, object], None]) -> Detected:
    """Note how long a freeze took to be found: `detected("engine, busy", since)`, `since` by time.monotonic()."""
    return lambda what, since: record_property("detected", (what, time.monotonic() - since))


# --- short -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [5])
def test_freezes_shorter_than_the_window_are_left_alone_and_one_that_all_clients_leave_is_not(
    rounds: int, small: Any, load: Load, watchdog: Any, detected: Detected
) -> None:
    """Together the short freezes are longer than `hang_after`; after the last the gauges show its requests for good."""
    life, held = small.invocation, 0.0
    with load(small, 4, max_tokens=LONG, repeat=True) as clients:
        small.shows(running=4, waiting=0)
        watchdog.watch(small, interval="1s", hang_after=f"{WINDOW}s")
        watchdog.host.becomes("busy", small.name, SOON)
        for turn in range(rounds):
            held += freeze_for_a_while(small, watchdog, ("engine", "worker")[turn % 2])
        assert held > WINDOW
        assert (small.invocation, watchdog.restarts(small.name), watchdog.host.alerts(small.name)) == (life, [], [])
        assert watchdog.questions(small.name) == []
        assert clients.failed == []
        small.freeze("worker")
        frozen = time.monotonic()
        watchdog.host.becomes("suspect", small.name, SOON)
    assert small.sample().running == 4  # all clients have gone
    why = watchdog.host.alerted("restart", WINDOW + SOON, small.name)
    detected("worker, busy, all clients leave", frozen)
    assert "4 running and 0 waiting requests stand still for " in why
    watchdog.host.alerted("served", SERVED, small.name)
    assert (small.invocation in ("", life), watchdog.host.starts(small.unit)) == (False, 1)
    assert watchdog.restarts(small.name) == ["served"]
    assert watchdog.host.faults() == []


def freeze_for_a_while(server: Any, watchdog: Any, role: str) -> float:
    """Freeze until the daemon has seen it for some looks, thaw, and wait until work moves; the seconds frozen."""
    server.freeze(role)
    frozen = time.monotonic()
    watchdog.host.becomes("suspect", server.name, SOON)
    watchdog.host.looks_on(4, server.name)
    server.thaw(role)
    seconds = time.monotonic() - frozen
    watchdog.host.becomes("busy", server.name, SOON)
    return seconds


def test_a_worker_frozen_while_idle_is_hung_though_a_request_that_comes_then_shows_nowhere(
    small: Any, load: Load, watchdog: Any, detected: Detected
) -> None:
    """In observe mode, so that it can go on: it then answers the request, and is idle as before."""
    watchdog.watch(small, interval="1s", question_timeout="3s", mode="observe")
    life = small.invocation
    watchdog.host.becomes("idle", small.name, SOON)
    small.freeze("worker")
    frozen = time.monotonic()
    with load(small, 1, max_tokens=20) as clients:
        watchdog.host.alerted("hung", 2 * SOON, small.name)
        detected("worker, idle, then a request", frozen)
        watchdog.host.alerted("held", SOON, small.name)
        assert clients.results == []
        small.thaw("worker")
        clients.join(SOON)
    assert clients.failed == []
    watchdog.host.becomes("idle", small.name, SOON)
    assert (small.invocation, watchdog.restarts(small.name)) == (life, [])
    assert watchdog.host.alerts(small.name)[:2] == ["hung", "held"]
    assert watchdog.host.faults() == []


# --- long ------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_an_engine_core_frozen_while_busy_is_restarted(
    small: Any, load: Load, watchdog: Any, detected: Detected
) -> None:
    life = small.invocation
    with load(small, 4, max_tokens=LONG, repeat=True):
        small.shows(running=4, waiting=0)
        watchdog.watch(small, hang_after=f"{WINDOW}s")
        watchdog.host.becomes("busy", small.name, SOON)
        small.freeze("engine")
        frozen = time.monotonic()
        watchdog.host.alerted("restart", WINDOW + SOON, small.name)
        detected("engine core, busy", frozen)
        assert time.monotonic() - frozen > WINDOW / 2
        watchdog.host.alerted("served", SERVED, small.name)
        watchdog.host.becomes("busy", small.name, SOON)
    assert (small.invocation in ("", life), watchdog.host.starts(small.unit)) == (False, 1)
    assert watchdog.restarts(small.name) == ["served"]
    assert watchdog.host.faults() == []
