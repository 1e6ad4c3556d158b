"""A host of made-up model servers in virtual time, played through `step_host`, with the truth kept beside it.

Nothing here judges. A server has requests, counters and gauges as a real one has; what goes wrong is written in its
`Spell`s, one after the other. `Host.run` polls, carries out what the core says, and reports each effect to `watch`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import (
    Answer,
    Answered,
    Ask,
    Effect,
    Event,
    Flag,
    JobEnded,
    JobResult,
    Look,
    Outcome,
    Owner,
    Pause,
    Polled,
    Port,
    Question,
    Reading,
    Reply,
    ResetAsked,
    Restart,
    Sample,
    Settings,
    UnitFacts,
    Went,
)
from factory_watchdog.core.step import step_host, wants_pause_signs
from factory_watchdog.saved import encode, taken_up

REPLIES = {
    "ok": Reply(Went.OK, 200),
    "503": Reply(Went.STATUS, 503),
    "500": Reply(Went.STATUS, 500),
    "404": Reply(Went.ABSENT, 404),
    "timeout": Reply(Went.TIMEOUT),
    "reset": Reply(Went.RESET),
    "refused": Reply(Went.REFUSED),
    "garbage": Reply(Went.UNREADABLE),
}
REQUIRED = ("running", "waiting", "steps", "prompt", "generated", "kv")


@dataclass(frozen=True)
class Spell:
    """What a server is like for a time. `frozen` engines do no step; `wait` seconds pass inside before a step ends."""

    seconds: int
    arrivals: int = 0  # users' requests that come at its beginning, to the engines in turn
    tokens: int = 50  # that each of them wants
    step: int = 1  # seconds that one step takes; one token for each running request
    frozen: tuple[int, ...] = ()
    hang_up: bool = False  # the users close their connections
    health: str = "ok"
    metrics: str = "ok"
    hide: tuple[str, ...] = ()  # signals that the page lacks
    answers: str = "works"  # works | error | not-now | cannot | denied
    paused: bool = False
    flag: bool = False
    maintenance: str | None = None
    unit: str = "active"
    told: bool = True
    job: bool = False
    port: str = "unit"  # whose it is: unit | foreign | container | unknown | none (nobody looked)
    models: tuple[str, ...] | None = None  # that are served; "m" is the configured one
    by_other: bool = False  # somebody else restarts it at its beginning
    asleep: int = 0  # the host sleeps so long at its beginning
    death: bool = False  # our daemon dies and comes back at its beginning
    reset: bool = False  # an operator closes the breaker
    noise: bool = False  # events of nobody arrive
    restart: str = "works"  # works | hangs-again | fails | never-ends


@dataclass
class FakeEngine:
    steps: int = 0
    prompt: int = 0
    generated: int = 0
    finished: int = 0
    users: list[int] = field(default_factory=list)
    ours: dict[int, float] = field(default_factory=dict)  # question -> when it came
    moved_at: float = float("-inf")  # users' work: the truth
    work: int = 0
    next_step: float = 0.0
    running: int = 0  # gauges are set by an engine that lives, and stay as they are where it froze
    kv: float = 0.0

    def gauge(self) -> None:
        self.running = len(self.users) + len(self.ours)
        self.kv = round(0.9 * (1 - 1 / (1 + 0.05 * self.running)) + 1e-6 * (self.work % 1000), 9)

    def sample(self, name: str, hide: tuple[str, ...]) -> Sample:
        counters = (float(self.steps), float(self.prompt), float(self.generated))
        told = Sample(name, self.running, 0, *counters, self.kv, float(self.finished))
        told = replace(told, **dict.fromkeys(hide))
        return replace(told, missing=tuple(n for n in REQUIRED if getattr(told, n) is None))


@dataclass
class Server:
    """One backend's server, its unit, and what the watch over it has out."""

    name: str
    settings: Settings
    spells: list[Spell]
    count: int = 1
    start_time: bool = True
    pause_signs: bool = True
    life: int = 1
    life_began: float = 0.0
    loading_until: float = 0.0
    load_time: float = 40.0
    cured: bool = False  # restarted for good: what froze it is over in this spell
    engines: list[FakeEngine] = field(default_factory=list)
    out: dict[int, Question] = field(default_factory=dict)
    spell: Spell = Spell(0)
    newest: Reading | None = None
    shown_work: list[tuple[int, ...]] = field(default_factory=list)  # users' work at each readable reading
    refused: int = 0  # readings in a row that found every port closed, since `refused_since`
    refused_since: float = 0.0
    told_since: float | None = None  # when the service manager first told of the unit
    given_up: int = 0  # questions of ours that ended without an answer: they may still be counted in the gauges
    generation: int = 0  # of our daemon: what an earlier one had out is lost

    def __post_init__(self) -> None:
        self.engines = [FakeEngine(*(900,) * 4) for _ in range(self.count)]

    def begin_life(self, now: float) -> None:
        self.life += 1
        self.life_began = now
        self.loading_until = now + self.load_time
        self.engines = [FakeEngine() for _ in range(self.count)]
        self.shown_work = []

    def frozen(self, index: int) -> bool:
        return self.spell.paused or (index in self.spell.frozen and not self.cured)

    def works(self, now: float) -> bool:
        return now >= self.loading_until and self.spell.unit in ("active", "activating", "reloading")

    # --- time --------------------------------------------------------------------------------------------------------

    def pass_time(self, now: float) -> None:
        """What the engines do in a second."""
        for index, engine in enumerate(self.engines):
            if not self.works(now) or self.frozen(index):
                continue
            if (engine.users or engine.ours) and now >= engine.next_step:
                engine.next_step = now + self.spell.step
                self._step(engine, now)
            engine.gauge()

    def _step(self, engine: FakeEngine, now: float) -> None:
        engine.steps += 1
        if engine.users:
            engine.work += 1
            engine.moved_at = now
            engine.generated += len(engine.users)
            engine.finished += engine.users.count(1)
            engine.users = [left - 1 for left in engine.users if left > 1]
        for number in list(engine.ours):
            engine.prompt += 8
            engine.generated += 1
            engine.finished += 1
            del engine.ours[number]

    def enter(self, spell: Spell, now: float) -> None:
        self.spell, self.cured = spell, False
        for i in range(spell.arrivals):
            engine = self.engines[i % self.count]
            if self.works(now):
                engine.users.append(spell.tokens)
                if not self.frozen(i % self.count):
                    engine.prompt += 20
                    engine.work += 1
                    engine.moved_at = now
                    engine.gauge()
        if spell.hang_up:
            for engine in self.engines:
                engine.users = []
        if spell.by_other:
            self.begin_life(now)

    # --- being looked at ---------------------------------------------------------------------------------------------

    def read(self, now: float, state: Backend) -> Reading:
        spell = self.spell
        down = not self.works(now)
        metrics = REPLIES["refused" if down else spell.metrics]
        known = metrics.went is Went.OK
        reading = Reading(
            began=now,
            ended=now,
            health=REPLIES["refused" if down else spell.health],
            metrics=metrics,
            known=known,
            engines=tuple(e.sample(str(i), spell.hide) for i, e in enumerate(self.engines)) if known else (),
            start_time=float(self.life) if known and self.start_time else None,
            unit=self.facts(),
            flag=Flag(held=spell.flag, why="job", since=0.0) if spell.flag else Flag(),
            maintenance=spell.maintenance,
            port=None if spell.port == "none" else Port(Owner(spell.port), "told"),
            models=spell.models,
        )
        if wants_pause_signs(state, reading, self.settings):
            sign = "paused, says /is_paused" if spell.paused else None
            reading = replace(reading, pause=Pause(sign) if self.pause_signs else Pause(absent=True))
        closed = reading.health.went is Went.REFUSED and metrics.went in (Went.REFUSED, Went.ABSENT)
        self.refused_since = now if not self.refused else self.refused_since
        self.refused = self.refused + 1 if closed else 0
        if self.told_since is None and self.spell.told:
            self.told_since = now
        self.newest = reading
        if reading.readable:
            self.shown_work.append(tuple(e.work for e in self.engines))
        return reading

    def facts(self) -> UnitFacts:
        if not self.spell.told:
            return UnitFacts(told=False, detail="no answer")
        return UnitFacts(
            True, self.spell.unit, "", int(self.spell.job), f"i{self.life}", 100 + self.life, 5 * self.life
        )

    # --- being asked -------------------------------------------------------------------------------------------------

    def take(self, question: Question, now: float) -> tuple[float, Outcome] | None:
        """When and how a question ends for a reason of its own; None where an engine has it."""
        if not self.works(now):
            return now + 0.1, Outcome.FAILED
        worth = {
            "error": Outcome.SERVER_ERROR,
            "not-now": Outcome.NOT_NOW,
            "cannot": Outcome.CANNOT,
            "denied": Outcome.DENIED,
        }.get(self.spell.answers)
        if worth is not None:
            return now + 0.1, worth
        index = int(question.engine) if question.pinned and question.engine is not None else question.id % self.count
        self.engines[index].ours[question.id] = now
        return None


Watch = Callable[["Host", Server, Effect, float], None]


@dataclass
class Host:
    """The servers, their watches, and one virtual clock."""

    servers: list[Server]
    watch: Watch
    states: dict[str, Backend] = field(default_factory=dict)
    now: float = 0.0
    after_poll: Callable[[Host, Server], None] | None = None

    def __post_init__(self) -> None:
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._order), what))

    def run(self) -> None:
        """Play every server's spells to their end."""
        end = 0.0
        for i, server in enumerate(self.servers):
            begins = 0.0
            for spell in server.spells:
                self.at(begins, lambda s=server, p=spell: self._enter(s, p))  # type: ignore[misc]
                begins += spell.seconds
            end = max(end, begins)
            self.at(0.1 + 0.7 * i, lambda s=server: self._poll_and_again(s))  # type: ignore[misc]
            self.at(1.0, lambda s=server: self._tick(s))  # type: ignore[misc]
        while self._queue and self._queue[0][0] <= end:
            self.now, _, what = heapq.heappop(self._queue)
            what()

    def _tick(self, server: Server) -> None:
        server.pass_time(self.now)
        answered = [
            q for q in server.out.values() if q.sent < self.now and not any(q.id in e.ours for e in server.engines)
        ]
        for question in answered:
            if question.id in server.out and getattr(server, "waits", {}).get(question.id):
                self._answer(server, question, Outcome.ANSWERED)
        self.at(self.now + 1.0, lambda: self._tick(server))

    def _enter(self, server: Server, spell: Spell) -> None:
        if spell.asleep:
            self._sleep(spell.asleep)
        server.enter(spell, self.now)
        if spell.death:
            self._die(server)
        if spell.reset:
            self.feed(server, ResetAsked("root"))
        if spell.noise:
            self.feed(server, Answered(Answer(10_000, Outcome.ANSWERED, self.now)))
            self.feed(server, JobEnded(10_000, JobResult.DONE))
            self.feed(server, JobEnded(self.state(server).recovery.attempt - 1, JobResult.FAILED))

    def _sleep(self, seconds: float) -> None:
        """The whole host: whatever was to happen happens later."""
        self._queue = [(when + seconds, order, what) for when, order, what in self._queue]
        self.now += seconds
        for server in self.servers:
            server.loading_until += seconds
            for engine in server.engines:
                engine.moved_at += seconds

    def _die(self, server: Server) -> None:
        server.generation += 1
        server.out.clear()
        state = self.state(server)
        self.states[server.name] = taken_up(encode(state, "boot", self.now, self.now), "boot", self.now, self.now)

    def state(self, server: Server) -> Backend:
        return self.states.get(server.name, Backend())

    # --- the watch ---------------------------------------------------------------------------------------------------

    def _poll_and_again(self, server: Server) -> None:
        self._poll(server)
        self.at(self.now + server.settings.interval, lambda: self._poll_and_again(server))

    def _poll(self, server: Server) -> None:
        self.feed(server, Polled(server.read(self.now, self.state(server))))

    def feed(self, server: Server, event: Event) -> None:
        states, effects = step_host(self.states, server.name, event, self.now, server.settings)
        self.states = dict(states)
        for effect in effects:
            self.watch(self, server, effect, self.now)
            self._carry_out(server, effect)
        if self.after_poll is not None and isinstance(event, Polled):
            self.after_poll(self, server)

    def _carry_out(self, server: Server, effect: Effect) -> None:
        match effect:
            case Look():
                self.at(self.now + 0.01, lambda: self._poll(server))
            case Ask(question=question):
                self._ask(server, question)
            case Restart():
                self._restart(server, effect)
            case _:
                pass

    def _ask(self, server: Server, question: Question) -> None:
        server.out[question.id] = question
        waits: dict[int, bool] = server.__dict__.setdefault("waits", {})
        ends = server.take(question, self.now)
        generation = server.generation
        if ends is not None:
            when, outcome = ends
            self.at(when, lambda: self._answer(server, question, outcome, generation))
            return
        waits[question.id] = True
        timeout = self.now + server.settings.question_timeout
        self.at(timeout, lambda: self._give_up(server, question, generation))

    def _give_up(self, server: Server, question: Question, generation: int) -> None:
        for engine in server.engines:
            engine.ours.pop(question.id, None)
        server.given_up += question.id in server.out
        self._answer(server, question, Outcome.FAILED, generation)

    def _answer(self, server: Server, question: Question, outcome: Outcome, generation: int | None = None) -> None:
        if question.id not in server.out or generation not in (None, server.generation):
            return
        del server.out[question.id]
        tokens = (8, 1) if outcome is Outcome.ANSWERED else (0, 0)
        self.feed(server, Answered(Answer(question.id, outcome, self.now, *tokens)))

    def _restart(self, server: Server, order: Restart) -> None:
        generation, how = server.generation, server.spell.restart
        if how == "fails":
            self.at(self.now + 2, lambda: self._job(server, order, JobResult.FAILED, generation))
        elif how == "never-ends":
            later = self.now + server.settings.startup_timeout
            self.at(later, lambda: self._job(server, order, JobResult.NEVER_ENDED, generation))
        else:
            self.at(self.now + 3, lambda: self._pushed(server, order, generation))

    def _pushed(self, server: Server, order: Restart, generation: int) -> None:
        server.begin_life(self.now)
        server.cured = server.spell.restart == "works"
        self._job(server, order, JobResult.DONE, generation)

    def _job(self, server: Server, order: Restart, result: JobResult, generation: int) -> None:
        if generation == server.generation:
            self.feed(server, JobEnded(order.attempt, result))
