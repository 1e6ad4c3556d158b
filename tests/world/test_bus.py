"""A bus that misbehaves: a real socket with something else than a bus behind it. The real bus is in tests/system."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Awaitable, Callable, Mapping

import pytest
from jeepney import HeaderFields, Parser, new_error, new_method_return  # type: ignore[import-untyped]

from factory_watchdog.core.model import JobResult, UnitFacts
from factory_watchdog.world import systemd
from factory_watchdog.world.systemd import Manager

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Check = Callable[[Manager], Awaitable[None]]
UNIT = "x.service"


async def hangs_up(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    return


async def says_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def rejects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"REJECTED KERBEROS_V4\r\n")
    await reader.read()


async def talks_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"x" * 20_000)
    await reader.read()


async def authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"OK 1234deadbeef\r\n")
    assert await reader.readline() == b"BEGIN\r\n"


async def says_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await authenticate(reader, writer)
    await reader.read(1)
    writer.write(b"\xff" * 64)
    await reader.read()


def answers(replies: Mapping[str, tuple[str, tuple[object, ...]]], then: str = "") -> Behaviour:
    """A bus that answers each method with a body of a type; hangs up on any other, or gives the error `then`."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await authenticate(reader, writer)
        parser, serial = Parser(), 0
        while data := await reader.read(4096):
            parser.add_data(data)
            while (call := parser.get_next_message()) is not None:
                serial += 1
                member = call.header.fields[HeaderFields.member]
                if member in replies:
                    writer.write(new_method_return(call, *replies[member]).serialise(serial))
                elif then:
                    writer.write(new_error(call, then, "s", ("a\nsentence",)).serialise(serial))
                else:
                    return

    return behave


def with_bus(behave: Behaviour, path: pathlib.Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await behave(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_unix_server(serve, path)
        manager = Manager("system")
        async with server:
            await asyncio.wait_for(check(manager), 10)
            await manager.close()

    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={path}")
    asyncio.run(run())


HELLO = {"Hello": ("s", (":1.5",))}
ROW = (UNIT, "", "loaded", "active", "running", "", "/org/freedesktop/systemd1/unit/x", 0, "", "/")
ROWS = {**HELLO, "ListUnitsByNames": ("a(ssssssouso)", ([ROW],))}


@pytest.mark.parametrize(
    ("behave", "detail"),
    [
        (hangs_up, "no connection to the system bus: "),  # an end or a reset, as the kernel likes
        (says_nothing, "no answer within 0.2 s"),
        (rejects, "no connection to the system bus: Authentication failed. Bus sent: "),
        (talks_without_end, "no connection to the system bus: Too much data received without line ending. Bus sent: "),
        (says_garbage, "no answer to Hello: the bus hung up"),
        (answers({}), "no answer to Hello: the bus hung up"),
        (answers(HELLO), "no answer to ListUnitsByNames: the bus hung up"),
        (answers(HELLO, then="org.freedesktop.DBus.Error.ServiceUnknown"), "a sentence"),
        (answers(HELLO, then="org.freedesktop.DBus.Error.AccessDenied"), "a sentence"),
        (answers({**HELLO, "ListUnitsByNames": ("s", ("?",))}), "the answer to ListUnitsByNames is of type 's', not "),
        (answers({**HELLO, "ListUnitsByNames": ("", ())}), "the answer to ListUnitsByNames is of type "),
        (answers({**ROWS, "Get": ("v", (("s", "abc"),))}), "systemd tells InvocationID as a 's', not as a 'ay'"),
        (answers({**ROWS, "Get": ("v", (("ay", b""),))}), "systemd tells MainPID as a 'ay', not as a 'u'"),
    ],
)
def test_a_bus_that_misbehaves_tells_nothing_and_raises_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, behave: Behaviour, detail: str
) -> None:
    monkeypatch.setattr(systemd, "_LOOK_TIMEOUT", 0.2)

    async def check(manager: Manager) -> None:
        for facts in await asyncio.gather(manager.facts(UNIT), manager.facts(UNIT)):
            assert not facts.told
            assert facts == UnitFacts(told=False, detail=facts.detail)
        facts = await manager.facts(UNIT)
        assert facts.detail.startswith(detail), facts.detail
        assert len(facts.detail) <= 200
        assert facts.detail.isprintable()

    with_bus(behave, tmp_path / "bus", check, monkeypatch)


@pytest.mark.parametrize("bus", ["system", "user"])
def test_no_bus_at_all(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, bus: str) -> None:
    for variable in ("DBUS_SYSTEM_BUS_ADDRESS", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.setenv(variable, f"unix:path={tmp_path}/gone")

    async def ask() -> None:
        manager = Manager("system" if bus == "system" else "user")
        detail = f"no connection to the {bus} bus: No such file or directory"
        assert await manager.facts(UNIT) == UnitFacts(told=False, detail=detail)
        for ended in (manager.try_restart(UNIT, 5), manager.start(UNIT, 5), manager.reset_failed(UNIT)):
            assert await ended == (JobResult.NO_BUS, detail)
        await manager.close()

    asyncio.run(ask())


@pytest.mark.parametrize("address", ["tcp:host=localhost", "nonsense", "unix:", "unix:path=" + "x" * 200])
def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
    facts = asyncio.run(Manager("system").facts(UNIT))
    assert facts.detail.startswith("no connection to the system bus: ")


def test_a_job_whose_answer_is_lost_is_judged_by_the_unit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bus hangs up on the call that asks for the job: it may be queued or not, and must not be asked for twice."""
    invocation = {**ROWS, "Get": ("v", (("ay", bytes(16)),)), "GetNameOwner": ("s", (":1.0",))}
    subscribed = {**invocation, "AddMatch": ("", ()), "Subscribe": ("", ())}

    async def check(manager: Manager) -> None:
        assert await manager.try_restart(UNIT, 5) == (
            JobResult.FAILED,
            "the job is gone, its result unheard; x.service is active (running), not started anew",
        )
        assert await manager.start(UNIT, 5) == (JobResult.DONE, "")

    with_bus(answers(subscribed), tmp_path / "bus", check, monkeypatch)


def test_nothing_stays_open(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(manager: Manager) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            await manager.facts(UNIT)
            await manager.try_restart(UNIT, 5)
        await manager.close()
        await asyncio.sleep(0)  # the server's half is closed by its own tasks
        assert len(os.listdir("/proc/self/fd")) <= before + 1

    with_bus(answers(HELLO), tmp_path / "bus", check, monkeypatch)
