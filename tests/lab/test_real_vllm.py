"""What a real vLLM shows, and that the dialect reads it so. The numbers in docs and rules rest on these."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from factory_watchdog.core.model import Form, Outcome, Sample, Went
from factory_watchdog.engines.vllm import VLLM

Load = Callable[..., Any]

LONG = 8000  # tokens of an answer that outlasts every test: 90 s and more on the small model
APPEARS = 20.0  # seconds within which a change must show in the gauges; a starved server takes some
STILL = 4.0  # seconds of looking at a frozen server

COUNTERS = ("steps", "prompt", "generated", "finished")
SIGNALS = ("running", "waiting", "kv", *COUNTERS)


def signals(sample: Sample) -> tuple[float | None, ...]:
    return tuple(getattr(sample, name) for name in SIGNALS)


def moved(before: Sample, after: Sample) -> tuple[float, ...]:
    """By how much each counter rose."""
    return tuple(getattr(after, name) - getattr(before, name) for name in COUNTERS)


def watch(server: Any, seconds: float) -> list[tuple[float, Sample]]:
    """Samples of this many seconds, two a second, each with its time."""
    began = time.monotonic()
    seen: list[tuple[float, Sample]] = []
    while not seen or seen[-1][0] < began + seconds:
        seen.append((time.monotonic(), server.sample()))
        time.sleep(0.5)  # the pace of looking; nothing is waited for
    return seen


# --- healthy ---------------------------------------------------------------------------------------------------------


def test_an_idle_server_shows_zeros_and_stands_still(small: Any) -> None:
    page = small.page()
    (sample,) = page.engines
    assert page.known
    assert page.start_time is not None
    assert sample.missing == ()
    assert sample.asleep is None
    assert (sample.running, sample.waiting, sample.kv) == (0, 0, 0)
    assert {signals(later) for _, later in watch(small, 1.0)} == {signals(sample)}
    assert small.get("/health").reply.went is Went.OK


def test_without_development_mode_the_pause_paths_are_absent(small: Any) -> None:
    answers = [(path, fetched.reply, fetched.body) for path in VLLM.pause_paths for fetched in [small.get(path)]]
    assert VLLM.read_pause(answers).absent


def test_a_busy_server_moves(small: Any, load: Load) -> None:
    with load(small, 4, max_tokens=LONG):
        small.shows(running=4, waiting=0)
        samples = [small.sample()]
        for _ in range(3):
            small.wait(lambda: small.sample().steps > samples[-1].steps, APPEARS, "a step")
            samples.append(small.sample())
    for earlier, later in itertools.pairwise(samples):
        steps, _, generated, _ = moved(earlier, later)
        assert steps > 0
        assert generated >= steps
    assert {(sample.running, sample.waiting) for sample in samples} == {(4, 0)}


def test_on_a_saturated_server_a_question_waits_in_the_queue_that_it_would_judge(small: Any, load: Load) -> None:
    with load(small, 12, max_tokens=LONG):
        small.shows(running=4, waiting=8)
        before = small.sample()
        assert small.ask(deadline=2.0).outcome is Outcome.FAILED
        assert small.sample().steps > before.steps
        small.shows(running=4, waiting=8)  # given up, ours has left the queue


def test_clients_that_hang_up_leave_an_idle_server(small: Any, load: Load) -> None:
    before = small.sample()
    with load(small, 4, max_tokens=LONG):
        small.shows(running=4, waiting=0)
    small.shows(running=0, waiting=0)
    after = small.sample()
    assert after.kv == 0
    assert after.finished == before.finished  # nobody gets anything from an aborted request


# --- our question ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [Form.CHAT, Form.CHAT_COMPLETION_TOKENS, Form.COMPLETION])
def test_each_form_of_the_question_is_answered_and_counted(small: Any, form: Form) -> None:
    answer = small.ask(form)
    assert answer.outcome is Outcome.ANSWERED
    assert answer.prompt_tokens > 0
    assert answer.completion_tokens == 1


def test_a_text_model_cannot_be_asked_for_an_embedding(small: Any) -> None:
    assert small.ask(Form.EMBEDDING).outcome is Outcome.CANNOT


@pytest.mark.parametrize("form", [Form.CHAT, Form.COMPLETION])
def test_a_question_is_on_the_page_exactly_and_at_once(small: Any, form: Form) -> None:
    """One step, the tokens of its own usage, one finish, no gauge: what is subtracted is what was added."""

    for before, answer, after in small.ask_between_samples(form, 30):
        assert moved(before, after) == (1, answer.prompt_tokens, answer.completion_tokens, 1)
        assert (after.running, after.waiting, after.kv) == (0, 0, 0)


# --- harmed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["worker", "engine"])
def test_a_frozen_engine_shows_its_requests_for_good(small: Any, load: Load, role: str) -> None:
    """All signals still, /health fine, a question unanswered and in no gauge; even when all clients have gone."""
    with load(small, 4, max_tokens=LONG):
        small.shows(running=4, waiting=0)
        small.freeze(role)
        small.wait(lambda: signals(small.sample()) == signals(small.sample()), APPEARS, "the last step")
        frozen = small.sample()
        assert small.ask(deadline=2.0).outcome is Outcome.FAILED
        assert {signals(sample) for _, sample in watch(small, STILL)} == {signals(frozen)}
    assert {signals(sample) for _, sample in watch(small, STILL)} == {signals(frozen)}
    assert (frozen.running, frozen.waiting) == (4, 0)
    assert small.get("/health").reply.went is Went.OK
    small.thaw(role)
    small.shows(running=0, waiting=0)
    thawed = small.sample()
    assert thawed.prompt == frozen.prompt  # the question that was given up was never taken up
    assert thawed.finished == frozen.finished
    assert small.ask().outcome is Outcome.ANSWERED


def test_a_frozen_api_server_says_nothing_and_catches_up(small: Any, load: Load) -> None:
    with load(small, 4, max_tokens=LONG):
        small.shows(running=4, waiting=0)
        before = small.sample()
        small.freeze("api")
        assert {small.get(path, 1.0).reply.went for path in ("/health", "/metrics", "/v1/models")} == {Went.TIMEOUT}
        assert small.ask(deadline=1.0).outcome is Outcome.FAILED
        small.thaw("api")
        assert small.sample().steps > before.steps  # its engine went on meanwhile


@pytest.mark.parametrize(("role", "left"), [("worker", "inactive success"), ("api", "failed signal")])
def test_a_killed_process_ends_the_unit_and_a_restart_is_a_new_life(small: Any, role: str, left: str) -> None:
    """Refused within seconds, no process left in the control group; afterwards all counters start again.

    vLLM ends with status 0 after its worker died: to systemd the unit then looks as if somebody had stopped it.
    """
    old = small.page().start_time
    small.kill(role)
    small.wait(lambda: small.get("/health").reply.went is Went.REFUSED, APPEARS, "the refusal")
    small.wait(lambda: not small.processes(), 30.0, "the end of all processes")
    small.wait(lambda: small.box.show(small.unit, "ActiveState") in ("inactive", "failed"), APPEARS, "the unit's end")
    assert f"{small.box.show(small.unit, 'ActiveState')} {small.box.show(small.unit, 'Result')}" == left
    small.restart()
    page = small.page()
    assert page.start_time != old
    assert page.engines[0].generated == 0
    assert small.ask().outcome is Outcome.ANSWERED
