"""A host on which anything happens in any order: the events of the state machine, and what its servers show.

What a server does and shows stays until it is changed, so that a rule of the machine is one change, and time passes
between the changes. Every event goes through `FreeHost.feed`, where the law, the purity of `step`, and the saved state
are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fake_host import REPLIES, REQUIRED
from witness import Law, Signals, Witness

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
    Pause,
    Polled,
    Question,
    Reading,
    ResetAsked,
    Restart,
    Sample,
    Settings,
    UnitFacts,
    Went,
)
from factory_watchdog.core.recovery import resume
from factory_watchdog.core.step import step_host, wants_pause_signs
from factory_watchdog.saved import decode, encode, taken_up

# What an engine does at each poll: users' requests in it, and by how much its counters move.
DOES: dict[str, tuple[int, dict[str, float]]] = {
    "work": (3, {"steps": 20, "prompt": 30, "generated": 60, "finished": 1, "kv": 0.01}),
    "prefill": (3, {"prompt": 50}),
    "steps": (3, {"steps": 20}),
    "tokens": (2, {"generated": 40}),
    "cache": (3, {"kv": -0.001}),
    "still": (3, {}),
    "quiet": (0, {}),
    "done": (0, {"steps": 20, "prompt": 30, "generated": 60, "finished": 1}),
    "down": (3, {"generated": -500}),
    "wedged": (0, {}),
}
STUCK = ("still", "wedged")
OWN = {"steps": 1.0, "prompt": 8.0, "generated": 1.0, "finished": 1.0}

# What a server shows when nothing is wrong; a rule changes one of these.
SOUND: dict[str, Any] = {
    "health": "ok",
    "metrics": "ok",
    "hide": (),
    "unit": "active",
    "told": True,
    "job": False,
    "left_over": False,
    "paused": False,
    "asleep": False,
    "flag": False,
    "maintenance": False,
    "computes": False,
    "answers": "honest",  # honest: as the engine does; later: not before a rule says so; else the outcome
    "restart": "works",  # works | hangs-again | fails | never-ends | dropped | later
}
OUTCOMES = {
    "error": Outcome.SERVER_ERROR,
    "not-now": Outcome.NOT_NOW,
    "cannot": Outcome.CANNOT,
    "denied": Outcome.DENIED,
}
RESULTS = {"fails": JobResult.FAILED, "never-ends": JobResult.NEVER_ENDED, "dropped": JobResult.DROPPED}


@dataclass
class Part:
    """One engine. Counters are kept in two parts: the users' and our own questions'."""

    users: dict[str, float]
    own: dict[str, float] = field(default_factory=lambda: dict.fromkeys([*OWN, "kv"], 0.0))
    does: str = "work"
    running: int = 0
    ours: int = 0

    def act(self) -> None:
        self.running, moves = DOES[self.does]
        for name, by in moves.items():
            self.users[name] = round(max(self.users[name] + by, 0.0) % (0.9 if name == "kv" else 1e12), 9)

    def sample(self, name: str, hide: tuple[str, ...], asleep: bool, counts_ours: bool) -> Sample:
        told = {n: round(value + self.own[n], 9) for n, value in self.users.items()}
        running = self.running + (self.ours if counts_ours else 0)
        sample = Sample(name, running, 0, **told, asleep="asleep, says its gauge" if asleep else None)
        sample = replace(sample, **dict.fromkeys(hide))
        return replace(sample, missing=tuple(n for n in REQUIRED if getattr(sample, n) is None))


@dataclass
class FreeServer:
    """One backend's server and unit. `signs`: it has pause endpoints; `counts_ours`: its gauges show our questions."""

    name: str
    settings: Settings
    count: int = 1
    signs: bool = True
    start_times: bool = True
    counts_ours: bool = False
    number: int = 1
    start: float = 1.0
    processes: int = 0
    cpu: float = 0.0
    alternates: bool = False
    shows: dict[str, Any] = field(default_factory=lambda: dict(SOUND), repr=False)
    engines: list[Part] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.engines = [Part(self._counters(900.0)) for _ in range(self.count)]

    @staticmethod
    def _counters(value: float) -> dict[str, float]:
        return {**dict.fromkeys(OWN, value), "kv": 0.2}

    def begin_life(self, does: str = "work") -> None:
        self.number += 1
        self.start, self.alternates = float(self.number), False
        self.engines = [Part(self._counters(0.0), does=does) for _ in range(self.count)]

    def begin_process(self) -> None:
        """The main process is started again under its number, by a shell that stays: its start time alone tells."""
        self.processes += 1
        self.engines = [Part(self._counters(0.0), does=part.does) for part in self.engines]

    def read(self, now: float, state: Backend, seconds: float) -> tuple[Reading, Signals]:
        """What a poll of so many seconds shows, and the users' part of it."""
        shows = self.shows
        for part in self.engines:
            part.act()
        metrics = REPLIES[shows["metrics"]]
        known = metrics.went is Went.OK
        samples = tuple(
            p.sample(str(i), shows["hide"], shows["asleep"], self.counts_ours) for i, p in enumerate(self.engines)
        )
        reading = Reading(
            began=now,
            ended=now + seconds,
            health=REPLIES[shows["health"]],
            metrics=metrics,
            known=known,
            engines=samples if known else (),
            start_time=self.start if known and self.start_times else None,
            unit=self._facts() if self.settings.has_unit else None,
            flag=Flag(held=True, why="a job", since=0.0) if shows["flag"] else Flag(),
            maintenance="by an operator" if shows["maintenance"] else None,
        )
        if wants_pause_signs(state, reading, self.settings):
            sign = "paused, says /is_paused" if shows["paused"] and shows["health"] != "refused" else None
            reading = replace(reading, pause=Pause(sign) if self.signs else Pause(absent=True))
        users = {
            s.engine: {n: p.users[n] for n in p.users if getattr(s, n) is not None}
            for s, p in zip(samples, self.engines, strict=True)
        }
        return reading, users

    def _facts(self) -> UnitFacts:
        shows = self.shows
        if not shows["told"]:
            return UnitFacts(told=False, detail="no answer")
        return UnitFacts(
            True,
            shows["unit"],
            job=9 if shows["job"] else 0,
            invocation=f"i{self.number}",
            main_pid=100 + self.number,
            main_start=500 * self.number + self.processes,
            cpu=self.cpu,
            left_over=(77,) if shows["left_over"] else (),
        )


@dataclass(repr=False)
class FreeHost:
    """The servers, their watches, one true time, and the clock of this boot."""

    servers: dict[str, FreeServer]
    time: float = 5000.0
    booted: float = 0.0
    boot: int = 1
    states: dict[str, Backend] = field(default_factory=dict)
    twins: dict[str, Backend] | None = None
    orders: dict[str, tuple[Restart, float]] = field(default_factory=dict)
    looks: set[str] = field(default_factory=set)
    effects: list[tuple[float, str, Effect]] = field(default_factory=list)
    story: Callable[[str], None] = lambda line: None

    def __repr__(self) -> str:
        return f"FreeHost({list(self.servers.values())})"

    def __post_init__(self) -> None:
        witnesses = {n: Witness(n, s.settings, true=self._true) for n, s in self.servers.items()}
        self.law = Law(witnesses)

    def _true(self, now: float) -> float:
        return now + self.booted

    @property
    def now(self) -> float:
        return self.time - self.booted

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        for server in self.servers.values():
            server.cpu += 0.5 * seconds if server.shows["computes"] else 0.0

    # --- every event -------------------------------------------------------------------------------------------------

    def feed(self, name: str, event: Event) -> None:
        settings, now, before = self.servers[name].settings, self.now, self.states
        states, effects = step_host(before, name, event, now, settings)
        assert step_host(before, name, event, now, settings) == (states, effects), "the same step, another result"
        assert all(states[n] is b for n, b in before.items() if n != name), "a step of one changed another"
        assert decode(encode(states[name], "b", now, now)).backend == states[name], "written down, read back as another"
        self.states = dict(states)
        if self.twins is not None:
            twins, same = step_host(self.twins, name, event, now, settings)
            assert (twins, same) == (states, effects), "a saved state leads to another end"
            self.twins = dict(twins)
        for effect in effects:
            self.story(f"{now:.2f} {name}: {effect}")
            self.effects.append((self.time, name, effect))
            self.law.effect(name, effect, now)
            self._carry_out(name, effect)
        verdict = self.states[name].verdict
        if isinstance(event, Polled) and verdict is not None:
            self.law.witnesses[name].shown(verdict, name in self.law.under_way)

    def _carry_out(self, name: str, effect: Effect) -> None:
        match effect:
            case Look():
                self.looks.add(name)
            case Ask(question=question):
                self._part(name, question).ours += 1
            case Restart():
                self.orders[name] = effect, self.time

    def _part(self, name: str, question: Question) -> Part:
        """The engine that a question reaches."""
        server = self.servers[name]
        pinned = question.pinned and question.engine is not None
        return server.engines[int(question.engine or 0) if pinned else question.id % server.count]

    # --- polls and time ----------------------------------------------------------------------------------------------

    def poll(self, name: str, seconds: float = 0.005, answer: Outcome | None = None) -> None:
        """A poll of so many seconds; `answer`: the question that is out ends meanwhile."""
        reading, users = self.servers[name].read(self.now, self.states.get(name, Backend()), seconds)
        if answer is not None:
            self.pass_time(seconds / 2)
            self.answer(name, answer)
        self.pass_time(reading.ended - self.now)
        self.looks.discard(name)
        self.law.witnesses[name].saw(reading, users)
        self.feed(name, Polled(reading))

    def rounds(self, count: int) -> None:
        """So many intervals: what is out ends as its server would have it, every backend is polled, looks are made."""
        for _ in range(count):
            for name in self.servers:
                self._settle(name)
                self.poll(name)
                for _ in range(2):
                    if self.servers[name].shows["answers"] in OUTCOMES:
                        self.answer(name, OUTCOMES[self.servers[name].shows["answers"]])  # turned away at once
                    if name in self.looks:
                        self.pass_time(0.01)
                        self.poll(name)
            self.pass_time(10.0 - 0.01 * len(self.servers))

    def _settle(self, name: str) -> None:
        server, question = self.servers[name], self.law.witnesses[name].out
        how = server.shows["answers"]
        if question is not None and how != "later":
            late = self.now - question.sent >= server.settings.question_timeout
            stuck = self._part(name, question).does in STUCK or server.shows["metrics"] == "refused"
            if how in OUTCOMES:
                self.answer(name, OUTCOMES[how])
            elif not stuck:
                self.answer(name, Outcome.ANSWERED)
            elif late:
                self.answer(name, Outcome.FAILED)
        if name in self.orders and server.shows["restart"] != "later":
            self.end_job(name, server.shows["restart"])

    # --- events in any order -----------------------------------------------------------------------------------------

    def answer(self, name: str, outcome: Outcome, elsewhere: bool = False) -> None:
        """The question that is out ends; one answered is booked by the engine that it reached, or by none."""
        witness = self.law.witnesses[name]
        question = witness.out
        if question is None:
            return
        part = self._part(name, question)
        tokens = (0, 0)
        booked = outcome is Outcome.ANSWERED and not elsewhere
        if outcome is Outcome.ANSWERED:
            tokens = (8, 1)
        if booked:
            for signal, by in OWN.items():
                part.own[signal] += by
            part.own["kv"] = round(part.own["kv"] + 0.0001, 9)
        if part.does not in STUCK or booked:
            part.ours = max(part.ours - 1, 0)
        answer = Answer(question.id, outcome, self.now, *tokens)
        witness.answered(answer, booked and part is self.servers[name].engines[int(question.engine or 0)])
        self.pass_time(0.001)
        self.feed(name, Answered(answer))

    def end_job(self, name: str, how: str) -> None:
        if name not in self.orders:
            return
        order, ordered = self.orders.pop(name)
        server = self.servers[name]
        result = RESULTS.get(how, JobResult.DONE)
        if result is JobResult.DONE:
            server.shows.update({k: SOUND[k] for k in ("health", "metrics", "hide", "answers", "unit")})
            server.begin_life("still" if how == "hangs-again" else "work")
        self.law.witnesses[name].job_ended(result, ordered)
        self.feed(name, JobEnded(order.attempt, result))

    def stray(self, name: str, number: int) -> None:
        """Events that nobody waits for."""
        self.feed(name, Answered(Answer(10_000 + number, Outcome.ANSWERED, self.now)))
        self.feed(name, JobEnded(10_000 + number, JobResult.FAILED))

    def reset(self, name: str) -> None:
        self.law.witnesses[name].reset()
        self.feed(name, ResetAsked("root"))

    def reload(self, name: str, settings: Settings) -> None:
        """The watch over one backend ends and begins again with other settings; a job that runs is not followed."""
        self._lose(name)
        self.servers[name].settings = settings
        self._resume(name, other_boot=False)

    def die(self, other_boot: bool) -> None:
        """Our daemon is killed and comes back, a minute later with another boot of the host."""
        before = self.states
        for name in self.servers:
            self._lose(name)
        if other_boot:
            saved = {n: encode(s, f"boot {self.boot}", self.now, 1e9 + self.time) for n, s in before.items()}
            self.pass_time(60.0)
            self.boot += 1
            self.booted, self.twins = self.time - 30.0, None
            for name, text in saved.items():
                self.servers[name].begin_life()
                self.states[name] = taken_up(text, f"boot {self.boot}", self.now, 1e9 + self.time)
                self.law.witnesses[name].died(self.servers[name].settings, other_boot=True)
            return
        for name in self.servers:
            self._resume(name, other_boot=False)

    def make_sound(self, name: str, settings: Settings) -> None:
        """Whatever was wrong is over, a restart under way leads to a new life, and users' work goes on."""
        server = self.servers[name]
        if settings != server.settings:
            self.reload(name, settings)
        self.end_job(name, "works")
        if name in self.law.under_way or server.alternates:
            server.begin_life()
        server.shows.update(SOUND)
        for part in server.engines:
            part.does = "work"

    def _lose(self, name: str) -> None:
        """What is out is not followed any more; the job itself goes on."""
        if self.orders.pop(name, None) is not None and self.servers[name].shows["restart"] == "works":
            self.servers[name].begin_life()

    def _resume(self, name: str, *, other_boot: bool) -> None:
        self.looks.discard(name)
        self.law.witnesses[name].died(self.servers[name].settings, other_boot=other_boot)
        state = self.states.get(name)
        if state is None:
            return
        self.states[name] = taken_up(encode(state, "b", self.now, self.now), "b", self.now, self.now)
        self.twins = {**(self.twins if self.twins is not None else self.states), name: resume(state)}
        assert self.twins == self.states, "written down, resumed as another"
