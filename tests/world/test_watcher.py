"""The watch over one backend where it meets the world: grid, keys, models, evidence, restarts, faults of our own."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from factory_watchdog.config import load, schema
from factory_watchdog.core.model import Alert, Answer, Flag, JobResult, Outcome, Question, Reading, State, UnitFacts
from factory_watchdog.engines import dialect_of
from factory_watchdog.engines.dialect import Dialect, Page
from factory_watchdog.ports import Host, World
from factory_watchdog.simulate import clock, scenario
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.played import Collector, Played, watch_for
from factory_watchdog.simulate.real import RealServer
from factory_watchdog.simulate.real import clock as counted_from_now
from factory_watchdog.simulate.script import Timeline
from factory_watchdog.simulate.server import Server
from factory_watchdog.simulate.transport import SimTransport
from factory_watchdog.watcher import Watcher
from factory_watchdog.world.clock import HostClock
from factory_watchdog.world.evidence import LONGEST, LOOKS_APART, Evidence, Job, Journal, Missing, Processes, nothing
from factory_watchdog.world.http import Http

BUSY = '[[phase]]\nfor = "5m"\nrunning = 2\nsteps = 5.0\ntokens = 10.0\nfinished = 0.1\nkv = 0.5\n'
FROZEN = '[[phase]]\nfor = "{length}"\nsteps = 0.0\ntokens = 0.0\nfinished = 0.0\nquestion = "timeout"\n'
MOVES = '[[phase]]\nfor = "10m"\nsteps = 5.0\ntokens = 10.0\nfinished = 0.1\nquestion = "ok 0.3s"\n'
QUIET = '[[phase]]\nfor = "5m"\n'
HANG = BUSY + FROZEN.format(length="10m")
RESTART_AT = 450.0  # when the hang of `HANG` is proven: 300 s, hang_after, the question's 30 s

KEY = "sk-very-secret"
LONG = 20.0  # seconds; never reached unless something is broken


class Heard(Collector):
    """Keeps everything that the watch tells, answers and readings too."""

    def __init__(self, played: Played, now: Any) -> None:
        super().__init__(played, now)
        self.played = played
        self.answers: list[Answer] = []
        self.readings: list[Reading] = []
        self.proofs: list[tuple[Reading, ...]] = []
        self.evidences: list[Evidence] = []
        self.jobs: list[Job] = []

    def polled(self, name: str, backend: Any) -> None:
        self.readings.append(backend.reading)

    def asked(self, name: str, question: Question, answer: Answer) -> None:
        self.answers.append(answer)

    def restarting(self, name: str, order: Any, readings: Any) -> None:
        super().restarting(name, order, readings)
        self.proofs.append(tuple(readings))

    def evidence(self, name: str, attempt: int, evidence: Evidence) -> None:
        self.evidences.append(evidence)

    def pushed(self, name: str, attempt: int, job: Job) -> None:
        self.jobs.append(job)


class Recorded(httpx.AsyncBaseTransport):
    """Passes requests on and keeps them, with the greatest number of pages that were asked for at once."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.requests: list[httpx.Request] = []
        self.at_once = self.most_at_once = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        page = request.url.path == "/metrics"
        self.at_once += page
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._inner.handle_async_request(request)
        finally:
            self.at_once -= page

    def questions(self) -> list[httpx.Request]:
        return [request for request in self.requests if request.method == "POST"]


class Manager(SimManager):
    """A service manager that keeps what it was asked to do; a job of the evidence unit lasts `evidence_time`."""

    def __init__(self, server: Server, evidence_time: float = 0.0) -> None:
        super().__init__(server)
        self.jobs: list[tuple[str, str]] = []
        self.evidence_time = evidence_time

    async def try_restart(self, unit: str, deadline: float) -> tuple[JobResult, str]:
        self.jobs.append(("try-restart", unit))
        return await super().try_restart(unit, deadline)

    async def start(self, unit: str, deadline: float) -> tuple[JobResult, str]:
        self.jobs.append(("start", unit))
        if unit == "evidence.service":
            await asyncio.sleep(self.evidence_time)
        return await super().start(unit, deadline)

    async def reset_failed(self, unit: str) -> tuple[JobResult, str]:
        self.jobs.append(("reset-failed", unit))
        return await super().reset_failed(unit)


@dataclasses.dataclass
class Watch:
    """A watch in virtual time over a simulated server, and everything that it can be seen by."""

    watcher: Watcher
    heard: Heard
    server: Server
    units: Manager
    transport: Recorded

    async def for_seconds(self, seconds: float) -> None:
        await watch_for(self.watcher, seconds)


Setting = str | float | bool


def watching(
    text: str,
    work: Callable[[Watch], Awaitable[None]],
    *,
    evidence_time: float = 0.0,
    dialect: Callable[[Dialect], Dialect] = lambda d: d,
    flag: Callable[[], Flag] = Flag,
    **settings: Setting,
) -> None:
    """Do `work` with a watch over the server of the scenario `text`, in virtual time."""

    async def main() -> None:
        table = {"kind": "vllm", "unit": "vllm.service", **settings}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        played = scenario.loads(f"[backend]\n{lines}{text}")
        config = load.from_table(played.backend, file="test")
        now = clock.ScriptedClock(Timeline(played.phases), asyncio.get_running_loop().time)
        server = Server(played, now.boottime)
        units, transport = Manager(server, evidence_time), Recorded(SimTransport(server))
        heard = Heard(Played("test"), now)
        world = World(Http(transport), units, now, flag, lambda: None)
        watcher = Watcher(
            config,
            schema.settings(config, schema.Daemon(), dialect_of(config.kind)),
            dialect(dialect_of(config.kind)),
            world,
            Host(),
            heard,
        )
        await work(Watch(watcher, heard, server, units, transport))

    clock.run(main)


# --- the grid --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metrics", ["ok", "slow 8s", "slow 12s", "timeout", "refused"])
def test_slow_pages_do_not_shift_the_grid(metrics: str) -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(99.0)
        assert [r.began for r in watch.heard.readings] == [10.0 * n for n in range(10)]

    watching(f'{BUSY}metrics = "{metrics}"\n', work)


def test_what_is_told_beside_a_poll() -> None:
    async def work(watch: Watch) -> None:
        assert watch.watcher.tokens_per_second is None
        await watch.for_seconds(30.0)
        assert watch.watcher.tokens_per_second == pytest.approx(10.0)
        assert watch.watcher.overdue_at > watch.watcher.finished + 10.0

    watching(BUSY, work)


def test_a_busy_backend_is_never_asked_and_gets_two_requests_a_poll() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(100.0)
        assert [r.url.path for r in watch.transport.requests] == ["/health", "/metrics"] * 11

    watching(BUSY, work)


# --- questions -------------------------------------------------------------------------------------------------------


def key_file(folder: Path, content: str = KEY) -> str:
    path = folder / "key"
    path.write_text(content)
    path.chmod(0o600)
    return str(path)


def test_the_key_goes_with_a_question_and_with_nothing_else(tmp_path: Path) -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(100.0)
        assert [a.outcome for a in watch.heard.answers] == [Outcome.ANSWERED]
        carrying = {r.url.path for r in watch.transport.requests if "Authorization" in r.headers}
        assert carrying == {"/v1/models", "/v1/chat/completions"}
        assert {r.headers["Authorization"] for r in watch.transport.questions()} == {f"Bearer {KEY}"}
        assert KEY not in repr((watch.heard.played, watch.heard.answers, watch.heard.readings))

    watching(QUIET, work, api_key_file=key_file(tmp_path))


def test_a_key_file_that_cannot_be_used_is_told_and_nothing_is_asked(tmp_path: Path) -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(290.0)
        assert watch.transport.questions() == []
        assert {a.outcome for a in watch.heard.answers} == {Outcome.DENIED}
        alerts = {raised.alert: raised.why for raised in watch.heard.played.alerts}
        assert "more than one word" in alerts[Alert.CANNOT_ASK]
        assert KEY not in repr((watch.heard.played, watch.heard.answers))

    watching(QUIET, work, api_key_file=key_file(tmp_path, f"{KEY} and a comment"))


def test_a_key_that_appears_later_is_used(tmp_path: Path) -> None:
    """Keys are rotated: the file is read for each question."""
    path = tmp_path / "key"

    async def work(watch: Watch) -> None:
        watching_on = asyncio.ensure_future(watch.for_seconds(600.0))
        await asyncio.sleep(100.0)
        assert [a.outcome for a in watch.heard.answers] == [Outcome.DENIED]
        key_file(tmp_path)
        await watching_on
        assert watch.heard.answers[-1].outcome is Outcome.ANSWERED

    watching('[[phase]]\nfor = "20m"\n', work, api_key_file=str(path))


@pytest.mark.parametrize("model", ["", "mine"])
def test_a_question_names_the_model(model: str) -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(300.0)
        bodies = [json.loads(request.content) for request in watch.transport.questions()]
        assert {body["model"] for body in bodies} == {model or "simulated"}
        asked_for = [r for r in watch.transport.requests if r.url.path == "/v1/models"]
        assert len(asked_for) == (0 if model else 1)

    settings: dict[str, Any] = {"model": model} if model else {}
    watching(QUIET, work, **settings)


def test_a_model_is_looked_up_afresh_where_it_could_not_be_asked() -> None:
    """Somebody else may serve another model at the same address by now."""

    async def work(watch: Watch) -> None:
        await watch.for_seconds(70.0)
        outcomes = [a.outcome for a in watch.heard.answers]
        assert outcomes[-1] is Outcome.ANSWERED
        asked_for = [r for r in watch.transport.requests if r.url.path == "/v1/models"]
        assert len(asked_for) == len(outcomes) > 1

    watching('[server]\nanswers = ["completion"]\n' + QUIET, work)


def test_a_question_that_fails_by_our_own_fault_is_told_and_no_failure_of_the_backend() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(300.0)
        assert any("our own" in fault or "KeyError" in fault for fault in watch.heard.played.faults)
        assert {a.outcome for a in watch.heard.answers} == {Outcome.CANNOT}
        assert watch.server.restarts == []
        assert [raised.alert for raised in watch.heard.played.alerts] == [Alert.CANNOT_ASK]

    def classify(*_: object) -> Any:
        raise KeyError("of ours")

    watching(QUIET, work, dialect=lambda d: dataclasses.replace(d, classify=classify))


# --- faults of our own -----------------------------------------------------------------------------------------------


class Fails:
    """Raises at the first call, then gives `then`."""

    def __init__(self, then: Callable[..., Any]) -> None:
        self._then = then
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise KeyError("of ours")
        return self._then(*arguments)


@pytest.mark.parametrize("part", ["flag", "page", "unit"])
def test_a_fault_in_a_part_is_told_and_the_next_poll_comes(part: str) -> None:
    async def work(watch: Watch) -> None:
        if part == "unit":
            facts = watch.units.facts
            watch.units.facts = Fails(facts)  # type: ignore[method-assign, assignment]
        await watch.for_seconds(25.0)
        assert watch.heard.played.faults == ["poll: KeyError: 'of ours'"]
        assert [r.began for r in watch.heard.readings] == [10.0, 20.0]
        assert watch.heard.played.changes[0].state is State.BUSY

    flag = Fails(Flag) if part == "flag" else Flag

    def dialect(real: Dialect) -> Dialect:
        return dataclasses.replace(real, read=Fails(real.read)) if part == "page" else real

    watching(BUSY, work, flag=flag, dialect=dialect)


def test_a_part_that_always_fails_never_restarts_anything() -> None:
    def read(_: bytes) -> Page:
        raise KeyError("of ours")

    async def work(watch: Watch) -> None:
        await watch.for_seconds(840.0)
        assert watch.server.restarts == []
        assert len(watch.heard.played.faults) == 85

    watching(HANG, work, dialect=lambda d: dataclasses.replace(d, read=read))


def test_a_service_manager_that_breaks_in_a_restart_is_a_failed_job() -> None:
    async def work(watch: Watch) -> None:
        async def try_restart(unit: str, deadline: float) -> tuple[JobResult, str]:
            raise KeyError("of ours")

        watch.units.try_restart = try_restart  # type: ignore[method-assign]
        await watch.for_seconds(800.0)
        told = {raised.alert: raised.why for raised in watch.heard.played.alerts}
        assert "our own fault: KeyError" in told[Alert.NOT_SERVED]

    watching(HANG, work)


# --- restarts --------------------------------------------------------------------------------------------------------


def test_a_unit_is_try_restarted_and_nothing_else_is_done() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(890.0)
        assert watch.units.jobs == [("try-restart", "vllm.service")]
        assert watch.heard.played.restarts == [RESTART_AT]
        (proof,) = watch.heard.proofs
        assert len(proof) > 12  # the suspicion from its beginning, and how it was before
        assert proof[0].began <= 300.0
        assert proof[-1].ended == RESTART_AT

    watching(HANG, work)


def test_what_the_host_shows_is_recorded_and_costs_a_restart_one_second() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(890.0)
        assert watch.server.restarts == [RESTART_AT + LOOKS_APART]
        (evidence,) = watch.heard.evidences
        assert isinstance(evidence.processes, Processes)
        assert [seen.role for seen in evidence.processes.seen] == ["api", "engine"]
        (job,) = watch.heard.jobs
        assert (job.unit, job.result, job.ended - job.asked) == ("vllm.service", JobResult.DONE, 0.5)
        journal = evidence.journal
        assert isinstance(journal, Journal)
        assert journal.invocation == f"{0:032x}"
        assert journal.until == job.asked
        assert journal.until - journal.since == pytest.approx(RESTART_AT + LOOKS_APART - watch.heard.proofs[0][0].began)

    watching(HANG, work)


def test_it_is_recorded_before_an_evidence_unit_changes_what_is_seen() -> None:
    async def work(watch: Watch) -> None:
        units, start = watch.units, watch.units.start
        seen_before: list[int] = []

        async def started(unit: str, deadline: float) -> tuple[JobResult, str]:
            seen_before.append(len(watch.heard.evidences))
            return await start(unit, deadline)

        units.start = started  # type: ignore[method-assign]
        await watch.for_seconds(890.0)
        assert seen_before == [1]

    watching(HANG, work, evidence_unit="evidence.service", evidence_time=2.0)


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_evidence_that_cannot_be_had_costs_the_record_and_not_the_restart(fault: str) -> None:
    async def work(watch: Watch) -> None:
        async def evidence(unit: str | None, control_group: str | None) -> Evidence:
            if fault == "raises":
                raise KeyError("of ours")
            await asyncio.sleep(3600.0)
            raise AssertionError

        watch.units.evidence = evidence  # type: ignore[method-assign]
        await watch.for_seconds(890.0)
        assert watch.server.restarts == [RESTART_AT + (LONGEST if fault == "hangs" else 0.0)]
        (shown,) = watch.heard.evidences
        assert isinstance(shown.unit, Missing)
        assert shown.unit.missing == ("KeyError: 'of ours'" if fault == "raises" else "not told within 6 s")
        assert isinstance(shown.journal, Journal)
        assert watch.heard.played.faults == []

    watching(HANG, work)


def slow_evidence(watch: Watch, seconds: float) -> None:
    evidence = watch.units.evidence

    async def slow(unit: str | None, control_group: str | None) -> Evidence:
        await asyncio.sleep(seconds)
        return await evidence(unit, control_group)

    watch.units.evidence = slow  # type: ignore[method-assign]


@pytest.mark.parametrize(("interval", "looks"), [(10.0, 0), (2.0, 1)])
def test_evidence_that_takes_longer_than_an_interval_is_followed_by_a_look(interval: float, looks: int) -> None:
    async def work(watch: Watch) -> None:
        watch.watcher.settings = dataclasses.replace(watch.watcher.settings, interval=interval)
        slow_evidence(watch, 2.5)
        await watch.for_seconds(500.0)
        (restarted,) = watch.server.restarts
        (order,) = watch.heard.played.restarts
        assert restarted - order == 3.5
        assert sum(reading.ended == restarted for reading in watch.heard.readings) == looks

    watching(HANG, work)


def test_a_reading_of_the_grid_that_shows_movement_during_the_evidence_drops_the_restart() -> None:
    """Taken in less than an interval, but the grid's look fell into it."""

    async def work(watch: Watch) -> None:
        slow_evidence(watch, 4.9)  # at 445 s the question fails in its 25 s; the grid looks at 450 s
        await watch.for_seconds(890.0)
        assert watch.heard.played.restarts == [445.0]
        assert watch.server.restarts == []
        assert watch.heard.played.changes[-1].state is State.BUSY

    text = BUSY + FROZEN.format(length="147s") + MOVES
    watching(text, work, question_timeout="25s")


def test_evidence_is_taken_before_a_restart() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(890.0)
        assert watch.units.jobs == [("start", "evidence.service"), ("try-restart", "vllm.service")]
        assert watch.server.restarts == [pytest.approx(RESTART_AT + 20.0 + LOOKS_APART, abs=0.1)]

    watching(HANG, work, evidence_unit="evidence.service", evidence_time=20.0)


def test_a_restart_is_dropped_where_the_server_recovered_while_evidence_was_taken() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(890.0)
        assert watch.units.jobs == [("start", "evidence.service")]
        assert watch.server.restarts == []
        assert watch.heard.played.changes[-1].state is State.BUSY

    text = BUSY + FROZEN.format(length="155s") + MOVES
    watching(text, work, evidence_unit="evidence.service", evidence_time=20.0)


def test_a_unit_that_others_start_anew_while_evidence_is_taken_is_not_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The evidence takes a second, in which no poll may fall: the unit is looked at once more."""

    async def meanwhile(self: Manager, unit: str | None, control_group: str | None) -> Evidence:
        self._server.restart()
        return nothing("another operator was faster")

    monkeypatch.setattr(Manager, "evidence", meanwhile)

    async def work(watch: Watch) -> None:
        await watch.for_seconds(600.0)
        assert watch.units.jobs == []
        why = "the restart was dropped: the unit was started anew while evidence was taken"
        assert why in [alert.why for alert in watch.heard.played.alerts]

    watching(HANG, work)


def test_the_look_after_the_evidence_waits_for_the_one_of_the_grid() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(890.0)
        assert ("try-restart", "vllm.service") in watch.units.jobs
        assert watch.transport.most_at_once == 1
        ended = [reading.ended for reading in watch.heard.readings]
        assert ended == sorted(ended)

    text = HANG.replace("kv = 0.5\n", 'kv = 0.5\nmetrics = "slow 6s"\n')
    watching(text, work, evidence_unit="evidence.service", evidence_time=13.0)


def test_an_action_unit_is_started_instead_of_the_units_restart() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(890.0)
        assert watch.units.jobs == [("start", "restart-container.service")]
        assert watch.server.restarts == [pytest.approx(RESTART_AT, abs=1.0)]

    watching(HANG, work, action_unit="restart-container.service")


def test_a_failed_unit_is_started_again_where_that_is_wanted() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(600.0)
        assert watch.units.jobs[:2] == [("reset-failed", "vllm.service"), ("start", "vllm.service")]

    gone = '[[phase]]\nfor = "10m"\nunit = "failed"\nmetrics = "refused"\nhealth = "refused"\nmodels = "refused"\n'
    watching(BUSY + gone + 'question = "refused"\n', work, revive=True)


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [BUSY + 'metrics = "timeout"\n', QUIET + 'question = "timeout"\n'], ids=["poll", "ask"]
)
def test_cancelling_ends_polls_and_questions_at_once(text: str) -> None:
    async def work(watch: Watch) -> None:
        loop = asyncio.get_running_loop()
        watching_on = loop.create_task(watch.watcher.run())
        await asyncio.sleep(61.0)
        ended = loop.time()
        watching_on.cancel()
        await asyncio.gather(watching_on, return_exceptions=True)
        await watch.watcher.close()
        assert loop.time() == ended
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert all(engine.running == (2 if "running" in text else 0) for engine in watch.server.numbers())

    watching(text, work)


# --- over real sockets -----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def real_watch(text: str, heard: Heard, **settings: Setting) -> AsyncIterator[tuple[Watcher, RealServer]]:
    server = Server(scenario.loads(text), counted_from_now(time.monotonic))
    async with asyncio.timeout(LONG), RealServer(server) as real:
        config = load.from_table(
            {"name": "real", "url": real.url, "kind": "vllm", "unit": "vllm.service", **settings}, file="test"
        )
        rules = dataclasses.replace(
            schema.settings(config, schema.Daemon(), dialect_of(config.kind)), interval=0.05, question_every=0.1
        )
        world = World(Http(), SimManager(server), HostClock(), Flag, lambda: None)
        watcher = Watcher(config, rules, dialect_of(config.kind), world, Host(), heard)
        try:
            yield watcher, real
        finally:
            await watcher.close()


def test_a_real_server_is_watched_and_asked_and_its_key_is_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        heard = Heard(Played("real"), HostClock())
        async with real_watch(QUIET + 'question = "ok 10ms"\n', heard, api_key_file=key_file(tmp_path)) as (watcher, _):
            watching_on = asyncio.ensure_future(watcher.run())
            while not heard.answers:  # noqa: ASYNC110  a list is no event
                await asyncio.sleep(0.01)
            watching_on.cancel()
            await asyncio.gather(watching_on, return_exceptions=True)
        assert heard.answers[0].outcome is Outcome.ANSWERED
        assert heard.played.faults == []
        assert KEY not in repr((heard.played, heard.answers, heard.readings))

    asyncio.run(main())
    assert KEY not in caplog.text


def test_units_that_are_not_configured_are_not_asked_for() -> None:
    async def work(watch: Watch) -> None:
        async def facts(unit: str) -> UnitFacts:
            raise AssertionError(unit)

        watch.units.facts = facts  # type: ignore[method-assign]
        await watch.for_seconds(20.0)
        assert watch.heard.played.faults == []
        assert watch.heard.readings[-1].unit is None

    watching(BUSY, work, unit="")
