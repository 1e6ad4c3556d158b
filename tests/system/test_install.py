"""`make install` and `make uninstall` on a host without a network, from wheels fetched before."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.system

PROJECT = pathlib.Path(__file__).resolve().parents[2]
WHEELS = "/srv/wheels"
HOME, PREFIX = "/srv/opt/factory-watchdog", "/srv/local"  # the box can be written to in /srv, not in /opt and /usr
PLACES = (f"PREFIX={PREFIX}", f"HOME_DIR={HOME}", "PYTHON=/srv/python/bin/python3.11")
VENDOR = ("/usr/lib/sysusers.d", "/usr/lib/tmpfiles.d")
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS, "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_CACHE_DIR": "1"}
UNIT = "factory-watchdog.service"
# The box's Python is at another place than it was built for, and the service cannot see that one (ProtectHome=).
LIBRARY = {"LD_LIBRARY_PATH": "/srv/python/lib"}


@pytest.fixture(scope="module")
def wheels(need: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The project's dependencies and its build backend, as pip fetches them."""
    need(shutil.which("make"), "make is not installed")
    folder = tmp_path_factory.mktemp("wheels")
    fetch = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder, PROJECT, "hatchling"]
    fetched = subprocess.run(fetch, capture_output=True, text=True, check=False)
    need(fetched.returncode == 0, f"pip cannot fetch the dependencies: {fetched.stderr[-300:]}")
    return folder


@pytest.fixture
def bare(host: Any, wheels: pathlib.Path) -> Iterator[Any]:
    """The host with nothing of ours in it, and a folder of wheels."""
    box = host.box
    ours = [f"/etc/{kind}.d/factory-watchdog.conf" for kind in ("sysusers", "tmpfiles")]
    box.exec("rm", "-rf", f"/run/systemd/system/{UNIT}", *ours, "/run/factory-watchdog")
    shutil.copytree(wheels, box.path(WHEELS))
    for folder in VENDOR:
        box.exec("mount", "-t", "tmpfs", "tmpfs", folder)
    yield host
    for folder in VENDOR:
        box.exec("umount", folder)
    box.exec("rm", "-rf", WHEELS, HOME, PREFIX, f"/etc/systemd/system/{UNIT}", "/etc/factory-watchdog")


def make(host: Any, target: str) -> None:
    host.box.exec("make", "-C", "/srv/project", target, *PLACES, env=OFFLINE, timeout=120)


def test_installed_it_works_and_uninstalled_it_leaves_what_is_the_operators(bare: Any) -> None:
    host, box = bare, bare.box
    make(host, "install")
    assert f"ExecStart={PREFIX}/bin/llm-health run" in box.systemctl("cat", UNIT)
    assert box.systemctl("is-enabled", UNIT, check=False) == "disabled"
    assert box.exec("stat", "--format=%U:%G %a", "/run/factory-watchdog/flags").stdout == "root:llm-batch 1770\n"
    program = f"{PREFIX}/bin/llm-health"
    example = "/etc/factory-watchdog/config.example.toml"
    box.exec(program, "config", "check", "--config", example, user="games", env=LIBRARY)

    host.drop_in("".join(f"Environment={name}={value}" for name, value in LIBRARY.items()))
    host.watch()
    host.refuses()
    host.alerted("served")
    assert host.starts("spark1.service") == 2

    make(host, "uninstall")
    assert host.show("LoadState") == "not-found"
    for gone in (HOME, program, *(f"{folder}/factory-watchdog.conf" for folder in VENDOR)):
        assert not box.path(gone).exists()
    for kept in ("/etc/factory-watchdog/config.toml", "/var/lib/factory-watchdog/history.sqlite3"):
        assert box.path(kept).exists()
