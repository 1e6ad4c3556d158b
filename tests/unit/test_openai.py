"""A server of which nothing is known but that it speaks OpenAI's `/v1`."""

import pytest

from factory_watchdog.core.model import NOT_ASKED, Form, Outcome, Pause, Reply, Went
from factory_watchdog.engines import DIALECTS
from factory_watchdog.engines.dialect import Page

OPENAI = DIALECTS["openai"]


def test_the_dialect() -> None:
    assert (OPENAI.health_path, OPENAI.metrics_path, OPENAI.models_path) == ("/v1/models", None, "/v1/models")
    assert OPENAI.pause_paths == ()
    assert OPENAI.forms == tuple(Form)
    assert (OPENAI.without_metrics, OPENAI.host_evidence, OPENAI.silent_after) == (True, "record", 600.0)
    assert OPENAI.restartable
    assert not OPENAI.pinnable


# How the list of models went, and what that says of the server's health.
HEALTH: dict[str, tuple[Reply, Went]] = {
    "listed": (Reply(Went.OK, 200), Went.OK),
    "wants a key": (Reply(Went.STATUS, 401), Went.OK),
    "wants another key": (Reply(Went.STATUS, 403), Went.OK),
    "starting": (Reply(Went.STATUS, 503), Went.STATUS),
    "a proxy without its server": (Reply(Went.STATUS, 502), Went.STATUS),
    "broken": (Reply(Went.STATUS, 500), Went.STATUS),
    "moved": (Reply(Went.STATUS, 307), Went.STATUS),
    "too many requests": (Reply(Went.STATUS, 429), Went.STATUS),
    "no such list": (Reply(Went.ABSENT, 404), Went.ABSENT),
    "cut": (Reply(Went.UNREADABLE, 401), Went.UNREADABLE),
    "silent": (Reply(Went.TIMEOUT), Went.TIMEOUT),
    "refused": (Reply(Went.REFUSED), Went.REFUSED),
    "not asked": (NOT_ASKED, Went.ABSENT),
}


@pytest.mark.parametrize(("reply", "went"), HEALTH.values(), ids=HEALTH)
def test_the_list_of_models_tells_whether_it_serves(reply: Reply, went: Went) -> None:
    told = OPENAI.health(reply)
    assert told.went is went
    assert (told.status, told.seconds, told.detail) == (reply.status, reply.seconds, reply.detail)


def test_the_list_wants_the_key() -> None:
    assert OPENAI.health_path in OPENAI.key_paths


def test_on_a_health_page_a_key_says_nothing() -> None:
    assert DIALECTS["vllm"].health(Reply(Went.STATUS, 401)).went is Went.STATUS


@pytest.mark.parametrize("body", [b"", b"vllm:num_requests_running 1\n", b"llamacpp:requests_processing 1\n"])
def test_no_page_tells_anything(body: bytes) -> None:
    assert OPENAI.read(body) == Page()


def test_there_is_no_sign_of_a_pause() -> None:
    assert OPENAI.read_pause([]) == Pause(absent=True)


@pytest.mark.parametrize("form", Form)
def test_it_is_asked_like_any_other(form: Form) -> None:
    assert OPENAI.question(form, "m") == DIALECTS["vllm"].question(form, "m")
    assert OPENAI.classify(form, Reply(Went.STATUS, 429), b"").outcome is Outcome.NOT_NOW


def test_no_header_tells_its_start() -> None:
    assert OPENAI.start_token({"process-start-time-unix": "5", "server": "uvicorn"}) is None
