"""The demonstration: the same play in virtual time, and the command as a process."""

import asyncio
import contextlib
import dataclasses
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import pytest

from factory_watchdog.cli import demo as command
from factory_watchdog.core.model import State
from factory_watchdog.simulate import clock, demo
from factory_watchdog.simulate.demo import Kind, Report
from factory_watchdog.simulate.script import Phase, Timeline
from factory_watchdog.simulate.server import Server
from factory_watchdog.simulate.transport import SimTransport
from factory_watchdog.world.http import Http

DEADLINE = 20.0  # seconds; never reached unless something is broken
COMMAND = [sys.executable, "-m", "factory_watchdog", "demo"]


class Heard(demo.Viewer):
    """Keeps everything that is told, in its order."""

    def __init__(self) -> None:
        self.all: list[demo.Act | demo.Line] = []

    def begins(self, t: float, number: int, act: demo.Act) -> None:
        assert demo.ACTS[number - 1] is act
        self.all.append(act)

    def sees(self, line: demo.Line) -> None:
        self.all.append(line)


def perform(viewer: demo.Viewer, spoil: Callable[[Server], None] = lambda _: None) -> Report:
    """The play in virtual time, with a server that was changed before the first act."""

    @contextlib.asynccontextmanager
    async def connect(server: Server) -> AsyncIterator[tuple[str, Http]]:
        spoil(server)
        async with Http(SimTransport(server)) as http:
            yield "http://sim.invalid", http

    async def main() -> Report:
        now = clock.ScriptedClock(Timeline(demo.PHASES), asyncio.get_running_loop().time)
        return await demo.play(connect, now, viewer, lambda _: None)

    return clock.run(main)


def test_everything_that_the_play_promises_is_seen() -> None:
    report = perform(demo.Viewer())
    assert all(report.promises().values()), report.promises()
    assert report.asked_while_working() == 0
    assert report.by_kind()["POST /v1/chat/completions"] == 3
    assert (report.most_running, report.most_waiting) == (8, 12)


def test_it_takes_about_a_minute() -> None:
    assert 60 <= demo.SECONDS <= 75


def test_each_act_is_told_before_what_happens_in_it() -> None:
    heard = Heard()
    report = perform(heard)
    assert [entry for entry in heard.all if isinstance(entry, demo.Act)] == list(demo.ACTS)
    act = None
    for entry in heard.all:
        if isinstance(entry, demo.Act):
            act = entry
        else:
            assert entry.act is act
    shown = {act.title: report.words(Kind.STATE, [act]) for act in demo.ACTS}
    assert shown == {
        "Idle": [State.IDLE],
        "Busy": [State.BUSY],
        "A long prompt": [],
        "Hang": [State.SUSPECT],
        "Confirmation": [],
        "Proven hung, restarted": [State.HUNG],
        "Starting": [State.STARTING],
        "Answering again": [State.IDLE],
        "Users are back": [State.BUSY],
    }
    assert [line.t for line in report.lines] == sorted(line.t for line in report.lines)


def test_the_long_prompt_is_longer_than_what_makes_a_hang_and_only_kv_moves_in_it() -> None:
    phase = demo.LONG_PROMPT.phase
    assert phase is not None
    assert phase.length > 10.0
    (engine,) = phase.engines
    assert (engine.steps, engine.tokens, engine.prompt, engine.finished) == (0, 0, 0, 0)
    assert engine.kv[0] < engine.kv[1]


# --- what is not seen is said ----------------------------------------------------------------------------------------


def never_hangs(server: Server) -> None:
    server.change(Phase(1.0))


def never_serves(server: Server) -> None:
    server.spec = dataclasses.replace(server.spec, restart="never-answers")


def does_not_climb(server: Server) -> None:
    """A long prompt that shows no movement at all: a hang, as far as anybody can see."""
    still = tuple(
        dataclasses.replace(phase, engines=(dataclasses.replace(phase.engines[0], kv=(0.1, 0.1)),))
        for phase in demo.PHASES
    )
    server._timeline = Timeline(still)


@pytest.mark.parametrize(
    ("spoil", "missed"),
    [
        (
            never_hangs,
            ["exactly one restart", "one confirming question, not answered", "alerts: hung, restart, served"],
        ),
        (never_serves, ["alerts: hung, restart, served", "the new life gave an answer"]),
        (does_not_climb, ["busy, and not asked, while work moved"]),
    ],
)
def test_what_did_not_happen_is_named_and_exits_1(
    spoil: Callable[[Server], None], missed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = perform(demo.Viewer(), spoil)
    assert command.summarise(report) == 1
    shown = capsys.readouterr().out
    for promise in missed:
        assert f"not seen, though promised: {promise}" in shown


def test_a_fault_of_our_own_and_a_second_restart_are_no_success() -> None:
    report = perform(demo.Viewer())
    restart = next(line for line in report.lines if line.kind is Kind.RESTART)
    report.lines += [restart, dataclasses.replace(restart, kind=Kind.FAULT, word="fault")]
    missed = [promise for promise, seen in report.promises().items() if not seen]
    assert missed == ["exactly one restart", "no fault of the watchdog's own"]


def test_a_question_that_only_the_server_saw_counts() -> None:
    report = perform(demo.Viewer())
    report.requests["Busy", "POST /v1/chat/completions"] += 1
    assert not report.promises()["busy, and not asked, while work moved"]


def test_the_summary_says_what_was_counted(capsys: pytest.CaptureFixture[str]) -> None:
    report = perform(command.Screen())
    assert command.summarise(report) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= command.WIDTH
    figures = {line[2:28].strip(): line[29:] for line in shown.splitlines() if line.startswith("  ")}
    assert figures["restarts"] == "1"
    assert figures["questions sent while busy"] == "0"
    assert figures["questions sent in all"] == "3 (1 idle, 1 confirm, 1 serve)"
    assert figures["seen as promised"] == f"{len(report.promises())} of {len(report.promises())}"
    assert "not seen" not in shown


def test_it_names_only_commands_that_exist() -> None:
    for command_line, _ in command._next_commands():
        word = command_line.split()[1]
        helped = subprocess.run(
            [sys.executable, "-m", "factory_watchdog", *([word] if word != "--help" else []), "--help"],
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
        assert helped.returncode == 0, command_line


# --- the command as a process ----------------------------------------------------------------------------------------


def test_ctrl_c_ends_it_with_130() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "state " in line:
                break
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert rest.endswith("nothing is left behind\n")
    assert errors == ""


def test_a_reader_that_goes_ends_it_quietly() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(DEADLINE) == 1
        assert process.stderr.read() == b""


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_told_otherwise(variables: dict[str, str], coloured: bool) -> None:
    ours, its = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | variables
    with subprocess.Popen(COMMAND, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        shown = b""
        while b"state " not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # a terminal whose other end has closed says EIO
            while os.read(ours, 4096):
                pass
        assert process.wait(DEADLINE) == 130
    os.close(ours)
    assert (b"\x1b[1m" in shown) is coloured
