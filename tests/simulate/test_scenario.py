"""Scenario files: what they mean, and what is said of those that are wrong."""

import pathlib

import pytest

from factory_watchdog.core.model import Alert, Form, State
from factory_watchdog.simulate import scenario
from factory_watchdog.simulate.script import Behaviour, Engine, Expect, ExpectTotal, Phase, ServerSpec, Timeline, Way

SCENARIOS = sorted((pathlib.Path(__file__).parent / "scenarios").glob("*.toml"))
PHASE = '[[phase]]\nfor = "1m"\n'


def phases(text: str) -> tuple[Phase, ...]:
    return scenario.loads(text).phases


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_each_of_our_own_scenarios_can_be_read_and_expects_something(path: pathlib.Path) -> None:
    read = scenario.load(path)
    assert read.name == path.stem
    assert read.about
    assert read.expect_total.restarts is not None


def test_what_is_never_given_is_an_idle_server_that_answers() -> None:
    read = scenario.loads(PHASE, name="x")
    assert read.name == "x"
    assert read.server == ServerSpec()
    assert read.server.load_time == 240.0
    assert read.phases == (Phase(length=60.0),)
    assert read.phases[0].engines == (Engine(),)
    assert read.phases[0].engines[0].question == Behaviour(Way.OK, delay=0.3)
    assert read.phases[0].cpu is None
    assert read.expect == ()
    assert read.expect_total == ExpectTotal()


def test_every_key_has_its_place() -> None:
    read = scenario.loads(
        """
        name = "all"
        about = "everything"
        [backend]
        kind = "vllm"
        hang_after = "90s"
        [server]
        fresh = true
        engines = 2
        start_time = false
        load_time = "3m30s"
        answers = ["completion", "embedding"]
        template = false
        restart = "leaves-orphan"
        api_server = "multi"
        version = "0.10.2"
        [[phase]]
        for = "1m"
        running = 12
        waiting = 3
        steps = 20.5
        tokens = 126
        prompt = 1.0
        finished = 0.1
        kv = [0.2, 0.6]
        metrics = "slow 8s"
        health = "status 503"
        models = "garbage"
        question = "ok 1.5s"
        paused = "absent"
        asleep = true
        cpu = 0.02
        unit = "reloading"
        instance = 3
        carry_counters = true
        counters = "alternate"
        flag = "touched"
        maintenance = true
        engine = { 1 = { running = 8, question = "empty" } }
        suspend = "1h"
        clock_step = "-1h"
        [[expect]]
        at = "30s"
        state = "busy"
        [[expect]]
        from = "30s"
        to = "1m"
        state = ["idle", "busy"]
        [expect_total]
        restarts = 1
        questions = 2
        questions_max = 3
        restart_before = "6m"
        restart_after = "2m"
        alerts = ["hung", "flag-long"]
        """
    )
    assert read.backend == {"kind": "vllm", "hang_after": "90s"}
    assert read.server == ServerSpec(
        fresh=True,
        engines=2,
        start_time=False,
        load_time=210.0,
        answers=frozenset({Form.COMPLETION, Form.EMBEDDING}),
        template=False,
        restart="leaves-orphan",
        api_server="multi",
        version="0.10.2",
    )
    engine = Engine(12.0, 3.0, 20.5, 126.0, 1.0, 0.1, (0.2, 0.6), Behaviour(delay=1.5))
    other = Engine(8.0, 3.0, 20.5, 126.0, 1.0, 0.1, (0.2, 0.6), Behaviour(Way.EMPTY, delay=0.3))
    assert read.phases == (
        Phase(
            length=60.0,
            engines=(engine, other),
            metrics=Behaviour(delay=8.0),
            health=Behaviour(Way.STATUS, status=503),
            models=Behaviour(Way.GARBAGE),
            paused=None,
            asleep=True,
            cpu=0.02,
            unit="reloading",
            instance=3,
            carry_counters=True,
            counters="alternate",
            flag="touched",
            maintenance=True,
            suspend=3600.0,
            clock_step=-3600.0,
        ),
    )
    assert read.expect == (Expect(30.0, 30.0, (State.BUSY,)), Expect(30.0, 60.0, (State.IDLE, State.BUSY)))
    assert read.expect_total == ExpectTotal(1, 2, 3, 360.0, 120.0, (Alert.HUNG, Alert.FLAG_LONG))
    assert read.length == 3660.0


@pytest.mark.parametrize(
    ("words", "means"),
    [
        ("ok", Behaviour()),
        ("timeout", Behaviour(Way.TIMEOUT)),
        ("refused", Behaviour(Way.REFUSED)),
        ("reset", Behaviour(Way.RESET)),
        ("status 500", Behaviour(Way.STATUS, status=500)),
        ("empty", Behaviour(Way.EMPTY)),
        ("slow 8s", Behaviour(delay=8.0)),
        ("garbage", Behaviour(Way.GARBAGE)),
    ],
)
def test_words_for_endpoints(words: str, means: Behaviour) -> None:
    assert phases(f'{PHASE}health = "{words}"')[0].health == means


def test_a_key_that_is_not_given_keeps_its_last_value() -> None:
    first, second, third = phases(
        f"{PHASE}running = 3\nsteps = 2.0\nkv = [0.1, 0.4]\nmaintenance = true\n"
        f"{PHASE}running = 5\n{PHASE}maintenance = false\nkv = 0.0"
    )
    assert [p.engines[0].running for p in (first, second, third)] == [3.0, 5.0, 5.0]
    assert [p.engines[0].kv for p in (first, second, third)] == [(0.1, 0.4), (0.4, 0.4), (0.0, 0.0)]
    assert [p.maintenance for p in (first, second, third)] == [True, True, False]


def test_a_suspend_a_clock_step_and_a_repeat_are_of_their_phase_alone() -> None:
    read = phases(f'{PHASE}suspend = "1h"\nclock_step = "1h"\nrepeat = 2\nkv = [0.0, 0.5]\n{PHASE}')
    assert [p.suspend for p in read] == [3600.0, 3600.0, 0.0]
    assert [p.clock_step for p in read] == [3600.0, 3600.0, 0.0]
    assert [p.engines[0].kv for p in read] == [(0.0, 0.5), (0.0, 0.5), (0.5, 0.5)]


def test_overrides_for_an_engine_are_kept_until_others_are_given() -> None:
    server = "[server]\nengines = 2\n"
    read = phases(
        f"{server}{PHASE}running = 1\nengine = {{ 1 = {{ running = 8, kv = [0.0, 0.9] }} }}\n"
        f"{PHASE}running = 2\n{PHASE}engine = {{}}"
    )
    assert [[e.running for e in p.engines] for p in read] == [[1.0, 8.0], [2.0, 8.0], [2.0, 2.0]]
    assert [p.engines[1].kv for p in read] == [(0.0, 0.9), (0.9, 0.9), (0.0, 0.0)]


def test_the_phase_at_a_time_and_the_seconds_that_it_has_been_played() -> None:
    read = scenario.loads(f'{PHASE}running = 1\n{PHASE}running = 2\nsuspend = "1h"\n')
    where = {
        t: (phase.engines[0].running, at)
        for t in (0.0, 59.0, 60.0, 3660.0, 3690.0, 9999.0)
        for phase, at in [read.at(t)]
    }
    assert where == {
        0.0: (1.0, 0.0),
        59.0: (1.0, 59.0),
        60.0: (2.0, 0.0),
        3660.0: (2.0, 0.0),
        3690.0: (2.0, 30.0),
        9999.0: (2.0, 6339.0),
    }


def test_boot_time_runs_ahead_of_timers_by_the_suspends() -> None:
    timeline = Timeline(phases(f'{PHASE}{PHASE}suspend = "1h"\n{PHASE}suspend = "2s"\n'))
    monotonic = (0.0, 59.5, 60.0, 90.0, 120.0, 500.0)
    assert [timeline.boottime(at) for at in monotonic] == [0.0, 59.5, 3660.0, 3690.0, 3722.0, 4102.0]


BAD = {
    "no phase": ("", "f: phase: a scenario needs at least one [[phase]]"),
    "not TOML": ("name = ", "f: not valid TOML: Invalid value (at end of document)"),
    "unknown table": (
        PHASE.replace("phase", "fase"),
        (
            'f: fase = [{"for": "1m"}]: unknown key; did you mean phase?\n'
            "f: phase: a scenario needs at least one [[phase]]"
        ),
    ),
    "unknown key": (f"{PHASE}runing = 3", "f: phase 1: runing = 3: unknown key; did you mean running?"),
    "unlike any key": (
        f"{PHASE}\n[expect_total]\nzzz = 3",
        (
            "f: expect_total: zzz = 3: unknown key; known are: restarts, questions, questions_max, restart_before, "
            "restart_after, alerts"
        ),
    ),
    "no length": ("[[phase]]\nrunning = 1", 'f: phase 1: for: is missing: how long the phase lasts, as in "5m"'),
    "no time": ('[[phase]]\nfor = "0s"', 'f: phase 1: for = "0s": must be longer than nothing'),
    "length as a number": (
        "[[phase]]\nfor = 60",
        'f: phase 1: for = 60: must be a duration in quotes, as in "90s", "8m30s" or "2h"',
    ),
    "no unit of time": (
        '[[phase]]\nfor = "60"',
        (
            'f: phase 1: for = "60": a duration needs a unit; it must be a number with its unit, as in "250ms", "90s", '
            '"8m30s", "2h" or "1d"'
        ),
    ),
    "negative": (f"{PHASE}running = -1", "f: phase 1: running = -1: must be a number, 0 or more"),
    "infinite": (f"{PHASE}steps = inf", "f: phase 1: steps = Infinity: must be a number, 0 or more"),
    "truth for a number": (f"{PHASE}running = true", "f: phase 1: running = true: must be a number, 0 or more"),
    "number for a truth": (f"{PHASE}maintenance = 1", "f: phase 1: maintenance = 1: must be true or false"),
    "repeat": (f"{PHASE}repeat = 0", "f: phase 1: repeat = 0: must be a whole number, 1 or more"),
    "level": (f"{PHASE}kv = [0, 2]", "f: phase 1: kv = [0, 2]: must be a level from 0 to 1, or [from, to]"),
    "three levels": (
        f"{PHASE}kv = [0, 1, 0]",
        "f: phase 1: kv = [0, 1, 0]: must be a level from 0 to 1, or [from, to]",
    ),
    "endpoint": (
        f'{PHASE}metrics = "slow"',
        (
            'f: phase 1: metrics = "slow": must be one of: ok, timeout, refused, reset, status 500, empty, slow 8s, '
            "garbage"
        ),
    ),
    "status": (
        f'{PHASE}question = "status 99"',
        'f: phase 1: question = "status 99": must be one of: ok 0.3s, timeout, status 503, empty, refused',
    ),
    "unit": (
        f'{PHASE}unit = "stopped"',
        'f: phase 1: unit = "stopped": must be one of: active, activating, deactivating, reloading, inactive, failed',
    ),
    "paused": (f'{PHASE}paused = "no"', 'f: phase 1: paused = "no": must be true, false or "absent"'),
    "no such engine": (
        f"{PHASE}engine = {{ 1 = {{ running = 1 }} }}",
        'f: phase 1, engine: 1 = {"running": 1}: unknown key; known are: 0',
    ),
    "key not of an engine": (
        f"{PHASE}engine = {{ 0 = {{ health = 1 }} }}",
        (
            "f: phase 1, engine 0: health = 1: unknown key; known are: running, waiting, steps, tokens, prompt, "
            "finished, kv, question"
        ),
    ),
    "version": (
        f"[server]\nversion = 0.32\n{PHASE}",
        'f: server: version = 0.32: must be a release in quotes, as in "0.32"',
    ),
    "answers": (
        f'[server]\nanswers = ["chat", "song"]\n{PHASE}',
        (
            'f: server: answers = ["chat", "song"]: must be a list of: chat, chat-completion-tokens, completion, '
            "embedding"
        ),
    ),
    "restart": (
        f'[server]\nrestart = "fine"\n{PHASE}',
        (
            'f: server: restart = "fine": must be one of: works, hangs-again, never-answers, never-ends, fails, '
            "leaves-orphan"
        ),
    ),
    "no state": (
        f'{PHASE}[[expect]]\nat = "1m"',
        "f: expect 1: needs state with either at, or from and to",
    ),
    "both kinds of time": (
        f'{PHASE}[[expect]]\nat = "1m"\nto = "2m"\nstate = "idle"',
        "f: expect 1: needs state with either at, or from and to",
    ),
    "backwards": (
        f'{PHASE}[[expect]]\nfrom = "2m"\nto = "1m"\nstate = "idle"',
        'f: expect 1: to = "1m": must not be before from (2m)',
    ),
    "no such state": (
        f'{PHASE}[[expect]]\nat = "1m"\nstate = "fine"',
        (
            'f: expect 1: state = "fine": must be a state or a list of states: busy, idle, suspect, degraded, '
            "starting, paused, stopped, blind, hung, dead"
        ),
    ),
    "no such alert": (
        f'{PHASE}[expect_total]\nalerts = ["smoke"]',
        (
            'f: expect_total: alerts = ["smoke"]: must be a list of: hung, dead, restart, served, not-served, vetoed, '
            "held, breaker, overdue, paused-long, starved, stand-still, cannot-ask, foreign-process, proxy, "
            "stale-flag, flag-long, unit-failed"
        ),
    ),
    "not a table": (f"server = 1\n{PHASE}", "f: server: must be a table, not 1"),
    "backend": (f"backend = 1\n{PHASE}", "f: backend: must be a table, not 1"),
    "expect": (f"expect = 1\n{PHASE}", "f: expect: must be written as [[expect]]"),
    "everything at once": (
        'name = 1\n[server]\nengines = 0\n[[phase]]\nrunning = "x"\n[[phase]]\nfor = "1m"\nflag = "held"',
        (
            "f: name = 1: must be a string\n"
            "f: server: engines = 0: must be a whole number, 1 or more\n"
            'f: phase 1: running = "x": must be a number, 0 or more\n'
            'f: phase 1: for: is missing: how long the phase lasts, as in "5m"\n'
            'f: phase 2: flag = "held": must be one of: none, locked, touched, stale'
        ),
    ),
}


@pytest.mark.parametrize(("text", "says"), BAD.values(), ids=BAD)
def test_bad_files(text: str, says: str) -> None:
    with pytest.raises(scenario.ScenarioError) as caught:
        scenario.loads(text, file="f")
    assert str(caught.value) == says
    assert len(caught.value.problems) == says.count("\n") + 1


def test_a_file_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    missing, binary = tmp_path / "missing.toml", tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path, says in ((missing, "No such file or directory"), (binary, "it is not UTF-8")):
        with pytest.raises(scenario.ScenarioError) as caught:
            scenario.load(path)
        assert str(caught.value) == f"{path}: cannot be read: {says}"


def test_changes_of_the_present_add_up_and_a_wrong_one_changes_nothing() -> None:
    change = scenario.present(engines=1)
    assert change({"running": 4}).engines[0].running == 4.0
    with pytest.raises(scenario.ScenarioError, match="request: steps = -1: must be a number, 0 or more"):
        change({"running": 7, "steps": -1})
    phase = change({"health": "timeout", "clock_step": "1h"})
    assert (phase.engines[0].running, phase.health.way, phase.clock_step) == (4.0, Way.TIMEOUT, 3600.0)
    assert change({}).clock_step == 0.0
