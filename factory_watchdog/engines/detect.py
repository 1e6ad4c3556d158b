"""What kind of server answers at an address, for `kind = "auto"`.

Two requests tell, and before the kind is known no other may be sent: GET `/v1/models` (with the API key, where one is
set) and GET `/metrics` (without it). A proxy may turn any other into load: LiteLLM's `/health` sends a chat to every
server behind it, and llama-swap loads a model for what it does not answer itself.

Nothing is said before both were answered, since half of what a proxy shows may look like a server. Then the rules are
asked in order, and the first that fits decides. Proxies come first, since they may show the words of the servers behind
them; then the engines' own series, then what they call themselves, then their errors. `openai` comes last, and wants
both answers to be good, so that no server is taken for it that is only starting, slow, or locked. An nginx and the
main port of vllm-router are not recognised here, since they pass on one server's pages as they are: they look like that
server until start times alternate.

Where no rule fits, the kind is not known *yet*, for as long as the server refuses, loads, is silent, or wants a key for
its models and shows no metrics: that 401 is the same of a vLLM, of an SGLang, and of an nginx in front of nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Protocol

from factory_watchdog.core.model import Reply, Went
from factory_watchdog.engines.dialect import MODELS_PATH, Dialect, served_models
from factory_watchdog.engines.openai import LISTED
from factory_watchdog.engines.tree import at, entries, parsed


class Got(Protocol):
    """How a request for a page went, its body, and those of its headers that were kept, their names in lower case."""

    @property
    def reply(self) -> Reply: ...

    @property
    def body(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Detected:
    """The kind of a server, and one sentence by what it was told."""

    kind: str
    why: str


UNDETECTED = Dialect(kind="auto", health_path=MODELS_PATH, serving=LISTED, forms=())
"""How a backend is watched whose kind is not known yet: by the two pages that `detect` wants, and never asked."""

# An answer of any kind: the others are those of a server that is not there, or not yet, or not now.
ANSWERED = frozenset({Went.OK, Went.STATUS, Went.ABSENT, Went.UNREADABLE})

# Series by which a proxy tells of itself. The router of vLLM's production stack names its own like the engine's.
PROXY_SERIES = {
    "litellm_": "LiteLLM",
    "vllm_router_": "vllm-router",
    "sgl_router_": "SGLang's router",
    "vllm:healthy_pods_total": "the router of vLLM's production stack",
}
ENGINE_SERIES = {"vllm:": "vllm", "llamacpp:": "llamacpp"}

# Whom a list of models names as `owned_by`.
OWNERS = {"vllm": "vllm", "llamacpp": "llamacpp"}
PROXY_OWNERS = {"llama-swap": "llama-swap"}

# LiteLLM gives every model the same date (`DEFAULT_MODEL_CREATED_AT_TIME` in `litellm/constants.py`).
LITELLM_CREATED = 1677610602
LITELLM_REFUSES = "auth_error"  # the type of its error for a key that is missing or wrong, `ProxyErrorTypes`

# llama.cpp's own errors: status, the error's key, and what stands there.
LLAMACPP_ERRORS = (
    (503, "message", "Loading model"),
    (501, "type", "not_supported_error"),  # metrics that are switched off
)
SERVER_HEADER = "server"  # where llama.cpp names itself, in every answer
LLAMACPP_SERVER = "llama.cpp"

# The beginnings of names, on lines of samples and on those that announce them: series with labels have no sample yet
# on a server that did nothing yet. The longer of two that begin alike stands first.
_NAMES = sorted([*PROXY_SERIES, *ENGINE_SERIES], key=len, reverse=True)
_LINE = re.compile(rb"\n(?:# (?:HELP|TYPE) )?(%s)" % "|".join(map(re.escape, _NAMES)).encode())


def detect(models: Got, metrics: Got) -> Detected | None:
    """The kind of the server that gave these answers to GET `/v1/models` and GET `/metrics`; None: not known yet."""
    if models.reply.went not in ANSWERED or metrics.reply.went not in ANSWERED:
        return None
    return next((detected for rule in RULES if (detected := rule(models, metrics)) is not None), None)


def _series(metrics: Got) -> frozenset[str]:
    """The known beginnings of names on a metrics page."""
    if metrics.reply.went is not Went.OK:
        return frozenset()
    return frozenset(name.decode() for name in _LINE.findall(b"\n" + metrics.body))


def _listed(models: Got) -> list[object]:
    """The entries of a list of models."""
    return entries(parsed(models.body), "data") if models.reply.went is Went.OK else []


def _owners(models: Got) -> frozenset[str]:
    return frozenset(owner for entry in _listed(models) if isinstance(owner := at(entry, "owned_by"), str))


# --- the rules -------------------------------------------------------------------------------------------------------


def proxy_series(_models: Got, metrics: Got) -> Detected | None:
    """A proxy's own metrics."""
    found = _series(metrics)
    return next(
        (Detected("proxy", f"its metrics are those of {who}") for name, who in PROXY_SERIES.items() if name in found),
        None,
    )


def proxy_models(models: Got, _metrics: Got) -> Detected | None:
    """A list of models as only proxies give one.

    llama-swap and a llama-server without a model of its own (its router mode) tell of each model whether it is loaded,
    since a request loads it.
    """
    listed, owners = _listed(models), _owners(models)
    who = next((who for owner, who in PROXY_OWNERS.items() if owner in owners), None)
    if who is not None:
        return Detected("proxy", f"its models are owned by {who}")
    if any(isinstance(at(entry, "status", "value"), str) for entry in listed):
        return Detected("proxy", "it loads its models when they are asked for")
    if listed and all(at(entry, "created") == LITELLM_CREATED for entry in listed):
        return Detected("proxy", "its models have the date that LiteLLM gives to all")
    if len(owners) > 1 and any(owner in OWNERS for owner in owners):
        return Detected("proxy", "its models are owned by several kinds of server")
    return None


def proxy_refusal(models: Got, metrics: Got) -> Detected | None:
    """LiteLLM with a key that we lack."""
    refusals = (got for got in (models, metrics) if got.reply.status in (401, 403))
    if any(at(parsed(got.body), "error", "type") == LITELLM_REFUSES for got in refusals):
        return Detected("proxy", "it refuses our key as LiteLLM does")
    return None


def engine_series(_models: Got, metrics: Got) -> Detected | None:
    """An engine's own metrics."""
    found = _series(metrics)
    return next(
        (Detected(kind, f"its metrics have {name} series") for name, kind in ENGINE_SERIES.items() if name in found),
        None,
    )


def engine_owner(models: Got, _metrics: Got) -> Detected | None:
    """A list of models that says whose they are: vLLM's with `--disable-log-stats`, llama.cpp's without `--metrics`."""
    owners = _owners(models)
    return next(
        (Detected(kind, f"its models are owned by {owner}") for owner, kind in OWNERS.items() if owner in owners), None
    )


def llamacpp_words(models: Got, metrics: Got) -> Detected | None:
    """llama.cpp's name in a header, or its words in an error; it has both while it still loads."""
    for got in (models, metrics):
        if got.headers.get(SERVER_HEADER) == LLAMACPP_SERVER:
            return Detected("llamacpp", f"it calls itself {LLAMACPP_SERVER}")
        for status, key, words in LLAMACPP_ERRORS:
            if got.reply.status == status and at(parsed(got.body), "error", key) == words:
                return Detected("llamacpp", f"its error {status} is llama.cpp's")
    return None


def openai_models(models: Got, metrics: Got) -> Detected | None:
    """A list of models with a name in it, and metrics that are not there or of no kind that we know."""
    settled = metrics.reply.went in (Went.OK, Went.ABSENT)
    if not settled or models.reply.went is not Went.OK or not served_models(models.body):
        return None
    return Detected("openai", "it lists models and shows no metrics that we know")


RULES: tuple[Callable[[Got, Got], Detected | None], ...] = (
    proxy_series,
    proxy_models,
    proxy_refusal,
    engine_series,
    engine_owner,
    llamacpp_words,
    openai_models,
)
"""Every rule, in the order in which they are asked."""
