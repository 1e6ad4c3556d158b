"""The kinds of server that we know: what each shows, as data and pure functions."""

from __future__ import annotations

from factory_watchdog.engines.detect import SERVER_HEADER, UNDETECTED
from factory_watchdog.engines.dialect import Dialect
from factory_watchdog.engines.llamacpp import LLAMACPP
from factory_watchdog.engines.openai import OPENAI
from factory_watchdog.engines.proxy import PROXY
from factory_watchdog.engines.vllm import VLLM

DIALECTS: dict[str, Dialect] = {dialect.kind: dialect for dialect in (VLLM, LLAMACPP, OPENAI, PROXY)}

HEADERS: frozenset[str] = frozenset({SERVER_HEADER}) | {d.start_header for d in DIALECTS.values() if d.start_header}
"""The headers of an answer that tell something to `detect` or to a dialect, in lower case; no other need be kept."""


def dialect_of(kind: str) -> Dialect:
    """The dialect of a kind as the configuration names it; "auto" is the one with which the kind is found out."""
    return UNDETECTED if kind == UNDETECTED.kind else DIALECTS[kind]
