"""The core under events in any order: a rule-based state machine whose steps are what a host can do to a watch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import free_host
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from factory_watchdog.core.asking import LONGEST_SPACING
from factory_watchdog.core.model import Outcome, Restart, Settings

FreeHost, FreeServer = free_host.FreeHost, free_host.FreeServer

NAMES = ("a", "b", "c")
LOOKS = 2.0  # seconds that looks at once may add to the intervals of a run
FAST = Settings(
    hang_after=40.0,
    silent_after=60.0,
    startup_timeout=100.0,
    first_outcome=80.0,
    question_timeout=25.0,
    starved_after=100.0,
    restart_gap=150.0,
    restart_window=480.0,
)
"""Windows so short that a hang and its restart fit into a few steps of a machine; what they mean stays."""

settings_of = st.builds(
    Settings,
    hang_after=st.sampled_from([FAST.hang_after, FAST.hang_after, 20.0]),
    silent_after=st.sampled_from([FAST.silent_after, None]),
    startup_timeout=st.just(FAST.startup_timeout),
    first_outcome=st.sampled_from([FAST.first_outcome, 0.0]),
    starved_after=st.just(FAST.starved_after),
    restart_gap=st.just(FAST.restart_gap),
    restart_window=st.sampled_from([FAST.restart_window, 1200.0]),
    max_restarts=st.sampled_from([1, 2, 3]),
    question_timeout=st.just(FAST.question_timeout),
    question_every=st.sampled_from([60.0, 10.0]),
    forms=st.sampled_from([FAST.forms, FAST.forms, FAST.forms, ()]),
    pinnable=st.booleans(),
    slow_evidence=st.sampled_from([False, False, True]),
    enforce=st.sampled_from([True] * 7 + [False]),
    revive=st.booleans(),
    has_unit=st.sampled_from([True] * 7 + [False]),
    ask_without_metrics=st.sampled_from([False, False, False, True]),
)
counts = st.sampled_from([1, 1, 2, 3])
names = st.sampled_from(NAMES)
does = st.sampled_from(sorted(free_host.DOES) + ["still"] * 6 + ["wedged"] * 4)

TROUBLES: list[tuple[str, Any]] = [
    *[("health", v) for v in ("503", "500", "404", "timeout", "refused", "reset")],
    *[("metrics", v) for v in ("500", "404", "timeout", "refused", "reset", "garbage")],
    *[("hide", v) for v in (("kv",), ("running", "waiting"), ("steps", "generated"), ("prompt",))],
    *[("unit", v) for v in ("activating", "deactivating", "inactive", "failed", "reloading")],
    *[("answers", v) for v in ("later", *free_host.OUTCOMES)],
    *[("restart", v) for v in ("hangs-again", "fails", "never-ends", "dropped", "later")],
    *[(v, True) for v in ("job", "left_over", "paused", "asleep", "flag", "maintenance", "computes")],
    ("told", False),
]
troubles = st.sampled_from(TROUBLES)

holding = st.sampled_from(
    [
        *[(v, True) for v in ("job", "left_over", "paused", "flag", "maintenance")],
        *[("unit", v) for v in ("activating", "inactive", "reloading")],
        ("told", False),
    ]
)
"""Troubles beside a hang that must keep it from being restarted."""

HANGS: dict[str, tuple[str, dict[str, Any]]] = {
    "with requests": ("still", {}),
    "with requests, and again": ("still", {"restart": "hangs-again"}),
    "while idle": ("wedged", {}),
    "turns away": ("wedged", {"answers": "not-now"}),
    "refuses": ("quiet", {"health": "refused", "metrics": "refused"}),
    "silent": ("still", {"health": "timeout", "metrics": "timeout"}),
    "says dead": ("still", {"health": "503", "answers": "error"}),
    "server errors": ("quiet", {"answers": "error"}),
    "unit failed": ("quiet", {"health": "refused", "metrics": "refused", "unit": "failed"}),
}
"""What the engines do, and what the server shows."""


@st.composite
def hosts(draw: st.DrawFn, most: int = 3) -> Any:
    servers = {}
    for name in NAMES[: draw(st.integers(1, most))]:
        servers[name] = FreeServer(
            name,
            draw(settings_of),
            count=draw(counts),
            signs=draw(st.booleans()),
            start_times=draw(st.booleans()),
            counts_ours=draw(st.booleans()),
        )
    return FreeHost(servers, story=note)


def does_once(what: str) -> Callable[[Any, Any], None]:
    """The engines do something for one poll, and go on as before."""

    def midway(host: Any, server: Any) -> None:
        before = [part.does for part in server.engines]
        for part in server.engines:
            part.does = what
        host.poll(server.name)
        for part, did in zip(server.engines, before, strict=True):
            part.does = did

    return midway


def shows_once(what: str, value: Any) -> Callable[[Any, Any], None]:
    """The server shows something for one interval."""

    def midway(host: Any, server: Any) -> None:
        before = server.shows[what]
        server.shows[what] = value
        host.rounds(1)
        server.shows[what] = before

    return midway


MIDWAY: dict[str, Callable[[Any, Any], None]] = {
    "the host sleeps": lambda host, server: host.pass_time(31.0),
    "a poll lasts": lambda host, server: host.poll(server.name, 70.0),
    "an answer comes within a poll": lambda host, server: host.poll(server.name, 4.0, answer=Outcome.FAILED),
    "others restart it": lambda host, server: server.begin_life("still"),
    "its main process is another": lambda host, server: server.begin_process(),
    "we die": lambda host, server: host.die(False),
    "the host boots": lambda host, server: host.die(True),
    **{f"it does {what}": does_once(what) for what in ("prefill", "steps", "tokens", "cache", "down")},
    **{f"it is {what}": shows_once(what, True) for what in ("paused", "asleep", "maintenance", "computes")},
    "its unit reloads": shows_once("unit", "reloading"),
    "a signal is missing": shows_once("hide", ("steps", "generated")),
}
"""What comes in the middle of a hang, after which the window begins anew."""

EVENTS: list[tuple[Callable[..., None], dict[str, Any]]] = []
"""Everything that can happen, with what is drawn for it."""


def happens(**drawn: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule of the machine, which other tests can draw too."""

    def mark(method: Callable[..., None]) -> Any:
        EVENTS.append((method, drawn))
        return rule(**drawn)(method)

    return mark


class Machine(RuleBasedStateMachine):
    """Every rule is one thing that happens; the law is checked by `FreeHost.feed` at each event."""

    host: Any

    @initialize(host=hosts())
    def begin(self, host: Any) -> None:
        self.host = host
        host.rounds(2)

    def _server(self, name: str) -> Any:
        return self.host.servers.get(name, self.host.servers["a"])

    # --- time --------------------------------------------------------------------------------------------------------

    @happens(count=st.sampled_from([1, 2, 5, 9, 14]))
    def time_passes(self, count: int) -> None:
        self.host.rounds(count)

    @happens(
        name=names,
        wait=st.sampled_from([0.01, 4.0, 10.0, 29.0, 31.0, 400.0]),
        lasts=st.sampled_from([0.005, 9.0, 70.0]),
    )
    def poll(self, name: str, wait: float, lasts: float) -> None:
        self.host.pass_time(wait)
        self.host.poll(self._server(name).name, lasts)

    # --- servers -----------------------------------------------------------------------------------------------------

    @happens(name=names, engine=st.integers(-1, 2), what=does)
    def engine_does(self, name: str, engine: int, what: str) -> None:
        engines = self._server(name).engines
        for part in engines if engine < 0 else engines[engine % len(engines) :][:1]:
            part.does = what

    @happens(name=names, trouble=troubles)
    def trouble_begins(self, name: str, trouble: tuple[str, Any]) -> None:
        self._server(name).shows[trouble[0]] = trouble[1]

    @happens(name=names)
    def trouble_ends(self, name: str) -> None:
        self._server(name).shows.update(free_host.SOUND)

    @happens(name=names, what=does)
    def restarted_by_others(self, name: str, what: str) -> None:
        self._server(name).begin_life(what)

    @happens(name=names, start=st.sampled_from([1.0, 2.0]))
    def start_time_changes(self, name: str, start: float) -> None:
        server = self._server(name)
        server.start, server.alternates = start, True

    @happens(
        name=st.sampled_from([*NAMES, "all"]),
        how=st.sampled_from(sorted(HANGS)),
        count=st.sampled_from([7, 12, 20]),
        quiet=st.sampled_from([0, 0, 8]),
        beside=st.one_of(st.none(), troubles, holding),
        alone=st.booleans(),
        death=st.sampled_from([None, None, "we die", "the host boots"]),
    )
    def hangs(
        self,
        name: str,
        how: str,
        count: int,
        quiet: int,
        beside: tuple[str, Any] | None,
        alone: bool,
        death: str | None,
    ) -> None:
        """Long enough for a restart, if nothing beside it holds it; before it so many readings without requests."""
        servers = self._servers(name)
        if death is not None:
            MIDWAY[death](self.host, servers[0])
        if quiet:
            self.engine_does(servers[0].name, -1, "quiet")
            self.host.rounds(quiet)
        for server in servers:
            server.shows.update(free_host.SOUND if alone else {})
            self._hang(server, how)
            server.shows.update([beside] if beside is not None else [])
        self.host.rounds(count)

    @happens(
        name=st.sampled_from([*NAMES, "all"]),
        how=st.sampled_from(["with requests", "with requests", "while idle", "turns away"]),
        until=st.sampled_from([2, 3, 4, 6]),
        midway=st.sampled_from(sorted(MIDWAY)),
    )
    def hang_is_interrupted(self, name: str, how: str, until: int, midway: str) -> None:
        """A hang that nothing holds, with something midway after which the window begins anew."""
        servers = self._servers(name)
        for server in servers:
            server.shows.update(free_host.SOUND)
            self.host.reset(server.name)
            self._hang(server, how)
        self.host.rounds(until)
        for server in servers:
            MIDWAY[midway](self.host, server)
        self.host.rounds(7)

    def _servers(self, name: str) -> list[Any]:
        return list(self.host.servers.values()) if name == "all" else [self._server(name)]

    @staticmethod
    def _hang(server: Any, how: str) -> None:
        what, shown = HANGS[how]
        server.shows.update(shown)
        for part in server.engines:
            part.does = what

    # --- what is out, and we ourselves -------------------------------------------------------------------------------

    @happens(name=names, outcome=st.sampled_from(Outcome), elsewhere=st.booleans())
    def answer(self, name: str, outcome: Outcome, elsewhere: bool) -> None:
        self.host.answer(self._server(name).name, outcome, elsewhere)

    @happens(name=names, outcome=st.sampled_from(Outcome))
    def answer_comes_within_a_poll(self, name: str, outcome: Outcome) -> None:
        self.host.poll(self._server(name).name, 4.0, answer=outcome)

    @happens(name=names, how=st.sampled_from(["works", "hangs-again", "fails", "never-ends", "dropped"]))
    def job_ends(self, name: str, how: str) -> None:
        self.host.end_job(self._server(name).name, how)

    @happens(name=names, number=st.integers(0, 1))
    def stray(self, name: str, number: int) -> None:
        self.host.stray(self._server(name).name, number)

    @happens(name=names)
    def reset(self, name: str) -> None:
        self.host.reset(self._server(name).name)

    @happens(name=names, changed=settings_of)
    def reload(self, name: str, changed: Settings) -> None:
        self.host.reload(self._server(name).name, changed)

    @happens(other_boot=st.booleans())
    def die(self, other_boot: bool) -> None:
        self.host.die(other_boot)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=max(settings.default.max_examples // 3, 1), stateful_step_count=40)


# --- what must happen ------------------------------------------------------------------------------------------------


@st.composite
def disturbed(draw: st.DrawFn) -> Any:
    """A host on which anything happened, and that is sound again: working, with nothing that would hold a restart."""
    machine = Machine()
    machine.begin(draw(hosts(most=2)))
    for event, drawn in draw(st.lists(st.sampled_from(EVENTS), max_size=15)):
        event(machine, **{name: draw(values) for name, values in drawn.items()})
    host = machine.host
    for name, server in host.servers.items():
        host.make_sound(name, replace(server.settings, enforce=True, has_unit=True, slow_evidence=False))
    host.rounds(draw(st.integers(4, 8)))
    for name in host.servers:
        host.reset(name)
    assert not host.law.under_way
    return host


@given(host=disturbed(), name=names, engine=st.integers(-1, 2), idle=st.booleans())
@settings(max_examples=max(settings.default.max_examples // 5, 1))
def test_after_anything_a_hang_that_lasts_is_restarted_in_time(host: Any, name: str, engine: int, idle: bool) -> None:
    """With requests even in one engine of several; while idle, where it is asked, in all of them."""
    server = host.servers.get(name, host.servers["a"])
    limit = server.settings
    bound = limit.hang_after + 3 * limit.interval + limit.question_timeout
    idle = idle and bool(limit.forms)
    if idle:
        bound += 2 * LONGEST_SPACING
    for part in server.engines if idle or engine < 0 else server.engines[engine % server.count :][:1]:
        part.does = "wedged" if idle else "still"
    began = host.time - limit.interval  # the last reading that shows work was made then, at the latest
    seen = len(host.effects)
    host.rounds(int(bound / limit.interval) + 2)
    restarts = [t - began for t, n, e in host.effects[seen:] if n == server.name and isinstance(e, Restart)]
    assert restarts, "a hang that lasts, and no restart"
    assert restarts[0] <= bound + LOOKS, f"restarted {restarts[0]:.1f} s after the hang, {bound} s are allowed"
