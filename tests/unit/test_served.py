"""From a restart to a served life: the job, the new life, its first answer, and our own death on the way."""

from __future__ import annotations

from typing import Any

import pytest

from factory_watchdog.core.model import Flag, Hold, JobResult, Purpose

HANG = "work*2 still*14 "  # a question is out to confirm it
HUNG = HANG + "failed still "  # restarted


# --- job, new life, served -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (JobResult.FAILED, "the restart failed"),
        (JobResult.NEVER_ENDED, "does not end; it is not pushed again"),
        (JobResult.DENIED, "no permission"),
        (JobResult.NO_BUS, "cannot be reached"),
    ],
)
def test_a_job_that_is_not_done(play: Any, result: JobResult, word: str) -> None:
    p = play().restarted()
    p.job(result)
    assert not p.settled[-1].served
    assert word in p.settled[-1].why
    assert p.alerts[-1] == "not-served"
    p.run("still+job*30")
    assert len(p.restarts) == 1, "no second push while a job is queued"


def test_a_job_of_another_attempt_is_no_ones(play: Any, builders: Any) -> None:
    p = play().restarted()
    state = p.state
    assert p.feed(builders.JobEnded(7, JobResult.DONE)) == ()
    assert p.state == state
    p.job(JobResult.DONE)
    p.run("life refused quiet*2 answered own")
    state = p.state
    assert p.feed(builders.JobEnded(1, JobResult.NEVER_ENDED)) == ()
    assert p.state == state


def test_nothing_is_judged_before_a_new_life(play: Any) -> None:
    p = play().restarted().run("still*3 refused*30 still*10")
    assert p.phase == "restart"
    assert p.shown == "hung flat 0"
    assert len(p.restarts) == 1


def test_a_new_life_is_seen_before_the_job_ends_or_after(play: Any) -> None:
    for script in ("life refused", "done-job life refused"):
        p = play().restarted().run(script)
        assert p.phase == "serve"
        assert p.shown == "starting starting"


def test_a_job_that_fails_after_the_new_life_was_seen(play: Any) -> None:
    p = play().restarted().run("life refused")
    p.job(JobResult.FAILED)
    assert p.phase == "watch"
    assert not p.settled[-1].served


def test_the_old_life_that_goes_on_after_the_job(play: Any) -> None:
    p = play().restarted().run("done-job still*2")
    assert p.phase == "life"
    p.run("still")
    assert p.phase == "watch"
    assert "the old life goes on" in p.settled[-1].why


def test_an_action_need_not_show_a_new_life_at_once(play: Any) -> None:
    p = play(action=True).restarted().run("done-job still*20")
    assert p.phase == "life"
    p.life()
    p.run("refused quiet*2 answered own")
    assert p.settled[-1].served


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_a_unit_that_is_not_there_after_the_job(play: Any, state: str) -> None:
    p = play().restarted().run(f"done-job refused+unit-{state}")
    assert f"the unit is {state}" in p.settled[0].why
    assert len(p.restarts) == 1


def test_a_manager_that_does_not_tell_is_waited_for(play: Any) -> None:
    p = play().restarted().run("done-job refused+untold*30")
    assert p.phase == "life"


def test_a_restart_that_never_serves_is_overdue(play: Any) -> None:
    p = play().restarted().run("life refused*179")
    assert p.settled == []
    p.run("refused*2")
    assert not p.settled[0].served
    assert p.alerts.count("not-served") == 1


def test_served_is_a_first_answer_asked_for_at_once(play: Any) -> None:
    p = play().restarted().run("done-job life refused*3 quiet")
    assert p.asks[-1].purpose is Purpose.SERVE
    assert p.phase == "serve"
    p.run("answered own")
    assert p.phase == "watch"
    assert p.settled[-1].served
    assert p.alerts[-1] == "served"


def test_served_by_traffic(play: Any) -> None:
    p = play().restarted().run("done-job life refused*3 still token")
    assert p.settled[-1].served
    assert len(p.asks) == 1, "it was never asked"


def test_a_first_question_that_fails_is_asked_again(play: Any) -> None:
    p = play().restarted().run("done-job life refused*3 quiet failed quiet*7")
    assert p.phase == "serve"
    assert len(p.asks) == 3
    p.run("answered own")
    assert p.settled[-1].served


def test_what_cannot_be_asked_has_served_when_it_is_up(play: Any) -> None:
    p = play().restarted().run("done-job life refused*3 quiet denied quiet")
    assert p.settled[-1].served
    p = play(forms=()).restarted("work*2 still*14").run("done-job life refused*3 quiet")
    assert p.settled[-1].served


def test_no_question_to_serve_while_the_flag_is_held(play: Any) -> None:
    p = play().restarted().run("done-job life refused*3 quiet+flag*20")
    assert len(p.asks) == 1
    assert p.phase == "serve"
    p.run("quiet answered own")
    assert p.settled[-1].served


def test_processes_of_the_old_life_are_waited_for(play: Any) -> None:
    p = play().restarted().run("done-job life refused*3 token+left-over*10")
    assert p.phase == "serve"
    p.run("token")
    assert p.settled[-1].served


def test_processes_of_the_old_life_that_stay_are_told_with_their_pids(play: Any) -> None:
    p = play().restarted().run("done-job life refused*3 token+left-over*25")
    assert p.phase == "serve"
    p.run("token+left-over*3")
    settled = p.settled[-1]
    told = "serving again 5 min after the restart, yet processes of the old life are still there (PIDs 77)"
    assert (settled.served, settled.why, p.alerts[-1]) == (False, told, "not-served")
    p.run("work+left-over*61 still+left-over*14 failed still+left-over")
    assert len(p.restarts) == 1
    assert "held: processes of the old life are still there (PIDs 77)" in p.state.verdict.why


def test_stopped_while_it_is_restarted(play: Any) -> None:
    p = play().restarted().run("done-job life refused*3 refused+unit-inactive")
    assert p.phase == "watch"
    assert not p.settled[-1].served
    assert p.shown == "stopped unit-set-aside"


def test_a_new_life_that_hangs_again_before_it_served(play: Any) -> None:
    p = play(first_outcome=0.0).restarted().run("done-job life refused*3 still*14")
    assert not p.settled[-1].served
    assert p.phase == "confirm"
    for _ in range(80):
        p.run("failed still" if p.question is not None else "still")
    assert len(p.restarts) == 2
    assert p.restarts[0].identity != p.restarts[1].identity


def test_the_other_restart_frees_the_host_when_it_settles(play: Any) -> None:
    p = play().restarted()
    assert p.state.recovery.phase.restarting
    p.run("done-job life refused*3 quiet*2 answered own")
    assert p.settled[-1].served
    assert not p.state.recovery.phase.restarting


# --- stopped, other lives --------------------------------------------------------------------------------------------


def test_an_operator_who_stops_it_while_it_is_confirmed(play: Any) -> None:
    p = play().run(HANG + "still+unit-deactivating failed still+unit-deactivating refused+unit-inactive*20")
    assert p.restarts == []
    assert p.shown == "stopped unit-set-aside"


def test_somebody_else_restarts_it_while_it_is_confirmed(play: Any) -> None:
    p = play().run(HANG)
    p.life()
    p.run("refused+no-start failed refused quiet*3")
    assert p.restarts == []
    assert p.shown == "idle idle"


# --- our own death ---------------------------------------------------------------------------------------------------

# Script to a phase, the phase, what follows our restart, restarts altogether.
DEATHS = [
    ("work*2 still*5", "watch", "still*5", 0),
    (HANG, "confirm", "still*5", 0),
    (HANG + "failed", "confirm", "still*5", 0),
    ("work*2 still*3 still+flag*20", "held", "still*5", 0),
    (HUNG, "restart", "still*5", 1),
    (HUNG + "done-job", "life", "still*5", 1),
    (HUNG + "done-job life refused*3", "serve", "quiet answered own quiet*5", 1),
    (HUNG + "life refused", "serve", "quiet answered own quiet*5", 1),
]


@pytest.mark.parametrize(("script", "phase", "then", "restarts"), DEATHS)
def test_our_own_death(play: Any, script: str, phase: str, then: str, restarts: int) -> None:
    p = play().run(script)
    assert p.phase == phase
    p.run("restart-daemon").run(then)
    assert len(p.restarts) == restarts


def test_after_our_death_a_restart_under_way_goes_on(play: Any) -> None:
    p = play().restarted().run("restart-daemon")
    assert p.phase == "life"
    p.run("life refused*3 quiet answered own")
    assert p.settled[-1].served
    assert p.settled[-1].attempt == 1


def test_after_our_death_a_restart_that_was_never_pushed_comes_again_after_ten_minutes(play: Any) -> None:
    p = play(forms=()).restarted("work*2 still*14").run("restart-daemon still*4")
    assert "the old life goes on" in p.settled[-1].why
    p.run("still*70")
    assert len(p.restarts) == 2
    first, second = (t for t, e in p.effects if e in p.restarts)
    assert second - first >= 600


def test_the_budget_outlives_us(play: Any) -> None:
    p = play(forms=()).poison(400)
    p.run("restart-daemon still*200")
    assert len(p.restarts) == 3
    assert Hold.BREAKER in p.state.recovery.holds


def test_a_question_that_was_out_is_forgotten(play: Any) -> None:
    p = play().run("quiet*7 restart-daemon quiet*8")
    assert len(p.asks) == 2
    assert p.asks[0].id != p.asks[1].id


def test_at_the_beginning_of_time(play: Any) -> None:
    """Boot time begins at zero, and restarts of an earlier boot lie before it."""
    p = play(forms=())
    p.now = -300.0
    p.run("work*2 still*14")
    assert len(p.restarts) == 1
    q = play()
    q.now = -70.1
    q.run("quiet*8 failed quiet*8 failed quiet")
    assert q.memory.engines[0].failing_since == q.asks[0].sent


def test_a_flag_is_named_by_its_holder(play: Any) -> None:
    p = play(forms=()).run("work*2 still*3")
    for _ in range(14):
        p.poll("still", flag=Flag(held=True, why="pid 7 (train)", since=1.0))
    assert "busy flag (pid 7 (train))" in p.state.verdict.why


# --- what was not done, and what others do ---------------------------------------------------------------------------


def test_a_restart_that_was_dropped_counts_against_nothing(play: Any) -> None:
    p = play(max_restarts=1).restarted()
    p.job(JobResult.DROPPED)
    assert (p.settled[-1].served, p.settled[-1].why) == (False, "the restart was dropped")
    p.run("work*2 still*14 failed still")
    assert len(p.restarts) == 2


def test_a_restart_that_nobody_saw_end_is_not_said_to_have_ended(play: Any) -> None:
    p = play().restarted()
    p.resume()
    p.run("still*4")
    assert p.settled[-1].why == "the watchdog was restarted meanwhile, yet the old life goes on"


@pytest.mark.parametrize("revive", [False, True])
def test_a_unit_that_failed_while_it_was_being_stopped_is_stopped(play: Any, revive: bool) -> None:
    p = play(revive=revive).run("work*2 refused+stopped-failed*20")
    assert (p.shown, p.restarts, p.alerts) == ("stopped unit-set-aside", [], [])


def test_our_own_stop_is_nobodys(play: Any) -> None:
    p = play().restarted()
    p.job(JobResult.FAILED)
    p.run("refused+stopped-failed*3")
    assert p.shown == "dead unit-failed"


@pytest.mark.parametrize(("revive", "restarts"), [(False, 0), (True, 1)])
def test_a_server_that_ended_by_itself_with_success_is_started_only_if_told_so(
    play: Any, revive: bool, restarts: int
) -> None:
    """vLLM does so when its engine dies, and Restart=on-failure then does nothing (vllm-project/vllm#48966)."""
    p = play(revive=revive).run("work*2 refused+gave-up*3")
    assert len(p.restarts) == restarts
    assert p.alerts[:2] == ["unit-failed", "dead"]
    why = (
        "the unit is inactive, for the server ended by itself with success, "
        "and the service manager does not start it again (Restart=on-failure)"
    )
    assert p.state.recovery.ground.why == why


def test_pages_of_the_old_life_do_not_serve_the_new_one(play: Any) -> None:
    p = play()
    p.run("work+no-start work+no-start")
    p.life()
    p.run("work+no-start")  # the unit is new, the pages were fetched a moment before
    assert p.shown.startswith("starting")
    p.run("refused+no-start*9")
    assert p.shown.startswith("starting")
    assert p.restarts == []
