"""Gives the property tests their made-up host, and a profile for long runs (HYPOTHESIS_PROFILE=long)."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

from hypothesis import HealthCheck, settings

_FILE = pathlib.Path(__file__).with_name("fake_host.py")
_SPEC = importlib.util.spec_from_file_location("fake_host", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
if _SPEC.name not in sys.modules:
    _module = importlib.util.module_from_spec(_SPEC)
    sys.modules[_SPEC.name] = _module  # the tests import it by this name
    _SPEC.loader.exec_module(_module)

for _name, _examples in (("default", 300), ("long", 5000)):
    settings.register_profile(
        _name, deadline=None, max_examples=_examples, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
