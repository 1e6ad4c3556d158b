"""One connection to a message bus: every failure on the way is a BusError, every error reply a Refused.

Built of jeepney's parts, since its ready-made opener leaves the socket open when it fails. D-Bus specification:
https://dbus.freedesktop.org/doc/dbus-specification.html
"""

# mypy: disable-error-code="import-untyped"
# jeepney has no types; it is imported in this file alone.

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any, Literal

from jeepney import DBusAddress, HeaderFields, MatchRule, Message, MessageFlag, MessageType, new_method_call
from jeepney.auth import BEGIN, Authenticator
from jeepney.bus import get_bus
from jeepney.io.asyncio import DBusConnection, DBusRouter
from jeepney.io.common import RouterClosed
from jeepney.low_level import SizeLimitError

from factory_watchdog.core.text import clean

Which = Literal["system", "user"]
Signals = asyncio.Queue[Message]


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """Whom a call is for: an object of the program that has `name` on the bus, and one of its interfaces."""

    path: str
    name: str
    interface: str


BUS = Address("/org/freedesktop/DBus", "org.freedesktop.DBus", "org.freedesktop.DBus")

_QUEUE = 1024  # signals; jeepney drops what does not fit, and a boot or a reload removes hundreds of jobs at once
_LINE = 1024  # bytes; a line of the authentication has below 100

# What goes wrong on the way, in Python's and jeepney's words. LookupError: jeepney's reply table is emptied when the
# connection breaks, and the call that waits then misses its entry there; ValueError: authentication, unreadable data.
_ON_THE_WAY = (OSError, EOFError, RouterClosed, LookupError, ValueError, RuntimeError, SizeLimitError)

# Error replies that the bus writes in the name of somebody who is not there, or who did not answer.
_NOBODY = frozenset(
    f"org.freedesktop.DBus.Error.{name}"
    for name in ("ServiceUnknown", "NameHasNoOwner", "NoReply", "Disconnected", "NoServer", "Timeout", "TimedOut")
)


class BusError(Exception):
    """The bus or the other side cannot be reached, did not answer in time, or said something unreadable."""


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """An error reply: its `name`, and its text as one clean line."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class Connection:
    """A connection to a bus; made by `connect`, ended by `close`."""

    def __init__(self, stream: DBusConnection) -> None:
        self._stream = stream
        self._router = DBusRouter(stream)

    @property
    def ended(self) -> bool:
        """Whether the bus hung up, as far as it is known without a call."""
        return bool(self._stream.reader.at_eof() or self._stream.writer.is_closing())

    async def call(self, to: Address, member: str, signature: str | None = None, *body: object) -> Message:
        """Call a method and return its reply. Raises BusError or Refused; bounded by the caller."""
        with _bus_errors(f"no answer to {member}"):
            message = new_method_call(DBusAddress(to.path, to.name, to.interface), member, signature, body)
            message.header.flags |= MessageFlag.no_auto_start  # nobody is started only to be asked
            reply = await self._router.send_and_get_reply(message)
        if reply.header.message_type is not MessageType.error:
            return reply
        name = str(reply.header.fields.get(HeaderFields.error_name))
        told = reply.body[0] if reply.body and isinstance(reply.body[0], str) else name
        raise BusError(clean(told)) if name in _NOBODY else Refused(name, clean(told))

    async def get(self, to: Address, member: str, kind: str, signature: str | None = None, *body: object) -> Any:
        """Call a method that gives back one value of the D-Bus type `kind`; another type is a BusError."""
        reply = await self.call(to, member, signature, *body)
        told = reply.header.fields.get(HeaderFields.signature, "")
        if told != kind:
            raise BusError(f"the answer to {member} is of type {told!r}, not {kind!r}")
        return reply.body[0]

    async def signals(self, source: Address, member: str) -> Signals:
        """The signals `member` of `source` that come from now on.

        They are taken from the present owner of the name alone: anybody on the bus can send a signal that looks so.
        """
        owner = await self.get(BUS, "GetNameOwner", "s", "s", source.name)
        rule = MatchRule(type="signal", sender=owner, interface=source.interface, member=member, path=source.path)
        queue: Signals = asyncio.Queue(_QUEUE)
        self._router.filter(rule, queue=queue)
        await self.call(BUS, "AddMatch", "s", rule.serialise())
        return queue

    async def close(self) -> None:
        """Hang up at once; what was not sent yet is dropped. Raises nothing."""
        self._stream.writer.transport.abort()
        with contextlib.suppress(Exception):
            await self._router.__aexit__(None, None, None)  # ends its task, and takes the error that it ended with
        with contextlib.suppress(OSError):
            await self._stream.writer.wait_closed()


async def connect(which: Which) -> Connection:
    """Open a connection to the system's or the user's bus. Raises BusError; bounded by the caller."""
    with _bus_errors(f"no connection to the {which} bus"):
        reader, writer = await asyncio.open_unix_connection(_address(which))
        try:
            await _authenticate(reader, writer)
        except BaseException:
            writer.transport.abort()
            raise
    connection = Connection(DBusConnection(reader, writer))
    try:
        await connection.call(BUS, "Hello")
    except BaseException:
        await connection.close()
        raise
    return connection


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    conversation = Authenticator()
    for line in conversation:
        writer.write(line)
        await writer.drain()
        answer = await reader.read(_LINE)
        if not answer:
            raise EOFError
        conversation.feed(answer)
    writer.write(BEGIN)
    await writer.drain()


def _address(which: Which) -> str:
    """The socket of a bus: DBUS_SYSTEM_BUS_ADDRESS, DBUS_SESSION_BUS_ADDRESS, or where systemd puts it."""
    if which == "system":
        return str(get_bus(os.environ.get("DBUS_SYSTEM_BUS_ADDRESS") or "unix:path=/run/dbus/system_bus_socket"))
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return str(get_bus(os.environ.get("DBUS_SESSION_BUS_ADDRESS") or f"unix:path={runtime}/bus"))


@contextlib.contextmanager
def _bus_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except _ON_THE_WAY as error:
        raise BusError(clean(f"{doing}: {_said(error)}")) from error


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, EOFError | RouterClosed | LookupError):
        return "the bus hung up"
    return str(error) or type(error).__name__
