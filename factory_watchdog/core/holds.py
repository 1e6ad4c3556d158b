"""What forbids a restart now, and how it is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from factory_watchdog.core.memory import Finding, Recovery
from factory_watchdog.core.model import Hold, Reading, Settings, UnitFacts
from factory_watchdog.core.text import clean
from factory_watchdog.core.wording import count, span

LONGEST_WINDOW = 7 * 86400.0
"""Seconds; no budget's window may be configured longer."""

HOLD_WORDS: dict[Hold, str] = {
    Hold.OBSERVE: "observe mode",
    Hold.NO_UNIT: "no unit configured, watched only",
    Hold.MAINTENANCE: "maintenance",
    Hold.FLAG: "busy flag",
    Hold.FAILED_UNIT: "the unit is down and revive is off",
    Hold.UNIT: "unit not known to be active, or a job of it queued",
    Hold.BREAKER: "breaker open: the restarts allowed are used up",
    Hold.TEN_MINUTES: "last restart too recent",
    Hold.FOREIGN: "foreign process on the port",
    Hold.WRONG_MODEL: "wrong model on the port",
    Hold.OTHER_RESTART: "another restart on this host",
    Hold.LEFT_OVER: "processes of the old life are still there",
}

MODELS_NAMED = 3
"""Served models named in a sentence: a server has one or two, a proxy or one with adapters dozens."""

NAME_SHOWN = 60
"""Characters shown of a model's name: the usual ones are half as long, a path may fill a line."""


@dataclass(frozen=True, slots=True)
class Now:
    """What a phase decides upon: the newest reading, what was found in it, the settings, and the host around."""

    time: float
    reading: Reading
    finding: Finding
    settings: Settings
    others: tuple[str, ...]


def holds_now(recovery: Recovery, now: Now) -> tuple[Hold, ...]:
    """Every hold that stands, in the order in which they are named."""
    settings, unit = now.settings, now.reading.unit
    failed = now.finding.rule == "unit-failed"
    restarts = recent(recovery, now)
    table = (
        (Hold.OBSERVE, not settings.enforce),
        (Hold.NO_UNIT, not settings.has_unit),
        (Hold.MAINTENANCE, now.reading.maintenance is not None),
        (Hold.FLAG, now.reading.flag.held),
        (Hold.FAILED_UNIT, failed and not settings.revive),
        (Hold.UNIT, unit is not None and not (unit.told and (failed or unit.active == "active") and not unit.job)),
        (Hold.BREAKER, len(restarts) >= settings.max_restarts),
        (
            Hold.TEN_MINUTES,
            bool(recovery.restarts) and now.time - recovery.restarts[-1] < settings.restart_gap,
        ),
        (Hold.FOREIGN, now.reading.foreign is not None),
        (Hold.WRONG_MODEL, wrong_model(now.reading, settings) is not None),
        (Hold.OTHER_RESTART, bool(now.others)),
        (Hold.LEFT_OVER, unit is not None and bool(unit.left_over)),
    )
    return tuple(hold for hold, stands in table if stands)


def recent(recovery: Recovery, now: Now) -> tuple[float, ...]:
    """The restarts that count against the budget."""
    return tuple(t for t in recovery.restarts if now.time - t < now.settings.restart_window)


def kept(recovery: Recovery, now: Now) -> tuple[float, ...]:
    """The restarts to be remembered: a window that a reload makes longer counts older ones too."""
    return tuple(t for t in recovery.restarts if now.time - t < LONGEST_WINDOW)


def wrong_model(reading: Reading, settings: Settings) -> str | None:
    """What is served instead of the configured model; None where that is served, or nobody told or asked for it.

    llama.cpp lists a model by its path where it has no alias: the end of a listed name is good enough.
    """
    model, served = settings.model, reading.models
    if model is None or not served or any(name == model or name.endswith(f"/{model}") for name in served):
        return None
    more = f" and {count(len(served) - MODELS_NAMED, 'other')}" if len(served) > MODELS_NAMED else ""
    names = ", ".join(clean(name, NAME_SHOWN) for name in served[:MODELS_NAMED])
    return f"{names}{more} served, not {clean(model, NAME_SHOWN)}"


def hold_sentence(holds: tuple[Hold, ...], recovery: Recovery, now: Now) -> str:
    """The holds in words, each with what ends it where that is known."""
    details = ((HOLD_WORDS[hold], _DETAILS[hold](recovery, now) if hold in _DETAILS else None) for hold in holds)
    return "held: " + "; ".join(f"{said} ({detail})" if detail else said for said, detail in details)


def _last_restart(recovery: Recovery, now: Now) -> str | None:
    if not recovery.restarts:  # an operator may have forgotten them meanwhile
        return None
    return f"{span(now.time - recovery.restarts[-1])} ago; none within {span(now.settings.restart_gap)}"


def _budget(_recovery: Recovery, now: Now) -> str:
    return f"{count(now.settings.max_restarts, 'restart')} in {span(now.settings.restart_window)}"


def _left_over(_recovery: Recovery, now: Now) -> str | None:
    return pids(now.reading.unit.left_over) if now.reading.unit is not None else None


def pids(processes: tuple[int, ...]) -> str:
    return f"PIDs {', '.join(map(str, processes))}"


_DETAILS: dict[Hold, Callable[[Recovery, Now], str | None]] = {
    Hold.MAINTENANCE: lambda _, now: now.reading.maintenance,
    Hold.FLAG: lambda _, now: now.reading.flag.why,
    Hold.UNIT: lambda _, now: unit_line(now.reading.unit) if now.reading.unit is not None else None,
    Hold.BREAKER: _budget,
    Hold.TEN_MINUTES: _last_restart,
    Hold.FOREIGN: lambda _, now: now.reading.foreign.detail if now.reading.foreign is not None else None,
    Hold.WRONG_MODEL: lambda _, now: wrong_model(now.reading, now.settings),
    Hold.OTHER_RESTART: lambda _, now: ", ".join(now.others),
    Hold.LEFT_OVER: _left_over,
}
"""What is said of a hold beside its name."""


def unit_line(unit: UnitFacts) -> str:
    """What the service manager tells of a unit, in a few words."""
    if not unit.told:
        return unit.detail or "the service manager does not tell"
    return f"{unit.active}, job {unit.job} queued" if unit.job else str(unit.active)
