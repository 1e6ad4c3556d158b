"""llama.cpp's dialect: its `llama-server` with one model.

The names are from `tools/server` (`server-context.cpp`, `server-http.cpp`, `README.md`) and from recordings. What is
particular to it:

- The metrics have no labels and no start time. There are none without `--metrics` (501), and while the model loads
  every path answers 503. With `--api-key` they and `/props` want the key; `/health` and `/v1/models` do not.
- `n_decode_total` rises with each call of the decoder, and so with each batch of a prompt; prompt tokens are counted
  when the prompt has been read, generated ones when the request ends. One batch of a long prompt takes a slow CPU more
  than half a minute, in which every counter stands still while the server computes: hence `host_evidence`.
- Numbers are printed with six significant digits. Past a million a counter moves in steps of ten, past ten million of
  a hundred: it moves later than the server does, and never without it.
- After `--sleep-idle-seconds` it puts its model away (`is_sleeping` of `/props`, which like `/health` and `/v1/models`
  neither wakes it nor keeps it awake). `/slots` and every question wake it. So does `/metrics` in releases before
  August 2026, where a server whose metrics are polled never falls asleep
  (https://github.com/ggml-org/llama.cpp/pull/27376).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from factory_watchdog.core.model import Pause, Sample
from factory_watchdog.engines import exposition
from factory_watchdog.engines.dialect import Dialect, Page, PauseAnswer, PauseSigns, told_pause

# What tells each signal of a sample. KV usage and finished requests are not told.
SIGNALS: dict[str, str] = {
    "running": "llamacpp:requests_processing",
    "waiting": "llamacpp:requests_deferred",
    "steps": "llamacpp:n_decode_total",
    "prompt": "llamacpp:prompt_tokens_total",
    "generated": "llamacpp:tokens_predicted_total",
}

# Without any one of these a server with requests cannot be judged; the tokens stand still for all of a request.
REQUIRED = ("running", "waiting", "steps")

WANTED = frozenset(SIGNALS.values())

ENGINE = "0"  # the only one, and it has no name of its own

PAUSE_SIGNS: PauseSigns = {"/props": ("is_sleeping", "asleep, says /props")}


def read(body: bytes) -> Page:
    """What a metrics page of llama.cpp tells; not known where it has none of the signals."""
    told = exposition.read(body, WANTED)
    signals = {signal: _value(told.get(name, ())) for signal, name in SIGNALS.items()}
    missing = tuple(SIGNALS[signal] for signal in REQUIRED if signals[signal] is None)
    if not told:
        return Page()
    return Page(known=True, engines=(Sample(engine=ENGINE, **signals, missing=missing, asleep=None),))


def _value(series: Sequence[exposition.Series]) -> float | None:
    """The value of a metric's only series, None where it is not told or is no finite number."""
    return next((value for _, value in series if math.isfinite(value)), None)


def read_pause(answers: Sequence[PauseAnswer]) -> Pause:
    """What `/props` said. Releases that cannot sleep tell of no sleep there, which is no sign either."""
    return told_pause(PAUSE_SIGNS, answers)


LLAMACPP = Dialect(
    kind="llamacpp",
    wanted=WANTED,
    read=read,
    read_pause=read_pause,
    pause_paths=tuple(PAUSE_SIGNS),
    key_paths=frozenset({"/metrics", *PAUSE_SIGNS}),
    start_header="process-start-time-unix",  # microseconds of some clock: it tells starts apart and is no time
    host_evidence="slow",
    silent_after=None,  # a healthy one may leave requests unanswered while it computes (ggml-org/llama.cpp#24866)
)
