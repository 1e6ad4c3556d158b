"""What is remembered of a backend between two events. All of it can be written down and read back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from factory_watchdog.core.model import Alert, Answer, Form, Hold, Identity, Question, Reading, Sample, State, Verdict


@dataclass(frozen=True, slots=True)
class Own:
    """What our own question adds to an engine's counters and was not seen there yet.

    `readings` says in how many more readable readings it is still looked for: an answer can arrive a moment before the
    server books it, but a share that never shows must not eat a user's tokens for ever.
    """

    steps: float
    prompt: float
    generated: float
    finished: float
    readings: int


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: its last whole sample, what the last comparison said, and its one clock.

    `requests` are running and waiting without our own; None where the gauges do not tell. `lacking` names required
    signals that the newest comparison did not have. `flat` counts successive flat readings, `flat_since` is the end of
    the first reading that showed the requests standing; `vetoed`: a question was answered meanwhile. `moved_at` is when
    work last moved, `booked_at` when anything was, our own question included, `barren_since` since when it works for
    requests without an outcome. `users` is what `requests` was when our last question went out, `ours` how many of our
    questions may still be counted in the gauges. `failures` of questions in a row began with the one sent at
    `failing_since`. `slack` is the part of the flat or failing time that does not count, because the host computed.
    """

    sample: Sample
    at: float
    requests: float | None = None
    first: bool = True
    lacking: tuple[str, ...] = ()
    moved: bool = False
    produced: bool = False
    moved_at: float | None = None
    booked_at: float | None = None
    barren_since: float | None = None
    flat: int = 0
    flat_since: float | None = None
    vetoed: bool = False
    own: Own | None = None
    ours: int = 0
    users: float = 0.0
    failures: int = 0
    failing_since: float | None = None
    slack: float = 0.0


@dataclass(frozen=True, slots=True)
class Life:
    """One run of the server. `up`: /health said 200; `outcome`: users got something; `answered`: a question was."""

    number: int
    since: float
    identity: Identity
    up: bool = False
    outcome: bool = False
    answered: bool = False
    no_pause_signs: bool = False
    carried: tuple[tuple[str, float], ...] = ()


class Settled(enum.StrEnum):
    """What a question came to once a fresh reading was there."""

    ANSWERED = "answered"
    ELSEWHERE = "elsewhere"  # answered, but not by the engine that was meant
    FAILED = "failed"
    CANNOT = "cannot"  # not askable in this form; another one is left
    UNASKABLE = "unaskable"  # in no form
    DROPPED = "dropped"  # says nothing: paused, moved, or the life or the watch was interrupted


@dataclass(frozen=True, slots=True)
class Asking:
    """The questions: the one that is out (`question` without `answer`) or waits for a fresh reading (with it).

    `due` is when the next one may go out while the backend is quiet, `spacing` the seconds between two while nothing
    changes, `turn` the engine's place in the round, `form` the one in use, `tried` those that could not be asked since
    one was answered. `complaint` is why the backend cannot be asked at all. `errors` counts server errors in a row.
    `void` is the id of a question whose end says nothing any more. `settled` is what the newest reading made of one,
    `last` what the last one came to.
    """

    next_id: int = 1
    question: Question | None = None
    answer: Answer | None = None
    settled: Settled | None = None
    settled_question: Question | None = None
    settled_answer: Answer | None = None
    last: Settled | None = None
    last_ended: float | None = None
    due: float | None = None
    spacing: float = 0.0
    turn: int = 0
    form: Form | None = None
    tried: tuple[Form, ...] = ()
    complaint: str | None = None
    errors: int = 0
    void: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What the readings have shown so far.

    `new_life` and `gap` say what the newest reading began; `computing_since` since when, by each reading, the unit
    uses CPU time while none of its engines moves; `cpu` are the unit's CPU seconds as they were at `cpu_at`.
    """

    life: Life
    engines: tuple[Engine, ...] = ()
    ended: float | None = None
    refused: int = 0
    refused_since: float | None = None
    says_dead: int = 0
    says_dead_since: float | None = None
    silent_since: float | None = None
    down_since: float | None = None
    paused_since: float | None = None
    quiet_since: float | None = None
    start_times: tuple[float, ...] = ()
    proxy: bool = False
    asking: Asking = Asking()
    new_life: bool = False
    gap: bool = False
    computing_since: float | None = None
    cpu: float | None = None
    cpu_at: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What the first fitting rule says of a reading.

    `since` is when the ground of it began. A `candidate` goes to confirmation, with a question first where `ask` says
    so. `due` is when it becomes a candidate if nothing changes. `alerts` are those that stand as long as it does.
    """

    state: State
    rule: str
    why: str
    engine: str | None = None
    since: float | None = None
    candidate: bool = False
    ask: bool = True
    due: float | None = None
    alerts: tuple[tuple[Alert, str], ...] = ()


class Phase(enum.StrEnum):
    """Where a backend is between suspicion and a served restart."""

    WATCH = "watch"
    CONFIRM = "confirm"
    HELD = "held"
    RESTART = "restart"  # the job runs
    LIFE = "life"  # the job has ended; a new life has not shown itself
    SERVE = "serve"  # the new life has not served yet

    @property
    def restarting(self) -> bool:
        return self in _RESTARTING


_RESTARTING = frozenset({Phase.RESTART, Phase.LIFE, Phase.SERVE})


@dataclass(frozen=True, slots=True)
class Recovery:
    """The way from suspicion to a served restart; survives our own death, but for a confirmation under way.

    `ground` is the finding that is to be confirmed, or was; `question` and `answer` are the confirming ones.
    `attempt` counts restarts of this backend, `identity` is the life that the last one ends, `restarts` are the
    times of those that count against the budget. `holds` stand now, `told` were alerted in this episode.
    `same_life` counts readings after a job's end that still show the old life; `followed`: we saw that end, and
    were not restarted meanwhile. `vetoed_rule` (of `vetoed_engine`, where it is one engine's) was vetoed by an
    answer at `vetoed_at`.
    """

    phase: Phase = Phase.WATCH
    since: float = 0.0
    ground: Finding | None = None
    asked: bool = False
    question: Question | None = None
    answer: Answer | None = None
    attempt: int = 0
    identity: Identity | None = None
    restarts: tuple[float, ...] = ()
    holds: tuple[Hold, ...] = ()
    told: tuple[Hold, ...] = ()
    same_life: int = 0
    followed: bool = True
    vetoed_rule: str | None = None
    vetoed_engine: str | None = None
    vetoed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Backend:
    """Everything known of one backend: the whole of `step`'s state.

    `restart_cost`: seconds from its last restart to its first answer, None where none was seen.
    """

    memory: Memory | None = None
    finding: Finding | None = None
    recovery: Recovery = Recovery()
    verdict: Verdict | None = None
    reading: Reading | None = None
    alerted: tuple[Alert, ...] = ()
    restart_cost: float | None = None


__all__ = ["Asking", "Backend", "Engine", "Finding", "Life", "Memory", "Own", "Phase", "Recovery", "Settled", "replace"]
