"""The lab: real vLLM servers in a box. Each is started once and shared; a test that harms one leaves it serving."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

Need = Callable[[object, str], None]


def _load(path: str) -> ModuleType:
    """A file beside this one, as a module: under importlib mode tests are not importable by name."""
    file = (pathlib.Path(__file__).parent / path).resolve()
    spec = importlib.util.spec_from_file_location(f"lab_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_box = _load("../system/box.py")
_host = _load("../system/host.py")
_install = _load("install_vllm.py")
_load_clients = _load("load.py")
_model = _load("tiny_model.py")
_unit = _load("vllm_unit.py")
_watchdog = _load("watchdog.py")

# Places that the box covers with its own: an environment below them cannot be seen inside.
_COVERED = tuple(map(pathlib.Path, ("/dev", "/run", "/srv", "/tmp", "/var")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder `lab`."""
    here = pathlib.Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.lab)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A table of the detection times that tests noted (`detected` in test_soak.py)."""
    passed = terminalreporter.stats.get("passed", [])
    found = [value for report in passed for name, value in report.user_properties if name == "detected"]
    if not found:
        return
    terminalreporter.section("seconds from a freeze to its detection")
    for what, seconds in found:
        terminalreporter.write_line(f"{seconds:7.1f}  {what}")


@pytest.fixture(scope="session")
def venv(need: Need) -> pathlib.Path:
    """The environment that has vLLM."""
    place: pathlib.Path = _install.environment(_install.cache())
    need(_install.installed(place), f"no vLLM at {place}: run tests/lab/install_vllm.py")
    covered = [str(folder) for folder in _COVERED if place.is_relative_to(folder)]
    need(not covered, f"{place} cannot be seen in the box: choose a FW_LAB_CACHE that is not below {covered}")
    return place


@pytest.fixture(scope="session")
def box(need: Need, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running box that has the model folders."""
    missing = _box.missing()
    need(missing is None, str(missing))
    with _box.Box(tmp_path_factory.mktemp("box")) as running:
        for name, size in _model.SIZES.items():
            _model.write(running.path(f"{_unit.MODELS}/{name}"), size)
        _model.write(running.path(f"{_unit.MODELS}/base"), _model.SIZES["least"], template=False)
        yield running


@pytest.fixture(scope="session")
def servers(venv: pathlib.Path, box: Any) -> dict[str, Any]:
    """The shared servers, started at once, since a start is mostly imports on one core."""
    small, slow, whole = (
        _unit.Server(box, f"{name}.service", port)
        for port, name in enumerate(("vllm", "vllm-slow", "vllm-whole"), start=8000)
    )
    steps, development = "--max-num-batched-tokens", {"VLLM_SERVER_DEV_MODE": "1"}
    small.begin(_unit.unit_text(venv, "small", small.port))
    slow.begin(_unit.unit_text(venv, "slow", slow.port, steps, "512"))
    whole.begin(_unit.unit_text(venv, "slow", whole.port, steps, "8192", environment=development))
    with small.inside():
        for server in (small, slow, whole):
            server.answers()
    return {"small": small, "slow": slow, "whole": whole}


@pytest.fixture
def small(servers: dict[str, Any]) -> Iterator[Any]:
    """A server of the small model, idle, with this test in its network."""
    yield from _idle(servers["small"])


@pytest.fixture
def slow(servers: dict[str, Any]) -> Iterator[Any]:
    """A server of the slow model that takes prompts in steps of 512 tokens, idle, with this test in its network."""
    yield from _idle(servers["slow"])


@pytest.fixture
def whole(servers: dict[str, Any]) -> Iterator[Any]:
    """One that takes a prompt in one step, in development mode, idle, with this test in its network."""
    yield from _idle(servers["whole"])


def _idle(server: Any) -> Iterator[Any]:
    with server.inside():
        server.wait(lambda: server.sample().running == 0, 30.0, "idle")
        yield server


@pytest.fixture(scope="module")
def serve(venv: pathlib.Path, box: Any) -> Iterator[Callable[..., Any]]:
    """Start a server of these tests alone, gone after them: `serve("vllm-mute", 8010, "least", "--flag")`.

    It does not answer yet, so that several can start at once; the thread must be inside for what is sent to it.
    """
    begun: list[str] = []

    def begin(name: str, port: int, model: str, *arguments: str, **environment: str) -> Any:
        server = _unit.Server(box, f"{name}.service", port)
        begun.append(server.unit)
        server.begin(_unit.unit_text(venv, model, port, *arguments, environment=environment))
        return server

    yield begin
    box.remove_units(begun)


@pytest.fixture
def load() -> Callable[..., Any]:
    """Clients as a context manager: `load(server, clients, prompt=..., max_tokens=..., repeat=...)`."""
    return lambda server, clients, **options: _load_clients.Load(server.port, clients, **options)


@pytest.fixture
def watchdog(box: Any) -> Iterator[Any]:
    """Our installation in the box, nothing watched yet; gone with all that belongs to it after the test."""
    host = _host.Host(box)
    yield _watchdog.Watchdog(host)
    host.clear()
