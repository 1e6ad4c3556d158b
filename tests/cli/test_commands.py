"""The other commands, with a real daemon in a process of its own and without one."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from factory_watchdog.world.control import SOCKET, call

FAULT, USAGE, BAD_CONFIG = 1, 2, 78
BUSY = '[[phase]]\nfor = "1h"\nrunning = 2\nsteps = 50.0\ntokens = 100.0\nfinished = 0.5\nkv = 0.5\n'
FROZEN = '[[phase]]\nfor = "1h"\nrunning = 2\nkv = 0.5\nquestion = "timeout"\n'
NOBODY = "http://127.0.0.1:1"

IMPATIENT = """
import dataclasses
from factory_watchdog.config import schema
settings = schema.settings
schema.settings = lambda *given: dataclasses.replace(settings(*given), question_every=0.2)
from factory_watchdog.__main__ import main
main()
"""
"""The program with a spacing of questions that no configuration file can have."""

Command = Callable[..., Any]
Start = Callable[..., Any]


def state_is(configured: Any, name: str, state: str) -> Callable[[], bool]:
    def holds() -> bool:
        told = call(configured.runtime / SOCKET, {"command": "status", "name": name}, 5.0)
        return bool(told["ok"] and told["backends"][0]["state"] == state)

    return holds


# --- with a daemon ---------------------------------------------------------------------------------------------------


def test_what_a_daemon_watches_can_be_asked(configured: Any, serve: Command, command: Command, daemon: Start) -> None:
    configured.watching(serve(BUSY).url)
    running = daemon()
    running.until(state_is(configured, "sim", "busy"))
    given = ("-c", configured.path)

    assert command("check", *given).code == 0
    assert command("check", "sim", "--wait", *given).code == 0
    assert "the daemon does not watch nosuch; it watches sim" in command("check", "nosuch", *given).err

    told = command("explain", "sim", *given)
    assert told.code == 0
    assert told.out.startswith("sim\n  It is busy for ")
    assert command("explain", *given).out.startswith("sim\n  It is busy for ")
    explained = json.loads(command("explain", "sim", "--json", *given).out)
    assert explained["state"] == "busy"
    assert "Nothing is known" not in explained["explained"][0]
    assert command("explain", "nosuch", *given).err == "llm-health: unknown backend 'nosuch'; known are sim\n"
    assert command("explain", "7", *given).err == "llm-health: there is no restart 7; llm-health history shows them\n"

    assert command("reset", "sim", *given).out == "sim: restarts forgotten, the breaker is closed\n"
    assert command("reset", "nosuch", *given).code == FAULT
    running.until(lambda: "reset" in running.words())

    (entry,) = command("history", *given).out.splitlines()
    assert " state busy: " in entry or " busy" in entry
    first = json.loads(command("history", "sim", "--json", "-n", "1", *given).out)
    assert list(first) == ["time", "backend", "kind", "word", "engine", "why", "restart"]
    assert (first["backend"], first["word"]) == ("sim", "busy")

    assert running.end() == 0
    assert running.words()[-1] == "stopped"
    assert not (configured.runtime / SOCKET).exists()
    assert "nothing is known of nosuch" in command("history", "nosuch", *given).err
    # The history is there without the daemon; what it alone knows is not.
    assert command("history", *given).code == 0
    asked = command("explain", "sim", *given)
    assert asked.code == FAULT
    assert asked.err.endswith(
        f"no daemon answers at {configured.runtime / SOCKET}; does factory-watchdog.service run?\n"
    )


def test_what_an_operator_orders(configured: Any, serve: Command, command: Command, daemon: Start) -> None:
    configured.watching(serve(BUSY).url)
    running = daemon()
    running.until(state_is(configured, "sim", "busy"))
    given = ("-c", configured.path)

    refused = command("restart", "sim", *given)
    assert refused.code == FAULT
    assert refused.err == "llm-health: sim is not restarted: held: no unit configured, watched only\n"
    assert "unknown backend 'nosuch'" in command("restart", "nosuch", *given).err

    began = command("maintenance", "sim", "--for", "1h", *given)
    assert began.out == "sim: set aside for 1h; llm-health maintenance sim --end ends it\n"
    running.until(state_is(configured, "sim", "paused"))
    told = json.loads(command("explain", "sim", "--json", *given).out)
    assert told["why"] == f"maintenance: for another 1 h, by uid {os.getuid()}"
    assert command("maintenance", "sim", "--end", *given).out == "sim: maintenance has ended\n"
    running.until(state_is(configured, "sim", "busy"))
    assert command("maintenance", "sim", "--end", *given).out == "sim: no maintenance was in force\n"
    orders = [(line["event"], line["by"]) for line in running.lines() if "by" in line]
    assert orders == [(word, f"uid {os.getuid()}") for word in ("restart", *["maintenance"] * 3)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "give one of --for DURATION and --end"),
        (("--for", "1h", "--end"), "give one of --for DURATION and --end"),
        (("--for", "soon"), "--for soon: not a duration; it must be a number with its unit"),
        (("--for", "8d"), "seconds = 691200.0: must be a number above 0 and at most 604800"),
        (("--for", "0s"), "seconds = 0.0: must be a number above 0 and at most 604800"),
    ],
)
def test_a_maintenance_that_makes_no_sense(
    configured: Any, serve: Command, command: Command, daemon: Start, arguments: tuple[str, ...], error: str
) -> None:
    configured.watching(serve(BUSY).url)
    daemon().until(state_is(configured, "sim", "busy"))
    ended = command("maintenance", "sim", *arguments, "-c", configured.path)
    assert (ended.code, ended.err.startswith(f"llm-health: {error}")) == (FAULT, True)


def test_what_a_server_says_is_clean_in_log_history_and_files(
    configured: Any, serve: Command, command: Command, daemon: Start
) -> None:
    served = serve(BUSY)
    respond = served.server.respond

    def hostile(method: str, path: str, *rest: Any) -> Any:
        """Names an encoding that would clear the screen, and add performance data and a line of its own."""
        headers = (("content-encoding", "evil\x1b[2J\x1b]0;x\x07 | 'x'=1\x85CRITICAL"),)
        scripted = respond(method, path, *rest)
        return dataclasses.replace(scripted, headers=headers) if path == "/metrics" else scripted

    served.server.respond = hostile
    configured.watching(served.url, kind="vllm")
    running = daemon()
    running.until(lambda: "state" in running.words())
    given = ("-c", configured.path)
    printed = [command("explain", "sim", *given).out, command("history", *given).out]
    files = [running.log.read_text(), (configured.runtime / "sim.json").read_text()]
    nagios = command("check", *given).out
    assert "evil" in files[0]
    for text in (*printed, *files, nagios.partition(" | ")[0]):
        assert all(character.isprintable() or character == "\n" for character in text)
        assert "|" not in text
        assert "\\u001b" not in text
    assert (nagios.count("|"), nagios.count("\n")) == (1, 1)


def test_a_second_daemon_in_the_same_place_does_not_watch(
    configured: Any, serve: Command, daemon: Start, process: Command
) -> None:
    """Two would ask and restart twice."""
    configured.watching(serve(BUSY).url)
    running = daemon()
    second = process("run", "-c", configured.path)
    assert second.code == FAULT
    assert "another daemon answers at" in second.err
    assert '"started"' not in second.err
    running.until(state_is(configured, "sim", "busy"))


def test_the_place_of_a_daemon_that_was_killed_is_taken_over(configured: Any, serve: Command, daemon: Start) -> None:
    configured.watching(serve(BUSY).url)
    killed = daemon()
    killed.process.kill()
    killed.process.wait()
    assert (configured.runtime / SOCKET).exists()
    daemon().until(state_is(configured, "sim", "busy"))


def test_a_storm_of_reloads_ends_with_the_newest_file(configured: Any, serve: Command, daemon: Start) -> None:
    url = serve(BUSY).url
    configured.watching(url)
    running = daemon()
    for number in range(60):
        configured.write("".join(f'[[backend]]\nname = "b{n}"\nurl = "{url}"\n' for n in range(number % 7 + 1)))
        running.signal(signal.SIGHUP)
        time.sleep(0.005)
    configured.watching(url, name="last")
    running.signal(signal.SIGHUP)
    running.until(lambda: any(line.get("backends") == ["last"] for line in running.lines()))
    running.until(state_is(configured, "last", "busy"))
    assert "fault" not in running.words()
    assert [path.name for path in configured.runtime.glob("*.json")] == ["last.json"]
    assert running.end() == 0


def test_a_reload_of_a_wrong_file_changes_nothing(configured: Any, serve: Command, daemon: Start) -> None:
    configured.watching(serve(BUSY).url)
    running = daemon()
    good = configured.path.read_text()
    for number, bad in enumerate(("", "[[backend", good + 'colour = "red"\n', good.replace("http:", "gopher:"))):
        configured.path.write_text(bad)
        running.signal(signal.SIGHUP)
        running.until(lambda n=number: running.words().count("configuration kept: the file is wrong") > n)
    configured.path.unlink()
    running.signal(signal.SIGHUP)
    running.until(lambda: "No such file" in running.log.read_text())
    running.until(state_is(configured, "sim", "busy"))


def test_a_daemon_ends_while_a_question_is_out(configured: Any, serve: Command, daemon: Start) -> None:
    served = serve('[[phase]]\nfor = "1h"\nquestion = "timeout"\n')
    configured.watching(served.url, question_timeout="1m", kind="vllm")
    running = daemon([sys.executable, "-c", IMPATIENT])
    running.until(lambda: served.questions)
    began = time.monotonic()
    assert running.end() == 0
    assert time.monotonic() - began < 5.0
    assert running.words()[-1] == "stopped"
    with contextlib.closing(sqlite3.connect(configured.state / "history.sqlite3")) as store:
        assert store.execute("SELECT count(*) FROM state").fetchone() == (1,)


def test_a_daemon_ends_by_ctrl_c(daemon: Start) -> None:
    running = daemon()
    running.signal(signal.SIGINT)
    assert running.process.wait(20.0) == 0
    assert running.words()[-1] == "stopped"


def test_a_log_that_cannot_be_written_does_not_end_the_watch(configured: Any, serve: Command) -> None:
    served = serve(BUSY)
    configured.watching(served.url, kind="vllm")
    command = [sys.executable, "-m", "factory_watchdog", "run", "-c", str(configured.path)]
    with open("/dev/full", "wb") as full:
        watching = subprocess.Popen(command, stderr=full)
    try:
        ends = time.monotonic() + 20.0
        while served.paths.count("/metrics") < 6:
            assert watching.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.02)
        assert (configured.runtime / "sim.json").exists()
    finally:
        watching.terminate()
        assert watching.wait(20.0) == 0


@pytest.mark.parametrize("place", ["runtime", "state"])
def test_folders_that_cannot_be_used_are_told_and_the_watch_goes_on(
    place: str, configured: Any, serve: Command, daemon: Start
) -> None:
    served = serve(BUSY)
    folder = getattr(configured, place)
    folder.rmdir()
    folder.write_text("a file where a folder should be")
    configured.watching(served.url, kind="vllm")
    running = daemon()
    running.until(lambda: served.paths.count("/metrics") > 3)
    faults = [line for line in running.lines() if line["event"] == "fault"]
    assert 1 <= len(faults) <= 3
    assert all(str(folder) in line["what"] for line in faults)
    assert running.end() == 0


# --- without a daemon ------------------------------------------------------------------------------------------------


def test_version_and_help(command: Command) -> None:
    assert command("--version").out.startswith("llm-health 0.")
    for arguments in (["--help"], ["check", "--help"], ["config", "show", "--help"]):
        ended = command(*arguments)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.startswith("Usage: ")


def test_only_the_called_command_is_built(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = typer.main.get_command_from_info

    def noted(command_info: typer.models.CommandInfo, **how: Any) -> Any:
        made = build(command_info, **how)
        built.append(str(made.name))
        return made

    monkeypatch.setattr(typer.main, "get_command_from_info", noted)
    names = [line.split()[0] for line in command("--help").out.partition("Commands:\n")[2].splitlines()]
    assert {"check", "history", "config"} < set(names) <= {"config", *built}
    for name in names:
        built.clear()
        assert f" {name} " in command(name, "--help").out.splitlines()[0]
        assert name == "config" or built == [name]


def test_a_mistyped_command_is_told_which_is_like_it(command: Command) -> None:
    assert "Did you mean 'history'?" in command("histroy").err


@pytest.mark.parametrize("arguments", [["run", "--bogus"], ["history", "-n", "0"], ["config"], ["reset"], ["restart"]])
def test_wrong_usage(arguments: list[str], command: Command) -> None:
    ended = command(*arguments)
    assert ended.code == USAGE
    assert "Usage: " in ended.err + ended.out


@pytest.mark.parametrize(
    "content", ["", "[[backend", '[[backend]]\nname = "A"\nurl = "x"\n', "\0", '[daemon]\ninterval = "1ns"\n']
)
def test_run_exits_78_for_a_bad_file(content: str, configured: Any, process: Command) -> None:
    configured.path.write_text(content)
    ended = process("run", "-c", configured.path)
    assert ended.code == BAD_CONFIG
    assert ended.err.startswith(f"{configured.path}: ")
    assert "Traceback" not in ended.err


def test_run_exits_78_for_no_file(process: Command) -> None:
    assert process("run", "-c", "/nonexistent").code == BAD_CONFIG


@pytest.mark.parametrize("arguments", [["explain", "sim"], ["reset", "sim"]])
def test_no_daemon_is_told_with_what_to_do(arguments: list[str], configured: Any, command: Command) -> None:
    ended = command(*arguments, "-c", configured.path)
    assert (ended.code, ended.out) == (FAULT, "")
    assert ended.err == (
        f"llm-health: no daemon answers at {configured.runtime / SOCKET}; does factory-watchdog.service run?\n"
    )


@pytest.mark.parametrize("what", ["#", "٣", "9" * 5000, "-1", "\x1b[2J"])
def test_odd_things_to_explain(what: str, configured: Any, command: Command) -> None:
    ended = command("explain", "-c", configured.path, "--", what)
    assert ended.code == FAULT
    assert "Traceback" not in ended.err


def test_no_history_is_told(configured: Any, command: Command) -> None:
    ended = command("history", "-c", configured.path)
    assert ended.code == FAULT
    assert "does not exist: no daemon has kept a history here" in ended.err


def test_a_reader_that_has_enough_is_no_fault(process: Command) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = process("history", "--help", capture_output=False, stdout=writing, stderr=-1)
    os.close(writing)
    assert (ended.code, ended.err) == (FAULT, "")


def test_a_history_that_is_none(configured: Any, command: Command) -> None:
    (configured.state / "history.sqlite3").write_bytes(b"no database" * 1000)
    ended = command("history", "-c", configured.path)
    assert ended.code == FAULT
    assert ended.err.startswith(f"llm-health: {configured.state}/history.sqlite3 cannot be opened: ")


def test_a_huge_limit(configured: Any, command: Command) -> None:
    ended = command("history", "-n", "9" * 30, "-c", configured.path)
    assert ended.code in (FAULT, USAGE)
    assert "Traceback" not in ended.err


def test_config_check(configured: Any, command: Command) -> None:
    ended = command("config", "check", "-c", configured.path)
    assert (ended.code, ended.out) == (0, f"{configured.path}: sound; backends: sim\n")
    configured.watching("http://127.0.0.1:1/v1", hang_after="soon", qestion="never")
    ended = command("config", "check", "-c", configured.path)
    assert ended.code == FAULT
    assert ended.err.count("\n") == 3
    assert "did you mean question?" in ended.err


def test_config_check_tells_warnings(configured: Any, command: Command) -> None:
    configured.write("".join(f'[[backend]]\nname = "{n}"\nurl = "{NOBODY}"\n' for n in ("a", "b")))
    ended = command("config", "check", "-c", configured.path)
    assert ended.code == 0
    assert f"{configured.path}: warning: a, b: have the same url {NOBODY}\n" in ended.out


def test_config_show_gives_a_file_that_means_the_same(configured: Any, command: Command, tmp_path: Path) -> None:
    configured.watching(NOBODY, unit="vllm.service", hang_after="90s", silent_after="never", max_restarts="2 per 3h")
    shown = command("config", "show", "-c", configured.path)
    again = tmp_path / "again.toml"
    again.write_text(shown.out)
    assert command("config", "show", "-c", again).out == shown.out
    as_json = command("config", "show", "--json", "-c", configured.path)
    assert json.loads(as_json.out) == tomllib.loads(shown.out)


def test_config_polkit_allows_what_is_configured(configured: Any, command: Command) -> None:
    configured.watching(NOBODY, unit="vllm.service", evidence_unit="evidence.service")
    rule = command("config", "polkit", "-c", configured.path)
    assert rule.code == 0
    assert [word in rule.out for word in ("vllm.service", "try-restart", "evidence.service")] == [True] * 3
    assert "reset-failed" not in rule.out


def test_a_socket_path_that_is_too_long(configured: Any, command: Command, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    configured.runtime = deep
    configured.watching(NOBODY)
    ended = command("explain", "sim", "-c", configured.path)
    assert ended.code == FAULT
    assert "Traceback" not in ended.err
    assert os.fspath(deep) in ended.err


def test_a_socket_that_we_may_not_use(configured: Any, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", denied)
    ended = command("explain", "sim", "-c", configured.path)
    assert ended.code == FAULT
    assert ended.err.startswith(f"llm-health: {configured.runtime / SOCKET} cannot be used: Permission denied")
