"""The OpenAI-style question and what its answers are worth."""

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factory_watchdog.core.model import Form, Outcome, Reply, Went
from factory_watchdog.engines import DIALECTS, dialect
from factory_watchdog.engines.dialect import Classified

ANSWERS: dict[str, dict[str, object]] = json.loads(
    pathlib.Path(__file__).parent.parent.joinpath("data", "vllm", "answers.json").read_text(encoding="utf-8")
)

OK = Reply(Went.OK, 200)


def recorded(name: str, form: Form) -> Classified:
    """What a recorded answer is worth."""
    status, body = ANSWERS[name]["status"], ANSWERS[name]["body"]
    assert isinstance(status, int)
    assert isinstance(body, str)
    return dialect.openai_classify(form, Reply(Went.OK if status == 200 else Went.STATUS, status), body.encode())


def answer(status: int, body: object, form: Form = Form.CHAT) -> Classified:
    went = Went.OK if status == 200 else Went.STATUS
    return dialect.openai_classify(form, Reply(went, status), json.dumps(body).encode())


# --- the question ----------------------------------------------------------------------------------------------------

COMMON = {"temperature": 0, "stream": False}
MESSAGES = [{"role": "user", "content": "Say ok."}]
QUESTIONS: dict[Form, tuple[str, dict[str, object]]] = {
    Form.CHAT: ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, **COMMON}),
    Form.CHAT_COMPLETION_TOKENS: (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_completion_tokens": 1, **COMMON},
    ),
    Form.COMPLETION: ("/v1/completions", {"prompt": "Say ok.", "max_tokens": 1, **COMMON}),
    Form.EMBEDDING: ("/v1/embeddings", {"input": "Say ok."}),
}


@pytest.mark.parametrize("form", Form)
def test_a_question_asks_for_one_token(form: Form) -> None:
    path, body = QUESTIONS[form]
    request = dialect.openai_question(form)
    assert (request.path, json.loads(request.body)) == (path, body)
    assert request.headers == (("Content-Type", "application/json"),)


@pytest.mark.parametrize("form", Form)
def test_a_question_names_the_model_where_it_is_known(form: Form) -> None:
    model = 'a "quoted" \\ name'
    assert json.loads(dialect.openai_question(form, model).body) == {"model": model, **QUESTIONS[form][1]}


PINS: list[tuple[str | None, tuple[str, ...], str | None]] = [
    (None, ("0", "1"), None),
    ("1", ("0", "1"), "1"),
    ("0", ("0", "1"), "0"),
    ("1", (), "1"),
    ("0", ("0",), None),  # the only one needs no address
    ("3", ("3",), None),  # an external load balancer's rank: the server has one engine, and calls it 3
    ("3", ("2", "3"), "1"),  # a hybrid one's: the server's second
    ("7", ("0", "1"), "7"),  # not in the last reading
    ("x\r\nHost: y", (), None),
    ("x\r\nHost: y", ("0", "x\r\nHost: y"), "1"),
    ("-1", (), None),
    ("\u0661", (), None),  # a digit, but not of ASCII
    ("", (), None),
]


@pytest.mark.parametrize(("engine", "engines", "rank"), PINS)
def test_a_question_is_pinned_to_the_place_of_its_engine(
    engine: str | None, engines: tuple[str, ...], rank: str | None
) -> None:
    headers = dict(DIALECTS["vllm"].question(Form.CHAT, "m", engine, engines).headers)
    assert headers.get("X-data-parallel-rank") == rank
    assert headers["Content-Type"] == "application/json"


def test_nothing_is_pinned_where_the_dialect_has_no_header() -> None:
    vllm = DIALECTS["vllm"]
    plain = dialect.Dialect("plain", vllm.wanted, vllm.read, vllm.read_pause)
    assert not plain.pinnable
    assert plain.question(Form.CHAT, None, "1").headers == (("Content-Type", "application/json"),)


# --- answers that were recorded --------------------------------------------------------------------------------------

RECORDED: dict[str, tuple[Form, Outcome, int, int]] = {
    "chat": (Form.CHAT, Outcome.ANSWERED, 4, 1),
    "chat_reasoning": (Form.CHAT, Outcome.ANSWERED, 4, 1),  # content null
    "completion": (Form.COMPLETION, Outcome.ANSWERED, 2, 1),  # text ""
    "embedding": (Form.EMBEDDING, Outcome.ANSWERED, 2, 0),
    "chat_without_key": (Form.CHAT, Outcome.DENIED, 0, 0),
    "chat_wrong_model": (Form.CHAT, Outcome.CANNOT, 0, 0),
    "chat_too_long": (Form.CHAT, Outcome.CANNOT, 0, 0),
    "chat_no_template": (Form.CHAT, Outcome.CANNOT, 0, 0),
    "chat_on_pooling_model": (Form.CHAT, Outcome.CANNOT, 0, 0),
    "chat_streamed": (Form.CHAT, Outcome.SERVER_ERROR, 0, 0),  # we asked for no stream, so this is none of ours
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_answer(name: str) -> None:
    form, outcome, prompt, completion = RECORDED[name]
    classified = recorded(name, form)
    assert (classified.outcome, classified.prompt_tokens, classified.completion_tokens) == (outcome, prompt, completion)
    assert classified.next_form is None


DETAILS = {
    "chat": "",
    "chat_without_key": "status 401: Unauthorized",
    "chat_wrong_model": "status 404: The model `other` does not exist. Valid aliases: tiny.",
    "chat_on_pooling_model": "status 404: Not Found",
    "chat_streamed": "status 200, but no answer to the question",
}


@pytest.mark.parametrize(("name", "detail"), DETAILS.items())
def test_the_detail_is_the_servers_sentence(name: str, detail: str) -> None:
    assert recorded(name, Form.CHAT).detail == detail


# --- answers with status 200 -----------------------------------------------------------------------------------------

SAID = {"message": {"content": "ok"}}
COUNTED = {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}

ACCEPTED: list[tuple[str, Form, object, Outcome]] = [
    ("text", Form.CHAT, {"choices": [SAID]}, Outcome.ANSWERED),
    ("a reason to end", Form.CHAT, {"choices": [{"message": {}, "finish_reason": "length"}]}, Outcome.ANSWERED),
    ("a counted token", Form.CHAT, {"choices": [{"message": {"content": None}}], **COUNTED}, Outcome.ANSWERED),
    ("a counted token, no message", Form.CHAT, {"choices": [{}], **COUNTED}, Outcome.ANSWERED),
    ("text of a completion", Form.COMPLETION, {"choices": [{"text": "."}]}, Outcome.ANSWERED),
    ("error null", Form.CHAT, {"choices": [SAID], "error": None}, Outcome.ANSWERED),
    ("a vector", Form.EMBEDDING, {"data": [{"embedding": [0.5]}]}, Outcome.ANSWERED),
    ("a vector in base64", Form.EMBEDDING, {"data": [{"embedding": "AAAA"}]}, Outcome.ANSWERED),
    ("no token", Form.CHAT, {"choices": [{"message": {"content": ""}, "finish_reason": None}]}, Outcome.SERVER_ERROR),
    ("no choice", Form.CHAT, {"choices": [], **COUNTED}, Outcome.SERVER_ERROR),
    ("a choice that is none", Form.CHAT, {"choices": ["ok"], **COUNTED}, Outcome.SERVER_ERROR),
    ("choices that are none", Form.CHAT, {"choices": "ok", **COUNTED}, Outcome.SERVER_ERROR),
    ("no vector", Form.EMBEDDING, {"data": [{"embedding": []}]}, Outcome.SERVER_ERROR),
    ("no data", Form.EMBEDDING, {"data": []}, Outcome.SERVER_ERROR),
    ("an answer to a chat", Form.EMBEDDING, {"choices": [SAID], **COUNTED}, Outcome.SERVER_ERROR),
    ("an error", Form.CHAT, {"error": {"message": "engine dead"}}, Outcome.SERVER_ERROR),
    ("an error beside an answer", Form.CHAT, {"choices": [SAID], "error": "cut off"}, Outcome.SERVER_ERROR),
    ("an old error", Form.CHAT, {"object": "error", "message": "dead", "code": 500}, Outcome.SERVER_ERROR),
    ("an empty object", Form.CHAT, {}, Outcome.SERVER_ERROR),
    ("a list", Form.CHAT, [], Outcome.SERVER_ERROR),
    ("a number", Form.CHAT, 200, Outcome.SERVER_ERROR),
    ("null", Form.CHAT, None, Outcome.SERVER_ERROR),
]


@pytest.mark.parametrize(("form", "body", "outcome"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
def test_an_answer_with_status_200(form: Form, body: object, outcome: Outcome) -> None:
    classified = answer(200, body, form)
    assert classified.outcome is outcome
    assert (classified.detail == "") == (outcome is Outcome.ANSWERED)


def test_an_error_in_an_answer_with_status_200_is_named() -> None:
    assert answer(200, {"error": {"message": "engine\ndead | now"}}).detail == "status 200: engine dead now"
    assert answer(200, {"object": "error", "message": "engine dead"}).detail == "status 200: engine dead"


COUNTS = [(1, 1), (0, 0), (-1, 0), (True, 0), (1.0, 0), ("1", 0), (None, 0), ([1], 0), (dialect.TOKENS_LIMIT + 1, 0)]


@pytest.mark.parametrize(("told", "taken"), COUNTS)
def test_a_count_that_cannot_be_true_is_none(told: object, taken: int) -> None:
    body = {"choices": [SAID], "usage": {"prompt_tokens": told, "completion_tokens": told}}
    classified = answer(200, body)
    assert (classified.outcome, classified.prompt_tokens, classified.completion_tokens) == (
        Outcome.ANSWERED,
        taken,
        taken,
    )


# --- answers with another status, and none ---------------------------------------------------------------------------

STATUS = {
    **dict.fromkeys((401, 403, 407), Outcome.DENIED),
    **dict.fromkeys((204, 301, 307, 400, 404, 405, 410, 413, 415, 422, 501), Outcome.CANNOT),
    **dict.fromkeys((429, 503), Outcome.NOT_NOW),
    **dict.fromkeys((500, 502, 504, 520, 599), Outcome.SERVER_ERROR),
    408: Outcome.FAILED,
}


@pytest.mark.parametrize(("status", "outcome"), STATUS.items())
def test_a_status(status: int, outcome: Outcome) -> None:
    assert dialect.openai_classify(Form.CHAT, Reply(Went.STATUS, status), b"") == Classified(
        outcome, detail=f"status {status}"
    )


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_path_that_is_absent_by_nature_cannot_be_asked(status: int) -> None:
    assert dialect.openai_classify(Form.CHAT, Reply(Went.ABSENT, status), b"").outcome is Outcome.CANNOT


WENT = {
    Went.TIMEOUT: Outcome.FAILED,
    Went.REFUSED: Outcome.FAILED,
    Went.RESET: Outcome.FAILED,
    Went.ERROR: Outcome.FAILED,
    Went.STATUS: Outcome.FAILED,  # without one
    Went.UNREADABLE: Outcome.SERVER_ERROR,
    Went.ABSENT: Outcome.CANNOT,
}


@pytest.mark.parametrize(("went", "outcome"), WENT.items())
def test_no_status(went: Went, outcome: Outcome) -> None:
    assert dialect.openai_classify(Form.CHAT, Reply(went), b"") == Classified(outcome, detail=went.value)
    assert dialect.openai_classify(Form.CHAT, Reply(went, detail="a\nb"), b"").detail == "a b"


@pytest.mark.parametrize("went", [Went.TIMEOUT, Went.RESET, Went.UNREADABLE])
def test_a_status_whose_body_never_came_whole_is_no_answer(went: Went) -> None:
    assert dialect.openai_classify(Form.CHAT, Reply(went, 200), b'{"choices":').outcome is WENT[went]


MESSAGES_OF_ERRORS: list[tuple[bytes, str]] = [
    (b'{"error":{"message":"said"}}', "status 500: said"),
    (b'{"error":"said"}', "status 500: said"),
    (b'{"object":"error","message":"said","code":500}', "status 500: said"),
    (b'{"detail":"said"}', "status 500: said"),
    (b'{"detail":[{"loc":["body","input"],"msg":"Field required"}]}', "status 500: Field required (input)"),
    (b'{"error":{"message":"said","param":"model"}}', "status 500: said (model)"),
    (b"Internal Server Error", "status 500: Internal Server Error"),
    (b"<html>\n<body>502</body>", "status 500: <html> <body>502</body>"),
    (b"\xff\x00\x1b[2J", "status 500: \ufffd [2J"),
    (b"", "status 500"),
    (b" \n ", "status 500"),
    (b'{"error":{"message":7}}', 'status 500: {"error":{"message":7}}'),
    (b'{"error":{"message":"' + b"x" * 1000 + b'"}}', "status 500: " + "x" * 188),
    ('{"error":{"message":"a\u202eb\\ud800|c\\u0007"}}'.encode(), "status 500: ab c"),
]


@pytest.mark.parametrize(("body", "detail"), MESSAGES_OF_ERRORS)
def test_the_detail_is_one_cleaned_line(body: bytes, detail: str) -> None:
    assert dialect.openai_classify(Form.CHAT, Reply(Went.STATUS, 500), body).detail == detail


REFUSED_FIELD = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
TOKEN_FIELDS: list[tuple[str, Form, int, object, bool]] = [
    ("OpenAI", Form.CHAT, 400, {"error": {"message": REFUSED_FIELD, "param": "max_tokens"}}, True),
    ("message alone", Form.CHAT, 400, {"error": {"message": REFUSED_FIELD}}, True),
    ("field alone", Form.CHAT, 400, {"error": {"message": "Unsupported parameter", "param": "max_tokens"}}, True),
    ("plain", Form.CHAT, 400, {"detail": "unknown field max_tokens"}, True),
    ("FastAPI", Form.CHAT, 422, {"detail": [{"loc": ["body", "max_tokens"], "msg": "Extra inputs"}]}, True),
    ("the other form", Form.CHAT_COMPLETION_TOKENS, 400, {"error": {"message": REFUSED_FIELD}}, False),
    ("a completion", Form.COMPLETION, 400, {"error": {"message": REFUSED_FIELD}}, False),
    ("another status", Form.CHAT, 404, {"error": {"message": REFUSED_FIELD}}, False),
    ("another field", Form.CHAT, 400, {"error": {"message": "Unsupported parameter: 'temperature'"}}, False),
    ("a longer name", Form.CHAT, 400, {"error": {"message": "max_tokens_per_step is wrong"}}, False),
    (
        "our own body sent back",
        Form.CHAT,
        422,
        {"detail": [{"loc": ["body", "messages"], "msg": "wrong", "input": {"max_tokens": 1}}]},
        False,
    ),
]


@pytest.mark.parametrize(
    ("form", "status", "body", "renamed"), [row[1:] for row in TOKEN_FIELDS], ids=[row[0] for row in TOKEN_FIELDS]
)
def test_a_refused_token_field_names_the_next_form(form: Form, status: int, body: object, renamed: bool) -> None:
    classified = answer(status, body, form)
    assert classified.outcome is Outcome.CANNOT
    assert classified.next_form is (Form.CHAT_COMPLETION_TOKENS if renamed else None)


# --- models ----------------------------------------------------------------------------------------------------------


def test_the_model_of_a_recorded_page() -> None:
    assert dialect.served_model(str(ANSWERS["models"]["body"]).encode()) == "tiny"


MODELS: list[tuple[object, tuple[str, ...]]] = [
    ({"data": [{"id": "a"}, {"id": "b/c d"}]}, ("a", "b/c d")),
    ({"data": [{"id": 'quote " comma , brace } backslash \\'}]}, ('quote " comma , brace } backslash \\',)),
    ({"data": [{"id": "bad\u2028name"}, {"id": "b"}]}, ("b",)),
    ({"data": [{"id": "\x1b[2J"}, {"id": "a|b"}, {"id": "x" * 201}]}, ()),
    ({"data": [{"id": 7}, {"id": None}, {"id": ""}, {}, "a", None, [], {"id": "b"}]}, ("b",)),
    ({"data": []}, ()),
    ({"data": {"id": "a"}}, ()),
    ({"data": "a"}, ()),
    ([{"id": "a"}], ()),
    ("a", ()),
    (None, ()),
]


@pytest.mark.parametrize(("body", "models"), MODELS)
def test_the_models_of_a_page(body: object, models: tuple[str, ...]) -> None:
    page = json.dumps(body).encode()
    assert dialect.served_models(page) == models
    assert dialect.served_model(page) == (models[0] if models else None)


# --- hostile bodies --------------------------------------------------------------------------------------------------

HOSTILE = {
    "nothing": b"",
    "zero bytes": b"\x00" * 1000,
    "not UTF-8": b'{"error": "\xff\xfe"}',
    "half of UTF-16": b"\xff\xfe{",
    "cut": b'{"choices":[{"message":',
    "nested lists": b"[" * 1_000_000,
    "nested objects": b'{"error":' * 1_000_000,
    "a number of no end": b'{"usage":{"completion_tokens":' + b"9" * 1_000_000 + b"}}",
    "huge": b'{"error":{"message":"' + b"\\u202e" * 1_000_000 + b'"}}',
    "not a number": b'{"usage":{"completion_tokens":NaN},"choices":[{}]}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("form", Form)
def test_a_hostile_body_is_no_answer_and_no_error_of_ours(form: Form, body: bytes) -> None:
    assert dialect.openai_classify(form, OK, body).outcome is Outcome.SERVER_ERROR
    assert dialect.openai_classify(form, Reply(Went.STATUS, 400), body).outcome is Outcome.CANNOT
    assert len(dialect.openai_classify(form, Reply(Went.STATUS, 400), body).detail) <= 200
    assert dialect.served_models(body) == ()
    assert not dialect.told_true(body, "is_paused")


keys = st.sampled_from(["choices", "data", "usage", "error", "message", "param", "detail", "loc", "msg", "id", "text"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=15
)


@given(st.sampled_from(Form), st.sampled_from([200, 400, 422, 500]), trees)
def test_no_tree_raises(form: Form, status: int, tree: object) -> None:
    classified = answer(status, tree, form)
    assert "\n" not in classified.detail
    assert classified.outcome in Outcome
    dialect.served_models(json.dumps(tree).encode())


@given(st.binary(max_size=200))
def test_no_bytes_raise(body: bytes) -> None:
    dialect.openai_classify(Form.CHAT, OK, body)
    dialect.openai_classify(Form.CHAT, Reply(Went.STATUS, 400), body)
    dialect.served_models(body)
