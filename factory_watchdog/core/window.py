"""`hang_after = "auto"`: a window as long as a restart costs.

Waiting as long as a restart takes before one is made is never more than twice as bad as knowing the future: a stall
that ends sooner costs no restart, and a hang costs the time of its restart once more. So the window is the measured
time from a backend's last restart to its first answer, within bounds.
"""

from __future__ import annotations

from factory_watchdog.core.memory import Backend, Memory, Phase, replace
from factory_watchdog.core.model import Settings
from factory_watchdog.core.wording import span

SHORTEST = 120.0
"""Seconds; a server that starts in less still compiles for up to 70 s in the middle of traffic (measured)."""

LONGEST = 900.0
"""Seconds; a server that starts in more must not hang longer than that unseen."""


def with_window(settings: Settings, cost: float | None) -> Settings:
    """The settings with the window that a measured restart gives; as they are where it is fixed or none was seen."""
    if not settings.hang_auto or cost is None:
        return settings
    return replace(settings, hang_after=min(max(cost, SHORTEST), LONGEST))


def measured(before: Backend, memory: Memory, now: float) -> float | None:
    """Seconds that the last restart took to its first answer: ours from its order to its first token, another's from
    when the new life was first seen until it served. A life whose beginning was not seen measures nothing.
    """
    old, life = before.memory, memory.life
    if old is None or memory.gap:
        return before.restart_cost
    if before.recovery.phase.restarting:
        first = life.outcome and (memory.new_life or (before.recovery.phase is Phase.SERVE and not old.life.outcome))
        return now - before.recovery.since if first else before.restart_cost
    first = life.up and not old.life.up and not memory.new_life and life.number > 1
    return now - life.since if first else before.restart_cost


def explained(settings: Settings, cost: float | None) -> str | None:
    """A sentence about a window that is not fixed; None of one that is."""
    if not settings.hang_auto:
        return None
    if cost is None:
        return f"hang_after is auto: {span(settings.hang_after)}, for no restart was measured yet."
    window = with_window(settings, cost).hang_after
    bounds = "" if window == cost else f", within {span(SHORTEST)} and {span(LONGEST)}"
    return f"hang_after is auto: {span(window)}, for the last restart took {span(cost)} to its first answer{bounds}."
