"""The rules of the shoot-out do what is published of them, and its page is what the code gives."""

from __future__ import annotations

import pytest
from shootout.__main__ import PAGE, page
from shootout.cases import SCENARIOS, Ours, ScenarioCase, Truth, judged, judged_ours
from shootout.rules import RULES, Rule, Seen, Totals

from factory_watchdog.simulate import scenario

CHAT, HEALTH, TOKENS, STEPS, WINDOW = RULES
NOTHING = None


def test_the_page_is_what_the_code_gives() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make shootout"


def restarts(rule: Rule, looks: list[tuple[bool, int, Totals | None]]) -> list[float]:
    """When a rule restarts, with a look (answered, life, totals) at each of its intervals."""
    memory, times = None, []
    for number, (answered, life, totals) in enumerate(looks):
        memory, restart = rule.judge(memory, Seen(number * rule.every, answered, life, totals))
        if restart:
            times.append(number * rule.every)
    return times


def page_of(running: float, tokens: float, steps: float | None = 0.0, kv: float = 0.5) -> tuple[bool, int, Totals]:
    return True, 1, Totals(running, tokens, steps, 100.0, kv)


UP, DOWN, OTHER = (True, 1, NOTHING), (False, 1, NOTHING), (False, 2, NOTHING)


@pytest.mark.parametrize(
    ("rule", "looks", "expected"),
    [
        (CHAT, [DOWN] * 4 + [UP] + [DOWN] * 4, []),
        (CHAT, [UP] + [DOWN] * 5, [1500.0]),
        (CHAT, [DOWN] * 10, [1200.0, 2700.0]),
        (HEALTH, [UP, DOWN, DOWN, UP, DOWN, DOWN], []),
        (HEALTH, [UP, DOWN, DOWN, DOWN], [30.0]),
        (HEALTH, [DOWN] * 100, []),
        (HEALTH, [DOWN] * 361, [3600.0]),
        (HEALTH, [UP, DOWN, DOWN, OTHER, OTHER, OTHER], []),
        (TOKENS, [page_of(1, 5), page_of(1, 6), page_of(1, 6)], [120.0]),
        (TOKENS, [page_of(1, 5), page_of(0, 5), page_of(0, 5)], []),
        (TOKENS, [page_of(1, 5), DOWN, page_of(1, 5)], [120.0]),
        (STEPS, [page_of(1, 5, 7), page_of(1, 6, 7), page_of(1, 6, 8), page_of(1, 6, 8)], []),
        (STEPS, [page_of(1, 5, 7), page_of(1, 6, 7), page_of(1, 6, 7)], [120.0]),
        (STEPS, [page_of(1, 5, None)] * 5, []),
        (WINDOW, [page_of(1, 5)] * 12, []),
        (WINDOW, [page_of(1, 5)] * 13, [120.0]),
        (WINDOW, [page_of(1, 5)] * 12 + [page_of(1, 5, kv=0.6)], []),
        (WINDOW, [page_of(0, 5)] * 30, []),
        (WINDOW, [DOWN, DOWN, page_of(0, 5), DOWN], [30.0]),
        (WINDOW, [page_of(0, 5), OTHER, OTHER], []),
    ],
)
def test_a_rule_does_what_is_published(
    rule: Rule, looks: list[tuple[bool, int, Totals | None]], expected: list[float]
) -> None:
    assert restarts(rule, looks) == expected


def case(name: str) -> ScenarioCase:
    return ScenarioCase(scenario.load(SCENARIOS / f"{name}.toml"))


def test_a_hang_begins_with_its_first_phase_and_lasts() -> None:
    classic = case("classic-hang")
    assert classic.truth == Truth(300.0, classic.length)
    assert classic.length > 3900
    assert judged(TOKENS, classic).seconds == 60.0
    ours = judged_ours(classic)
    assert ours.seconds is not None
    assert 120 <= ours.seconds <= 160
    assert (ours.false, ours.sent) == (0, 0)


def test_what_waits_in_the_queue_that_it_judges_restarts_what_works() -> None:
    saturated = case("saturated")
    made = judged(CHAT, saturated)
    assert made.false > 0
    assert made.sent > 5
    assert judged_ours(saturated).false == 0


def test_a_false_restart_of_ours_would_be_counted() -> None:
    classic = case("classic-hang")
    classic.ours = Ours((200.0, 400.0), (100.0, 350.0, 900.0))
    assert judged_ours(classic).false == 1
    assert judged_ours(classic).seconds == 100.0
    assert judged_ours(classic).sent == 2
