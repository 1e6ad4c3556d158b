"""The bodies that a vLLM server answers with, as a real one words them (0.32.0)."""

from __future__ import annotations

import json
from typing import Any

from factory_watchdog.core.model import Form

CREATED = 1_750_000_000  # a fixed time, so that the same scenario gives the same bytes
QUESTION_PATHS = {
    "/v1/chat/completions": Form.CHAT,
    "/v1/completions": Form.COMPLETION,
    "/v1/embeddings": Form.EMBEDDING,
}
"""The paths that take questions, each with the form that it is asked in."""

# Tokens of the short prompt: a chat's template adds some, a pooling model generates none.
PROMPT_TOKENS = {Form.CHAT: 4, Form.COMPLETION: 2, Form.EMBEDDING: 2}
GENERATED_TOKENS = {Form.CHAT: 1, Form.COMPLETION: 1, Form.EMBEDDING: 0}

NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)
WRONG_FIELD = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
_TYPES = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 503: "ServiceUnavailableError"}
_MESSAGES = {429: "Too many requests", 500: "Internal server error", 503: "The server is overloaded"}


def body(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def error(status: int, message: str | None = None, param: str | None = None) -> bytes:
    """What comes with an error `status`."""
    if status in (401, 403):
        return body({"error": "Unauthorized" if status == 401 else "Forbidden"})
    text = message or _MESSAGES.get(status, f"status {status}")
    kind = _TYPES.get(status, "InternalServerError")
    return body({"error": {"message": text, "type": kind, "param": param, "code": status}})


def no_route() -> bytes:
    return body({"detail": "Not Found"})


def models(model: str) -> bytes:
    entry = {"id": model, "object": "model", "created": CREATED, "owned_by": "vllm", "root": model, "parent": None}
    return body({"object": "list", "data": [{**entry, "max_model_len": 8192}]})


def answer(form: Form, model: str, number: int, *, empty: bool = False) -> bytes:
    """The answer to question `number`: one token, or, where `empty`, one that counted and left no text."""
    content: dict[str, Any] = {
        Form.CHAT: {"object": "chat.completion", "choices": [_chat_choice(empty)]},
        Form.COMPLETION: {"object": "text_completion", "choices": [_text_choice(empty)]},
        Form.EMBEDDING: {"object": "list", "data": [{"index": 0, "object": "embedding", "embedding": [0.6, -0.8]}]},
    }[form]
    prompt, generated = PROMPT_TOKENS[form], GENERATED_TOKENS[form]
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}
    return body({"id": f"simulated-{number}", "created": CREATED, "model": model, **content, "usage": usage})


def _chat_choice(empty: bool) -> dict[str, Any]:
    message = {"role": "assistant", "content": None if empty else "Hi", "reasoning": "" if empty else None}
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": "length", "stop_reason": None}


def _text_choice(empty: bool) -> dict[str, Any]:
    return {"index": 0, "text": "" if empty else "Hi", "logprobs": None, "finish_reason": "length", "stop_reason": None}
