"""What an operator orders, beside what the rules decide; and whether a restart that was ordered is still due."""

from __future__ import annotations

from factory_watchdog.core.holds import Now, hold_sentence, holds_now
from factory_watchdog.core.memory import Backend, Finding, Phase, replace
from factory_watchdog.core.model import (
    Alert,
    Effect,
    Hold,
    Identity,
    Raise,
    Restart,
    RestartAsked,
    Settings,
    State,
    UnitFacts,
)
from factory_watchdog.core.observe import identity_of, is_new
from factory_watchdog.core.recovery import begin

OPERATOR = "operator"
"""The rule of a restart that an operator asked for."""

NO_HOLDS = frozenset({Hold.OBSERVE})
"""Holds that forbid only our own decisions: in observe mode the operator decides."""

Ordered = tuple[Backend, tuple[Effect, ...]]


def why_not(backend: Backend, now: float, settings: Settings, others: tuple[str, ...]) -> str | None:
    """Why a restart that an operator asks for cannot be made now; None where it can."""
    at = _now(backend, now, settings, others)
    if backend.memory is None or at is None:
        return "not judged yet"
    if backend.recovery.phase.restarting:
        return f"restart {backend.recovery.attempt} is under way"
    holds = tuple(hold for hold in holds_now(backend.recovery, at) if hold not in NO_HOLDS)
    return hold_sentence(holds, backend.recovery, at) if holds else None


def restart(backend: Backend, event: RestartAsked, now: float, settings: Settings, others: tuple[str, ...]) -> Ordered:
    """Begin a restart that an operator asked for, with the same proof, holds and end as one of ours."""
    memory, at = backend.memory, _now(backend, now, settings, others)
    if memory is None or at is None or why_not(backend, now, settings, others) is not None:
        return backend, ()
    ground = Finding(State.STOPPED, OPERATOR, f"asked for by {event.by}", since=now)
    recovery, order = begin(memory, backend.recovery, at, ground, event.by)
    sentence = f"restart {recovery.attempt}: {ground.why}"
    return replace(backend, recovery=recovery), (Raise(Alert.RESTART, sentence), order)


def still_due(backend: Backend, order: Restart, now: float, settings: Settings, others: tuple[str, ...]) -> bool:
    """Whether a restart may still be made after evidence was taken: the same life, the same ground, and no hold."""
    at, recovery = _now(backend, now, settings, others), backend.recovery
    if at is None or recovery.phase is not Phase.RESTART or recovery.attempt != order.attempt:
        return False
    if is_new(order.identity, identity_of(at.reading)):
        return False
    holds = holds_now(replace(recovery, restarts=recovery.restarts[:-1]), at)
    if order.by is not None:
        return not set(holds) - NO_HOLDS
    same = (at.finding.rule, at.finding.engine) == (order.proof.rule, order.proof.engine)
    return at.finding.candidate and same and not holds


def is_life_of(unit: UnitFacts, identity: Identity) -> bool | None:
    """Whether a unit still shows that life; None where it is not told. The last look before a restart."""
    if not unit.told:
        return None
    return not is_new(identity, Identity(None, unit.invocation, unit.main_pid, unit.main_start))


def reset(backend: Backend) -> Backend:
    """Close the breaker and forget past restarts; one that is under way goes on."""
    recovery = backend.recovery
    told = tuple(hold for hold in recovery.told if hold is not Hold.BREAKER)
    return replace(backend, recovery=replace(recovery, restarts=(), told=told))


def _now(backend: Backend, now: float, settings: Settings, others: tuple[str, ...]) -> Now | None:
    if backend.reading is None or backend.finding is None:
        return None
    return Now(now, backend.reading, backend.finding, settings, others)
