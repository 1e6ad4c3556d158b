"""The rules: what a reading says of a backend, the first that fits decides.

`RULES` is the whole judgement, in order. Each rule is a function of the memory (with this reading in it), the reading
and the settings, and returns a finding or None. A rule that `resets` starts every clock of the backend again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from factory_watchdog.core.memory import Engine, Finding, Memory, Settled
from factory_watchdog.core.model import Alert, Reading, Settings, State, UnitFacts, Went
from factory_watchdog.core.observe import SAYS_DEAD, activating, pause_sign
from factory_watchdog.core.observe import says_dead as _says_dead
from factory_watchdog.core.wording import count, span

CONSECUTIVE = 2
"""Readings, refusals, 503s or failures in a row before anything counts: one can be an accident of the network."""

STANDING = frozenset({"active", "activating"})
"""ActiveStates in which a server may be judged; in others somebody stops or reloads it, or it is down."""

WORSE = (State.BUSY, State.DEGRADED, State.SUSPECT, State.HUNG)
"""The states of engines with requests, the worst last."""

Rule = Callable[[Memory, Reading, Settings], Finding | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: the rule's name, its function, and whether it starts all clocks again."""

    name: str
    rule: Rule
    resets: bool = False


def judge(memory: Memory, reading: Reading, settings: Settings) -> tuple[Finding, bool]:
    """The finding of the first rule that fits, and whether it resets the clocks."""
    for row in RULES:
        finding = row.rule(memory, reading, settings)
        if finding is not None:
            return finding, row.resets
    raise AssertionError("the last rule fits everything")


def window(memory: Memory, settings: Settings) -> float:
    """`L`: a life without an outcome yet may compile for minutes at its first request."""
    if memory.life.outcome:
        return settings.hang_after
    return max(settings.hang_after, settings.first_outcome)


# --- 1. set aside ----------------------------------------------------------------------------------------------------


def maintenance(_memory: Memory, reading: Reading, _settings: Settings) -> Finding | None:
    if reading.maintenance is None:
        return None
    return Finding(State.PAUSED, "maintenance", f"maintenance: {reading.maintenance}")


def unit_set_aside(_memory: Memory, reading: Reading, _settings: Settings) -> Finding | None:
    unit = reading.unit
    if unit is None or not unit.told or unit.active in STANDING or _gave_up(unit):
        return None
    how = "failed while it was being stopped" if unit.active == "failed" else f"is {unit.active}"
    return Finding(State.STOPPED, "unit-set-aside", f"the unit {how}: nobody restarts what was stopped")


def unit_failed(_memory: Memory, reading: Reading, _settings: Settings) -> Finding | None:
    """Down by itself. A server may well end with status 0 when its engine dies, and leave the unit inactive."""
    unit = reading.unit
    if unit is None or not unit.told or not _gave_up(unit):
        return None
    setting = f" (Restart={unit.restarts_on})" if unit.restarts_on else ""
    how = "failed" if unit.active == "failed" else "is inactive, for the server ended by itself with success"
    why = f"the unit {how}, and the service manager does not start it again{setting}"
    return Finding(
        State.DEAD,
        "unit-failed",
        why,
        since=reading.began,
        candidate=True,
        ask=False,
        alerts=((Alert.UNIT_FAILED, why),),
    )


def _gave_up(unit: UnitFacts) -> bool:
    """Whether the unit is down and nobody asked it to be; what is not told of one that failed speaks for that."""
    return unit.own_exit is not False if unit.active == "failed" else unit.active == "inactive" and bool(unit.own_exit)


# --- 2. starting -----------------------------------------------------------------------------------------------------


def starting(memory: Memory, reading: Reading, settings: Settings) -> Finding | None:
    if memory.life.up and not activating(reading):
        return None
    down_since = memory.down_since if memory.down_since is not None else reading.began
    since = max(memory.life.since, down_since)
    waited, down = reading.ended - since, reading.ended - down_since
    limit = settings.startup_timeout
    how = "the unit is activating" if activating(reading) else _answers(reading)
    if waited >= limit and not _alive(memory, reading):
        why = f"never served within {span(limit)} of this life; {how}"
        return Finding(State.DEAD, "never-served", why, since=since, candidate=True, ask=not memory.refused)
    why = f"starting for {span(waited)}; {how}"
    overdue = ((Alert.OVERDUE, f"not serving for {span(down)}"),) if down >= limit / 2 else ()
    return Finding(State.STARTING, "starting", why, since=since, due=since + limit, alerts=overdue)


def _alive(memory: Memory, reading: Reading) -> bool:
    """Whether a life that counts as starting shows that it runs: it served, moves, or says that it is paused."""
    return memory.life.up or any(e.moved for e in memory.engines) or pause_sign(reading) is not None


def _answers(reading: Reading) -> str:
    reply = reading.health if reading.health.went is not Went.ABSENT else reading.metrics
    what = "/health" if reading.health.went is not Went.ABSENT else "the metrics"
    said = {
        Went.OK: f"{what} answers",
        Went.STATUS: f"{what} says {reply.status}",
        Went.TIMEOUT: f"{what} does not answer in time",
        Went.REFUSED: "the port refuses connections",
        Went.RESET: f"{what} breaks the connection off",
    }
    return said.get(reply.went, f"{what} cannot be read")


# --- 3. gone ---------------------------------------------------------------------------------------------------------


def refused(memory: Memory, reading: Reading, settings: Settings) -> Finding | None:
    since = memory.refused_since
    if not memory.refused or since is None:
        return None
    for_long = reading.ended - since
    why = f"served before, now refuses connections for {span(for_long)}"
    proven = memory.refused >= CONSECUTIVE and for_long >= settings.dead_after
    state = State.DEAD if proven else State.SUSPECT
    return Finding(state, "refused", why, since=since, candidate=proven, ask=False, due=since + settings.dead_after)


def says_dead(memory: Memory, reading: Reading, settings: Settings) -> Finding | None:
    since = memory.says_dead_since
    if since is None or not _says_dead(reading) or not _stands(memory, reading):
        return None
    why = f"/health says {SAYS_DEAD} and nothing moves"
    # A look at once after an event may follow within milliseconds: that is no second reading of it.
    proven = memory.says_dead >= CONSECUTIVE and reading.began - since >= settings.interval / 2
    state = State.DEAD if proven else State.SUSPECT
    return Finding(state, "says-dead", why, since=since, candidate=proven)


def server_errors(memory: Memory, reading: Reading, _settings: Settings) -> Finding | None:
    """A first error is a failed question like any other, and left to the rules that count those."""
    errors = memory.asking.errors
    if errors < CONSECUTIVE or not _stands(memory, reading):
        return None
    why = f"answered before in this life, now {count(errors, 'question')} in a row got a server error and nothing moves"
    return Finding(State.DEAD, "server-errors", why, since=reading.began, candidate=True)


def _stands(memory: Memory, reading: Reading) -> bool:
    """Whether a reading shows that nothing moves, though nothing is paused; one that lacks signals shows nothing."""
    if not reading.readable or pause_sign(reading) is not None:
        return False
    return not any(e.moved or e.lacking for e in memory.engines)


# --- 4. blind --------------------------------------------------------------------------------------------------------


def proxy(memory: Memory, _reading: Reading, _settings: Settings) -> Finding | None:
    if not memory.proxy:
        return None
    why = "start times alternate: a proxy in front of several servers, which cannot be judged as one"
    return Finding(State.BLIND, "proxy", why, alerts=((Alert.PROXY, why),))


def silent(memory: Memory, reading: Reading, settings: Settings) -> Finding | None:
    since, limit = memory.silent_since, settings.silent_after
    if since is None:
        return None
    for_long = reading.ended - since
    why = f"every endpoint accepts connections and says nothing, for {span(for_long)}"
    if limit is None:
        return Finding(State.BLIND, "silent", why, since=since)
    if for_long >= limit and memory.life.up:
        return Finding(State.HUNG, "silent", why, since=since, candidate=True)
    return Finding(State.BLIND, "silent", why, since=since, due=since + limit)


def without_metrics(memory: Memory, reading: Reading, settings: Settings) -> Finding | None:
    """Unreadable metrics: blind; or, where the configuration says so, judged by questions alone, never restarted."""
    if reading.readable:
        return None
    if settings.ask_without_metrics and reading.metrics.went in (Went.OK, Went.STATUS, Went.ABSENT):
        if memory.asking.last is Settled.ANSWERED:
            return Finding(State.IDLE, "asked", "no metrics to read; the last question was answered")
        asked = "the last question was not answered" if memory.asking.last is not None else "not asked yet"
        return Finding(State.BLIND, "asked", f"no metrics to read; {asked}")
    return Finding(State.BLIND, "metrics", _unreadable(reading))


def _unreadable(reading: Reading) -> str:
    reply = reading.metrics
    said = {
        Went.OK: "the metrics page has no series of this engine",
        Went.STATUS: f"the metrics page says {reply.status}",
        Went.TIMEOUT: "the metrics page does not come in time",
        Went.REFUSED: "the metrics address refuses connections",
        Went.ABSENT: "there is no metrics page",
    }
    return said.get(reply.went, f"the metrics page cannot be read: {reply.detail or reply.went.value}")


def signals_missing(memory: Memory, _reading: Reading, _settings: Settings) -> Finding | None:
    for engine in memory.engines:
        if engine.lacking and not engine.moved:
            why = f"required signals are not told: {', '.join(engine.lacking)}"
            return Finding(State.BLIND, "signals-missing", why, engine.sample.engine)
    return None


# --- 5. paused -------------------------------------------------------------------------------------------------------


def paused(memory: Memory, reading: Reading, settings: Settings) -> Finding | None:
    sign = pause_sign(reading)
    if sign is None:
        return None
    since = memory.paused_since if memory.paused_since is not None else reading.ended
    for_long = reading.ended - since
    why = f"{sign}, for {span(for_long)}"
    alerts = ((Alert.PAUSED_LONG, why),) if for_long >= settings.paused_alert else ()
    return Finding(State.PAUSED, "paused", why, since=since, alerts=alerts)


# --- 6. with requests ------------------------------------------------------------------------------------------------


def with_requests(memory: Memory, reading: Reading, settings: Settings) -> Finding | None:
    """The worst of the engines that have requests: a sum hides a stuck one behind a moving one."""
    named = len(memory.engines) > 1
    findings = [
        _flat(e, reading, window(memory, settings), named) if e.flat else _working(e, reading, settings, named)
        for e in memory.engines
        if e.requests or (e.requests is None and e.moved)
    ]
    if len(findings) > 1:
        return max(findings, key=_badness)
    return findings[0] if findings else None


def _badness(finding: Finding) -> tuple[bool, int, float]:
    return finding.candidate, WORSE.index(finding.state), -(finding.since or 0.0)


def _flat(engine: Engine, reading: Reading, limit: float, named: bool) -> Finding:
    since = engine.flat_since if engine.flat_since is not None else reading.began
    for_long = reading.began - since
    where = f"engine {engine.sample.engine}: " if named else ""
    why = f"{where}{_standing(engine)} stand still for {span(for_long)}: no step, no token, no cache movement"
    due = since + limit + engine.slack
    name = engine.sample.engine
    yet = f"{why}, yet a question was answered"
    alerts = ((Alert.STAND_STILL, yet),) if engine.vetoed else ()
    if engine.flat >= CONSECUTIVE and for_long - engine.slack >= limit:
        return Finding(State.HUNG, "flat", why, name, since, candidate=True, due=due, alerts=alerts)
    if engine.vetoed:
        return Finding(State.DEGRADED, "stand-still", yet, name, since, due=due, alerts=alerts)
    return Finding(State.SUSPECT, "flat", why, name, since, due=due)


def _standing(engine: Engine) -> str:
    return f"{engine.sample.running or 0.0:g} running and {engine.sample.waiting or 0.0:g} waiting requests"


def _working(engine: Engine, reading: Reading, settings: Settings, named: bool) -> Finding:
    where = f"engine {engine.sample.engine}: " if named else ""
    barren = reading.ended - engine.barren_since if engine.barren_since is not None else 0.0
    if barren >= settings.starved_after:
        why = f"{where}works for {span(barren)} and no request gets a token: {_standing(engine)}"
        return Finding(
            State.DEGRADED, "starved", why, engine.sample.engine, engine.barren_since, alerts=((Alert.STARVED, why),)
        )
    how = "work moves" if engine.moved else "seen for the first time"
    return Finding(State.BUSY, "working", f"{where}{_standing(engine)}, {how}")


# --- 7. without requests ---------------------------------------------------------------------------------------------


def without_requests(memory: Memory, reading: Reading, settings: Settings) -> Finding | None:
    failing = [e for e in memory.engines if e.failures]
    if failing:
        return _unanswered(min(failing, key=lambda e: e.failing_since or 0.0), memory, reading, settings)
    alerts: tuple[tuple[Alert, str], ...] = ()
    if memory.asking.complaint is not None:
        alerts = ((Alert.CANNOT_ASK, f"cannot be asked: {memory.asking.complaint}"),)
    if any(e.produced for e in memory.engines):
        how = "proven by traffic"
    elif alerts:
        how = alerts[0][1]
    elif memory.life.answered:
        how = "a question was answered"
    else:
        how = "not asked yet"
    return Finding(State.IDLE, "idle", f"no requests; {how}", alerts=alerts)


def _unanswered(engine: Engine, memory: Memory, reading: Reading, settings: Settings) -> Finding:
    limit = window(memory, settings)
    since = engine.failing_since if engine.failing_since is not None else reading.began
    for_long = reading.began - since
    where = f"engine {engine.sample.engine}: " if len(memory.engines) > 1 else ""
    why = f"{where}no requests, and {count(engine.failures, 'question')} in a row unanswered for {span(for_long)}"
    proven = engine.failures >= CONSECUTIVE and for_long - engine.slack >= limit
    state = State.HUNG if proven else State.SUSPECT
    due = since + limit + engine.slack
    return Finding(state, "unanswered", why, engine.sample.engine, since, candidate=proven, due=due)


RULES: tuple[Row, ...] = (
    Row("maintenance", maintenance, resets=True),
    Row("unit-set-aside", unit_set_aside, resets=True),
    Row("unit-failed", unit_failed),
    Row("starting", starting),
    Row("refused", refused),
    Row("says-dead", says_dead),
    Row("server-errors", server_errors),
    Row("proxy", proxy, resets=True),
    Row("silent", silent),
    Row("without-metrics", without_metrics),
    Row("signals-missing", signals_missing),
    Row("paused", paused, resets=True),
    Row("with-requests", with_requests),
    Row("without-requests", without_requests),
)
"""Every rule by name, in the order in which they are asked: set aside, starting, gone, blind, paused, with requests,
without requests."""
