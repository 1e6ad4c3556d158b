from __future__ import annotations

import json
import re

import pytest

from factory_watchdog.config.polkit import FILE, rule

WHOLE = """\
// /etc/polkit-1/rules.d/50-factory-watchdog.rules: what factory-watchdog may do, made from its configuration by \
`llm-health config polkit`.
// The name of a unit is the one in `systemctl show --property=Id`, not an alias of it.
polkit.addRule(function(action, subject) {
    var allowed = [
        "reset-failed vllm.service",
        "start vllm.service",
        "try-restart vllm.service"
    ];
    if (action.id == "org.freedesktop.systemd1.manage-units" &&
        subject.user == "factory-watchdog" &&
        allowed.indexOf(action.lookup("verb") + " " + action.lookup("unit")) >= 0) {
        return polkit.Result.YES;
    }
    return polkit.Result.NOT_HANDLED;
});
"""


def _allowed(text: str) -> list[str]:
    found = re.search(r"var allowed = (\[.*?\]);\n", text, re.DOTALL)
    assert found is not None
    names: list[str] = json.loads(found[1])
    return names


def test_the_whole_rule() -> None:
    assert rule([("vllm.service", ["try-restart", "start", "reset-failed"])]) == WHOLE
    assert FILE in WHOLE


def test_each_pair_once_and_in_a_steady_order() -> None:
    twice = [("b.service", ["try-restart"]), ("a.service", ["start"]), ("b.service", ["try-restart"])]
    assert _allowed(rule(twice)) == ["start a.service", "try-restart b.service"]
    assert rule(twice) == rule(reversed(twice))


def test_no_unit_allows_nothing() -> None:
    assert _allowed(rule([])) == []
    assert _allowed(rule([("a.service", [])])) == []


@pytest.mark.parametrize("name", ['x"];return polkit.Result.YES;//', "a\\x2db\n.service", "</script>\u2028ü.service"])
def test_a_name_is_never_code(name: str) -> None:
    text = rule([(name, ["start"])])
    assert _allowed(text) == [f"start {name}"]
    assert text.isascii()


def test_a_verb_that_nobody_asks_for() -> None:
    with pytest.raises(ValueError, match=r"^'stop' is no verb that the daemon asks for; it must be one of try-restart"):
        rule([("a.service", ["stop"])])
