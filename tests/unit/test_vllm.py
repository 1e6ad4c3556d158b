"""vLLM's pages and pause signs, from recordings of release 0.32.

Other releases are not recorded. Their pages are derived here from a recorded one, by renaming, dropping and adding the
series in which their sources differ.
"""

import gzip
import json
import pathlib
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factory_watchdog.core.model import NOT_ASKED, Form, Pause, Reply, Sample, Went
from factory_watchdog.engines import DIALECTS, vllm
from factory_watchdog.engines.dialect import Page

DATA = pathlib.Path(__file__).parent.parent / "data" / "vllm"

ALL_REQUIRED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:iteration_tokens_total_count",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc",
)


def page(name: str) -> str:
    return gzip.decompress((DATA / f"{name}.txt.gz").read_bytes()).decode()


def read(text: str) -> Page:
    return vllm.read(text.encode())


def only(text: str) -> Sample:
    """The sample of a page with one engine."""
    (sample,) = read(text).engines
    return sample


# --- recorded pages --------------------------------------------------------------------------------------------------

# running, waiting, steps, prompt, generated, kv, finished
RECORDED: dict[str, tuple[float | None, list[Sample]]] = {
    "idle": (1796070639.72, [Sample("0", 0, 0, 0, 0, 0, 0.0, 0)]),
    "busy": (1796073064.22, [Sample("0", 4, 0, 4582, 1616, 18318, 0.0021973326822718464, 4)]),
    "dp2_before_first_request": (
        None,
        [
            Sample(engine, None, None, 0, 0, 0, None, 0, missing=(ALL_REQUIRED[0], ALL_REQUIRED[1], ALL_REQUIRED[5]))
            for engine in "01"
        ],
    ),
    "no_log_stats": (1796072797.0, []),
    "litellm": (1796072590.76, []),
    "vllm_router": (None, []),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_page(name: str) -> None:
    start_time, engines = RECORDED[name]
    assert read(page(name)) == Page(known=bool(engines), start_time=start_time, engines=tuple(engines))


@pytest.mark.parametrize("name", [path.name.removesuffix(".txt.gz") for path in DATA.glob("*.txt.gz")])
def test_every_signal_of_an_engine_at_work_is_told(name: str) -> None:
    for sample in read(page(name)).engines:
        gauges_told = name != "dp2_before_first_request"
        assert (sample.missing == ()) == gauges_told
        assert sample.asleep is None


def test_a_lone_chunked_prefill_moves_kv_alone() -> None:
    first, second = only(page("chunked_prefill_1")), only(page("chunked_prefill_2"))
    assert first.running == second.running == 1
    for signal in ("waiting", "steps", "prompt", "generated", "finished"):
        assert getattr(first, signal) == getattr(second, signal)
    assert first.kv is not None
    assert second.kv is not None
    assert 0 < first.kv < second.kv < 1


def test_two_ranks_are_told_apart() -> None:
    told = read(page("dp2_busy"))
    assert [sample.engine for sample in told.engines] == ["0", "1"]
    assert all(sample.running and sample.steps for sample in told.engines)
    assert told.start_time is None  # multi-process metrics


def test_requests_that_wait_for_a_reason_are_not_counted_twice() -> None:
    text = page("saturated")
    assert 'reason="capacity"} 8.0' in text
    assert (only(text).running, only(text).waiting) == (4, 8)


def test_a_pause_does_not_show_in_the_metrics() -> None:
    paused = only(page("paused_keep"))
    assert (paused.running, paused.asleep) == (4, None)


def test_an_embedding_server_finishes_without_generating() -> None:
    sample = only(page("embedding"))
    assert (sample.generated, sample.missing) == (0, ())
    assert sample.finished
    assert sample.steps
    assert sample.prompt


# --- other releases, derived -----------------------------------------------------------------------------------------


def without(text: str, *names: str) -> str:
    """The page without the series of these metrics."""
    return "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith(tuple(f"{n}{{" for n in names))
    )


def v1_of_0_8_5(text: str) -> str:
    """The KV gauge has its old name; no sleep state, no reasons for waiting."""
    text = without(text, "vllm:engine_sleep_state", "vllm:num_requests_waiting_by_reason")
    return text.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


def v1_of_0_10_2(text: str) -> str:
    """Both KV gauges; with several API servers the new one once a process, of which the second heard nothing yet."""
    series = re.search(r"^vllm:kv_cache_usage_perc\{(.*)\} (.*)\n", text, re.MULTILINE)
    assert series
    labels, value = series.groups()
    return without(text, "vllm:engine_sleep_state", "vllm:kv_cache_usage_perc") + (
        f"vllm:gpu_cache_usage_perc{{{labels}}} {value}\n"
        f'vllm:kv_cache_usage_perc{{{labels},pid="41"}} {value}\n'
        f'vllm:kv_cache_usage_perc{{{labels},pid="42"}} 0.0\n'
    )


def v0_of_0_9_2(text: str) -> str:
    """No label `engine`; swapped requests; the old KV gauge."""
    text = v1_of_0_8_5(text).replace('engine="0",', "")
    return text + 'vllm:num_requests_swapped{model_name="tiny"} 2.0\n'


def v0_before_the_first_request(text: str) -> str:
    """No gauges yet, nothing finished yet."""
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_swapped")
    return without(v0_of_0_9_2(text), *gauges, "vllm:gpu_cache_usage_perc", "vllm:request_success_total")


BUSY = Sample("0", 4, 0, 4582, 1616, 18318, 0.0021973326822718464, 4)
DERIVED: dict[str, tuple[Callable[[str], str], Sample]] = {
    "V1 of 0.8.5": (v1_of_0_8_5, BUSY),
    "V1 of 0.10.2, several API servers": (
        v1_of_0_10_2,
        Sample("0", 4, 0, 4582, 1616, 18318, BUSY.kv and BUSY.kv / 2, 4),
    ),
    "V0 of 0.9.2": (v0_of_0_9_2, Sample("0", 6, 0, 4582, 1616, 18318, BUSY.kv, 4)),
    "V0 before the first request": (
        v0_before_the_first_request,
        Sample(
            "0", steps=4582, prompt=1616, generated=18318, missing=(ALL_REQUIRED[0], ALL_REQUIRED[1], ALL_REQUIRED[5])
        ),
    ),
    "the Rust front end": (lambda text: without(text, "vllm:engine_sleep_state"), BUSY),
}


@pytest.mark.parametrize(("derive", "sample"), DERIVED.values(), ids=DERIVED)
def test_a_page_of_another_release(derive: Callable[[str], str], sample: Sample) -> None:
    assert only(derive(page("busy"))) == sample


def test_a_kv_gauge_that_climbs_in_one_process_is_not_hidden_by_a_higher_one_in_another() -> None:
    def told(climbing: float) -> float | None:
        name = 'vllm:kv_cache_usage_perc{engine="0",'
        return only(f'{name}pid="41"}} 0.9\n{name}pid="42"}} {climbing}\n').kv

    assert told(0.1) == 0.5
    assert told(0.2) != told(0.1)


# --- one engine's series ---------------------------------------------------------------------------------------------


def engine_page(**replaced: str) -> str:
    """A small page of engine 0 with one series for each required metric; a keyword's text takes the value's place."""
    values = dict.fromkeys(ALL_REQUIRED, "1.0") | {f"vllm:{name}": value for name, value in replaced.items()}
    return "".join(f'{name}{{engine="0"}} {value}\n' for name, value in values.items())


def test_all_that_is_required_is_told() -> None:
    assert only(engine_page()) == Sample("0", 1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "one", ""])
@pytest.mark.parametrize("name", ALL_REQUIRED)
def test_a_required_signal_that_is_no_number_is_missing(name: str, value: str) -> None:
    assert only(engine_page(**{name.removeprefix("vllm:"): value})).missing == (name,)


def test_a_sum_beyond_all_numbers_is_not_told() -> None:
    text = 'vllm:prompt_tokens_total{engine="0",pid="1"} 1e308\n'
    assert only(text * 2).prompt is None


def test_an_engine_that_only_one_metric_names_is_an_engine() -> None:
    told = read('vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1\nvllm:request_success_total{engine="1"} 2\n')
    assert told.known
    assert told.engines == (Sample("0", missing=ALL_REQUIRED), Sample("1", finished=2, missing=ALL_REQUIRED))


def test_engines_come_in_the_order_of_their_numbers() -> None:
    text = "".join(f'vllm:num_requests_running{{engine="{engine}"}} 0\n' for engine in (10, 9, 1, 0))
    assert [sample.engine for sample in read(text).engines] == ["0", "1", "9", "10"]


def test_an_empty_label_is_none() -> None:
    assert only('vllm:num_requests_running{engine=""} 1\n').engine == "0"


def test_the_name_of_an_engine_is_cleaned() -> None:
    assert only('vllm:num_requests_running{engine="a\\n|b\u202e"} 1\n').engine == "a b"


def test_finished_requests_are_counted_over_all_reasons() -> None:
    text = "".join(f'vllm:request_success_total{{engine="0",finished_reason="{r}"}} 2\n' for r in ("stop", "length"))
    assert only(text).finished == 4


@pytest.mark.parametrize("text", ["", "<html>", "process_start_time_seconds 5\n", "vllm:cache_config_info{} 1\n"])
def test_a_page_without_an_engine_is_not_known(text: str) -> None:
    assert not read(text).known
    assert read(text).engines == ()


@pytest.mark.parametrize(
    ("text", "start_time"),
    [
        ("", None),
        ("process_start_time_seconds 1.79607166654e+09\n", 1796071666.54),
        ("process_start_time_seconds NaN\n", None),
        ("process_start_time_seconds +Inf\n", None),
    ],
)
def test_the_start_time(text: str, start_time: float | None) -> None:
    assert read(text).start_time == start_time


@given(st.text() | st.sampled_from(sorted(vllm.WANTED)).map(lambda name: f'{name}{{engine="0",sleep_state="awake"}} 1'))
def test_no_text_raises(text: str) -> None:
    told = read(text.encode(errors="replace").decode())
    assert told.known == bool(told.engines)


# --- pause signs in the metrics --------------------------------------------------------------------------------------


def slept(**states: float) -> str:
    text = page("idle")
    for state, value in states.items():
        text = re.sub(rf'(vllm:engine_sleep_state.*sleep_state="{state}"}}) .*', rf"\1 {value}", text)
    return text


SLEEPS: dict[str, tuple[str, str | None]] = {
    "awake": (slept(awake=1.0), None),
    "asleep": (slept(awake=0.0), "asleep"),
    "level 1": (slept(awake=0.0, weights_offloaded=1.0), "asleep, weights offloaded"),
    "level 2": (slept(awake=0.0, discard_all=1.0), "asleep, weights discarded"),
    "level 1 alone": (slept(weights_offloaded=1.0), "asleep, weights offloaded"),
    "state not told": (slept(awake=float("nan")), None),
    "no operation": (page("idle") + 'vllm:sleep_mode_operations_in_flight{operation="wake"} 0.0\n', None),
    "waking up": (
        page("idle") + 'vllm:sleep_mode_operations_in_flight{operation="wake"} 1.0\n',
        "going to sleep or waking up",
    ),
    "one of two operations": (
        page("idle")
        + 'vllm:rl_weight_update_operations_in_flight{operation="start"} 0.0\n'
        + 'vllm:rl_weight_update_operations_in_flight{operation="update"} 1.0\n',
        "inside a weight update",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), SLEEPS.values(), ids=SLEEPS)
def test_a_pause_sign_in_the_metrics(text: str, sentence: str | None) -> None:
    assert only(text).asleep == sentence


def test_an_engine_sleeps_alone_and_an_operation_stops_all() -> None:
    text = page("dp2_busy").replace(
        'engine="1",model_name="tiny",sleep_state="awake"} 1', 'engine="1",sleep_state="awake"} 0'
    )
    assert [sample.asleep for sample in read(text).engines] == [None, "asleep"]
    text += 'vllm:rl_weight_update_operations_in_flight{operation="update"} 1.0\n'
    assert [sample.asleep for sample in read(text).engines] == ["inside a weight update", "asleep"]


def test_an_operation_is_no_engine() -> None:
    assert read('vllm:sleep_mode_operations_in_flight{operation="wake"} 1.0\n') == Page()


# --- pause endpoints -------------------------------------------------------------------------------------------------

NOT_FOUND = (Reply(Went.ABSENT, 404), b'{"detail":"Not Found"}')
TIMEOUT = (Reply(Went.TIMEOUT), b"")


def ok(body: object) -> tuple[Reply, bytes]:
    return Reply(Went.OK, 200), json.dumps(body).encode()


# what /is_paused said, what /is_sleeping said
PAUSES: dict[str, tuple[tuple[Reply, bytes], tuple[Reply, bytes], Pause]] = {
    "neither": (ok({"is_paused": False}), ok({"is_sleeping": False}), Pause()),
    "paused, so sleeping as well": (
        ok({"is_paused": True}),
        ok({"is_sleeping": True}),
        Pause("paused, says /is_paused"),
    ),
    "asleep": (ok({"is_paused": False}), ok({"is_sleeping": True}), Pause("asleep, says /is_sleeping")),
    "asleep, older release": (NOT_FOUND, ok({"is_sleeping": True}), Pause("asleep, says /is_sleeping")),
    "awake, older release": (NOT_FOUND, ok({"is_sleeping": False}), Pause()),
    "no development mode": (NOT_FOUND, NOT_FOUND, Pause(absent=True)),
    "404 told as a status": (
        (Reply(Went.STATUS, 404), b""),
        (Reply(Went.STATUS, 405), b""),
        Pause(absent=True),
    ),
    "absent by nature": ((NOT_ASKED, b""), (NOT_ASKED, b""), Pause(absent=True)),
    "no answer": (TIMEOUT, TIMEOUT, Pause()),
    "no answer and absent": (TIMEOUT, NOT_FOUND, Pause()),
    "ranks disagree": ((Reply(Went.STATUS, 500), b'{"error":"..."}'), ok({"is_sleeping": False}), Pause()),
    "true in an answer that failed": ((Reply(Went.STATUS, 500), b'{"is_paused":true}'), TIMEOUT, Pause()),
    "the word true": (ok({"is_paused": "true"}), ok({"is_sleeping": 1}), Pause()),
    "the other's key": (ok({"is_sleeping": True}), ok({"is_paused": True}), Pause()),
    "no object": (ok([True]), ok(True), Pause()),
    "no JSON": ((Reply(Went.OK, 200), b"<html>"), (Reply(Went.OK, 200), b"\xff"), Pause()),
}


@pytest.mark.parametrize(("paused", "sleeping", "pause"), PAUSES.values(), ids=PAUSES)
def test_what_the_pause_endpoints_say(paused: tuple[Reply, bytes], sleeping: tuple[Reply, bytes], pause: Pause) -> None:
    assert vllm.read_pause([("/is_paused", *paused), ("/is_sleeping", *sleeping)]) == pause
    assert vllm.read_pause([("/is_sleeping", *sleeping), ("/is_paused", *paused)]) == pause


def test_nothing_asked_is_nothing_known() -> None:
    assert vllm.read_pause([]) == Pause()


def test_a_path_of_another_dialect_says_nothing() -> None:
    assert vllm.read_pause([("/ready", *ok({"is_paused": True}))]) == Pause()


# --- the dialect -----------------------------------------------------------------------------------------------------


def test_the_dialect() -> None:
    dialect = DIALECTS["vllm"]
    assert (dialect.kind, dialect.health_path, dialect.metrics_path) == ("vllm", "/health", "/metrics")
    assert dialect.pause_paths == ("/is_paused", "/is_sleeping")
    assert dialect.forms == tuple(Form)
    assert (dialect.without_metrics, dialect.host_evidence, dialect.silent_after) == (False, "record", 600.0)
    assert dialect.pinnable


def test_all_that_is_wanted_is_read() -> None:
    """Each wanted name changes what some page tells; else it would be searched for in vain."""
    for name in DIALECTS["vllm"].wanted:
        labels = '{engine="7",sleep_state="discard_all"}'
        text = "vllm:request_success_total 1\n"
        assert read(f"{text}{name}{labels} 5\n") != read(text), name
