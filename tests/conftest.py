"""What every test may use."""

from __future__ import annotations

import os

import pytest


def need(condition: object, reason: str) -> None:
    """Skip the test when `condition` does not hold; with REQUIRE_ALL=1 fail it, so that CI cannot pass by skipping."""
    if condition:
        return
    if os.environ.get("REQUIRE_ALL") == "1":
        pytest.fail(f"REQUIRE_ALL=1, and {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session", name="need")
def need_fixture() -> object:
    """`need` as a fixture, since test modules are not importable from each other."""
    return need
