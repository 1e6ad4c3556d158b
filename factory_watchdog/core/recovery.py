"""From suspicion to a served restart: findings -> effects.

`TRANSITIONS` is the whole of it; docs/reference/states.md draws it. One function a phase; each takes the state with the
newest reading already in it and returns the next recovery with the effects of the change. Nothing here looks at a clock
or at the world.
"""

from __future__ import annotations

from factory_watchdog.core.asking import LONGEST_SPACING, ask
from factory_watchdog.core.holds import HOLD_WORDS, Now, hold_sentence, holds_now, kept, pids
from factory_watchdog.core.judge import window
from factory_watchdog.core.memory import Backend, Finding, Memory, Phase, Recovery, Settled, replace
from factory_watchdog.core.model import (
    Alert,
    Ask,
    Effect,
    Hold,
    JobEnded,
    JobResult,
    Look,
    Proof,
    Purpose,
    Raise,
    Restart,
    RestartSettled,
    State,
)
from factory_watchdog.core.observe import COMPUTING_COUNTS, calm, identity_of, is_new, pause_sign
from factory_watchdog.core.wording import span

SAME_LIFE = 3
"""Readings after a finished job that still show the old life, before the restart counts as not done: the manager's
properties change before the job ends, so one would do; the others are for a manager that answers late."""

TRANSITIONS: dict[tuple[Phase, Phase], str] = {
    (Phase.WATCH, Phase.CONFIRM): "a ground for a restart",
    (Phase.CONFIRM, Phase.WATCH): "answered, moved, paused, a gap, a new life",
    (Phase.CONFIRM, Phase.HELD): "confirmed, and a hold stands",
    (Phase.CONFIRM, Phase.RESTART): "confirmed",
    (Phase.HELD, Phase.WATCH): "answered, moved, paused, a gap, a new life",
    (Phase.HELD, Phase.CONFIRM): "the last hold is over",
    (Phase.WATCH, Phase.RESTART): "an operator's order",
    (Phase.HELD, Phase.RESTART): "an operator's order",
    (Phase.RESTART, Phase.LIFE): "the job is done, or we were restarted",
    (Phase.RESTART, Phase.SERVE): "a new life before the job's end",
    (Phase.RESTART, Phase.WATCH): "no job, it failed or never ended",
    (Phase.RESTART, Phase.CONFIRM): "a new life that has a ground at once",
    (Phase.LIFE, Phase.SERVE): "a new life",
    (Phase.LIFE, Phase.WATCH): "no new life came, or it served at once",
    (Phase.LIFE, Phase.CONFIRM): "a new life that has a ground at once",
    (Phase.SERVE, Phase.WATCH): "served; stopped; or not served in time",
    (Phase.SERVE, Phase.CONFIRM): "a ground for another restart",
}
"""Every change of phase that one event can make, and what makes it."""

LEFT_OVER_TIME = 300.0
"""Seconds after a restart in which processes of the old life may end: one that is stuck in a driver either comes back
within minutes or never."""

Step = tuple[Memory, Recovery, tuple[Effect, ...]]


def advance(memory: Memory, recovery: Recovery, now: Now) -> Step:
    """The recovery after a reading."""
    if now.finding.candidate and _vetoed(memory, recovery, now):
        now = replace(now, finding=_stand_still(now.finding))
    return _PHASES[recovery.phase](memory, recovery, now)


def finding_shown(memory: Memory, recovery: Recovery, now: Now) -> Finding:
    """The finding as the verdict shows it: one that an answer vetoed is not a ground for anything."""
    return _stand_still(now.finding) if now.finding.candidate and _vetoed(memory, recovery, now) else now.finding


def _vetoed(memory: Memory, recovery: Recovery, now: Now) -> bool:
    """Whether a question was answered against this finding less than a window ago."""
    same = recovery.vetoed_rule == now.finding.rule and recovery.vetoed_engine == now.finding.engine
    return same and now.time - recovery.vetoed_at < window(memory, now.settings)


def _stand_still(finding: Finding) -> Finding:
    why = f"{finding.why}, yet a question was answered"
    return replace(finding, state=State.DEGRADED, why=why, candidate=False, alerts=((Alert.STAND_STILL, why),))


# --- watch and confirm -----------------------------------------------------------------------------------------------


def _watch(memory: Memory, recovery: Recovery, now: Now) -> Step:
    if now.finding.candidate:
        confirming = replace(
            recovery, phase=Phase.CONFIRM, since=now.time, ground=now.finding, asked=False, question=None, answer=None
        )
        return _ask_to_confirm(memory, confirming, now)
    if _due(memory, now):
        return _ask(memory, recovery, now, Purpose.IDLE, None)
    return memory, recovery, ()


def _due(memory: Memory, now: Now) -> bool:
    """Whether the backend is quiet and the next question's time has come."""
    asking = memory.asking
    return _quiet(memory, now) and asking.due is not None and now.reading.ended >= asking.due and _may_ask(memory, now)


def _quiet(memory: Memory, now: Now) -> bool:
    """Whether nothing is in, and nothing was since the last look: a request may have come and gone with no outcome."""
    return now.finding.rule in ("idle", "unanswered", "asked") and not any(e.moved for e in memory.engines)


def _may_ask(memory: Memory, now: Now) -> bool:
    return _askable(memory, now) and memory.asking.question is None


def _askable(memory: Memory, now: Now) -> bool:
    """Whether a question may go out at all: not while the flag is held, it says paused, or a long step computes."""
    if now.reading.flag.held or _in_a_step(memory, now) or pause_sign(now.reading) is not None:
        return False
    return bool(now.settings.forms)


def _in_a_step(memory: Memory, now: Now) -> bool:
    """Whether the unit computes, and not for longer than one step may: a wedge that spins must be asked, or an idle one
    would never be found.
    """
    since = memory.computing_since
    return since is not None and now.reading.ended - since < window(memory, now.settings) / COMPUTING_COUNTS


def _ask(memory: Memory, recovery: Recovery, now: Now, purpose: Purpose, engine: str | None) -> Step:
    memory, question = ask(memory, now.settings, purpose, engine, now.time)
    return memory, recovery, (Ask(question),)


def _ask_to_confirm(memory: Memory, recovery: Recovery, now: Now) -> Step:
    """Send the confirming question, or look again where none can be sent. One that is out already comes first."""
    if memory.asking.question is not None:
        return memory, recovery, ()
    if not now.finding.ask or not _may_ask(memory, now):
        return memory, recovery, (Look(),)
    asking = memory.asking
    dropped = recovery.asked and asking.last is Settled.DROPPED
    if dropped and asking.due is not None and now.reading.ended < asking.due:
        return memory, recovery, ()  # "not now" beside an engine that moves: not asked again at once
    memory, recovery, effects = _ask(memory, recovery, now, Purpose.CONFIRM, now.finding.engine)
    return memory, replace(recovery, asked=True, question=memory.asking.question, answer=None), effects


def _confirm(memory: Memory, recovery: Recovery, now: Now) -> Step:
    ground = recovery.ground
    settled = _settled(memory, recovery)
    if settled is Settled.ANSWERED:
        return _veto(memory, recovery, now)
    if ground is None or memory.new_life or memory.gap or not _stands(ground, now.finding):
        return _watch(memory, _dropped(recovery, now), now)
    if not now.finding.candidate:
        return memory, recovery, ()  # it only delays
    if settled is Settled.CANNOT:
        return _ask_to_confirm(memory, recovery, now)
    if recovery.asked and settled in (Settled.FAILED, Settled.UNASKABLE, Settled.ELSEWHERE):
        return _confirmed(memory, replace(recovery, answer=memory.asking.settled_answer), now)
    if recovery.asked and memory.asking.question is not None:
        return memory, recovery, ()  # the answer is still awaited
    if not recovery.asked and not _could_ask(memory, now) and now.reading.began >= recovery.since:
        return _confirmed(memory, recovery, now)
    return _ask_to_confirm(memory, recovery, now)


def _could_ask(memory: Memory, now: Now) -> bool:
    return now.finding.ask and _askable(memory, now)


def _settled(memory: Memory, recovery: Recovery) -> Settled | None:
    """What the newest reading made of the confirming question; None of any other, or one meant for another engine."""
    question, ground = memory.asking.settled_question, recovery.ground
    if memory.asking.settled is None or question is None or question.purpose is not Purpose.CONFIRM:
        return None
    if ground is not None and ground.engine not in (None, question.engine):
        return None
    return memory.asking.settled


def _stands(ground: Finding, finding: Finding) -> bool:
    """Whether a finding still says what is being confirmed, or nothing that speaks against it.

    A first refusal, or a first time that it says it died, is no life: as an unreadable reading, it only delays.
    """
    if finding.candidate:
        return finding.rule == ground.rule and finding.engine == ground.engine
    if finding.rule in ("refused", "says-dead"):
        return True
    return finding.state is State.BLIND and not finding.alerts


def _dropped(recovery: Recovery, now: Now) -> Recovery:
    return replace(
        recovery,
        phase=Phase.WATCH,
        since=now.time,
        ground=None,
        asked=False,
        question=None,
        answer=None,
        holds=(),
        told=(),
    )


def _veto(memory: Memory, recovery: Recovery, now: Now) -> Step:
    """An answer is a reason not to restart: the clock starts again."""
    ground = recovery.ground
    rule, engine = (ground.rule, ground.engine) if ground is not None else (None, None)
    by = f" by engine {engine}" if len(memory.engines) > 1 and engine is not None else ""
    suspected = f", though {ground.why}" if ground is not None else ""
    why = f"no restart: a question was answered{by}{suspected}"
    engines = tuple(
        replace(e, flat=0, flat_since=None, vetoed=bool(e.flat)) if engine in (None, e.sample.engine) else e
        for e in memory.engines
    )
    memory = replace(memory, engines=engines, says_dead=0, says_dead_since=None, silent_since=None)
    recovery = replace(_dropped(recovery, now), vetoed_rule=rule, vetoed_engine=engine, vetoed_at=now.time)
    return memory, recovery, (Raise(Alert.VETOED, why, engine),)


# --- confirmed: held or restarted ------------------------------------------------------------------------------------


def _confirmed(memory: Memory, recovery: Recovery, now: Now) -> Step:
    finding = now.finding
    alert = Alert.HUNG if finding.state is State.HUNG else Alert.DEAD
    raised: tuple[Effect, ...] = () if recovery.told else (Raise(alert, finding.why, finding.engine),)
    recovery = replace(recovery, ground=finding)
    holds = holds_now(recovery, now)
    if holds:
        memory, recovery, effects = _hold(memory, recovery, now, holds)
        return memory, recovery, (*raised, *effects)
    recovery, restart = begin(memory, recovery, now, finding)
    sentence = f"restart {recovery.attempt}: {finding.why}"
    return memory, recovery, (*raised, Raise(Alert.RESTART, sentence, finding.engine), restart)


def begin(
    memory: Memory, recovery: Recovery, now: Now, ground: Finding, by: str | None = None
) -> tuple[Recovery, Restart]:
    """A restart begins: what is known from now on, and the order with its proof."""
    attempt, identity = recovery.attempt + 1, memory.life.identity
    proof = Proof(
        attempt=attempt,
        state=ground.state,
        rule=ground.rule,
        engine=ground.engine,
        why=ground.why,
        suspected=ground.since if ground.since is not None else recovery.since,
        question=recovery.question,
        answer=recovery.answer,
        reading=now.reading,
        held=recovery.told,
    )
    begun = replace(
        recovery,
        phase=Phase.RESTART,
        since=now.time,
        ground=ground,
        attempt=attempt,
        identity=identity,
        restarts=(*kept(recovery, now), now.time),
        holds=(),
        told=(),
        same_life=0,
        followed=True,
    )
    return begun, Restart(attempt, identity, proof, revive=ground.rule == "unit-failed", by=by)


def _hold(memory: Memory, recovery: Recovery, now: Now, holds: tuple[Hold, ...]) -> Step:
    new = tuple(h for h in holds if h not in recovery.told)
    effects: list[Effect] = []
    if new:
        effects.append(Raise(Alert.HELD, hold_sentence(new, recovery, now), now.finding.engine))
    if Hold.BREAKER in new:
        effects.append(Raise(Alert.BREAKER, hold_sentence((Hold.BREAKER,), recovery, now), now.finding.engine))
    since = recovery.since if recovery.phase is Phase.HELD else now.time
    recovery = replace(recovery, phase=Phase.HELD, since=since, holds=holds, told=(*recovery.told, *new))
    return memory, recovery, tuple(effects)


def _held(memory: Memory, recovery: Recovery, now: Now) -> Step:
    """Wait for the holds to end. Meanwhile a server that came back must be seen: ask again every few minutes."""
    ground = recovery.ground
    if _settled(memory, recovery) is Settled.ANSWERED:
        return _veto(memory, recovery, now)
    if ground is None or memory.new_life or memory.gap or not _stands(ground, now.finding):
        return _watch(memory, _dropped(recovery, now), now)
    if not now.finding.candidate:
        return memory, recovery, ()
    recovery = replace(recovery, ground=now.finding)
    holds = holds_now(recovery, now)
    if holds:
        memory, recovery, effects = _hold(memory, recovery, now, holds)
        last = memory.asking.last_ended
        asked_long_ago = last is None or now.time - last >= LONGEST_SPACING
        if now.finding.ask and asked_long_ago and _may_ask(memory, now):
            memory, recovery, more = _ask(memory, recovery, now, Purpose.CONFIRM, now.finding.engine)
            return memory, recovery, (*effects, *more)
        return memory, recovery, effects
    again = replace(recovery, phase=Phase.CONFIRM, since=now.time, asked=False, question=None, answer=None, holds=())
    return _ask_to_confirm(memory, again, now)


# --- restarted: job, new life, served --------------------------------------------------------------------------------


def job_ended(recovery: Recovery, event: JobEnded, now: float) -> tuple[Recovery, tuple[Effect, ...]]:
    """The restart's job came to its end, or did not by its deadline."""
    if event.attempt != recovery.attempt or not recovery.phase.restarting:
        return recovery, ()
    if event.result is JobResult.DONE:
        if recovery.phase is Phase.RESTART:
            return replace(recovery, phase=Phase.LIFE), (Look(),)
        return recovery, ()
    words = {
        JobResult.FAILED: "the restart failed",
        JobResult.NEVER_ENDED: "the restart does not end; it is not pushed again",
        JobResult.DENIED: "no permission to restart the unit",
        JobResult.NO_BUS: "the service manager cannot be reached",
        JobResult.DROPPED: "the restart was dropped",
    }
    why = words[event.result] + (f": {event.detail}" if event.detail else "")
    if event.result is JobResult.DROPPED:  # nothing was done, so it counts against nothing
        recovery = replace(recovery, restarts=recovery.restarts[:-1])
    return _settle(recovery, now, served=False, why=why)


def _settle(recovery: Recovery, now: float, *, served: bool, why: str) -> tuple[Recovery, tuple[Effect, ...]]:
    """End a restart attempt, and watch again."""
    effects: list[Effect] = [Raise(Alert.SERVED if served else Alert.NOT_SERVED, why)]
    if recovery.identity is not None:
        effects.append(RestartSettled(recovery.attempt, served, why, recovery.identity))
    watching = replace(
        recovery, phase=Phase.WATCH, since=now, ground=None, asked=False, question=None, answer=None, same_life=0
    )
    return watching, tuple(effects)


def _wait_for_life(memory: Memory, recovery: Recovery, now: Now) -> Step:
    """Until a new life shows itself nothing is judged."""
    unit = now.reading.unit
    told = identity_of(now.reading)
    if recovery.identity is not None and is_new(recovery.identity, told):
        return _serve(memory, replace(recovery, phase=Phase.SERVE), now)
    if recovery.phase is Phase.LIFE and unit is not None and unit.told:
        if unit.active in ("inactive", "failed"):
            why = f"after the restart the unit is {unit.active}"
            return _with(memory, _settle(recovery, now.time, served=False, why=why))
        same = not now.settings.action and unit.active == "active" and not unit.job
        recovery = replace(recovery, same_life=recovery.same_life + 1 if same else 0)
        if recovery.same_life >= SAME_LIFE:
            why = "the restart's job ended" if recovery.followed else "the watchdog was restarted meanwhile"
            why = f"{why}, yet the old life goes on"
            return _with(memory, _settle(recovery, now.time, served=False, why=why))
    return _overdue(memory, recovery, now)


def _overdue(memory: Memory, recovery: Recovery, now: Now) -> Step:
    waited = now.time - recovery.since
    if waited < now.settings.startup_timeout:
        return memory, recovery, ()
    why = f"not served within {span(waited)} of the restart"
    return _with(memory, _settle(recovery, now.time, served=False, why=why))


def _with(memory: Memory, step: tuple[Recovery, tuple[Effect, ...]]) -> Step:
    return memory, step[0], step[1]


def _serve(memory: Memory, recovery: Recovery, now: Now) -> Step:
    """The new life has to give a first answer and a first token; where no traffic brings one, it is asked at once."""
    finding, unit = now.finding, now.reading.unit
    left_over = unit.left_over if unit is not None else ()
    waited = now.time - recovery.since
    if _has_served(memory, now) and (not left_over or waited >= LEFT_OVER_TIME):
        why = f"serving again {span(waited)} after the restart"
        if left_over:
            why = f"{why}, yet {HOLD_WORDS[Hold.LEFT_OVER]} ({pids(left_over)})"
        return _with(memory, _settle(recovery, now.time, served=not left_over, why=why))
    if finding.state is State.STOPPED:
        why = f"not served: {finding.why}"
        return _with(memory, _settle(recovery, now.time, served=False, why=why))
    if finding.candidate:
        watching, effects = _settle(recovery, now.time, served=False, why=f"not served: {finding.why}")
        memory, watching, more = _watch(memory, watching, now)
        return memory, watching, (*effects, *more)
    if _quiet(memory, now) and not memory.life.outcome and _may_ask(memory, now) and _first_or_due(memory, now):
        return _ask(memory, recovery, now, Purpose.SERVE, None)
    if _due(memory, now):
        return _ask(memory, recovery, now, Purpose.IDLE, None)
    return _overdue(memory, recovery, now)


def _has_served(memory: Memory, now: Now) -> bool:
    life = memory.life
    if life.outcome:
        return life.up
    unaskable = not now.settings.forms or memory.asking.complaint is not None
    return life.up and unaskable and now.finding.state in (State.IDLE, State.BUSY, State.BLIND)


def _first_or_due(memory: Memory, now: Now) -> bool:
    """The first question of a life goes out at once, the next ones when they are due."""
    asking = memory.asking
    return asking.last is None or (asking.due is not None and now.reading.ended >= asking.due)


_PHASES = {
    Phase.WATCH: _watch,
    Phase.CONFIRM: _confirm,
    Phase.HELD: _held,
    Phase.RESTART: _wait_for_life,
    Phase.LIFE: _wait_for_life,
    Phase.SERVE: _serve,
}


def resume(backend: Backend) -> Backend:
    """The state with which a daemon that restarts goes on: clocks start again, a restart under way does not."""
    recovery = backend.recovery
    if recovery.phase in (Phase.CONFIRM, Phase.HELD):
        recovery = replace(
            recovery, phase=Phase.WATCH, ground=None, asked=False, question=None, answer=None, holds=(), told=()
        )
    elif recovery.phase is Phase.RESTART:
        recovery = replace(recovery, phase=Phase.LIFE, same_life=0, followed=False)
    memory = backend.memory
    if memory is not None:
        memory = calm(memory)
        asking = replace(memory.asking, question=None, answer=None, settled_question=None, settled_answer=None)
        memory = replace(memory, ended=None, paused_since=None, asking=asking)
    return replace(backend, recovery=recovery, memory=memory)
