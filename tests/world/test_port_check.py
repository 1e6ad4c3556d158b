"""When it is looked whose a port is, what is warned of, and when a key may go out."""

from __future__ import annotations

import asyncio
import pathlib
from dataclasses import replace
from typing import Any, cast

import pytest

from factory_watchdog.config import load
from factory_watchdog.core.model import NOT_ASKED, Owner, Port, Reading, Reply, UnitFacts, Went
from factory_watchdog.port_check import KeyWithheldError, PortCheck
from factory_watchdog.ports import Units
from factory_watchdog.world.secrets import SecretError

ACTIVE = UnitFacts(True, "active", "running", invocation="i1", main_pid=7, control_group="/system.slice/vllm.service")
AGAIN = replace(ACTIVE, invocation="i2", main_pid=8)
FORKED = replace(ACTIVE, main_pid=9)
NO_GROUP = replace(ACTIVE, control_group=None)
FAILED = UnitFacts(True, "failed", "failed", invocation="i1")
WAITING = UnitFacts(True, "activating", "auto-restart", invocation="i1")
UNTOLD = UnitFacts(told=False, detail="no bus")

OURS, FOREIGN = Port(Owner.UNIT), Port(Owner.FOREIGN, "port 8000 is listened on by ssh.service, not by vllm.service")
CONTAINER, UNKNOWN = Port(Owner.CONTAINER, "port 8000 is a container's"), Port(Owner.UNKNOWN, "nobody listens")
KEY = "sk-very-secret"
ANSWERED = Reply(Went.OK, 200)


class Manager:
    """Whose the port is, and what was looked for."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.looks: list[str | None] = []

    async def port_owner(self, url: str, unit: str, control_group: str | None) -> Port:
        assert (url, unit) == ("http://127.0.0.1:8000", "vllm.service")
        self.looks.append(control_group)
        return self.port


class Check:
    """A check over such a manager, and what it warned of."""

    def __init__(self, port: Port = OURS, **settings: Any) -> None:
        table = {"name": "a", "url": "http://127.0.0.1:8000", "unit": "vllm.service", **settings}
        self.manager = Manager(port)
        self.warnings: list[str] = []
        config = load.from_table(table, file="test")
        self.check = PortCheck(config, cast(Units, self.manager), self.warnings.append)

    def look(self, facts: UnitFacts | None = ACTIVE, *, fresh: bool = False, answered: bool = True) -> Port | None:
        port = asyncio.run(self.check.look(facts, fresh=fresh))
        self.check.tell(Reading(0.0, 1.0, ANSWERED if answered else Reply(Went.REFUSED), NOT_ASKED, port=port))
        return port


# --- when ------------------------------------------------------------------------------------------------------------


def test_the_unit_s_own_port_is_looked_at_once_in_a_life() -> None:
    check = Check()
    assert [check.look() for _ in range(5)] == [OURS] * 5
    assert len(check.manager.looks) == 1
    for facts in (AGAIN, FORKED, ACTIVE):
        check.look(facts)
        check.look(facts)
    assert check.manager.looks == ["/system.slice/vllm.service"] * 4


@pytest.mark.parametrize("port", [FOREIGN, CONTAINER, UNKNOWN])
def test_what_is_not_the_unit_s_is_looked_at_each_time(port: Port) -> None:
    check = Check(port)
    assert [check.look() for _ in range(3)] == [port] * 3
    check.manager.port = OURS
    assert [check.look() for _ in range(3)] == [OURS] * 3
    assert len(check.manager.looks) == 4


def test_a_fresh_look_is_made_each_time_it_is_wanted() -> None:
    check = Check()
    check.look()
    check.manager.port = FOREIGN
    assert check.look() is OURS
    assert check.look(fresh=True) is FOREIGN


@pytest.mark.parametrize("settings", [{"unit": ""}, {"verify_owner": False}, {"unit": "", "action_unit": "go.service"}])
def test_what_is_not_to_be_looked_at(settings: dict[str, Any]) -> None:
    check = Check(FOREIGN, **settings)
    assert check.look(fresh=True) is None
    assert check.manager.looks == []
    assert check.warnings == []


@pytest.mark.parametrize("facts", [UNTOLD, FAILED, WAITING, None])
def test_there_is_nothing_to_look_for(facts: UnitFacts | None) -> None:
    check = Check(FOREIGN)
    assert check.look(facts) is None
    assert check.manager.looks == []


def test_a_life_that_is_not_told_is_taken_for_the_same() -> None:
    check = Check()
    check.look()
    check.manager.port = FOREIGN
    assert check.look(UNTOLD, fresh=True) is OURS


def test_a_running_unit_without_a_control_group_is_not_known() -> None:
    check = Check(FOREIGN)
    told = Port(Owner.UNKNOWN, "the service manager tells no control group of vllm.service")
    assert check.look(NO_GROUP, fresh=True) == told
    assert check.manager.looks == []


def test_who_took_the_port_is_seen_while_the_unit_fails_of_it() -> None:
    """systemd starts it again and again, and between two attempts it has no control group: one alert, not many."""
    check = Check(FOREIGN)
    assert [check.look(facts) for facts in (ACTIVE, WAITING, ACTIVE, FAILED)] == [FOREIGN] * 4
    assert check.manager.looks[1::2] == [None, None]
    check.manager.port = UNKNOWN
    assert check.look(FAILED) is UNKNOWN
    assert check.look(FAILED) is None


def test_a_failed_unit_is_looked_for_before_it_is_started_again() -> None:
    assert Check(FOREIGN).look(FAILED, fresh=True) is FOREIGN


# --- warnings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [CONTAINER, UNKNOWN])
def test_a_warning_once_in_a_life(port: Port) -> None:
    check = Check(port)
    for facts in (ACTIVE, ACTIVE, AGAIN, AGAIN):
        check.look(facts)
    assert check.warnings == [f"whose the port is cannot be told: {port.detail}"] * 2


@pytest.mark.parametrize("port", [OURS, FOREIGN])
def test_no_warning_where_it_is_known(port: Port) -> None:
    check = Check(port)
    check.look()
    assert check.warnings == []


def test_no_warning_as_long_as_nobody_answers() -> None:
    check = Check(UNKNOWN)
    check.look(answered=False)
    assert check.warnings == []
    check.look()
    assert len(check.warnings) == 1


# --- the key ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("port", [OURS, CONTAINER, UNKNOWN])
def test_the_key_is_sent_after_a_look(port: Port, key_file: str) -> None:
    check = Check(port, api_key_file=key_file)
    assert check.check.comes_first
    check.look()
    assert check.check.key() == {"Authorization": f"Bearer {KEY}"}


def test_no_key_before_the_first_look_nor_to_another_unit(key_file: str) -> None:
    check = Check(FOREIGN, api_key_file=key_file)
    with pytest.raises(KeyWithheldError, match="before it is known who listens, and vllm"):
        check.check.key()
    check.look()
    with pytest.raises(KeyWithheldError, match="no key is sent: port 8000 is listened on by ssh"):
        check.check.key()


def test_no_key_in_a_life_that_was_not_looked_at(key_file: str) -> None:
    check = Check(OURS, api_key_file=key_file)
    check.look()
    check.look(FAILED)
    with pytest.raises(KeyWithheldError, match="not known to run"):
        check.check.key()


@pytest.mark.parametrize("settings", [{"unit": ""}, {"verify_owner": False}])
def test_without_a_look_to_wait_for_the_key_is_sent(settings: dict[str, Any], key_file: str) -> None:
    check = Check(FOREIGN, api_key_file=key_file, **settings)
    assert not check.check.comes_first
    assert check.check.key() == {"Authorization": f"Bearer {KEY}"}


def test_without_a_key_nothing_is_withheld_or_waited_for() -> None:
    check = Check(FOREIGN)
    assert check.check.key() == {}
    assert not check.check.comes_first


def test_a_key_that_cannot_be_read_is_another_matter(tmp_path: pathlib.Path) -> None:
    check = Check(OURS, api_key_file=str(tmp_path / "none"))
    check.look()
    with pytest.raises(SecretError, match="No such file"):
        check.check.key()
