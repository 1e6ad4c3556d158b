"""The question: when it goes out, in which form, to which engine, and what an answer comes to."""

from __future__ import annotations

from typing import Any

import pytest

from factory_watchdog.core.model import Form, Outcome, Purpose

CHAT, FIELD, COMPLETION, EMBEDDING = tuple(Form)

# --- when ------------------------------------------------------------------------------------------------------------


def until_asked(p: Any, word: str = "quiet", most: int = 100) -> float:
    """Poll until a question goes out; the seconds that it took."""
    began = p.now
    for _ in range(most):
        p.run(word)
        if p.question is not None:
            return round(p.now - began)
    raise AssertionError("nothing was asked")


def test_the_first_question_goes_out_when_it_has_been_quiet_for_a_minute(play: Any) -> None:
    p = play().run("work*2 quiet")
    assert until_asked(p) == 60


def test_twice_as_long_each_time_while_nothing_changes(play: Any) -> None:
    p = play().run("quiet")
    waits = []
    for _ in range(6):
        waits.append(until_asked(p))
        p.run("answered own")
    assert waits == [60, 120, 240, 300, 300, 300]


def test_traffic_begins_the_series_again(play: Any) -> None:
    p = play().run("quiet")
    for _ in range(4):
        until_asked(p)
        p.run("answered own")
    p.run("quiet*3 work*3 done quiet")
    assert until_asked(p) == 50


def test_no_question_with_the_reading_that_shows_work_moving(play: Any) -> None:
    """A request may have come and gone without an outcome since the last look."""
    p = play().run("work*2 quiet*6 steps+quiet*5")
    assert p.asks == []
    p.run("quiet")
    assert [q.purpose for q in p.asks] == [Purpose.IDLE]


def test_no_first_question_of_a_new_life_while_it_warms_up(play: Any) -> None:
    p = play().restarted().run("done-job life one steps+quiet*3")
    assert len(p.asks) == 1, "the one that confirmed the hang"
    p.run("quiet")
    assert [q.purpose for q in p.asks] == [Purpose.CONFIRM, Purpose.SERVE]


def test_a_minute_after_a_failure(play: Any) -> None:
    p = play().run("quiet")
    for _ in range(4):
        until_asked(p)
        p.run("answered own")
    until_asked(p)
    p.run("failed quiet")
    assert until_asked(p) == 60


@pytest.mark.parametrize(
    "word",
    [
        "work",
        "still",
        "quiet+flag",
        "quiet+maintenance",
        "quiet+paused",
        "quiet+unit-inactive",
        "metrics-500",
        "silent",
    ],
)
def test_never_asked(play: Any, word: str) -> None:
    """Long enough to be asked, too short for a confirmation."""
    assert play().run(f"work*2 {word}*11").asks == []


def test_never_asked_where_the_settings_say_so(play: Any) -> None:
    assert play(forms=()).run("quiet*100").asks == []


def test_never_asked_while_it_starts(play: Any) -> None:
    assert play().run("refused*30 503+quiet*30").asks == []


def test_never_two_at_once(play: Any) -> None:
    p = play().run("quiet*60")
    assert len(p.asks) == 1
    assert p.question is not None


# --- what an answer comes to -----------------------------------------------------------------------------------------

# Script up to the settling reading, what the question came to, failures counted.
WORTH = [
    ("answered own", "answered", 0),
    ("failed quiet", "failed", 1),
    ("failed quiet+paused", "dropped", 0),
    ("failed done", "dropped", 0),
    ("failed metrics-timeout*3 quiet", "failed", 1),  # an unreadable reading only delays
    ("failed metrics-timeout*3 done", "dropped", 0),
    ("not-now quiet", "failed", 1),
    ("not-now done", "dropped", 0),
    ("denied quiet", "unaskable", 0),
    ("cannot quiet", "cannot", 0),
    ("error quiet", "cannot", 0),  # from the first question on
    ("gap failed quiet", "dropped", 0),
]


@pytest.mark.parametrize(("script", "settled", "failures"), WORTH)
def test_worth(play: Any, script: str, settled: str, failures: int) -> None:
    p = play().run("quiet*7")
    if script.startswith("gap"):
        p.run("gap quiet failed quiet")
        assert p.memory.asking.last is None
    else:
        assert p.run(script).memory.asking.last == settled
    assert p.memory.engines[0].failures == failures


def test_only_a_reading_that_began_after_the_answer_settles_it(play: Any, builders: Any) -> None:
    p = play().run("quiet*7")
    before = p.reading()
    p.answer(Outcome.FAILED)
    p.feed(builders.Polled(before))
    assert p.memory.asking.last is None
    p.run("quiet")
    assert p.memory.asking.last == "failed"


def test_an_answer_that_nobody_waits_for_changes_nothing(play: Any, builders: Any) -> None:
    p = play().run("quiet*7")
    memory = p.memory
    p.feed(builders.Answered(builders.Answer(99, Outcome.FAILED, p.now)))
    assert p.memory == memory
    p.run("answered own quiet")
    memory = p.memory
    p.feed(builders.Answered(builders.Answer(1, Outcome.FAILED, p.now)))
    assert p.memory == memory


def test_a_question_of_an_earlier_life_says_nothing_but_blocks_the_next(play: Any) -> None:
    p = play().run("quiet*7")
    p.run("life quiet*10")
    assert len(p.asks) == 1
    p.run("failed quiet*2")
    assert p.memory.engines[0].failures == 0
    assert len(p.asks) == 2


def test_movement_ends_failures_and_server_errors(play: Any) -> None:
    p = play().run("quiet*7 answered own")
    until_asked(p)
    p.run("error quiet")
    assert (p.memory.asking.errors, p.memory.engines[0].failures) == (1, 1)
    assert p.shown == "suspect unanswered 0"
    p.run("done")
    assert (p.memory.asking.errors, p.memory.engines[0].failures) == (0, 0)
    until_asked(p)
    p.run("error quiet")
    assert p.memory.asking.errors == 1, "two errors with traffic between are not in a row"


def test_two_server_errors_in_a_row_where_one_was_answered_are_a_ground(play: Any) -> None:
    p = play().run("quiet*7 answered own")
    until_asked(p)
    p.run("error quiet")
    until_asked(p)
    p.run("error quiet")
    assert p.shown == "suspect server-errors"
    assert [q.purpose for q in p.asks][-1] is Purpose.CONFIRM
    p.run("error quiet")
    assert [r.proof.rule for r in p.restarts] == ["server-errors"]


def test_server_errors_are_no_ground_where_signals_are_missing(play: Any) -> None:
    p = play(ask_without_metrics=True).run("quiet*7 answered own work")
    for _ in range(3):
        until_asked(p, "metrics-500")
        p.run("error metrics-500")
    assert p.run("no-kv*3").shown == "blind signals-missing 0"
    assert p.restarts == []


def test_an_error_and_no_answer_in_turn_do_not_hide_a_wedge(play: Any) -> None:
    p = play().run("quiet*7 answered own")
    for _ in range(4):
        until_asked(p)
        p.run("error quiet")
        if p.restarts:
            return
        until_asked(p)
        p.run("failed quiet")
    assert p.restarts


@pytest.mark.parametrize("outcome", ["error", "cannot", "denied", "not-now", "failed"])
def test_without_metrics_nothing_that_a_question_comes_to_is_a_ground(play: Any, outcome: str) -> None:
    p = play(ask_without_metrics=True).run("metrics-500*8 answered metrics-500")
    assert p.shown == "idle asked"
    for _ in range(12):
        until_asked(p, "metrics-500")
        p.run(f"{outcome} metrics-500")
    assert p.restarts == []
    assert p.shown == "blind asked"
    p.run("metrics-500*200")
    p.run("answered metrics-500")
    assert p.shown == "idle asked"


@pytest.mark.parametrize("metrics", ["metrics-500", "metrics-empty", "metrics-absent"])
def test_a_backend_without_metrics_is_judged_by_questions_where_that_is_set(play: Any, metrics: str) -> None:
    p = play(ask_without_metrics=True).run(f"{metrics}*8 answered {metrics}")
    assert p.shown == "idle asked"


def test_a_paused_backend_without_metrics_is_not_asked(play: Any) -> None:
    p = play(ask_without_metrics=True).run("metrics-500*8 failed metrics-500+paused*60")
    assert len(p.asks) == 1


# --- forms -----------------------------------------------------------------------------------------------------------


def test_the_forms_are_tried_in_order_and_then_somebody_is_told(play: Any) -> None:
    p = play().run("quiet*7 cannot quiet cannot quiet cannot quiet")
    assert p.forms == [CHAT, COMPLETION, EMBEDDING]
    assert p.shown == "idle idle"
    assert p.alerts == ["cannot-ask"]
    assert until_asked(p) == 300
    p.run("cannot quiet cannot quiet cannot quiet")
    assert p.forms == [CHAT, COMPLETION, EMBEDDING] * 2
    assert p.alerts == ["cannot-ask"], "raised once"
    assert p.restarts == []


def test_the_form_that_the_answer_names_comes_next(play: Any) -> None:
    p = play().run("quiet*7")
    p.answer(Outcome.CANNOT, next_form=FIELD)
    p.run("quiet answered own")
    until_asked(p)
    assert p.forms == [CHAT, FIELD, FIELD], "and is kept"


def test_a_form_that_was_tried_is_not_tried_again(play: Any) -> None:
    p = play().run("quiet*7")
    for _ in range(2):
        p.answer(Outcome.CANNOT, next_form=FIELD)
        p.run("quiet")
    assert p.forms == [CHAT, FIELD, COMPLETION]


def test_a_wrong_key_is_no_question_of_form(play: Any) -> None:
    p = play().run("quiet*7")
    p.answer(Outcome.DENIED, detail="401 invalid key")
    p.run("quiet")
    assert p.alerts == ["cannot-ask"]
    assert until_asked(p) == 300
    p.run("answered own quiet")
    assert p.memory.asking.complaint is None
    assert p.state.alerted == ()


def test_a_form_that_the_settings_no_longer_allow_is_not_used(play: Any, builders: Any) -> None:
    p = play().run("quiet*7 answered own restart-daemon")
    p.settings = builders.Settings(forms=(EMBEDDING,))
    p.run("quiet")
    until_asked(p)
    assert p.forms == [CHAT, EMBEDDING]


# --- several engines -------------------------------------------------------------------------------------------------


def test_engines_take_turns(play: Any) -> None:
    p = play(engines=3).run("quiet")
    for i in range(6):
        until_asked(p)
        p.run("answered " + "/".join("own" if e == i % 3 else "quiet" for e in range(3)))
    assert [q.engine for q in p.asks] == ["0", "1", "2", "0", "1", "2"]
    assert all(q.pinned for q in p.asks)


def test_one_engine_is_not_pinned(play: Any) -> None:
    assert [q.pinned for q in play().run("quiet*7").asks] == [False]


def test_failures_are_counted_for_each_and_the_failing_one_is_asked_again(play: Any) -> None:
    p = play(engines=2).run("quiet")
    until_asked(p)
    p.run("answered own/quiet")
    until_asked(p)
    p.run("failed quiet/quiet")
    assert [e.failures for e in p.memory.engines] == [0, 1]
    assert p.shown == "suspect unanswered 1"
    until_asked(p)
    assert [q.engine for q in p.asks] == ["0", "1", "1"]


def test_an_answer_by_another_engine_says_nothing_of_the_one_that_was_asked(play: Any) -> None:
    p = play(engines=2).run("quiet")
    until_asked(p)
    p.run("failed quiet")
    until_asked(p)
    p.run("answered quiet/own quiet/quiet")
    assert p.memory.asking.last == "elsewhere"
    assert [e.failures for e in p.memory.engines] == [1, 0]


def test_an_answer_may_be_booked_a_moment_later(play: Any) -> None:
    p = play(engines=2).run("quiet")
    until_asked(p)
    p.run("answered quiet/quiet")
    assert p.memory.asking.last is None
    p.run("own/quiet")
    assert p.memory.asking.last == "answered"
    assert p.memory.engines[0].moved_at is None


def test_movement_elsewhere_excuses_not_now_and_nothing_else(play: Any) -> None:
    for outcome, last in (("not-now", "dropped"), ("failed", "failed")):
        p = play(engines=2).run("quiet")
        until_asked(p)
        p.run(f"{outcome} quiet/done")
        assert p.memory.asking.last == last
