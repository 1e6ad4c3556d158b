"""A real systemd as PID 1 of its own namespaces: restarts real units, leaves nothing behind on the host.

Needs root, cgroup v2 and no container engine. Inside, every place that anything writes to is private and in memory; the
root file system is the host's, read-only. The network is private too and has only `lo`. Nothing of what the host has
enabled is started: no generators, no vendor `.wants`, an empty /etc/systemd/system, no fstab.

Python and the project are at the same place inside whatever they are outside, readable for every user, so that units
with `User=` and `ProtectHome=` can run them: see `PYTHON` and `PROGRAM`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Self

PYTHON = "/srv/bin/python"  # our interpreter with our dependencies and the project
PROGRAM = "/srv/bin/llm-health"  # the program, started by it

PROJECT = pathlib.Path(__file__).resolve().parents[2]
SYSTEMD = "/lib/systemd/systemd"
POLKITD = "/usr/lib/polkit-1/polkitd"
_BOOT_TIMEOUT = 30.0  # seconds; a boot takes 0.5 s, a starved machine ten times as long
_STOP_TIMEOUT = 10.0  # seconds; from SIGKILL of PID 1 until the kernel has ended everything in its namespace
_POLL = 0.05  # seconds between two looks of `wait_for`

_LAUNCHER = """#!/bin/sh
export LD_LIBRARY_PATH=/srv/python/lib PYTHONPATH=/srv/project:/srv/packages PYTHONDONTWRITEBYTECODE=1
exec /srv/python/bin/{python} {arguments}"$@"
"""

# Order matters: what is under a private place is bound to /srv before the place is covered.
_ISOLATE = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /srv
mkdir /srv/etc /srv/bin /srv/dev /srv/python /srv/packages /srv/project
mount --bind "$BOX_PYTHON" /srv/python
mount --bind "$BOX_PACKAGES" /srv/packages
mount --bind "$BOX_PROJECT" /srv/project
cp -a /etc/. /srv/etc
rm -rf /srv/etc/systemd/system /srv/etc/fstab /srv/etc/crypttab /srv/etc/polkit-1/rules.d
mkdir -p /srv/etc/systemd/system
install -d -m 0755 /srv/etc/polkit-1/rules.d
for node in null zero full random urandom tty; do
    touch /srv/dev/$node
    mount --bind /dev/$node /srv/dev/$node
done
mkdir /srv/dev/pts /srv/dev/shm /srv/dev/mqueue
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts /srv/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /srv/dev/shm
ln -s pts/ptmx /srv/dev/ptmx
ln -s /proc/self/fd /srv/dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${stream%:*} /srv/dev/${stream#*:}; done

mount -o remount,bind,ro /
for place in /srv/packages /srv/project /srv/python; do mount -o remount,bind,ro $place; done
mount --rbind /srv/dev /dev
mount --bind /srv/etc /etc
for place in /run /tmp /var; do mount -t tmpfs tmpfs $place; done
chmod 755 /run /var
chmod 1777 /tmp
mkdir -p /run/lock /run/systemd/system /var/lib /var/log /var/cache
mkdir -m 1777 /var/tmp
ln -s /run /var/run
ln -s /run/lock /var/lock

for place in /lib/systemd/system/*.wants /lib/systemd/system-generators; do
    [ -d $place ] && mount -t tmpfs -o ro tmpfs $place
done
mkdir /run/systemd/system/sysinit.target.d
printf '[Unit]\nWants=systemd-journald.service\n' >/run/systemd/system/sysinit.target.d/box.conf
[ ! -d /sys/fs/cgroup ] || umount -R /sys/fs/cgroup
mount -o remount,bind,ro /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
export container=other
exec "$BOX_SYSTEMD" --system --unit=basic.target --log-target=journal --show-status=false
"""


def missing() -> str | None:
    """Why no box can be started here, as one sentence; None where it can."""
    if os.geteuid() != 0:
        return "a real systemd in its own namespaces needs root"
    wanted = (SYSTEMD, POLKITD, *(f"/usr/bin/{name}" for name in ("dbus-daemon", "nsenter", "unshare")))
    absent = [path for path in wanted if not os.access(path, os.X_OK)]
    if absent:
        return f"not installed here: {', '.join(absent)} (packages systemd, dbus, polkitd, util-linux)"
    return None if _own_cgroup() else "cgroup v2 is not mounted here"


def wait_for(condition: Callable[[], object], timeout: float, what: str = "the condition") -> None:
    """Look at `condition` until it holds; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout:g} s")
        time.sleep(_POLL)


class Box:
    """One systemd. `folder` (the caller's) keeps the log of the boot; `start`, then `exec` and files, then `stop`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._log = folder / "box.log"
        self._cgroup: pathlib.Path | None = None
        self._outer: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def cgroup(self) -> pathlib.Path:
        """The control group that everything inside is in, as the host sees it; its root as the inside does."""
        assert self._cgroup is not None
        return self._cgroup

    def start(self) -> None:
        """Boot, with the system bus and polkit; returns once systemd answers. AssertionError with the log if not."""
        own = _own_cgroup()
        assert own is not None, missing()
        self._cgroup = pathlib.Path(tempfile.mkdtemp(prefix="factory-watchdog-box-", dir=own))
        self._cgroup.chmod(0o755)  # as a real root of control groups: for everybody to read
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End PID 1 and by that everything inside; the private places and the control group go with it."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._pid = 0
        if self._outer is not None:
            self._outer.kill()
            self._outer.wait(_STOP_TIMEOUT)
            self._outer = None
        if self._cgroup is not None:
            wait_for(self._remove_cgroup, _STOP_TIMEOUT, f"the removal of {self._cgroup}")
            self._cgroup = None

    def exec(
        self,
        *command: str,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: float = 30.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as `user`, and give back what it said; with `check` its failure is an AssertionError.

        A command that takes longer than `timeout` seconds raises subprocess.TimeoutExpired.
        """
        done = subprocess.run(
            self._inside(command, user),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=_environment(env),
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{shlex.join(command)} gave {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def popen(
        self, *command: str, user: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command inside without waiting for it; both of its outputs are pipes."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self._inside(command, user), stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=_environment(None)
        )

    def path(self, inside: str) -> pathlib.Path:
        """The file `inside` as it is reached from the host, to read or to write it."""
        return pathlib.Path(f"/proc/{self._pid}/root") / inside.lstrip("/")

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        """Write one file in a private place (/etc, /run, /srv, /tmp, /var); its folders are made."""
        file = self.path(inside)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def install_files(self, files: Mapping[str, pathlib.Path]) -> None:
        """Copy files of the host into private places: path inside -> file outside. Modes go along."""
        for inside, outside in files.items():
            self.write(inside, outside.read_text(), outside.stat().st_mode & 0o777)

    def install_project(self, config: str | None = None) -> None:
        """Put our sysusers, tmpfiles and unit in place as an installation does, with `PROGRAM` as what is started."""
        ours = PROJECT / "systemd"
        self.install_files(
            {
                "/etc/sysusers.d/factory-watchdog.conf": ours / "factory-watchdog.sysusers",
                "/etc/tmpfiles.d/factory-watchdog.conf": ours / "factory-watchdog.tmpfiles",
            }
        )
        unit = (ours / "factory-watchdog.service").read_text()
        self.unit("factory-watchdog.service", unit.replace("/usr/local/bin/llm-health", PROGRAM))
        if config is not None:
            self.write("/etc/factory-watchdog/config.toml", config)
        self.exec("systemd-sysusers", "/etc/sysusers.d/factory-watchdog.conf")
        self.exec("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/factory-watchdog.conf")

    def unit(self, name: str, text: str) -> None:
        """Write one unit file and load it."""
        self.units({name: text})

    def units(self, texts: Mapping[str, str]) -> None:
        """Write unit files and load them all at once."""
        for name, text in texts.items():
            self.write(f"/run/systemd/system/{name}", text)
        self.systemctl("daemon-reload")

    def remove_units(self, names: Iterable[str]) -> None:
        """End units at once, whatever they do, and forget them."""
        gone = list(names)
        for name in gone:
            self.systemctl("stop", "--no-block", name, check=False)
            wait_for(lambda name=name: self._ended(name), _STOP_TIMEOUT, f"the end of {name}")  # type: ignore[misc]
            self.systemctl("reset-failed", name, check=False)
            self.path(f"/run/systemd/system/{name}").unlink(missing_ok=True)
        self.systemctl("daemon-reload")

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        """What `systemctl` says, without the newline at its end."""
        return self.exec("systemctl", *arguments, check=check).stdout.rstrip("\n")

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.systemctl("show", "--value", "--property", name, unit)

    def rules(self, text: str, name: str = "50-factory-watchdog.rules") -> None:
        """Put polkit rules in force: written before polkit starts, so that no test waits for its file watch."""
        self.write(f"/etc/polkit-1/rules.d/{name}", text)
        self.systemctl("restart", "polkit.service")

    def remove_rules(self) -> None:
        """Take all polkit rules of /etc out of force."""
        for file in self.path("/etc/polkit-1/rules.d").iterdir():
            file.unlink()
        self.systemctl("restart", "polkit.service")

    def _boot(self) -> None:
        variables = {
            "BOX_PYTHON": sys.base_prefix,
            "BOX_PACKAGES": sysconfig.get_path("purelib"),
            "BOX_PROJECT": str(PROJECT),
            "BOX_SYSTEMD": SYSTEMD,
        }
        unshare = "unshare --pid --fork --kill-child --mount --uts --ipc --cgroup --net --mount-proc bash -c"
        enter = f"echo $$ >{shlex.quote(f'{self._cgroup}/cgroup.procs')} && exec {unshare} {shlex.quote(_ISOLATE)}"
        with self._log.open("wb") as log:  # the box dies with us, even if we are killed
            self._outer = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", "bash", "-c", enter],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(variables),
            )
        try:
            wait_for(self._answers, _BOOT_TIMEOUT, "the boot")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self._log.read_text()}") from None
        self._write_launchers()
        self.systemctl("start", "dbus.service", "polkit.service")

    def _answers(self) -> bool:
        assert self._outer is not None
        if self._outer.poll() is not None:
            raise AssertionError(f"the boot ended with {self._outer.returncode}")
        children = pathlib.Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        if not children:
            return False
        self._pid = int(children[0])
        if pathlib.Path(f"/proc/{self._pid}/comm").read_text().strip() != "systemd":
            return False
        return self.exec("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def _ended(self, unit: str) -> bool:
        if self.show(unit, "ActiveState") in ("inactive", "failed"):
            return True
        self.systemctl("kill", "--signal=SIGKILL", unit, check=False)
        return False

    def _write_launchers(self) -> None:
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.write(PYTHON, _LAUNCHER.format(python=python, arguments=""), 0o755)
        self.write(PROGRAM, _LAUNCHER.format(python=python, arguments="-m factory_watchdog "), 0o755)

    def _inside(self, command: Iterable[str], user: str | None) -> list[str]:
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"] if user else []
        return ["nsenter", f"--target={self._pid}", "-m", "-p", "-u", "-i", "-n", "-C", "--", *become, *command]

    def _remove_cgroup(self) -> bool:
        assert self._cgroup is not None
        for folder, _, _ in os.walk(self._cgroup, topdown=False):
            with contextlib.suppress(OSError):  # busy while a process in it still ends
                os.rmdir(folder)
        return not self._cgroup.exists()


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """A small environment of its own: nothing of the caller's session or bus reaches the inside."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **(extra or {})}


def _own_cgroup() -> pathlib.Path | None:
    """Our own cgroup v2 folder; None where that hierarchy is not mounted."""
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    roots = [fields[1] for fields in mounts if fields[2] == "cgroup2"]
    lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    ours = [line[3:] for line in lines if line.startswith("0::")]
    if not roots or not ours or not shutil.which("unshare"):
        return None
    return pathlib.Path(roots[0]) / ours[0].lstrip("/")
