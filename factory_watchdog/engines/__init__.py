"""The kinds of server that we know: what each shows, as data and pure functions."""

from __future__ import annotations

from factory_watchdog.engines.dialect import Dialect
from factory_watchdog.engines.vllm import VLLM

DIALECTS: dict[str, Dialect] = {dialect.kind: dialect for dialect in (VLLM,)}


def dialect_of(kind: str) -> Dialect:
    """The dialect of a kind as the configuration names it; "auto" is the one kind that this release knows."""
    return VLLM if kind == "auto" else DIALECTS[kind]
