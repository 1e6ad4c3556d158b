"""A backend's state as others are told it: machines, batch jobs, monitoring."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import MEANING, Went


def is_ready(backend: Backend) -> bool:
    """Whether the backend should get traffic; while blind its own /health decides."""
    verdict, reading = backend.verdict, backend.reading
    if verdict is None:
        return False
    ready = MEANING[verdict.state].ready
    if ready is not None:
        return ready
    return reading is not None and reading.health.went is Went.OK


def status_of(name: str, backend: Backend, boottime: float, wall: float) -> dict[str, Any]:
    """A backend for machines: its verdict, what it means to others, and its gauges where they are told."""
    verdict = backend.verdict
    if verdict is None:
        return {"name": name, "state": None, "why": "not judged yet", "ready": False, "live": True}
    samples = backend.reading.engines if backend.reading is not None else ()
    return {
        "name": name,
        "state": verdict.state.value,
        "since": wall - (boottime - verdict.since),
        "why": verdict.why,
        "rule": verdict.rule,
        "engine": verdict.engine,
        "live": MEANING[verdict.state].live,
        "ready": is_ready(backend),
        "running": _sum(s.running for s in samples),
        "waiting": _sum(s.waiting for s in samples),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    told = [v for v in values if v is not None]
    return sum(told) if told else None
