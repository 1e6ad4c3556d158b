"""The daemon beside real vLLM servers that show or answer less than usual, with several engines, behind a proxy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Load = Callable[..., Any]
Serve = Callable[..., Any]
Need = Callable[[object, str], None]

KEY, KEY_FILE = "a-key-of-the-lab", "/etc/factory-watchdog/lab.key"
LONG = 8000  # tokens of an answer that outlasts every test
APPEARS = 20.0  # seconds within which a change must show in the gauges

NGINX = "/usr/sbin/nginx"
FRONT = 8020  # the port of the proxy
_NGINX_UNIT = f"[Service]\nType=exec\nExecStart={NGINX} -c /etc/front.conf -g 'daemon off;'\n"
_NGINX_CONFIG = """pid /run/front.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path /tmp/front-body;
    proxy_temp_path /tmp/front-proxy;
    fastcgi_temp_path /tmp/front-fastcgi;
    uwsgi_temp_path /tmp/front-uwsgi;
    scgi_temp_path /tmp/front-scgi;
    upstream servers {{
        least_conn;
        {servers}
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://servers; }}
    }}
}}
"""


@pytest.fixture(scope="module")
def embedding(serve: Serve) -> Any:
    """A server of embeddings that wants a key."""
    return serve("vllm-embedding", 8011, "least", "--runner", "pooling", VLLM_API_KEY=KEY)


@pytest.fixture(scope="module")
def mute(serve: Serve) -> Any:
    """A server whose metrics say nothing of its engine, and whose model has no chat template."""
    return serve("vllm-mute", 8012, "base", "--disable-log-stats")


@pytest.fixture(scope="module")
def pair(serve: Serve) -> Any:
    """A server of two data-parallel engines."""
    return serve("vllm-pair", 8013, "small", "--data-parallel-size", "2", "--api-server-count", "1")


@pytest.fixture
def front(need: Need, box: Any, small: Any, slow: Any) -> Iterator[int]:
    """The port of an nginx in front of two servers, as front.service."""
    need(os.access(NGINX, os.X_OK), f"no {NGINX}: install Debian's nginx-light")
    servers = "\n        ".join(f"server 127.0.0.1:{server.port};" for server in (small, slow))
    box.write("/etc/front.conf", _NGINX_CONFIG.format(servers=servers, port=FRONT))
    box.unit("front.service", _NGINX_UNIT)
    box.systemctl("start", "front.service")
    yield FRONT
    box.remove_units(["front.service"])


def backend(server: Any, **settings: str) -> dict[str, str]:
    """A server as a backend of the configuration."""
    return {"url": server.base, "unit": server.unit, **settings}


def test_servers_that_show_or_answer_less_are_alive_and_never_restarted(
    embedding: Any, mute: Any, watchdog: Any
) -> None:
    host, servers = watchdog.host, (embedding, mute)
    with mute.inside():
        for server in servers:
            server.answers()
        lives = [server.invocation for server in servers]
        host.box.write(KEY_FILE, f"{KEY}\n", 0o640)
        host.box.exec("chgrp", "factory-watchdog", KEY_FILE)
        watchdog.start(
            {
                "embedding": backend(embedding, api_key_file=KEY_FILE),
                "locked": backend(embedding),
                "mute": backend(mute),
                "asked": backend(mute, without_metrics="ask"),
            }
        )
        for name, state in (("embedding", "idle"), ("locked", "idle"), ("mute", "blind")):
            host.becomes(state, name)
        refused = host.alerted("cannot-ask", 30.0, "locked")
        for name in ("embedding", "asked"):
            host.wait(lambda name=name: ("idle", "answered") in watchdog.questions(name), 30.0, f"{name} answered")
        host.looks_on(6, "mute")  # longer than `hang_after`
        for name, state in (("embedding", "idle"), ("locked", "idle"), ("mute", "blind"), ("asked", "idle")):
            assert host.told(name)["state"] == state
    assert watchdog.questions("embedding")[:3] == [("idle", "cannot"), ("idle", "cannot"), ("idle", "answered")]
    assert set(watchdog.questions("locked")) == {("idle", "denied")}
    assert "401" in refused
    assert watchdog.questions("mute") == []
    assert watchdog.questions("asked")[:2] == [("idle", "cannot"), ("idle", "answered")]
    assert host.told("mute")["why"] == "the metrics page has no series of this engine"
    for name, alerts in (("embedding", []), ("mute", []), ("asked", []), ("locked", ["cannot-ask"])):
        assert host.alerts(name) == alerts
    assert [server.invocation for server in servers] == lives
    assert host.history("restart") == []
    assert KEY not in host.journal_text()


def test_two_servers_behind_a_proxy_are_judged_each_by_itself(
    front: int, small: Any, slow: Any, load: Load, watchdog: Any
) -> None:
    """Behind the proxy's port every page is another server's; nothing that it shows is a reason to restart."""
    lives = (small.invocation, slow.invocation, watchdog.host.show("InvocationID", "front.service"))
    address = {"url": f"http://127.0.0.1:{front}", "unit": "front.service"}
    watchdog.start(
        {
            "front": address,
            "front-vllm": {**address, "kind": "vllm"},
            small.name: backend(small),
            slow.name: backend(slow),
        }
    )
    for server in (small, slow):
        watchdog.host.becomes("idle", server.name)
    with load(small, 4, max_tokens=LONG):
        watchdog.host.becomes("busy", small.name)
        for name in ("front", "front-vllm"):
            why = watchdog.host.alerted("proxy", 30.0, name)
            assert why.startswith("start times alternate: a proxy in front of several servers")
            watchdog.host.becomes("blind", name)
        watchdog.host.looks_on(6, "front")
        for name in ("front", "front-vllm"):
            assert watchdog.host.told(name)["state"] == "blind"
            assert watchdog.host.alerts(name) == ["proxy"]
        assert watchdog.states(small.name) == ["idle", "busy"]
        assert watchdog.states(slow.name) == ["idle"]
    watchdog.host.becomes("idle", small.name)
    assert (small.invocation, slow.invocation, watchdog.host.show("InvocationID", "front.service")) == lives
    assert watchdog.host.history("restart") == []


def test_of_two_engines_the_frozen_one_is_named_and_its_server_restarted(pair: Any, load: Load, watchdog: Any) -> None:
    with pair.inside():
        pair.answers()
        life = pair.invocation
        with load(pair, 4, max_tokens=LONG):
            pair.wait(lambda: [engine.running for engine in pair.page().engines] == [2, 2], APPEARS, "2 running each")
            watchdog.watch(pair)
            watchdog.host.becomes("busy", pair.name)
            pair.freeze("engine1")
            why = watchdog.host.alerted("restart", 10 + 3 * 2 + 5, pair.name)
            pair.wait(lambda: pair.invocation not in ("", life), 20.0, "the restart")
    assert "engine 1: 2 running and 0 waiting requests stand still for " in why
    hung = next(entry for entry in watchdog.host.history("change") if entry["word"] == "hung")
    assert (hung["engine"], hung["why"].partition(":")[0]) == ("1", "engine 1")
    assert watchdog.questions(pair.name) == [("confirm", "failed")]
    assert watchdog.host.alerts(pair.name) == ["hung", "restart"]
