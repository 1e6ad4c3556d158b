"""systemd over D-Bus: what it says of a unit, and the jobs that we ask of it.

Interface: org.freedesktop.systemd1(5). Of a unit's properties only those of `UnitFacts` and of `SHOWN` are read; never
its Environment, its ExecStart, or anything else that may hold a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from factory_watchdog.core.model import JobResult, Port, UnitFacts
from factory_watchdog.core.text import clean
from factory_watchdog.world.bus import Address, BusError, Connection, Refused, Signals, Which, connect
from factory_watchdog.world.evidence import Evidence, gather
from factory_watchdog.world.port_owner import port_owner
from factory_watchdog.world.processes import Process, left_over, processes, start_ticks

_NAME = "org.freedesktop.systemd1"
_MANAGER = Address("/org/freedesktop/systemd1", _NAME, f"{_NAME}.Manager")
_UNIT = f"{_NAME}.Unit"
_ROWS = "a(ssssssouso)"  # the type of what `ListUnitsByNames` gives back

_LOOK_TIMEOUT = 5.0  # seconds; answers come within 1 ms, but a daemon-reload keeps systemd busy for some seconds
_ASK_TIMEOUT = 25.0  # seconds; D-Bus's usual bound: polkit may have to be started, and to read its rules, first
_LOOK_EVERY = 5.0  # seconds between two looks at a job that is followed: the signal of its end may have been lost

_UNSET = 2**64 - 1  # systemd's word for a counter that is not kept
_NANOSECOND = 1e-9  # seconds

_TORN_LOOKS = 3  # a unit changes a few times within a millisecond, and then rests
_DOWN = frozenset({"inactive", "failed"})

SHOWN = {
    "Unit": {"ActiveState": "s", "SubState": "s", "InvocationID": "ay", "ActiveEnterTimestamp": "t"},
    "Service": {
        "Type": "s",
        "Result": "s",
        "NRestarts": "u",
        "MainPID": "u",
        "ExecMainStartTimestamp": "t",
        "ExecMainCode": "i",
        "ExecMainStatus": "i",
        "ControlGroup": "s",
        "CPUUsageNSec": "t",
        "MemoryCurrent": "t",
        "TasksCurrent": "t",
        "Restart": "s",
        "KillMode": "s",
        "TimeoutStopUSec": "t",
    },
}
"""The properties that the record of a restart has, by interface, with their D-Bus types. No other is ever read."""

_NOT_LOADABLE = frozenset({"not-found", "error", "bad-setting"})
_DENIED = frozenset(
    f"org.freedesktop.DBus.Error.{name}" for name in ("AccessDenied", "InteractiveAuthorizationRequired", "AuthFailed")
)
_CONFLICT = f"{_NAME}.TransactionIsDestructive"

Ended = tuple[JobResult, str]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """One look at a unit; `job` is the id of its queued job, 0 for none."""

    name: str
    load: str
    active: str
    sub: str
    path: str
    job: int
    invocation: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    """A job that we asked for; `id` is None where the answer to the call was lost."""

    unit: str
    id: int | None
    restart: bool
    before: _Look

    def pending(self, look: _Look) -> bool:
        """Whether the job is still there. A job for a unit is gone once the unit has another one."""
        return look.job != 0 if self.id is None else look.job == self.id

    def settled(self, after: _Look) -> Ended:
        """How the job ended, judged by the unit, for when its own result was not heard."""
        anew = after.invocation != self.before.invocation
        if after.active == "active" and (anew or not self.restart):
            return JobResult.DONE, ""
        if after.active == "inactive" and not self.restart and (anew or after.invocation is None):
            return JobResult.DONE, ""  # a oneshot that ran; systemd may have forgotten the run with the unit
        started = "" if anew else ", not started anew"
        return JobResult.FAILED, f"the job is gone, its result unheard; {_is(self.unit, after)}{started}"


class Manager:
    """The system's or a user's service manager. Connects when it is first needed, and again after the bus went away.

    No method raises for what the bus, systemd or a unit does. `close` ends the connection; a later call opens another.
    """

    def __init__(self, bus: Which) -> None:
        self._which: Which = bus
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def facts(self, unit: str) -> UnitFacts:
        """What systemd says of `unit` now; `told` is false, with the reason, where it says nothing of use.

        A unit that is stopped and not in memory is read from disk and told as inactive. What only services have is
        None for other units. Seven calls, about 1.5 ms.
        """
        try:
            return await self._ask(lambda connection: _facts(connection, unit), _LOOK_TIMEOUT)
        except (BusError, Refused) as error:
            return UnitFacts(told=False, detail=str(error))

    async def try_restart(self, unit: str, deadline: float) -> Ended:
        """Restart `unit` if it runs, and follow the job to its end, at most `deadline` seconds from now.

        A stopped unit stays stopped: `DONE`. A queued job is never overruled (mode "fail"). For any other result the
        second part is the reason, as one line.
        """
        return await self._job("TryRestartUnit", unit, deadline)

    async def start(self, unit: str, deadline: float) -> Ended:
        """Start `unit`, as `try_restart` does: a oneshot of the operator's, or a failed unit that was reset."""
        return await self._job("StartUnit", unit, deadline)

    async def reset_failed(self, unit: str) -> Ended:
        """Make systemd forget that `unit` failed, and how often it was started."""
        try:
            await self._ask(lambda bus: bus.call(_MANAGER, "ResetFailedUnit", "s", unit), _ASK_TIMEOUT)
        except (BusError, Refused) as error:
            return _kept_from(error)
        return JobResult.DONE, ""

    async def processes(self, control_group: str) -> list[Process]:
        """The processes of a unit's control group, as the kernel has them."""
        return processes(control_group)

    async def left_over(self, before: Iterable[Process]) -> tuple[int, ...]:
        """The PIDs of `before` that are alive still."""
        return left_over(before)

    async def port_owner(self, url: str, unit: str, control_group: str | None) -> Port:
        """Whose process listens at `url`: one of the unit's control group, or another's."""
        return port_owner(url, unit, control_group)

    async def properties(self, unit: str) -> dict[str, str | int | None]:
        """The properties of `SHOWN`, by systemd's names and in its units; None where it keeps none of that kind.

        Those that this systemd does not know are left out. Raises BusError or Refused.
        """
        return await self._ask(lambda connection: _properties(connection, unit), _LOOK_TIMEOUT)

    async def evidence(self, unit: str | None, control_group: str | None) -> Evidence:
        """What the host shows of `unit` and its processes now; takes about a second."""
        properties = functools.partial(self.properties, unit) if unit is not None else None
        return await gather(properties, control_group)

    async def close(self) -> None:
        """Hang up. A call that still waits for an answer gets none."""
        if self._connection is not None:
            await self._give_up(self._connection)

    async def _job(self, member: str, unit: str, deadline: float) -> Ended:
        """Ask for a job and follow it, on a connection of its own: its subscription ends with it."""
        ends = _now() + deadline
        async with contextlib.AsyncExitStack() as stack:
            try:
                before = await self._look(unit)
                connection = await _bounded(connect(self._which), _LOOK_TIMEOUT)
                stack.push_async_callback(connection.close)
                removed = await _bounded(_subscribe(connection), _LOOK_TIMEOUT)
                number = await _queue_job(connection, member, unit, min(_ASK_TIMEOUT, deadline))
            except (BusError, Refused) as error:
                return _kept_from(error)
            return await self._follow(_Job(unit, number, member == "TryRestartUnit", before), removed, ends)

    async def _follow(self, job: _Job, removed: Signals, ends: float) -> Ended:
        """Wait for the end of `job`: for its signal, and by a look at the unit now and then, last at the deadline."""
        while True:
            patience = min(_LOOK_EVERY, ends - _now()) if job.id is not None else 0.0
            if word := await _word(removed, job, patience):
                return _worded(word)
            unheard = ""
            try:
                look = await self._look(job.unit)
            except (BusError, Refused) as error:
                unheard = str(error)
            else:
                if not job.pending(look):
                    word = await _word(removed, job, 0.0)  # it comes before the answer to the look, if it comes
                    return _worded(word) if word else job.settled(look)
            if _now() < ends:
                continue
            if unheard:
                return JobResult.NO_BUS, f"the job's end cannot be seen: {unheard}"
            return JobResult.NEVER_ENDED, f"the job is still queued at the deadline; {_is(job.unit, look)}"

    async def _look(self, unit: str) -> _Look:
        return await self._ask(lambda connection: _look(connection, unit), _LOOK_TIMEOUT)

    async def _ask(self, question: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        """Ask on the connection that is kept, and give it up if it failed. Raises BusError or Refused."""
        connection = await _bounded(self._connected(), _LOOK_TIMEOUT)
        try:
            return await _bounded(question(connection), seconds)
        except BusError:
            await self._give_up(connection)
            raise

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is not None and self._connection.ended:
                await self._give_up(self._connection)
            if self._connection is None:
                self._connection = await connect(self._which)
            return self._connection

    async def _give_up(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
        await connection.close()


async def _facts(connection: Connection, unit: str) -> UnitFacts:
    """What is told of one moment: a unit that changes between the calls would show its old state with its new PID."""
    look = await _look(connection, unit)
    for _ in range(_TORN_LOOKS):
        facts = await _facts_of(connection, look)
        before, look = look, await _look(connection, unit)
        if look == before:
            return facts
    return UnitFacts(told=False, detail=f"{clean(unit)} changes while it is looked at")


async def _facts_of(connection: Connection, look: _Look) -> UnitFacts:
    if look.load in _NOT_LOADABLE and look.active == "inactive":
        return UnitFacts(told=False, detail=f"systemd says of {clean(look.name)}: {look.load}")
    facts = UnitFacts(True, look.active, look.sub, look.job, look.invocation)
    if not look.name.endswith(".service"):
        return facts
    service = Address(look.path, _NAME, f"{_NAME}.Service")
    if look.active in _DOWN:
        facts = dataclasses.replace(
            facts,
            own_exit=await _own_exit(connection, look.path),
            restarts_on=await _property(connection, service, "Restart", "s"),
        )
    main_pid = int(await _property(connection, service, "MainPID", "u")) or None
    nanoseconds = await _property(connection, service, "CPUUsageNSec", "t")
    return dataclasses.replace(
        facts,
        main_pid=main_pid,
        main_start=start_ticks(main_pid) if main_pid else None,
        cpu=None if nanoseconds == _UNSET else nanoseconds * _NANOSECOND,
        control_group=await _property(connection, service, "ControlGroup", "s") or None,
    )


async def _own_exit(connection: Connection, path: str) -> bool | None:
    """Whether the main process of a unit that is down ended before the unit began to stop; None where it is not known.

    systemd notes a main process's end before it lets the unit go, and lets it go before it ends the process (measured
    with systemd 252). Nobody knows of a run that never got active, or of a unit that systemd has dropped from memory,
    as it does with one that is inactive and that no other unit wants.
    """
    service, unit = Address(path, _NAME, f"{_NAME}.Service"), Address(path, _NAME, _UNIT)
    began = await _property(connection, service, "ExecMainStartTimestampMonotonic", "t")
    ended = await _property(connection, service, "ExecMainExitTimestampMonotonic", "t")
    left = await _property(connection, unit, "ActiveExitTimestampMonotonic", "t")
    return bool(ended <= left) if began and ended and left >= began else None


async def _look(connection: Connection, unit: str) -> _Look:
    """What `ListUnitsByNames` says, which loads the unit where need be, and the InvocationID."""
    rows = await connection.get(_MANAGER, "ListUnitsByNames", _ROWS, "as", [unit])
    if not rows:
        raise BusError(f"systemd does not take {clean(repr(unit))} for a unit's name")
    name, _, load, active, sub, _, path, job, _, _ = rows[0]
    invocation = await _property(connection, Address(path, _NAME, _UNIT), "InvocationID", "ay")
    return _Look(name, load, active, sub, path, job, bytes(invocation).hex() or None)


async def _properties(connection: Connection, unit: str) -> dict[str, str | int | None]:
    look = await _look(connection, unit)
    told: dict[str, str | int | None] = {}
    for interface, names in SHOWN.items():
        if interface == "Service" and not look.name.endswith(".service"):
            continue
        for name, kind in names.items():
            with contextlib.suppress(Refused):  # an older systemd
                value = await _property(connection, Address(look.path, _NAME, f"{_NAME}.{interface}"), name, kind)
                told[name] = _plain(value)
    return told


def _plain(value: Any) -> str | int | None:
    """A property as it is written down."""
    if isinstance(value, int):
        return None if value == _UNSET else value
    return clean(value) if isinstance(value, str) else bytes(value).hex()


async def _property(connection: Connection, of: Address, name: str, kind: str) -> Any:
    properties = Address(of.path, of.name, "org.freedesktop.DBus.Properties")
    told, value = await connection.get(properties, "Get", "v", "ss", of.interface, name)
    if told != kind:
        raise BusError(f"systemd tells {name} as a {told!r}, not as a {kind!r}")
    return value


async def _subscribe(connection: Connection) -> Signals:
    """The ends of jobs from now on; to be had before the job is asked for, or a quick one's end is missed."""
    removed = await connection.signals(_MANAGER, "JobRemoved")
    await connection.call(_MANAGER, "Subscribe")
    return removed


async def _queue_job(connection: Connection, member: str, unit: str, seconds: float) -> int | None:
    """The id of the new job; None where no answer came, so that it may be queued or not. Raises Refused."""
    try:
        path = await _bounded(connection.get(_MANAGER, member, "o", "ss", unit, "fail"), seconds)
    except BusError:
        return None
    return int(str(path).rpartition("/")[2])


async def _word(removed: Signals, job: _Job, seconds: float) -> str | None:
    """The result in the signal of the job's end, if it comes within `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            while True:
                number, _, _, word = (await removed.get()).body
                if number == job.id:
                    return str(word)
    return None


async def _bounded(work: Awaitable[T], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise BusError(f"no answer within {seconds:g} s") from None


def _worded(word: str) -> Ended:
    return (JobResult.DONE, "") if word == "done" else (JobResult.FAILED, f"the job ended as {clean(word)!r}")


def _kept_from(error: BusError | Refused) -> Ended:
    """The result for what kept a job from being queued."""
    if isinstance(error, BusError):
        return JobResult.NO_BUS, str(error)
    if error.name in _DENIED:
        why = str(error).rstrip(".")
        return JobResult.DENIED, f"systemd does not allow it: {why}; the rule is printed by llm-health config polkit"
    if error.name == _CONFLICT:
        return JobResult.FAILED, f"another job is queued that ours must not overrule: {error}"
    return JobResult.FAILED, f"systemd refused: {error}"


def _is(unit: str, look: _Look) -> str:
    return f"{clean(unit)} is {look.active} ({look.sub})"


def _now() -> float:
    return asyncio.get_running_loop().time()
