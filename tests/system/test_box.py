"""The box itself: what happens inside stays inside."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

pytestmark = pytest.mark.system


def test_what_is_written_inside_is_not_seen_outside(box: Any) -> None:
    for place in ("/etc/factory-watchdog", "/etc/polkit-1/rules.d", "/var/lib", "/run", "/srv", "/tmp", "/dev/shm"):
        file = f"{place}/written-inside-the-box"
        box.exec("mkdir", "-p", place)
        box.exec("touch", file)
        assert box.path(file).exists()
        assert not pathlib.Path(file).exists()


def test_the_rest_of_the_host_cannot_be_written(box: Any) -> None:
    for place in ("/", "/usr/bin", "/usr/local/bin", "/proc/sys/kernel", "/sys/kernel"):
        said = box.exec("touch", f"{place}/written-inside-the-box", check=False)
        assert said.returncode != 0
    assert box.exec("sysctl", "-w", "kernel.core_pattern=x", check=False).returncode != 0


def test_users_made_inside_are_not_known_outside(box: Any) -> None:
    before = pathlib.Path("/etc/passwd").read_bytes(), pathlib.Path("/etc/group").read_bytes()
    box.write("/etc/sysusers.d/somebody.conf", "u somebody-of-the-box -\n")
    box.exec("systemd-sysusers", "/etc/sysusers.d/somebody.conf")
    box.exec("id", "somebody-of-the-box")
    assert (pathlib.Path("/etc/passwd").read_bytes(), pathlib.Path("/etc/group").read_bytes()) == before


def test_a_stopped_box_is_gone(box: Any, tmp_path: pathlib.Path) -> None:
    """A second box next to the shared one, with a process in a control group of its own."""
    other = type(box)(tmp_path)
    before = pathlib.Path("/proc/self/mounts").read_text()
    other.start()
    other.unit("running.service", "[Service]\nType=exec\nExecStart=/bin/sleep infinity\n")
    other.systemctl("start", "running.service")
    root, cgroup = other.path("/"), other.cgroup
    assert (cgroup / "system.slice/running.service").exists()
    other.stop()
    assert not root.exists()
    assert not cgroup.exists()
    assert pathlib.Path("/proc/self/mounts").read_text() == before
