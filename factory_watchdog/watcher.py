"""One backend's watch: polls on a grid, feeds what it sees to the core, and carries out what the core says.

All decisions are the core's; this is where they meet the network, the service manager and the clock. The same watch
runs in the daemon, in `llm-health check`, and in a simulation over a virtual clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from factory_watchdog.config import schema
from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import (
    NOT_ASKED,
    Answer,
    Answered,
    Ask,
    Effect,
    Event,
    JobEnded,
    JobResult,
    Look,
    Outcome,
    Pause,
    Polled,
    Port,
    Question,
    Raise,
    Reading,
    Restart,
    RestartAsked,
    RestartSettled,
    Settings,
    Turned,
    UnitFacts,
)
from factory_watchdog.core.orders import is_life_of, still_due, why_not
from factory_watchdog.core.step import restart_may_follow, restarting, step_host, wants_pause_signs
from factory_watchdog.core.window import LONGEST
from factory_watchdog.engines import dialect_of
from factory_watchdog.engines.detect import UNDETECTED, detect
from factory_watchdog.engines.dialect import MODELS_PATH, Dialect, Page, served_model, served_models
from factory_watchdog.engines.exposition import PAGE_LIMIT
from factory_watchdog.port_check import PortCheck
from factory_watchdog.ports import Host, Sink, Units, World
from factory_watchdog.readings import BEYOND, Readings
from factory_watchdog.world.evidence import Job, Journal, bounded
from factory_watchdog.world.http import SMALL, Fetched
from factory_watchdog.world.processes import Process
from factory_watchdog.world.secrets import SecretError

LONGEST_POLL = 30.0
"""Seconds at most for one poll's requests: longer than that a reading is old before it is judged."""

SHORTEST_POLL = 1.0
"""Seconds that every poll gets: a server starved of CPU by its own model takes up to 1 s for a page (measured)."""

EVIDENCE_TIME = 60.0
"""Seconds that an evidence unit may take before a restart: every one of them is outage."""

MODELS_KEPT = 20
"""Names of served models kept in a reading: adapters may be thousands."""


class Watcher:
    """The watch over one backend."""

    def __init__(
        self,
        config: schema.Backend,
        settings: Settings,
        dialect: Dialect,
        world: World,
        host: Host,
        sink: Sink,
        *,
        settings_of: Callable[[Dialect], Settings] | None = None,
    ) -> None:
        """`settings_of` gives the settings for a kind that is found out; without it the kind is as given."""
        self.name = config.name
        self.config = config
        self.settings = settings
        self.dialect = dialect
        self.world = world
        self._host = host
        self._sink = sink
        self._wake = asyncio.Event()
        self._polling = asyncio.Lock()  # a look before a restart must not overtake the one of the grid
        self._tasks: set[asyncio.Task[None]] = set()
        self._settings_of = settings_of
        self._finding_out = settings_of is not None
        self._port = PortCheck(config, world.units, lambda what: sink.warned(config.name, what))
        self._deciding = False
        self._model: str | None = config.model
        self._old_life: str | None = None
        self._old_processes: list[Process] = []
        longest = LONGEST if settings.hang_auto else settings.hang_after
        self._readings = Readings(longest + BEYOND)
        self.deadline = max(SHORTEST_POLL, min(0.9 * settings.interval, LONGEST_POLL))
        self.finished = asyncio.get_running_loop().time()

    @property
    def state(self) -> Backend:
        return self._host.states.get(self.name, Backend())

    @property
    def wants_look(self) -> bool:
        """Whether another poll is due at once: the core asked for one, or a question is out that one will settle."""
        return self._wake.is_set() or bool(self._tasks)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens generated a second, all engines together, between the last two readings; None where not told."""
        told = [r for r in list(self._readings)[-2:] if r.readable]
        if len(told) < 2 or told[1].ended <= told[0].ended:
            return None
        before, after = (sum(s.generated or 0.0 for s in r.engines) for r in told)
        return (after - before) / (told[1].ended - told[0].ended) if after >= before else None

    @property
    def overdue_at(self) -> float:
        """Loop time by which the next poll ends if this watch is alive, pause signs and one more retry included."""
        return self.finished + self.settings.interval + 4 * self.deadline + LONGEST_POLL

    async def run(self, delay: float = 0.0) -> None:
        """Poll at `delay` and every interval after it, and at once where the core wants to look."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        while True:
            await self._wait_until(due)
            due = _next(due, loop.time(), self.settings.interval)
            await self._guarded(self.poll(), "poll")
            self.finished = loop.time()

    async def close(self) -> None:
        """End the questions and restart jobs that are being followed. The state keeps a restart that is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.world.http.close()

    async def poll(self, *, deciding: bool = False) -> None:
        """One look at the backend, judged; where a restart may rest on it (`deciding`) at all that forbids one."""
        async with self._polling:
            self._wake.clear()
            self._deciding = deciding or restart_may_follow(self.state)
            reading = await self._read()
            finding = self.state.finding
            self._readings.add(reading, finding.since if finding is not None else None)
            self.feed(Polled(reading))
            memory = self.state.memory
            if memory is not None and memory.new_life and self._settings_of is not None:
                self._finding_out = True  # another server may have come up at the address
            self._sink.polled(self.name, self.state)

    def feed(self, event: Event) -> None:
        """Give the core an event and carry out what it says."""
        now = self.world.clock.boottime()
        states, effects = step_host(self._host.states, self.name, event, now, self.settings)
        self._host.states = dict(states)
        for effect in effects:
            self._carry_out(effect)

    def look(self) -> None:
        """Poll at once: something outside changed that the next poll would see too late."""
        self._wake.set()

    async def order_restart(self, by: str) -> str | None:
        """Restart because an operator, named `by`, wants it; the reason where that cannot be, by a fresh look."""
        await self.poll(deciding=True)
        now, others = self.world.clock.boottime(), restarting(self._host.states, self.name)
        reason = why_not(self.state, now, self.settings, others)
        if reason is None:
            self.feed(RestartAsked(by))
        return reason

    async def settle(self) -> None:
        """Wait until no question and no restart job is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _read(self) -> Reading:
        clock = self.world.clock
        began = clock.boottime()
        looking = asyncio.ensure_future(self._unit_and_port())
        if self._port.comes_first:
            await looking
        (unit, port), health, metrics = await asyncio.gather(looking, self._health(), self._metrics())
        page = self.dialect.read(metrics.body) if metrics.reply.status == 200 else Page()
        if self._finding_out and not page.known and await self._found_out(health, metrics):
            return await self._read()
        self._finding_out = self._finding_out and not page.known
        start = page.start_time if page.start_time is not None else self.dialect.start_token(metrics.headers)
        reading = Reading(
            began=began,
            ended=clock.boottime(),
            health=self.dialect.health(health.reply),
            metrics=metrics.reply,
            known=page.known,
            engines=page.engines,
            start_time=start,
            unit=unit,
            flag=self.world.flag(),
            maintenance=self.world.maintenance(),
            port=port,
        )
        self._port.tell(reading)
        return await self._completed(reading)

    async def _completed(self, reading: Reading) -> Reading:
        """With what only some readings need: the pause signs, and where a restart may follow what is served."""
        pausing = bool(self.dialect.pause_paths) and wants_pause_signs(self.state, reading, self.settings)
        naming = self.config.model is not None and self._deciding
        if not pausing and not naming:
            return reading
        pause, models = await asyncio.gather(
            self._pause() if pausing else _none(), self._models() if naming else _none()
        )
        return replace(reading, pause=pause, models=models, ended=self.world.clock.boottime())

    async def _health(self) -> Fetched:
        return await self._get(schema.health_url(self.config, self.dialect.health_path), self.dialect.health_path)

    async def _metrics(self) -> Fetched:
        path = self.dialect.metrics_path
        if path is None:
            return Fetched(NOT_ASKED)
        return await self._get(schema.metrics_url(self.config, path), path, PAGE_LIMIT)

    async def _get(self, url: str, path: str, cap: int = SMALL) -> Fetched:
        """One page, with the key where its kind wants one; a key that is not to be had is told when we ask."""
        headers: dict[str, str] = {}
        if path in self.dialect.key_paths:
            with contextlib.suppress(SecretError):
                headers = self._port.key()
        return await self.world.http.get(url, self.deadline, cap, headers)

    async def _found_out(self, health: Fetched, metrics: Fetched) -> bool:
        """Find out the kind of server where the pages tell it; whether it is another than the one we took it for.

        The page of models and the metrics are all that is fetched before it is known: a proxy turns more into load.
        """
        listed = self.dialect.health_path == MODELS_PATH and self.config.health_url is None
        models = health if listed else await self._get(self.config.url + MODELS_PATH, MODELS_PATH)
        if self.dialect.metrics_path is None:
            metrics = await self._get(schema.metrics_url(self.config), "/metrics", PAGE_LIMIT)
        found = detect(models, metrics)
        if found is None or self._settings_of is None:
            return False
        self._finding_out = False
        if found.kind == self.dialect.kind:
            return False
        self.dialect = dialect_of(found.kind)
        self.settings = self._settings_of(self.dialect)
        self._sink.identified(self.name, found.kind, found.why)
        return True

    async def _unit_and_port(self) -> tuple[UnitFacts | None, Port | None]:
        facts = await self._unit()
        return facts, await self._port.look(facts, fresh=self._deciding)

    async def _unit(self) -> UnitFacts | None:
        unit = self.config.unit
        if unit is None or self.world.units is None:
            return None
        facts = await self.world.units.facts(unit)
        if not self._old_processes or facts.invocation in (None, self._old_life):
            return facts  # the life that is to end, or nobody says which: its processes are in their place
        left_over = await self.world.units.left_over(self._old_processes)
        self._old_processes = [process for process in self._old_processes if process[0] in left_over]
        return replace(facts, left_over=left_over)

    async def _models(self) -> tuple[str, ...] | None:
        """The names that are served, the configured one first where it is among them; None where none is told."""
        fetched = await self._get(self.config.url + self.dialect.models_path, self.dialect.models_path)
        served = served_models(fetched.body) if fetched.reply.status == 200 else ()
        return tuple(sorted(served, key=lambda name: name != self.config.model)[:MODELS_KEPT]) or None

    async def _pause(self) -> Pause:
        paths = self.dialect.pause_paths
        answers = await asyncio.gather(*(self._get(self.config.url + path, path) for path in paths))
        return self.dialect.read_pause([(path, a.reply, a.body) for path, a in zip(paths, answers, strict=True)])

    # --- carrying out ------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Look():
                self._wake.set()
            case Turned(verdict=verdict, previous=previous):
                self._sink.turned(self.name, verdict, previous)
                self._sink.save(self.name, self.state)
            case Raise():
                shown = self.state.verdict
                self._sink.raised(self.name, effect, shown.state if shown is not None else None)
            case Ask(question=question):
                self._sink.asking(self.name, question)
                self._start(self._ask(question), "question")
            case Restart():
                self._sink.restarting(self.name, effect, tuple(self._readings))
                self._sink.save(self.name, self.state)  # before anything is done: our own death must not repeat it
                self._start(self._restart(effect), "restart")
            case RestartSettled():
                self._sink.settled(self.name, effect)
                self._sink.save(self.name, self.state)

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work, what))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Awaitable[None], what: str) -> None:
        """A fault of our own ends neither the watch nor the daemon; it is told, and the next poll comes."""
        try:
            await work
        except Exception as error:
            self._sink.fault(self.name, f"{what}: {type(error).__name__}: {error}")

    async def _wait_until(self, due: float) -> None:
        if self._wake.is_set():
            return
        try:
            async with asyncio.timeout_at(due):
                await self._wake.wait()
        except TimeoutError:
            pass

    # --- questions ---------------------------------------------------------------------------------------------------

    async def _ask(self, question: Question) -> None:
        try:
            answer = await self._answer(question)
        except SecretError as error:
            answer = Answer(question.id, Outcome.DENIED, self.world.clock.boottime(), detail=str(error))
        except Exception as error:
            # A question that fails by our own fault is no failure of the backend.
            answer = Answer(question.id, Outcome.CANNOT, self.world.clock.boottime(), detail=f"our own fault: {error}")
            self._sink.fault(self.name, f"question: {type(error).__name__}: {error}")
        self._sink.asked(self.name, question, answer)
        self.feed(Answered(answer))

    async def _answer(self, question: Question) -> Answer:
        headers = self._port.key()
        if self._model is None:
            self._model = await self._served_model(headers)
        memory = self.state.memory
        engines = [e.sample.engine for e in memory.engines] if memory is not None else []
        engine = question.engine if question.pinned else None
        request = self.dialect.question(question.form, self._model, engine, engines)
        url, deadline = self.config.url + request.path, self.settings.question_timeout
        fetched = await self.world.http.post(url, deadline, request.body, {**dict(request.headers), **headers})
        worth = self.dialect.classify(question.form, fetched.reply, fetched.body)
        if worth.outcome is Outcome.CANNOT:
            self._model = self.config.model  # the name may be the reason: look it up afresh
        return Answer(
            question.id,
            worth.outcome,
            self.world.clock.boottime(),
            worth.prompt_tokens,
            worth.completion_tokens,
            worth.detail,
            worth.next_form,
        )

    async def _served_model(self, headers: dict[str, str]) -> str | None:
        fetched: Fetched = await self.world.http.get(
            self.config.url + self.dialect.models_path, self.deadline, headers=headers
        )
        return served_model(fetched.body) if fetched.reply.status == 200 else None

    # --- restarts ----------------------------------------------------------------------------------------------------

    async def _restart(self, order: Restart) -> None:
        try:
            result, detail = await self._push(order)
        except Exception as error:
            result, detail = JobResult.FAILED, f"our own fault: {type(error).__name__}: {error}"
        self.feed(JobEnded(order.attempt, result, detail))

    async def _push(self, order: Restart) -> tuple[JobResult, str]:
        """See what the host shows, then restart; all of it within the time that a start may take."""
        config, units, clock = self.config, self.world.units, self.world.clock
        if units is None:
            return JobResult.NO_BUS, "no service manager"
        began = clock.boottime()
        await self._witness(order, units)
        if config.evidence_unit:
            await units.start(config.evidence_unit, EVIDENCE_TIME)
        if config.evidence_unit or clock.boottime() - began > self.settings.interval:
            await self.poll(deciding=True)
        if self.state.reading is not order.proof.reading and not self._still_due(order):
            return JobResult.DROPPED, "the backend changed while evidence was taken"
        if config.unit and is_life_of(await units.facts(config.unit), order.identity) is False:
            return JobResult.DROPPED, "the unit was started anew while evidence was taken"
        facts = order.proof.reading.unit
        if facts is not None and facts.control_group:
            self._old_life = facts.invocation
            self._old_processes = await units.processes(facts.control_group)
        asked, left = clock.wall(), self.settings.startup_timeout - (clock.boottime() - began)
        result, detail = await self._act(order, units, max(left, SHORTEST_POLL))
        unit = config.action_unit or config.unit or ""
        self._sink.pushed(self.name, order.attempt, Job(unit, asked, clock.wall(), result, detail))
        return result, detail

    async def _act(self, order: Restart, units: Units, deadline: float) -> tuple[JobResult, str]:
        """Do to the host what the configuration says, and follow that for at most `deadline` seconds."""
        config = self.config
        if config.action_unit:
            return await units.start(config.action_unit, deadline)
        if config.unit is None:
            return JobResult.FAILED, "no unit"
        if order.revive:
            await units.reset_failed(config.unit)
            return await units.start(config.unit, deadline)
        return await units.try_restart(config.unit, deadline)

    async def _witness(self, order: Restart, units: Units) -> None:
        """Record what the host shows. Whatever fails in it costs the record at most, not the restart."""
        clock, facts = self.world.clock, order.proof.reading.unit
        seen = await bounded(units.evidence(self.config.unit, facts.control_group if facts is not None else None))
        if facts is not None and facts.invocation:
            now = clock.wall()
            first = min((reading.began for reading in self._readings), default=order.proof.reading.began)
            seen = replace(seen, journal=Journal(facts.invocation, now - (clock.boottime() - first), now))
        self._sink.evidence(self.name, order.attempt, seen)

    def _still_due(self, order: Restart) -> bool:
        now, others = self.world.clock.boottime(), restarting(self._host.states, self.name)
        return still_due(self.state, order, now, self.settings, others)


def watcher_of(
    config: schema.Backend,
    daemon: schema.Daemon,
    world: World,
    host: Host,
    sink: Sink,
    adjust: Callable[[Settings], Settings] = lambda settings: settings,
) -> Watcher:
    """The watch that a configuration asks for; `adjust` changes its settings for a watch that is not the daemon's."""

    def settings_of(dialect: Dialect) -> Settings:
        return adjust(schema.settings(config, daemon, dialect))

    dialect = dialect_of(config.kind)
    finds_out = settings_of if dialect is UNDETECTED else None
    return Watcher(config, settings_of(dialect), dialect, world, host, sink, settings_of=finds_out)


def _next(due: float, now: float, interval: float) -> float:
    """The next time on the grid after now: polls that were missed are not made up for."""
    if now < due:
        return due
    return due + interval * (int((now - due) / interval) + 1)


async def _none() -> None:
    return None
