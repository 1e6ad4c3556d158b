from __future__ import annotations

import os
import pathlib
import socket
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from factory_watchdog.world.sd_notify import Notifier

Listener = tuple[str, socket.socket]


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Listener]:
    """A datagram socket of either kind, as NOTIFY_SOCKET names it."""
    name = f"@{uuid.uuid4()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(name.replace("@", "\0", 1))
        server.settimeout(5)
        yield name, server


@pytest.mark.parametrize(
    ("say", "datagram"),
    [
        (lambda n: n.ready("watching 2 backends"), "READY=1\nSTATUS=watching 2 backends"),
        (lambda n: n.ready(), "READY=1"),
        (lambda n: n.status("spark1 busy"), "STATUS=spark1 busy"),
        (lambda n: n.status("bad\nREADY=1\x1b[31m|é"), "STATUS=bad READY=1 [31m é"),
        (lambda n: n.watchdog(), "WATCHDOG=1"),
        (lambda n: n.stopping(), "STOPPING=1"),
    ],
)
def test_what_is_said(listener: Listener, say: Callable[[Notifier], None], datagram: str) -> None:
    name, server = listener
    notifier = Notifier({"NOTIFY_SOCKET": name})
    say(notifier)
    assert server.recv(4096).decode() == datagram
    notifier.close()


def test_reloading_says_when(listener: Listener) -> None:
    name, server = listener
    notifier = Notifier({"NOTIFY_SOCKET": name})
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    first, second = server.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= after
    notifier.close()


def test_a_listener_that_does_not_listen_is_never_waited_for(listener: Listener) -> None:
    name, server = listener
    notifier = Notifier({"NOTIFY_SOCKET": name})
    for _ in range(5000):  # far more than the queue of a datagram socket holds
        notifier.watchdog()
    server.close()
    notifier.status("nobody is there")
    notifier.close()
    notifier.status("closed")
    notifier.close()


@pytest.mark.parametrize("value", ["", "relative/path", "vsock:2:1", "/no/such/socket", "/" + "x" * 200, "/a\0b", "@"])
def test_without_a_usable_socket_nothing_happens(value: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": value})
    notifier.ready("nobody hears")
    notifier.close()
    nobody = Notifier({})
    nobody.reloading()
    nobody.close()


OURS = str(os.getpid())


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": OURS}, 60.0),
        ({"WATCHDOG_USEC": "500000"}, 0.25),
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_PID": OURS}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({}, None),
    ],
)
def test_the_beat_is_half_of_the_watchdogs_time(environment: dict[str, str], seconds: float | None) -> None:
    assert Notifier(environment).watchdog_interval() == seconds
