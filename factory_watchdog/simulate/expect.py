"""Whether what came of a scenario is what it expects."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from factory_watchdog.config.durations import show
from factory_watchdog.core.model import Alert, State
from factory_watchdog.simulate.script import Expect, Scenario


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of a run: changes of state in their order, times of restarts and questions, alerts raised."""

    states: Sequence[tuple[float, State]]
    restarts: Sequence[float] = ()
    questions: Sequence[float] = ()
    alerts: Sequence[Alert] = ()


def failed(scenario: Scenario, result: Result) -> list[str]:
    """The expectations of `scenario` that do not hold, each as a sentence; none where all do."""
    checks = (_states, _counts, _times, _alerts)
    return [sentence for check in checks for sentence in check(scenario, result)]


def _states(scenario: Scenario, result: Result) -> Iterator[str]:
    for expect in scenario.expect:
        wrong = next((shown for shown in _shown(expect, result) if shown[1] not in expect.states), None)
        if wrong is not None:
            at, state = wrong
            allowed = " or ".join(expect.states)
            yield f"{_when(expect)} it must be {allowed}, and is {state or 'not judged yet'} at {show(at)}"


def _when(expect: Expect) -> str:
    if expect.end > expect.begin:
        return f"from {show(expect.begin)} to {show(expect.end)}"
    return f"at {show(expect.begin)}"


def _shown(expect: Expect, result: Result) -> Iterator[tuple[float, State | None]]:
    """The state at the beginning of the span, and every one that is entered within it, both ends included."""
    before = [state for at, state in result.states if at <= expect.begin]
    yield expect.begin, before[-1] if before else None
    yield from ((at, state) for at, state in result.states if expect.begin < at <= expect.end)


def _counts(scenario: Scenario, result: Result) -> Iterator[str]:
    total = scenario.expect_total
    restarts, questions = len(result.restarts), len(result.questions)
    if total.restarts is not None and restarts != total.restarts:
        yield f"{_count(total.restarts, 'restart')} expected, {restarts} made{_at(result.restarts)}"
    if total.questions is not None and questions != total.questions:
        yield f"{_count(total.questions, 'question')} expected, {questions} asked{_at(result.questions)}"
    if total.questions_max is not None and questions > total.questions_max:
        most = _count(total.questions_max, "question")
        yield f"at most {most} expected, {questions} asked{_at(result.questions)}"


def _times(scenario: Scenario, result: Result) -> Iterator[str]:
    total = scenario.expect_total
    first = min(result.restarts, default=None)
    made = "none was made" if first is None else f"it was made at {show(first)}"
    if total.restart_before is not None and (first is None or first > total.restart_before):
        yield f"the first restart must be made by {show(total.restart_before)}, and {made}"
    if total.restart_after is not None and first is not None and first < total.restart_after:
        yield f"the first restart must not be made before {show(total.restart_after)}, and {made}"


def _alerts(scenario: Scenario, result: Result) -> Iterator[str]:
    for alert in scenario.expect_total.alerts:
        if alert not in result.alerts:
            yield f"the alert {alert} was not raised"


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _at(times: Sequence[float]) -> str:
    return f", at {', '.join(map(show, times[:10]))}" if times else ""
