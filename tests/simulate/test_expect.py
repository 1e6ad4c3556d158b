"""What is said where a run is not what its scenario expects."""

import pytest

from factory_watchdog.core.model import Alert, State
from factory_watchdog.simulate import expect, scenario

PHASE = '[[phase]]\nfor = "10m"\n'
RUN = expect.Result(
    states=[(0.0, State.BUSY), (60.0, State.SUSPECT), (120.0, State.BUSY)],
    restarts=[90.0, 300.0],
    questions=[70.0],
    alerts=[Alert.HUNG],
)


def span(begin: str, end: str, state: str) -> str:
    return f'[[expect]]\nfrom = "{begin}"\nto = "{end}"\nstate = {state}'


def moment(at: str, state: str) -> str:
    return f'[[expect]]\nat = "{at}"\nstate = {state}'


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ("", None),
        (moment("59.9s", '"busy"'), None),
        (moment("1m", '"suspect"'), None),
        (moment("1m", '"busy"'), "at 60s it must be busy, and is suspect at 60s"),
        (moment("10m", '["idle", "hung"]'), "at 10m it must be idle or hung, and is busy at 10m"),
        (span("1m", "119s", '"suspect"'), None),
        (span("1m", "2m", '"suspect"'), "from 60s to 120s it must be suspect, and is busy at 120s"),
        (span("0s", "10m", '["busy", "suspect"]'), None),
        (span("0s", "10m", '"busy"'), "from 0s to 10m it must be busy, and is suspect at 60s"),
        ("[expect_total]\nrestarts = 2", None),
        ("[expect_total]\nrestarts = 1", "1 restart expected, 2 made, at 90s, 5m"),
        ("[expect_total]\nquestions = 0", "0 questions expected, 1 asked, at 70s"),
        ("[expect_total]\nquestions_max = 1", None),
        ("[expect_total]\nquestions_max = 0", "at most 0 questions expected, 1 asked, at 70s"),
        ('[expect_total]\nrestart_before = "90s"\nrestart_after = "90s"', None),
        (
            '[expect_total]\nrestart_before = "89s"',
            "the first restart must be made by 89s, and it was made at 90s",
        ),
        (
            '[expect_total]\nrestart_after = "91s"',
            "the first restart must not be made before 91s, and it was made at 90s",
        ),
        ('[expect_total]\nalerts = ["hung"]', None),
        ('[expect_total]\nalerts = ["hung", "breaker"]', "the alert breaker was not raised"),
    ],
)
def test_expectations(expected: str, says: str | None) -> None:
    assert expect.failed(scenario.loads(PHASE + expected), RUN) == ([says] if says else [])


def test_a_run_in_which_nothing_happened() -> None:
    total = '[expect_total]\nrestarts = 1\nrestart_before = "1m"\nrestart_after = "30s"\n'
    expected = "\n".join((PHASE, moment("0s", '"idle"'), total))
    assert expect.failed(scenario.loads(expected), expect.Result(states=[])) == [
        "at 0s it must be idle, and is not judged yet at 0s",
        "1 restart expected, 0 made",
        "the first restart must be made by 60s, and none was made",
    ]
