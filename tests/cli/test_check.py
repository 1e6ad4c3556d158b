"""`llm-health check` in all its ways: exit codes, output, without a daemon and with one that says what it is told."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from factory_watchdog.cli import check, look
from factory_watchdog.core.model import MEANING, State
from factory_watchdog.world.clock import HostClock
from factory_watchdog.world.control import SOCKET

FINE, WARNING, BAD, UNKNOWN = 0, 1, 2, 3
PURPOSES = ("liveness", "readiness", "startup")
PROMISED = 0.8  # seconds in which `--for` ends
LOADED = 1.5  # seconds more that a process may take to start on a loaded machine
BUSY = '[[phase]]\nfor = "1h"\nrunning = 2\nwaiting = 1\nsteps = 50.0\ntokens = 100.0\nfinished = 0.5\nkv = 0.5\n'
FROZEN = '[[phase]]\nfor = "1h"\nrunning = 2\nkv = 0.5\nquestion = "timeout"\n'
QUICK = {"hang_after": "10s", "first_outcome": "0s", "question_timeout": "1s"}

Command = Callable[..., Any]
Says = Callable[[Sequence[dict[str, Any]]], None]


def told(name: str, state: State | None, **more: Any) -> dict[str, Any]:
    meaning = MEANING[state] if state else None
    return {
        "name": name,
        "state": state,
        "why": "because",
        "live": meaning.live if meaning else True,
        "ready": bool(meaning.ready) if meaning else False,
        "running": 2.0,
        "waiting": None,
        "tokens_per_second": 12.34,
        **more,
    }


def without_data(line: str) -> str:
    return line.partition(" | ")[0]


# --- what a daemon says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [*State, None])
def test_each_state_has_its_exit_code(state: State | None, configured: Any, says: Says, command: Command) -> None:
    says([told("spark1", state)])
    ended = command("check", "spark1", "-c", configured.path)
    assert ended.code == (MEANING[state].exit if state else UNKNOWN)
    word = {FINE: "OK", WARNING: "WARNING", BAD: "CRITICAL", UNKNOWN: "UNKNOWN"}[ended.code]
    assert without_data(ended.out) == f"LLM-HEALTH {word} - spark1 {state or 'unknown'}: because"
    assert ended.err == ""


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((State.BUSY, State.IDLE), FINE),
        ((State.BUSY, State.BLIND), UNKNOWN),
        ((State.BLIND, State.SUSPECT), WARNING),
        ((State.BLIND, State.SUSPECT, State.HUNG, State.IDLE), BAD),
        ((State.SUSPECT, State.DEAD), BAD),
        ((None, State.BUSY), UNKNOWN),
        ((None, State.STOPPED), WARNING),
    ],
)
def test_the_worst_of_several_decides(
    states: Sequence[State | None], code: int, configured: Any, says: Says, command: Command
) -> None:
    says([told(f"b{n}", state) for n, state in enumerate(states)])
    assert command("check", "-c", configured.path).code == code
    names = [f"b{n}" for n in range(len(states))]
    assert command("check", *names, "-c", configured.path).code == code


def test_one_line_with_performance_data(configured: Any, says: Says, command: Command) -> None:
    says([told("spark1", State.BUSY), told("spark2", State.IDLE, running=0.0, waiting=3.0, tokens_per_second=None)])
    ended = command("check", "-c", configured.path)
    assert ended.out == (
        "LLM-HEALTH OK - spark1 busy: because; spark2 idle: because | 'spark1_running'=2 'spark1_waiting'=U"
        " 'spark1_tokens'=12.3 'spark2_running'=0 'spark2_waiting'=3 'spark2_tokens'=U\n"
    )


def test_json_for_machines(configured: Any, says: Says, command: Command) -> None:
    says([told("spark1", State.HUNG)])
    ended = command("check", "--json", "-c", configured.path)
    assert ended.code == BAD
    assert json.loads(ended.out) == {"exit": BAD, "backends": [told("spark1", State.HUNG)]}


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("state", [*State, None])
def test_a_probe_asks_one_thing(
    purpose: str, state: State | None, configured: Any, says: Says, command: Command
) -> None:
    says([told("spark1", state)])
    ended = command("check", "--for", purpose, "-c", configured.path)
    passes = {
        "liveness": state not in (State.HUNG, State.DEAD),
        "readiness": bool(state and MEANING[state].ready),
        "startup": state not in (None, State.STARTING),
    }
    assert ended.code == (FINE if passes[purpose] else 1)


def test_wait_asks_the_daemon_again_until_nothing_is_suspect(
    configured: Any, says: Says, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LOOK_AGAIN", 0.01)
    says([told("a", State.BUSY), told("b", State.SUSPECT)])
    ending = threading.Timer(0.1, says, [[told("a", State.BUSY), told("b", State.HUNG)]])
    ending.start()
    assert command("check", "--wait", "-c", configured.path).code == BAD
    ending.join()


def test_a_name_that_the_daemon_does_not_watch(configured: Any, says: Says, command: Command) -> None:
    says([told("spark1", State.BUSY)])
    ended = command("check", "spark9", "-c", configured.path)
    assert ended.code == UNKNOWN
    assert ended.err == "llm-health: the daemon does not watch spark9; it watches spark1\n"
    assert ended.out == "LLM-HEALTH UNKNOWN - the daemon does not watch spark9; it watches spark1\n"


def test_a_state_of_a_later_release_is_unknown(configured: Any, says: Says, command: Command) -> None:
    says([{**told("spark1", State.BUSY), "state": "dreaming"}])
    assert command("check", "-c", configured.path).code == UNKNOWN


@contextlib.contextmanager
def something_else_at(path: Path, reply: bytes | None) -> Iterator[None]:
    """A socket that accepts one connection and says `reply`, or nothing for as long as it lasts."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            with listener.accept()[0] as connection:
                if reply is None:
                    connection.recv(1 << 16)
                    connection.recv(1 << 16)  # until the other side has enough
                else:
                    connection.recv(1 << 16)
                    connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize(
    "reply", [b"", b"junk\n", b"[]\n", b'{"ok": 1}\n', b'{"ok": true}\n', b'{"ok": false, "error": "no"}\n']
)
def test_a_daemon_that_talks_nonsense_is_unknown(reply: bytes, configured: Any, command: Command) -> None:
    with something_else_at(configured.runtime / SOCKET, reply):
        ended = command("check", "-c", configured.path)
    assert ended.code == UNKNOWN
    assert ended.out.startswith("LLM-HEALTH UNKNOWN - ")
    assert ended.out.count("\n") == 1


def test_a_daemon_that_says_nothing_is_not_waited_for(
    configured: Any, serve: Command, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "ASK_TIME", 0.1)
    configured.watching(serve(BUSY).url)
    with something_else_at(configured.runtime / SOCKET, None):
        assert command("check", "-c", configured.path).code == FINE


# --- a look without a daemon -----------------------------------------------------------------------------------------


def test_an_idle_server_is_asked_only_after_a_while(configured: Any, serve: Command, command: Command) -> None:
    served = serve()
    configured.watching(served.url)
    ended = command("check", "sim", "-c", configured.path)
    assert ended.code == FINE
    assert without_data(ended.out).startswith("LLM-HEALTH OK - sim idle: ")
    assert served.questions == 0


def test_an_address_needs_no_configuration(configured: Any, serve: Command, command: Command) -> None:
    ended = command("check", serve(BUSY).url, "-c", "/nonexistent")
    assert ended.code == FINE
    assert re.fullmatch(r"LLM-HEALTH OK - 127-0-0-1-\d+ busy: [^|]*\| '127-0-0-1-\d+_running'=2 .*\n", ended.out)


def test_names_and_addresses_together(configured: Any, serve: Command, command: Command) -> None:
    configured.watching(serve(BUSY).url)
    ended = command("check", "sim", serve().url, "--json", "-c", configured.path)
    assert ended.code == FINE
    assert [b["state"] for b in json.loads(ended.out)["backends"]] == ["busy", "idle"]


def test_tokens_a_second_come_with_the_second_look(configured: Any, serve: Command, process: Command) -> None:
    """A person at a terminal sees movement at the first call."""
    configured.watching(serve(BUSY).url)
    screen, terminal = pty.openpty()
    try:
        assert process("check", "-c", configured.path, capture_output=False, stdout=terminal).code == FINE
        table = os.read(screen, 1 << 16).decode().split("\r\n")
    finally:
        os.close(screen)
        os.close(terminal)
    assert table[0].split() == ["BACKEND", "STATE", "RUNNING", "WAITING", "TOKENS/S", "WHY"]
    name, state, running, waiting, tokens, *_ = table[1].split()
    assert (name, state, running, waiting) == ("sim", "busy", "2", "1")
    assert 50 < float(tokens) < 200


class Later(HostClock):
    """The host's clocks, put forward."""

    ahead = 0.0

    def boottime(self) -> float:
        return super().boottime() + self.ahead

    def wall(self) -> float:
        return super().wall() + self.ahead


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass from one call to the next."""
    monkeypatch.setattr(look, "HostClock", Later)
    monkeypatch.setattr(Later, "ahead", 0.0)

    def passes(seconds: float) -> None:
        Later.ahead += seconds

    return passes


def test_calls_that_remember_prove_a_hang(
    configured: Any, serve: Command, command: Command, later: Callable[[float], None]
) -> None:
    served = serve(FROZEN)
    configured.watching(served.url, **QUICK)
    codes = []
    for _ in range(4):
        codes.append(command("check", "-c", configured.path).code)
        later(60.0)
    assert codes[0] == FINE
    assert codes[-1] == BAD
    assert served.server.restarts == []
    assert served.questions == 1  # the confirming one, which found no reason against it


def test_calls_that_do_not_remember_prove_nothing(
    configured: Any, serve: Command, command: Command, later: Callable[[float], None], tmp_path: Path
) -> None:
    configured.watching(serve(FROZEN).url, **QUICK)
    os.mkfifo(tmp_path / "fifo")
    for place in (tmp_path, tmp_path / "fifo", Path("/dev/zero"), tmp_path / "config.toml" / "below"):
        for _ in range(3):
            ended = command("check", "-c", configured.path, "--state-file", place)
            assert ended.code == FINE
            assert "nothing is remembered between calls" in ended.err
            later(60.0)


def test_what_was_seen_long_ago_is_forgotten(
    configured: Any, serve: Command, command: Command, later: Callable[[float], None]
) -> None:
    configured.watching(serve(FROZEN).url, **QUICK)
    for _ in range(4):
        assert command("check", "-c", configured.path).code in (FINE, WARNING)
        later(look.FORGET_AFTER + 60.0)


def test_what_was_seen_in_an_earlier_boot_is_forgotten(
    configured: Any,
    serve: Command,
    command: Command,
    later: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configured.watching(serve(FROZEN).url, **QUICK)
    for boot in ("one", "two", "three", "four"):
        monkeypatch.setattr(look, "boot_id", lambda boot=boot: boot)
        assert command("check", "-c", configured.path).code == FINE
        later(60.0)


@pytest.mark.parametrize("content", ["{", '{"format":1}', '{"format":99,"new":true}', '{"format":1,"boot_id":"x'])
def test_a_broken_state_file_is_begun_afresh(
    content: str, configured: Any, serve: Command, command: Command, tmp_path: Path
) -> None:
    configured.watching(serve(BUSY).url)
    file = tmp_path / "remembered"
    file.write_text(content)
    ended = command("check", "-c", configured.path, "--state-file", file)
    assert ended.code == FINE
    assert ended.err.count("\n") == 1
    if content.startswith('{"format":'):
        assert "begun afresh" in ended.err
        assert command("check", "-c", configured.path, "--state-file", file).err == ""


def test_a_file_with_something_else_in_it_is_left_alone(configured: Any, serve: Command, command: Command) -> None:
    """Who mixes up --state-file and --config keeps the configuration."""
    configured.watching(serve(BUSY).url)
    before = configured.path.read_bytes()
    ended = command("check", "-c", configured.path, "--state-file", configured.path)
    assert ended.code == FINE
    assert "has something else in it and is left alone" in ended.err
    assert configured.path.read_bytes() == before


def test_a_link_is_not_followed(configured: Any, serve: Command, command: Command, tmp_path: Path) -> None:
    configured.watching(serve(BUSY).url)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert command("check", "-c", configured.path, "--state-file", tmp_path / "link").code == FINE
    assert not (tmp_path / "target").exists()


def test_a_state_file_is_ours_alone(configured: Any, serve: Command, command: Command, tmp_path: Path) -> None:
    configured.watching(serve(BUSY).url)
    assert command("check", "-c", configured.path, "--state-file", tmp_path / "new/file").err == ""
    assert (tmp_path / "new/file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_user_without_a_home(
    configured: Any, serve: Command, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured.watching(serve(BUSY).url)
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id that no passwd file has
    ended = command("check", "-c", configured.path)
    assert ended.code == FINE
    assert "you have no home folder; give a file with --state-file" in ended.err
    assert not Path("~").exists()


def test_one_state_file_is_for_one_target(configured: Any, serve: Command, command: Command, tmp_path: Path) -> None:
    ended = command("check", serve().url, serve().url, "--state-file", tmp_path / "file")
    assert ended.code == UNKNOWN
    assert "--state-file is for one target" in ended.err


def test_wait_ends_when_nothing_is_suspect_any_more(
    configured: Any, serve: Command, command: Command, later: Callable[[float], None]
) -> None:
    served = serve(FROZEN)
    configured.watching(served.url, hang_after="1h")
    command("check", "-c", configured.path)
    later(60.0)
    assert command("check", "-c", configured.path).code == WARNING
    recovers = threading.Timer(0.5, served.change, kwargs={"running": 2, "steps": 50.0, "tokens": 100.0})
    recovers.start()
    assert command("check", "--wait", "-c", configured.path).code == FINE
    recovers.join()


def test_wait_ends_when_a_hang_is_proven(
    configured: Any, serve: Command, command: Command, later: Callable[[float], None]
) -> None:
    configured.watching(serve(FROZEN).url, **QUICK)
    command("check", "-c", configured.path)
    later(60.0)
    assert command("check", "--wait", "-c", configured.path).code == BAD


def quiet(configured: Any, serve: Command, command: Command, later: Callable[[float], None], delay: str) -> Any:
    """A server that has been quiet for so long that the next look will ask it."""
    served = serve(f'[[phase]]\nfor = "1h"\nquestion = "{delay}"\n')
    configured.watching(served.url, question_timeout="5s")
    assert command("check", "-c", configured.path).code == FINE
    later(120.0)
    return served


def test_a_quiet_server_is_asked_once(
    configured: Any, serve: Command, command: Command, later: Callable[[float], None]
) -> None:
    served = quiet(configured, serve, command, later, "ok 10ms")
    for _ in range(3):
        ended = command("check", "-c", configured.path)
        assert (ended.code, served.questions) == (FINE, 1)
        assert "answered" in ended.out


def test_two_checks_at_once_do_not_send_two_questions(
    configured: Any, serve: Command, command: Command, later: Callable[[float], None]
) -> None:
    served = quiet(configured, serve, command, later, "ok 300ms")

    async def both() -> list[list[dict[str, Any]]]:
        looks = (asyncio.to_thread(look.look, ["sim"], [], configured.path, **LOOK) for _ in range(3))
        return await asyncio.gather(*looks)

    assert [told[0]["state"] for told in asyncio.run(both())] == ["idle"] * 3
    assert served.questions == 1


LOOK: dict[str, Any] = {"wait": False, "ends": None, "everything": False, "file": None}


def test_a_look_that_takes_too_long_is_not_waited_for(
    configured: Any,
    serve: Command,
    command: Command,
    later: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody's --wait has the state file: the next look sees what there is, asks nothing and writes nothing."""
    monkeypatch.setattr(look, "LOCK_TIME", 0.1)
    served = quiet(configured, serve, command, later, "ok 10ms")
    (file,) = (Path(os.environ["XDG_STATE_HOME"]) / "factory-watchdog").iterdir()
    before = file.read_bytes()
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = command("check", "-c", configured.path)
    assert (ended.code, served.questions, file.read_bytes()) == (FINE, 0, before)


def test_checks_of_two_backends_in_other_order_do_not_lock_each_other_out(
    configured: Any, serve: Command, command: Command
) -> None:
    first, second = serve(BUSY).url, serve(BUSY).url

    async def both() -> list[list[dict[str, Any]]]:
        orders = ([first, second], [second, first]) * 3
        return await asyncio.gather(*(asyncio.to_thread(look.look, None, o, configured.path, **LOOK) for o in orders))

    began = time.monotonic()
    assert {told["state"] for looked in asyncio.run(both()) for told in looked} == {"busy"}
    assert time.monotonic() - began < 10.0


# --- probes ----------------------------------------------------------------------------------------------------------


def silent_port() -> socket.socket:
    """A port that accepts connections, since the kernel does, and never says anything."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    return listener


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_probe_ends_in_time_whatever_the_backend_does(purpose: str, configured: Any, process: Command) -> None:
    with silent_port() as listener:
        began = time.monotonic()
        ended = process("check", "--for", purpose, f"http://127.0.0.1:{listener.getsockname()[1]}")
        took = time.monotonic() - began
    assert ended.code == (0 if purpose == "liveness" else 1)
    assert took < PROMISED + LOADED


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_probe_ends_in_time_where_daemon_and_backend_say_nothing(
    purpose: str, configured: Any, process: Command
) -> None:
    with silent_port() as listener, something_else_at(configured.runtime / SOCKET, None):
        configured.watching(f"http://127.0.0.1:{listener.getsockname()[1]}")
        began = time.monotonic()
        ended = process("check", "--for", purpose, "-c", configured.path)
        took = time.monotonic() - began
    assert ended.code == (0 if purpose == "liveness" else 1)
    assert took < PROMISED + LOADED


def test_a_probe_never_asks_and_looks_once(
    configured: Any, serve: Command, command: Command, later: Callable[[float], None]
) -> None:
    served = quiet(configured, serve, command, later, "ok 10ms")
    for purpose in PURPOSES:
        served.paths.clear()
        assert command("check", "--for", purpose, "-c", configured.path).code == 0
        assert (served.questions, served.paths.count("/health")) == (0, 1)
        later(120.0)


def test_a_probe_does_not_wait_for_another_look(configured: Any, serve: Command, command: Command) -> None:
    configured.watching(serve(BUSY).url)
    command("check", "-c", configured.path)
    (file,) = (Path(os.environ["XDG_STATE_HOME"]) / "factory-watchdog").iterdir()
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert command("check", "--for", "liveness", "-c", configured.path).code == 0


def test_a_probe_that_cannot_end_is_ended(configured: Any, process: Command, tmp_path: Path) -> None:
    """Whatever blocks, here a configuration file that is a FIFO nobody writes to."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for purpose, code in (("liveness", 0), ("readiness", 1)):
        began = time.monotonic()
        ended = process("check", "--for", purpose, "-c", fifo)
        assert ended.code == code
        assert ended.err == f"llm-health: not known in time for {purpose}\n"
        assert time.monotonic() - began < PROMISED + LOADED


# --- faults of our own -----------------------------------------------------------------------------------------------

FAULTS = [
    pytest.param(["--bogus"], "No such option: --bogus", id="unknown option"),
    pytest.param(["-c"], "requires an argument", id="option without value"),
    pytest.param(["-c", "/nonexistent"], "/nonexistent: cannot be read: No such file", id="no file"),
    pytest.param(["-c", "/"], "/: cannot be read: Is a directory", id="a folder"),
    pytest.param(["nosuch"], "no backend nosuch; there are sim", id="unknown name"),
    pytest.param(["../../etc/passwd"], "no backend ../../etc/passwd; there are sim", id="a path"),
    pytest.param(["\x1b[2Jx|y\n"], "no backend", id="control characters"),
    pytest.param(["ftp://host"], 'must begin with "http://" or "https://"', id="not http"),
    pytest.param(["http://"], "has no host", id="no host"),
    pytest.param(["http://host:99999"], "has a port that is not a number from 1 to 65535", id="bad port"),
    pytest.param(["http://user:pass@host"], "cannot have a user or password in it", id="password"),
    pytest.param(["http://h/" + "x" * 5000 + "?"], "cannot have a query or fragment", id="huge address"),
]


@pytest.mark.parametrize(("arguments", "says"), FAULTS)
@pytest.mark.parametrize("purpose", ["", *PURPOSES])
def test_a_fault_of_our_own_is_never_a_dead_server(
    arguments: list[str], says: str, purpose: str, configured: Any, command: Command
) -> None:
    given = [*arguments] if "-c" in arguments else ["-c", str(configured.path), *arguments]
    ended = command("check", *(["--for", purpose] if purpose else []), *given)
    assert ended.code == {"": UNKNOWN, "liveness": 0, "readiness": 1, "startup": 1}[purpose]
    assert says in ended.err
    assert ended.out.startswith("LLM-HEALTH UNKNOWN - ")
    assert ended.out.removesuffix("\n").isprintable()
    assert "|" not in ended.out
    assert "pass@" not in ended.out + ended.err


@pytest.mark.parametrize(
    "command_line", [["chekc"], ["--config", "x", "check"], ["-x", "check"], ["--for", "liveness"]]
)
def test_a_mistyped_check_is_never_a_dead_server(command_line: list[str], command: Command) -> None:
    assert command(*command_line).code in (0, UNKNOWN)


def test_a_purpose_that_there_is_not(configured: Any, command: Command) -> None:
    ended = command("check", "--for", "livenes", "-c", configured.path)
    assert ended.code == UNKNOWN
    assert ended.err == "llm-health: --for livenes: must be liveness, readiness or startup\n"


@pytest.mark.parametrize("purpose", ["", *PURPOSES])
def test_a_crash_is_never_a_dead_server(
    purpose: str, configured: Any, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of | ours\nsecond line")

    monkeypatch.setattr(check, "call", crash)
    ended = command("check", *(["--for", purpose] if purpose else []), "-c", configured.path)
    assert ended.code == {"": UNKNOWN, "liveness": 0, "readiness": 1, "startup": 1}[purpose]
    assert ended.out == "LLM-HEALTH UNKNOWN - internal error: ZeroDivisionError: of ours second line\n"
    assert "Traceback" in ended.err


def test_a_fault_in_json(configured: Any, command: Command) -> None:
    ended = command("check", "nosuch", "--json", "-c", configured.path)
    assert ended.code == UNKNOWN
    assert json.loads(ended.out) == {"exit": UNKNOWN, "error": f"{configured.path}: no backend nosuch; there are sim"}


def test_a_configuration_with_several_problems_is_told_in_whole(configured: Any, command: Command) -> None:
    configured.watching("ftp://x", hang_after="soon", colour="red")
    ended = command("check", "-c", configured.path)
    assert ended.code == UNKNOWN
    assert [word in ended.err for word in ("url", "hang_after", "colour")] == [True] * 3
    assert ended.out.count("\n") == 1


def test_a_file_that_we_may_not_read(configured: Any, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    ended = command("check", "-c", configured.path)
    assert ended.code == UNKNOWN
    assert ended.err == f"{configured.path}: cannot be read: Permission denied\n"


def test_certificates_that_cannot_be_used(configured: Any, command: Command, tmp_path: Path) -> None:
    configured.watching("https://127.0.0.1:1", tls_ca=str(tmp_path / "missing.pem"))
    ended = command("check", "-c", configured.path)
    assert ended.code == UNKNOWN
    assert ended.err == f"llm-health: sim: tls_ca {tmp_path}/missing.pem: No such file or directory\n"


@pytest.mark.parametrize("purpose", ["", "liveness"])
def test_output_that_cannot_be_written(purpose: str, configured: Any, serve: Command, process: Command) -> None:
    configured.watching(serve(BUSY).url)
    arguments = ("check", *(["--for", purpose] if purpose else []), "-c", configured.path)
    with open("/dev/full", "w") as full:
        ended = process(*arguments, capture_output=False, stdout=full, stderr=-1)
    assert ended.code == (0 if purpose else UNKNOWN)
    assert purpose or ended.err == "llm-health: output cannot be written: No space left on device\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_nobody_reads(
    unbuffered: str, configured: Any, serve: Command, process: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    configured.watching(serve(BUSY).url)
    reading, writing = os.pipe()
    os.close(reading)
    ended = process("check", "-c", configured.path, capture_output=False, stdout=writing, stderr=-1)
    os.close(writing)
    assert ended.code == UNKNOWN
    assert ended.err == "llm-health: output cannot be written: Broken pipe\n"


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_streams_that_are_closed(closed: tuple[int, ...], configured: Any, serve: Command, process: Command) -> None:
    configured.watching(serve(BUSY).url)

    def close() -> None:
        for number in closed:
            os.close(number)

    assert process("check", "-c", configured.path, preexec_fn=close).code == FINE


@pytest.mark.parametrize("locale", ["C", "POSIX", "de_DE.ISO-8859-1", "nonsense"])
def test_any_text_can_be_said_in_any_locale(
    locale: str, configured: Any, says: Says, process: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    says([told("spark1", State.BUSY, why="模型 \u20ac ä")])
    ended = process("check", "-c", configured.path)
    assert (ended.code, ended.err) == (FINE, "")
    assert ended.out.isascii()


HOSTILE = "evil\x1b[2J\x1b]0;title\x07 | 'x'=1\r\nCRITICAL \u202e\u2028end"


def test_what_a_server_says_reaches_no_terminal_as_it_is(
    configured: Any, serve: Command, command: Command, later: Callable[[float], None]
) -> None:
    """An error page that would clear the screen, and add performance data and lines of its own."""
    served = quiet(configured, serve, command, later, "ok 10ms")
    respond = served.server.respond

    def hostile(method: str, path: str, headers: Any, body: bytes) -> Any:
        scripted = respond(method, path, headers, body)
        if method == "POST":
            error = json.dumps({"error": {"message": HOSTILE}}).encode()
            return type(scripted)(400, (("content-type", "application/json"),), error)
        return scripted

    served.server.respond = hostile
    for _ in range(3):
        ended = command("check", "-c", configured.path)
        assert ended.out.count("|") == 1
        assert ended.out.count("\n") == 1
        assert ended.out.removesuffix("\n").isprintable()
        assert "\x1b" not in ended.err
        later(120.0)


# --- cheap -----------------------------------------------------------------------------------------------------------

NEVER = (
    *("jeepney", "structlog", "sqlite3", "tomllib", "tomli_w", "rich", "click", "importlib.metadata"),
    *("multiprocessing", "unittest", "xml", "httpx._main", "trio", "h2"),
    *("factory_watchdog.daemon", "factory_watchdog.recorder", "factory_watchdog.record", "factory_watchdog.notify"),
    *("factory_watchdog.simulate", "factory_watchdog.world.bus", "factory_watchdog.world.systemd"),
    *("factory_watchdog.world.store", "factory_watchdog.world.control_server", "factory_watchdog.world.sd_notify"),
    *("factory_watchdog.cli.run", "factory_watchdog.cli.demo", "factory_watchdog.cli.config"),
)
"""What no check loads, whoever answers."""

FOR_A_LOOK = (
    *("asyncio", "httpx", "httpcore", "anyio", "ssl", "msgspec", "logging", "email", "concurrent"),
    *("factory_watchdog.watcher", "factory_watchdog.config", "factory_watchdog.engines", "factory_watchdog.saved"),
)
"""What a look loads, and a question to the daemon does not."""

LOADED_BY = """
import json, pathlib, sys
from factory_watchdog.cli import app, daemon
daemon.RUNTIME_DIR = pathlib.Path({runtime!r})
code = app.run_command_line({arguments!r})
print(json.dumps([code, [name for name in {names!r} if sys.modules.get(name)]]))
"""
"""A program that tells which of these modules a command has loaded, beside its exit code."""


def loaded_by(arguments: list[str], runtime: Path, folder: Path) -> Any:
    program = folder / "program.py"
    program.write_text(LOADED_BY.format(runtime=str(runtime), arguments=arguments, names=NEVER + FOR_A_LOOK))
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("arguments", [["check", "spark1"], ["check"], ["check", "--for", "liveness"]])
def test_a_daemon_is_asked_without_heavy_modules(
    arguments: list[str], configured: Any, says: Says, tmp_path: Path
) -> None:
    """Where the daemon listens at the usual place even the configuration is not read."""
    says([told("spark1", State.BUSY)])
    assert loaded_by(arguments, configured.runtime, tmp_path) == [FINE, []]


def test_a_look_at_an_address_loads_only_what_it_needs(configured: Any, serve: Command, tmp_path: Path) -> None:
    """The second look too, which reads the state that the first one kept."""
    arguments = ["check", serve(BUSY).url, "--state-file", str(tmp_path / "state.json")]
    for _ in range(2):
        assert loaded_by(arguments, configured.runtime, tmp_path) == [FINE, list(FOR_A_LOOK)]
