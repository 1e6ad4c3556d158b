"""A proxy is looked at through its list of models, and in no other way."""

import pathlib

import pytest

from factory_watchdog.core.model import Pause, Reply, Went
from factory_watchdog.engines import DIALECTS
from factory_watchdog.engines.dialect import Page

DATA = pathlib.Path(__file__).parent.parent / "data" / "proxies"
PROXY = DIALECTS["proxy"]


def test_only_the_list_of_models_is_fetched() -> None:
    assert {PROXY.health_path, PROXY.models_path, PROXY.metrics_path, *PROXY.pause_paths} == {"/v1/models", None}
    assert PROXY.without_metrics


def test_it_is_never_asked_and_never_restarted() -> None:
    assert PROXY.forms == ()
    assert not PROXY.restartable
    assert PROXY.silent_after is None
    assert not PROXY.pinnable


@pytest.mark.parametrize("kind", sorted(set(DIALECTS) - {"proxy"}))
def test_any_other_kind_is_asked_and_restarted(kind: str) -> None:
    assert DIALECTS[kind].forms
    assert DIALECTS[kind].restartable


@pytest.mark.parametrize("status", [200, 401, 403])
def test_it_serves_when_it_lists_models_or_wants_a_key(status: int) -> None:
    assert PROXY.health(Reply(Went.OK if status == 200 else Went.STATUS, status)).went is Went.OK


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_it_does_not_serve_without_its_servers(status: int) -> None:
    assert PROXY.health(Reply(Went.STATUS, status)).went is Went.STATUS


@pytest.mark.parametrize("path", sorted(DATA.glob("*.txt")), ids=lambda path: path.stem)
def test_no_page_of_a_proxy_is_taken_for_one_server(path: pathlib.Path) -> None:
    assert PROXY.read(path.read_bytes()) == Page()


def test_there_is_no_sign_of_a_pause() -> None:
    assert PROXY.read_pause([]) == Pause(absent=True)
