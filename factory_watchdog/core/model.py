"""The words of the watchdog, as frozen data.

Everything that crosses a border inside the program is one of these: what one poll saw (`Reading`), what we think of it
(`Verdict`), what happened (`Event`) and what is to be done (`Effect`). Times are seconds of CLOCK_BOOTTIME, durations
are seconds. A value that was not told is None, never zero.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.StrEnum):
    """What a backend is, and by that what others may do with it."""

    BUSY = "busy"
    IDLE = "idle"
    SUSPECT = "suspect"
    DEGRADED = "degraded"
    STARTING = "starting"
    PAUSED = "paused"
    STOPPED = "stopped"
    BLIND = "blind"
    HUNG = "hung"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a state says to others: `live` false is the only ground for a restart, `ready` false ends its traffic.

    `ready` None means that the backend's own /health decides. `exit` is the exit code of `llm-health check`.
    """

    live: bool
    ready: bool | None
    exit: int
    about: str


MEANING: dict[State, Meaning] = {
    State.BUSY: Meaning(True, True, 0, "requests in and work moving: healthy, never asked"),
    State.IDLE: Meaning(True, True, 0, "no requests; proven by traffic or by a question"),
    State.SUSPECT: Meaning(True, True, 1, "flat, silent, refused or unanswered, but not yet proven"),
    State.DEGRADED: Meaning(True, True, 1, "work without outcome, or questions answered while requests stand still"),
    State.STARTING: Meaning(True, False, 1, "this life has not served yet, or the unit is activating"),
    State.PAUSED: Meaning(True, False, 1, "paused, asleep, inside a weight update, or maintenance"),
    State.STOPPED: Meaning(True, False, 1, "an operator stopped the unit, or it is being stopped or reloaded"),
    State.BLIND: Meaning(True, None, 3, "telemetry missing, failing or unreadable: nothing is known, nothing is done"),
    State.HUNG: Meaning(False, False, 2, "proven and confirmed"),
    State.DEAD: Meaning(False, False, 2, "refused after serving, says that it died, or never served in time"),
}


# --- what a poll saw -------------------------------------------------------------------------------------------------


class Went(enum.StrEnum):
    """How one HTTP request went."""

    OK = "ok"  # status 200, whole body read
    STATUS = "status"  # an answer with another status
    TIMEOUT = "timeout"  # no whole answer by the deadline
    REFUSED = "refused"  # nobody listens
    RESET = "reset"  # accepted, then closed without a whole answer
    UNREADABLE = "unreadable"  # answered 200 with something that cannot be taken: too large, compressed, not HTTP
    ERROR = "error"  # any other failure on the way (name, route, TLS)
    ABSENT = "absent"  # not there by nature (404, 405, 501), or not asked for


@dataclass(frozen=True, slots=True)
class Reply:
    """How one request went: the HTTP status where one came, the seconds it took, one cleaned line of detail."""

    went: Went
    status: int | None = None
    seconds: float = 0.0
    detail: str = ""


NOT_ASKED = Reply(Went.ABSENT)


@dataclass(frozen=True, slots=True)
class Sample:
    """One engine's signals in one reading; None where the page did not tell (NaN counts as not told).

    `steps`, `prompt`, `generated` and `kv` are work; `generated` and `finished` are outcome. `kv` is a level from 0 to
    1, the others but the gauges are counters. `missing` names required signals of the dialect that were not told;
    `asleep` is the sentence of a pause sign that stands in the metrics themselves.
    """

    engine: str
    running: float | None = None
    waiting: float | None = None
    steps: float | None = None
    prompt: float | None = None
    generated: float | None = None
    kv: float | None = None
    finished: float | None = None
    missing: tuple[str, ...] = ()
    asleep: str | None = None


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """What the service manager says of a unit; a property that is unset there is None here.

    `told` is false when the manager did not answer. `job` is the id of a queued job, 0 for none. `main_start` is the
    main process's start time in clock ticks since boot, `cpu` its control group's CPU seconds. `left_over` has the
    PIDs of processes of the control group from before our last restart that are still alive. Of a unit that is down,
    `own_exit` says whether its main process ended before anybody asked it to, and `restarts_on` what its setting
    Restart= is.
    """

    told: bool
    active: str | None = None
    sub: str | None = None
    job: int = 0
    invocation: str | None = None
    main_pid: int | None = None
    main_start: int | None = None
    cpu: float | None = None
    control_group: str | None = None
    left_over: tuple[int, ...] = ()
    own_exit: bool | None = None
    restarts_on: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Flag:
    """The busy flag of a backend: `held` is a hold; a `stale` one is reported and ignored. `why` names the holder."""

    held: bool = False
    stale: bool = False
    why: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """What the pause endpoints said: `sign` is the sentence of the one that says paused, None where none does.

    `absent` is true when none of them exists (no development mode), so that this life need not be asked again.
    """

    sign: str | None = None
    absent: bool = False


class Owner(enum.StrEnum):
    """Whose process listens at a backend's address."""

    UNIT = "unit"  # the unit's own
    FOREIGN = "foreign"  # another unit's
    CONTAINER = "container"  # a container's, or its engine's: it may well be what the unit started
    UNKNOWN = "unknown"  # nobody listens, or it cannot be told


@dataclass(frozen=True, slots=True)
class Port:
    """Whose the port is; `detail` is the part of a sentence that says why, empty where it is the unit's."""

    owner: Owner
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one poll saw. `began` and `ended` bound it in time; `known` is false for a page without known series.

    `unit` is None where no unit is configured, `pause` None where the pause signs were not read, `port` None where
    nobody looked whose it is, `models` (the names that are served) None where they were not read or not told.
    `maintenance` says for how long an operator set the backend aside, and who; None where nobody did.
    """

    began: float
    ended: float
    health: Reply
    metrics: Reply
    known: bool = False
    engines: tuple[Sample, ...] = ()
    start_time: float | None = None
    unit: UnitFacts | None = None
    pause: Pause | None = None
    flag: Flag = Flag()
    maintenance: str | None = None
    port: Port | None = None
    models: tuple[str, ...] | None = None

    @property
    def foreign(self) -> Port | None:
        """The port where another unit's process has it, None otherwise."""
        return self.port if self.port is not None and self.port.owner is Owner.FOREIGN else None

    @property
    def readable(self) -> bool:
        """Whether the metrics page came and had series that the dialect knows."""
        return self.metrics.went is Went.OK and self.known


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the instance is. Parts that are not told are None; only a told value replaced by another is a new life."""

    start_time: float | None = None
    invocation: str | None = None
    main_pid: int | None = None
    main_start: int | None = None


# --- questions -------------------------------------------------------------------------------------------------------


class Form(enum.StrEnum):
    """The forms of the one short question, in the order in which they are tried."""

    CHAT = "chat"
    CHAT_COMPLETION_TOKENS = "chat-completion-tokens"  # the same chat with `max_completion_tokens`
    COMPLETION = "completion"
    EMBEDDING = "embedding"


class Purpose(enum.StrEnum):
    IDLE = "idle"  # an idle backend shows that it still answers
    CONFIRM = "confirm"  # the last look for a reason not to restart
    SERVE = "serve"  # the first answer after a restart


@dataclass(frozen=True, slots=True)
class Question:
    """One question: `engine` is the one it is meant for, `pinned` whether it can be addressed to that engine."""

    id: int
    form: Form
    engine: str | None
    pinned: bool
    purpose: Purpose
    sent: float


class Outcome(enum.StrEnum):
    """What an answer is worth."""

    ANSWERED = "answered"
    CANNOT = "cannot"  # cannot be asked so: wrong model, template, route or field
    DENIED = "denied"  # cannot be asked at all: the key is missing or wrong
    NOT_NOW = "not-now"  # 429, 503: no failure if anything moved since
    SERVER_ERROR = "server-error"  # 500 and the like
    FAILED = "failed"  # no answer by the deadline, cut off, refused


@dataclass(frozen=True, slots=True)
class Answer:
    """How a question ended. Token counts are the server's own; `next_form` is the form that the answer asks for."""

    question: int
    outcome: Outcome
    ended: float
    prompt_tokens: int = 0
    completion_tokens: int = 0
    detail: str = ""
    next_form: Form | None = None


# --- what we think of it ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state, since when, which engine (None: the whole backend), by which rule, and one sentence why."""

    state: State
    since: float
    why: str
    rule: str
    engine: str | None = None


class Hold(enum.StrEnum):
    """What forbids a restart now."""

    OBSERVE = "observe"
    NO_UNIT = "no-unit"
    MAINTENANCE = "maintenance"
    FLAG = "flag"
    FAILED_UNIT = "failed-unit"
    UNIT = "unit"
    BREAKER = "breaker"
    TEN_MINUTES = "ten-minutes"
    FOREIGN = "foreign"
    WRONG_MODEL = "wrong-model"
    OTHER_RESTART = "other-restart"
    LEFT_OVER = "left-over"


class Alert(enum.StrEnum):
    """What somebody has to be told."""

    HUNG = "hung"
    DEAD = "dead"
    RESTART = "restart"
    SERVED = "served"
    NOT_SERVED = "not-served"
    VETOED = "vetoed"
    HELD = "held"
    BREAKER = "breaker"
    OVERDUE = "overdue"
    PAUSED_LONG = "paused-long"
    STARVED = "starved"
    STAND_STILL = "stand-still"
    CANNOT_ASK = "cannot-ask"
    FOREIGN_PROCESS = "foreign-process"
    PROXY = "proxy"
    STALE_FLAG = "stale-flag"
    FLAG_LONG = "flag-long"
    UNIT_FAILED = "unit-failed"


# --- what happened, and what is to be done ---------------------------------------------------------------------------


class JobResult(enum.StrEnum):
    """How a restart job ended; the first is systemd's word, the rest are what kept it from being one."""

    DONE = "done"
    DROPPED = "dropped"  # never asked for: the ground was gone by then
    FAILED = "failed"  # any other result of the job, named in the detail
    NEVER_ENDED = "never-ended"  # still there after the deadline
    DENIED = "denied"  # no permission
    NO_BUS = "no-bus"  # the service manager cannot be reached


@dataclass(frozen=True, slots=True)
class Polled:
    reading: Reading


@dataclass(frozen=True, slots=True)
class Answered:
    answer: Answer


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job of restart `attempt` ended."""

    attempt: int
    result: JobResult
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ResetAsked:
    """An operator closes the breaker and forgets past restarts."""

    by: str = ""


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """An operator wants the backend restarted; `by` names them. Nothing comes of it while a hold stands."""

    by: str


Event = Polled | Answered | JobEnded | ResetAsked | RestartAsked


@dataclass(frozen=True, slots=True)
class Ask:
    question: Question


@dataclass(frozen=True, slots=True)
class Look:
    """Poll at once, with the pause signs: something waits to be settled by a fresh reading."""


@dataclass(frozen=True, slots=True)
class Turned:
    """The state or the engine of the verdict changed."""

    verdict: Verdict
    previous: Verdict | None


@dataclass(frozen=True, slots=True)
class Raise:
    alert: Alert
    why: str
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """Why a restart is right: the finding, the confirming question and its answer, and what the reading showed.

    `readings` are those before it, the oldest first; whoever keeps the proof adds them. `held` are the holds that stood
    against it earlier in this episode; at this moment none does.
    """

    attempt: int
    state: State
    rule: str
    engine: str | None
    why: str
    suspected: float
    question: Question | None
    answer: Answer | None
    reading: Reading
    readings: tuple[Reading, ...] = ()
    held: tuple[Hold, ...] = ()


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart attempt `attempt`, of the life `identity`; `revive`: a failed unit is reset and started instead.

    `by` names the operator who asked for it, None where the watchdog decided.
    """

    attempt: int
    identity: Identity
    proof: Proof
    revive: bool = False
    by: str | None = None


@dataclass(frozen=True, slots=True)
class RestartSettled:
    """A restart attempt came to its end: served, or not, with the sentence that says so."""

    attempt: int
    served: bool
    why: str
    identity: Identity


Effect = Ask | Look | Turned | Raise | Restart | RestartSettled


# --- settings that decide --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """One backend's settings as far as decisions need them; durations in seconds. Defaults are the program's own.

    `hang_after` is the `L` of the rules, with `hang_auto` until a restart is measured; `silent_after` None: never.
    `forms` are the forms of the question that may be tried, none for `question = "never"`; `pinnable`: the dialect can
    address a question to one engine. `has_unit`: a unit or an action unit is configured; `action`: a restart starts
    the operator's own unit, so that the backend's unit need not show a new life. `slow_evidence`: time in which the
    unit computes while none of its engines moves counts a third. A time longer than `gap_factor` intervals between two
    polls means that both sides slept. `model` is the one that has to be served, None: any.
    """

    interval: float = 10.0
    hang_after: float = 120.0
    hang_auto: bool = False
    silent_after: float | None = 600.0
    dead_after: float = 30.0
    startup_timeout: float = 1800.0
    first_outcome: float = 600.0
    starved_after: float = 1800.0
    paused_alert: float = 1800.0
    flag_alert: float = 43200.0
    question_every: float = 60.0
    question_timeout: float = 30.0
    forms: tuple[Form, ...] = tuple(Form)
    model: str | None = None
    pinnable: bool = True
    ask_without_metrics: bool = False
    slow_evidence: bool = False
    enforce: bool = True
    revive: bool = False
    has_unit: bool = True
    action: bool = False
    max_restarts: int = 3
    restart_window: float = 21600.0
    restart_gap: float = 600.0
    gap_factor: float = 3.0
