"""What the documentation names is exactly what the code has."""

import ast
import dataclasses
import inspect
import pathlib
import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest

from factory_watchdog import readings
from factory_watchdog.cli.app import app, config_app
from factory_watchdog.config.durations import show
from factory_watchdog.config.kinds import Budget
from factory_watchdog.config.schema import SETTINGS
from factory_watchdog.core import judge
from factory_watchdog.core.model import MEANING, Meaning, State
from factory_watchdog.world import evidence, journal, store, systemd

ROOT = pathlib.Path(__file__).resolve().parents[2]
DECIDES = ROOT / "docs/how-it-decides.md"
PROOF = ROOT / "docs/proof.md"
GENERATE = runpy.run_path(str(ROOT / "docs/generate.py"))
README = ROOT / "README.md"
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")})
SETTINGS_OF_ALL = {name: setting for table in SETTINGS.values() for name, setting in table.items()}


def rows(page: pathlib.Path, header: str) -> list[list[str]]:
    """The cells of the table whose first column is called `header`, without code marks around the first."""
    lines = iter(page.read_text().splitlines())
    assert any(line.startswith(f"| {header} |") for line in lines), f"{page.name} has no table of each {header}"
    next(lines)
    return list(_cells(lines))


def _cells(lines: Iterator[str]) -> Iterator[list[str]]:
    for line in lines:
        if not line.startswith("|"):
            return
        first, *rest = (cell.strip() for cell in line.strip("|").split(" | "))
        yield [first.strip("` "), *rest]


def told(meaning: Meaning) -> list[str]:
    yes = {True: "yes", False: "no", None: "as `/health` says"}
    return [yes[meaning.live], yes[meaning.ready], str(meaning.exit)]


def test_states() -> None:
    assert {row[0]: row[1:4] for row in rows(README, "state")} == {s.value: told(m) for s, m in MEANING.items()}


def test_the_evidence_of_a_restart() -> None:
    documented = {row[0]: row[1] for row in rows(PROOF, "part of the evidence")}
    assert list(documented) == [
        field.name for field in dataclasses.fields(evidence.Evidence) if field.name != "seconds"
    ]
    names = {name for properties in systemd.SHOWN.values() for name in properties}
    assert set(documented["unit"].split(", ")) == names
    assert f"at most {evidence.MOST_PROCESSES}" in documented["processes"]


def test_the_figures_of_a_record() -> None:
    page = " ".join(PROOF.read_text().split())
    assert f"They are at most {readings.MOST}: " in page
    assert f"and the newest {readings.NEWEST}." in page
    kept = (
        f"{store.KEPT_FOR / 86400:g} days, {store.KEPT['restart']:,} restarts and {store.KEPT_PROOFS >> 20} MiB of them"
    )
    assert kept in page
    assert f"{journal.NEWEST} at most" in page


def test_rules_in_their_order() -> None:
    documented = [(row[0], row[-1].strip(" |")) for row in rows(DECIDES, "rule")]
    assert documented == [(row.name, "yes" if row.resets else "no") for row in judge.RULES]


def test_findings() -> None:
    """The second column of the rules has each finding with exactly the states that the code gives it."""
    documented: dict[str, set[str]] = {}
    for row in rows(DECIDES, "rule"):
        for states, finding in re.findall(r"([a-z ]+) `([a-z-]+)`", row[1]):
            documented.setdefault(finding, set()).update(states.split(" or "))
    assert {finding: {state.strip() for state in states} for finding, states in documented.items()} == findings()


def findings() -> dict[str, set[str]]:
    """Each finding that judge.py can come to, with its states, read from its source."""
    found: dict[str, set[str]] = {}
    for function in ast.parse(inspect.getsource(judge)).body:
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
                state, name = call.args[:2]
                assert isinstance(name, ast.Constant)
                found.setdefault(str(name.value), set()).update(_states(state, function))
    return found


def _states(state: ast.expr, function: ast.stmt) -> set[str]:
    """The states that an argument stands for: itself, or what the variable is set to in its function."""
    if isinstance(state, ast.Name):
        values = [n.value for n in ast.walk(function) if isinstance(n, ast.Assign) and _is(n.targets[0], state.id)]
        return {name for value in values for name in _states(value, function)}
    if isinstance(state, ast.IfExp):
        return _states(state.body, function) | _states(state.orelse, function)
    assert isinstance(state, ast.Attribute)
    return {State[state.attr].value}


def _is(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


@pytest.mark.parametrize("name", GENERATE["PAGES"])
def test_generated_pages_have_not_drifted(name: str) -> None:
    """`make docs` writes them anew."""
    assert (GENERATE["REFERENCE"] / name).read_text() == GENERATE["PAGES"][name]()


def test_defaults() -> None:
    named = re.findall(r"`([a-z_]+)` \(([^)]*)\)", DECIDES.read_text())
    assert len(named) > 10
    for name, value in named:
        assert value == as_in_the_file(SETTINGS_OF_ALL[name].default), name


def as_in_the_file(default: Any) -> str:
    match default:
        case float():
            return show(default)
        case Budget(count=count, window=window):
            return f"{count} per {show(window)}"
    return str(default)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: pathlib.Path) -> None:
    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback is not None}
    for words in re.findall(r"llm-health ([a-z]+(?: [a-z]+)?)", page.read_text()):
        command, _, following = words.partition(" ")
        if command == "config":
            assert following in {c.name for c in config_app.registered_commands}, words
        else:
            assert command in commands, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_exist(page: pathlib.Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= {
        pair for target in targets for pair in ((target, ""), ("", target))
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        assert link.startswith("https://") or (page.parent / link).exists(), link


@pytest.mark.parametrize("page", [README, DECIDES], ids=lambda page: page.name)
def test_settings_exist(page: pathlib.Path) -> None:
    """Words with an underscore in code marks are settings."""
    for name in re.findall(r"`([a-z]+_[a-z_]+)`", page.read_text()):
        assert name in SETTINGS_OF_ALL, name
