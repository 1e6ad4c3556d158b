"""What is known of a backend, what is missing, what happens when, why there is no restart: the text of `explain`."""

from __future__ import annotations

from collections.abc import Iterator

from factory_watchdog.core.holds import Now, hold_sentence, holds_now
from factory_watchdog.core.judge import window
from factory_watchdog.core.memory import Backend, Finding, Memory, Phase
from factory_watchdog.core.model import Owner, Reading, Settings, State
from factory_watchdog.core.window import explained, with_window
from factory_watchdog.core.wording import count, span

_UNLESS: dict[str, str] = {
    "flat": "unless a step, a token or the cache moves, it says that it is paused, or its life changes",
    "stand-still": "unless a step, a token or the cache moves, it says that it is paused, or its life changes",
    "unanswered": "unless it answers a question or anything moves",
    "refused": "unless it accepts a connection, or its unit is stopped or started again",
    "silent": "unless any endpoint says anything",
    "starting": "unless it serves before",
}
"""What keeps a finding from becoming a ground for a restart, by its rule."""


def forecast(backend: Backend, settings: Settings, now: float) -> tuple[str, ...]:
    """Sentences about a backend, the most important first."""
    memory, finding, reading = backend.memory, backend.finding, backend.reading
    if memory is None or finding is None or reading is None or backend.verdict is None:
        return ("Nothing is known yet: no poll has come to its end.",)
    verdict, settings = backend.verdict, with_window(settings, backend.restart_cost)
    window = explained(settings, backend.restart_cost)
    at = Now(now, reading, finding, settings, ())
    return (
        f"It is {verdict.state} for {span(now - verdict.since)}: {verdict.why}.",
        *_what_next(backend, finding, settings, now),
        *_life(memory, settings, now),
        *([window] if window is not None else []),
        *_missing(memory, reading),
        *_no_restart(backend, at),
    )


def _what_next(backend: Backend, finding: Finding, settings: Settings, now: float) -> Iterator[str]:
    memory, phase = backend.memory, backend.recovery.phase
    if phase is Phase.CONFIRM:
        yield "It is being confirmed: an answer, movement, a pause or a new life ends the suspicion."
        return
    if phase.restarting:
        limit = settings.startup_timeout - (now - backend.recovery.since)
        yield f"A restart is under way; it has to serve within {span(limit)}."
        return
    if finding.due is not None and not finding.candidate:
        becomes = "dead" if finding.rule in ("refused", "starting") else "hung"
        proof = (
            f", after a question of up to {span(settings.question_timeout)}" if settings.forms and finding.ask else ""
        )
        unless = _UNLESS.get(finding.rule, "unless anything changes")
        yield f"{becomes.capitalize()} in {span(finding.due - now)}{proof}, {unless}."
    if memory is not None and memory.asking.due is not None and finding.state in (State.IDLE, State.SUSPECT):
        if settings.forms:
            yield f"The next question is due in {span(memory.asking.due - now)}, if it is still quiet then."
        else:
            yield 'It is never asked (question = "never"): a wedge while idle is not seen.'


def _life(memory: Memory, settings: Settings, now: float) -> Iterator[str]:
    life = memory.life
    served = "has served" if life.up else "has not served yet"
    yield f"This life was first seen {span(now - life.since)} ago and {served}."
    if life.up and not life.outcome:
        limit = span(window(memory, settings))
        yield f"It has given no token yet, so that it may compile: requests may stand still for {limit}."


def _missing(memory: Memory, reading: Reading) -> Iterator[str]:
    if not reading.readable:
        yield "The metrics cannot be read now, so progress cannot be seen."
    lacking = sorted({name for engine in memory.engines for name in engine.lacking})
    if lacking:
        yield f"Required signals are missing: {', '.join(lacking)}."
    if memory.life.no_pause_signs:
        yield "Pause signs are not offered: a paused server cannot be told from a hung one, except by a question."
    if memory.asking.complaint is not None:
        yield f"It cannot be asked: {memory.asking.complaint}."
    if reading.unit is not None and not reading.unit.told:
        yield f"The service manager does not tell of the unit: {reading.unit.detail}."
    if reading.port is not None and reading.port.owner in (Owner.CONTAINER, Owner.UNKNOWN):
        yield f"Whose the port is cannot be told: {reading.port.detail}."
    identity = memory.life.identity
    if identity.start_time is None and identity.invocation is None:
        yield "Neither the metrics nor a unit tell who it is: a restart by others is seen only as refusal."


def _no_restart(backend: Backend, at: Now) -> Iterator[str]:
    recovery, settings = backend.recovery, at.settings
    used = sum(1 for t in recovery.restarts if at.time - t < settings.restart_window)
    yield f"{used} of {count(settings.max_restarts, 'restart')} in {span(settings.restart_window)} used."
    holds = holds_now(recovery, at)
    if holds:
        yield f"A restart would be {hold_sentence(holds, recovery, at)}."
    elif not recovery.phase.restarting:
        yield "Nothing would hold a restart, if there were a ground for one."
