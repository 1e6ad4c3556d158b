"""What a reading is worth: readings -> memory, before any rule is asked.

A new life starts everything again; a gap in time drops every clock; unreadable readings are skipped and reset nothing;
our own question's share is taken out before anything is compared.
"""

from __future__ import annotations

from factory_watchdog.core.compare import observe_engines, outcome_total, skipped
from factory_watchdog.core.memory import Asking, Engine, Life, Memory, replace
from factory_watchdog.core.model import Identity, Reading, Reply, Settings, Went

LONGEST_POLL = 60.0
"""Seconds within which every poll ends by its own deadlines, the pause signs included."""

START_TIMES_KEPT = 8
"""Start times remembered to see them alternate: more servers than one balancer in front of one unit would have."""

OWN_READINGS = 2
"""Readable readings after an answer in which our own share is looked for: the server may book it a moment later."""

COMPUTING = 0.2
"""Cores that a unit uses at least inside one long step (0.3 to 2 were measured on CPU servers; wedged at most 0.09)."""

COMPUTING_COUNTS = 1 / 3
"""What time counts in which the unit computes and nothing moves: a step that long is rare, and a wedge that spins must
still be found."""

SAYS_DEAD = 503
"""The status by which vLLM's /health says that its engine died; it has no other use for it (facts of 0.8 to 0.32)."""

SILENT = frozenset({Went.TIMEOUT, Went.RESET})


def observe(memory: Memory | None, reading: Reading, settings: Settings) -> Memory:
    """The memory after a reading. Clocks that a rule resets are reset afterwards, by `calm`."""
    told = identity_of(reading)
    if memory is None:
        memory = Memory(life=Life(1, reading.began, told), down_since=reading.began)
        new_life = gap = False
    else:
        gap = _is_gap(memory.ended, reading, settings)
        new_life = is_new(memory.life.identity, told)
        if new_life:
            memory = _begin_life(memory, reading, told)
        elif gap:
            memory = calm(memory)
    memory = _recognise(memory, told)
    if new_life and told.start_time is None:
        reading = _of_the_life_before(reading)
    engines = observe_engines(memory, reading) if reading.readable else skipped(memory.engines)
    moved = any(e.moved for e in engines)
    produced = moved and any(e.produced for e in engines)
    life = _observe_life(memory.life, engines, produced, reading)
    cpu, cpu_at, computing = _observe_host(memory, reading, settings)
    computing = computing and not moved
    if computing:
        engines = _slowed(engines, reading.ended - (memory.ended if memory.ended is not None else reading.ended))
    refused, silent = _how_it_answers(reading)
    dead = _count_says_dead(memory.says_dead, reading, moved)
    quiet_since = _quiet_since(memory, engines, produced, reading, settings)
    return Memory(
        life=life,
        engines=engines,
        ended=reading.ended,
        refused=memory.refused + 1 if refused else 0,
        refused_since=_since(memory.refused_since, refused, reading.began),
        says_dead=dead,
        says_dead_since=_since(memory.says_dead_since, dead > 0, reading.began),
        silent_since=_since(memory.silent_since, silent, reading.began),
        down_since=_since(memory.down_since, not life.up or activating(reading), reading.began),
        paused_since=_since(memory.paused_since, pause_sign(reading) is not None, reading.ended),
        quiet_since=quiet_since,
        start_times=memory.start_times,
        proxy=memory.proxy,
        asking=_observe_asking(memory, quiet_since, moved, settings),
        new_life=new_life,
        gap=gap,
        computing_since=_since(memory.computing_since, computing, reading.began),
        cpu=cpu,
        cpu_at=cpu_at,
    )


def stands_still(memory: Memory, reading: Reading) -> bool:
    """Whether an engine would be flat by this reading."""
    return reading.readable and any(e.flat for e in observe_engines(memory, reading))


def calm(memory: Memory) -> Memory:
    """The same life with every clock, count and failed question gone: the next reading is a first look."""
    asking = memory.asking
    return replace(
        memory,
        engines=tuple(Engine(sample=e.sample, at=e.at, ours=e.ours, users=e.users) for e in memory.engines),
        refused=0,
        refused_since=None,
        says_dead=0,
        says_dead_since=None,
        silent_since=None,
        down_since=None,
        quiet_since=None,
        computing_since=None,
        asking=_voided(replace(asking, settled=None, due=None, errors=0), asking),
    )


def pause_sign(reading: Reading) -> str | None:
    """The sentence of a sign that says paused, from the metrics or from the pause endpoints; None where none does."""
    if reading.pause is not None and reading.pause.sign is not None:
        return reading.pause.sign
    if reading.readable:
        for sample in reading.engines:
            if sample.asleep is not None:
                return sample.asleep
    return None


def activating(reading: Reading) -> bool:
    """Whether the service manager is still starting the unit."""
    return reading.unit is not None and reading.unit.told and reading.unit.active == "activating"


def _of_the_life_before(reading: Reading) -> Reading:
    """The first reading of a life that only the unit tells: its pages may have come from the old one."""
    silent = Reply(Went.ERROR, detail="a new life began during this reading")
    return replace(reading, health=silent, metrics=silent)


def _is_gap(ended: float | None, reading: Reading, settings: Settings) -> bool:
    """Whether both sides may have slept since the last poll, or during this one: no poll lasts so long by itself."""
    longest = settings.gap_factor * settings.interval
    slept_in_poll = reading.ended - reading.began > max(longest, LONGEST_POLL)
    return slept_in_poll or (ended is not None and reading.began - ended > longest)


# --- who it is -------------------------------------------------------------------------------------------------------


def identity_of(reading: Reading) -> Identity:
    """Who the reading shows; what it does not tell is None."""
    unit = reading.unit
    start_time = reading.start_time if reading.readable else None
    if unit is None or not unit.told:
        return Identity(start_time=start_time)
    return Identity(start_time, unit.invocation, unit.main_pid, unit.main_start)


def is_new(known: Identity, told: Identity) -> bool:
    """Whether a told value was replaced by another. A value that goes missing is no new life."""
    return (
        _replaced(known.start_time, told.start_time)
        or _replaced(known.invocation, told.invocation)
        or _replaced(known.main_pid, told.main_pid)
        or _replaced(known.main_start, told.main_start)
    )


def _replaced(known: object, told: object) -> bool:
    return known is not None and told is not None and known != told


def _begin_life(memory: Memory, reading: Reading, told: Identity) -> Memory:
    """A fresh memory; what stays is how long the backend has been down and which start times were seen."""
    carried = tuple((e.sample.engine, outcome_total(e.sample)) for e in memory.engines)
    asking = memory.asking
    return Memory(
        life=Life(memory.life.number + 1, reading.began, told, carried=carried),
        down_since=memory.down_since if memory.down_since is not None else reading.began,
        start_times=memory.start_times,
        proxy=memory.proxy and not _replaced(memory.life.identity.invocation, told.invocation),
        asking=_voided(Asking(next_id=asking.next_id, last_ended=asking.last_ended), asking),
    )


def _voided(asking: Asking, before: Asking) -> Asking:
    """A question that is out stays out, since there must never be two, but its end will say nothing."""
    out = before.question if before.answer is None else None
    return replace(asking, question=out, answer=None, void=out.id if out is not None else 0)


def _recognise(memory: Memory, told: Identity) -> Memory:
    """Fill in what the life's identity did not know yet, and see start times that come back: a proxy's."""
    known = memory.life.identity
    start = told.start_time
    if start is not None and (not memory.start_times or memory.start_times[-1] != start):
        seen = start in memory.start_times
        times = (*(t for t in memory.start_times if t != start), start)[-START_TIMES_KEPT:]
        memory = replace(memory, start_times=times, proxy=memory.proxy or seen)
    if told == known:
        return memory
    merged = Identity(
        told.start_time if told.start_time is not None else known.start_time,
        told.invocation if told.invocation is not None else known.invocation,
        told.main_pid if told.main_pid is not None else known.main_pid,
        told.main_start if told.main_start is not None else known.main_start,
    )
    return memory if merged == known else replace(memory, life=replace(memory.life, identity=merged))


# --- host evidence ---------------------------------------------------------------------------------------------------


def _observe_host(memory: Memory, reading: Reading, settings: Settings) -> tuple[float | None, float | None, bool]:
    """The unit's CPU seconds, when they were taken, and whether it used them as a long step does, and a wedge does not.

    A look at once after another is no measure: in milliseconds, when each was taken matters more than what was used.
    """
    if not settings.slow_evidence:
        return None, None, False
    cpu = reading.unit.cpu if reading.unit is not None else None
    if cpu is None or memory.cpu is None or memory.cpu_at is None:
        return cpu, reading.began, False
    seconds = reading.began - memory.cpu_at
    if seconds < settings.interval / 2:
        return memory.cpu, memory.cpu_at, memory.computing_since is not None
    return cpu, reading.began, (cpu - memory.cpu) / seconds >= COMPUTING


def _slowed(engines: tuple[Engine, ...], seconds: float) -> tuple[Engine, ...]:
    """Take two thirds of these seconds off the clock of every engine whose clock runs."""
    off = seconds * (1 - COMPUTING_COUNTS)
    return tuple(replace(e, slack=e.slack + off) if e.flat or e.failing_since is not None else e for e in engines)


# --- life, endpoints, quiet ------------------------------------------------------------------------------------------


def _observe_life(life: Life, engines: tuple[Engine, ...], produced: bool, reading: Reading) -> Life:
    outcome = life.outcome or produced or (reading.readable and _has_outcome(life, engines))
    up = life.up or produced or _is_up(reading) or (outcome and reading.health.went in SILENT)  # starved, not starting
    silent = life.no_pause_signs or (reading.pause is not None and reading.pause.absent)
    if up == life.up and outcome == life.outcome and silent == life.no_pause_signs:
        return life
    return replace(life, up=up, outcome=outcome, no_pause_signs=silent)


def _is_up(reading: Reading) -> bool:
    """Whether it serves, by /health or else by the metrics. What has neither by nature is not waited for."""
    if reading.health.went is Went.ABSENT:
        return reading.metrics.went in (Went.OK, Went.ABSENT)
    return reading.health.went is Went.OK


def _has_outcome(life: Life, engines: tuple[Engine, ...]) -> bool:
    """Whether the counters say that users of this life got something, and not only of the one before.

    A multi-process folder that is used again carries the old life's totals over: such totals prove nothing.
    """
    carried = dict(life.carried)
    for engine in engines:
        total, old = outcome_total(engine.sample), carried.get(engine.sample.engine, 0.0)
        if total > 0 and not 0 < old <= total:
            return True
    return False


def _how_it_answers(reading: Reading) -> tuple[bool, bool]:
    """Whether every endpoint refused, and whether every one accepted and said nothing, the pause signs included.

    For one that is absent by nature the other speaks.
    """
    health, metrics = reading.health.went, reading.metrics.went
    if health is Went.ABSENT:
        health = metrics
    elif metrics is Went.ABSENT:
        metrics = health
    silent = health in SILENT and metrics in SILENT and pause_sign(reading) is None
    return health is metrics is Went.REFUSED, silent


def _since(before: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _count_says_dead(before: int, reading: Reading, moved: bool) -> int:
    """Readings in a row in which /health says 503 while the metrics show that nothing moves."""
    if moved:
        return 0
    if says_dead(reading):
        return before + 1
    told = reading.health.went in (Went.OK, Went.ABSENT) or (
        reading.health.went is Went.STATUS and reading.health.status != SAYS_DEAD
    )
    return 0 if told else before


def says_dead(reading: Reading) -> bool:
    """Whether /health says that the engine died, in a reading that shows whether anything moves."""
    return reading.health.went is Went.STATUS and reading.health.status == SAYS_DEAD and reading.readable


def _quiet_since(
    memory: Memory, engines: tuple[Engine, ...], produced: bool, reading: Reading, settings: Settings
) -> float | None:
    """Since when there is no request and no outcome."""
    before = memory.quiet_since
    if not reading.readable:
        quiet = before is not None or (settings.ask_without_metrics and memory.life.up)
        return _since(before, quiet, reading.ended)
    if any(e.requests is None or e.requests > 0 for e in engines):
        return None
    return reading.ended if before is None or produced else before


def _observe_asking(memory: Memory, quiet_since: float | None, moved: bool, settings: Settings) -> Asking:
    """When the next question is due by the quiet. Movement ends the server errors in a row."""
    asking = memory.asking
    if moved and asking.errors:
        asking = replace(asking, errors=0)
    if quiet_since == memory.quiet_since:
        return asking
    due = None if quiet_since is None else quiet_since + settings.question_every
    return replace(asking, due=due, spacing=settings.question_every)
