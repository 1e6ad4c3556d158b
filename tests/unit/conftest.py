"""What the tests of the core share: a backend played in words."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from types import ModuleType

import pytest


def _load(name: str) -> ModuleType:
    """A file next to this one, as a module: under importlib mode tests are not importable by name."""
    file = pathlib.Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"unit_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_builders = _load("core_builders")


@pytest.fixture(scope="session")
def play() -> object:
    """`core_builders.play`: a backend with settings, driven by scripts."""
    return _builders.play


@pytest.fixture(scope="session")
def builders() -> ModuleType:
    """The whole of `core_builders`."""
    return _builders
