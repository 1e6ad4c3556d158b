"""Who listens at a backend's address: the control group of the listening sockets, as the kernel tells it to everybody.

A dump of the listening TCP sockets (sock_diag(7)) names for each the control group in which it was made: attribute
INET_DIAG_CGROUP_ID, Linux 5.8 and newer. That number is the inode of the group's folder in the cgroup v2 tree, so it is
compared with the unit's own folder and all below it, and, where it is none of these, looked for in the whole tree.
Nothing of it needs a privilege. Only sockets of our own network namespace are seen.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pathlib
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from factory_watchdog.core.model import Owner, Port
from factory_watchdog.core.text import clean

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_TREES = (pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/unified"))  # the second beside cgroup v1
_MARK = "cgroup.controllers"  # the file by which a folder is known as one of the v2 tree: v1 has other inode numbers

_DEADLINE = 0.2  # seconds; the kernel makes the answer while it takes the request (0.1 ms)
_MOST_GROUPS = 20_000  # groups looked through for one; a host full of containers has some thousands
_NO_FOLDER_INSIDE = 2  # links of a folder: its own name, and "." in it; each folder inside adds its ".."
_LONGEST_NAME = 60  # characters of a group's name; container scopes carry 64 digits

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP = 0x1 | 0x300  # NLM_F_REQUEST, NLM_F_DUMP
_ERROR, _DONE = 2, 3  # message types; both begin with a negative error number, or 0
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_SOCKET_ID = struct.Struct("!HH16s16s4x8s")  # ports, addresses, interface, cookie
_MESSAGE = struct.Struct("=B3x48s20x")  # family, socket id; timers, queues, user and inode are passed over
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_SKV6ONLY, _CGROUP_ID = 11, 21
_ANY_COOKIE = b"\xff" * 8
_LISTEN = 1 << 10  # the bit of TCP_LISTEN

_LOCALHOST = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))

_MANAGER = "init.scope"  # where systemd itself is: it listens for a unit that is activated by its socket
_USER_MANAGER = re.compile(r"user@\d+\.service")  # what a user's manager runs is below it
_UNIT = re.compile(r".+\.(service|scope)")
# Groups of containers, by what their engines call them, and the engines' own, who often hold a published port.
_CONTAINER = re.compile(
    r"(docker|libpod|podman|crio|cri-containerd|containerd|nerdctl|machine)-.+\.scope"
    r"|(docker|containerd|crio|podman|snap\.docker\.dockerd|systemd-nspawn@.+)\.service"
    r"|kubepods.*|docker|libpod_parent|lxc|lxc\.(payload|monitor)\..+|.*[0-9a-f]{64}.*"
)


class _UnknownError(Exception):
    """Why it cannot be said who listens."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening socket; `group` is None where the kernel does not tell it."""

    address: Address
    only_v6: bool
    group: int | None

    def takes(self, address: Address) -> bool:
        """Whether it listens at every address, this one included."""
        if not self.address.is_unspecified:
            return False
        return self.address.version == address.version or (self.address.version == 6 and not self.only_v6)


def port_owner(url: str, unit: str, control_group: str | None, tree: pathlib.Path | None = None) -> Port:
    """Whose the port of `url` is: the unit's, that is in `control_group` (None: no process is the unit's), or not.

    `control_group` is as systemd names it: "/system.slice/x.service". Where several sockets listen, all have to be the
    unit's. Raises nothing for what the kernel does; within milliseconds.
    """
    try:
        return _looked(url, unit, control_group, tree or _tree())
    except _UnknownError as why:
        return Port(Owner.UNKNOWN, clean(str(why)))
    except OSError as error:
        return Port(Owner.UNKNOWN, clean(f"the kernel does not tell whose the port is: {error.strerror or error}"))


def _looked(url: str, unit: str, control_group: str | None, tree: pathlib.Path) -> Port:
    number, addresses = _addressed(url)
    groups = {listener.group for listener in reached(listeners(number), addresses)}
    if not groups:
        raise _UnknownError(f"nobody listens at port {number} of this host")
    if None in groups:
        raise _UnknownError(f"this kernel does not tell whose port {number} is (Linux 5.8 does)")
    others = {group for group in groups if group is not None} - _at_and_below(tree, control_group)
    if not others:
        return Port(Owner.UNIT)
    found = _paths(tree, others)
    return max((whose(found.get(group), unit, number) for group in others), key=_gravity)


def _gravity(port: Port) -> int:
    return (Owner.UNIT, Owner.UNKNOWN, Owner.CONTAINER, Owner.FOREIGN).index(port.owner)


# --- the address -----------------------------------------------------------------------------------------------------


def _addressed(url: str) -> tuple[int, tuple[Address, ...]]:
    """The port of `url`, and the addresses of this host that a connection to it may go to. Raises _UnknownError."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    number = parts.port or (443 if parts.scheme == "https" else 80)
    if host == "localhost":
        return number, _LOCALHOST
    try:
        address = _plain(ipaddress.ip_address(host))
    except ValueError:
        raise _UnknownError(f"{host} is a name, and only addresses and localhost are looked at") from None
    if address.is_unspecified:
        return number, tuple(own for own in _LOCALHOST if own.version == address.version)
    if not address.is_loopback and not _is_of_this_host(host, address):
        raise _UnknownError(f"{host} is no address of this host")
    return number, (address,)


def _plain(address: Address) -> Address:
    """An address without its zone; an IPv4 one that is written as IPv6 as what it is."""
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or ipaddress.IPv6Address(address.packed)
    return address


def _is_of_this_host(host: str, address: Address) -> bool:
    """Whether a socket can be bound there: the kernel's own word for which addresses are its."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host if family == socket.AF_INET6 else str(address), 0))
    except OSError:
        return False
    return True


# --- the sockets -----------------------------------------------------------------------------------------------------


def reached(some: Iterable[Listener], addresses: Iterable[Address]) -> list[Listener]:
    """Those that may take a connection to one of `addresses`: who listens just there goes first."""
    known, found = list(some), []
    for address in addresses:
        exact = [listener for listener in known if listener.address == address]
        found += exact or [listener for listener in known if listener.takes(address)]
    return found


def listeners(number: int) -> list[Listener]:
    """Every socket that listens at TCP port `number`. Raises OSError."""
    return [*_dump(socket.AF_INET, number), *_dump(socket.AF_INET6, number)]


def _dump(family: int, number: int) -> Iterator[Listener]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_DEADLINE)
        kernel.sendto(_request(family, number), (0, 0))
        while True:
            for kind, payload in _messages(kernel.recv(1 << 16)):
                if kind in (_ERROR, _DONE):
                    code = struct.unpack_from("=i", payload)[0] if len(payload) >= 4 else 0
                    if code < 0:
                        raise OSError(-code, os.strerror(-code))
                    return
                yield _listener(payload)


def _request(family: int, number: int) -> bytes:
    wanted = _SOCKET_ID.pack(number, 0, b"", b"", _ANY_COOKIE)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _LISTEN) + wanted
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + body


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            raise OSError("a netlink message is cut")
        yield kind, data[offset + _HEADER.size : offset + length]
        offset += _aligned(length)


def _listener(payload: bytes) -> Listener:
    family, wanted = _MESSAGE.unpack_from(payload)
    source = _SOCKET_ID.unpack(wanted)[2]
    v6 = family == socket.AF_INET6
    address = ipaddress.IPv6Address(source) if v6 else ipaddress.IPv4Address(source[:4])
    told = dict(_attributes(payload[_MESSAGE.size :]))
    group = struct.unpack("=Q", told[_CGROUP_ID])[0] if _CGROUP_ID in told else None
    return Listener(_plain(address), told.get(_SKV6ONLY, b"\0") != b"\0", group)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[offset + _ATTRIBUTE.size : offset + length]
        offset += _aligned(length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


# --- the control groups ----------------------------------------------------------------------------------------------


def _tree() -> pathlib.Path:
    for tree in _TREES:
        if (tree / _MARK).exists():
            return tree
    raise _UnknownError("there is no cgroup v2 tree here, so it cannot be told whose the port is")


def _at_and_below(tree: pathlib.Path, control_group: str | None) -> set[int]:
    """The ids of a group and of every group below it; none of one that is gone."""
    inside = (control_group or "").strip("/")
    if not inside:
        return set()
    top = tree / inside
    try:
        own = os.stat(top).st_ino
    except OSError:
        return set()
    return {own, *(number for number, _ in _groups(top))}


def _paths(tree: pathlib.Path, ids: set[int]) -> dict[int, str]:
    """The paths in the tree of these groups, of those that are there to be seen."""
    root = os.stat(tree).st_ino
    found = {root: "/"} if root in ids else {}
    for number, path in _groups(tree):
        if number in ids:
            found[number] = path
            if len(found) == len(ids):
                break
    return found


def _groups(top: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Id and path below `top` of every group there, nearest first.

    A folder with two links has no folder in it, and most groups are such: not reading them halves the time.
    """
    folders, seen = [str(top)], 0
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                inner = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:  # the group vanished between the listing and the look
            continue
        for entry in inner:
            yield entry.inode(), entry.path[len(str(top)) :]
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_nlink != _NO_FOLDER_INSIDE:
                    folders.append(entry.path)
        seen += len(inner)
        if seen > _MOST_GROUPS:
            return


def whose(path: str | None, unit: str, number: int) -> Port:
    """What a control group that is not the unit's says of the owner; `path` is None where it cannot be seen."""
    if path is None:
        return Port(Owner.UNKNOWN, f"port {number} is listened on from a control group that cannot be seen from here")
    names = [name for name in path.split("/") if name and not _USER_MANAGER.fullmatch(name)]
    other = next((name for name in names if _CONTAINER.fullmatch(name) or _UNIT.fullmatch(name)), None)
    if other is None:
        shown = clean(path, _LONGEST_NAME)
        return Port(Owner.UNKNOWN, f"port {number} is listened on by a process of no unit (control group {shown})")
    if other == _MANAGER:
        return Port(Owner.UNKNOWN, f"port {number} is listened on by the service manager itself, for whom is not told")
    shown = clean(other if other != unit else path, _LONGEST_NAME)
    if _CONTAINER.fullmatch(other):
        return Port(Owner.CONTAINER, f"port {number} is listened on by a container or its engine ({shown})")
    return Port(Owner.FOREIGN, f"port {number} is listened on by {shown}, not by {unit}")
