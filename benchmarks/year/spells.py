"""What happens to model servers that are well: none of it must ever be restarted."""

from __future__ import annotations

import dataclasses

from factory_watchdog.core.model import Settings
from factory_watchdog.simulate.script import Behaviour, Engine, Way
from year.weather import IDLE, REFUSED, STALL, TIMEOUT, Episodes, Weather, status, stuck


def traffic(w: Weather) -> None:
    for _ in range(w.rng.randint(1, 8)):
        w.add(w.between(8, 300), *w.engines())
        if w.rng.random() < 0.5:
            w.add(w.between(2, 90))


def quiet(w: Weather) -> None:
    w.add(w.between(60, 3000))


def long_prefill(w: Weather) -> None:
    """One prompt for minutes: no step is booked, the cache fills, or the prompt counter moves."""
    fills = Engine(running=1, waiting=w.rng.randint(0, 3), kv=(0.1, w.between(0.4, 0.95)))
    counts = Engine(running=1, prompt=w.between(0.5, 500), kv=(0.3, 0.3))
    w.add(w.between(60, 900), *w.one_of(w.rng.choice((fills, counts))))
    w.settle()


def compiles(w: Weather) -> None:
    """A kernel is compiled in the middle of traffic: everything stands for 30 to 70 s."""
    w.add(w.between(30, 70), *(stuck(e) if e.running else e for e in w.engines()))
    w.settle()


def compiles_first(w: Weather) -> None:
    """Somebody else restarts the server, and its first request compiles for minutes."""
    w.new_life()
    waits = w.between(130, Settings().first_outcome - 60)
    w.add(w.machine.load_time + waits, *w.first_requests())
    w.settle()


def stalls(w: Weather) -> None:
    """Stalls shorter than the window, one after the other."""
    for _ in range(w.rng.randint(1, 4)):
        engine = stuck(dataclasses.replace(w.busy(), running=w.rng.choice((0, 3)), waiting=2))
        w.add(w.between(5, STALL), *w.one_of(engine))
        w.settle()


def idle_stall(w: Weather) -> None:
    """Nobody is there, and for a while no question is answered."""
    w.add(w.between(30, 400))
    w.add(w.between(5, STALL), stuck(IDLE))
    w.add(w.between(60, 900))


def slow_decode(w: Weather) -> None:
    w.add(
        w.between(200, 2000),
        *w.one_of(Engine(running=1, steps=1 / w.between(1, 60), tokens=1 / 60, kv=(0.7, 0.7))),
    )
    w.settle()


def saturated(w: Weather) -> None:
    engine = dataclasses.replace(w.busy(), running=32, waiting=200)
    w.add(w.between(300, 2400), dataclasses.replace(engine, question=TIMEOUT))


def long_step(w: Weather) -> None:
    """One step of minutes on a CPU, which the host evidence shows."""
    if not w.machine.slow:
        return compiles(w)
    w.add(w.between(60, 330), stuck(Engine(running=1, kv=(0.5, 0.5))), cpu=w.between(0.4, 2.0))
    return w.settle()


def pause(w: Weather) -> None:
    """Paused with requests kept, or asleep without any."""
    if w.rng.random() < 0.5 and w.machine.pause_signs:
        w.add(w.between(5, 3000), w.frozen(), paused=True)
    else:
        w.add(w.between(5, 3000), stuck(IDLE), asleep=True)
    w.settle()


def maintenance(w: Weather) -> None:
    engine = w.rng.choice((w.frozen(), stuck(IDLE), w.busy()))
    w.add(w.between(30, 1800), engine, maintenance=True)
    w.settle()


def batch_job(w: Weather) -> None:
    """A job holds the busy flag; the server works, or nobody uses it."""
    for _ in range(w.rng.randint(1, 5)):
        w.add(w.between(20, 900), *w.rng.choice((w.engines(), (IDLE,))), flag="locked")


def health_trouble(w: Weather) -> None:
    trouble = w.rng.choice((TIMEOUT, status(500), status(503), Behaviour(Way.RESET), Behaviour(delay=5.0)))
    w.add(w.between(20, 900), *w.engines(), health=trouble)
    w.settle()


def metrics_trouble(w: Weather) -> None:
    ways = (Behaviour(Way.EMPTY), Behaviour(Way.GARBAGE), Behaviour(Way.RESET), Behaviour(delay=8.0))
    trouble = w.rng.choice((TIMEOUT, status(500), *ways))
    w.add(w.between(20, 1800), *w.rng.choice((w.engines(), (IDLE,))), metrics=trouble)
    w.settle()


def silent_for_a_while(w: Weather) -> None:
    w.add(w.between(10, 500), *w.engines(), health=TIMEOUT, metrics=TIMEOUT)
    w.settle()


def refuses_briefly(w: Weather) -> None:
    w.add(w.between(1, 25), IDLE, health=REFUSED, metrics=REFUSED)
    w.settle()


def odd_answers(w: Weather) -> None:
    """Questions get answers that say nothing against the server, at least not for so long."""
    answers = (status(503), status(429), status(401), status(404), Behaviour(Way.EMPTY, 0.3))
    w.add(w.between(30, STALL), dataclasses.replace(IDLE, question=w.rng.choice(answers)))
    w.settle()


def unit_reloads(w: Weather) -> None:
    w.add(w.between(2, 60), *w.engines(), unit="reloading")


def operator_stops(w: Weather) -> None:
    w.add(w.between(2, 90), w.rng.choice((w.busy(), w.frozen())), unit="deactivating")
    w.add(w.between(30, 3600), IDLE, unit="inactive", health=REFUSED, metrics=REFUSED)
    w.new_life()
    w.settle(life=True)


def restarted_by_other(w: Weather) -> None:
    w.new_life()
    w.settle(life=True)


SPELLS: Episodes = (
    (traffic, 30),
    (quiet, 20),
    (long_prefill, 4),
    (compiles, 4),
    (compiles_first, 1),
    (stalls, 4),
    (idle_stall, 3),
    (slow_decode, 2),
    (saturated, 2),
    (long_step, 2),
    (pause, 3),
    (maintenance, 1),
    (batch_job, 2),
    (health_trouble, 3),
    (metrics_trouble, 3),
    (silent_for_a_while, 1),
    (refuses_briefly, 1),
    (odd_answers, 2),
    (unit_reloads, 1),
    (operator_stops, 1),
    (restarted_by_other, 1),
)
