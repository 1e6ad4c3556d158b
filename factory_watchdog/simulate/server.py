"""A model server made of numbers: what it answers at a moment follows from its scenario and from what was asked of it.

`respond` is the whole network face of the server; who carries its answers (a virtual transport, a real socket) sees to
delays and faults. All times are boot time in seconds from the scenario's start. The clock must not run backwards.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Literal

from factory_watchdog.core.model import Flag, Form
from factory_watchdog.simulate import answers, lives
from factory_watchdog.simulate.exposition import Numbers, Page
from factory_watchdog.simulate.lives import Asked, Life
from factory_watchdog.simulate.script import OK, RATES, Behaviour, Phase, Scenario, Span, Timeline, Way

EPOCH = 1_750_000_000.0  # what the wall clock shows at the start; fixed, so that the same scenario gives the same bytes
MODEL = "simulated"

Fault = Literal["refused", "reset", "timeout"]

_FAULTS: dict[Way, Fault] = {Way.TIMEOUT: "timeout", Way.REFUSED: "refused", Way.RESET: "reset"}

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_GARBAGE = b"\x00\xff\x1b[2J<html>{{{ vllm:num_requests_running{engine= } NaN..\n" * 40

_CLEARS_SINCE = (0, 11)  # clients that hang up leave their requests in the gauges in 0.9.2; 0.11.2 and later clear them
_RANK_HEADER = "x-data-parallel-rank"

# The other server behind one address, for `counters = "alternate"`: older, and with more behind it.
_OTHER_AGE = 3600.0  # seconds
_OTHER_USED = 7_000_000.0


@dataclasses.dataclass(frozen=True, slots=True)
class Scripted:
    """An answer: after `delay` seconds either the fault, or status, headers and body.

    `asked` is the question that the server has taken in with the request; if the client goes before the answer, tell
    the server by `give_up`.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    delay: float = 0.0
    fault: Fault | None = None
    asked: Asked | None = None


REFUSED = Scripted(fault="refused")


class Server:
    """The server of `scenario`, at the time that `clock` tells.

    `epoch` is the wall clock's time at 0. `loading`: the first life has only begun and refuses for `load_time`.
    """

    def __init__(
        self, scenario: Scenario, clock: Callable[[], float], *, epoch: float = EPOCH, loading: bool = False
    ) -> None:
        self.scenario = scenario
        self.spec = scenario.server
        self.epoch = epoch
        self.restarts: list[float] = []
        self.orphans: list[tuple[int, int]] = []
        self.stuck_job = False
        model = scenario.backend.get("model")
        self.model = model if isinstance(model, str) else MODEL
        self._clock = clock
        self._timeline = Timeline(scenario.phases)
        self._known = 0  # the place on the time line up to which changes of the instance are known
        self._caught_up = -math.inf
        self._pages = 0
        self._questions = 0
        self._page = Page(
            self.spec.release,
            self.spec.engines,
            start_time=self.spec.start_time,
            multi=self.spec.api_server == "multi",
            model=self.model,
        )
        first = lives.first(self.spec.engines, fresh=self.spec.fresh, load_time=self.spec.load_time, epoch=epoch)
        if loading:
            zeros = [[0.0] * len(RATES) for _ in range(self.spec.engines)]
            ready = self.spec.load_time
            first = Life(0, 0.0, ready, ready, epoch, zeros)
        self._life = first

    # --- what it is now ----------------------------------------------------------------------------------------------

    @property
    def life(self) -> Life:
        """The present run of the server, with what it has counted by now."""
        self._catch_up()
        return self._life

    @property
    def phase(self) -> Phase:
        """The phase as the present life shows it."""
        life, now = self.life, self._clock()
        written = self._timeline.span(now).phase
        return written if now >= life.plays else written.idle()

    @property
    def loading(self) -> bool:
        """Whether this life does not answer yet, or never will: nobody listens on its port."""
        return self._clock() < self.life.ready

    @property
    def refusing(self) -> bool:
        """Whether nobody listens on the port at all: while loading, and where health and metrics both refuse."""
        phase = self.phase
        return self.loading or (phase.health.way is Way.REFUSED and phase.metrics.way is Way.REFUSED)

    def numbers(self) -> tuple[Numbers, ...]:
        """What each engine's gauges and counters say now."""
        phase, now = self.phase, self._clock()
        span = self._timeline.span(now)
        return tuple(self._numbers(engine, phase, span, now) for engine in range(self.spec.engines))

    def wall(self) -> float:
        now = self._clock()
        return self.epoch + now + self._timeline.span(now).step

    @property
    def unit_state(self) -> str:
        """The ActiveState of the server's unit."""
        if self.stuck_job:
            return "deactivating"
        return "failed" if self.life.failed else self.phase.unit

    def cpu(self) -> float | None:
        """CPU seconds that the unit has used in this life, None where the scenario does not tell of any."""
        life, now = self.life, self._clock()
        if self.phase.cpu is None:
            return None
        idle = self.phase.idle().cpu or 0.0
        if now < life.plays:
            return idle * (now - life.began)
        span, start = self._timeline.span(now), max(life.plays, 0.0)
        played = span.cores(now) - self._timeline.span(start).cores(start)
        return idle * (start - life.began) + played

    def age(self, start: int) -> float:
        """Seconds for which a process has run that was started so many clock ticks after boot."""
        return lives.age(start, self._clock())

    def maintenance(self) -> str | None:
        return "by the scenario" if self.phase.maintenance else None

    def flag(self, ttl: float) -> Flag:
        """The busy flag; one that was only touched is held until it is `ttl` seconds old."""
        now = self._clock()
        word = self._timeline.span(now).phase.flag
        if word == "none":
            return Flag()
        since = self._flagged_since(now, word)
        if word == "locked":
            return Flag(held=True, why="a process holds a lock on it", since=since)
        if word == "touched" and now - since < ttl:
            return Flag(held=True, why="touched by hand", since=since)
        return Flag(stale=True, why="left behind", since=since)

    def _flagged_since(self, now: float, word: str) -> float:
        index = self._timeline.index(now)
        while index > 0 and self._timeline.spans[index - 1].phase.flag == word:
            index -= 1
        return self._timeline.spans[index].awake

    # --- what is done to it ------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """A new life by our hand; what comes of it is the scenario's `restart`."""
        now, how = self._clock(), self.spec.restart
        self.restarts.append(now)
        if how == "never-ends":
            self.stuck_job = True
            return
        if how == "leaves-orphan":
            self.orphans.append(self.life.processes[1])
        ready = now + self.spec.load_time
        if how in ("never-answers", "fails"):
            ready = math.inf
        plays = ready if how == "hangs-again" else max(ready, self._timeline.ends(now))
        self._begin(now, ready, plays, failed=how == "fails")

    def change(self, phase: Phase) -> None:
        """From now on `phase` is played, for good."""
        now = self._clock()
        self._catch_up()
        self._timeline = self._timeline.cut(now, phase)
        self._caught_up = -math.inf
        self._catch_up()
        self._life.plays = min(self._life.plays, max(now, self._life.ready))

    def give_up(self, scripted: Scripted) -> None:
        """The client has gone before the answer came."""
        asked = scripted.asked
        if asked is None or asked not in self.life.asked:
            return
        if self.spec.release >= _CLEARS_SINCE:
            self._life.asked.remove(asked)
        else:
            asked.given_up, asked.end = True, math.inf

    def _catch_up(self) -> None:
        """Begin the lives that the script begins, up to now, and count what has been answered."""
        now = self._clock()
        if now == self._caught_up and not self._life.asked:
            return  # a poll asks for one thing after the other at the same moment
        self._caught_up = now
        while self._known < self._timeline.index(now):
            self._known += 1
            before, span = self._timeline.spans[self._known - 1 : self._known + 1]
            if span.phase.instance != before.phase.instance:
                ready = span.awake + self.spec.load_time
                self._begin(span.awake, ready, ready)
        self._life.settle(now)

    def _begin(self, began: float, ready: float, plays: float, *, failed: bool = False) -> None:
        span = self._timeline.span(began)
        self._life.settle(began)
        engines = range(self.spec.engines)
        counted = [[0.0] * len(RATES) for _ in engines]
        if span.phase.carry_counters:
            counted = [list(self._counters(engine, span, began)) for engine in engines]
        start_time = self.epoch + began + span.step
        self._life = Life(self._life.number + 1, began, ready, plays, start_time, counted, failed)
        self.stuck_job = False

    # --- numbers -----------------------------------------------------------------------------------------------------

    def _counters(self, engine: int, span: Span, now: float) -> tuple[float, ...]:
        life = self._life
        counted = life.counted[engine]
        if now < life.plays:
            return tuple(map(lives.exact, counted))
        before = self._timeline.span(life.plays).total(engine, life.plays)
        return tuple(
            lives.exact(own + total - start)
            for own, total, start in zip(counted, span.total(engine, now), before, strict=True)
        )

    def _numbers(self, engine: int, phase: Phase, span: Span, now: float) -> Numbers:
        shown = phase.engines[engine]
        if shown.steps:
            self._life.sweep(engine)
        steps, prompt, tokens, finished = self._counters(engine, span, now)
        return Numbers(
            running=shown.running + self._life.in_flight(engine),
            waiting=shown.waiting,
            kv=span.kv(engine, now) if now >= self._life.plays else 0.0,
            steps=steps,
            prompt=prompt,
            tokens=tokens,
            finished=finished,
            asleep=phase.asleep,
        )

    # --- what it answers ---------------------------------------------------------------------------------------------

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Scripted:
        """The answer to one request. Header names are lower case. A question is taken in by being asked."""
        if self.refusing:
            return REFUSED
        form = answers.QUESTION_PATHS.get(path)
        if form is not None:
            return self._question(form, headers, body) if method == "POST" else _refuse_method()
        return self._look(path) if method == "GET" else _refuse_method()

    def _look(self, path: str) -> Scripted:
        phase = self.phase
        if path in ("/health", "/ping"):
            return _page(phase.health, lambda: b"", _TEXT)
        if path == "/metrics":
            return _page(phase.metrics, self._metrics, _TEXT)
        if path == "/v1/models":
            return _page(phase.models, lambda: answers.models(self.model), _JSON)
        if path == "/version":
            return _page(phase.models, lambda: answers.body({"version": self.spec.version}), _JSON)
        if path in ("/is_paused", "/is_sleeping") and phase.paused is not None:
            # An API server that says nothing at all says nothing of this either.
            mute = phase.health.way is Way.TIMEOUT and phase.metrics.way is Way.TIMEOUT
            told = bool(phase.paused) or (path == "/is_sleeping" and phase.asleep)
            return _page(phase.health if mute else OK, lambda: answers.body({path[1:]: told}), _JSON)
        return _answer(404, answers.no_route())

    def _metrics(self) -> bytes:
        numbers, start_time = self.numbers(), self._life.start_time
        if self.phase.counters == "alternate":
            self._pages += 1
            if self._pages % 2 == 0:
                start_time -= _OTHER_AGE
                numbers = tuple(_other(engine) for engine in numbers)
        return self._page.render(numbers, start_time, gauges=self.tells_gauges(numbers))

    def tells_gauges(self, numbers: tuple[Numbers, ...]) -> bool:
        """In multi-process mode gauges are absent until an engine has had a request."""
        life = self._life
        life.had_request = (
            life.had_request
            or any(engine.running or engine.waiting for engine in self.phase.engines)
            or any(engine.steps or engine.prompt or engine.tokens or engine.finished for engine in numbers)
        )
        return life.had_request or self.spec.api_server == "single"

    def _question(self, form: Form, headers: Mapping[str, str], body: bytes) -> Scripted:
        engine = self._engine(headers)
        if engine is None:
            return _answer(400, answers.error(400, "data_parallel_rank is out of range", "data_parallel_rank"))
        behaviour = self.phase.engines[engine].question
        if behaviour.way is Way.REFUSED:
            return REFUSED
        cannot = self._cannot(form, body)
        if cannot is not None:
            return cannot
        if behaviour.way is Way.STATUS:
            return _answer(behaviour.status, answers.error(behaviour.status))
        return self._take_in(form, engine, behaviour)

    def _take_in(self, form: Form, engine: int, behaviour: Behaviour) -> Scripted:
        now = self._clock()
        self._questions += 1
        if behaviour.way is Way.TIMEOUT:
            asked = Asked(engine, now, math.inf, ())
            self._life.asked.append(asked)
            return Scripted(fault="timeout", asked=asked)
        gains = {"steps": 1.0, "prompt": answers.PROMPT_TOKENS[form], "finished": 1.0}
        gains["tokens"] = answers.GENERATED_TOKENS[form]
        asked = Asked(engine, now, now + behaviour.delay, tuple(gains[rate] for rate in RATES))
        self._life.asked.append(asked)
        body = answers.answer(form, self.model, self._questions, empty=behaviour.way is Way.EMPTY)
        return Scripted(200, (("content-type", _JSON),), body, behaviour.delay, asked=asked)

    def _engine(self, headers: Mapping[str, str]) -> int | None:
        """The engine that a question goes to: the one it is pinned to, else the least loaded; None: no such rank."""
        rank = headers.get(_RANK_HEADER)
        if rank is None:
            loads = [engine.running + engine.waiting for engine in self.numbers()]
            return loads.index(min(loads))
        return int(rank) if rank.isdecimal() and int(rank) < self.spec.engines else None

    def _cannot(self, form: Form, body: bytes) -> Scripted | None:
        """The answer of a server that cannot be asked in this form, None where it can."""
        can = self.spec.answers
        if form is not Form.CHAT:
            return None if form in can else _answer(404, answers.no_route())
        if not self.spec.template:
            return _answer(400, answers.error(400, answers.NO_TEMPLATE))
        if Form.CHAT in can:
            return None
        if Form.CHAT_COMPLETION_TOKENS not in can:
            return _answer(404, answers.no_route())
        return _answer(400, answers.error(400, answers.WRONG_FIELD, "max_tokens")) if _old_field(body) else None


def _page(behaviour: Behaviour, body: Callable[[], bytes], kind: str) -> Scripted:
    """The answer of an endpoint that shows `body` when it works."""
    match behaviour.way:
        case Way.TIMEOUT | Way.REFUSED | Way.RESET:
            return Scripted(fault=_FAULTS[behaviour.way])
        case Way.STATUS:
            return _answer(behaviour.status, b"Internal Server Error" if behaviour.status >= 500 else b"")
        case Way.EMPTY:
            return Scripted(200, (("content-type", kind),), b"", behaviour.delay)
        case Way.GARBAGE:
            return Scripted(200, (("content-type", kind),), _GARBAGE, behaviour.delay)
    return Scripted(200, (("content-type", kind),), body(), behaviour.delay)


def _answer(status: int, body: bytes) -> Scripted:
    return Scripted(status, (("content-type", _JSON if body[:1] == b"{" else _TEXT),), body)


def _refuse_method() -> Scripted:
    return _answer(405, answers.body({"detail": "Method Not Allowed"}))


def _old_field(body: bytes) -> bool:
    """Whether a chat asks with `max_tokens`, which newer models refuse."""
    try:
        content = json.loads(body)
    except ValueError:
        return False
    return isinstance(content, dict) and "max_tokens" in content


def _other(engine: Numbers) -> Numbers:
    """The same engine of the other server."""
    return dataclasses.replace(
        engine,
        steps=engine.steps + _OTHER_USED,
        prompt=engine.prompt + _OTHER_USED,
        tokens=engine.tokens + _OTHER_USED,
        finished=engine.finished + _OTHER_USED,
    )
