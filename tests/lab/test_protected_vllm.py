"""The daemon beside a real vLLM: what works is left alone and not asked, what is frozen is proven and restarted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

Load = Callable[..., Any]

COUNTERS = ("steps", "prompt", "generated", "finished")
LONG = 8000  # tokens of an answer that outlasts every test
MIB = 1024 * 1024
RESIDENT = 56 * MIB  # the daemon's own budget


# --- left alone ------------------------------------------------------------------------------------------------------


def test_a_saturated_server_is_busy_for_a_minute_and_not_asked(small: Any, load: Load, watchdog: Any) -> None:
    """Every POST that the server counts is one of the twelve clients': none is ours."""
    posts, finished = small.posts(), small.sample().finished
    with load(small, 12, max_tokens=200, repeat=True) as clients:
        small.shows(running=4, waiting=8)
        watchdog.watch(small, interval="5s")
        watchdog.host.becomes("busy", small.name)
        watchdog.host.looks_on(12, small.name)
        assert watchdog.states(small.name) == ["busy"]
        assert watchdog.resident() < RESIDENT
        clients.finish(30.0)
    assert clients.failed == []
    assert small.posts() - posts == len(clients.results)
    assert small.sample().finished - finished == len(clients.results)
    assert watchdog.questions(small.name) == []
    assert watchdog.host.alerts(small.name) == []


def test_clients_that_leave_make_it_idle(small: Any, load: Load, watchdog: Any) -> None:
    with load(small, 4, max_tokens=LONG):
        small.shows(running=4, waiting=0)
        watchdog.watch(small)
        watchdog.host.becomes("busy", small.name)
    watchdog.host.becomes("idle", small.name)
    assert watchdog.states(small.name) == ["busy", "idle"]
    assert watchdog.host.alerts(small.name) == []


def test_a_long_prompt_is_busy_while_every_counter_stands_still(slow: Any, load: Load, watchdog: Any) -> None:
    """Nothing moves but the cache, with every step of 512 tokens, for longer than `hang_after`."""
    idle, life = slow.sample(), slow.invocation
    with load(slow, 1, prompt=8000, max_tokens=1) as clients:
        slow.shows(running=1)
        watchdog.watch(slow, interval="10s", hang_after="30s")
        samples = []
        while not clients.results:
            samples.append((time.monotonic(), slow.sample()))
            time.sleep(0.5)  # the pace of looking; nothing is waited for
    assert clients.failed == []
    prefill = [(at, sample) for at, sample in samples if sample.generated == idle.generated and sample.running]
    assert {tuple(getattr(sample, name) for name in COUNTERS) for _, sample in prefill} == {
        tuple(getattr(idle, name) for name in COUNTERS)
    }
    assert prefill[-1][0] - prefill[0][0] > 40, "this machine is faster than the slow model was made for: see SIZES"
    rises = [prefill[0][0]] + [at for (_, a), (at, b) in itertools.pairwise(prefill) if a.kv != b.kv] + [prefill[-1][0]]
    assert max(later - earlier for earlier, later in itertools.pairwise(rises)) < 10
    assert watchdog.states(slow.name) in (["busy"], ["busy", "idle"])  # idle at a look after the answer
    assert watchdog.questions(slow.name) == []
    assert (slow.invocation, watchdog.restarts(slow.name), watchdog.host.alerts(slow.name)) == (life, [], [])


# --- protected -------------------------------------------------------------------------------------------------------


def test_a_worker_frozen_while_busy_is_proven_hung_and_restarted_once(small: Any, load: Load, watchdog: Any) -> None:
    hang_after, interval, question = 20, 5, 10  # seconds
    life = small.invocation
    with load(small, 4, max_tokens=LONG):
        small.shows(running=4, waiting=0)
        watchdog.watch(small, interval=f"{interval}s", hang_after=f"{hang_after}s", question_timeout=f"{question}s")
        watchdog.host.becomes("busy", small.name)
        small.freeze("worker")
        frozen = time.monotonic()
        why = watchdog.host.alerted("restart", hang_after + 3 * interval + question, small.name)
        assert time.monotonic() - frozen > hang_after - interval  # it may have been still since the look before
        assert "4 running and 0 waiting requests stand still for " in why
        watchdog.host.alerted("served", 90.0, small.name)
    watchdog.host.becomes("idle", small.name)
    assert watchdog.user() == "factory-watchdog"
    assert small.invocation not in ("", life)
    assert watchdog.host.starts(small.unit) == 1
    assert watchdog.states(small.name)[:3] == ["busy", "suspect", "hung"]
    assert watchdog.questions(small.name) == [("confirm", "failed"), ("serve", "answered")]
    assert watchdog.restarts(small.name) == ["served"]
    assert watchdog.host.alerts(small.name) == ["hung", "restart", "served"]
    proof = watchdog.host.explained(1)["proof"]
    assert (proof["state"], proof["rule"], proof["reading"]["unit"]["invocation"]) == ("hung", "flat", life)
    assert len(proof["readings"]) >= hang_after / interval
    assert watchdog.host.faults() == []
    assert small.ask().outcome == "answered"


def test_a_frozen_api_server_is_blind_and_restarted_after_silent_after(small: Any, watchdog: Any) -> None:
    silent_after, interval, question = 10, 2, 5  # seconds; a look at a silent server takes all of its interval
    life = small.invocation
    watchdog.watch(small, interval=f"{interval}s", silent_after=f"{silent_after}s", question_timeout=f"{question}s")
    watchdog.host.becomes("idle", small.name)
    small.freeze("api")
    frozen = time.monotonic()
    watchdog.host.becomes("blind", small.name)
    why = watchdog.host.alerted("restart", silent_after + 6 * interval + question, small.name)
    assert time.monotonic() - frozen > silent_after
    assert "every endpoint accepts connections and says nothing, for " in why
    watchdog.host.alerted("served", 90.0, small.name)
    assert small.invocation not in ("", life)
    assert watchdog.states(small.name)[:3] == ["idle", "blind", "suspect"]
    assert watchdog.questions(small.name)[-2:] == [("confirm", "failed"), ("serve", "answered")]
    assert watchdog.restarts(small.name) == ["served"]
    assert watchdog.host.alerts(small.name) == ["hung", "restart", "served"]
    assert watchdog.host.faults() == []


def test_an_engine_that_died_is_left_to_systemd(small: Any, watchdog: Any) -> None:
    """vLLM ends by itself, with status 0, and with Restart=always systemd starts it again."""
    small.box.write(f"/run/systemd/system/{small.unit}.d/always.conf", "[Service]\nRestart=always\nRestartSec=3s\n")
    small.box.systemctl("daemon-reload")
    life = small.invocation
    watchdog.watch(small)
    watchdog.host.becomes("idle", small.name)
    small.kill("engine")
    watchdog.host.becomes("starting", small.name)
    watchdog.host.becomes("idle", small.name, 90.0)
    watchdog.host.looks_on(3, small.name)
    assert small.invocation not in ("", life)
    assert (small.box.show(small.unit, "NRestarts"), watchdog.host.starts(small.unit)) == ("1", 1)
    assert watchdog.host.told(small.name)["state"] == "idle"
    assert (watchdog.restarts(small.name), watchdog.host.alerts(small.name)) == ([], [])
    assert small.ask().outcome == "answered"
    small.box.path(f"/run/systemd/system/{small.unit}.d/always.conf").unlink()
    small.box.systemctl("daemon-reload")
