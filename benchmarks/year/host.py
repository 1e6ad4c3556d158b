"""A host in virtual time: simulated servers that are polled, asked and restarted as the watcher and daemon would.

Everything goes through `step_host`, without HTTP text: a year has twelve million polls. Timers run on monotonic time,
the core is told boot time; between two days the host may sleep, and then both come apart.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import (
    Answer,
    Answered,
    Ask,
    Effect,
    Event,
    JobEnded,
    Look,
    Pause,
    Polled,
    Question,
    Reading,
    Reply,
    Restart,
    Sample,
    Settings,
    Went,
)
from factory_watchdog.core.recovery import resume
from factory_watchdog.core.step import step_host, wants_pause_signs
from factory_watchdog.engines.vllm import VLLM
from factory_watchdog.saved import encode, taken_up
from factory_watchdog.simulate.exposition import Numbers
from factory_watchdog.simulate.manager import STOP_TIME, SimManager
from factory_watchdog.simulate.script import Behaviour, Phase, Scenario, ServerSpec, Way
from factory_watchdog.simulate.server import Scripted, Server
from year.weather import DAY, DEADLINE, Hang, Weather

WINDOWS = (120.0, 180.0)
"""What a reload makes of `hang_after`, in seconds."""

BOOT = "boot"

_WENT = {Way.TIMEOUT: Went.TIMEOUT, Way.REFUSED: Went.REFUSED, Way.RESET: Went.RESET}
_FAULT = {"timeout": Went.TIMEOUT, "refused": Went.REFUSED, "reset": Went.RESET}
_OK = Reply(Went.OK, 200)
_UNREADABLE = (Way.EMPTY, Way.GARBAGE)


class Witness(Protocol):
    """Who is shown everything, and raises when it is not right."""

    def polled(self, watched: Watched, now: float) -> None: ...

    def told(self, watched: Watched, effect: Effect, now: float) -> None: ...

    def answered(self, watched: Watched) -> None: ...

    def interrupted(self, watched: Watched, now: float) -> None: ...


@dataclass
class Watched:
    """A backend with the watch over it. `seen` is the phase that the newest poll saw, at `looked`."""

    name: str
    settings: Settings
    server: Server
    hangs: list[Hang]
    seen: Phase
    looked: float = 0.0
    manager: SimManager = field(init=False)
    out: tuple[Question, Scripted] | None = None
    generation: int = 0  # of the watch: what an earlier one waited for comes to nobody
    timer: int = 0  # of the next poll; one with an older number is not made any more
    due: float = 0.0
    polling: bool = False
    wake: bool = False

    def __post_init__(self) -> None:
        self.manager = SimManager(self.server)

    def hang_at(self, t: float) -> Hang | None:
        """The hang that the weather has at `t`."""
        return next((hang for hang in self.hangs if hang.begin <= t < hang.end), None)


class Host:
    """The machines of `weathers` on one host. `trouble` draws when we ourselves are restarted or reloaded."""

    def __init__(self, weathers: list[Weather], witness: Witness, trouble: random.Random) -> None:
        self.states: Mapping[str, Backend] = {}
        self.polls = 0
        self.now = 0.0  # boot time, in which suspends count
        self._mono = 0.0
        self._slept = 0.0
        self._witness = witness
        self._trouble = trouble
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._suspends = weathers[0].suspends
        self.watched = [self._watch(weather) for weather in weathers]

    def _watch(self, weather: Weather) -> Watched:
        machine = weather.machine
        spec = ServerSpec(
            engines=machine.engines,
            start_time=machine.start_time,
            load_time=machine.load_time,
            api_server="multi" if machine.multi else "single",
        )
        scenario = Scenario(machine.name, tuple(weather.phases), server=spec)
        server = Server(scenario, lambda: self.now)
        return Watched(machine.name, machine.settings, server, weather.hangs, weather.phases[0])

    def state(self, watched: Watched) -> Backend:
        return self.states.get(watched.name, Backend())

    # --- time --------------------------------------------------------------------------------------------------------

    def _in(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self._mono + seconds, next(self._order), what))

    def run(self) -> None:
        """Play the weather to its end."""
        for day, seconds in enumerate(self._suspends):
            if seconds:
                self._in(day * DAY, partial(self._sleep, seconds))
        self._begin_watches()
        self._in(self._until_trouble(), self._have_trouble)
        end = len(self._suspends) * DAY
        while self._queue[0][0] < end:
            self._mono, _, what = heapq.heappop(self._queue)
            self.now = self._mono + self._slept
            what()

    def _sleep(self, seconds: float) -> None:
        self._slept += seconds
        self.now += seconds
        for watched in self.watched:
            self._witness.interrupted(watched, self.now)

    # --- our own troubles --------------------------------------------------------------------------------------------

    def _until_trouble(self) -> float:
        return self._trouble.expovariate(1 / 30000.0)  # seconds: three a day

    def _have_trouble(self) -> None:
        self._trouble.choice((self._die, self._reload))()
        self._in(self._until_trouble(), self._have_trouble)

    def _die(self) -> None:
        """The daemon ends and comes back; the states are what it saved."""
        down = self._trouble.choice((0.5, 5.0, 100.0))
        saved = {name: encode(state, BOOT, self.now, self.now) for name, state in self.states.items()}
        for watched in self.watched:
            self._end_watch(watched)
        self._in(down, partial(self._come_back, saved))

    def _come_back(self, saved: Mapping[str, bytes]) -> None:
        self.states = {name: taken_up(text, BOOT, self.now, self.now) for name, text in saved.items()}
        self._begin_watches()

    def _begin_watches(self) -> None:
        for watched in self.watched:
            self._begin_watch(watched)

    def _reload(self) -> None:
        """The configuration of one backend changes: its watch begins anew, perhaps with another window."""
        watched = self._trouble.choice(self.watched)
        self._end_watch(watched)
        if watched.name in self.states:
            self.states = {**self.states, watched.name: resume(self.states[watched.name])}
        watched.settings = replace(watched.settings, hang_after=self._trouble.choice(WINDOWS))
        self._begin_watch(watched)

    def _end_watch(self, watched: Watched) -> None:
        watched.generation += 1
        watched.timer += 1
        watched.polling = watched.wake = False
        if watched.out is not None:
            watched.server.give_up(watched.out[1])
            watched.out = None
            self._witness.answered(watched)
        self._witness.interrupted(watched, self.now)

    def _begin_watch(self, watched: Watched) -> None:
        self._witness.interrupted(watched, self.now)
        watched.due = self._mono + self._trouble.random()
        self._schedule(watched, watched.due)

    # --- polls -------------------------------------------------------------------------------------------------------

    def _schedule(self, watched: Watched, mono: float) -> None:
        watched.timer += 1
        self._in(mono - self._mono, partial(self._poll, watched, watched.timer))

    def _poll(self, watched: Watched, timer: int) -> None:
        if timer != watched.timer:
            return
        while watched.due <= self._mono:
            watched.due += watched.settings.interval
        watched.polling, watched.wake = True, False
        self.polls += 1
        reading, seconds = self._look(watched)
        if seconds:
            self._in(seconds, partial(self._looked, watched, watched.generation, reading))
        else:
            self._looked(watched, watched.generation, reading)

    def _look(self, watched: Watched) -> tuple[Reading, float]:
        """What a poll sees, and the seconds that it takes."""
        server, now = watched.server, self.now
        phase = server.phase
        watched.seen, watched.looked = phase, now
        unit = watched.manager.shown("")
        flag, maintenance = server.flag(7200.0), server.maintenance()
        if server.loading or phase.health.way is phase.metrics.way is Way.REFUSED:
            refused = Reply(Went.REFUSED)
            return Reading(now, now, refused, refused, unit=unit, flag=flag, maintenance=maintenance), 0.0
        metrics = _reply(phase.metrics)
        known = metrics.went is Went.OK and phase.metrics.way not in _UNREADABLE
        reading = Reading(
            now,
            now,
            _reply(phase.health),
            metrics,
            known,
            _samples(server) if known else (),
            server.life.start_time if known and server.spec.start_time and not _multi(server) else None,
            unit,
            flag=flag,
            maintenance=maintenance,
        )
        return reading, max(_seconds(phase.health), _seconds(phase.metrics))

    def _looked(self, watched: Watched, generation: int, reading: Reading) -> None:
        """The pages are there; the pause signs are read where they are wanted."""
        if generation != watched.generation:
            return
        reading = reading if reading.ended == self.now else replace(reading, ended=self.now)
        mute = False
        if wants_pause_signs(self.state(watched), reading, watched.settings):
            phase = watched.server.phase
            mute = phase.health.way is Way.TIMEOUT and phase.metrics.way is Way.TIMEOUT
            silent = mute or watched.server.refusing
            reading = replace(reading, pause=Pause() if silent else _pause(phase.paused))
        if mute:
            self._in(DEADLINE, partial(self._judge, watched, generation, reading))
        else:
            self._judge(watched, generation, reading)

    def _judge(self, watched: Watched, generation: int, reading: Reading) -> None:
        if generation != watched.generation:
            return
        reading = reading if reading.ended == self.now else replace(reading, ended=self.now)
        self.feed(watched, Polled(reading))
        self._witness.polled(watched, self.now)
        watched.polling = False
        self._schedule(watched, self._mono if watched.wake else watched.due)

    def feed(self, watched: Watched, event: Event) -> None:
        """Give the core an event and carry out what it says."""
        now = self.now
        self.states, effects = step_host(self.states, watched.name, event, now, watched.settings)
        for effect in effects:
            self._witness.told(watched, effect, now)
            match effect:
                case Look():
                    self._wake(watched)
                case Ask(question=question):
                    self._ask(watched, question)
                case Restart():
                    self._restart(watched, effect)

    def _wake(self, watched: Watched) -> None:
        watched.wake = True
        if not watched.polling:
            self._schedule(watched, self._mono)

    # --- questions ---------------------------------------------------------------------------------------------------

    def _ask(self, watched: Watched, question: Question) -> None:
        memory = self.state(watched).memory
        engines = [e.sample.engine for e in memory.engines] if memory is not None else []
        request = VLLM.question(question.form, "m", question.engine if question.pinned else None, engines)
        headers = {name.lower(): value for name, value in request.headers}
        scripted = watched.server.respond("POST", request.path, headers, request.body)
        watched.out = question, scripted
        seconds = watched.settings.question_timeout if scripted.fault == "timeout" else scripted.delay
        self._in(seconds, partial(self._answer, watched, watched.generation))

    def _answer(self, watched: Watched, generation: int) -> None:
        if generation != watched.generation or watched.out is None:
            return
        (question, scripted), watched.out = watched.out, None
        self._witness.answered(watched)
        if scripted.fault is not None:
            watched.server.give_up(scripted)
            reply = Reply(_FAULT[scripted.fault])
        else:
            reply = Reply(Went.OK if scripted.status == 200 else Went.STATUS, scripted.status)
        worth = VLLM.classify(question.form, reply, scripted.body)
        answer = Answer(
            question.id,
            worth.outcome,
            self.now,
            worth.prompt_tokens,
            worth.completion_tokens,
            worth.detail,
            worth.next_form,
        )
        self.feed(watched, Answered(answer))

    # --- restarts ----------------------------------------------------------------------------------------------------

    def _restart(self, watched: Watched, order: Restart) -> None:
        """The job goes its way whether we live to see its end or not; what comes of it is the hang's `restart`."""
        server = watched.server
        hang = watched.hang_at(watched.looked)
        server.spec = replace(server.spec, restart=hang.restart if hang is not None else "works")
        watched.manager.push()
        self._in(STOP_TIME, partial(self._pushed, watched, order.attempt, watched.generation))

    def _pushed(self, watched: Watched, attempt: int, generation: int) -> None:
        result, detail = watched.manager.pushed()
        if generation == watched.generation:
            self.feed(watched, JobEnded(attempt, result, detail))


def _multi(server: Server) -> bool:
    return server.spec.api_server == "multi"


def _pause(paused: bool | None) -> Pause:
    """What the pause endpoints say; None: they do not exist."""
    return Pause("paused, says /is_paused" if paused else None, absent=paused is None)


def _reply(behaviour: Behaviour) -> Reply:
    if behaviour.way is Way.OK or behaviour.way in _UNREADABLE:
        return _OK
    if behaviour.way is Way.STATUS:
        return Reply(Went.STATUS, behaviour.status)
    return Reply(_WENT[behaviour.way])


def _seconds(behaviour: Behaviour) -> float:
    return DEADLINE if behaviour.way is Way.TIMEOUT else behaviour.delay


def _samples(server: Server) -> tuple[Sample, ...]:
    numbers = server.numbers()
    gauges = not _multi(server) or server.tells_gauges(numbers)
    return tuple(_sample(str(i), engine, gauges) for i, engine in enumerate(numbers))


def _sample(name: str, engine: Numbers, gauges: bool) -> Sample:
    """One engine's signals; counters are whole numbers, as a server counts."""
    return Sample(
        name,
        engine.running if gauges else None,
        engine.waiting if gauges else None,
        float(int(engine.steps)),
        float(int(engine.prompt)),
        float(int(engine.tokens)),
        engine.kv if gauges else None,
        float(int(engine.finished)),
        () if gauges else ("running", "waiting", "kv"),
        "asleep, says the sleep state" if engine.asleep else None,
    )
