"""Every setting of the configuration file, once: its type, default, range and meaning stand at its field.

The loader, the check of the example file and the reference in the documentation all read `SETTINGS`, which is made
from the fields below. A default is written as it would stand in the file; the empty string is "none".
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from factory_watchdog.config import kinds
from factory_watchdog.config.kinds import AUTO, Budget, Kind
from factory_watchdog.core.model import Alert, Form, Settings
from factory_watchdog.core.window import SHORTEST
from factory_watchdog.engines import DIALECTS
from factory_watchdog.engines.dialect import Dialect

STORE_NAME = "history.sqlite3"  # the history's name in state_dir

_RULES = Settings()  # what the rules fix themselves: the time between two restarts
_LATER_KINDS = ("sglang", "tgi", "trtllm", "lmdeploy", "ollama")

FORMS: dict[str, tuple[Form, ...]] = {
    "auto": tuple(Form),
    "chat": (Form.CHAT, Form.CHAT_COMPLETION_TOKENS),
    "completion": (Form.COMPLETION,),
    "embedding": (Form.EMBEDDING,),
    "never": (),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `default` is as in the file, None where the setting must be given; `about` is one line."""

    name: str
    kind: Kind
    default: Any
    about: str


def _setting(kind: Kind, default: Any, about: str) -> Any:
    """A dataclass field that carries its `Setting`."""
    metadata = {"kind": kind, "default": default, "about": about}
    if default is None:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=kind.read(default), metadata=metadata)


@dataclasses.dataclass(frozen=True, slots=True)
class Daemon:
    """The daemon's own settings."""

    interval: float = _setting(kinds.duration("250ms", "10m"), "10s", "time from one look at a backend to the next")
    state_dir: str = _setting(kinds.folder(), "/var/lib/factory-watchdog", "history and saved state")
    runtime_dir: str = _setting(kinds.folder(), "/run/factory-watchdog", "control socket, busy flags, states for jobs")


@dataclasses.dataclass(frozen=True, slots=True)
class Backend:
    """One backend's settings; durations in seconds, None where a setting is not set or "never"."""

    name: str = _setting(kinds.name(), None, "what the backend is called everywhere")
    url: str = _setting(kinds.base_url(), None, "base address of the server")
    kind: str = _setting(
        kinds.word(AUTO, *DIALECTS, later=_LATER_KINDS),
        "auto",
        "what kind of server it is; auto: found out",
    )
    unit: str | None = _setting(kinds.service(), "", "systemd service of the server; without one it is watched only")
    bus: str = _setting(kinds.word("system", "user"), "system", "whose service manager has the units")
    mode: str = _setting(kinds.word("enforce", "observe"), "enforce", "observe: everything but the restart")
    action_unit: str | None = _setting(kinds.service(), "", "service that is started instead of restarting unit")
    evidence_unit: str | None = _setting(
        kinds.service(), "", "service that is started before a restart to save evidence"
    )
    revive: bool = _setting(kinds.boolean(), False, "start the unit again after systemd gave it up (failed)")
    verify_owner: bool = _setting(kinds.boolean(), True, "no restart and no key where another unit listens at url")
    model: str | None = _setting(kinds.text(), "", "model that has to be served and is asked; empty: the first served")
    api_key_file: str | None = _setting(kinds.path(), "", "file with the API key, not readable by others")
    tls_ca: str | None = _setting(kinds.path(), "", "certificates (PEM) to trust instead of the system's")
    question: str = _setting(kinds.word(*FORMS), "auto", "form of the one short question; auto: the first that works")
    question_every: float = _setting(
        kinds.duration("10s", "5m"), "60s", "quiet time before an idle backend is asked; doubles up to 5m"
    )
    question_timeout: float = _setting(kinds.duration("1s", "5m"), "30s", "no answer by then: the question failed")
    without_metrics: str = _setting(
        kinds.word("watch", "ask"), "watch", "without metrics: blind (watch) or judged by questions (ask)"
    )
    hang_after: float | str = _setting(
        kinds.duration("10s", "1h", AUTO),
        "120s",
        "requests without one step for so long: suspicion",
    )
    silent_after: float | str | None = _setting(
        kinds.duration("10s", "24h", "never", AUTO),
        "auto",
        "all endpoints accept and say nothing so long; auto: 10m, llamacpp never",
    )
    dead_after: float = _setting(kinds.duration("1s", "1h"), "30s", "refused for so long after it served: dead")
    startup_timeout: float = _setting(kinds.duration("10s", "24h"), "30m", "not serving so long after its start: dead")
    first_outcome: float = _setting(
        kinds.duration("0s", "24h"), "10m", "least hang_after until this life's first outcome: it may compile"
    )
    starved_after: float = _setting(kinds.duration("10s", "7d"), "30m", "work without outcome for so long: degraded")
    paused_alert: float = _setting(kinds.duration("10s", "7d"), "30m", "paused for so long: an alert")
    host_evidence: str = _setting(
        kinds.word(AUTO, "record", "slow"),
        "auto",
        "slow: computing time counts a third; auto: llamacpp only",
    )
    max_restarts: Budget = _setting(  # noqa: RUF009 - it makes a field
        kinds.restarts("10m", "7d", apart=_RULES.restart_gap), "3 per 6h", "after so many the breaker opens"
    )
    busy_flag: str | None = _setting(kinds.path(), "", "flag of batch jobs; empty: flags/NAME.busy in runtime_dir")
    busy_flag_ttl: float = _setting(kinds.duration("10s", "7d"), "2h", "a bare flag counts for so long")
    metrics_url: str | None = _setting(kinds.page_url(), "", "address of the metrics; empty: url + /metrics")
    health_url: str | None = _setting(kinds.page_url(), "", "address of the health page; empty: url + /health")


@dataclasses.dataclass(frozen=True, slots=True)
class Notify:
    """One command that is run for alerts."""

    command: tuple[str, ...] = _setting(
        kinds.command(), None, "run for alerts: FW_* in its environment, JSON on its input"
    )
    events: frozenset[str] = _setting(
        kinds.some_of([alert.value for alert in Alert]), [alert.value for alert in Alert], "alerts that it is run for"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration file; `warnings` are sentences about what is allowed but probably not meant."""

    daemon: Daemon
    backends: tuple[Backend, ...]
    notify: tuple[Notify, ...]
    path: Path
    warnings: tuple[str, ...] = ()


def _settings_of(table: type[Daemon | Backend | Notify]) -> dict[str, Setting]:
    fields = dataclasses.fields(table)
    return {field.name: Setting(field.name, **field.metadata) for field in fields}


SETTINGS: dict[str, dict[str, Setting]] = {
    "daemon": _settings_of(Daemon),
    "backend": _settings_of(Backend),
    "notify": _settings_of(Notify),
}


def settings(backend: Backend, daemon: Daemon, dialect: Dialect) -> Settings:
    """What the rules need to know of a backend's settings, with the defaults of its kind."""
    silent_after = dialect.silent_after if backend.silent_after == AUTO else backend.silent_after
    evidence = dialect.host_evidence if backend.host_evidence == AUTO else backend.host_evidence
    return Settings(
        interval=daemon.interval,
        hang_after=hang_after(backend),
        hang_auto=backend.hang_after == AUTO,
        silent_after=silent_after if not isinstance(silent_after, str) else None,
        dead_after=backend.dead_after,
        startup_timeout=backend.startup_timeout,
        first_outcome=backend.first_outcome,
        starved_after=backend.starved_after,
        paused_alert=backend.paused_alert,
        question_every=backend.question_every,
        question_timeout=backend.question_timeout,
        forms=tuple(form for form in FORMS[backend.question] if form in dialect.forms),
        model=backend.model,
        pinnable=dialect.pinnable,
        ask_without_metrics=backend.without_metrics == "ask",
        slow_evidence=evidence == "slow",
        enforce=backend.mode == "enforce",
        revive=backend.revive,
        has_unit=bool(backend.unit or backend.action_unit) and dialect.restartable,
        action=bool(backend.action_unit),
        max_restarts=backend.max_restarts.count,
        restart_window=backend.max_restarts.window,
    )


def hang_after(backend: Backend) -> float:
    """This backend's window in seconds; of one that is measured the least that it can be."""
    return SHORTEST if isinstance(backend.hang_after, str) else backend.hang_after


def busy_flag(backend: Backend, daemon: Daemon) -> Path:
    """Where batch jobs hold this backend's busy flag."""
    return Path(backend.busy_flag or f"{daemon.runtime_dir}/flags/{backend.name}.busy")


def metrics_url(backend: Backend, path: str = "/metrics") -> str:
    """Where this backend's metrics are; `path` is where its kind has them."""
    return backend.metrics_url or f"{backend.url}{path}"


def health_url(backend: Backend, path: str = "/health") -> str:
    """Where this backend's health page is; `path` is where its kind has it."""
    return backend.health_url or f"{backend.url}{path}"
