"""vLLM's dialect, for releases 0.8.5 to 0.32 and later, engines V0 and V1.

The names are from `vllm/engine/metrics.py` (V0) and `vllm/v1/metrics/loggers.py` (V1) of those releases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from factory_watchdog.core.model import Pause, Sample
from factory_watchdog.core.text import clean
from factory_watchdog.engines import exposition
from factory_watchdog.engines.dialect import Dialect, Page, PauseAnswer, told_pause

# What tells each signal of a sample. Where there are two names the first that an engine shows counts: the second is
# the older, shown up to 0.10.2 and gone in 0.12. `iteration_tokens_total` is a histogram of tokens a step; its count
# rises by one with each step that had output.
RUNNING = "vllm:num_requests_running"
SWAPPED = "vllm:num_requests_swapped"  # V0 only: taken off the GPU in the middle of running
SIGNALS: dict[str, tuple[str, ...]] = {
    "running": (RUNNING,),
    "waiting": ("vllm:num_requests_waiting",),
    "steps": ("vllm:iteration_tokens_total_count",),
    "prompt": ("vllm:prompt_tokens_total",),
    "generated": ("vllm:generation_tokens_total",),
    "kv": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "finished": ("vllm:request_success_total",),  # one series for each finished_reason; V0's appear with the first
}

# Without any one of these an engine with requests cannot be judged: during a lone chunked prefill KV usage alone moves.
REQUIRED = ("running", "waiting", "steps", "prompt", "generated", "kv")

START_TIME = "process_start_time_seconds"

# Signs of a pause in the metrics. The state is told for each engine, an operation in flight for the whole server.
SLEEP_STATE = "vllm:engine_sleep_state"  # 0.11 and later
SLEEPS: dict[tuple[str | None, bool], str] = {
    ("awake", False): "asleep",
    ("weights_offloaded", True): "asleep, weights offloaded",
    ("discard_all", True): "asleep, weights discarded",
}
IN_FLIGHT = {  # 0.32 and later, development mode
    "vllm:sleep_mode_operations_in_flight": "going to sleep or waking up",
    "vllm:rl_weight_update_operations_in_flight": "inside a weight update",
}

# Development mode only. `/is_sleeping` is also true of an engine that is merely paused, so `/is_paused` is read first.
PAUSE_SIGNS = {
    "/is_paused": ("is_paused", "paused, says /is_paused"),
    "/is_sleeping": ("is_sleeping", "asleep, says /is_sleeping"),
}

# V0 has one engine and no `engine` label; V1 numbers its engines from 0.
ONLY_ENGINE = "0"

_COUNTED = frozenset(name for names in SIGNALS.values() for name in names) | {SWAPPED}
_OF_AN_ENGINE = _COUNTED | {SLEEP_STATE}
WANTED = frozenset({START_TIME, *IN_FLIGHT, *_OF_AN_ENGINE})

Told = Mapping[str, list[exposition.Series]]


def read(body: bytes) -> Page:
    """What a metrics page of vLLM tells, engine by engine; not known where no engine shows anything."""
    told = exposition.read(body, WANTED)
    in_flight = _in_flight(told)
    engines = _engines(told)
    return Page(
        known=bool(engines),
        start_time=_start_time(told),
        engines=tuple(_sample(engine, engines[engine], in_flight) for engine in sorted(engines, key=_by_number)),
    )


def _engines(told: Told) -> dict[str, dict[str, list[exposition.Series]]]:
    """The series of each engine that any metric of an engine names."""
    engines: dict[str, dict[str, list[exposition.Series]]] = {}
    for name in _OF_AN_ENGINE:
        for series in told.get(name, ()):
            engine = series[0].get("engine") or ONLY_ENGINE
            engines.setdefault(engine, {}).setdefault(name, []).append(series)
    return engines


def _by_number(engine: str) -> tuple[int, str]:
    """Sorts numbers without leading zeros by value, and anything else somewhere."""
    return len(engine), engine


def _sample(engine: str, told: Told, in_flight: str | None) -> Sample:
    """One engine's sample."""
    signals = {signal: _value(signal, names, told) for signal, names in SIGNALS.items()}
    return Sample(
        engine=clean(engine),
        **signals,
        missing=tuple(SIGNALS[signal][0] for signal in REQUIRED if signals[signal] is None),
        asleep=_asleep(told.get(SLEEP_STATE, ())) or in_flight,
    )


def _value(signal: str, names: Iterable[str], told: Told) -> float | None:
    """One signal of an engine, None where it is not told or is no finite number.

    An engine has one series of a metric, or several (a reason, a process) that make up its value together. Only KV
    usage is a level: with several API servers 0.9.2 and 0.10.2 show it once a process (label `pid`), where each shows
    what it heard last. Their mean is taken, which stays between 0 and 1 and moves whenever one of them does; the
    greatest would hide a rising one behind one that stands still.
    """
    shown = next((told[name] for name in names if name in told), None)
    if shown is None:
        return None
    values = [value for _, value in shown]
    if signal == "running":
        values += [value for _, value in told.get(SWAPPED, ())]
    total = sum(values)
    if not math.isfinite(total):
        return None
    return total / len(values) if signal == "kv" else total


def _asleep(states: Iterable[exposition.Series]) -> str | None:
    """The sentence of the sleep states of one engine; the one that says most stands last in the table."""
    signs = {(labels.get("sleep_state"), value > 0) for labels, value in states}
    return next((SLEEPS[sign] for sign in reversed(SLEEPS) if sign in signs), None)


def _in_flight(told: Told) -> str | None:
    """The sentence of an operation in flight, which is told for the whole server."""
    return next((why for name, why in IN_FLIGHT.items() if any(value > 0 for _, value in told.get(name, ()))), None)


def _start_time(told: Told) -> float | None:
    """When the process began, None in multi-process mode, which does not tell it."""
    return next((value for _, value in told.get(START_TIME, ()) if math.isfinite(value)), None)


def read_pause(answers: Sequence[PauseAnswer]) -> Pause:
    """What `/is_paused` and `/is_sleeping` said; both absent without development mode.

    The question goes down into the engine core and has no time limit of its own, so it may fail; that says neither.
    """
    return told_pause(PAUSE_SIGNS, answers)


VLLM = Dialect(
    kind="vllm",
    wanted=WANTED,
    read=read,
    read_pause=read_pause,
    pause_paths=tuple(PAUSE_SIGNS),
    pin_header="X-data-parallel-rank",
)
