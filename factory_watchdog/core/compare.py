"""One engine's comparison: a sample against the one before, with our own question's share taken out."""

from __future__ import annotations

from factory_watchdog.core.memory import Engine, Memory, Own, replace
from factory_watchdog.core.model import Reading, Sample

KV_CHANGE = 1e-9
"""KV usage is a quotient of block counts; anything beyond rounding is a change."""

FIRST_OUTCOME = 2
"""From this place on (generated, finished) a compared counter is outcome as well as work."""


def outcome_total(sample: Sample) -> float:
    """Generated tokens and finished requests of a sample together; what is not told adds nothing."""
    return (sample.generated or 0.0) + (sample.finished or 0.0)


def skipped(engines: tuple[Engine, ...]) -> tuple[Engine, ...]:
    """The engines across a reading that could not be read: nothing moved that we know of, no clock is touched."""
    if not any(e.moved or e.produced for e in engines):
        return engines
    return tuple(replace(e, moved=False, produced=False) for e in engines)


def observe_engines(memory: Memory, reading: Reading) -> tuple[Engine, ...]:
    """Each engine of a readable reading, compared with what is known of it."""
    known = {e.sample.engine: e for e in memory.engines}
    out = memory.asking.question if memory.asking.answer is None else None
    return tuple(
        _observe_engine(
            known.get(sample.engine), sample, reading.ended, out is not None and out.engine in (None, sample.engine)
        )
        for sample in reading.engines
    )


def _observe_engine(before: Engine | None, sample: Sample, at: float, asked: bool) -> Engine:
    """One engine's comparison. `asked`: a question of ours to it is out."""
    if before is None:
        requests = _requests(sample, 0.0)
        return Engine(sample, at, requests=requests, lacking=_lacking(sample, requests))
    seen = min(max(_total(sample) - before.users, 0.0), before.ours) if before.ours else 0.0
    requests = _requests(sample, seen)
    change = _compare(before.sample, sample, before.own)
    lacking = _lacking(sample, requests)
    if change is None:
        return Engine(sample, at, requests=requests, lacking=lacking, ours=before.ours, users=before.users)
    moved, produced, booked, own = change
    ours = before.ours if asked else 0 if moved else int(seen)
    base_lacking = before.sample.missing if before.lacking else ()
    if lacking and not base_lacking and not moved:  # as good as unreadable: the last whole sample stays the base
        return replace(before, moved=False, produced=False, lacking=lacking)
    lacking = lacking or base_lacking
    stands = bool(requests) and bool(before.requests) and not moved and not lacking
    return Engine(
        sample,
        at,
        requests=requests,
        first=False,
        lacking=lacking,
        moved=moved,
        produced=produced,
        booked_at=at if booked else before.booked_at,
        moved_at=at if moved else before.moved_at,
        barren_since=_barren(before, requests, moved, produced, at),
        flat=before.flat + 1 if stands else 0,
        flat_since=(before.flat_since if before.flat else before.at) if stands else None,
        vetoed=before.vetoed and stands,
        own=own,
        ours=ours,
        users=before.users,
        failures=0 if moved else before.failures,
        failing_since=None if moved else before.failing_since,
        slack=before.slack if stands or (before.failing_since is not None and not moved) else 0.0,
    )


def _compare(before: Sample, now: Sample, own: Own | None) -> tuple[bool, bool, bool, Own | None] | None:
    """Whether work moved, outcome moved, and anything was booked at all (ours included), and what is left of ours.

    None where there is nothing to compare: no signal told in both, or a counter that went down in one life.
    """
    told = moved = produced = booked = False
    left = [own.steps, own.prompt, own.generated, own.finished] if own is not None else [0.0, 0.0, 0.0, 0.0]
    pairs = (
        (before.steps, now.steps),
        (before.prompt, now.prompt),
        (before.generated, now.generated),
        (before.finished, now.finished),
    )
    for i, (old, new) in enumerate(pairs):
        if old is None or new is None:
            continue
        told = True
        if old == new:
            continue
        change = new - old
        if change < 0:
            return None
        booked = True
        if left[i]:
            ours = min(change, left[i])
            left[i] -= ours
            change -= ours
        if change > KV_CHANGE:
            moved = True
            produced = produced or i >= FIRST_OUTCOME
    if before.kv is not None and now.kv is not None:
        told = True
        # Our own answered question took and gave back cache blocks: across it, KV usage tells nothing of the users'.
        moved = moved or (own is None and abs(now.kv - before.kv) > KV_CHANGE)
    if not told:
        return None
    readings = own.readings - 1 if own is not None else 0
    return moved, produced, booked, Own(left[0], left[1], left[2], left[3], readings) if readings > 0 else None


def _total(sample: Sample) -> float:
    return (sample.running or 0.0) + (sample.waiting or 0.0)


def _requests(sample: Sample, ours: float) -> float | None:
    """Users' requests in an engine, never fewer than none, whatever a gauge that miscounts may say.

    Gauges that are absent while all counters are at zero count as none.
    """
    total = max(_total(sample) - ours, 0.0)
    if total > 0 or (sample.running is not None and sample.waiting is not None):
        return total
    counters = (sample.steps, sample.prompt, sample.generated, sample.finished)
    if sample.running is None and sample.waiting is None and not any(counters):
        return 0.0
    return None


def _lacking(sample: Sample, requests: float | None) -> tuple[str, ...]:
    """The signals without which an engine that has requests, or may have, cannot be judged."""
    if requests is None:
        return sample.missing or ("running and waiting requests",)
    return sample.missing if requests else ()


def _barren(before: Engine, requests: float | None, moved: bool, produced: bool, at: float) -> float | None:
    """Since when an engine with requests works without an outcome."""
    if produced or not requests:
        return None
    if before.barren_since is not None:
        return before.barren_since
    return at if moved else None
