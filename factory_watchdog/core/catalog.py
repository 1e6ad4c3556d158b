"""What every hold and every alert means: the words of the reference, beside those that stand in a sentence."""

from __future__ import annotations

from factory_watchdog.core.memory import Phase
from factory_watchdog.core.model import Alert, Hold

HOLD_STANDS: dict[Hold, str] = {
    Hold.OBSERVE: "`mode` is observe; not for an operator's order",
    Hold.NO_UNIT: "neither `unit` nor `action_unit` is set: watched only",
    Hold.MAINTENANCE: "an operator set the backend aside: no ground arises then, so this holds an operator's own order",
    Hold.FLAG: "the busy flag is held",
    Hold.FAILED_UNIT: "the unit is down by itself and `revive` is off",
    Hold.UNIT: "the unit is not known to be active, or has a job queued",
    Hold.BREAKER: "as many restarts as `max_restarts` allows lie within its window, until the oldest leaves it or "
    "`llm-health reset`",
    Hold.TEN_MINUTES: "the last restart was less than ten minutes ago",
    Hold.FOREIGN: "another unit's process listens at the backend's address (`verify_owner`)",
    Hold.WRONG_MODEL: "`model` is set, and the server lists others without it",
    Hold.OTHER_RESTART: "another backend of this host is being restarted and has not served yet",
    Hold.LEFT_OVER: "processes of the life before the last restart are still there",
}
"""When each hold stands."""

ALERT_ABOUT: dict[Alert, str] = {
    Alert.HUNG: "confirmed: requests stand still, questions stay unanswered, or nothing says anything",
    Alert.DEAD: "confirmed: refuses, says that it died, or never served",
    Alert.RESTART: "it is being restarted",
    Alert.SERVED: "the restart is done: a first token came",
    Alert.NOT_SERVED: "the restart failed, or what came of it did not serve",
    Alert.VETOED: "a confirming question was answered: no restart",
    Alert.HELD: "a restart is due and held",
    Alert.BREAKER: "held because the restarts allowed are used up",
    Alert.OVERDUE: "not serving for half of `startup_timeout`",
    Alert.PAUSED_LONG: "paused for `paused_alert`",
    Alert.STARVED: "works for `starved_after`, and nobody gets a token",
    Alert.STAND_STILL: "a question was answered while requests stand still",
    Alert.CANNOT_ASK: "no form of the question can be asked: key, model, route",
    Alert.FOREIGN_PROCESS: "a process of another unit has the port",
    Alert.PROXY: "several servers behind one address",
    Alert.STALE_FLAG: "a busy flag that nobody holds any more is ignored",
    Alert.FLAG_LONG: "the busy flag is held for 12 hours",
    Alert.UNIT_FAILED: "the unit is down by itself, and systemd does not start it again",
}
"""What happened where an alert is raised."""

PHASE_ABOUT: dict[Phase, str] = {
    Phase.WATCH: "nothing is under way",
    Phase.CONFIRM: "a last question and a fresh reading look for a reason not to restart",
    Phase.HELD: "confirmed, and a hold forbids the restart; asked again every five minutes",
    Phase.RESTART: "the restart's job is followed to its end",
    Phase.LIFE: "the job has ended; nothing is judged until a new life shows itself",
    Phase.SERVE: "the new life has not given a first token yet",
}
"""What happens in each phase."""
