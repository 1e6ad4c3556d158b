"""The cases: scenarios and recordings as a rule would look at them, each with the truth of when a restart is right.

Every rule sees the same time line: its restarts change nothing. After a restart that is right the case is over; after
a false one it goes on once the server would have loaded again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from factory_watchdog.config import load as config
from factory_watchdog.config.durations import parse
from factory_watchdog.core.model import Form, Sample
from factory_watchdog.engines import dialect_of
from factory_watchdog.engines.dialect import Dialect, openai_question
from factory_watchdog.simulate import replay
from factory_watchdog.simulate import scenario as scenarios
from factory_watchdog.simulate.replay import MAIN_ROLES, Recording
from factory_watchdog.simulate.run import play
from factory_watchdog.simulate.script import ANSWERS, Phase, Scenario, Timeline
from factory_watchdog.simulate.server import Scripted, Server
from shootout.rules import Rule, Seen, Totals

TESTS = Path(__file__).resolve().parents[2] / "tests"
SCENARIOS = TESTS / "simulate" / "scenarios"
RECORDINGS = TESTS / "data" / "recordings"

UNDECIDED = {
    "unit-failed": "whether a unit that failed is started again is a setting",
    "start-exits-zero": "whether a unit that ended by itself is started again is a setting",
    "without-metrics-unanswered": "without metrics nobody knows the truth",
    "busy-flag-held": "whether a hang may be ended while a batch job holds the flag is a matter of what was agreed",
    "own-question-progress": "requests stand still while questions are answered: somebody has to look",
}
"""Scenarios whose outcome is a matter of policy, or not known: left out."""

ANSWERED = frozenset({"dp-idle-engine", "metrics-500-watched", "proxy-in-between"})
"""Scenarios of servers that would answer, whose script says that they do not so that a question of ours shows: a chat
request is answered there."""

PROLONGED = 3600.0
"""Seconds that a scripted hang is prolonged, so that slow rules can find it as well: a hang does not end by itself."""

SCALE = 10.0
"""Recordings were made with hangs of seconds: there all intervals and windows are a tenth, ours as well."""

LOADING = 240.0
"""Seconds that a server loads after a restart where a case does not say."""

STOPPED = frozenset({"inactive", "deactivating"})
"""States of a unit whose operator stops or has stopped it."""


@dataclass(frozen=True)
class Truth:
    """When a restart is right: from `onset` to `end`; None: never. In `unjudged` spans nobody knows."""

    onset: float | None = None
    end: float = 0.0
    unjudged: tuple[tuple[float, float], ...] = ()

    def right(self, t: float) -> bool:
        return self.onset is not None and self.onset <= t <= self.end

    def judged(self, t: float) -> bool:
        return not any(begin <= t <= end for begin, end in self.unjudged)


@dataclass(frozen=True)
class Ours:
    """What our own watch did in a case: when it restarted, and when it asked a server that worked."""

    restarts: tuple[float, ...]
    asked_busy: tuple[float, ...] = ()


class Case(Protocol):
    """One time line: what a rule sees of it, and the truth."""

    name: str
    length: float
    loading: float
    scale: float
    truth: Truth
    ours: Ours

    def look(self, rule: Rule, t: float) -> Seen | None:
        """What a rule's look at `t` comes to; None: nothing that looks is there."""

    def busy(self, t: float) -> bool:
        """Whether requests are in and make progress at `t`."""


@dataclass(frozen=True)
class Outcome:
    """What a rule made of a case: false restarts, seconds to the right one (None: none), requests to a busy server."""

    false: int
    seconds: float | None
    sent: int


def judged(rule: Rule, case: Case) -> Outcome:
    """Let a rule watch a case."""
    memory: Any = None
    t, false, sent = 0.0, 0, 0
    step = rule.every / case.scale
    while t <= case.length:
        seen = case.look(rule, t)
        sent += rule.asks == "chat" and case.busy(t)
        restart = False
        if seen is not None:
            memory, restart = rule.judge(memory, seen)
        if restart and case.truth.right(t):
            return Outcome(false, t - (case.truth.onset or 0.0), sent)
        if restart:
            false += case.truth.judged(t)
            memory = None
            t += case.loading
        t += step
    return Outcome(false, None, sent)


def judged_ours(case: Case) -> Outcome:
    """What our own watch made of a case."""
    right = next((t for t in case.ours.restarts if case.truth.right(t)), None)
    false = sum(case.truth.judged(t) for t in case.ours.restarts if right is None or t < right)
    sent = sum(right is None or t < right for t in case.ours.asked_busy)
    return Outcome(false, None if right is None else right - (case.truth.onset or 0.0), sent)


# --- scenarios -------------------------------------------------------------------------------------------------------


class ScenarioCase:
    """A scenario, its hang prolonged. A restart is right in the phases that hang, as its [expect_total] has it."""

    scale = 1.0

    def __init__(self, scenario: Scenario) -> None:
        self.name = scenario.name
        self.loading = scenario.server.load_time
        played = play(scenario)
        first = min(played.restarts, default=None)
        hangs = bool(scenario.expect_total.restarts)
        timeline = Timeline(scenario.phases)
        self.ours = Ours(tuple(played.restarts), tuple(t for t in played.questions if _works(timeline.span(t).phase)))
        self.truth = Truth()
        if hangs and first is not None:
            scenario, self.truth = _prolonged(scenario, first)
        if scenario.name in ANSWERED:
            scenario = _answering(scenario)
        self.length = self.truth.end or scenario.length
        self._scenario = scenario
        self._timeline = Timeline(scenario.phases)
        self._now = 0.0
        self._rule: Rule | None = None

    def busy(self, t: float) -> bool:
        return _works(self._timeline.span(t).phase)

    def look(self, rule: Rule, t: float) -> Seen | None:
        if rule is not self._rule:  # each rule has a server of its own
            self._rule, self._now = rule, 0.0
            self._server = Server(self._scenario, lambda: self._now)
        span = self._timeline.span(t)
        if t < span.awake or (rule.probe and span.phase.unit in STOPPED):
            return None
        self._now = t
        scripted = self._respond(rule)
        in_time = scripted.fault is None and scripted.delay <= rule.limit
        if not in_time:
            self._now = t + rule.limit
            self._server.give_up(scripted)
        answered = in_time and scripted.status == 200
        totals = _totals(dialect_of("vllm"), scripted.body) if answered and rule.asks == "metrics" else None
        return Seen(t, answered, self._server.life.number, totals)

    def _respond(self, rule: Rule) -> Scripted:
        if rule.asks != "chat":
            return self._server.respond("GET", f"/{rule.asks}", {}, b"")
        request = openai_question(Form.CHAT, self._server.model)
        return self._server.respond("POST", request.path, {}, request.body)


def _prolonged(scenario: Scenario, restart: float) -> tuple[Scenario, Truth]:
    """The scenario with the phase that our first restart fell in prolonged, and the truth of it.

    The hang begins with the first of the phases before it that differ in nothing which makes a hang. A server that
    has never served hangs from when [expect_total] says at the earliest.
    """
    timeline = Timeline(scenario.phases)
    index = first = timeline.index(restart)
    while first > 0 and _same_hang(scenario.phases[first - 1], scenario.phases[index]):
        first -= 1
    longer = dataclasses.replace(scenario.phases[index], length=scenario.phases[index].length + PROLONGED)
    phases = (*scenario.phases[:index], longer, *scenario.phases[index + 1 :])
    onset = timeline.spans[first].awake
    if not any(_works(phase) for phase in scenario.phases[:first]):
        onset = max(onset, scenario.expect_total.restart_after or onset)
    prolonged = dataclasses.replace(scenario, phases=phases)
    return prolonged, Truth(onset, min(Timeline(phases).ends(restart), prolonged.length))


def _answering(scenario: Scenario) -> Scenario:
    """The scenario with every question answered."""
    phases = (
        dataclasses.replace(p, engines=tuple(dataclasses.replace(e, question=ANSWERS) for e in p.engines))
        for p in scenario.phases
    )
    return dataclasses.replace(scenario, phases=tuple(phases))


def _same_hang(before: Phase, hang: Phase) -> bool:
    """Whether two phases are the same but for how long they last and what the clocks do."""
    alike = dataclasses.replace(hang, length=before.length, clock_step=before.clock_step, suspend=before.suspend)
    return alike == before


def _works(phase: Phase) -> bool:
    """Whether an engine has requests that make progress."""
    return any(
        (e.running or e.waiting) and (e.steps or e.tokens or e.prompt or e.kv[0] != e.kv[1]) for e in phase.engines
    )


# --- recordings ------------------------------------------------------------------------------------------------------


class RecordingCase:
    """A recording, judged by its label. What a chat request would have come to is not on record: none is asked."""

    scale = SCALE
    loading = LOADING / SCALE

    def __init__(self, name: str) -> None:
        self.name = name
        label = json.loads((RECORDINGS / f"{name}.json").read_text())
        self._recording: Recording = replay.load(RECORDINGS / f"{name}.jsonl.gz")
        self.length = self._recording.length
        settings = dict(label["replay"]["settings"])
        self._dialect = dialect_of(settings["kind"])
        interval = parse(settings.pop("interval"))
        backend = config.from_table({"unit": "recorded.service", **settings}, file=name, words=True)
        played = replay.replay(self._recording, name, backend, interval, label["replay"]["question"])
        self.ours = Ours(tuple(played.restarts))
        self.truth = _labelled(label["phases"], label["interval"] / 2)

    def busy(self, t: float) -> bool:
        return False

    def look(self, rule: Rule, t: float) -> Seen | None:
        row = self._recording.at(t)
        main = _main(row)
        if rule.asks == "chat" or (rule.probe and "procs" in row and main is None):
            return None
        told = row[rule.asks]
        answered = told.get("status") == 200 and float(told["latency"]) <= rule.limit
        totals = _totals(self._dialect, told["body"].encode()) if answered and rule.asks == "metrics" else None
        return Seen(t * SCALE, answered, main, totals)


def _main(row: dict[str, Any]) -> object:
    """The PID of the server's main process, None where it is gone."""
    return next((p["pid"] for p in row.get("procs", ()) if str(p.get("role")).startswith(MAIN_ROLES)), None)


def _labelled(phases: list[dict[str, Any]], late: float) -> Truth:
    """The truth of a label. An unknown phase before a hang is its beginning, any other is judged by nobody.

    A row is found by the second that it is nearest to, so it may show what came up to `late` seconds after that.
    """
    unknown = [(p["from"], p["to"]) for p in phases if p["state"] == "unknown"]
    hang = next((p for p in phases if p["restart"]), None)
    if hang is None:
        return Truth(unjudged=tuple(unknown))
    onset = next((begin for begin, end in unknown if end == hang["from"]), hang["from"])
    return Truth(onset - late, hang["to"], tuple(unknown))


# --- both ------------------------------------------------------------------------------------------------------------


def scenario_cases() -> Iterator[ScenarioCase]:
    for path in sorted(SCENARIOS.glob("*.toml")):
        if path.stem not in UNDECIDED:
            yield ScenarioCase(scenarios.load(path))


def recording_cases() -> Iterator[RecordingCase]:
    for path in sorted(RECORDINGS.glob("*.json")):
        yield RecordingCase(path.stem)


def _totals(dialect: Dialect, page: bytes) -> Totals | None:
    """The sums over all series of a page; None where it has nothing that is known."""
    told = dialect.read(page)
    if not told.known:
        return None
    return Totals(*(_sum(told.engines, name) for name in ("running", "generated", "steps", "prompt", "kv")))


def _sum(engines: tuple[Sample, ...], name: str) -> float | None:
    values = [value for engine in engines if (value := getattr(engine, name)) is not None]
    return sum(values) if values else None
