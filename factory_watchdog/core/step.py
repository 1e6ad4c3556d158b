"""The one entrance: `step(state, event, now) -> (state, effects)`. Pure: the same arguments give the same result."""

from __future__ import annotations

from collections.abc import Mapping

from factory_watchdog.core import orders
from factory_watchdog.core.asking import receive, settle
from factory_watchdog.core.holds import Now, hold_sentence
from factory_watchdog.core.judge import judge
from factory_watchdog.core.memory import Backend, Finding, Phase, Recovery, replace
from factory_watchdog.core.model import (
    Alert,
    Answered,
    Effect,
    Event,
    JobEnded,
    Look,
    Polled,
    Raise,
    Reading,
    ResetAsked,
    RestartAsked,
    Settings,
    State,
    Turned,
    Verdict,
)
from factory_watchdog.core.observe import calm, observe, stands_still
from factory_watchdog.core.recovery import advance, finding_shown, job_ended
from factory_watchdog.core.window import measured, with_window
from factory_watchdog.core.wording import span

Host = Mapping[str, Backend]
"""The state of a host: what is known of each backend, by name."""

UNKNOWN = Backend()
"""A backend of which nothing is known yet."""


def step_host(host: Host, name: str, event: Event, now: float, settings: Settings) -> tuple[Host, tuple[Effect, ...]]:
    """One event of one backend, with the other backends' restarts in view: one restart at a time on a host."""
    backend, effects = step(host.get(name, UNKNOWN), event, now, settings, restarting(host, name))
    return {**host, name: backend}, effects


def restarting(host: Host, name: str) -> tuple[str, ...]:
    """The backends under restart on this host, but for `name`."""
    return tuple(n for n, b in host.items() if n != name and b.recovery.phase.restarting)


def step(
    backend: Backend, event: Event, now: float, settings: Settings, others: tuple[str, ...] = ()
) -> tuple[Backend, tuple[Effect, ...]]:
    """What an event makes of a backend, and what is to be done. `others` are backends under restart on this host."""
    settings = with_window(settings, backend.restart_cost)
    match event:
        case Polled(reading):
            return _polled(backend, reading, now, settings, others)
        case Answered(answer):
            if backend.memory is None:
                return backend, ()
            return replace(backend, memory=receive(backend.memory, answer)), (Look(),)
        case JobEnded():
            recovery, effects = job_ended(backend.recovery, event, now)
            return replace(backend, recovery=recovery), effects
        case ResetAsked():
            return orders.reset(backend), (Look(),)
        case RestartAsked():
            return orders.restart(backend, event, now, settings, others)


def wants_pause_signs(backend: Backend, reading: Reading, settings: Settings) -> bool:
    """Whether the pause signs must be read to complete this reading.

    They cost a round trip into the engine's loop, so a backend that works is never asked for them: only a flat
    reading, one that will settle a question or a confirmation, and one of a paused backend.
    """
    memory = backend.memory
    if memory is None or not memory.life.up or memory.life.no_pause_signs:
        return False
    if memory.paused_since is not None or memory.asking.answer is not None or memory.says_dead:
        return True
    if restart_may_follow(backend):
        return True
    return any(e.requests for e in memory.engines) and stands_still(memory, reading)


def restart_may_follow(backend: Backend) -> bool:
    """Whether the next reading may be the one that a restart rests on, so that it has to see all that forbids one."""
    return backend.recovery.phase in (Phase.CONFIRM, Phase.HELD)


def _polled(
    backend: Backend, reading: Reading, now: float, settings: Settings, others: tuple[str, ...]
) -> tuple[Backend, tuple[Effect, ...]]:
    memory = settle(observe(backend.memory, reading, settings), reading, settings)
    finding, resets = judge(memory, _of_our_own_stop(reading, backend.recovery), settings)
    if resets:
        memory = calm(memory)
    at = Now(now, reading, finding, settings, others)
    memory, recovery, effects = advance(memory, backend.recovery, at)
    finding = finding_shown(memory, recovery, at)
    verdict = _verdict(backend.verdict, finding, recovery, at)
    alerts, alerted = _standing_alerts(backend.alerted, finding, reading, settings, now)
    turned = _turned(backend.verdict, verdict)
    cost = measured(backend, memory, now)
    state = Backend(memory, finding, recovery, verdict, reading, alerted, cost)
    return state, (*turned, *alerts, *effects)


def _of_our_own_stop(reading: Reading, recovery: Recovery) -> Reading:
    """A unit that failed of being stopped is nobody's wish where it was our restart that stopped it."""
    unit, ended = reading.unit, recovery.identity
    if unit is None or unit.active != "failed" or ended is None or ended.invocation != unit.invocation:
        return reading
    return replace(reading, unit=replace(unit, own_exit=None))


def _turned(previous: Verdict | None, verdict: Verdict) -> tuple[Effect, ...]:
    if previous is not None and previous.state is verdict.state and previous.engine == verdict.engine:
        return ()
    return (Turned(verdict, previous),)


def _verdict(previous: Verdict | None, finding: Finding, recovery: Recovery, at: Now) -> Verdict:
    """What is shown: the finding, or while a restart is decided, held or under way, the ground of it."""
    state = _unconfirmed(finding) if finding.candidate else finding.state
    why, rule, engine = finding.why, finding.rule, finding.engine
    ground = recovery.ground
    if ground is not None and recovery.phase is not Phase.SERVE:
        state, why, rule, engine = ground.state, ground.why, ground.rule, ground.engine
        if recovery.phase is Phase.CONFIRM:
            state = state if recovery.told else _unconfirmed(ground)
            why = f"{why}; confirming"
        elif recovery.phase is Phase.HELD:
            why = f"{why}; {hold_sentence(recovery.holds, recovery, at)}"
        else:
            why = f"{why}; restart {recovery.attempt} under way for {span(at.time - recovery.since)}"
    if previous is None or previous.state is not state or previous.engine != engine:
        return Verdict(state, at.time, why, rule, engine)
    if previous.why == why and previous.rule == rule:
        return previous
    return Verdict(state, previous.since, why, rule, engine)


def _unconfirmed(finding: Finding) -> State:
    """What a finding is until it is confirmed: what a question was answered against stays what it was."""
    vetoed = any(alert is Alert.STAND_STILL for alert, _ in finding.alerts)
    return State.DEGRADED if vetoed else State.SUSPECT


def _standing_alerts(
    alerted: tuple[Alert, ...], finding: Finding, reading: Reading, settings: Settings, now: float
) -> tuple[tuple[Raise, ...], tuple[Alert, ...]]:
    """Alerts that stand as long as their condition does, raised once when it begins."""
    standing = [*finding.alerts]
    flag = reading.flag
    if flag.stale:
        standing.append((Alert.STALE_FLAG, f"a stale busy flag is ignored: {flag.why}"))
    if flag.held and flag.since is not None and now - flag.since >= settings.flag_alert:
        standing.append((Alert.FLAG_LONG, f"the busy flag is held for {span(now - flag.since)}: {flag.why}"))
    if reading.foreign is not None:
        standing.append((Alert.FOREIGN_PROCESS, f"foreign process on the port: {reading.foreign.detail}"))
    if not standing and not alerted:
        return (), ()
    new = tuple(Raise(alert, why, finding.engine) for alert, why in standing if alert not in alerted)
    return new, tuple(alert for alert, _ in standing)
