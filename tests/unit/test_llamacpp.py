"""llama.cpp's pages, pause sign and answers, from recordings."""

import dataclasses
import json
import pathlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factory_watchdog.core.model import Form, Outcome, Pause, Reply, Sample, Went
from factory_watchdog.engines import DIALECTS, HEADERS, llamacpp
from factory_watchdog.engines.dialect import Page

DATA = pathlib.Path(__file__).parent.parent / "data" / "llamacpp"
ANSWERS: dict[str, dict[str, object]] = json.loads((DATA / "answers.json").read_text(encoding="utf-8"))
LLAMACPP = DIALECTS["llamacpp"]

RUNNING, WAITING, STEPS = (
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "llamacpp:n_decode_total",
)


def page(name: str) -> str:
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")


def read(text: str) -> Page:
    return llamacpp.read(text.encode())


def only(text: str) -> Sample:
    """The sample of a page with an engine."""
    (sample,) = read(text).engines
    return sample


# --- recorded pages --------------------------------------------------------------------------------------------------

# running, waiting, steps, prompt, generated
RECORDED = {
    "idle": Sample("0", 0, 0, 0, 0, 0),
    "busy_1": Sample("0", 4, 3, 5431, 1956, 12001),
    "busy_2": Sample("0", 4, 3, 7638, 2663, 21001),
    "prefill_1": Sample("0", 1, 0, 1, 0, 0),
    "prefill_2": Sample("0", 1, 0, 1, 0, 0),
    "prefill_3": Sample("0", 1, 0, 2, 0, 0),
}


@pytest.mark.parametrize(("name", "sample"), RECORDED.items())
def test_a_recorded_page(name: str, sample: Sample) -> None:
    assert read(page(name)) == Page(known=True, start_time=None, engines=(sample,))


def test_of_a_long_prompt_the_batches_alone_move() -> None:
    first, inside, after = (only(page(f"prefill_{i}")) for i in (1, 2, 3))
    assert first == inside
    assert after == dataclasses.replace(first, steps=2)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_no_metrics_page_is_not_known(name: str) -> None:
    assert read(str(ANSWERS[name]["body"])) == Page()


# --- what may be missing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-nan", "many", ""])
@pytest.mark.parametrize("name", [RUNNING, WAITING, STEPS])
def test_a_required_signal_that_is_no_number_is_missing(name: str, value: str) -> None:
    text = re.sub(rf"^{name} .*", f"{name} {value}", page("busy_1"), flags=re.MULTILINE)
    assert only(text).missing == (name,)


@pytest.mark.parametrize("name", ["llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"])
def test_a_count_of_tokens_may_be_missing(name: str) -> None:
    sample = only(re.sub(rf"^{name} .*\n", "", page("busy_1"), flags=re.MULTILINE))
    assert sample.missing == ()
    assert None in (sample.prompt, sample.generated)


def test_tokens_from_the_cache_are_not_taken_for_tokens() -> None:
    assert only("llamacpp:prompt_tokens_cached_total 7\nllamacpp:prompt_tokens_total 2\n").prompt == 2


def test_six_digits_of_a_large_count() -> None:
    assert only(f"{STEPS} 1.23457e+06\n").steps == 1234570


@pytest.mark.parametrize("text", ["", "<html>", "vllm:num_requests_running 1\n", "llamacpp:n_tokens_max 5\n"])
def test_a_page_without_a_signal_is_not_known(text: str) -> None:
    assert read(text) == Page()


def test_all_that_is_wanted_is_read() -> None:
    """Each wanted name changes what some page tells; else it would be searched for in vain."""
    for name in LLAMACPP.wanted:
        assert read(f"{name} 5\n").known, name
        assert read(f"{name} 5\n") != read(f"{name} 6\n"), name


@given(st.text() | st.sampled_from(sorted(llamacpp.WANTED)).map(lambda name: f"{name} 1"))
def test_no_text_raises(text: str) -> None:
    told = read(text.encode(errors="replace").decode())
    assert told.known == bool(told.engines)


# --- asleep ----------------------------------------------------------------------------------------------------------

PAUSES: dict[str, tuple[Reply, object, Pause]] = {
    "asleep": (Reply(Went.OK, 200), {"is_sleeping": True, "model_path": "m.gguf"}, Pause("asleep, says /props")),
    "awake": (Reply(Went.OK, 200), {"is_sleeping": False}, Pause()),
    "a release that cannot sleep": (Reply(Went.OK, 200), {"model_path": "m.gguf"}, Pause()),
    "the word true": (Reply(Went.OK, 200), {"is_sleeping": "true"}, Pause()),
    "loading": (Reply(Went.STATUS, 503), {"error": {"message": "Loading model"}, "is_sleeping": True}, Pause()),
    "wants a key": (Reply(Went.STATUS, 401), {"error": {"message": "Invalid API Key"}}, Pause()),
    "no answer": (Reply(Went.TIMEOUT), None, Pause()),
    "not there": (Reply(Went.ABSENT, 404), {"error": {"message": "File Not Found"}}, Pause(absent=True)),
}


@pytest.mark.parametrize(("reply", "body", "pause"), PAUSES.values(), ids=PAUSES)
def test_what_props_says(reply: Reply, body: object, pause: Pause) -> None:
    assert LLAMACPP.read_pause([("/props", reply, json.dumps(body).encode())]) == pause


def test_another_path_says_nothing() -> None:
    assert LLAMACPP.read_pause([("/slots", Reply(Went.OK, 200), b'{"is_sleeping":true}')]) == Pause()


# --- which start it is -----------------------------------------------------------------------------------------------

TOKENS: list[tuple[dict[str, str], float | None]] = [
    ({"process-start-time-unix": "3285740123"}, 3285740123),
    ({"process-start-time-unix": "0"}, 0),
    ({"process-start-time-unix": "9" * 19}, 1e19),
    ({"process-start-time-unix": "9" * 20}, None),
    ({"process-start-time-unix": "-1"}, None),
    ({"process-start-time-unix": "1.5"}, None),
    ({"process-start-time-unix": "1e400"}, None),
    ({"process-start-time-unix": "nan"}, None),
    ({"process-start-time-unix": "\u0661"}, None),  # a digit, but not of ASCII
    ({"process-start-time-unix": "5\n"}, None),
    ({"process-start-time-unix": ""}, None),
    ({"server": "llama.cpp"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "token"), TOKENS)
def test_a_header_tells_starts_apart(headers: dict[str, str], token: float | None) -> None:
    assert LLAMACPP.start_token(headers) == token


def test_the_header_of_another_dialect_tells_nothing() -> None:
    assert DIALECTS["vllm"].start_token({"process-start-time-unix": "5"}) is None


def test_the_header_is_kept() -> None:
    assert LLAMACPP.start_header in HEADERS
    assert all(name == name.lower() for name in HEADERS)


# --- answers ---------------------------------------------------------------------------------------------------------

WORTH = {
    "chat": (Outcome.ANSWERED, 56, 1, ""),
    "completion_500": (
        Outcome.SERVER_ERROR,
        0,
        0,
        "status 500: The model produced output that does not match the expected Content-only format",
    ),
    "loading": (Outcome.NOT_NOW, 0, 0, "status 503: Loading model"),
}


@pytest.mark.parametrize("name", WORTH)
def test_a_recorded_answer(name: str) -> None:
    status, body = ANSWERS[name]["status"], ANSWERS[name]["body"]
    assert isinstance(status, int)
    reply = Reply(Went.OK if status == 200 else Went.STATUS, status)
    worth = LLAMACPP.classify(Form.CHAT, reply, str(body).encode())
    assert (worth.outcome, worth.prompt_tokens, worth.completion_tokens, worth.detail) == WORTH[name]


# --- the dialect -----------------------------------------------------------------------------------------------------


def test_the_dialect() -> None:
    assert (LLAMACPP.health_path, LLAMACPP.metrics_path, LLAMACPP.models_path) == ("/health", "/metrics", "/v1/models")
    assert LLAMACPP.forms == tuple(Form)
    assert (LLAMACPP.without_metrics, LLAMACPP.host_evidence, LLAMACPP.silent_after) == (False, "slow", None)
    assert LLAMACPP.restartable
    assert not LLAMACPP.pinnable


def test_nothing_that_wakes_a_sleeping_server_is_polled() -> None:
    assert LLAMACPP.pause_paths == ("/props",)


def test_a_key_opens_what_it_guards() -> None:
    assert LLAMACPP.key_paths == {"/metrics", "/props"}


def test_a_server_that_loads_does_not_serve_yet() -> None:
    loading = Reply(Went.STATUS, 503)
    assert LLAMACPP.health(loading) == loading
