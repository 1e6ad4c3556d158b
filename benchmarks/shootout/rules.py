"""The rules that people use today, each as published: small pure functions of what they remember and what they see.

A rule looks at one endpoint at a fixed interval. It gets what it remembered and what came of its look, and gives what
it remembers from then on and whether it restarts the server now. No rule sees more than its own endpoint shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

Endpoint = Literal["chat", "health", "metrics"]


@dataclass(frozen=True, slots=True)
class Totals:
    """What a metrics page says, summed over its series; None where it does not tell."""

    running: float | None
    generated: float | None
    steps: float | None
    prompt: float | None
    kv: float | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one look, at `t`: whether status 200 came in time, and the totals of a metrics page.

    `life` tells one run of the server from the next; a container's probes know it, a cron job does not.
    """

    t: float
    answered: bool
    life: object
    totals: Totals | None = None


Judge = Callable[[Any, Seen], tuple[Any, bool]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: what it asks, how often and with what limit (seconds), how it judges, and where it is published.

    `probe`: it is run by what runs the container, which does not probe a server that its operator stopped.
    """

    name: str
    asks: Endpoint
    every: float
    limit: float
    judge: Judge
    source: str
    probe: bool = False


MISSES = 5
PROBE_FAILURES = 3
STARTUP = 3600.0  # seconds: 600 failures, 6 s apart
FLAT_READS = 2
WINDOW = 120.0  # seconds


def chat_misses(misses: int | None, seen: Seen) -> tuple[int, bool]:
    """Five chat requests in a row without an answer in time."""
    count = 0 if seen.answered else (misses or 0) + 1
    return (0, True) if count >= MISSES else (count, False)


@dataclass(frozen=True, slots=True)
class Probed:
    """What a container's probes remember of a life: since when, whether it came up, and failures in a row."""

    life: object
    since: float
    up: bool = False
    failures: int = 0


def health_probe(memory: Probed | None, seen: Seen) -> tuple[Probed | None, bool]:
    """Three failed probes in a row. Until the first success of a life the startup probe stands in, for an hour."""
    if memory is None or memory.life != seen.life:
        memory = Probed(seen.life, seen.t)
    if seen.answered:
        return replace(memory, up=True, failures=0), False
    if not memory.up:
        return memory, seen.t - memory.since >= STARTUP
    memory = replace(memory, failures=memory.failures + 1)
    return memory, memory.failures >= PROBE_FAILURES


def tokens_stand(before: float | None, seen: Seen) -> tuple[float | None, bool]:
    """Requests run, and no token was generated since the last read."""
    totals = seen.totals
    if totals is None or totals.generated is None:
        return before, False
    stands = before is not None and totals.generated == before and bool(totals.running)
    return totals.generated, stands


def steps_stand(memory: tuple[float, int] | None, seen: Seen) -> tuple[tuple[float, int] | None, bool]:
    """Requests run, and the count of iterations was the same in two reads after each other."""
    totals = seen.totals
    if totals is None or totals.steps is None:
        return memory, False
    if memory is None or totals.steps != memory[0] or not totals.running:
        return (totals.steps, 0), False
    flat = memory[1] + 1
    return (totals.steps, flat), flat >= FLAT_READS


Flat = tuple[object, tuple[float | None, ...], float]


def window_flat(memory: Flat | None, seen: Seen) -> tuple[Flat | None, bool]:
    """Requests run, and tokens and KV usage, summed over all series, are what they were 120 s ago; or unreachable."""
    totals = seen.totals
    if totals is None:
        served = memory is not None and memory[0] == seen.life
        return memory, served
    shown = (totals.generated, totals.prompt, totals.kv)
    if memory is None or memory[0] != seen.life or shown != memory[1] or not totals.running:
        return (seen.life, shown, seen.t), False
    return memory, seen.t - memory[2] >= WINDOW


RULES = (
    Rule(
        "chat request every 5 min, 45 s limit, five misses",
        "chat",
        300.0,
        45.0,
        chat_misses,
        "a common cron check; that a probe by completion fails under load is reported in fr0ster/llm-agent#13",
    ),
    Rule(
        "liveness on `/health`: every 10 s, 1 s limit, three failures",
        "health",
        10.0,
        1.0,
        health_probe,
        "the defaults of castai/helm-charts, `castai-hosted-model/child-charts/vllm`, with its startup probe",
        probe=True,
    ),
    Rule(
        "generated tokens the same in two reads, a minute apart, while requests run",
        "metrics",
        60.0,
        10.0,
        tokens_stand,
        "the signal advised in eugr/spark-vllm-docker#260, where it is also said that it fires in long prefills",
    ),
    Rule(
        "iteration count flat in two reads, a minute apart each, while requests run",
        "metrics",
        60.0,
        10.0,
        steps_stand,
        "the heartbeat of gonka-ai/gonka#1421 (there with 120 s of grace)",
    ),
    Rule(
        "running above 0, tokens and KV usage flat for 120 s, summed; unreachable: restart",
        "metrics",
        10.0,
        10.0,
        window_flat,
        "a common liveness script of containers",
        probe=True,
    ),
)
