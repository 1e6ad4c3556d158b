"""What one kind of server shows, as data and pure functions; and what the OpenAI-style servers have in common.

A dialect says where to look, which metrics tell what, which signs mean a pause, how the one short question is asked and
what its answers are worth. Everything that a server sends is taken for hostile: it may be huge, not JSON, of wrong
types or nested without end. Nothing here raises because of it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from factory_watchdog.core.model import Form, Outcome, Pause, Reply, Sample, Went
from factory_watchdog.core.text import clean
from factory_watchdog.engines.tree import at, entries, parsed

# A count of tokens above this is no answer to our one short question; a count is subtracted from the server's own
# counters, so that a wild one would hide what moves.
TOKENS_LIMIT = 1_000_000

MODELS_PATH = "/v1/models"


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """What a metrics page told. `known` is false where it had no engine's signals; `start_time` is in Unix seconds."""

    known: bool = False
    start_time: float | None = None
    engines: tuple[Sample, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class QuestionRequest:
    """The question as an HTTP request: POST `body` to `path`. A key, where one is needed, is added by who sends it."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Classified:
    """What an answer is worth: the parts of `core.model.Answer` that the answer itself tells."""

    outcome: Outcome
    prompt_tokens: int = 0
    completion_tokens: int = 0
    detail: str = ""
    next_form: Form | None = None


PauseAnswer = tuple[str, Reply, bytes]
"""The path that was asked, how it went, and the body."""

PauseSigns = Mapping[str, tuple[str, str]]
"""What says paused: for each path the key that its answer has as true then, and the sentence for it."""


# --- the OpenAI-style question ---------------------------------------------------------------------------------------

# One token, so that the question costs next to nothing, at temperature 0, so that it always costs the same.
_COMMON: dict[str, object] = {"temperature": 0, "stream": False}
_TEXT = "Say ok."
_MESSAGES = [{"role": "user", "content": _TEXT}]
_QUESTIONS: dict[Form, tuple[str, dict[str, object]]] = {
    Form.CHAT: ("/v1/chat/completions", {"messages": _MESSAGES, "max_tokens": 1, **_COMMON}),
    Form.CHAT_COMPLETION_TOKENS: (
        "/v1/chat/completions",
        {"messages": _MESSAGES, "max_completion_tokens": 1, **_COMMON},
    ),
    Form.COMPLETION: ("/v1/completions", {"prompt": _TEXT, "max_tokens": 1, **_COMMON}),
    Form.EMBEDDING: ("/v1/embeddings", {"input": _TEXT}),
}


def openai_question(form: Form, model: str | None = None) -> QuestionRequest:
    """The question in one form. Without a known model the body names none, and the server takes its own."""
    path, fields = _QUESTIONS[form]
    body = fields if model is None else {"model": model, **fields}
    return QuestionRequest(path, json.dumps(body).encode(), (("Content-Type", "application/json"),))


# --- what an answer is worth -----------------------------------------------------------------------------------------

# Statuses with a meaning of their own; any other from 500 on is a server error, any other below: cannot be asked so.
_STATUS = {
    401: Outcome.DENIED,
    403: Outcome.DENIED,
    407: Outcome.DENIED,  # a proxy in between wants a key
    408: Outcome.FAILED,  # the server gave up waiting, as we would have
    429: Outcome.NOT_NOW,
    501: Outcome.CANNOT,  # the route is known and not built in
    503: Outcome.NOT_NOW,
}

# Requests that brought no status. ERROR (name, route, TLS) is no answer either: the metrics go the same way, so where
# it lasts the reading is blind and nothing follows from it. UNREADABLE came with status 200: something answers, but
# not to the question, like an answer of 200 that is garbage.
_WENT = {
    Went.TIMEOUT: Outcome.FAILED,
    Went.REFUSED: Outcome.FAILED,
    Went.RESET: Outcome.FAILED,
    Went.ERROR: Outcome.FAILED,
    Went.UNREADABLE: Outcome.SERVER_ERROR,
    Went.ABSENT: Outcome.CANNOT,
}

# An answer that refuses a field has one of these statuses; the fields are words of the OpenAI protocol.
_FIELD_REFUSED = (400, 422)
_TOKENS_FIELD = re.compile(r"\bmax_(?:completion_)?tokens\b")


def openai_classify(form: Form, reply: Reply, body: bytes) -> Classified:
    """What the answer to a question of this form is worth; `body` is empty where none came."""
    if reply.went is Went.OK:
        return _accepted(form, body)
    if reply.status is None or reply.went not in (Went.STATUS, Went.ABSENT):
        return Classified(_WENT.get(reply.went, Outcome.FAILED), detail=clean(reply.detail or reply.went))
    return _refused(form, reply.status, body)


def _accepted(form: Form, body: bytes) -> Classified:
    """An answer with status 200: answered if a token was counted, a text given, or a reason named why it ended.

    Empty and missing text is an answer all the same: a reasoning model says nothing in its first token. An error
    object, or anything that answers no question, is a server error: the server speaks, but not to the point.
    """
    tree = parsed(body)
    prompt, completion = _tokens(tree, "prompt_tokens"), _tokens(tree, "completion_tokens")
    if _is_error(tree):
        return Classified(Outcome.SERVER_ERROR, detail=_detail(200, _message(tree, body)))
    if form is Form.EMBEDDING:
        answered = bool(at(tree, "data", 0, "embedding"))
    else:
        answered = isinstance(at(tree, "choices", 0), dict) and (completion > 0 or _ended(at(tree, "choices", 0)))
    if not answered:
        return Classified(Outcome.SERVER_ERROR, detail="status 200, but no answer to the question")
    return Classified(Outcome.ANSWERED, prompt, completion)


def _ended(choice: object) -> bool:
    """Whether a choice says by itself that the model gave something: why it ended, or text."""
    signs = at(choice, "finish_reason"), at(choice, "text"), at(choice, "message", "content")
    return any(isinstance(sign, str) and sign != "" for sign in signs)


def _refused(form: Form, status: int, body: bytes) -> Classified:
    """An answer with another status. One that names the token field is told which form to try next."""
    outcome = _STATUS.get(status, Outcome.SERVER_ERROR if status >= 500 else Outcome.CANNOT)
    message = _message(parsed(body), body)
    renamed = form is Form.CHAT and status in _FIELD_REFUSED and _TOKENS_FIELD.search(message) is not None
    return Classified(
        outcome, detail=_detail(status, message), next_form=Form.CHAT_COMPLETION_TOKENS if renamed else None
    )


def _detail(status: int, message: str) -> str:
    return clean(f"status {status}: {message}" if message.strip() else f"status {status}")


def _tokens(tree: object, key: str) -> int:
    """A count of the answer's usage; 0 where it is not told or cannot be true."""
    count = at(tree, "usage", key)
    return count if type(count) is int and 0 < count <= TOKENS_LIMIT else 0


def _is_error(tree: object) -> bool:
    """Whether the tree is an error object: `{"error": ...}`, or vLLM's own up to 0.10, `{"object": "error", ...}`."""
    return bool(at(tree, "error")) or at(tree, "object") == "error"


# Where servers put the sentence of an error, and with it the name of the field that they refuse: OpenAI's object; a
# plain string; vLLM's flat object up to 0.10; FastAPI's plain and listed `detail`.
_MESSAGES_AT: tuple[tuple[str | int, ...], ...] = (
    ("error", "message"),
    ("error",),
    ("message",),
    ("detail",),
    ("detail", 0, "msg"),
)
_FIELDS_AT: tuple[tuple[str | int, ...], ...] = (("error", "param"), ("param",), ("detail", 0, "loc", 1))


def _message(tree: object, body: bytes) -> str:
    """The sentence of an error answer, with the refused field where it is named apart; else the body as it is."""
    message = _first_text(tree, _MESSAGES_AT)
    field = _first_text(tree, _FIELDS_AT)
    if message is None:
        return body.decode(errors="replace")
    return message if field is None or field in message else f"{message} ({field})"


def _first_text(tree: object, places: Sequence[tuple[str | int, ...]]) -> str | None:
    return next((text for place in places if isinstance(text := at(tree, *place), str) and text), None)


# --- JSON of a stranger ----------------------------------------------------------------------------------------------


def told_true(body: bytes, key: str) -> bool:
    """Whether the body is a JSON object in which `key` is true, and not merely something like it."""
    return at(parsed(body), key) is True


def served_models(body: bytes) -> tuple[str, ...]:
    """The names on a `/v1/models` page, in its order: the model's own, its other names, its adapters.

    A name goes into questions as it is, so one that would have to be cleaned is left out rather than changed.
    """
    names = [at(entry, "id") for entry in entries(parsed(body), "data")]
    return tuple(name for name in names if isinstance(name, str) and name and clean(name) == name)


def served_model(body: bytes) -> str | None:
    """The first name on a `/v1/models` page, None where it tells none."""
    return next(iter(served_models(body)), None)


# --- signs of a pause ------------------------------------------------------------------------------------------------


def absent(reply: Reply) -> bool:
    """Whether the path does not exist on this server."""
    return reply.went is Went.ABSENT or reply.status in (404, 405, 501)


def told_pause(signs: PauseSigns, answers: Sequence[PauseAnswer]) -> Pause:
    """What the pause paths said: the first sign that stands, in the order of `signs`.

    An answer that failed says nothing; the signs are absent where every path that was asked is.
    """
    sign = next(
        (
            sentence
            for path, (key, sentence) in signs.items()
            for asked, reply, body in answers
            if asked == path and reply.went is Went.OK and told_true(body, key)
        ),
        None,
    )
    return Pause(sign, absent=bool(answers) and all(absent(reply) for _, reply, _ in answers))


# --- the dialect -----------------------------------------------------------------------------------------------------


# A number as servers write one that names a start: whole, not negative. 19 digits are 64 bits.
_START = re.compile(r"[0-9]{1,19}")


def read_nothing(_body: bytes) -> Page:
    """What the pages of a server without metrics tell."""
    return Page()


def no_signs(_answers: Sequence[PauseAnswer]) -> Pause:
    """What a server that shows no pause says of one."""
    return Pause(absent=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server. `read` takes a metrics page apart; the metrics in `wanted` are all that it looks at.

    `metrics_path` is None where the kind has no metrics by nature: none are fetched then. `serving` are the statuses of
    `health_path` by which the server serves. `key_paths` are the paths that want the API key, besides the questions,
    which all do. `pause_paths` are asked in this order, and `read_pause` says what their answers mean. `forms` are
    the forms of the question; none: it is never asked. `pin_header` names the header that addresses a question to one
    engine, `start_header` (in lower case) the one on a metrics page that changes with each start. `restartable` is
    false where nothing that is shown is ever a ground for a restart. The last two are the kind's defaults of the
    settings of the same names.
    """

    kind: str
    wanted: frozenset[str] = frozenset()
    read: Callable[[bytes], Page] = read_nothing
    read_pause: Callable[[Sequence[PauseAnswer]], Pause] = no_signs
    pause_paths: tuple[str, ...] = ()
    health_path: str = "/health"
    serving: frozenset[int] = frozenset({200})
    metrics_path: str | None = "/metrics"
    models_path: str = MODELS_PATH
    key_paths: frozenset[str] = frozenset({MODELS_PATH})
    forms: tuple[Form, ...] = tuple(Form)
    pin_header: str | None = None
    start_header: str | None = None
    classify: Callable[[Form, Reply, bytes], Classified] = openai_classify
    restartable: bool = True
    host_evidence: Literal["record", "slow"] = "record"
    silent_after: float | None = 600.0

    @property
    def without_metrics(self) -> bool:
        """Whether the kind has no metrics by nature."""
        return self.metrics_path is None

    @property
    def pinnable(self) -> bool:
        """Whether a question can be addressed to one engine."""
        return self.pin_header is not None

    def health(self, reply: Reply) -> Reply:
        """How the health page went, with every answer that shows a serving server as OK."""
        if reply.went is Went.STATUS and reply.status in self.serving:
            return dataclasses.replace(reply, went=Went.OK)
        return reply

    def start_token(self, headers: Mapping[str, str]) -> float | None:
        """A number for this life of the server from the headers of its metrics page, None where none tells it.

        It stands where a start time would (`Reading.start_time`) and is good for one thing: to be compared with
        another. The names in `headers` are in lower case.
        """
        token = headers.get(self.start_header or "", "")
        return float(token) if _START.fullmatch(token) else None

    def question(
        self, form: Form, model: str | None = None, engine: str | None = None, engines: Sequence[str] = ()
    ) -> QuestionRequest:
        """The question in one form, addressed to `engine` where that is given and can be addressed.

        `engines` are the names of all engines of the last reading, in its order (see `_rank`).
        """
        request = openai_question(form, model)
        rank = None if engine is None else _rank(engine, engines)
        if self.pin_header is None or rank is None:
            return request
        return dataclasses.replace(request, headers=(*request.headers, (self.pin_header, rank)))


def _rank(engine: str, engines: Sequence[str]) -> str | None:
    """The rank that addresses an engine: its place among the engines of its server; None for the only one.

    Its name will not do where several servers share the load (`--data-parallel-external-lb`, `-hybrid-lb`): the names
    number the engines of all, and vLLM answers 400 to a rank that the server asked does not have itself
    (`InputProcessor.process_inputs` in `vllm/v1/engine/input_processor.py`). Where the others are not known the name is
    taken if it is a number; any other text stays out of the header, since it comes from the server.
    """
    if engine in engines:
        return str(engines.index(engine)) if len(engines) > 1 else None
    return engine if engine.isascii() and engine.isdecimal() else None
