"""What must never happen, whatever the servers of a host do, and what must happen in time."""

from __future__ import annotations

from typing import Any

import fake_host
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from factory_watchdog.core.memory import Phase
from factory_watchdog.core.model import (
    MEANING,
    Alert,
    Ask,
    Owner,
    Purpose,
    Raise,
    Restart,
    RestartSettled,
    Settings,
    State,
    Went,
)

Spell, Server, Host = fake_host.Spell, fake_host.Server, fake_host.Host

NEVER_ASKED = ("refused", "unit-failed")
BY_ENGINE = ("flat", "unanswered")

# --- what servers do -------------------------------------------------------------------------------------------------

often = st.integers(0, 9)


@st.composite
def spells(draw: st.DrawFn, engines: int) -> Any:
    """A time of a server's life: mostly one thing wrong, sometimes more."""
    fields: dict[str, Any] = {
        "arrivals": draw(st.sampled_from([0, 0, 1, 4, 9])),
        "tokens": draw(st.sampled_from([1, 30, 400, 5000])),
        "step": draw(st.sampled_from([1, 1, 3, 45, 100])),
        "hang_up": draw(often) == 0,
        "restart": draw(st.sampled_from(["works", "works", "hangs-again", "fails", "never-ends"])),
        "answers": draw(st.sampled_from(["works"] * 6 + ["error", "not-now", "cannot", "denied"])),
    }
    if draw(st.booleans()):
        fields["frozen"] = draw(st.sampled_from([(0,), tuple(range(engines)), (engines - 1,)]))
    for _ in range(draw(st.integers(0, 2))):
        name, value = draw(st.sampled_from(TROUBLES))
        fields[name] = value
    return Spell(draw(st.sampled_from([7, 30, 90, 200, 400, 900])), **fields)


TROUBLES: list[tuple[str, Any]] = [
    ("health", "503"),
    ("health", "timeout"),
    ("health", "refused"),
    ("metrics", "timeout"),
    ("metrics", "500"),
    ("metrics", "404"),
    ("metrics", "garbage"),
    ("metrics", "refused"),
    ("hide", ("kv",)),
    ("hide", ("running", "waiting")),
    ("hide", ("steps", "generated")),
    ("paused", True),
    ("flag", True),
    ("maintenance", "by an operator"),
    ("unit", "deactivating"),
    ("unit", "inactive"),
    ("unit", "failed"),
    ("unit", "activating"),
    ("told", False),
    ("job", True),
    ("port", "foreign"),
    ("port", "container"),
    ("port", "unknown"),
    ("port", "none"),
    ("models", ("n",)),
    ("models", ("n", "m")),
    ("by_other", True),
    ("asleep", 45),
    ("asleep", 4000),
    ("death", True),
    ("reset", True),
    ("noise", True),
]


@st.composite
def servers(draw: st.DrawFn, name: str) -> Any:
    engines = draw(st.sampled_from([1, 1, 2]))
    settings = Settings(
        startup_timeout=draw(st.sampled_from([120.0, 1800.0])),
        silent_after=draw(st.sampled_from([None, 120.0, 600.0])),
        first_outcome=draw(st.sampled_from([0.0, 600.0])),
        forms=draw(st.sampled_from([Settings().forms, Settings().forms, ()])),
        pinnable=draw(st.booleans()),
        enforce=draw(often) > 0,
        revive=draw(st.booleans()),
        ask_without_metrics=draw(often) == 0,
        model=draw(st.sampled_from([None, "m"])),
        max_restarts=draw(st.sampled_from([1, 3])),
        restart_window=draw(st.sampled_from([1200.0, 21600.0])),
    )
    return Server(
        name,
        settings,
        draw(st.lists(spells(engines), min_size=1, max_size=9)),
        count=engines,
        start_time=draw(often) > 2,
        pause_signs=True,
        load_time=draw(st.sampled_from([5.0, 40.0, 300.0])),
    )


# --- what is watched -------------------------------------------------------------------------------------------------


class Law:
    """The invariants, checked with each effect against the servers' own truth."""

    def __init__(self) -> None:
        self.under_way: dict[str, int] = {}
        self.restarted: dict[str, list[float]] = {}
        self.lives: dict[str, list[tuple[int, float]]] = {}
        self.restarts = 0

    def __call__(self, host: Any, server: Any, effect: Any, now: float) -> None:
        if isinstance(effect, Ask):
            self._asked(server, effect.question)
        elif isinstance(effect, Restart):
            self._restarted(host, server, effect, now)
        elif isinstance(effect, RestartSettled):
            assert self.under_way.pop(server.name, None) == effect.attempt

    def _asked(self, server: Any, question: Any) -> None:
        reading = server.newest
        assert not server.out, "two questions out at once"
        assert not reading.flag.held
        assert reading.maintenance is None
        assert reading.pause is None or reading.pause.sign is None
        assert not reading.unit.told or reading.unit.active in ("active", "activating")
        assert server.settings.forms
        assert reading.metrics.went is not Went.REFUSED or reading.health.went is not Went.REFUSED
        if not reading.readable or question.engine is None:
            return
        index = int(question.engine)
        if question.purpose is not Purpose.CONFIRM:
            shown = next(e for e in reading.engines if e.engine == question.engine).running or 0
            assert shown <= server.given_up, "asked while users' requests are in"
        elif len(server.shown_work) > 1:
            before, after = server.shown_work[-2][index], server.shown_work[-1][index]
            assert before == after, "asked while work moves"

    def _restarted(self, host: Any, server: Any, order: Any, now: float) -> None:
        settings, reading, proof = server.settings, server.newest, order.proof
        self.restarts += 1
        note(f"{now:.1f} restart of {server.name}: {proof.rule} {proof.why}")
        # holds
        assert settings.enforce
        assert not reading.flag.held
        assert reading.maintenance is None
        assert reading.unit.told
        assert not reading.unit.job
        assert reading.port is None or reading.port.owner is not Owner.FOREIGN
        assert settings.model is None or reading.models is None or settings.model in reading.models
        assert reading.unit.active == ("failed" if order.revive else "active")
        assert not order.revive or settings.revive
        # one at a time
        assert not self.under_way, "two restarts under way on one host"
        self.under_way[server.name] = order.attempt
        # budget and ten minutes; an operator's reset forgets both
        times = self.restarted.setdefault(server.name, [])
        assert sum(1 for t in times if now - t < settings.restart_window) < settings.max_restarts
        assert not times or now - times[-1] >= settings.restart_gap
        times.append(now)
        # the life that is restarted is the one that hung
        assert server.told_since is not None
        assert server.life_began <= max(proof.suspected, server.told_since) + 1e-6
        shown = order.identity.invocation
        assert shown in (None, f"i{server.life}")
        # confirmed
        assert proof.reading is reading
        self._confirmed(server, proof)
        assert str(proof.state) in ("hung", "dead")
        if proof.rule == "refused":
            assert server.refused >= 2
            assert now - server.refused_since >= settings.dead_after
        # nothing moved
        if proof.rule in BY_ENGINE:
            engine = server.engines[int(proof.engine)]
            still = now - engine.moved_at
            assert still >= settings.hang_after, f"users' work moved {still} s ago"
            assert not server.spell.paused

    @staticmethod
    def _confirmed(server: Any, proof: Any) -> None:
        settings = server.settings
        if proof.question is None:
            assert not settings.forms or proof.rule in NEVER_ASKED or server.newest.health.went is Went.REFUSED
            return
        assert proof.answer is not None
        assert proof.answer.question == proof.question.id
        assert proof.reading.began >= proof.answer.ended
        assert proof.question.purpose is Purpose.CONFIRM
        assert str(proof.answer.outcome) != "answered" or server.count > 1


def after_poll(host: Any, server: Any) -> None:
    """What holds of every state that a reading leads to."""
    state = host.state(server)
    recovery, verdict = state.recovery, state.verdict
    if verdict is None:
        return
    if not MEANING[verdict.state].live:
        confirmed = recovery.phase in (Phase.HELD, Phase.RESTART, Phase.LIFE) or recovery.told
        assert confirmed, "hung or dead without confirmation"
    assert sum(b.recovery.phase.restarting for b in host.states.values()) <= 1
    counted = [t for t in recovery.restarts if host.now - t < server.settings.restart_window]
    assert len(counted) <= server.settings.max_restarts
    assert len(recovery.told) == len(set(recovery.told))
    assert state.memory is None or len(state.memory.start_times) <= 8


@given(st.data())
def test_never(data: st.DataObject) -> None:
    law = Law()
    machines = [data.draw(servers(name)) for name in ("a", "b", "c")[: data.draw(st.integers(1, 3))]]
    Host(machines, lambda h, s, e, t: _reset_aware(law, h, s, e, t), after_poll=after_poll).run()


def _reset_aware(law: Law, host: Any, server: Any, effect: Any, now: float) -> None:
    if server.spell.reset:
        law.restarted.pop(server.name, None)
    law(host, server, effect, now)


# --- what must happen ------------------------------------------------------------------------------------------------


def first_restart(server: Any) -> float | None:
    """When a server is first restarted."""
    times: list[float] = []

    def watch(_host: Any, _server: Any, effect: Any, now: float) -> None:
        if isinstance(effect, Restart):
            times.append(now)

    Host([server], watch).run()
    return times[0] if times else None


@given(
    interval=st.sampled_from([1.0, 5.0, 10.0, 30.0]),
    hang_after=st.sampled_from([60.0, 120.0, 600.0]),
    timeout=st.sampled_from([5.0, 30.0]),
    warm=st.integers(20, 200),
    step=st.sampled_from([1, 3, 20]),
    engines=st.sampled_from([1, 2, 3]),
    frozen=st.integers(0, 2),
    answers=st.sampled_from(["works", "error"]),
    blinks=st.booleans(),
)
def test_every_hang_is_restarted_in_time(
    interval: float,
    hang_after: float,
    timeout: float,
    warm: int,
    step: int,
    engines: int,
    frozen: int,
    answers: str,
    blinks: bool,
) -> None:
    which = (frozen % engines,)
    settings = Settings(interval=interval, hang_after=hang_after, question_timeout=timeout)
    hung = Spell(
        int(hang_after + 6 * interval + 2 * timeout) + 60, frozen=which, answers=answers, step=step, health="ok"
    )
    before = Spell(warm, arrivals=3 * engines, tokens=100_000, step=step)
    middle = [Spell(30, frozen=which, metrics="timeout", step=step, answers=answers)] if blinks else []
    server = Server("a", settings, [before, *middle, hung], count=engines)
    restart = first_restart(server)
    moved = server.engines[which[0]].moved_at if restart is None else warm
    assert restart is not None, moved
    assert restart <= warm + hang_after + 3 * interval + timeout + (30 if blinks else 0)


@given(
    quiet=st.integers(20, 1500),
    engines=st.sampled_from([1, 2]),
    failing=st.sampled_from(["works", "error", "not-now"]),
)
def test_every_idle_wedge_is_restarted_in_time(quiet: int, engines: int, failing: str) -> None:
    settings = Settings()
    wedge = Spell(1500, frozen=tuple(range(engines)), answers=failing)
    warm = [Spell(60, arrivals=engines, tokens=20), Spell(120)]
    server = Server("a", settings, [*warm, Spell(quiet), wedge], count=engines)
    began = 180 + quiet
    restart = first_restart(server)
    if failing != "works" and quiet < 60:
        return  # a server error from the first question on is no failure
    assert restart is not None
    assert began <= restart <= began + settings.hang_after + 3 * settings.interval + settings.question_timeout + 600


@given(before=st.integers(20, 200), taken=st.integers(200, 2000), wrong=st.booleans(), idle=st.booleans())
def test_what_is_not_ours_is_restarted_only_once_it_is_ours(before: int, taken: int, wrong: bool, idle: bool) -> None:
    """However long another process has the port, or serves another model; and soon after that ended."""
    other = {"models": ("n",)} if wrong else {"port": "foreign"}
    hang = {"frozen": (0,), "arrivals": 0 if idle else 3, "tokens": 100_000}
    works = Spell(before, arrivals=0 if idle else 3, tokens=20 if idle else 100_000)
    server = Server("a", Settings(model="m"), [works, Spell(taken, **hang, **other), Spell(2000, **hang)])
    restart = first_restart(server)
    assert restart is not None
    assert restart >= before + taken


@given(spells=st.lists(st.tuples(st.sampled_from(["unit", "foreign", "none"]), st.integers(15, 300)), min_size=1))
def test_a_foreign_process_is_told_once_for_each_time_that_it_comes(spells: list[tuple[str, int]]) -> None:
    told: list[float] = []

    def watch(_host: Any, _server: Any, effect: Any, now: float) -> None:
        if isinstance(effect, Raise) and effect.alert is Alert.FOREIGN_PROCESS:
            told.append(now)

    Host([Server("a", Settings(), [Spell(seconds, port=port) for port, seconds in spells])], watch).run()
    owners = [port for port, _ in spells]
    came = sum(now == "foreign" != before for before, now in zip(["unit", *owners], owners, strict=False))
    assert len(told) == came


@pytest.mark.parametrize("state", [s for s in State if s not in (State.HUNG, State.DEAD)])
def test_no_other_state_is_a_ground(state: State) -> None:
    assert MEANING[state].live
