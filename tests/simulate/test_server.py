"""The simulated server: its numbers, its lives, its answers, and its page against a real one."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from factory_watchdog.core.model import Flag, JobResult, UnitFacts
from factory_watchdog.simulate import clock, lives, scenario
from factory_watchdog.simulate.exposition import Numbers, Page, number
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.server import EPOCH, Server

USED = dict(zip(("steps", "prompt", "tokens", "finished"), lives.USED, strict=True))
MOVING = "running = 4\nsteps = 20.0\ntokens = 80.0\nprompt = 5.0\nfinished = 0.1\n"
FROZEN = "steps = 0.0\ntokens = 0.0\nprompt = 0.0\nfinished = 0.0\n"
REFUSED = 'metrics = "refused"\nhealth = "refused"\n'


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def phase(length: str, text: str = "") -> str:
    return f'[[phase]]\nfor = "{length}"\n{text}\n'


def serve(*phases: str, server: str = "") -> tuple[Server, Time]:
    time = Time()
    text = f'[server]\nload_time = "3m"\n{server}\n' + "".join(phases)
    return Server(scenario.loads(text), time), time


def get(server: Server, path: str) -> object:
    """What a GET comes to: the fault, the status where it is not 200, else the body."""
    answer = server.respond("GET", path, {}, b"")
    return answer.fault or (answer.body if answer.status == 200 else answer.status)


def ask(server: Server, path: str = "/v1/chat/completions", body: object = None, rank: str | None = None) -> object:
    """What a question comes to: the fault, the status where it is not 200, else the usage."""
    headers = {} if rank is None else {"x-data-parallel-rank": rank}
    answer = server.respond("POST", path, headers, json.dumps(body or {"max_tokens": 1}).encode())
    if answer.fault or answer.status != 200:
        return answer.fault or answer.status
    return json.loads(answer.body)["usage"]["completion_tokens"]


def shown(server: Server) -> dict[str, dict[str, float]]:
    """The metrics page, read by prometheus_client: series of each engine, those of one metric added up."""
    page = get(server, "/metrics")
    assert isinstance(page, bytes)
    told: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            engine = told.setdefault(sample.labels.get("engine", ""), {})
            engine[sample.name] = engine.get(sample.name, 0.0) + sample.value
    return told


def steps(server: Server, engine: int = 0) -> float:
    return server.numbers()[engine].steps


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_counters_are_the_exact_integrals_of_the_rates_at_any_time() -> None:
    server, time = serve(phase("1m", MOVING), phase("1m", FROZEN), phase("1m", MOVING))
    for now, played in (
        (0.0, 0.0),
        (0.5, 0.5),
        (60.0, 60.0),
        (90.0, 60.0),
        (119.9, 60.0),
        (150.0, 90.0),
        (500.0, 440.0),
    ):
        time.now = now
        (engine,) = server.numbers()
        assert engine.steps == USED["steps"] + 20.0 * played
        assert engine.tokens == USED["tokens"] + 80.0 * played
        assert engine.prompt == USED["prompt"] + 5.0 * played
        assert engine.finished == pytest.approx(USED["finished"] + 0.1 * played, abs=1e-5)


def test_a_frozen_engine_shows_the_very_same_page() -> None:
    server, time = serve(phase("17s", MOVING.replace("0.1", "0.137")), phase("10m", FROZEN))
    time.now = 20.0
    before = get(server, "/metrics")
    time.now = 400.3
    assert get(server, "/metrics") == before


def test_kv_usage_goes_from_one_level_to_another_and_stays_there() -> None:
    server, time = serve(phase("100s", "kv = [0.2, 0.6]"), phase("1m"))
    levels = []
    for time.now in (0.0, 25.0, 50.0, 100.0, 150.0):
        levels.append(server.numbers()[0].kv)
    assert levels == pytest.approx([0.2, 0.3, 0.4, 0.6, 0.6])


def test_nothing_is_counted_while_the_host_sleeps() -> None:
    server, time = serve(phase("10s", MOVING), phase("10s", 'suspend = "1h"'))
    time.now = 3600.0
    assert steps(server) == USED["steps"] + 200.0
    time.now = 3615.0
    assert steps(server) == USED["steps"] + 300.0


def test_a_fresh_server_has_counted_nothing() -> None:
    server, _ = serve(phase("1m"), server="fresh = true")
    assert server.numbers() == (Numbers(),)
    assert get(server, "/health") == b""


def test_overrides_are_for_one_engine() -> None:
    server, time = serve(phase("1m", MOVING + "engine = { 1 = { running = 8, steps = 0.0 } }"), server="engines = 2")
    time.now = 10.0
    assert [(e.running, e.steps - USED["steps"]) for e in server.numbers()] == [(4.0, 200.0), (8.0, 0.0)]


def test_cpu_is_what_the_cores_add_up_to() -> None:
    server, time = serve(phase("10s"), phase("10s", "cpu = 1.0"), phase("10s", "cpu = 0.5"))
    assert server.cpu() is None
    time.now = 15.0
    first = server.cpu()
    time.now = 25.0
    second = server.cpu()
    assert first is not None
    assert second is not None
    assert second - first == pytest.approx(7.5)


# --- lives -----------------------------------------------------------------------------------------------------------


def test_another_instance_is_a_life_that_loads_and_then_plays_its_phase() -> None:
    server, time = serve(phase("1m", MOVING), phase("10m", MOVING + "instance = 2"))
    before = server.life
    time.now = 60.0
    after = server.life
    assert (after.invocation, after.main_pid, after.main_start) != (
        before.invocation,
        before.main_pid,
        before.main_start,
    )
    assert after.start_time == EPOCH + 60.0
    assert server.restarts == []
    time.now = 239.9
    assert get(server, "/metrics") == get(server, "/health") == ask(server) == "refused"
    time.now = 250.0
    assert steps(server) == 200.0
    assert shown(server)[""]["process_start_time_seconds"] == EPOCH + 60.0


def test_totals_are_carried_over_where_the_folder_is_used_again() -> None:
    server, time = serve(phase("1m", MOVING), phase("10m", MOVING + "instance = 2\ncarry_counters = true"))
    time.now = 250.0
    assert steps(server) == USED["steps"] + 20.0 * 60 + 20.0 * 10


def test_after_a_restart_that_works_it_is_idle_to_the_end_of_the_phase() -> None:
    frozen = FROZEN + 'kv = 0.4\nquestion = "timeout"'
    server, time = serve(phase("1m", MOVING), phase("10m", frozen), phase("10m", MOVING))
    time.now = 100.0
    server.restart()
    time.now = 279.9
    assert get(server, "/health") == "refused"
    time.now = 280.0
    assert server.numbers() == (Numbers(),)
    assert ask(server) == 1
    time.now = 659.0
    assert (server.numbers()[0].running, steps(server)) == (0.0, 1.0)
    time.now = 670.0
    assert (server.numbers()[0].running, steps(server)) == (4.0, 201.0)
    assert server.restarts == [100.0]


def test_a_load_that_outlasts_the_phase_ends_in_the_next_one_as_written() -> None:
    server, time = serve(phase("2m", FROZEN), phase("10m", "running = 3\nsteps = 0.0"))
    time.now = 100.0
    server.restart()
    time.now = 279.0
    assert get(server, "/health") == "refused"
    time.now = 280.0
    assert server.numbers()[0].running == 3.0


def test_a_new_life_that_hangs_again_plays_the_phase_it_came_up_in() -> None:
    server, time = serve(phase("1h", "running = 4"), server='restart = "hangs-again"')
    server.restart()
    time.now = 180.0
    assert server.numbers() == (Numbers(running=4.0),)


def test_a_restart_after_which_it_never_answers() -> None:
    server, time = serve(phase("1m"), phase("1h"), phase("1h", "instance = 2"), server='restart = "never-answers"')
    server.restart()
    time.now = 3600.0
    assert get(server, "/health") == "refused"
    time.now = 3660.0 + 180.0  # somebody else knows how
    assert get(server, "/health") == b""


# --- questions -------------------------------------------------------------------------------------------------------


def test_an_answered_question_counts_when_it_is_answered() -> None:
    server, time = serve(phase("1m", 'running = 2\nquestion = "ok 2s"'))
    assert ask(server) == 1
    time.now = 1.9
    assert (server.numbers()[0].running, steps(server)) == (3.0, USED["steps"])
    time.now = 2.0
    (engine,) = server.numbers()
    assert engine.running == 2.0
    gained = (engine.steps, engine.prompt, engine.tokens, engine.finished)
    assert [now - before for now, before in zip(gained, lives.USED, strict=True)] == [1.0, 4.0, 1.0, 1.0]


@pytest.mark.parametrize("rate", [0.1, 0.137, 0.3, 1.7])
def test_exactly_one_step_is_added_to_counters_that_have_a_fraction(rate: float) -> None:
    server, time = serve(phase("7s", f"steps = {rate}"), phase("1h", "steps = 0.0"), server="fresh = true")
    time.now = 10.0
    seen = [steps(server)]
    for _ in range(20):
        ask(server)
        time.now += 1.0
        seen.append(steps(server))
    assert [after - before for before, after in itertools.pairwise(seen)] == [1.0] * 20


def test_an_unanswered_question_is_running_until_its_client_goes() -> None:
    server, _ = serve(phase("1m", 'question = "timeout"'))
    answer = server.respond("POST", "/v1/completions", {}, b"{}")
    assert answer.fault == "timeout"
    assert server.numbers()[0].running == 1.0
    server.give_up(answer)
    assert server.numbers()[0].running == 0.0
    assert steps(server) == USED["steps"]


def test_a_question_given_up_before_its_answer_counts_nothing() -> None:
    server, time = serve(phase("1m", 'question = "ok 9s"'))
    server.give_up(server.respond("POST", "/v1/completions", {}, b"{}"))
    time.now = 10.0
    assert (server.numbers()[0].running, steps(server)) == (0.0, USED["steps"])


def test_an_old_release_keeps_what_was_given_up_until_its_next_step() -> None:
    server, time = serve(
        phase("1m", 'question = "timeout"'), phase("1m", 'question = "ok 1s"'), server='version = "0.9.2"'
    )
    server.give_up(server.respond("POST", "/v1/completions", {}, b"{}"))
    time.now = 60.0
    assert server.numbers()[0].running == 1.0
    ask(server)
    assert server.numbers()[0].running == 2.0
    time.now = 61.0
    assert server.numbers()[0].running == 0.0


def test_a_question_goes_to_the_rank_that_it_is_pinned_to_or_else_to_the_least_loaded() -> None:
    server, time = serve(
        phase("1m", 'running = 2\nengine = { 0 = { running = 8, question = "timeout" } }'), server="engines = 2"
    )
    assert ask(server, rank="0") == "timeout"
    assert ask(server) == ask(server, rank="1") == 1
    assert ask(server, rank="2") == ask(server, rank="x") == 400
    time.now = 1.0
    assert [(e.running, e.steps - USED["steps"]) for e in server.numbers()] == [(9.0, 0.0), (2.0, 2.0)]


CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


@pytest.mark.parametrize(
    ("server", "path", "body", "comes_to"),
    [
        ("", CHAT, {"max_tokens": 1}, 1),
        ("", CHAT, {"max_completion_tokens": 1}, 1),
        ("", COMPLETION, {"max_tokens": 1}, 1),
        ("", EMBEDDING, {"input": "x"}, 404),
        ("template = false", CHAT, {"max_tokens": 1}, 400),
        ("template = false", COMPLETION, {"max_tokens": 1}, 1),
        ('answers = ["embedding"]', EMBEDDING, {"input": "x"}, 0),
        ('answers = ["embedding"]', CHAT, {"max_tokens": 1}, 404),
        ('answers = ["embedding"]', COMPLETION, {"max_tokens": 1}, 404),
        ('answers = ["chat-completion-tokens"]', CHAT, {"max_tokens": 1}, 400),
        ('answers = ["chat-completion-tokens"]', CHAT, {"max_completion_tokens": 1}, 1),
    ],
)
def test_the_kinds_of_question_that_it_can_answer(server: str, path: str, body: object, comes_to: object) -> None:
    assert ask(serve(phase("1m"), server=server)[0], path, body) == comes_to


@pytest.mark.parametrize(
    ("words", "comes_to"), [("status 503", 503), ("status 401", 401), ("refused", "refused"), ("empty", 1)]
)
def test_words_for_questions(words: str, comes_to: object) -> None:
    assert ask(serve(phase("1m", f'question = "{words}"'))[0]) == comes_to


def test_an_empty_answer_has_no_text_and_a_token() -> None:
    server, _ = serve(phase("1m", 'question = "empty"'))
    answer = json.loads(server.respond("POST", CHAT, {}, b"{}").body)
    assert answer["choices"][0]["message"]["content"] is None
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}


# --- endpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "comes_to"),
    [
        ("ok", b""),
        ("timeout", "timeout"),
        ("refused", "refused"),
        ("reset", "reset"),
        ("status 500", 500),
        ("empty", b""),
    ],
)
def test_words_for_endpoints(words: str, comes_to: object) -> None:
    assert get(serve(phase("1m", f'health = "{words}"'))[0], "/health") == comes_to


def test_slow_and_garbage() -> None:
    server, _ = serve(phase("1m", 'metrics = "slow 8s"\nhealth = "garbage"'))
    assert server.respond("GET", "/metrics", {}, b"").delay == 8.0
    garbage = server.respond("GET", "/health", {}, b"").body
    with pytest.raises(UnicodeDecodeError):
        garbage.decode()


def test_an_endpoint_that_refuses_alone_leaves_the_others_open() -> None:
    server, _ = serve(phase("1m", 'health = "refused"'))
    assert get(server, "/health") == "refused"
    assert isinstance(get(server, "/metrics"), bytes)
    assert ask(server) == 1


def test_a_port_on_which_health_and_metrics_refuse_is_closed_for_everything() -> None:
    server, _ = serve(phase("1m", REFUSED))
    assert [get(server, path) for path in ("/v1/models", "/is_paused", "/version")] == ["refused"] * 3
    assert ask(server) == "refused"


@pytest.mark.parametrize(
    ("text", "is_paused", "is_sleeping"),
    [
        ("", False, False),
        ("paused = true", True, True),
        ("asleep = true", False, True),
        ('paused = "absent"\nasleep = true', 404, 404),
        ('paused = true\nmetrics = "timeout"\nhealth = "timeout"', "timeout", "timeout"),
    ],
)
def test_pause_signs(text: str, is_paused: object, is_sleeping: object) -> None:
    server, _ = serve(phase("1m", text))
    for path, says in (("/is_paused", is_paused), ("/is_sleeping", is_sleeping)):
        answer = get(server, path)
        assert says == (json.loads(answer)[path[1:]] if isinstance(answer, bytes) else answer)


def test_what_is_not_there() -> None:
    server, _ = serve(phase("1m"))
    assert get(server, "/slots") == 404
    assert server.respond("POST", "/metrics", {}, b"").status == 405
    assert server.respond("GET", CHAT, {}, b"").status == 405


def test_the_model_that_it_serves_is_the_configured_one() -> None:
    server = Server(scenario.loads(phase("1m") + '[backend]\nmodel = "m"'), Time())
    models = get(server, "/v1/models")
    assert isinstance(models, bytes)
    assert json.loads(models)["data"][0]["id"] == "m"
    assert b'model_name="m"' in server.respond("GET", "/metrics", {}, b"").body


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_tells_what_the_numbers_are() -> None:
    server, _ = serve(phase("1m", "running = 3\nwaiting = 2\nkv = 0.5\nasleep = true"), server="engines = 2")
    told = shown(server)
    assert set(told) == {"", "0", "1"}
    for engine in ("0", "1"):
        assert told[engine]["vllm:num_requests_running"] == 3.0
        assert told[engine]["vllm:num_requests_waiting"] == 2.0
        assert told[engine]["vllm:num_requests_waiting_by_reason"] == 2.0
        assert told[engine]["vllm:kv_cache_usage_perc"] == 0.5
        assert told[engine]["vllm:iteration_tokens_total_count"] == USED["steps"]
        assert told[engine]["vllm:iteration_tokens_total_sum"] == USED["tokens"] + USED["prompt"]
        assert told[engine]["vllm:prompt_tokens_total"] == USED["prompt"]
        assert told[engine]["vllm:generation_tokens_total"] == USED["tokens"]
        assert told[engine]["vllm:request_success_total"] == USED["finished"]
        assert "vllm:gpu_cache_usage_perc" not in told[engine]
    page = get(server, "/metrics")
    assert isinstance(page, bytes)
    assert b'engine="1",model_name="simulated",sleep_state="awake"} 0.0' in page
    assert b'engine="1",model_name="simulated",sleep_state="weights_offloaded"} 1.0' in page
    assert 45_000 < len(page) / 1.7 < 55_000


NAMES = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "num_requests_waiting_by_reason", "engine_sleep_state")


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.8.5", {"gpu_cache_usage_perc"}),
        ("0.9.2", {"gpu_cache_usage_perc", "kv_cache_usage_perc"}),
        ("0.10.2", {"gpu_cache_usage_perc", "kv_cache_usage_perc"}),
        ("0.11.2", {"kv_cache_usage_perc", "engine_sleep_state"}),
        ("0.19.1", {"kv_cache_usage_perc", "engine_sleep_state"}),
        ("0.20.2", {"kv_cache_usage_perc", "engine_sleep_state", "num_requests_waiting_by_reason"}),
    ],
)
def test_the_names_of_each_release(version: str, names: set[str]) -> None:
    told = shown(serve(phase("1m"), server=f'version = "{version}"')[0])["0"]
    assert {name for name in NAMES if f"vllm:{name}" in told} == names


def test_multi_process_metrics() -> None:
    server, time = serve(
        phase("1m"), phase("1m", "running = 1"), phase("1m", "running = 0"), server='api_server = "multi"\nfresh = true'
    )
    gauges = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"}
    told = shown(server)
    assert told["0"]["vllm:generation_tokens_total"] == 0.0
    assert not gauges & set(told["0"])
    assert not [
        name for series in told.values() for name in series if name.startswith("process_") or name.endswith("_created")
    ]
    time.now = 60.0
    assert gauges <= set(shown(server)["0"])
    time.now = 120.0
    assert gauges <= set(shown(server)["0"])


def test_a_question_that_was_never_answered_brings_no_gauges() -> None:
    server, _ = serve(phase("1m", 'question = "timeout"'), server='api_server = "multi"\nfresh = true')
    assert ask(server) == "timeout"
    assert "vllm:num_requests_running" not in shown(server)["0"]


def test_old_multi_process_metrics_have_the_kv_gauge_once_a_process() -> None:
    server, _ = serve(phase("1m", "running = 1\nkv = 0.4"), server='api_server = "multi"\nversion = "0.9.2"')
    page = get(server, "/metrics")
    assert isinstance(page, bytes)
    lines = [line for line in page.decode().splitlines() if line.startswith("vllm:kv_cache_usage_perc{")]
    assert lines == [
        'vllm:kv_cache_usage_perc{engine="0",model_name="simulated",pid="101"} 0.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="simulated",pid="102"} 0.4',
    ]


def test_no_start_time_where_it_is_not_exported() -> None:
    assert "process_start_time_seconds" not in shown(serve(phase("1m"), server="start_time = false")[0])[""]


def test_two_servers_behind_one_address_show_themselves_in_turn() -> None:
    server, _ = serve(phase("1m", 'counters = "alternate"'))
    first, second, third = (shown(server) for _ in range(3))
    assert first == third
    assert first[""]["process_start_time_seconds"] != second[""]["process_start_time_seconds"]
    assert first["0"]["vllm:generation_tokens_total"] < second["0"]["vllm:generation_tokens_total"]


@pytest.mark.parametrize("name", ["plain", 'with "quotes"', "back\\new", "brace}, comma"])
def test_any_model_name_is_read_back(name: str) -> None:
    page = Page((0, 9, 2), multi=True, model=name).render([Numbers()], 0.0).decode()
    labels = {s.labels.get("model_name") for f in text_string_to_metric_families(page) for s in f.samples}
    assert labels == {None, name}


@pytest.mark.parametrize("value", [0.0, 0.25, 4.0, 123456.5, 999999.0, 2e6, 1234567.25, 1.5e9, 1.79607063972e9, 1.5e12])
def test_numbers_are_written_as_the_python_client_writes_them(value: float) -> None:
    assert number(value) == floatToGoString(value)


# --- what is around it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "at", "flag"),
    [
        ("none", 100.0, Flag()),
        ("locked", 100.0, Flag(held=True, why="a process holds a lock on it", since=60.0)),
        ("locked", 9999.0, Flag(held=True, why="a process holds a lock on it", since=60.0)),
        ("touched", 100.0, Flag(held=True, why="touched by hand", since=60.0)),
        ("touched", 7260.0, Flag(stale=True, why="left behind", since=60.0)),
        ("stale", 100.0, Flag(stale=True, why="left behind", since=60.0)),
    ],
)
def test_the_busy_flag(word: str, at: float, flag: Flag) -> None:
    server, time = serve(phase("1m"), phase("1m", f'flag = "{word}"'), phase("1m"))
    time.now = at
    assert server.flag(ttl=7200.0) == flag


def test_the_wall_clock_steps_and_the_start_time_does_not() -> None:
    server, time = serve(phase("1m"), phase("1m", 'clock_step = "1h"'), phase("1m", 'clock_step = "-1h"'))
    start, walls = server.life.start_time, []
    for time.now in (30.0, 90.0, 150.0):
        walls.append(server.wall() - EPOCH)
    assert walls == [30.0, 3690.0, 150.0]
    assert server.life.start_time == start


def managed(
    work: Callable[[SimManager, Server], Awaitable[None]], *phases: str, backend: str = "", server: str = ""
) -> None:
    """Do `work` with a server and its manager in virtual time."""

    async def main() -> None:
        text = f'[backend]\n{backend}\n[server]\nload_time = "3m"\n{server}\n' + "".join(phases)
        made = Server(scenario.loads(text), asyncio.get_running_loop().time)
        await work(SimManager(made), made)

    clock.run(main)


def test_the_manager_shows_the_unit_and_restarts_it() -> None:
    async def work(manager: SimManager, server: Server) -> None:
        before = await manager.facts("x.service")
        assert (before.told, before.active, before.job, before.cpu) == (True, "active", 0, None)
        assert before.control_group == "/system.slice/x.service"
        old = await manager.processes("/system.slice/x.service")
        assert old[0] == (before.main_pid, before.main_start)
        job = asyncio.create_task(manager.try_restart("x.service", 100.0))
        await asyncio.sleep(0)
        assert (await manager.facts("x.service")).job
        assert await job == (JobResult.DONE, "")
        after = await manager.facts("x.service")
        assert (after.active, after.job) == ("active", 0)
        assert after.invocation != before.invocation
        assert after.main_pid != before.main_pid
        assert await manager.left_over(old) == ()
        assert server.restarts == [0.0]
        assert server.loading

    managed(work, phase("1h"))


@pytest.mark.parametrize("unit", ["inactive", "failed"])
def test_a_unit_that_is_down_stays_down_unless_it_is_started(unit: str) -> None:
    async def work(manager: SimManager, server: Server) -> None:
        assert await manager.facts("x.service") == UnitFacts(
            True, unit, {"inactive": "dead", "failed": "failed"}[unit], 0, server.life.invocation
        )
        assert await manager.try_restart("x.service", 100.0) == (JobResult.DONE, "")
        assert server.restarts == []
        assert await manager.reset_failed("x.service") == (JobResult.DONE, "")
        assert await manager.start("x.service", 100.0) == (JobResult.DONE, "")
        assert len(server.restarts) == 1
        assert (await manager.facts("x.service")).active == "active"

    managed(work, phase("1h", f'unit = "{unit}"\n{REFUSED}'))


def test_a_job_is_never_overruled() -> None:
    async def work(manager: SimManager, server: Server) -> None:
        assert (await manager.facts("x.service")).job
        assert (await manager.try_restart("x.service", 100.0))[0] is JobResult.FAILED
        assert server.restarts == []

    managed(work, phase("1h", 'unit = "deactivating"'))


def test_a_job_that_never_ends_keeps_the_old_processes() -> None:
    async def work(manager: SimManager, server: Server) -> None:
        before = await manager.facts("x.service")
        assert (await manager.try_restart("x.service", 100.0))[0] is JobResult.NEVER_ENDED
        assert asyncio.get_running_loop().time() == 100.0
        after = await manager.facts("x.service")
        assert (after.active, after.main_pid, bool(after.job)) == ("deactivating", before.main_pid, True)

    managed(work, phase("1h"), server='restart = "never-ends"')


def test_a_restart_that_fails() -> None:
    async def work(manager: SimManager, server: Server) -> None:
        assert (await manager.try_restart("x.service", 100.0))[0] is JobResult.FAILED
        assert (await manager.facts("x.service")).active == "failed"
        assert get(server, "/health") == "refused"

    managed(work, phase("1h"), server='restart = "fails"')


def test_an_orphan_outlives_the_restart() -> None:
    async def work(manager: SimManager, server: Server) -> None:
        old = await manager.processes("")
        await manager.try_restart("x.service", 100.0)
        assert await manager.left_over(old) == (old[1][0],)

    managed(work, phase("1h"), server='restart = "leaves-orphan"')


def test_units_that_act_and_units_that_only_look() -> None:
    async def work(manager: SimManager, server: Server) -> None:
        assert await manager.start("look.service", 60.0) == (JobResult.DONE, "")
        assert (manager.evidence_units, server.restarts) == (["look.service"], [])
        assert await manager.start("act.service", 60.0) == (JobResult.DONE, "")
        assert server.restarts == [0.0]

    managed(work, phase("1h"), backend='action_unit = "act.service"\nevidence_unit = "look.service"')


def test_a_change_of_the_present_keeps_what_was_counted() -> None:
    server, time = serve(phase("1m", MOVING + "kv = [0.0, 0.6]"), phase("1h", "running = 9"))
    time.now = 30.0
    server.change(scenario.present(1)({"running": 2, "steps": 1.0}))
    time.now = 100.0
    (engine,) = server.numbers()
    assert (engine.running, engine.steps) == (2.0, USED["steps"] + 600.0 + 70.0)


def test_a_change_of_the_present_ends_the_idleness_after_a_restart() -> None:
    server, time = serve(phase("1h", "running = 9"))
    server.restart()
    time.now = 200.0
    assert server.numbers()[0].running == 0.0
    server.change(scenario.present(1)({"running": 2}))
    assert server.numbers()[0].running == 2.0
