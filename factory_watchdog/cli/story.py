"""A restart in plain words: what its record says, as lines. Pure: neither file nor clock is read here.

Boot times of the proof become times of day by the moment when the restart was decided, which the record has in both.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from factory_watchdog.core.compare import KV_CHANGE
from factory_watchdog.core.holds import HOLD_WORDS
from factory_watchdog.core.model import Hold, JobResult, State
from factory_watchdog.core.wording import count, span
from factory_watchdog.world.store import Entry, RestartRecord

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in the kernel, cannot be interrupted",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "I": "idle in the kernel",
    "Z": "ended, not yet reaped",
    "X": "ended",
}
"""What the kernel's state letters mean, see proc_pid_stat(5)."""

BEGINNINGS = {
    "flat": "the first reading that shows the requests standing",
    "unanswered": "the first of the questions that stayed unanswered is sent",
    "refused": "connections are refused from here on",
    "says-dead": "/health says from here on that it is dead",
    "server-errors": "questions get server errors in a row",
    "silent": "every endpoint accepts and says nothing from here on",
    "never-served": "this life has not served since",
    "unit-failed": "the unit is seen to have failed",
}
"""What the time `suspected` of a proof is, by its rule."""

WORK = ("steps", "prompt", "generated", "finished")
NOT_TOLD = "-"
BREATH = 0.5
"""Seconds within which a turn of the state and the restart are one: the one is written down just before the other."""

Event = tuple[float, str]


def story(record: RestartRecord, entries: Iterable[Entry]) -> list[str]:
    """The restart, its timeline and the evidence. `entries` is the history of its backend, in any order."""
    return [
        *_head(record),
        "",
        "What happened",
        *_timeline(record, entries),
        "",
        "What the proof rests on",
        *(f"  {sentence}" for sentence in _grounds(record)),
        "",
        "What the host showed before the restart",
        *(f"  {sentence}" for sentence in _evidence(record)),
    ]


def span_of(record: RestartRecord) -> tuple[float, float]:
    """The wall-clock times between which the history belongs to the story: from the suspicion to the end."""
    begins = _Wall(record).at(record.proof["suspected"]) - 1.0
    return begins, (record.ended if record.ended is not None else record.began + 86400.0) + 1.0


class _Wall:
    """Boot times of a record as wall-clock times."""

    def __init__(self, record: RestartRecord) -> None:
        self._ahead = record.began - float(record.proof["reading"]["ended"])

    def at(self, boottime: float) -> float:
        return boottime + self._ahead


def _head(record: RestartRecord) -> Iterator[str]:
    proof = record.proof
    result = "under way" if record.served is None else "served" if record.served else "not served"
    yield f"restart {record.id} of {record.backend}, {_day(record.began)}: {result}"
    yield f"  ground: {record.why} (rule {proof['rule']}, {proof['state']})"
    if record.by is not None:
        yield f"  asked for by: {record.by}"
    yield f"  {_question(proof)}"
    took = f" ({span(record.ended - record.began)} after it began)" if record.ended is not None else ""
    yield f"  outcome: {record.outcome or 'under way'}{took}"


def _question(proof: Mapping[str, Any]) -> str:
    question, answer = proof.get("question"), proof.get("answer")
    if question is None:
        why = (
            "nothing that refuses or is gone is asked"
            if proof["rule"] in ("refused", "unit-failed")
            else "none could be"
        )
        return f"no confirming question was sent: {why}; a fresh reading confirmed it"
    if answer is None:
        return f"confirming question ({_asked(question)}): no answer is recorded"
    took = span(answer["ended"] - question["sent"])
    return f"confirming question ({_asked(question)}): {answer['outcome']} after {took}: {_detail(answer)}"


def _asked(question: Mapping[str, Any]) -> str:
    return f"{question['form']}, engine {question['engine']}" if question["engine"] is not None else question["form"]


def _detail(answer: Mapping[str, Any]) -> str:
    return answer["detail"] or "nothing said"


# --- the timeline ----------------------------------------------------------------------------------------------------


def _timeline(record: RestartRecord, entries: Iterable[Entry]) -> Iterator[str]:
    turns = list(_of_history(record, entries))
    before = [event for event in turns if event[0] <= record.began]
    after = [event for event in turns if event[0] > record.began]
    events = [*_of_proof(record), *before, *_of_restart(record), *after, *_of_end(record)]
    events.sort(key=lambda event: round(event[0], 3))
    day = None
    for at, what in events:
        moment = datetime.datetime.fromtimestamp(at).astimezone()
        if day not in (None, moment.date()):
            yield f"  {moment:%Y-%m-%d}"
        day = moment.date()
        yield f"  {moment:%H:%M:%S}  {what}"


def _of_proof(record: RestartRecord) -> Iterator[Event]:
    """What led to the restart. Events of one moment are told in the order in which they come here."""
    proof, wall = record.proof, _Wall(record)
    moved = last_movement(proof["readings"], proof["engine"])
    if moved is not None:
        yield wall.at(moved["ended"]), f"the last movement: {_numbers(moved, proof['engine'])}"
    elif proof["readings"]:
        yield wall.at(proof["readings"][0]["ended"]), "the oldest reading that is kept; nothing has moved since"
    yield wall.at(proof["suspected"]), BEGINNINGS.get(proof["rule"], "the suspicion begins")
    question, answer = proof.get("question"), proof.get("answer")
    if question is not None:
        yield wall.at(question["sent"]), f"the confirming question goes out ({_asked(question)})"
    if question is not None and answer is not None:
        took = span(answer["ended"] - question["sent"])
        yield wall.at(answer["ended"]), f"the question ends: {answer['outcome']} after {took}: {_detail(answer)}"
    reading = proof["reading"]
    yield wall.at(reading["ended"]), f"the reading that confirms it: {_numbers(reading, proof['engine'])}"
    yield wall.at(reading["ended"]), f"pause signs: {_pause(reading)}"


def _of_restart(record: RestartRecord) -> Iterator[Event]:
    evidence, job = record.evidence, record.job
    yield record.began, f"no hold stands; restart {record.attempt} is decided"
    if evidence is not None:
        yield record.began + evidence["seconds"], f"what the host shows is recorded ({evidence['seconds']:.1f} s)"
    if job is not None:
        yield job["asked"], f"the restart is asked of the service manager ({job['unit']})"
        detail = f": {job['detail']}" if job["detail"] else ""
        took = job["ended"] - job["asked"]
        yield (
            job["ended"],
            f"the job ends: {job['result']} after {f'{took:.1f} s' if took < 10 else span(took)}{detail}",
        )


def _of_end(record: RestartRecord) -> Iterator[Event]:
    if record.ended is not None:
        yield record.ended, record.outcome or "ended"


def _of_history(record: RestartRecord, entries: Iterable[Entry]) -> Iterator[Event]:
    """Turns of the state before and after, and questions but for the confirming one, which the proof has."""
    ordered = sorted(entries, key=lambda entry: entry.wall)
    changes = [entry for entry in ordered if entry.kind == "change"]
    anew = next((entry for entry in changes if _shows_new_life(record, entry)), None)
    for entry in changes:
        at = record.began if 0 < record.began - entry.wall < BREATH else entry.wall
        yield at, f"{'a new life: ' if entry is anew else ''}{entry.word}: {entry.why}"
    for entry in ordered:
        if entry.kind == "question" and not entry.why.startswith("confirm,"):
            yield entry.wall, f"question ({entry.why.partition(':')[0]}): {entry.word}"


def _shows_new_life(record: RestartRecord, entry: Entry) -> bool:
    """Whether a turn of the state is the new life's: while the old one is shown the verdict stays at its ground."""
    if record.job is None or record.job["result"] != JobResult.DONE or entry.wall <= record.began:
        return False
    return entry.word == State.STARTING or (bool(record.served) and entry.word not in (State.HUNG, State.DEAD))


def last_movement(readings: Sequence[Mapping[str, Any]], engine: str | None) -> Mapping[str, Any] | None:
    """The last reading in which a work signal differs from the one before, of one engine or of any (None)."""
    readable = [reading for reading in readings if reading["engines"]]
    found = None
    for before, now in pairwise(readable):
        if any(_moved(old, new) for old, new in _pairs(before, now, engine)):
            found = now
    return found


def _pairs(
    before: Mapping[str, Any], now: Mapping[str, Any], engine: str | None
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    known = {sample["engine"]: sample for sample in before["engines"]}
    for sample in now["engines"]:
        if engine in (None, sample["engine"]) and sample["engine"] in known:
            yield known[sample["engine"]], sample


def _moved(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    counted = any(None not in (old[name], new[name]) and old[name] != new[name] for name in WORK)
    return counted or (None not in (old["kv"], new["kv"]) and abs(old["kv"] - new["kv"]) > KV_CHANGE)


def _numbers(reading: Mapping[str, Any], engine: str | None) -> str:
    """What a reading shows of an engine, or of all where it is none's, in a few numbers."""
    samples = [sample for sample in reading["engines"] if engine in (None, sample["engine"])]
    if not samples:
        return f"/metrics {_went(reading['metrics'])}, /health {_went(reading['health'])}"
    parts = [count(_sum(samples, "running"), "request") + " running", f"{_sum(samples, 'waiting'):g} waiting"]
    for name, words in (("steps", "steps"), ("generated", "tokens generated"), ("finished", "finished")):
        if any(sample[name] is not None for sample in samples):
            parts.append(f"{_sum(samples, name):.0f} {words}")
    return ", ".join(parts)


def _sum(samples: Iterable[Mapping[str, Any]], name: str) -> float:
    return sum(sample[name] or 0.0 for sample in samples)


def _went(reply: Mapping[str, Any]) -> str:
    return f"says {reply['status']}" if reply["status"] is not None else str(reply["went"])


def _pause(reading: Mapping[str, Any]) -> str:
    asleep = next((sample["asleep"] for sample in reading["engines"] if sample.get("asleep")), None)
    pause = reading["pause"]
    if asleep or (pause and pause["sign"]):
        return str(asleep or pause["sign"])
    if pause is None:
        return "none in the metrics; no endpoint was asked for them"
    return "there are none here" if pause["absent"] else "read, none says paused"


# --- the proof and the evidence --------------------------------------------------------------------------------------


def _grounds(record: RestartRecord) -> Iterator[str]:
    proof = record.proof
    reading, readings = proof["reading"], proof["readings"]
    if readings:
        took = span(readings[-1]["ended"] - readings[0]["began"])
        yield f"{count(len(readings), 'reading')} over {took}, in --json"
    yield f"unit: {_unit(reading['unit'])}"
    held = ", ".join(HOLD_WORDS[Hold(hold)] for hold in proof.get("held", ()) if hold in set(Hold))
    yield f"holds: none{f'; earlier in this episode: {held}' if held else ''}"
    yield f"busy flag: {_flag(reading['flag'])}"


def _unit(unit: Mapping[str, Any] | None) -> str:
    if unit is None:
        return "none is configured"
    if not unit["told"]:
        return unit["detail"] or "the service manager did not tell"
    job = f"job {unit['job']} queued" if unit["job"] else "no job queued"
    return f"{unit['active']} ({unit['sub']}), main PID {unit['main_pid'] or 'none'}, {job}"


def _flag(flag: Mapping[str, Any]) -> str:
    word = "held" if flag["held"] else "stale, ignored" if flag["stale"] else "not held"
    return f"{word} ({flag['why']})" if flag["why"] else word


def _evidence(record: RestartRecord) -> Iterator[str]:
    evidence = record.evidence
    if evidence is None:
        yield "nothing is recorded"
        return
    yield from _properties(evidence["unit"])
    yield from _processes(evidence["processes"])
    yield f"control group: {_group(evidence['group'])}"
    yield from _gpus(evidence["gpus"])


def _properties(unit: Mapping[str, Any]) -> Iterator[str]:
    if missing := _missing(unit):
        yield f"unit: {missing}"
        return
    line = ", ".join(f"{name}={_property(name, value)}" for name, value in unit.items() if value not in (None, ""))
    yield f"unit: {line}"


def _property(name: str, value: str | int) -> str:
    """A property in systemd's own words, its microseconds and nanoseconds as people say them."""
    if isinstance(value, str):
        return value
    if name.endswith("Timestamp"):
        return _day(value / 1e6) if value else "never"
    if name.endswith("USec"):
        return span(value / 1e6)
    if name.endswith("NSec"):
        return span(value / 1e9)
    return _bytes(value) if name.startswith("Memory") else str(value)


def _processes(processes: Mapping[str, Any]) -> Iterator[str]:
    if missing := _missing(processes):
        yield f"processes: {missing}"
        return
    if not processes["seen"]:
        yield "processes: none"
        return
    rows = [("PID", "parent", "role", "cores", "age", "memory", "threads", "state"), *map(_row, processes["seen"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if processes["left_out"]:
        yield f"and {processes['left_out']} more"


def _row(seen: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(seen["pid"]),
        str(seen["ppid"]),
        seen["role"],
        NOT_TOLD if seen["cpu"] is None else f"{seen['cpu']:.2f}",
        span(seen["age"]),
        NOT_TOLD if seen["resident"] is None else _bytes(seen["resident"]),
        NOT_TOLD if seen["threads"] is None else str(seen["threads"]),
        f"{seen['state']} ({STATES.get(seen['state'], 'not known')})",
    )


def _group(group: Mapping[str, Any]) -> str:
    if missing := _missing(group):
        return missing
    cpu = "CPU not told" if group["cpu"] is None else f"{group['cpu']:.2f} cores"
    memory = "memory not told" if group["memory"] is None else _bytes(group["memory"])
    waits = [
        f"{group[f'{what}_pressure']['some']:g} % of the time some task waited for {what}"
        for what in ("memory", "cpu")
        if group[f"{what}_pressure"] and group[f"{what}_pressure"]["some"] is not None
    ]
    return ", ".join([cpu, memory, *waits])


def _gpus(gpus: Any) -> Iterator[str]:
    if missing := _missing(gpus):
        yield f"GPU: {missing}"
        return
    for gpu in gpus:
        parts = [
            _told(gpu["used"], "{:.0f} % used", "use"),
            _told(gpu["power"], "{:.0f} W", "power"),
            "memory not told" if gpu["memory"] is None else _bytes(gpu["memory"]),
            _told(gpu["temperature"], "{:.0f} C", "temperature"),
        ]
        yield f"GPU {gpu['index']} ({gpu['name']}): {', '.join(parts)}"


def _told(value: float | None, words: str, name: str) -> str:
    return f"{name} not told" if value is None else words.format(value)


def _missing(part: Any) -> str | None:
    """Why a part of the evidence is not there, where it is not."""
    return part.get("missing") if isinstance(part, Mapping) else None


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit in ("B", "KiB") else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _day(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall).astimezone().strftime("%Y-%m-%d %H:%M:%S")
