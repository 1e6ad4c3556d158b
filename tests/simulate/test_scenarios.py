"""Cases from the field, played through the real poll, reader, judge and recovery; and what `simulate` says of them."""

import json
import pathlib
from typing import Any

import pytest

from factory_watchdog.cli.app import run_command_line
from factory_watchdog.core.model import Alert, State
from factory_watchdog.simulate import scenario
from factory_watchdog.simulate.run import play

FOLDER = pathlib.Path(__file__).parent / "scenarios"
SCENARIOS = sorted(FOLDER.glob("*.toml"))
HELD, NOT_HELD, WRONG = 0, 1, 2

BRIEF = 'name = "brief"\n[[phase]]\nfor = "1m"\nrunning = 1\nsteps = 1.0\ntokens = 1.0\n'
FAILS = BRIEF + '[expect_total]\nrestarts = 3\nalerts = ["breaker"]\n'


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_what_a_scenario_expects_comes_true(path: pathlib.Path) -> None:
    assert play(scenario.load(path)).failed == []


def simulate(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run_command_line(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def file(folder: pathlib.Path, text: str, name: str = "scenario.toml") -> pathlib.Path:
    path = folder / name
    path.write_text(text)
    return path


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("name", ["classic-hang", "dp-one-engine-stuck", "saturated", "poison-loop"])
def test_json_has_a_line_for_each_change_and_a_summary_at_the_end(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    played = play(scenario.load(FOLDER / f"{name}.toml"))
    code, output, errors = simulate(capsys, "--json", FOLDER / f"{name}.toml")
    assert (code, errors) == (HELD, "")
    *changes, last = lines(output)
    assert len(changes) == len(played.changes) > 0
    for change in changes:
        assert list(change) == ["t", "state", "engine", "why"]
        assert isinstance(change["t"], float)
        assert change["state"] in set(State)
        assert change["engine"] is None or isinstance(change["engine"], str)
        assert change["why"].isprintable()
    assert [change["t"] for change in changes] == sorted(change["t"] for change in changes)
    summary = last["summary"]
    assert list(last) == ["summary"]
    assert list(summary) == ["name", "restarts", "questions", "alerts", "failed"]
    assert (summary["name"], summary["failed"]) == (name, [])
    assert summary["restarts"] == played.restarts
    assert summary["questions"] == played.questions
    assert set(summary["alerts"]) == {raised.alert for raised in played.alerts} <= set(Alert)
    assert len(set(summary["alerts"])) == len(summary["alerts"])


def test_json_names_what_does_not_hold(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = simulate(capsys, "--json", file(tmp_path, FAILS))
    assert code == NOT_HELD
    assert lines(output)[-1]["summary"]["failed"] == [
        "3 restarts expected, 0 made",
        "the alert breaker was not raised",
    ]


def test_people_get_a_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = simulate(capsys, FOLDER / "classic-hang.toml")
    assert code == HELD
    for words in ("classic-hang\n", "hung", "a question is sent", "! restart", "* alert hung", "all expectations hold"):
        assert words in output


def test_people_are_told_what_does_not_hold(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = simulate(capsys, file(tmp_path, FAILS))
    assert code == NOT_HELD
    assert "does not hold: 3 restarts expected, 0 made\n" in output
    assert "all expectations hold" not in output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[phase", "scenario.toml"),
        ("", "phase"),
        (BRIEF + 'colour = "red"\n', "colour"),
        (f'[backend]\nhang_after = "1s"\n{BRIEF.partition(chr(10))[2]}', "hang_after"),
    ],
)
def test_a_file_that_is_wrong(text: str, says: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, errors = simulate(capsys, "--json", file(tmp_path, text))
    assert (code, output) == (WRONG, "")
    assert says in errors


@pytest.mark.parametrize("path", ["/nonexistent.toml", "/", "/dev/null"])
def test_a_file_that_cannot_be_read(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, errors = simulate(capsys, "--json", path)
    assert (code, output) == (WRONG, "")
    assert errors.startswith(f"{path}")


def test_the_worst_of_several_files_decides_and_all_are_played(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    holds, fails = file(tmp_path, BRIEF, "a.toml"), file(tmp_path, FAILS, "b.toml")
    wrong = file(tmp_path, "?", "c.toml")
    for files, worst in (((holds, holds), HELD), ((holds, fails), NOT_HELD), ((wrong, fails, holds), WRONG)):
        code, output, _ = simulate(capsys, "--json", *files)
        assert code == worst
        assert output.count('"summary"') == len([f for f in files if f != wrong])


def test_no_file_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(capsys)[0] == WRONG
