"""Who listens at a port: the words of control groups, which sockets count, real sockets of real control groups."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

from factory_watchdog.core.model import Owner, Port
from factory_watchdog.world import port_owner as module
from factory_watchdog.world.port_owner import Listener, listeners, port_owner, reached, whose

ID = "3f" * 32

# --- words -----------------------------------------------------------------------------------------------------------

OWNERS = [
    ("/system.slice/ssh.service", Owner.FOREIGN, "ssh.service"),
    ("/system.slice/ssh.service/workers", Owner.FOREIGN, "ssh.service"),
    ("/system.slice/system-vllm.slice/vllm@2.service", Owner.FOREIGN, "vllm@2.service"),
    ("/system.slice/dockery.service", Owner.FOREIGN, "dockery.service"),
    ("/system.slice/docker-registry.service", Owner.FOREIGN, "docker-registry.service"),
    ("/system.slice/other.service/libpod-payload-" + ID, Owner.FOREIGN, "other.service"),
    ("/user.slice/user-1000.slice/session-3.scope", Owner.FOREIGN, "session-3.scope"),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service", Owner.FOREIGN, "llm.service"),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service", Owner.FOREIGN, "user@1000.service/app"),
    (f"/system.slice/docker-{ID}.scope", Owner.CONTAINER, "docker-3f"),
    (f"/docker/{ID}", Owner.CONTAINER, "docker"),
    (f"/default/{ID}", Owner.CONTAINER, "3f3f"),
    (f"/machine.slice/libpod-{ID}.scope/container", Owner.CONTAINER, "libpod-"),
    (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", Owner.CONTAINER, "libpod-"),
    (f"/kubepods.slice/kubepods-pod7.slice/cri-containerd-{ID}.scope", Owner.CONTAINER, "kubepods.slice"),
    (f"/kubepods/besteffort/pod7/{ID}", Owner.CONTAINER, "kubepods"),
    (f"/crio-{ID}.scope", Owner.CONTAINER, "crio-"),
    ("/system.slice/docker.service", Owner.CONTAINER, "docker.service"),
    ("/system.slice/containerd.service", Owner.CONTAINER, "containerd.service"),
    (f"/system.slice/docker-{ID}.scope/system.slice/vllm.service", Owner.CONTAINER, "docker-"),
    ("/machine.slice/systemd-nspawn@a.service/payload/system.slice/a.service", Owner.CONTAINER, "systemd-nspawn@a"),
    ("/lxc.payload.a/system.slice/a.service", Owner.CONTAINER, "lxc.payload.a"),
    ("/init.scope", Owner.UNKNOWN, "service manager itself"),
    ("/user.slice/user-1000.slice/user@1000.service/init.scope", Owner.UNKNOWN, "service manager itself"),
    ("/system.slice/vllm.socket", Owner.UNKNOWN, "no unit"),
    ("/system.slice", Owner.UNKNOWN, "no unit"),
    ("/", Owner.UNKNOWN, "no unit"),
    (None, Owner.UNKNOWN, "cannot be seen"),
    ("/system.slice/x\x1b[2J|.service", Owner.FOREIGN, "x [2J .service"),
]


@pytest.mark.parametrize(("path", "owner", "words"), OWNERS)
def test_what_a_control_group_says(path: str | None, owner: Owner, words: str) -> None:
    port = whose(path, "vllm.service", 8000)
    assert port.owner is owner
    assert words in port.detail
    assert port.detail.startswith("port 8000 is listened on ")
    assert len(port.detail) <= 160


def test_the_sentence_names_both() -> None:
    said = whose("/system.slice/ssh.service", "vllm.service", 8000).detail
    assert said == "port 8000 is listened on by ssh.service, not by vllm.service"


# --- which sockets count ---------------------------------------------------------------------------------------------


def listener(address: str, only_v6: bool = False) -> Listener:
    return Listener(ipaddress.ip_address(address), only_v6, 7)


REACHED = [
    ("127.0.0.1", "127.0.0.1", False, True),
    ("127.0.0.1", "127.0.0.2", False, False),
    ("0.0.0.0", "127.0.0.1", False, True),
    ("::", "127.0.0.1", False, True),
    ("::", "127.0.0.1", True, False),
    ("::", "::1", True, True),
    ("0.0.0.0", "::1", False, False),
    ("::1", "::1", False, True),
    ("::1", "127.0.0.1", False, False),
]


@pytest.mark.parametrize(("at", "address", "only_v6", "counts"), REACHED)
def test_which_socket_a_connection_may_reach(at: str, address: str, only_v6: bool, counts: bool) -> None:
    assert bool(reached([listener(at, only_v6)], [ipaddress.ip_address(address)])) is counts


def test_who_listens_just_there_goes_before_who_listens_everywhere() -> None:
    everywhere, there, again = listener("0.0.0.0"), listener("127.0.0.1"), listener("127.0.0.1")
    assert reached([everywhere, there, again], [ipaddress.ip_address("127.0.0.1")]) == [there, again]
    assert reached([everywhere, there], [ipaddress.ip_address("127.0.0.2")]) == [everywhere]


# --- real sockets ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(address: str, **options: object) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, **options) as server:  # type: ignore[arg-type]
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "told"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "::1"), ("::ffff:127.0.0.1", "127.0.0.1")],
)
def test_the_kernel_tells_who_listens(address: str, told: str) -> None:
    with contextlib.ExitStack() as stack:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((address, 0))
        number = server.getsockname()[1]
        assert listeners(number) == []
        server.listen()
        (found,) = listeners(number)
        assert found.address == ipaddress.ip_address(told)
        assert found.group
        with socket.create_connection(server.getsockname()[:2]):
            assert listeners(number) == [found], "a connection is no listener"
    assert listeners(number) == []


def test_a_dual_stack_socket_is_told_from_one_for_ipv6_only() -> None:
    with listening("::", dualstack_ipv6=True) as number:
        assert [found.only_v6 for found in listeners(number)] == [False]
    with listening("::") as number:
        assert [found.only_v6 for found in listeners(number)] == [True]


UNKNOWN = [
    ("http://10.99.98.97:{port}", "10.99.98.97 is no address of this host"),
    ("http://[2001:db8::9]:{port}", "2001:db8::9 is no address of this host"),
    ("http://spark1.example:{port}", "spark1.example is a name, and only addresses and localhost are looked at"),
    ("http://127.0.0.2:{port}", "nobody listens at port {port} of this host"),
    ("http://[::1]:{port}", "nobody listens at port {port} of this host"),
]


@pytest.mark.parametrize(("url", "why"), UNKNOWN)
def test_what_is_not_known(url: str, why: str, tmp_path: pathlib.Path) -> None:
    with listening("127.0.0.1") as port:
        told = port_owner(url.format(port=port), "vllm.service", "/vllm.service", tmp_path)
    assert told == Port(Owner.UNKNOWN, why.format(port=port))


def test_a_remote_address_is_not_taken_for_a_socket_that_listens_everywhere(tmp_path: pathlib.Path) -> None:
    with listening("0.0.0.0") as port:
        assert "no address of this host" in port_owner(f"http://10.99.98.97:{port}", "a", "/a", tmp_path).detail


def test_without_a_cgroup_v2_tree_it_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(module, "_TREES", (tmp_path, tmp_path / "none"))
    with listening("127.0.0.1") as port:
        assert "no cgroup v2 tree" in port_owner(f"http://127.0.0.1:{port}", "a.service", "/a.service").detail


@pytest.mark.parametrize("error", [PermissionError(1, "Operation not permitted"), TimeoutError("timed out")])
def test_what_the_kernel_refuses_is_no_exception(
    error: OSError, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def refuse(number: int) -> list[Listener]:
        raise error

    monkeypatch.setattr(module, "listeners", refuse)
    told = port_owner("http://127.0.0.1:8000", "a.service", "/a.service", tmp_path)
    assert told.owner is Owner.UNKNOWN
    assert told.detail.endswith(error.strerror or "timed out")


def test_an_old_kernel_is_not_taken_for_a_foreign_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(module, "_CGROUP_ID", 250)
    with listening("127.0.0.1") as port:
        told = port_owner(f"http://127.0.0.1:{port}", "a.service", "/a.service", tmp_path)
    assert told == Port(Owner.UNKNOWN, f"this kernel does not tell whose port {port} is (Linux 5.8 does)")


def test_an_error_of_the_kernel_s_own_is_raised() -> None:
    """A family that the kernel does not know."""
    with pytest.raises(OSError, match=r"No such file|Invalid argument"):
        list(module._dump(200, 1))


# --- real control groups ---------------------------------------------------------------------------------------------

SERVER = """
import os, socket, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as group:
    group.write(str(os.getpid()))
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("127.0.0.1", int(sys.argv[2])))
server.listen()
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


class Groups:
    """Control groups of this test, in a folder of the v2 tree, and servers that listen in them."""

    def __init__(self, tree: pathlib.Path, top: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.tree, self._top, self._stack = tree, top, stack

    def path(self, name: str) -> str:
        """A group as systemd would name it."""
        return "/" + str((self._top / name).relative_to(self.tree))

    def serve(self, name: str, port: int = 0) -> int:
        """The port of a new process that listens in the group `name`."""
        group = self._top / name
        group.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", SERVER, str(group), str(port)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = self._stack.enter_context(subprocess.Popen(command, **pipes))  # type: ignore[call-overload]
        self._stack.callback(process.kill)
        return int(process.stdout.readline())


@pytest.fixture
def groups(need: Callable[[object, str], None]) -> Iterator[Groups]:
    tree = next((tree for tree in module._TREES if (tree / module._MARK).exists()), None)
    need(tree is not None and os.access(tree, os.W_OK), "control groups (cgroup v2) cannot be made here")
    assert tree is not None
    top = pathlib.Path(tempfile.mkdtemp(prefix="factory-watchdog-test-", dir=tree))
    try:
        with contextlib.ExitStack() as stack:
            yield Groups(tree, top, stack)
    finally:
        _remove(top)


def _remove(top: pathlib.Path) -> None:
    deadline = time.monotonic() + 5
    while top.exists() and time.monotonic() < deadline:
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):  # busy while a process in it still ends
                os.rmdir(folder)
    assert not top.exists()


@pytest.mark.parametrize("inside", ["", "/worker", "/a/b"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_the_unit_s_own_process_at_any_depth(groups: Groups, inside: str, host: str) -> None:
    port = groups.serve("vllm.service" + inside)
    assert port_owner(f"http://{host}:{port}", "vllm.service", groups.path("vllm.service")) == Port(Owner.UNIT)


def test_another_unit_s_process(groups: Groups) -> None:
    groups.serve("vllm.service")
    port = groups.serve("other.service/deep")
    told = port_owner(f"http://127.0.0.1:{port}", "vllm.service", groups.path("vllm.service"))
    assert told == Port(Owner.FOREIGN, f"port {port} is listened on by other.service, not by vllm.service")


@pytest.mark.parametrize("group", [None, "", "/", "/gone.service"])
def test_a_unit_without_processes_has_no_port(groups: Groups, group: str | None) -> None:
    port = groups.serve("vllm.service")
    assert port_owner(f"http://127.0.0.1:{port}", "gone.service", group).owner is Owner.FOREIGN


def test_a_unit_whose_name_only_begins_alike(groups: Groups) -> None:
    port = groups.serve("vllm.service2.service")
    assert port_owner(f"http://127.0.0.1:{port}", "a", groups.path("vllm.service")).owner is Owner.FOREIGN


@pytest.mark.parametrize(
    ("others", "owner"),
    [
        (["vllm.service"], Owner.UNIT),
        (["other.service"], Owner.FOREIGN),
        ([f"docker-{ID}.scope"], Owner.CONTAINER),
        (["nothing"], Owner.UNKNOWN),
        (["nothing", f"docker-{ID}.scope"], Owner.CONTAINER),
        ([f"docker-{ID}.scope", "other.service", "nothing"], Owner.FOREIGN),
    ],
)
def test_where_several_listen_all_have_to_be_the_unit_s(groups: Groups, others: list[str], owner: Owner) -> None:
    port = groups.serve("vllm.service")
    for name in others:
        groups.serve(name, port)
    assert port_owner(f"http://127.0.0.1:{port}", "vllm.service", groups.path("vllm.service")).owner is owner


def test_a_group_outside_what_can_be_seen(groups: Groups, tmp_path: pathlib.Path) -> None:
    port = groups.serve("other.service")
    told = port_owner(f"http://127.0.0.1:{port}", "vllm.service", "/vllm.service", tmp_path)
    assert (told.owner, "cannot be seen" in told.detail) == (Owner.UNKNOWN, True)


def test_the_search_is_bounded(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    port = groups.serve("a/b/c/other.service")
    monkeypatch.setattr(module, "_MOST_GROUPS", 0)
    assert port_owner(f"http://127.0.0.1:{port}", "vllm.service", "/vllm.service").owner is Owner.UNKNOWN
