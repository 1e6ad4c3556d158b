"""`llm-health replay`: recordings of real servers through the real judge, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

from factory_watchdog.cli.simulate import report
from factory_watchdog.config import load
from factory_watchdog.config.schema import SETTINGS
from factory_watchdog.errors import ConfigError, Problem
from factory_watchdog.simulate.replay import Questions, replay
from factory_watchdog.simulate.replay import load as load_recording

_PLACE = "--set"


def play(files: Sequence[Path], pairs: Sequence[str], questions: str, *, as_json: bool) -> None:
    """Play each recording with the settings given. Raises ConfigError and RecordingError."""
    if questions not in get_args(Questions):
        right = "never (none is asked), timeout (none is answered) or ok (all are)"
        raise ConfigError([Problem("", "", "--question", questions, f"must be {right}")])
    table = dict(map(_pair, pairs))
    interval = SETTINGS["daemon"]["interval"]
    poll = _interval(table.pop("interval", str(interval.default)))
    config = load.from_table({"unit": "recorded.service", **table}, file=_PLACE, words=True)
    for file in files:
        recording = load_recording(file)
        name = file.name.removesuffix(".gz").removesuffix(".jsonl")
        report(replay(recording, name, config, poll, cast("Questions", questions)), as_json=as_json)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError([Problem(_PLACE, "", text, "", "must be KEY=VALUE, like hang_after=30s")])
    return key.strip(), value.strip()


def _interval(text: str) -> float:
    """The one setting of the daemon that a replay needs."""
    try:
        return float(SETTINGS["daemon"]["interval"].kind.read(text))
    except ValueError as error:
        raise ConfigError([Problem(_PLACE, "", "interval", text, str(error))]) from None
