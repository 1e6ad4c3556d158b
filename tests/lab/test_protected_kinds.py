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
def base(serve: Serve) -> Any:
    """A server whose model has no chat template."""
    return serve("vllm-base", 8010, "base")


@pytest.fixture(scope="module")
def embedding(serve: Serve) -> Any:
    """A server of embeddings that wants a key."""
    return serve("vllm-embedding", 8011, "least", "--runner", "pooling", VLLM_API_KEY=KEY)


@pytest.fixture(scope="module")
def mute(serve: Serve) -> Any:
    """A server whose metrics say nothing of its engine."""
    return serve("vllm-mute", 8012, "least", "--disable-log-stats")


@pytest.fixture(scope="module")
def pair(serve: Serve) -> Any:
    """A server of two data-parallel engines."""
    return serve("vllm-pair", 8013, "small", "--data-parallel-size", "2")


@pytest.fixture
def front(need: Need, box: Any, small: Any, base: Any) -> Iterator[int]:
    """The port of an nginx in front of two servers, as front.service."""
    need(os.access(NGINX, os.X_OK), f"no {NGINX}: install Debian's nginx-light")
    servers = "\n        ".join(f"server 127.0.0.1:{server.port};" for server in (small, base))
    box.write("/etc/front.conf", _NGINX_CONFIG.format(servers=servers, port=FRONT))
    box.unit("front.service", _NGINX_UNIT)
    box.systemctl("start", "front.service")
    yield FRONT
    box.remove_units(["front.service"])


def backend(server: Any, **settings: str) -> dict[str, str]:
    """A server as a backend of the configuration."""
    return {"url": server.base, "unit": server.unit, **settings}


def test_servers_that_show_or_answer_less_are_alive_and_never_restarted(
    base: Any, embedding: Any, mute: Any, watchdog: Any
) -> None:
    servers = (base, embedding, mute)
    with base.inside():
        for server in servers:
            server.answers()
        lives = [server.invocation for server in servers]
        watchdog.host.box.write(KEY_FILE, f"{KEY}\n", 0o640)
        watchdog.host.box.exec("chgrp", "factory-watchdog", KEY_FILE)
        watchdog.start(
            {
                "base": backend(base),
                "embedding": backend(embedding, api_key_file=KEY_FILE),
                "locked": backend(embedding),
                "mute": backend(mute),
                "mute-asked": backend(mute, without_metrics="ask"),
            }
        )
        watchdog.host.becomes("blind", "mute")
        for name in ("base", "embedding", "locked"):
            watchdog.host.becomes("idle", name)
        watchdog.host.becomes("idle", "mute-asked", 30.0)
        refused = watchdog.host.alerted("cannot-ask", 30.0, "locked")
        watchdog.host.wait(lambda: answered(watchdog, "base"), 30.0, "an answer by a completion")
        watchdog.host.wait(lambda: answered(watchdog, "embedding"), 30.0, "an answer by an embedding")
        watchdog.host.looks_on(8, "base")  # beyond every window
        for server in servers:
            assert server.get("/health").reply.status == 200
    assert watchdog.questions("base")[:2] == [("idle", "cannot"), ("idle", "answered")]
    assert watchdog.questions("embedding")[:3] == [("idle", "cannot"), ("idle", "cannot"), ("idle", "answered")]
    assert set(watchdog.questions("locked")) == {("idle", "denied")}
    assert "401" in refused
    assert watchdog.questions("mute") == []
    assert watchdog.questions("mute-asked")[0] == ("idle", "answered")
    assert watchdog.host.told("mute")["why"] == "the metrics page has no series of this engine"
    for name in ("base", "embedding", "mute", "mute-asked"):
        assert watchdog.host.alerts(name) == []
    assert watchdog.host.alerts("locked") == ["cannot-ask"]
    assert [server.invocation for server in servers] == lives
    assert watchdog.host.history("restart") == []
    assert KEY not in watchdog.host.journal_text()


def answered(watchdog: Any, name: str) -> bool:
    return ("idle", "answered") in watchdog.questions(name)


def test_two_servers_behind_a_proxy_are_judged_each_by_itself(
    front: int, small: Any, base: Any, load: Load, watchdog: Any
) -> None:
    """Behind the proxy's port every page is another server's; nothing that it shows is a reason to restart."""
    base.answers()
    lives = (small.invocation, base.invocation, watchdog.host.show("InvocationID", "front.service"))
    address = {"url": f"http://127.0.0.1:{front}", "unit": "front.service"}
    with load(small, 4, max_tokens=LONG):
        small.wait(lambda: small.sample().running == 4, APPEARS, "4 running")
        watchdog.start(
            {
                "front": address,
                "front-vllm": {**address, "kind": "vllm"},
                small.name: backend(small),
                base.name: backend(base),
            }
        )
        for name in ("front", "front-vllm"):
            why = watchdog.host.alerted("proxy", 30.0, name)
            assert why.startswith("start times alternate: a proxy in front of several servers")
            watchdog.host.becomes("blind", name)
        watchdog.host.looks_on(8, "front")
        for name in ("front", "front-vllm"):
            assert watchdog.host.told(name)["state"] == "blind"
            assert watchdog.host.alerts(name) == ["proxy"]
        assert watchdog.states(small.name) == ["busy"]
        assert watchdog.states(base.name) == ["idle"]
    watchdog.host.becomes("idle", small.name)
    assert (small.invocation, base.invocation, watchdog.host.show("InvocationID", "front.service")) == lives
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
            watchdog.host.alerted("served", 120.0, pair.name)
    assert "engine 1: 2 running and 0 waiting requests stand still for " in why
    hung = next(entry for entry in watchdog.host.history("change") if entry["word"] == "hung")
    assert (hung["engine"], hung["why"].partition(":")[0]) == ("1", "engine 1")
    assert pair.invocation not in ("", life)
    assert watchdog.questions(pair.name)[0] == ("confirm", "failed")
    assert watchdog.restarts(pair.name) == ["served"]
    assert watchdog.host.alerts(pair.name) == ["hung", "restart", "served"]
