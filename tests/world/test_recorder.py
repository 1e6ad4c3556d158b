"""What is told of a watch, and that no part that fails keeps the others from being told, or the watch from going on."""

from pathlib import Path
from typing import Any, cast

import pytest

from factory_watchdog.core.memory import Backend
from factory_watchdog.core.model import Alert, JobResult, Raise, Reading, Reply, RestartSettled, State, Verdict, Went
from factory_watchdog.core.model import Identity as Life
from factory_watchdog.errors import StoreError
from factory_watchdog.notify.command import Notifier
from factory_watchdog.recorder import Recorder
from factory_watchdog.world.clock import HostClock
from factory_watchdog.world.evidence import Job, nothing
from factory_watchdog.world.store import Store

OK = Reply(Went.OK, 200)
VERDICT = Verdict(State.BUSY, 1.0, "because", "moved")
BACKEND = Backend(verdict=VERDICT, reading=Reading(0.0, 1.0, OK, OK))


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **fields: self.lines.append((level, event, fields))

    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]


class Broken:
    """A store in which everything fails with `error`, until it is mended."""

    error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        def work(*_: object, **__: object) -> int:
            if self.error is not None:
                raise self.error
            return 1

        return work


def recorder(folder: Path, store: object) -> tuple[Recorder, Log]:
    log = Log()
    told = Recorder(
        log=log,
        clock=HostClock(),
        boot_id="boot",
        store=cast("Store | None", store),
        runtime_dir=folder,
        notifier=Notifier((), lambda _: None),
        told=lambda: None,
    )
    return told, log


def tell_everything(told: Recorder) -> None:
    told.polled("sim", BACKEND)
    told.turned("sim", VERDICT, None)
    told.raised("sim", Raise(Alert.HUNG, "because"), State.HUNG)
    told.evidence("sim", 1, nothing("because"))
    told.pushed("sim", 1, Job("sim.service", 1.0, 2.0, JobResult.DONE, ""))
    told.settled("sim", RestartSettled(1, True, "served", Life()))
    told.save("sim", BACKEND)


@pytest.mark.parametrize(
    "error", [StoreError("the disk is full"), OSError(28, "No space left on device"), KeyError("of ours"), ValueError()]
)
def test_a_store_that_fails_is_told_once_and_once_when_it_is_over(error: Exception, tmp_path: Path) -> None:
    store = Broken()
    told, log = recorder(tmp_path, store)
    for store.error in (error, error, None, None, error):
        tell_everything(told)
    assert log.events().count("fault") == 2
    assert log.events().count("fault over") == 1
    assert (tmp_path / "sim.json").exists()
    fault = next(fields for _, event, fields in log.lines if event == "fault")
    assert str(fault["what"]).startswith("history: ")


def test_what_belongs_to_a_restart_that_was_not_recorded_ends_no_fault(tmp_path: Path) -> None:
    """A full disk takes the beginning; adding to what is not there writes nothing, and so must not count as written."""
    store = Store(tmp_path / "history.sqlite3", 0.0)
    told, log = recorder(tmp_path, store)
    told.evidence("sim", 1, nothing("because"))
    told.pushed("sim", 1, Job("sim.service", 1.0, 2.0, JobResult.DONE, ""))
    told.settled("sim", RestartSettled(1, True, "served", Life()))
    store.close()
    assert log.events() == ["fault", "restart settled"]
    assert "restart 1 of sim is not recorded" in str(log.lines[0][2]["what"])


def test_a_state_that_cannot_be_written_down_is_told_and_raises_nothing(tmp_path: Path) -> None:
    told, log = recorder(tmp_path, Broken())
    told.save("sim", Backend(verdict=Verdict(State.BUSY, 1.0, "\ud800", "moved")))
    assert log.events() == ["fault"]


def test_files_that_cannot_be_written_are_told_once(tmp_path: Path) -> None:
    told, log = recorder(tmp_path / "missing", Broken())
    for _ in range(3):
        tell_everything(told)
    assert log.events().count("fault") == 1


def test_without_a_history_all_else_is_told(tmp_path: Path) -> None:
    told, log = recorder(tmp_path, None)
    tell_everything(told)
    assert log.events() == ["state", "alert", "restart settled"]
    assert (tmp_path / "sim.json").exists()
    told.forget("sim")
    assert not (tmp_path / "sim.json").exists()


def test_an_alert_is_logged_as_critical(tmp_path: Path) -> None:
    told, log = recorder(tmp_path, None)
    told.raised("sim", Raise(Alert.HUNG, "because", "1"), State.HUNG)
    assert log.lines == [
        (
            "critical",
            "alert",
            {"alert": "hung", "backend": "sim", "state": State.HUNG, "engine": "1", "why": "because"},
        )
    ]
