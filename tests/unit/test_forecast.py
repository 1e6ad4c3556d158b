"""What `explain` says: state, what happens when, what is missing, why there would be no restart."""

from __future__ import annotations

from typing import Any

import pytest

from factory_watchdog.core.forecast import forecast
from factory_watchdog.core.holds import unit_line
from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import Settings, UnitFacts

SAYS = [
    ("work*2", {}, "It is busy for 10 s: 3 running and 0 waiting requests, work moves."),
    ("work*2 still*4", {}, "Hung in 1 min 20 s, after a question of up to 30 s"),
    ("work*2 still*4", {"forms": ()}, "Hung in 1 min 20 s, unless a step"),
    ("work*2 refused*2", {}, "Dead in 20 s, unless it accepts a connection"),
    ("refused*7", {}, "Dead in 29 min"),
    ("work*2 silent*31", {}, "Hung in 5 min"),
    ("work*2 quiet*3", {}, "The next question is due in 40 s"),
    ("work*2 quiet*3", {"forms": ()}, "It is never asked"),
    ("work*2 still*13", {}, "It is being confirmed"),
    ("work*2 still*14", {"forms": ()}, "A restart is under way; it has to serve within 30 min"),
    ("work*2", {}, "This life was first seen 10 s ago and has served."),
    ("refused*3", {}, "has not served yet"),
    ("life quiet*3", {}, "requests may stand still for 10 min"),
    ("work*2 metrics-500", {}, "The metrics cannot be read now"),
    ("work*2 no-kv", {}, "Required signals are missing: kv."),
    ("work*2 still+no-pause-signs", {}, "Pause signs are not offered"),
    ("quiet*7 denied quiet", {}, "It cannot be asked: denied."),
    ("work*2 work+untold", {}, "The service manager does not tell of the unit: no answer."),
    ("work+untold+no-start", {}, "Neither the metrics nor a unit tell who it is"),
    ("work*2", {}, "0 of 3 restarts in 6 h used."),
    ("work*2", {}, "Nothing would hold a restart"),
    ("work*2", {"enforce": False}, "A restart would be held: observe mode."),
    ("work*2 work+flag", {}, "A restart would be held: busy flag (a batch job)."),
    ("work*2", {"max_restarts": 0}, "breaker open"),
]


@pytest.mark.parametrize(("script", "settings", "sentence"), SAYS)
def test_it_says(play: Any, script: str, settings: dict[str, Any], sentence: str) -> None:
    p = play(**settings).run(script)
    said = "\n".join(forecast(p.state, p.settings, p.now))
    assert sentence in said


def test_of_nothing() -> None:
    assert forecast(Backend(), Settings(), 5.0) == ("Nothing is known yet: no poll has come to its end.",)


@pytest.mark.parametrize(
    ("unit", "line"),
    [
        (UnitFacts(told=False, detail="no bus"), "no bus"),
        (UnitFacts(True, "active", "running", main_pid=7), "active"),
        (UnitFacts(True, "inactive", "dead", job=3), "inactive, job 3 queued"),
    ],
)
def test_unit_line(unit: UnitFacts, line: str) -> None:
    assert unit_line(unit) == line
