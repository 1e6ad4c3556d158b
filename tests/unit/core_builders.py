"""A backend played in words: each word of a script is one poll of a small made-up server, or one answer of it.

    Play().run("work*2 still*14 failed")

polls a server that works for two readings, stands still with the same requests for fourteen, and lets the question
that is out by then fail. `*N` repeats a word, `a/b` shows engine 0 as `a` and engine 1 as `b`, `a+b` joins words in one
poll. What a server shows stays: counters and gauges are those of the poll before unless a word changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from factory_watchdog.core.memory import Backend, Memory
from factory_watchdog.core.model import (
    Answer,
    Answered,
    Ask,
    Effect,
    Event,
    Flag,
    Form,
    JobEnded,
    JobResult,
    Look,
    Outcome,
    Owner,
    Pause,
    Polled,
    Port,
    Question,
    Raise,
    Reading,
    Reply,
    ResetAsked,
    Restart,
    RestartSettled,
    Sample,
    Settings,
    UnitFacts,
    Went,
)
from factory_watchdog.core.recovery import TRANSITIONS
from factory_watchdog.core.step import step

OK = Reply(Went.OK, 200)
REFUSED = Reply(Went.REFUSED)
TIMEOUT = Reply(Went.TIMEOUT)
ACTIVE = UnitFacts(
    told=True, active="active", sub="running", invocation="i1", main_pid=100, main_start=5, control_group="/x.service"
)

# Words for one engine: what it shows, and by how much its counters move.
ENGINE_WORDS: dict[str, dict[str, float]] = {
    "work": {"running": 3, "waiting": 0, "+steps": 20, "+prompt": 7, "+generated": 60, "+finished": 1, "+kv": 0.01},
    "still": {"running": 3, "waiting": 0},
    "queue": {"running": 0, "waiting": 6},
    "quiet": {"running": 0, "waiting": 0},
    "one": {"running": 1, "waiting": 0},
    "done": {"running": 0, "waiting": 0, "+steps": 9, "+prompt": 7, "+generated": 9, "+finished": 1},
    "steps": {"running": 3, "+steps": 1},
    "prompt": {"running": 3, "+prompt": 50},
    "kv": {"running": 3, "+kv": 0.001},
    "kv-down": {"running": 3, "+kv": -0.001},
    "kv-noise": {"running": 3, "+kv": 1e-12},
    "token": {"running": 3, "+generated": 1},
    "finish": {"running": 3, "+finished": 1},
    "counter-down": {"running": 3, "+generated": -5},
    "no-kv": {"running": 3},
    "no-gauges": {},
    "negative": {"running": -1, "waiting": 0},
    "own": {"+steps": 1, "+prompt": 8, "+generated": 1, "+finished": 1},
    "own-kv": {"+steps": 1, "+prompt": 8, "+generated": 1, "+finished": 1, "+kv": 0.002},
    "own-step": {"+steps": 1, "+generated": 1},
    "own-finish": {"+prompt": 8, "+finished": 1},
}
HIDDEN = {"no-kv": ("kv",), "no-gauges": ("running", "waiting")}  # what is not told in this poll
REQUIRED = ("running", "waiting", "steps", "prompt", "generated", "kv")

# Words for the whole backend: fields of the reading of this poll alone.
READING_WORDS: dict[str, dict[str, Any]] = {
    "refused": {"health": REFUSED, "metrics": REFUSED},
    "silent": {"health": TIMEOUT, "metrics": TIMEOUT},
    "reset": {"health": Reply(Went.RESET), "metrics": Reply(Went.RESET)},
    "503": {"health": Reply(Went.STATUS, 503)},
    "500": {"health": Reply(Went.STATUS, 500)},
    "health-timeout": {"health": TIMEOUT},
    "health-absent": {"health": Reply(Went.ABSENT, 404)},
    "metrics-timeout": {"metrics": TIMEOUT},
    "metrics-500": {"metrics": Reply(Went.STATUS, 500)},
    "metrics-absent": {"metrics": Reply(Went.ABSENT, 404)},
    "metrics-empty": {"known": False},
    "paused": {"pause": Pause("paused, says /is_paused")},
    "not-paused": {"pause": Pause()},
    "no-pause-signs": {"pause": Pause(absent=True)},
    "maintenance": {"maintenance": "by an operator"},
    "flag": {"flag": Flag(held=True, why="a batch job", since=0.0)},
    "stale": {"flag": Flag(stale=True, why="of a dead process")},
    "untold": {"unit": UnitFacts(told=False, detail="no answer")},
    "no-start": {"start_time": None},
    "ours": {"port": Port(Owner.UNIT)},
    "foreign": {"port": Port(Owner.FOREIGN, "port 8000 is listened on by ssh.service, not by vllm.service")},
    "container": {"port": Port(Owner.CONTAINER, "port 8000 is a container's")},
    "unknown": {"port": Port(Owner.UNKNOWN, "nobody listens at port 8000")},
    "other-model": {"models": ("llama4",)},
    "left-over": {"unit": replace(ACTIVE, left_over=(77,))},
    "job": {"unit": replace(ACTIVE, job=9)},
    "stopped-failed": {"unit": replace(ACTIVE, active="failed", sub="failed", own_exit=False)},
    "gave-up": {"unit": replace(ACTIVE, active="inactive", sub="dead", own_exit=True, restarts_on="on-failure")},
    **{
        f"unit-{state}": {"unit": replace(ACTIVE, active=state, sub=state)}
        for state in ("inactive", "deactivating", "reloading", "activating", "failed")
    },
}
ANSWER_WORDS: dict[str, Outcome] = {
    "answered": Outcome.ANSWERED,
    "failed": Outcome.FAILED,
    "error": Outcome.SERVER_ERROR,
    "not-now": Outcome.NOT_NOW,
    "cannot": Outcome.CANNOT,
    "denied": Outcome.DENIED,
}


@dataclass
class Play:
    """One backend under `step`, its made-up server, and everything that came out."""

    settings: Settings = field(default_factory=Settings)
    engines: int = 1
    now: float = 1000.0
    state: Backend = field(default_factory=Backend)
    effects: list[tuple[float, Effect]] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.samples = [Sample(str(i), 0, 0, 500, 300, 900, 0.2, 40) for i in range(self.engines)]
        self.base: dict[str, Any] = {"health": OK, "metrics": OK, "known": True, "start_time": 50.0, "unit": ACTIVE}
        self.pause = self.settings.interval
        self.hide: dict[str, tuple[str, ...]] = {}

    # --- scripts -----------------------------------------------------------------------------------------------------

    def run(self, script: str) -> Play:
        for part in script.split():
            word, _, times = part.partition("*")
            for _ in range(int(times or 1)):
                self._word(word)
        return self

    def restarted(self, script: str = "work*2 still*14 failed still") -> Play:
        """Play up to a restart that has just been ordered."""
        self.run(script)
        assert self.phase == "restart", (self.phase, self.shown)
        return self

    def poison(self, polls: int, first: str = "work*2") -> Play:
        """Hang again in every life; polled so often."""
        self.run(first)
        for _ in range(polls):
            self.run("still")
            if self.phase == "restart":
                self.run("done-job life quiet token")
        return self

    def _word(self, word: str) -> None:
        match word:
            case _ if word in ANSWER_WORDS:
                self.answer(ANSWER_WORDS[word])
            case "gap":
                self.pause = 60.0
            case "now":
                self.pause = 0.01
            case "done-job":
                self.job(JobResult.DONE)
            case "life":
                self.life()
            case "restart-daemon":
                self.resume()
            case "reset-breaker":
                self.feed(ResetAsked("root"))
            case _:
                self.poll(word)

    def poll(self, words: str = "", **fields: Any) -> None:
        self.now += self.pause
        self.pause = self.settings.interval
        self.hide = {}
        told: dict[str, Any] = {}
        for word in words.split("+"):
            if word in READING_WORDS:
                told.update(READING_WORDS[word])
            elif word:
                self._engines(word)
        self.feed(Polled(self.reading(**told, **fields)))
        self.states.append(str(self.state.verdict.state) if self.state.verdict else "")

    def reading(self, **fields: Any) -> Reading:
        told = {**self.base, "engines": tuple(hidden(s, self.hide) for s in self.samples), **fields}
        unit = told["unit"]
        if unit is not None and unit.told and unit is not self.base["unit"]:
            known = self.base["unit"] or unit
            told["unit"] = replace(
                unit, invocation=known.invocation, main_pid=known.main_pid, main_start=known.main_start
            )
        if told["metrics"].went is not Went.OK or not told["known"]:
            told.update(engines=(), start_time=None, known=False)
        return Reading(**{"began": self.now, "ended": self.now + 0.005, **told})

    def _engines(self, word: str) -> None:
        parts = word.split("/")
        parts = parts * self.engines if len(parts) == 1 else parts
        self.samples = [changed(s, ENGINE_WORDS[p]) for s, p in zip(self.samples, parts, strict=True)]
        for sample, part in zip(self.samples, parts, strict=True):
            if part in HIDDEN:
                self.hide[sample.engine] = HIDDEN[part]

    # --- events ------------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> tuple[Effect, ...]:
        before = self.state.recovery.phase
        self.state, effects = step(self.state, event, self.now + 0.006, self.settings, self.others)
        change = (before, self.state.recovery.phase)
        assert change in TRANSITIONS or before is change[1], change
        self.effects += [(self.now, e) for e in effects]
        return effects

    def answer(self, outcome: Outcome, **fields: Any) -> None:
        """The question that is out ends half a second from now; the look that follows shows the same as before."""
        question = self.question
        assert question is not None, "no question is out"
        self.now += 0.5
        if outcome is Outcome.ANSWERED:
            fields = {"prompt_tokens": 8, "completion_tokens": 1, **fields}
        effects = self.feed(Answered(Answer(question.id, outcome, self.now + 0.001, **fields)))
        assert Look() in effects
        self.pause = 0.01

    def job(self, result: JobResult) -> None:
        self.feed(JobEnded(self.state.recovery.attempt, result))
        self.pause = 0.01

    def life(self, number: int | None = None) -> None:
        """Another run of the server: other start time, InvocationID and PID, counters at zero; the port refuses."""
        known = self.base["unit"].main_pid if self.base["unit"] is not None else 0
        number = number if number is not None else known + 1
        self.base["start_time"] = float(number)
        if self.base["unit"] is not None:
            self.base["unit"] = replace(ACTIVE, invocation=f"i{number}", main_pid=number, main_start=number)
        self.samples = [Sample(s.engine, 0, 0, 0, 0, 0, 0.0, 0) for s in self.samples]

    def resume(self) -> None:
        """Our own death: what is written down is read back by the next daemon."""
        from factory_watchdog.saved import encode, taken_up

        self.state = taken_up(encode(self.state, "boot", self.now, 0.0), "boot", self.now, 0.0)

    # --- what came out -----------------------------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        assert self.state.memory is not None
        return self.state.memory

    @property
    def question(self) -> Question | None:
        asking = self.state.memory.asking if self.state.memory is not None else None
        return asking.question if asking is not None and asking.answer is None else None

    @property
    def shown(self) -> str:
        """State, rule and engine of the verdict."""
        verdict = self.state.verdict
        assert verdict is not None
        return f"{verdict.state} {verdict.rule}" + (f" {verdict.engine}" if verdict.engine is not None else "")

    @property
    def asks(self) -> list[Question]:
        return [e.question for _, e in self.effects if isinstance(e, Ask)]

    @property
    def asked_at(self) -> list[float]:
        return [round(t - 1000.0, 1) for t, e in self.effects if isinstance(e, Ask)]

    @property
    def forms(self) -> list[Form]:
        return [q.form for q in self.asks]

    @property
    def restarts(self) -> list[Restart]:
        return [e for _, e in self.effects if isinstance(e, Restart)]

    @property
    def settled(self) -> list[RestartSettled]:
        return [e for _, e in self.effects if isinstance(e, RestartSettled)]

    @property
    def alerts(self) -> list[str]:
        return [str(e.alert) for _, e in self.effects if isinstance(e, Raise)]

    @property
    def phase(self) -> str:
        return str(self.state.recovery.phase)


def changed(sample: Sample, word: dict[str, float]) -> Sample:
    """A sample after one engine word: `+name` moves a signal, `name` sets it."""
    told: dict[str, Any] = {}
    for name, value in word.items():
        told[name.lstrip("+")] = (getattr(sample, name[1:]) or 0) + value if name.startswith("+") else value
    return replace(sample, **told)


def hidden(sample: Sample, hide: dict[str, tuple[str, ...]]) -> Sample:
    """A sample as the page tells it: without what is hidden, and with the names of what it lacks."""
    told = replace(sample, **dict.fromkeys(hide.get(sample.engine, ())))
    return replace(told, missing=tuple(name for name in REQUIRED if getattr(told, name) is None))


def play(engines: int = 1, others: tuple[str, ...] = (), **settings: Any) -> Play:
    """A backend with these settings; the others are the program's own."""
    return Play(Settings(**settings), engines=engines, others=others)
