"""Commands for alerts: real commands, also slow, broken and stubborn ones."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from factory_watchdog.config.schema import Notify
from factory_watchdog.notify import command as notify_command
from factory_watchdog.notify.command import Notifier

ALERT = {
    "event": "restart",
    "backend": "spark1",
    "state": "hung",
    "why": "no step for 2 min; $(touch /x) \"'",
    "engine": None,
    "time": "2025-06-15T12:00:00Z",
}
ALL = frozenset({"restart", "hung"})


def python(program: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-c", program, *map(str, arguments))


def shell(program: str, *arguments: object) -> tuple[str, ...]:
    return ("/bin/sh", "-c", program, "sh", *map(str, arguments))


def notified(*commands: Notify, test: Callable[[Notifier], Awaitable[None]] | None = None) -> list[str]:
    """Put one alert, or do what `test` does, and close; what was reported."""
    reports: list[str] = []

    async def main() -> None:
        notifier = Notifier(commands, reports.append)
        running = asyncio.create_task(notifier.run())
        await asyncio.sleep(0)
        if test:
            await test(notifier)
        else:
            notifier.put(ALERT)
        await notifier.close()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(main())
    return reports


def test_a_command_gets_the_alert_in_its_environment_and_on_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    program = (
        "import json, os, sys; print(json.dumps([dict(os.environ), sys.stdin.read()]), file=open(sys.argv[1], 'w'))"
    )
    assert notified(Notify(python(program, tmp_path / "told"), ALL)) == []
    environment, standard_input = json.loads((tmp_path / "told").read_text())
    assert json.loads(standard_input) == ALERT
    assert {name: value for name, value in environment.items() if name.startswith("FW_")} == {
        "FW_EVENT": "restart",
        "FW_BACKEND": "spark1",
        "FW_STATE": "hung",
        "FW_WHY": ALERT["why"],
        "FW_ENGINE": "",
        "FW_TIME": "2025-06-15T12:00:00Z",
    }
    assert environment["PATH"] == os.environ["PATH"]
    assert "NOTIFY_SOCKET" not in environment


def test_only_chosen_events(tmp_path: Path) -> None:
    async def test(notifier: Notifier) -> None:
        notifier.put(ALERT)
        notifier.put(ALERT | {"event": "hung"})
        notifier.put(ALERT | {"event": "served"})

    append = shell('echo "$FW_EVENT" >> "$1"', tmp_path / "all")
    chosen = shell('echo "$FW_EVENT" >> "$1"', tmp_path / "chosen")
    assert notified(Notify(append, ALL), Notify(chosen, frozenset({"hung"})), test=test) == []
    assert (tmp_path / "all").read_text() == "restart\nhung\n"
    assert (tmp_path / "chosen").read_text() == "hung\n"


@pytest.mark.parametrize(
    ("command", "failure"),
    [
        (shell("exit 3"), "/bin/sh failed for the alert restart of spark1: exit status 3"),
        (shell("kill -9 $$"), "/bin/sh failed for the alert restart of spark1: ended by signal 9"),
        (("/no/such/command",), "/no/such/command failed for the alert restart of spark1: cannot be started: "),
        (("/dev/null",), "/dev/null failed for the alert restart of spark1: cannot be started: "),
    ],
)
def test_failures_are_reported(command: tuple[str, ...], failure: str) -> None:
    (report,) = notified(Notify(command, ALL))
    assert report.startswith(failure)


def test_text_that_no_environment_holds_is_a_failure_like_any_other() -> None:
    async def test(notifier: Notifier) -> None:
        notifier.put(ALERT | {"why": "a\0b"})
        notifier.put(ALERT | {"why": "\ud800"})
        notifier.put(ALERT)

    assert len(notified(Notify(shell("exit 0"), ALL), test=test)) == 2


@pytest.mark.parametrize("program", ["exec <&-", "sleep 0.05"])
def test_a_command_that_does_not_read_is_no_failure(program: str) -> None:
    async def test(notifier: Notifier) -> None:
        notifier.put(ALERT | {"more": "x" * 500_000})  # than a pipe holds

    assert notified(Notify(shell(program), ALL), test=test) == []


def test_a_slow_command_is_killed_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_command, "LONGEST", 0.5)
    program = shell('trap "" TERM; sleep 1000 & echo $! > "$1"; wait; sleep 1000', tmp_path / "pid")
    assert notified(Notify(program, ALL)) == ["/bin/sh failed for the alert restart of spark1: killed after 0.5 s"]
    assert ended(int((tmp_path / "pid").read_text()))


def ended(pid: int) -> bool:
    """Whether process `pid` ends within a few seconds; a zombie that init has not taken yet has."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
    return False


def test_a_slow_command_delays_neither_us_nor_another_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_command, "QUEUE", 3)
    monkeypatch.setattr(notify_command, "FAREWELL", 0.0)
    os.mkfifo(tmp_path / "done")

    async def test(notifier: Notifier) -> None:
        notifier.put(ALERT)
        async with asyncio.timeout(10):
            await asyncio.to_thread((tmp_path / "done").read_text)
        began = time.monotonic()
        for number in range(10):
            notifier.put(ALERT | {"backend": f"spark{number}", "event": "hung"})
        assert time.monotonic() - began < 0.5

    slow, fast = (
        Notify(shell("sleep 1000"), ALL),
        Notify(shell('echo > "$1"', tmp_path / "done"), frozenset({"restart"})),
    )
    reports = notified(slow, fast, test=test)
    assert reports == [f"/bin/sh is too slow: the alert hung of spark{number} is dropped" for number in range(7)]


def test_closing_lets_commands_finish(tmp_path: Path) -> None:
    async def test(notifier: Notifier) -> None:
        for _ in range(3):
            notifier.put(ALERT)

    assert notified(Notify(shell('echo x >> "$1"', tmp_path / "told"), ALL), test=test) == []
    assert (tmp_path / "told").read_text() == "x\n" * 3


def test_runs_until_it_is_closed_without_commands_too() -> None:
    async def main() -> None:
        notifier = Notifier([], print)
        notifier.put(ALERT)
        running = asyncio.create_task(notifier.run())
        await asyncio.wait([running], timeout=0.01)
        assert not running.done()
        await notifier.close()
        await running
        await notifier.close()

    asyncio.run(main())


def test_can_be_closed_before_it_runs() -> None:
    reports: list[Any] = []
    asyncio.run(Notifier([Notify(shell("exit 0"), ALL)], reports.append).close())
    assert reports == []
