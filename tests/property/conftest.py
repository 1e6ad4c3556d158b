"""Gives the property tests their made-up hosts, and a profile for long runs (HYPOTHESIS_PROFILE=long)."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

from hypothesis import HealthCheck, settings


def _load(name: str) -> None:
    """A file next to this one, as a module that the tests import by its name."""
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    if name not in sys.modules:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


for _module in ("fake_host", "witness", "free_host"):  # each may import those before it
    _load(_module)

# By default the same examples each time: whether a change may land must not depend on luck. The long profile looks on.
for _name, _examples in (("default", 300), ("long", 5000)):
    settings.register_profile(
        _name,
        deadline=None,
        max_examples=_examples,
        derandomize=_name == "default",
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
