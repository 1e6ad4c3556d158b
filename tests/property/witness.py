"""What a backend has shown, kept by the test alone, and the laws that every effect of the core is held against.

A `Witness` never looks into the core's memory. It sees the same readings, knows which part of each counter is our own
question's, and keeps its own clocks. Where a fact is uncertain it gives the core the benefit of the doubt, so that each
failure is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from factory_watchdog.core.model import (
    MEANING,
    Answer,
    Ask,
    Effect,
    JobResult,
    Outcome,
    Purpose,
    Question,
    Reading,
    Reply,
    Restart,
    RestartSettled,
    Settings,
    State,
    Verdict,
    Went,
)

WORK = ("steps", "prompt", "generated", "kv")
NEVER_ASKED = ("refused", "unit-failed")
BY_ENGINE = ("flat", "unanswered")
STANDING = (*BY_ENGINE, "says-dead", "server-errors")
ASIDE = ("inactive", "deactivating", "reloading")
STREAKS = ("refused", "silent", "says-dead")  # readings in a row, and since when
SILENT = (Went.TIMEOUT, Went.RESET)
STEP = 3  # windows; for longer no step lasts
COMPUTES = 0.2  # cores; a unit that uses so much while nothing moves is inside a long step
EXCUSED = 2  # readings after an answer in which KV usage may move by our own question

Signals = dict[str, dict[str, float]]
"""By engine and signal: what the page told, without our own questions' share."""


@dataclass
class Part:
    """One engine: the newest value told of each signal, and since when its work stands, as far as was shown."""

    told: dict[str, float]
    clock: float
    moved: bool = False
    excused: int = 0


@dataclass
class Witness:
    """One backend. Times are the host's clock of this boot; `restarts` are in true time, which no boot interrupts."""

    name: str
    settings: Settings
    true: Callable[[float], float] = lambda now: now
    identity: dict[str, object] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    since: float = 0.0  # the newest life, gap, pause, setting aside, or return of ours
    life_began: float = 0.0
    outcome: bool = False
    served: bool = False
    ended: float | None = None
    streaks: dict[str, tuple[int, float]] = field(default_factory=lambda: dict.fromkeys(STREAKS, (0, 0.0)))
    reading: Reading | None = None
    out: Question | None = None
    question: Question | None = None  # the newest confirming one of this suspicion, with its answer
    answer: Answer | None = None
    given_up: int = 0
    restarts: list[float] = field(default_factory=list)
    no_signs: bool = False  # this life has no pause endpoints
    live: bool = True
    cpu: tuple[float, float] | None = None
    computes: bool = False
    computes_since: float = 0.0

    # --- what is shown -----------------------------------------------------------------------------------------------

    def saw(self, reading: Reading, users: Signals) -> None:
        """A reading, with the users' part of what it told."""
        longest = self.settings.gap_factor * self.settings.interval
        slept = reading.ended - reading.began > max(longest, 60.0)
        told = told_identity(reading)
        if any(self.identity.get(name, value) != value for name, value in told.items()):
            self._begin_life(reading)
        elif self.ended is None or slept or reading.began - self.ended > longest:
            self._begin_clocks(reading)
        self.identity.update(told)
        self.reading, self.ended = reading, reading.ended
        self.no_signs |= reading.pause is not None and reading.pause.absent
        self._endpoints(reading)
        for part in self.parts.values():
            part.moved = False
        if reading.readable:
            self._engines(reading, users)
        if set_aside(reading) or pause_sign(reading):
            self._begin_clocks(reading)
        self._host(reading)

    def _begin_life(self, reading: Reading) -> None:
        self.identity, self.parts, self.outcome, self.served, self.cpu = {}, {}, False, False, None
        self.life_began, self.no_signs = reading.began, False
        self._begin_clocks(reading)

    def _begin_clocks(self, reading: Reading) -> None:
        self.since, self.streaks = reading.began, dict.fromkeys(STREAKS, (0, reading.ended))
        self.question = self.answer = None
        for part in self.parts.values():
            part.clock = reading.ended

    def _endpoints(self, reading: Reading) -> None:
        went = [r.went for r in (reading.health, reading.metrics) if r.went is not Went.ABSENT]
        shown = {
            "refused": bool(went) and all(w is Went.REFUSED for w in went),
            "silent": bool(went) and all(w in SILENT for w in went),
            "says-dead": reading.health == Reply(Went.STATUS, 503),
        }
        for name, stands in shown.items():
            count, since = self.streaks[name]
            self.streaks[name] = (count + 1, since if count else reading.began) if stands else (0, reading.ended)
        self.served |= reading.health.went is Went.OK and self.life_began < reading.began

    def _engines(self, reading: Reading, users: Signals) -> None:
        for sample in reading.engines:
            now = users[sample.engine]
            part = self.parts.get(sample.engine)
            if part is None:
                part = self.parts[sample.engine] = Part({}, reading.ended)
            excused = ("kv",) if part.excused else ()
            part.excused -= bool(part.excused and not sample.missing)
            changed = [n for n, value in now.items() if n in part.told and part.told[n] != value and n not in excused]
            worked = any(name in WORK for name in changed)
            if worked:
                part.clock = reading.ended
            # a counter that fell is a new baseline, from which nothing has moved yet
            part.moved = worked and not any(now[name] < part.told[name] for name in changed if name != "kv")
            if part.moved and sample.engine == (self.question.engine if self.question else None):
                self.question = self.answer = None
            part.told.update(now)
            self.outcome |= bool(sample.generated or sample.finished)  # our own token shows it too: it has compiled

    def _host(self, reading: Reading) -> None:
        """Whether the unit computes while no engine moves; a look at once after another is no measure."""
        cpu = reading.unit.cpu if reading.unit is not None else None
        if self.cpu is None or cpu is None:
            self.cpu, self.computes = None if cpu is None else (cpu, reading.began), False
        elif reading.began - self.cpu[1] >= self.settings.interval / 2:
            self.computes = cpu - self.cpu[0] >= COMPUTES * (reading.began - self.cpu[1])
            self.cpu = cpu, reading.began
        self.computes = self.computes and not any(part.moved for part in self.parts.values())
        if not self.computes:
            self.computes_since = reading.ended

    # --- what happens ------------------------------------------------------------------------------------------------

    def asked(self, question: Question) -> None:
        self.out = question
        if question.purpose is Purpose.CONFIRM:
            self.question, self.answer = question, None

    def answered(self, answer: Answer, booked: bool) -> None:
        """The question that is out ended; `booked`: by the engine that it was meant for."""
        question, self.out = self.out, None
        if question is None:
            return
        if self.question is not None and self.question.id == answer.question:
            self.answer = answer
        if answer.outcome is not Outcome.ANSWERED:
            self.given_up += 1
            return
        self.outcome = True
        part = self.parts.get(question.engine or "")
        if part is not None and booked:
            part.excused = EXCUSED

    def job_ended(self, result: JobResult, ordered: float) -> None:
        if result is JobResult.DROPPED:  # nothing was done
            self.restarts = [t for t in self.restarts if t != ordered]

    def reset(self) -> None:
        self.restarts = []

    def died(self, settings: Settings, *, other_boot: bool) -> None:
        """Our daemon came back, or took up other settings."""
        self.given_up += self.out is not None
        self.settings, self.ended, self.out, self.cpu = settings, None, None, None
        self.question = self.answer = None
        if other_boot:
            self.identity, self.parts, self.live, self.reading = {}, {}, True, None
            self.outcome = self.served = self.no_signs = False
            self.life_began = float("-inf")

    # --- the laws ----------------------------------------------------------------------------------------------------

    def window(self) -> float:
        limit = self.settings.hang_after
        return limit if self.outcome else max(limit, self.settings.first_outcome)

    def recent(self, now: float) -> int:
        return sum(1 for t in self.restarts if self.true(now) - t < self.settings.restart_window)

    def _in_a_step(self, reading: Reading) -> bool:
        """Whether the unit computes, and not for longer than three windows, in which any step ends."""
        return self.computes and reading.ended - self.computes_since < STEP * self.window()

    def may_ask(self, question: Question) -> None:
        reading = self.reading
        assert reading is not None
        assert self.out is None, "two questions at once to a backend"
        assert self.settings.forms, "asked, though it is never to be asked"
        assert not reading.flag.held, "asked while the flag is held"
        assert not pause_sign(reading), "asked while paused"
        assert not set_aside(reading), "asked while set aside"
        assert not (self.settings.slow_evidence and self._in_a_step(reading)), "asked inside a long step"
        assert self.streaks["refused"][0] == 0, "asked at a port that refuses"
        part = self.parts.get(question.engine or "")
        assert part is None or not reading.readable or not part.moved, "asked while work moves"
        if question.purpose is Purpose.CONFIRM or not reading.readable:
            return
        for sample in reading.engines:
            shown = (sample.running or 0) + (sample.waiting or 0)
            assert shown <= self.given_up, "asked while users' requests are in"

    def may_restart(self, order: Restart, now: float) -> None:
        proof, reading, settings = order.proof, self.reading, self.settings
        assert reading is not None
        assert proof.reading is reading
        for name, stands in HOLDS.items():
            assert not stands(self, reading, now, proof.rule), f"restarted though held: {name}"
        assert proof.state in (State.HUNG, State.DEAD)
        assert proof.rule == "unit-failed" or not pause_sign(reading), "restarted while paused"
        assert order.revive == (proof.rule == "unit-failed")
        assert proof.suspected >= self.life_began, "restarted for what another life did"
        shown = {name: getattr(order.identity, name) for name in self.identity}
        assert shown == self.identity, "the order names another life"
        if proof.rule in BY_ENGINE:
            self._stood(self.parts[proof.engine or ""], now)
        if proof.rule in STANDING:
            self._nothing_speaks_against(proof.rule, proof.engine, reading)
        for name, limit in (("refused", settings.dead_after), ("silent", settings.silent_after or 0.0)):
            if proof.rule == name:
                count, since = self.streaks[name]
                assert count >= 2, name
                assert now - since >= limit, f"{name} for too short a time"
        if proof.rule == "says-dead":
            assert self.streaks["says-dead"][0] >= 2
        if proof.rule == "never-served":
            assert not self.served, "dead as never served, after it had served"
            assert now - self.since >= settings.startup_timeout, "starting, before its time was over"
        assert proof.question in (None, self.question), "the proof has another question"
        assert proof.answer in (None, self.answer), "the proof has another answer"
        self.is_confirmed(proof.rule, proof.question, proof.answer)

    def _stood(self, part: Part, now: float) -> None:
        assert now - part.clock >= self.window(), "work moved within the window"
        assert now - self.since >= self.window(), "a life, gap, pause or return of ours within the window"

    def _nothing_speaks_against(self, rule: str, engine: str | None, reading: Reading) -> None:
        assert reading.readable, "restarted while blind"
        assert reading.pause is not None or self.no_signs, "restarted without a look at the pause signs"
        told = {s.engine: s for s in reading.engines}
        for name, part in self.parts.items():
            if engine in (None, name):
                assert not part.moved, "restarted in the very reading that shows work"
        if rule == "flat":
            sample = told[engine or ""]
            assert not sample.missing, "restarted while a required signal is missing"
            assert (sample.running or 0) + (sample.waiting or 0) > 0

    def is_confirmed(self, rule: str, question: Question | None, answer: Answer | None) -> None:
        """A question went out for this suspicion and was not answered, unless none could be sent."""
        reading = self.reading
        assert reading is not None
        refused = self.streaks["refused"][0] > 0
        if question is None:
            none_sent = not self.settings.forms or reading.flag.held or (self.settings.slow_evidence and self.computes)
            assert rule in NEVER_ASKED or refused or none_sent, "not confirmed by a question"
            return
        assert answer is not None, "the confirming question is not answered yet"
        assert reading.began >= answer.ended, "confirmed by an old reading"
        assert answer.outcome is not Outcome.ANSWERED or len(self.parts) > 1, "an answer did not veto"

    def shown(self, verdict: Verdict, under_way: bool) -> None:
        """What is shown after a reading: hung or dead only once it is confirmed, or while it is being restarted."""
        live = MEANING[verdict.state].live
        if self.live and not live and not under_way:
            asked = verdict.rule not in NEVER_ASKED
            self.is_confirmed(verdict.rule, self.question if asked else None, self.answer)
        if live and self.answer is not None and self.answer.outcome is Outcome.ANSWERED and len(self.parts) == 1:
            self.question = self.answer = None  # it vetoed: what comes now is another suspicion
        self.live = live


Stands = Callable[[Witness, Reading, float, str], bool]

HOLDS: dict[str, Stands] = {
    "observe mode": lambda w, r, now, rule: not w.settings.enforce,
    "no unit": lambda w, r, now, rule: not w.settings.has_unit,
    "busy flag": lambda w, r, now, rule: r.flag.held,
    "maintenance": lambda w, r, now, rule: r.maintenance,
    "unit not told": lambda w, r, now, rule: r.unit is not None and not r.unit.told,
    "unit not active": lambda w, r, now, rule: (
        r.unit is not None and r.unit.active != ("failed" if rule == "unit-failed" else "active")
    ),
    "job queued": lambda w, r, now, rule: r.unit is not None and r.unit.job != 0,
    "failed unit without revive": lambda w, r, now, rule: rule == "unit-failed" and not w.settings.revive,
    "budget": lambda w, r, now, rule: w.recent(now) >= w.settings.max_restarts,
    "ten minutes": lambda w, r, now, rule: (
        bool(w.restarts) and w.true(now) - w.restarts[-1] < w.settings.restart_gap - 1e-6
    ),
    "left-over processes": lambda w, r, now, rule: r.unit is not None and bool(r.unit.left_over),
}
"""Every hold but the other backends' restarts, which `Law` knows: a further one is a line here."""


@dataclass
class Law:
    """All backends of a host: each effect is held against what its backend has shown, and against the others."""

    witnesses: dict[str, Witness] = field(default_factory=dict)
    under_way: dict[str, int] = field(default_factory=dict)

    def effect(self, name: str, effect: Effect, now: float) -> None:
        witness = self.witnesses[name]
        match effect:
            case Ask(question=question):
                witness.may_ask(question)
                witness.asked(question)
            case Restart():
                assert not self.under_way, "two restarts at once on a host"
                witness.may_restart(effect, now)
                witness.restarts.append(witness.true(now))
                self.under_way[name] = effect.attempt
            case RestartSettled(attempt=attempt):
                assert self.under_way.pop(name, None) == attempt, "settled, but not under way"


# --- what a reading tells --------------------------------------------------------------------------------------------


def pause_sign(reading: Reading) -> bool:
    told = reading.pause is not None and reading.pause.sign is not None
    return told or (reading.readable and any(s.asleep for s in reading.engines))


def set_aside(reading: Reading) -> bool:
    unit = reading.unit
    return reading.maintenance or (unit is not None and unit.told and unit.active in ASIDE)


def told_identity(reading: Reading) -> dict[str, object]:
    told: dict[str, object] = {"start_time": reading.start_time} if reading.readable else {}
    unit = reading.unit
    if unit is not None and unit.told:
        told |= {"invocation": unit.invocation, "main_pid": unit.main_pid, "main_start": unit.main_start}
    return {name: value for name, value in told.items() if value is not None}
