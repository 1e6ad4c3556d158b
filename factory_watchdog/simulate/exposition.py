"""A vLLM server's metrics page made of numbers: the text of a real page with the telling values put in.

The template is a page of vLLM 0.32.0 with one idle engine. Names differ by release: where a series is told from one
release on, or up to one, the releases that were looked at decide. A page is cut at its values once, so that rendering
joins strings and nothing more: a scenario has thousands of pages.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import re
from collections.abc import Iterator, Sequence

TEMPLATE = "vllm-0.32.metrics.txt"

_BY_REASON_SINCE = (0, 20)  # vllm:num_requests_waiting_by_reason: absent in 0.19.1, present in 0.20.2
_SLEEP_STATE_SINCE = (0, 11)  # vllm:engine_sleep_state: absent in 0.10.2, present in 0.11.2
_KV_SINCE = (0, 9)  # vllm:kv_cache_usage_perc: absent in 0.8.5, present in 0.9.2
_GPU_CACHE_UNTIL = (0, 11)  # vllm:gpu_cache_usage_perc: present in 0.10.2, hidden in 0.11.2
_PID_UNTIL = (0, 11)  # in multi-process mode up to 0.10.2 the KV gauge has one series for each process

_STEP_TOKENS = 8.0  # the bucket of iteration_tokens_total from which on all steps are counted

_GAUGES = frozenset(
    f"vllm:{name}"
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason",
        "kv_cache_usage_perc",
        "gpu_cache_usage_perc",
    )
)
"""The gauges that multi-process mode does not tell before the first request."""

# Which number a series shows: by the metric's name, and by the label that tells its series apart where that matters.
_LIVE: dict[str, tuple[str, str]] = {
    "vllm:num_requests_running": ("", "running"),
    "vllm:num_requests_waiting": ("", "waiting"),
    "vllm:num_requests_waiting_by_reason": ('reason="capacity"', "waiting"),
    "vllm:kv_cache_usage_perc": ("", "kv"),
    "vllm:gpu_cache_usage_perc": ("", "kv"),
    "vllm:prompt_tokens_total": ("", "prompt"),
    "vllm:prompt_tokens_by_source_total": ('source="local_compute"', "prompt"),
    "vllm:generation_tokens_total": ("", "tokens"),
    "vllm:request_success_total": ('finished_reason="length"', "finished"),
    "vllm:iteration_tokens_total_count": ("", "steps"),
    "vllm:iteration_tokens_total_sum": ("", "step_tokens"),
}
_SLEEP_STATES = {"awake": "awake", "weights_offloaded": "asleep"}
_SAMPLE = re.compile(r"([^{ ]+)(\{.*\})? ([^ ]+)")
_BUCKET = re.compile(r'le="([^"]+)"')


@dataclasses.dataclass(frozen=True, slots=True)
class Numbers:
    """What one engine shows at one moment."""

    running: float = 0.0
    waiting: float = 0.0
    kv: float = 0.0
    steps: float = 0.0
    prompt: float = 0.0
    tokens: float = 0.0
    finished: float = 0.0
    asleep: bool = False


Slot = tuple[int, str]
"""Where a value goes: the engine's number and the name of the number; engine -1 is the process."""


class Page:
    """The page of one server: its release, how many engines it has, and whether it runs in multi-process mode.

    In multi-process mode a server tells nothing of its process and has no series of when a counter was created.
    """

    def __init__(
        self, release: tuple[int, ...], engines: int = 1, *, start_time: bool = True, multi: bool = False, model: str
    ) -> None:
        self._release = release
        self._engines = engines
        self._start_time = start_time and not multi
        self._multi = multi
        self._model = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._with_gauges = _Cut(self._lines(gauges=True))
        self._without_gauges = _Cut(self._lines(gauges=False))

    def render(self, numbers: Sequence[Numbers], start_time: float, *, gauges: bool = True) -> bytes:
        """The page for `numbers`, one entry for each engine; `gauges` false is multi-process mode before a request."""
        values = [_told(engine) for engine in numbers]
        values.append({"start_time": number(start_time)})
        return (self._with_gauges if gauges else self._without_gauges).fill(values)

    def _lines(self, *, gauges: bool) -> Iterator[str | Slot]:
        for name, head, samples in _families():
            if not self._has(name):
                continue
            yield head
            for engine in range(self._engines if 'engine="0"' in samples[0] else 1):
                for sample in samples:
                    yield from self._sample(sample, engine, gauges=gauges)

    def _has(self, family: str) -> bool:
        """Whether this server tells the family of series."""
        since = {
            "vllm:num_requests_waiting_by_reason": _BY_REASON_SINCE,
            "vllm:engine_sleep_state": _SLEEP_STATE_SINCE,
            "vllm:kv_cache_usage_perc": _KV_SINCE,
        }
        if family == "vllm:gpu_cache_usage_perc":
            return self._release < _GPU_CACHE_UNTIL
        if family == "process_start_time_seconds":
            return self._start_time
        if self._multi and (family.startswith(("process_", "python_")) or family.endswith("_created")):
            return False
        return self._release >= since.get(family, (0,))

    def _sample(self, line: str, engine: int, *, gauges: bool) -> Iterator[str | Slot]:
        match = _SAMPLE.fullmatch(line)
        if match is None:
            raise ValueError(f"{TEMPLATE}: not a sample: {line}")
        name, labels, value = match[1], match[2] or "", match[3]
        if name in _GAUGES and not gauges:
            return
        labels = labels.replace('engine="0"', f'engine="{engine}"').replace("MODEL", self._model)
        if name == "vllm:kv_cache_usage_perc" and self._multi and self._release < _PID_UNTIL:
            yield f'{name}{labels[:-1]},pid="101"}} 0.0\n'  # a process that has nothing to tell
            labels = f'{labels[:-1]},pid="102"}}'
        slot = _live(name, labels)
        yield f"{name}{labels} "
        yield value if slot is None else (-1 if slot == "start_time" else engine, slot)
        yield "\n"


class _Cut:
    """A page cut at its values: text, value, text, value, ... text."""

    def __init__(self, pieces: Iterator[str | Slot]) -> None:
        self._texts: list[str] = []
        self._slots: list[Slot] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
                continue
            self._texts.append(text)
            self._slots.append(piece)
            text = ""
        self._last = text

    def fill(self, values: Sequence[dict[str, str]]) -> bytes:
        parts: list[str] = []
        for text, (engine, name) in zip(self._texts, self._slots, strict=True):
            parts += (text, values[engine][name])
        parts.append(self._last)
        return "".join(parts).encode()


def _live(name: str, labels: str) -> str | None:
    """The number that a series shows, None where the template's own value stays."""
    if name == "process_start_time_seconds":
        return "start_time"
    if name == "vllm:engine_sleep_state":
        states = (shown for state, shown in _SLEEP_STATES.items() if f'sleep_state="{state}"' in labels)
        return next(states, None)
    if name == "vllm:iteration_tokens_total_bucket":
        bound = _BUCKET.search(labels)
        return "steps" if bound and float(bound[1]) >= _STEP_TOKENS else None
    label, number_name = _LIVE.get(name, ("", None))
    return number_name if label in labels else None


def _told(engine: Numbers) -> dict[str, str]:
    return {
        "running": number(engine.running),
        "waiting": number(engine.waiting),
        "kv": number(engine.kv),
        "steps": number(engine.steps),
        "prompt": number(engine.prompt),
        "tokens": number(engine.tokens),
        "finished": number(engine.finished),
        "step_tokens": number(engine.prompt + engine.tokens),
        "awake": number(float(not engine.asleep)),
        "asleep": number(float(engine.asleep)),
    }


def number(value: float) -> str:
    """A value as the Python client of Prometheus writes it: like Go, with an exponent from a million on."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}" if dot <= 10 else f"{mantissa}e+{dot - 1}"
    return text


@functools.cache
def _families() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The template's families of series: name, HELP and TYPE lines, samples; the KV gauge also by its older name."""
    text = importlib.resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    families = []
    for block in re.split(r"^(?=# HELP )", text, flags=re.MULTILINE)[1:]:
        lines = block.splitlines()
        name = lines[1].split(" ")[2]
        families.append((name, "\n".join(lines[:2]) + "\n", tuple(lines[2:])))
        if name == "vllm:kv_cache_usage_perc":
            older = block.replace(name, "vllm:gpu_cache_usage_perc").splitlines()
            families.append(("vllm:gpu_cache_usage_perc", "\n".join(older[:2]) + "\n", tuple(older[2:])))
    return tuple(families)
