"""What kind of server answers: recorded pages, and what others are known to show."""

import dataclasses
import gzip
import json
import pathlib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factory_watchdog.core.model import NOT_ASKED, Reply, Went
from factory_watchdog.engines import DIALECTS, HEADERS, detect
from factory_watchdog.engines.detect import UNDETECTED

DATA = pathlib.Path(__file__).parent.parent / "data"


@dataclasses.dataclass(frozen=True)
class Got:
    reply: Reply
    body: bytes = b""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def got(status: int, body: object = "", **headers: str) -> Got:
    """An answer with a status; any body but a text is told as JSON."""
    went = Went.OK if status == 200 else Went.ABSENT if status in (404, 405, 501) else Went.STATUS
    text = body if isinstance(body, str) else json.dumps(body)
    return Got(Reply(went, status), text.encode(), headers)


def failed(went: Went) -> Got:
    return Got(Reply(went))


def recorded(folder: str, name: str, answer: str) -> Got:
    """An answer out of a file of recorded ones."""
    told = json.loads((DATA / folder / f"{name}.json").read_text(encoding="utf-8"))[answer]
    return got(told["status"], told["body"])


def page(folder: str, name: str) -> Got:
    """A recorded metrics page."""
    packed = DATA / folder / f"{name}.txt.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (DATA / folder / f"{name}.txt").read_bytes()
    return got(200, text.decode())


def models(*entries: dict[str, object]) -> Got:
    return got(200, {"object": "list", "data": [{"id": f"m{i}", **entry} for i, entry in enumerate(entries)]})


def kind(list_of_models: Got, metrics: Got) -> str | None:
    detected = detect.detect(list_of_models, metrics)
    assert detected is None or (detected.kind in DIALECTS and detected.why)
    return detected.kind if detected is not None else None


VLLM_MODELS = recorded("vllm", "answers", "models")
LLAMACPP_MODELS = recorded("llamacpp", "answers", "models")
LOADING = recorded("llamacpp", "answers", "loading")
LITELLM_MODELS = recorded("proxies", "models", "litellm")
NOT_FOUND = got(404, {"detail": "Not Found"})
VLLM_LOCKED = got(401, {"error": "Unauthorized"})
LITELLM_LOCKED = got(
    401,
    {"error": {"message": "Authentication Error, No api key", "type": "auth_error", "param": "None", "code": "401"}},
)
LLAMACPP_LOCKED = got(401, {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}})
LIST = models({})
PLAIN = got(200, "process_start_time_seconds 5\nhttp_requests_total 7\n")

# --- recordings ------------------------------------------------------------------------------------------------------

VLLM_PAGES = [path.name.removesuffix(".txt.gz") for path in sorted((DATA / "vllm").glob("*.txt.gz"))]
LLAMACPP_PAGES = [path.stem for path in sorted((DATA / "llamacpp").glob("*.txt"))]


@pytest.mark.parametrize("name", VLLM_PAGES)
def test_a_recorded_page_of_vllm(name: str) -> None:
    proxy = name in ("litellm", "vllm_router")
    assert kind(LITELLM_MODELS if proxy else VLLM_MODELS, page("vllm", name)) == ("proxy" if proxy else "vllm")


@pytest.mark.parametrize("name", LLAMACPP_PAGES)
def test_a_recorded_page_of_llamacpp(name: str) -> None:
    assert kind(LLAMACPP_MODELS, page("llamacpp", name)) == "llamacpp"


# list of models, metrics, kind
RECORDED: dict[str, tuple[Got, Got, str | None]] = {
    "vLLM with a key": (VLLM_LOCKED, page("vllm", "idle"), "vllm"),
    "vLLM without statistics": (VLLM_MODELS, page("vllm", "no_log_stats"), "vllm"),
    "vLLM without statistics, with a key": (VLLM_LOCKED, page("vllm", "no_log_stats"), None),
    "llama.cpp without metrics": (LLAMACPP_MODELS, recorded("llamacpp", "answers", "metrics_off"), "llamacpp"),
    "llama.cpp that loads": (LOADING, LOADING, "llamacpp"),
    "llama.cpp without metrics, its models locked": (
        LLAMACPP_LOCKED,
        recorded("llamacpp", "answers", "metrics_off"),
        "llamacpp",
    ),
    "LiteLLM": (LITELLM_MODELS, page("proxies", "litellm"), "proxy"),
    "LiteLLM without metrics": (LITELLM_MODELS, NOT_FOUND, "proxy"),
    "LiteLLM whose metrics are elsewhere": (LITELLM_MODELS, got(307), "proxy"),
    "vllm-router's other port": (got(200, "OK"), page("proxies", "vllm_router_own"), "proxy"),
    # These pass on one server's pages, and look like it until start times alternate.
    "vllm-router": (recorded("proxies", "models", "vllm_router"), page("proxies", "vllm_router"), "vllm"),
    "nginx": (recorded("proxies", "models", "nginx_least_conn"), page("proxies", "nginx_least_conn"), "vllm"),
}


@pytest.mark.parametrize(("list_of_models", "metrics", "expected"), RECORDED.values(), ids=RECORDED)
def test_recorded_answers(list_of_models: Got, metrics: Got, expected: str | None) -> None:
    assert kind(list_of_models, metrics) == expected


# --- known from sources ----------------------------------------------------------------------------------------------

SHOWN: dict[str, tuple[Got, Got, str | None]] = {
    "LiteLLM before its first request": (LIST, got(200, "# HELP litellm_spend_metric_total Total spend\n"), "proxy"),
    "LiteLLM with a key": (LITELLM_LOCKED, NOT_FOUND, "proxy"),
    "LiteLLM with a key for its metrics": (LIST, LITELLM_LOCKED, "proxy"),
    "LiteLLM's word under another status": (LIST, got(404, {"error": {"type": "auth_error"}}), "openai"),
    "one model of that date among others": (models({"created": 1677610602}, {"created": 5}), NOT_FOUND, "openai"),
    "the production stack's router": (
        models({"owned_by": "vllm"}),
        got(200, 'vllm:num_requests_running{server="a"} 1\nvllm:healthy_pods_total{server="a"} 1\n'),
        "proxy",
    ),
    "SGLang's router": (LIST, got(200, "# TYPE sgl_router_requests_total counter\n"), "proxy"),
    "llama-swap": (models({"owned_by": "llama-swap"}), NOT_FOUND, "proxy"),
    "llama.cpp's router": (models({"owned_by": "llamacpp", "status": {"value": "unloaded"}}), got(400), "proxy"),
    "a status of another kind": (models({"owned_by": "llamacpp", "status": "ok"}), got(400), "llamacpp"),
    "a gateway": (models({"owned_by": "vllm"}, {"owned_by": "llamacpp"}), NOT_FOUND, "proxy"),
    "several owners, none known": (models({"owned_by": "system"}, {"owned_by": "me"}), NOT_FOUND, "openai"),
    "vLLM with an adapter": (models({"owned_by": "vllm"}, {"owned_by": "vllm"}), PLAIN, "vllm"),
    "vLLM whose metrics fail": (models({"owned_by": "vllm"}), got(500), "vllm"),
    "vLLM whose metrics are too large": (models({"owned_by": "vllm"}), failed(Went.UNREADABLE), "vllm"),
    "llama.cpp with a key": (models({"owned_by": "llamacpp"}), LLAMACPP_LOCKED, "llamacpp"),
    "llama.cpp by name": (LLAMACPP_LOCKED, got(401, "", server="llama.cpp"), "llamacpp"),
    "llama.cpp's word under another status": (got(500, {"error": {"message": "Loading model"}}), NOT_FOUND, None),
    "another word under its status": (got(503, {"error": {"message": "Overloaded"}}), NOT_FOUND, None),
    "another server's name": (LIST, got(404, "", server="uvicorn"), "openai"),
    "a server of /v1": (LIST, NOT_FOUND, "openai"),
    "its metrics not allowed": (LIST, got(405), "openai"),
    "its metrics not asked for": (LIST, Got(NOT_ASKED), "openai"),
    "its metrics of another kind": (LIST, PLAIN, "openai"),
    "its web page everywhere": (LIST, got(200, "<html>"), "openai"),
}


@pytest.mark.parametrize(("list_of_models", "metrics", "expected"), SHOWN.values(), ids=SHOWN)
def test_what_others_show(list_of_models: Got, metrics: Got, expected: str | None) -> None:
    assert kind(list_of_models, metrics) == expected


# --- not known yet ---------------------------------------------------------------------------------------------------

WAITING = {
    "refused": failed(Went.REFUSED),
    "silent": failed(Went.TIMEOUT),
    "cut off": failed(Went.RESET),
    "not found by name": failed(Went.ERROR),
}


@pytest.mark.parametrize("waiting", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("other", [VLLM_MODELS, LITELLM_MODELS, LIST, page("vllm", "idle"), NOT_FOUND, LOADING])
def test_nothing_is_said_before_both_are_answered(waiting: Got, other: Got) -> None:
    assert kind(waiting, other) is None
    assert kind(other, waiting) is None
    assert kind(waiting, waiting) is None


UNCERTAIN: dict[str, tuple[Got, Got]] = {
    "starting": (got(503), got(503)),
    "starting behind an nginx": (got(502, "<html>"), got(502, "<html>")),
    "models before metrics": (LIST, got(503)),
    "metrics fail": (LIST, got(500)),
    "metrics locked": (LIST, got(401)),
    "metrics too large": (LIST, failed(Went.UNREADABLE)),
    "all locked": (VLLM_LOCKED, VLLM_LOCKED),
    "models locked, no metrics": (VLLM_LOCKED, NOT_FOUND),
    "metrics before models": (got(503), PLAIN),
    "no /v1": (NOT_FOUND, NOT_FOUND),
    "no models yet": (models(), NOT_FOUND),
    "models without a name": (got(200, {"data": [{"id": 7}]}), NOT_FOUND),
    "no list": (got(200, "<html>"), got(200, "<html>")),
    "an error with status 200": (got(200, {"error": {"message": "no"}}), NOT_FOUND),
    "a list in an answer that failed": (Got(Reply(Went.STATUS, 500), VLLM_MODELS.body), NOT_FOUND),
    "series in an answer that failed": (LIST, Got(Reply(Went.STATUS, 500), page("vllm", "idle").body)),
}


@pytest.mark.parametrize(("list_of_models", "metrics"), UNCERTAIN.values(), ids=UNCERTAIN)
def test_what_is_not_known_yet(list_of_models: Got, metrics: Got) -> None:
    assert kind(list_of_models, metrics) is None


def test_until_then_only_the_two_pages_are_fetched_and_nothing_is_asked() -> None:
    paths = {UNDETECTED.health_path, UNDETECTED.models_path, UNDETECTED.metrics_path, *UNDETECTED.pause_paths}
    assert paths == {"/v1/models", "/metrics"}
    assert UNDETECTED.forms == ()
    assert UNDETECTED.kind == "auto"
    assert UNDETECTED.health(VLLM_LOCKED.reply).went is Went.OK
    assert not UNDETECTED.read(page("vllm", "busy").body).known


# --- names on a page -------------------------------------------------------------------------------------------------

NAMES: list[tuple[str, str]] = [
    ("vllm:x 1\n", "vllm"),
    ('vllm:x{a="b"} 1', "vllm"),
    ("# TYPE vllm:x gauge\n", "vllm"),
    ("a 1\nvllm:x 1\n", "vllm"),
    ("llamacpp:x 1\n", "llamacpp"),
    ("vllm:x 1\nlitellm_x 1\n", "proxy"),
    ("vllm:healthy_pods_total 1\n", "proxy"),
    ('a{model="vllm:x"} 1\n', "openai"),
    ("# HELP a says that vllm:x and litellm_x are others'\n", "openai"),
    ("my_vllm:x 1\n", "openai"),
    ("# litellm_x\n", "openai"),
    ("sglang:x 1\n", "openai"),
]


@pytest.mark.parametrize(("text", "expected"), NAMES)
def test_a_name_counts_where_a_line_begins_with_it(text: str, expected: str) -> None:
    assert kind(LIST, got(200, text)) == expected


def test_the_sentence_says_by_what_it_was_told() -> None:
    told = detect.detect(VLLM_MODELS, page("vllm", "idle"))
    assert told == detect.Detected("vllm", "its metrics have vllm: series")


def test_the_header_is_kept() -> None:
    assert detect.SERVER_HEADER in HEADERS


# --- hostile bodies --------------------------------------------------------------------------------------------------

HOSTILE = [b"", b"\x00" * 1000, b"[" * 100_000, b'{"data":' * 100_000, b'{"data":[1,null,[],{"id":[]}]}', b"\xff\xfe{"]


@pytest.mark.parametrize("body", HOSTILE)
@pytest.mark.parametrize("status", [200, 401, 501, 503])
def test_a_hostile_body_tells_nothing(status: int, body: bytes) -> None:
    hostile = dataclasses.replace(got(status), body=body)
    assert kind(hostile, hostile) is None


keys = st.sampled_from(["data", "id", "owned_by", "created", "status", "value", "error", "type", "message"])
scalars = st.none() | st.booleans() | st.integers() | st.sampled_from(["vllm", "llamacpp", "llama-swap", "auth_error"])
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=15
)


@given(st.sampled_from([200, 401, 404, 501, 503]), trees, st.binary(max_size=100))
def test_no_answer_raises(status: int, tree: object, body: bytes) -> None:
    kind(got(status, [tree]), Got(Reply(Went.OK, 200), body))
    kind(got(status, {"data": [tree], "error": tree}), got(status, {"error": tree}))
