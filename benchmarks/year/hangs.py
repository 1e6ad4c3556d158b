"""Hangs of every kind: each must be found within its bound, and restarted where nothing holds it."""

from __future__ import annotations

import dataclasses
from typing import Any

from factory_watchdog.simulate.script import Engine
from year.weather import IDLE, REFUSED, STALL, TIMEOUT, Episodes, Weather, status, stuck


def with_requests(w: Weather) -> None:
    w.settle()
    w.hang("frozen with requests", "requests", w.frozen())


def blinking(w: Weather) -> None:
    """In the middle of it the metrics cannot be read for a while."""
    w.settle()
    engine = dataclasses.replace(w.frozen(), kv=(0.5, 0.5))
    start, quiet = w.now, w.between(12, 40)
    w.add(quiet, engine)
    w.add(w.between(5, 40), engine, metrics=w.rng.choice((TIMEOUT, status(500))))
    w.hang("frozen, metrics blink", "requests", engine)
    w.hangs[-1].begin = start


def one_engine(w: Weather) -> None:
    if w.machine.engines == 1:
        return with_requests(w)
    w.settle()
    return w.hang("one engine of two", "requests", *w.one_of(w.frozen()))


def one_idle_engine(w: Weather) -> None:
    if w.machine.engines == 1:
        return while_idle(w)
    w.settle()
    place = w.rng.randrange(2)
    return w.hang("one idle engine of two", "idle", *(stuck(IDLE) if i == place else IDLE for i in range(2)))


def queue(w: Weather) -> None:
    w.settle()
    waiting = w.rng.randint(1, 30)
    w.hang("queue stuck", "requests", stuck(Engine(waiting=waiting)))


def while_idle(w: Weather) -> None:
    w.settle()
    w.add(w.rng.choice((0.0, w.between(10, 2000))))
    w.hang("frozen while idle", "idle", stuck(IDLE))


def idle_then_requests(w: Weather) -> None:
    """It froze while nobody was there; then the users come.

    A question of ours may be out by then. Two requests and no more cannot be told from what that question and the
    confirming one leave behind in the gauges, so such a server is found as an idle one is.
    """
    w.settle()
    w.add(w.between(5, STALL), stuck(IDLE))
    engine = w.frozen()
    if engine.running + engine.waiting > 2:
        w.hang("frozen idle, then requests", "requests", engine)
    else:
        w.hang("frozen idle, then one or two", "idle", engine)


def first_request(w: Weather) -> None:
    """Somebody else restarts the server, and its first requests never come back."""
    w.new_life()
    w.hang("frozen at first request", "first request", *w.first_requests(), begin=w.machine.load_time)


def spinning(w: Weather) -> None:
    if not w.machine.slow:
        return with_requests(w)
    w.settle()
    return w.hang("frozen, CPU spins", "spinning", w.frozen(), cpu=1.0)


def silent(w: Weather) -> None:
    w.settle()
    mute: dict[str, Any] = {"health": TIMEOUT, "metrics": TIMEOUT, "models": TIMEOUT}
    w.hang("API frozen, silent", "silent", w.rng.choice((w.frozen(), stuck(IDLE))), **mute)


def core_dead(w: Weather) -> None:
    w.settle()
    engine = dataclasses.replace(w.rng.choice((w.frozen(), IDLE)), question=status(500))
    w.hang("core dead, says 503", "says dead", engine, health=status(503))


def errors(w: Weather) -> None:
    """Errors from the first question of a life on are a server that cannot be asked: so one is answered before."""
    w.settle()
    w.add(w.between(100, 900))
    w.hang("idle, questions get 500", "idle", dataclasses.replace(IDLE, question=status(500)))


def refused(w: Weather) -> None:
    w.settle()
    engine = dataclasses.replace(IDLE, question=REFUSED)
    w.hang("refuses after serving", "refused", engine, health=REFUSED, metrics=REFUSED)


def under_flag(w: Weather) -> None:
    """It freezes while a batch job holds the flag: nothing may be done before the job has ended."""
    w.settle()
    engine = dataclasses.replace(w.frozen(), kv=(0.5, 0.5))
    start = w.now
    w.add(w.between(60, 1200), engine, flag="locked")
    w.hang("frozen under a busy flag", "requests", engine)
    w.hangs[-1].begin = start


HANGS: Episodes = (
    (with_requests, 0.6),
    (blinking, 0.3),
    (one_engine, 0.6),
    (one_idle_engine, 0.4),
    (queue, 0.4),
    (while_idle, 0.6),
    (idle_then_requests, 0.4),
    (first_request, 0.3),
    (spinning, 0.4),
    (silent, 0.4),
    (core_dead, 0.4),
    (errors, 0.3),
    (refused, 0.4),
    (under_flag, 0.3),
)
"""By these weights about four a day and backend."""
