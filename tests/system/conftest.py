"""The box: one real systemd for all system tests, and a probe that speaks to it through our own code."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, TracebackType
from typing import Any, Self

import pytest


def _load(name: str) -> ModuleType:
    """A file next to this one, as a module: under importlib mode tests are not importable by name."""
    file = pathlib.Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"system_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_box = _load("box")
_host = _load("host")


class Probe:
    """A process inside that asks systemd through `world.systemd`, as `user`; a context manager."""

    def __init__(self, box: Any, user: str | None, bus: str) -> None:
        self._process = box.popen(_box.PYTHON, "-W", "error", "/srv/project/tests/system/probe.py", bus, user=user)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self._process.kill()
        _, errors = self._process.communicate(timeout=10)
        assert kind or (self._process.returncode, errors) == (0, ""), errors

    def send(self, *question: object) -> None:
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read()
        return json.loads(line)

    def ask(self, *question: object) -> Any:
        self.send(*question)
        return self.receive()


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., None]:
    """Poll a condition until it holds: `wait_for(condition, timeout, what)`."""
    return _box.wait_for  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def box(need: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The running box, with the system bus and polkit. Tests share it: each makes units of its own and removes them."""
    missing = _box.missing()
    need(missing is None, str(missing))
    with _box.Box(tmp_path_factory.mktemp("box")) as running:
        yield running


@pytest.fixture
def units(box: Any) -> Iterator[Callable[[dict[str, str]], None]]:
    """Write unit files, name -> text, that are stopped and removed after the test."""
    made: list[str] = []

    def make(texts: dict[str, str]) -> None:
        made.extend(texts)
        box.units(texts)

    yield make
    box.remove_units(made)


@pytest.fixture
def rules(box: Any) -> Iterator[Callable[[str], None]]:
    """Put polkit rules in force until the test ends."""
    yield box.rules
    box.remove_rules()


@pytest.fixture
def probe(box: Any) -> Iterator[Callable[..., Probe]]:
    """Open a probe: `probe()` as root, `probe(user="nobody")`; ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(user: str | None = None, bus: str = "system") -> Probe:
            return stack.enter_context(Probe(box, user, bus))

        yield start


@pytest.fixture
def host(box: Any) -> Iterator[Any]:
    """The watchdog installed in the box, nothing configured yet; gone with all that belongs to it after the test."""
    installed = _host.Host(box)
    yield installed
    installed.clear()
