"""The polkit rule that lets the daemon do what its configuration asks of systemd, and nothing else.

polkit(8); systemd names the `unit` and the `verb` of each action org.freedesktop.systemd1.manage-units.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

USER = "factory-watchdog"
FILE = "/etc/polkit-1/rules.d/50-factory-watchdog.rules"
VERBS = ("try-restart", "start", "reset-failed")  # all that the daemon ever asks for

_RULE = """\
// {file}: what factory-watchdog may do, made from its configuration by `llm-health config polkit`.
// The name of a unit is the one in `systemctl show --property=Id`, not an alias of it.
polkit.addRule(function(action, subject) {{
    var allowed = {allowed};
    if (action.id == "org.freedesktop.systemd1.manage-units" &&
        subject.user == {user} &&
        allowed.indexOf(action.lookup("verb") + " " + action.lookup("unit")) >= 0) {{
        return polkit.Result.YES;
    }}
    return polkit.Result.NOT_HANDLED;
}});
"""


def rule(units: Iterable[tuple[str, Iterable[str]]], user: str = USER) -> str:
    """The text of a rule that lets `user` apply to each unit exactly the verbs that are named with it.

    Names are told once however often they come, in a steady order, so that the same configuration gives the same file.
    Raises ValueError for a verb that is not one of `VERBS`.
    """
    allowed = sorted({f"{_verb(verb)} {unit}" for unit, verbs in units for verb in verbs})
    return _RULE.format(file=FILE, user=json.dumps(user), allowed=_array(allowed))


def _verb(verb: str) -> str:
    if verb not in VERBS:
        raise ValueError(f"{verb!r} is no verb that the daemon asks for; it must be one of {', '.join(VERBS)}")
    return verb


def _array(strings: list[str]) -> str:
    """A JavaScript array, one string a line: JSON's strings with everything beyond ASCII escaped are JavaScript's."""
    return json.dumps(strings, indent=8).replace("\n]", "\n    ]")
