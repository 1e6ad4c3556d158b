"""What must hold in every week, whatever happens: no restart of what is well, every hang found in time, no question
to what works. The truth is the weather's; of the core only its effects are believed."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from factory_watchdog.config.durations import show
from factory_watchdog.core.model import Alert, Ask, Effect, Purpose, Raise, Restart, RestartSettled, Turned
from year.host import Watched
from year.weather import Hang, serves_users

VERDICTS_KEPT = 8
"""Of each backend, to be shown where something is wrong."""


class WrongError(Exception):
    """Something happened that must not, or did not happen that must."""


@dataclass
class Tally:
    """What was counted. `found` are the seconds from each hang's beginning to its restart, by kind."""

    found: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    late: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        for mine, others in ((self.found, other.found), (self.late, other.late)):
            for kind, seconds in others.items():
                mine[kind] += seconds
        self.counts += other.counts


@dataclass
class _Case:
    """The hang that a backend is in. `since` is from when its clocks run, `free` when the last hold ended."""

    hang: Hang
    since: float
    free: float
    disturbed: bool = False
    found: bool = False


@dataclass
class _Record:
    """What is known of one backend."""

    verdicts: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=VERDICTS_KEPT))
    restarts: list[float] = field(default_factory=list)
    next_hang: int = 0
    interrupted: float = 0.0
    case: _Case | None = None
    asked: bool = False


class Law:
    """Watches a host; raises WrongError at the first thing that is wrong."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.records: dict[str, _Record] = defaultdict(_Record)
        self._under_way: dict[str, int] = {}

    def verdicts(self) -> list[str]:
        """The last verdicts of every backend, in words."""
        return [f"{name} {show(t)}: {why}" for name, record in self.records.items() for t, why in record.verdicts]

    # --- what the host shows -----------------------------------------------------------------------------------------

    def polled(self, watched: Watched, now: float) -> None:
        """After each poll: the hang that is on must not be overdue."""
        record = self.records[watched.name]
        if record.case is None:
            hang = watched.hangs[record.next_hang] if record.next_hang < len(watched.hangs) else None
            if hang is None or now < hang.begin:
                return
            since = max(hang.begin, record.interrupted)
            record.case = _Case(hang, since, hang.begin, disturbed=since > hang.begin)
        self._in_case(record, record.case, watched, now)

    def interrupted(self, watched: Watched, now: float) -> None:
        """The watch, or the whole host, stood still: every clock starts again."""
        record = self.records[watched.name]
        record.interrupted = now
        if record.case is not None:
            record.case.since, record.case.disturbed = now, True

    def answered(self, watched: Watched) -> None:
        self.records[watched.name].asked = False

    def told(self, watched: Watched, effect: Effect, now: float) -> None:
        record = self.records[watched.name]
        match effect:
            case Ask():
                self._asked(record, watched, effect)
            case Restart():
                self._restarted(record, watched, effect, now)
            case RestartSettled(served=served):
                self._under_way.pop(watched.name, None)
                self.tally.counts["restarts served"] += served
            case Turned(verdict=verdict):
                record.verdicts.append((now, f"{verdict.state}: {verdict.why}"))
            case Raise(alert=alert):
                self._alerted(watched, alert)

    # --- hangs -------------------------------------------------------------------------------------------------------

    def _in_case(self, record: _Record, case: _Case, watched: Watched, now: float) -> None:
        hang = case.hang
        if now >= hang.end:
            record.case, record.next_hang = None, record.next_hang + 1
            if not case.found:
                self.tally.counts["hangs held to their end"] += 1
            return
        if case.found:
            return
        if watched.seen.flag != "none":
            case.free, case.disturbed = now, True
            case.since = now if hang.idle else case.since
        if self._held(record, watched, now):
            case.free, case.disturbed = now, True
        self._in_time(case, watched, now)

    @staticmethod
    def _in_time(case: _Case, watched: Watched, now: float) -> None:
        """A hang may last no longer than its bound, or, after a hold, than a question under way and the next one."""
        hang, settings = case.hang, watched.settings
        again = 3 * settings.interval + 2 * settings.question_timeout
        if now > max(case.since + hang.bound(settings), case.free + again if case.disturbed else 0.0):
            raise WrongError(f"{hang.kind} since {show(hang.begin)}: not restarted after {show(now - hang.begin)}")

    def _held(self, record: _Record, watched: Watched, now: float) -> bool:
        """Whether the budget, the ten minutes or another backend's restart forbids a restart."""
        settings = watched.settings
        recent = [t for t in record.restarts if now - t < settings.restart_window]
        return (
            len(recent) >= settings.max_restarts
            or (bool(recent) and now - recent[-1] < settings.restart_gap)
            or any(name != watched.name for name in self._under_way)
        )

    # --- what must not happen ----------------------------------------------------------------------------------------

    def _asked(self, record: _Record, watched: Watched, effect: Ask) -> None:
        seen, question = watched.seen, effect.question
        self.tally.counts["questions"] += 1
        self.tally.counts[f"questions, {question.purpose}"] += 1
        if record.asked:
            raise WrongError("two questions out at once")
        if seen.flag == "locked" or seen.maintenance or seen.paused or seen.asleep or seen.unit != "active":
            raise WrongError("asked while it is set aside")
        meant = seen.engines
        if question.purpose is Purpose.CONFIRM and question.engine is not None:
            meant = (seen.engines[int(question.engine)],)
        if any(serves_users(engine) for engine in meant) and watched.looked >= watched.server.life.plays:
            raise WrongError(f"asked ({question.purpose}) while requests make progress")
        if any(e.running or e.waiting for e in meant):
            self.tally.counts["questions beside requests that stand still"] += 1
        record.asked = True

    def _restarted(self, record: _Record, watched: Watched, order: Restart, now: float) -> None:
        settings, proof, server = watched.settings, order.proof, watched.server
        what = f"restart {order.attempt} ({proof.rule}: {proof.why})"
        hang = self._hang(watched)
        if hang is None:
            raise WrongError(f"false {what}")
        if watched.seen.flag == "locked" or watched.seen.maintenance or server.unit_state != "active":
            raise WrongError(f"{what} though it is set aside")
        if self._under_way:
            raise WrongError(f"{what} beside that of {', '.join(self._under_way)}")
        if order.identity.invocation not in (None, server.life.invocation):
            raise WrongError(f"{what} of a life that is over")
        recent = [t for t in record.restarts if now - t < settings.restart_window]
        if len(recent) >= settings.max_restarts or (recent and now - recent[-1] < settings.restart_gap):
            raise WrongError(f"{what} beyond the budget")
        self._under_way[watched.name] = order.attempt
        record.restarts.append(now)
        self.tally.counts["restarts"] += 1
        case = record.case
        if case is None or case.found:
            self.tally.counts["restarts of what hung again"] += 1
            return
        self._in_time(case, watched, now)
        case.found = True
        (self.tally.late if case.disturbed else self.tally.found)[hang.kind].append(now - hang.begin)

    def _alerted(self, watched: Watched, alert: Alert) -> None:
        self.tally.counts["alerts"] += 1
        if alert in (Alert.HUNG, Alert.DEAD) and self._hang(watched) is None and not watched.server.life.failed:
            raise WrongError(f"a false alert: {alert}")
        if alert is Alert.VETOED:
            self.tally.counts["answers that vetoed"] += 1

    def _hang(self, watched: Watched) -> Hang | None:
        """The hang that the newest poll saw, None where it saw another life or a server that is well."""
        hang = watched.hang_at(watched.looked)
        return hang if hang is not None and watched.looked >= watched.server.life.plays else None
