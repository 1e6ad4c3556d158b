"""The daemon beside a real vLLM that stands still and is well: paused with its requests kept, or inside one step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

Load = Callable[..., Any]

LONG = 8000  # tokens of an answer that outlasts every test
LOOKS = 6  # looks of 2 s: longer than `hang_after`


def order(server: Any, path: str) -> None:
    """Send an order of development mode; it must be taken."""
    assert server.post(path).reply.status == 200


@pytest.fixture
def life(whole: Any, watchdog: Any) -> Any:
    """Which run of its unit it is; afterwards it must still be that one, with no restart and no alert, and resumed."""
    before = whole.invocation
    yield before
    order(whole, "/resume")
    assert (whole.invocation, watchdog.restarts(whole.name), watchdog.host.alerts(whole.name)) == (before, [], [])


@pytest.mark.usefixtures("life")
def test_paused_with_requests_kept_is_paused_until_resumed(whole: Any, load: Load, watchdog: Any) -> None:
    with load(whole, 2, max_tokens=LONG):
        whole.shows(running=2)
        watchdog.watch(whole)
        watchdog.host.becomes("busy", whole.name)
        order(whole, "/pause?mode=keep")
        watchdog.host.becomes("paused", whole.name)
        watchdog.host.looks_on(LOOKS, whole.name)
        assert watchdog.host.told(whole.name)["why"].startswith("paused, says /is_paused, for 1")
        assert whole.sample().running == 2
        order(whole, "/resume")
        watchdog.host.becomes("busy", whole.name)
    assert watchdog.questions(whole.name) == []
    assert set(watchdog.states(whole.name)) <= {"busy", "paused", "idle"}


@pytest.mark.usefixtures("life")
def test_paused_while_idle_is_seen_by_a_question_that_fails(whole: Any, load: Load, watchdog: Any) -> None:
    """Requests that come meanwhile show in no gauge at first: until it is asked, the server looks idle."""
    watchdog.watch(whole)
    watchdog.host.becomes("idle", whole.name)
    order(whole, "/pause?mode=keep")
    with load(whole, 2, max_tokens=20) as clients:
        watchdog.host.becomes("paused", whole.name, 30.0)
        watchdog.host.looks_on(LOOKS, whole.name)
        assert watchdog.host.told(whole.name)["state"] == "paused"
        assert clients.results == []
        order(whole, "/resume")
        clients.join(30.0)
    assert clients.failed == []
    watchdog.host.becomes("idle", whole.name)
    assert watchdog.questions(whole.name)[0] == ("idle", "failed")
    assert watchdog.states(whole.name)[:2] == ["idle", "paused"]


@pytest.mark.usefixtures("life")
def test_one_step_longer_than_hang_after_is_asked_at_most_once(whole: Any, load: Load, watchdog: Any) -> None:
    """The server looks idle, and nothing moves: a question of ours falls into the step and fails."""
    watchdog.watch(whole, interval="5s", hang_after="30s", question_every="30s", question_timeout="5s")
    watchdog.host.becomes("idle", whole.name)
    before, began = whole.sample(), time.monotonic()
    with load(whole, 1, prompt=8000, max_tokens=1) as clients:
        watchdog.host.becomes("suspect", whole.name, 60.0)
        now = whole.sample()
        assert (now.running, now.steps, now.kv) == (0, before.steps, 0)
        clients.join(90.0)
    assert clients.failed == []
    assert time.monotonic() - began > 40, "this machine is faster than the slow model was made for: see SIZES"
    watchdog.host.becomes("idle", whole.name)
    assert watchdog.questions(whole.name) == [("idle", "failed")]
    assert watchdog.states(whole.name) == ["idle", "suspect", "idle"]
