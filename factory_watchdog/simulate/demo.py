"""A play in nine acts: the real watch before a simulated server that works, hangs, and is proven hung and restarted.

`play` performs it over any connection and clock, real or virtual, tells each thing as it happens, and gives a `Report`
that says whether everything that the acts promise was seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from factory_watchdog.config import load, schema
from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import (
    Answer,
    Outcome,
    Purpose,
    Question,
    Raise,
    Reading,
    Restart,
    RestartSettled,
    Sample,
    State,
    Verdict,
)
from factory_watchdog.ports import Host, World
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.real import RealServer
from factory_watchdog.simulate.real import clock as since_now
from factory_watchdog.simulate.script import Behaviour, Engine, Phase, Scenario, ServerSpec, Way
from factory_watchdog.simulate.server import Scripted, Server
from factory_watchdog.watcher import Watcher, watcher_of
from factory_watchdog.world.clock import Clock
from factory_watchdog.world.evidence import Evidence, Job
from factory_watchdog.world.http import Http

INTERVAL = 1.0
"""Seconds from look to look, a tenth of the default, so that the play is short."""

LOAD_TIME = 5.0
"""Seconds that the restarted server loads its model; a real one takes minutes."""

UNIT = "demo.service"
BACKEND = {
    "name": "demo",
    "kind": "vllm",
    "unit": UNIT,
    "hang_after": "10s",
    "question_every": "10s",
    "question_timeout": "3s",
}
"""The backend's settings: the least `hang_after` and `question_every` that a configuration may have."""

SHOWN_AFTER = 3
"""Looks without news, after which the numbers are shown."""

Cue = State | Purpose


@dataclasses.dataclass(frozen=True, slots=True)
class Act:
    """One act. Its `phase` says what the server shows from its beginning on; an act without one begins at its `cue`:
    when the state turns to it, or when a question of that purpose is sent."""

    title: str
    words: str
    phase: Phase | None = None
    cue: Cue | None = None


# Lengths end on half seconds and looks fall on whole ones, so that no look falls on the border of two acts.
IDLE = Act(
    "Idle",
    "Nobody uses the server. Counters that stand still prove nothing now, so after 10 quiet seconds the watchdog asks "
    "one short question. Nothing runs, so it takes nothing from anybody.",
    Phase(12.5),
)
BUSY = Act(
    "Busy",
    "Users come: 8 requests run, 12 wait. Steps and tokens move, and that is proof enough. The watchdog reads /metrics "
    "and /health and asks nothing: its question would stand in the users' queue.",
    Phase(8.0, (Engine(running=8, waiting=12, steps=20, tokens=160, prompt=200, finished=1, kv=(0.4, 0.4)),)),
)
LONG_PROMPT = Act(
    "A long prompt",
    "One long prompt is read for 14 s, longer than the 10 s that are suspicious. No step ends and no token comes, yet "
    "KV usage climbs: the engine works. It stays busy and is not asked.",
    Phase(14.0, (Engine(running=1, waiting=12, kv=(0.1, 0.8)),)),
)
HANG = Act(
    "Hang",
    "Now the engine freezes: requests stand, no number moves, and /health still says 200. The watchdog says suspect, "
    "leaves the server in traffic, and waits 10 s for anything that moves.",
    Phase(24.0, (Engine(running=4, waiting=12, kv=(0.8, 0.8), question=Behaviour(Way.TIMEOUT)),)),
)
CONFIRMATION = Act(
    "Confirmation",
    "10 s without a step. The watchdog now looks for a reason not to restart: the pause signs, and one question, which "
    "has 3 s. Only so is a server with requests ever asked. The server counts the question as a fifth running request; "
    "the watchdog does not.",
    cue=Purpose.CONFIRM,
)
PROVEN = Act(
    "Proven hung, restarted",
    "No answer, no movement, no sign of a pause: hung. The service manager is told to restart the unit.",
    cue=State.HUNG,
)
STARTING = Act(
    "Starting",
    "The unit has a new InvocationID: a new life, and every clock begins again. It loads for 5 s and refuses "
    "connections, which is no failure yet (by default for 30 min). Nothing is restarted meanwhile.",
    cue=State.STARTING,
)
ANSWERING = Act(
    "Answering again",
    "/health says 200, but the restart is done only when this life has given a token. No traffic brings one, so the "
    "watchdog asks for it at once.",
    cue=State.IDLE,
)
BACK = Act(
    "Users are back",
    "Work moves again, and again nothing is asked.",
    dataclasses.replace(BUSY.phase or Phase(0), length=6.0),
)
ACTS = (IDLE, BUSY, LONG_PROMPT, HANG, CONFIRMATION, PROVEN, STARTING, ANSWERING, BACK)
WORKING = (BUSY, LONG_PROMPT, BACK)
"""The acts in which users' requests move, so that nothing may be asked."""

PHASES = tuple(act.phase for act in ACTS if act.phase is not None)
SECONDS = sum(phase.length for phase in PHASES)
SCENARIO = Scenario("demo", PHASES, server=ServerSpec(load_time=LOAD_TIME))


class Kind(enum.StrEnum):
    """What a line tells of."""

    LOOK = "look"
    STATE = "state"
    QUESTION = "question"
    ANSWER = "answer"
    ALERT = "alert"
    RESTART = "restart"
    FAULT = "fault"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Something that happened, `t` seconds from the start, in `act`. `word` is its state, purpose, outcome or alert."""

    t: float
    act: Act
    kind: Kind
    word: str
    text: str


class Viewer:
    """Who watches the play."""

    def begins(self, t: float, number: int, act: Act) -> None:
        """An act begins."""

    def sees(self, line: Line) -> None:
        """Something happened in it."""


@dataclasses.dataclass
class Report:
    """What was seen: the lines, each request to the server by act and kind, and the most requests that users had."""

    lines: list[Line] = dataclasses.field(default_factory=list)
    requests: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    most_running: int = 0
    most_waiting: int = 0

    def words(self, kind: Kind, acts: Iterable[Act] = ACTS) -> list[str]:
        """The words of all lines of a kind in these acts, in their order."""
        return [line.word for line in self.lines if line.kind is kind and line.act in acts]

    def at(self, kind: Kind, word: str) -> float | None:
        """When a line of this kind and word was first seen."""
        return next((line.t for line in self.lines if line.kind is kind and line.word == word), None)

    def by_kind(self) -> dict[str, int]:
        """Requests to the server by kind, the most frequent first."""
        totals: Counter[str] = Counter()
        for (_, kind), number in self.requests.items():
            totals[kind] += number
        return dict(totals.most_common())

    def asked_while_working(self) -> int:
        """Questions that reached the server in acts in which users' requests moved, as the server counted them."""
        titles = {act.title for act in WORKING}
        return sum(n for (title, kind), n in self.requests.items() if title in titles and kind.startswith("POST"))

    def promises(self) -> dict[str, bool]:
        """What the play promises, each with whether it was seen."""
        states = self.words(Kind.STATE)
        questions, answers = self.words(Kind.QUESTION), self.words(Kind.ANSWER)
        suspicion = (HANG, CONFIRMATION, PROVEN)
        return {
            "idle, busy, suspect, hung, starting, idle and busy again, in this order": states == list(ORDER),
            "the idle server was asked once, and answered": self.words(Kind.QUESTION, [IDLE]) == [Purpose.IDLE]
            and self.words(Kind.ANSWER, [IDLE]) == [Outcome.ANSWERED],
            "busy, and not asked, while work moved": self.words(Kind.STATE, [BUSY, LONG_PROMPT]) == [State.BUSY]
            and not self.words(Kind.QUESTION, WORKING)
            and not self.asked_while_working(),
            "one confirming question, not answered": self.words(Kind.QUESTION, suspicion) == [Purpose.CONFIRM]
            and self.words(Kind.ANSWER, suspicion) == [Outcome.FAILED],
            "exactly one restart": len(self.words(Kind.RESTART)) == 1,
            "the new life gave an answer": questions[-1:] == [Purpose.SERVE] and answers[-1:] == [Outcome.ANSWERED],
            "alerts: hung, restart, served": self.words(Kind.ALERT) == ["hung", "restart", "served"],
            "no fault of the watchdog's own": not self.words(Kind.FAULT),
        }


ORDER = (State.IDLE, State.BUSY, State.SUSPECT, State.HUNG, State.STARTING, State.IDLE, State.BUSY)
"""The states that the play shows."""


class _Stage:
    """Where the play is: it is the watch's sink, and tells the viewer and the report what it hears."""

    def __init__(self, now: Callable[[], float], viewer: Viewer) -> None:
        self.report = Report()
        self.act = IDLE
        self._now = now
        self._viewer = viewer
        self._left = list(ACTS)
        self._quiet = 0  # looks since a line was told
        self._before: Sample | None = None

    def begin(self, act: Act) -> None:
        """Go on to `act`; acts before it whose cue never came are left out."""
        del self._left[: self._left.index(act) + 1]
        self.act = act
        self._viewer.begins(self._now(), ACTS.index(act) + 1, act)

    def requested(self, method: str, path: str) -> None:
        self.report.requests[self.act.title, f"{method} {path}"] += 1

    def polled(self, name: str, backend: Backend) -> None:
        reading = backend.reading
        if reading is None:
            return
        sample = reading.engines[0] if reading.readable and reading.engines else None
        if sample is not None and self.act in WORKING:
            self.report.most_running = max(self.report.most_running, int(sample.running or 0))
            self.report.most_waiting = max(self.report.most_waiting, int(sample.waiting or 0))
        self._quiet += 1
        if self._quiet == SHOWN_AFTER:
            self._see(Kind.LOOK, reading.metrics.went, _numbers(self._before, sample, reading))
        self._before = sample

    def turned(self, name: str, verdict: Verdict, previous: Verdict | None) -> None:
        self._cue(verdict.state)
        self._see(Kind.STATE, verdict.state, f"{verdict.state}: {verdict.why}")

    def raised(self, name: str, alert: Raise, state: State | None) -> None:
        self._see(Kind.ALERT, alert.alert, f"{alert.alert}: {alert.why}")

    def asking(self, name: str, question: Question) -> None:
        self._cue(question.purpose)
        self._see(Kind.QUESTION, question.purpose, f"{ASKED[question.purpose]} ({question.form}, one token)")

    def asked(self, name: str, question: Question, answer: Answer) -> None:
        took = answer.ended - question.sent
        why = f": {answer.detail}" if answer.outcome is not Outcome.ANSWERED and answer.detail else ""
        self._see(Kind.ANSWER, answer.outcome, f"{answer.outcome} after {took:.1f} s{why}")

    def restarting(self, name: str, order: Restart, readings: Iterable[Reading]) -> None:
        self._see(Kind.RESTART, "restart", f"{UNIT} is restarted")

    def evidence(self, name: str, attempt: int, evidence: Evidence) -> None:
        """Nothing keeps a record here."""

    def pushed(self, name: str, attempt: int, job: Job) -> None:
        """What came of it is seen in the new life."""

    def settled(self, name: str, settled: RestartSettled) -> None:
        """Told by an alert as well."""

    def save(self, name: str, backend: Backend) -> None:
        """A play begins anew each time."""

    def warned(self, name: str, what: str) -> None:
        """No ground for anything."""

    def identified(self, name: str, kind: str, why: str) -> None:
        """The demonstration says what it watches before it begins."""

    def fault(self, name: str, what: str) -> None:
        self._see(Kind.FAULT, "fault", what)

    def _cue(self, cue: Cue) -> None:
        if self._left and self._left[0].cue == cue:
            self.begin(self._left[0])

    def _see(self, kind: Kind, word: str, text: str) -> None:
        self._quiet = 0
        line = Line(self._now(), self.act, kind, word, text)
        self.report.lines.append(line)
        self._viewer.sees(line)


ASKED: Mapping[Purpose, str] = {
    Purpose.IDLE: "nothing runs: does it still answer?",
    Purpose.CONFIRM: "nothing moves: is there a reason not to restart?",
    Purpose.SERVE: "restarted: does it give a first token?",
}


def _numbers(before: Sample | None, now: Sample | None, reading: Reading) -> str:
    """One line of what a reading shows."""
    if now is None:
        return f"/metrics: {reading.metrics.went}"
    shown = f"{now.running or 0:g} running, {now.waiting or 0:g} waiting, KV {now.kv or 0:.0%}"
    if before is None:
        return shown
    steps = (now.steps or 0.0) - (before.steps or 0.0)
    tokens = (now.generated or 0.0) - (before.generated or 0.0)
    return f"{shown}; since the last look +{steps:.0f} steps, +{tokens:.0f} tokens"


class _Counted(Server):
    """The server of the play, which tells of each request that reaches it."""

    def __init__(self, clock: Callable[[], float], tell: Callable[[str, str], None]) -> None:
        super().__init__(SCENARIO, clock)
        self._tell = tell

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Scripted:
        self._tell(method, path)
        return super().respond(method, path, headers, body)


Connect = Callable[[Server], contextlib.AbstractAsyncContextManager[tuple[str, Http]]]
"""Connects to a server: gives its address and a client of it."""


@contextlib.asynccontextmanager
async def over_http(server: Server) -> AsyncIterator[tuple[str, Http]]:
    """Real HTTP on a free port of 127.0.0.1."""
    async with RealServer(server) as real, Http() as http:
        yield real.url, http


async def play(connect: Connect, clock: Clock, viewer: Viewer, opened: Callable[[str], None]) -> Report:
    """Perform the play from its first act to its last. `opened` is told the server's address before it begins.

    Raises OSError where no port can be had.
    """
    loop = asyncio.get_running_loop()
    now = since_now(clock.boottime)
    stage = _Stage(now, viewer)
    server = _Counted(now, stage.requested)
    async with connect(server) as (url, http):
        opened(url)
        watcher = _watcher(url, World(http, SimManager(server), clock, lambda: server.flag(0.0), lambda: None), stage)
        began = loop.time()
        stage.begin(IDLE)
        watching = loop.create_task(watcher.run())
        try:
            await _conduct(stage, began)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await watcher.close()
    return stage.report


def _watcher(url: str, world: World, stage: _Stage) -> Watcher:
    config = load.from_table({**BACKEND, "url": url}, file="demo")
    return watcher_of(config, schema.Daemon(interval=INTERVAL), world, Host(), stage)


async def _conduct(stage: _Stage, began: float) -> None:
    """Begin each act that has a phase when the server does, and wait for the end of the last."""
    loop = asyncio.get_running_loop()
    due = began
    for act in (act for act in ACTS if act.phase is not None):
        if act is not IDLE:
            await asyncio.sleep(due - loop.time())
            stage.begin(act)
        due += act.phase.length if act.phase is not None else 0.0
    await asyncio.sleep(due - loop.time())
