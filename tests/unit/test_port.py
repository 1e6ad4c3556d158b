"""What holds a restart of a server that is not the unit's, or not the one that was meant; and what is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from factory_watchdog.core.forecast import forecast
from factory_watchdog.core.holds import wrong_model
from factory_watchdog.core.model import NOT_ASKED, Hold, Reading, Settings

HANG = "work*2 still*14 failed "  # the next reading confirms it
TAKEN = "port 8000 is listened on by ssh.service, not by vllm.service"
FOREIGN = f"held: foreign process on the port ({TAKEN})"


def shown(play: Any) -> str:
    return str(play.state.verdict.why)


# --- foreign ---------------------------------------------------------------------------------------------------------


def test_nothing_is_restarted_while_another_unit_has_the_port(play: Any) -> None:
    p = play().run(HANG + "still+foreign*3")
    assert p.restarts == []
    assert p.state.recovery.holds == (Hold.FOREIGN,)
    assert p.shown == "hung flat 0"
    assert shown(p).endswith(FOREIGN)
    assert p.alerts == ["foreign-process", "hung", "held"]


def test_it_is_confirmed_again_once_the_port_is_the_unit_s(play: Any) -> None:
    p = play().run(HANG + "still+foreign*3 still")
    assert p.restarts == []
    assert p.phase == "confirm"
    p.run("failed still")
    assert len(p.restarts) == 1


@pytest.mark.parametrize("words", ["container", "unknown", "ours"])
def test_any_other_owner_holds_nothing(play: Any, words: str) -> None:
    p = play().run(HANG + f"still+{words}")
    assert len(p.restarts) == 1
    assert "foreign-process" not in p.alerts


@pytest.mark.parametrize(
    "script", ["work+foreign*9", "quiet+foreign*4", "metrics-500+foreign*3", "unit-failed+foreign"]
)
def test_the_alert_stands_in_every_state_and_is_told_once(play: Any, script: str) -> None:
    p = play().run(f"work {script}")
    assert p.alerts.count("foreign-process") == 1
    p.run("work work+foreign")
    assert p.alerts.count("foreign-process") == 2


# --- wrong model -----------------------------------------------------------------------------------------------------


def test_nothing_is_restarted_where_another_model_is_served(play: Any) -> None:
    p = play(model="qwen3").run(HANG + "still+other-model*3")
    assert p.restarts == []
    assert p.state.recovery.holds == (Hold.WRONG_MODEL,)
    assert shown(p).endswith("held: wrong model on the port (llama4 served, not qwen3)")
    assert p.alerts == ["hung", "held"]
    p.run("still")
    p.run("failed still")
    assert len(p.restarts) == 1


@pytest.mark.parametrize(
    ("model", "served", "says"),
    [
        ("m", ("m",), None),
        ("m", ("other", "m", "adapter"), None),
        ("adapter", ("m", "adapter"), None),
        ("m", None, None),  # not read, or not told
        ("m", (), None),
        (None, ("other",), None),
        ("qwen.gguf", ("/models/qwen.gguf",), None),  # llama.cpp without an alias
        ("Qwen/Qwen3-8B", ("Qwen3-8B",), "Qwen3-8B served, not Qwen/Qwen3-8B"),
        ("n", ("qwen",), "qwen served, not n"),
        ("m", ("M",), "M served, not m"),
        ("m", ("a", "b"), "a, b served, not m"),
        ("m", ("a", "b", "c", "d"), "a, b, c and 1 other served, not m"),
        ("m", ("a", "b", "c", "d", "e"), "a, b, c and 2 others served, not m"),
        ("m", ("x" * 150,), f"{'x' * 60} served, not m"),
    ],
)
def test_which_model_is_the_wrong_one(model: str | None, served: tuple[str, ...] | None, says: str | None) -> None:
    reading = Reading(0.0, 1.0, NOT_ASKED, NOT_ASKED, models=served)
    assert wrong_model(reading, Settings(model=model)) == says


def test_the_holds_are_named_in_their_order(play: Any) -> None:
    p = play(model="qwen3", enforce=False).run(HANG + "still+foreign+other-model+left-over")
    assert p.state.recovery.holds == (Hold.OBSERVE, Hold.FOREIGN, Hold.WRONG_MODEL, Hold.LEFT_OVER)


# --- explain ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("work*2 work+foreign", f"A restart would be {FOREIGN}."),
        ("work*2 work+container", "Whose the port is cannot be told: port 8000 is a container's."),
        ("work*2 work+unknown", "Whose the port is cannot be told: nobody listens at port 8000."),
    ],
)
def test_it_says(play: Any, script: str, sentence: str) -> None:
    p = play().run(script)
    assert sentence in forecast(p.state, p.settings, p.now)
