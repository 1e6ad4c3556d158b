"""The watch where another may have the port: nothing is restarted, no key goes there, and a look comes first."""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import json
import pathlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from factory_watchdog.config import load, schema
from factory_watchdog.core.model import Alert, JobResult, Outcome, Owner, Port, Reading, State, UnitFacts
from factory_watchdog.engines import dialect_of
from factory_watchdog.engines.dialect import MODELS_PATH
from factory_watchdog.ports import Host, World
from factory_watchdog.simulate import clock, scenario
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.played import Collector, Played, watch_for
from factory_watchdog.simulate.script import Timeline
from factory_watchdog.simulate.server import Server
from factory_watchdog.simulate.transport import SimTransport
from factory_watchdog.watcher import MODELS_KEPT, Watcher
from factory_watchdog.world.clock import HostClock
from factory_watchdog.world.http import Http

QUIET = '[[phase]]\nfor = "20m"\n'
BUSY = '[[phase]]\nfor = "5m"\nrunning = 2\nsteps = 5.0\ntokens = 10.0\nfinished = 0.1\nkv = 0.5\n'
FROZEN = '[[phase]]\nfor = "15m"\nsteps = 0.0\ntokens = 0.0\nfinished = 0.0\nquestion = "timeout"\n'
HANG = BUSY + FROZEN
KEY = "sk-very-secret"
OURS = Port(Owner.UNIT)
FOREIGN = Port(Owner.FOREIGN, "port 8000 is listened on by ssh.service, not by vllm.service")
CONTAINER = Port(Owner.CONTAINER, "port 8000 is listened on by a container or its engine (docker.service)")


class Heard(Collector):
    """Keeps warnings, answers and readings too."""

    def __init__(self, played: Played, now: Any) -> None:
        super().__init__(played, now)
        self.played = played
        self.warnings: list[str] = []
        self.outcomes: list[Outcome] = []
        self.readings: list[Reading] = []

    def polled(self, name: str, backend: Any) -> None:
        self.readings.append(backend.reading)

    def asked(self, name: str, question: Any, answer: Any) -> None:
        self.outcomes.append(answer.outcome)

    def warned(self, name: str, what: str) -> None:
        self.warnings.append(what)


class Manager(SimManager):
    """A service manager that says whose the port is, and keeps what happened in its order in `log`."""

    port = OURS

    def __init__(self, server: Server, log: list[str]) -> None:
        super().__init__(server)
        self.log = log

    async def facts(self, unit: str) -> UnitFacts:
        await asyncio.sleep(0.2)  # longer than a page takes
        return await super().facts(unit)

    async def port_owner(self, url: str, unit: str, control_group: str | None) -> Port:
        assert (unit, control_group) == ("vllm.service", "/system.slice/vllm.service")
        self.log.append("look")
        return self.port

    async def try_restart(self, unit: str, deadline: float) -> tuple[JobResult, str]:
        self.log.append("restart")
        return await super().try_restart(unit, deadline)


class Recorded(httpx.AsyncBaseTransport):
    """Passes requests on; each is in `log`, marked where it carries a key."""

    def __init__(self, inner: httpx.AsyncBaseTransport, log: list[str]) -> None:
        self._inner = inner
        self._log = log

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._log.append(request.url.path + (" with the key" if "Authorization" in request.headers else ""))
        return await self._inner.handle_async_request(request)


@dataclasses.dataclass
class Watch:
    watcher: Watcher
    heard: Heard
    server: Server
    units: Manager
    log: list[str]

    async def for_seconds(self, seconds: float) -> None:
        await watch_for(self.watcher, seconds)

    def alerts(self) -> list[Alert]:
        return [raised.alert for raised in self.heard.played.alerts]


def watching(text: str, work: Callable[[Watch], Awaitable[None]], **settings: Any) -> None:
    """Do `work` with a watch over the server of the scenario `text`, in virtual time."""

    async def main() -> None:
        table = {"kind": "vllm", "unit": "vllm.service", **settings}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        played = scenario.loads(f"[backend]\n{lines}{text}")
        config = load.from_table(played.backend, file="test")
        now = clock.ScriptedClock(Timeline(played.phases), asyncio.get_running_loop().time)
        server, log = Server(played, now.boottime), list[str]()
        units, heard = Manager(server, log), Heard(Played("test"), now)
        world = World(Http(Recorded(SimTransport(server), log)), units, now, lambda: server.flag(60), lambda: None)
        dialect = dialect_of(config.kind)
        rules = schema.settings(config, schema.Daemon(), dialect)
        await work(Watch(Watcher(config, rules, dialect, world, Host(), heard), heard, server, units, log))

    clock.run(main)


@pytest.fixture
def key_file(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o600)
    return str(path)


def keys(log: list[str]) -> list[str]:
    return [entry for entry in log if entry.endswith("with the key")]


# --- the restart -----------------------------------------------------------------------------------------------------


def test_no_restart_while_another_unit_has_the_port() -> None:
    async def work(watch: Watch) -> None:
        watch.units.port = FOREIGN
        await watch.for_seconds(900.0)
        assert watch.server.restarts == []
        assert watch.alerts() == [Alert.FOREIGN_PROCESS, Alert.HUNG, Alert.HELD]
        assert FOREIGN.detail in watch.heard.played.alerts[-1].why
        assert watch.heard.played.changes[-1].state is State.HUNG

    watching(HANG, work)


def test_a_port_that_is_taken_after_the_first_look_is_seen_before_a_restart() -> None:
    async def work(watch: Watch) -> None:
        watching_on = asyncio.ensure_future(watch.for_seconds(900.0))
        await asyncio.sleep(440.0)  # in the confirmation
        assert watch.heard.readings[-1].port is OURS
        watch.units.port = FOREIGN
        await watching_on
        assert watch.server.restarts == []
        assert Alert.HELD in watch.alerts()

    watching(HANG, work)


def test_a_restart_rests_on_a_look_of_its_own_reading() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(475.0)
        before = watch.log[: watch.log.index("restart")]
        readings = [i for i, entry in enumerate(before) if entry == "/metrics"]
        assert "look" in before[readings[-1] :], "the look of this reading comes after its pages were asked for"
        assert "look" not in before[readings[1] : readings[-6]], "of a life that is known, and not suspected, none"

    watching(HANG, work)


def test_a_busy_backend_costs_one_look_and_no_other_request() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(250.0)
        assert watch.log.count("look") == 1
        assert set(watch.log) == {"look", "/health", "/metrics"}
        assert {r.port for r in watch.heard.readings} == {OURS}

    watching(BUSY, work, model="simulated")


def test_verify_owner_off_looks_at_nothing() -> None:
    async def work(watch: Watch) -> None:
        watch.units.port = FOREIGN
        await watch.for_seconds(600.0)
        assert "look" not in watch.log
        assert len(watch.server.restarts) == 1

    watching(HANG, work, verify_owner=False)


def test_a_container_is_warned_of_once_and_restarted() -> None:
    async def work(watch: Watch) -> None:
        watch.units.port = CONTAINER
        await watch.for_seconds(475.0)
        assert watch.heard.warnings == [f"whose the port is cannot be told: {CONTAINER.detail}"]
        assert len(watch.server.restarts) == 1

    watching(HANG, work)


# --- the key ---------------------------------------------------------------------------------------------------------


def test_no_key_is_sent_to_another_unit_s_process(key_file: str) -> None:
    async def work(watch: Watch) -> None:
        watch.units.port = FOREIGN
        await watch.for_seconds(200.0)
        assert keys(watch.log) == []
        assert "/v1/chat/completions" not in watch.log
        assert set(watch.heard.outcomes) == {Outcome.DENIED}
        assert f"cannot be asked: no key is sent: {FOREIGN.detail}" in {
            raised.why for raised in watch.heard.played.alerts
        }
        assert KEY not in repr((watch.heard.played, watch.heard.readings))

    watching(QUIET, work, api_key_file=key_file)


def test_it_is_asked_again_once_the_port_is_the_unit_s(key_file: str) -> None:
    async def work(watch: Watch) -> None:
        watch.units.port = FOREIGN
        watching_on = asyncio.ensure_future(watch.for_seconds(600.0))
        await asyncio.sleep(200.0)
        watch.units.port = OURS
        await watching_on
        assert watch.heard.outcomes[-1] is Outcome.ANSWERED
        assert keys(watch.log)[0] == "/v1/models with the key"

    watching(QUIET, work, api_key_file=key_file)


@pytest.mark.parametrize("kind", ["openai", "auto"])
def test_the_look_comes_before_the_first_page_that_wants_the_key(kind: str, key_file: str) -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(5.0)
        assert watch.log[0] == "look"
        assert "/v1/models with the key" in watch.log

    watching(QUIET, work, kind=kind, api_key_file=key_file)


@pytest.mark.parametrize("kind", ["openai", "auto"])
def test_pages_of_another_unit_s_process_get_no_key(kind: str, key_file: str) -> None:
    async def work(watch: Watch) -> None:
        watch.units.port = FOREIGN
        await watch.for_seconds(60.0)
        assert MODELS_PATH in watch.log
        assert keys(watch.log) == []

    watching(QUIET, work, kind=kind, api_key_file=key_file)


def test_without_a_key_no_page_waits_for_the_look() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(5.0)
        assert watch.log[-1] == "look"

    watching(QUIET, work)


# --- the model -------------------------------------------------------------------------------------------------------


def test_models_are_read_only_where_a_restart_may_follow() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(475.0)
        told = [(r.began, r.models) for r in watch.heard.readings if r.models is not None]
        assert told
        assert {models for _, models in told} == {("simulated",)}
        assert min(began for began, _ in told) >= 420.0
        assert len(watch.server.restarts) == 1

    watching(HANG, work, model="simulated")


def test_without_a_configured_model_none_are_read() -> None:
    async def work(watch: Watch) -> None:
        await watch.for_seconds(475.0)
        assert all(r.models is None for r in watch.heard.readings)
        assert len(watch.server.restarts) == 1

    watching(HANG, work)


def test_no_restart_where_another_model_is_served() -> None:
    async def work(watch: Watch) -> None:
        watch.server.model = "llama4"
        await watch.for_seconds(900.0)
        assert watch.server.restarts == []
        assert watch.alerts() == [Alert.HUNG, Alert.HELD]
        assert watch.heard.played.alerts[-1].why == "held: wrong model on the port (llama4 served, not qwen3)"
        assert watch.heard.played.changes[-1].why.endswith("(llama4 served, not qwen3)")
        assert {r.models for r in watch.heard.readings[-20:]} == {("llama4",)}, "while held they are read as well"

    watching(HANG, work, model="qwen3")


@pytest.mark.parametrize("models", ["timeout", "status 500", "garbage", "refused"])
def test_a_list_of_models_that_does_not_come_holds_nothing(models: str) -> None:
    async def work(watch: Watch) -> None:
        watch.server.model = "llama4"
        await watch.for_seconds(520.0)
        assert len(watch.server.restarts) == 1

    watching(f'{BUSY}models = "{models}"\n{FROZEN}', work, model="qwen3")


class Lists(http.server.BaseHTTPRequestHandler):
    """A server whose list of models is `page`, with `status`."""

    page, status = b"", 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None:
        """Said to nobody."""


@pytest.fixture
def lists() -> Iterator[tuple[type[Lists], str]]:
    handler = type("Handler", (Lists,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def listed(*names: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in names]}).encode()


MANY = [f"adapter-{n}" for n in range(500)]


@pytest.mark.parametrize(
    ("page", "status", "models"),
    [
        (listed("mine"), 200, ("mine",)),
        (listed("base", "mine"), 200, ("mine", "base")),
        (listed("other"), 200, ("other",)),
        (listed("x\x1b[2J", 7, None, "other"), 200, ("other",)),
        (listed(*MANY, "mine"), 200, ("mine", *MANY[: MODELS_KEPT - 1])),
        (listed(), 200, None),
        (b"<html>", 200, None),
        (listed("other"), 401, None),
        (listed("other"), 404, None),
    ],
)
def test_what_is_kept_of_a_list_of_models(
    lists: tuple[type[Lists], str], page: bytes, status: int, models: tuple[str, ...] | None
) -> None:
    handler, url = lists
    handler.page, handler.status = page, status

    async def main() -> None:
        config = load.from_table({"name": "real", "url": url, "kind": "vllm", "model": "mine"}, file="test")
        dialect = dialect_of("vllm")
        world = World(Http(), None, HostClock(), lambda: None, lambda: None)  # type: ignore[arg-type, return-value]
        rules = schema.settings(config, schema.Daemon(), dialect)
        watcher = Watcher(config, rules, dialect, world, Host(), Heard(Played("real"), HostClock()))
        assert await watcher._models() == models
        await watcher.close()

    asyncio.run(main())
