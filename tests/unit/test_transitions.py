"""The table of phases: each row can happen. That nothing else does `Play.feed` holds in every script of these tests."""

from __future__ import annotations

from typing import Any

import pytest

from factory_watchdog.core.memory import Phase
from factory_watchdog.core.model import JobResult, RestartAsked
from factory_watchdog.core.recovery import TRANSITIONS

HUNG = "work*2 still*14 failed still "
NEW_LIFE = "done-job life "

SCRIPTS = {
    ("watch", "confirm"): "work*2 still*13",
    ("confirm", "watch"): "work*2 still*14 work",
    ("confirm", "held"): "work*2 still*14 failed still+flag",
    ("confirm", "restart"): HUNG,
    ("held", "watch"): "work*2 still*14 failed still+flag work",
    ("held", "confirm"): "work*2 still*14 failed still+flag still",
    ("watch", "restart"): "work*2 order",
    ("held", "restart"): "work*2 still*14 failed still order",
    ("restart", "life"): HUNG + "done-job",
    ("restart", "serve"): HUNG + "life quiet",
    ("restart", "watch"): HUNG + "failed-job",
    ("restart", "confirm"): HUNG + "life refused+unit-failed",
    ("life", "serve"): HUNG + NEW_LIFE + "quiet",
    ("life", "watch"): HUNG + "done-job still*4",
    ("life", "confirm"): HUNG + NEW_LIFE + "refused+unit-failed",
    ("serve", "watch"): HUNG + NEW_LIFE + "quiet token",
    ("serve", "confirm"): HUNG + NEW_LIFE + "quiet refused*5",
}


def repeated(part: str) -> list[str]:
    """ "still*3" as three words, so that each change is seen."""
    word, _, times = part.partition("*")
    return [word] * int(times or 1)


@pytest.mark.parametrize(("before", "after"), TRANSITIONS, ids=lambda phase: phase.value)
def test_each_can_happen(play: Any, before: Phase, after: Phase) -> None:
    script = SCRIPTS[before.value, after.value]
    p = play(enforce="order" not in script)
    changes = []
    for word in (word for part in script.split() for word in repeated(part)):
        was = p.state.recovery.phase
        if word == "order":
            p.feed(RestartAsked("uid 0"))
        elif word == "failed-job":
            p.job(JobResult.FAILED)
        else:
            p.run(word)
        changes.append((was, p.state.recovery.phase))
    assert (before, after) in changes, changes
