"""Settings that are right by themselves and wrong together."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from factory_watchdog.config import durations
from factory_watchdog.config.schema import Backend, Daemon, hang_after, health_url, metrics_url

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclasses.dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with one setting of a table; an empty `key` means the whole table."""

    key: str
    value: Any
    what: str


def backend(backend: Backend, daemon: Daemon | None = None) -> Iterator[Complaint]:
    """What is wrong within one backend's settings, and against the daemon's where they are given."""
    yield from _units(backend)
    if daemon and daemon.interval > hang_after(backend):
        interval = durations.show(daemon.interval)
        what = f"must be at least the daemon's interval ({interval}): a hang shows only from one look to the next"
        yield Complaint("hang_after", durations.show(hang_after(backend)), what)
    if backend.without_metrics == "ask" and backend.question == "never":
        what = 'needs questions, but question = "never" forbids them; leave out one of the two'
        yield Complaint("without_metrics", backend.without_metrics, what)
    addresses = (backend.url, metrics_url(backend), health_url(backend))
    if backend.tls_ca and not any(address.startswith("https:") for address in addresses):
        yield Complaint("tls_ca", backend.tls_ca, "has no use: none of the addresses begins with https")


def _units(backend: Backend) -> Iterator[Complaint]:
    if backend.revive and not backend.unit:
        yield Complaint("revive", backend.revive, "needs unit: without one there is nothing to start again")
    if backend.evidence_unit and not (backend.unit or backend.action_unit):
        what = "needs unit or action_unit: without one nothing is restarted, so it would never be started"
        yield Complaint("evidence_unit", backend.evidence_unit, what)
    if backend.action_unit and backend.action_unit == backend.unit:
        what = "must not be the unit itself, which is restarted anyway; leave it out"
        yield Complaint("action_unit", backend.action_unit, what)
    if backend.evidence_unit and backend.evidence_unit in (backend.unit, backend.action_unit):
        what = "must be a service of its own, not the one that serves or restarts"
        yield Complaint("evidence_unit", backend.evidence_unit, what)


def names(given: Sequence[str]) -> Iterator[Complaint]:
    """Which names stand for more than one backend."""
    for name, count in Counter(given).items():
        if count > 1:
            yield Complaint("", None, f"{count} backends are called {json.dumps(name)}; each needs a name of its own")


def warnings(backends: Sequence[Backend]) -> tuple[str, ...]:
    """Sentences about what is allowed but probably not meant."""
    return (*_shared("unit", backends), *_shared("url", backends), *_keys_in_the_clear(backends))


def _shared(key: str, backends: Sequence[Backend]) -> Iterator[str]:
    """A unit may serve several backends (data-parallel ranks behind their own ports): it is told, not forbidden."""
    values = Counter(value for backend in backends if (value := getattr(backend, key)))
    for value, count in values.items():
        if count > 1:
            names = ", ".join(backend.name for backend in backends if getattr(backend, key) == value)
            yield f"{names}: have the same {key} {value}"


def _keys_in_the_clear(backends: Sequence[Backend]) -> Iterator[str]:
    for backend in backends:
        parts = urlsplit(backend.url)
        if backend.api_key_file and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            yield f"{backend.name}: the API key goes unencrypted to {parts.hostname}"
