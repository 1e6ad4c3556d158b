"""`make year`: a year of four backends, week by week, held against the law; exits 1 where it does not hold.

Each week is played on its own, from the seed and its number: `--seed S --week N` plays one of them again.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from factory_watchdog.config.durations import show
from year.hangs import HANGS
from year.host import Host
from year.law import Law, Tally, WrongError
from year.spells import SPELLS
from year.weather import DAY, MACHINES, Machine, Weather

EPISODES = SPELLS + HANGS
WEEK = 7
SUSPEND_CHANCE = 0.3
LONGEST_SUSPEND = 8 * 3600.0


@dataclass(frozen=True)
class Week:
    """What came of a week: what was counted, how many polls, and in words what was wrong."""

    number: int
    days: int
    tally: Tally
    polls: int
    wrong: str = ""


def play(seed: int, number: int, days: int = WEEK, machines: Sequence[Machine] = MACHINES) -> Week:
    """Play week `number` of the year of `seed`."""
    rng = random.Random(f"{seed}/{number}")
    suspends = tuple(
        round(rng.uniform(40.0, LONGEST_SUSPEND), 3) if day and rng.random() < SUSPEND_CHANCE else 0.0
        for day in range(days)
    )
    weathers = [Weather(machine, random.Random(rng.random()), suspends, EPISODES).draw() for machine in machines]
    law = Law()
    host = Host(weathers, law, random.Random(rng.random()))
    wrong = ""
    try:
        host.run()
    except WrongError as error:
        wrong = f"week {number}, at {show(host.now)} of it: {error}\n" + "\n".join(law.verdicts())
    return Week(number, days, law.tally, host.polls, wrong)


def weeks(days: int) -> list[tuple[int, int]]:
    """Number and days of each week that so many days have."""
    return [(number, min(WEEK, days - start)) for number, start in enumerate(range(0, days, WEEK))]


def table(tally: Tally) -> Iterable[str]:
    """The detection times by kind of hang, and what was counted."""
    yield f"{'kind of hang, seconds to the restart':<38}{'count':>7}{'median':>8}{'p95':>8}{'max':>8}"
    late = [seconds for times in tally.late.values() for seconds in times]
    for kind, times in [*sorted(tally.found.items()), ("any, after a hold or a break of ours", late)]:
        if times:
            p95 = sorted(times)[int(0.95 * (len(times) - 1))]
            yield f"{kind:<38}{len(times):>7}{statistics.median(times):>8.0f}{p95:>8.0f}{max(times):>8.0f}"
    yield from (f"{what:<48}{count:>13,}" for what, count in sorted(tally.counts.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Play so many days, and tell what came of it."""
    cli = argparse.ArgumentParser(prog="make year", description=__doc__)
    cli.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    cli.add_argument("--days", type=int, default=365)
    cli.add_argument("--week", type=int, help="only this one, numbered from 0")
    options = cli.parse_args(arguments)
    print(f"seed {options.seed}, {options.days} days of {len(MACHINES)} backends", flush=True)
    chosen = [week for week in weeks(options.days) if options.week in (None, week[0])]
    began, total, polls, days, wrong = time.monotonic(), Tally(), 0, 0, 0
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(chosen))) as pool:
        for week in pool.map(play, *zip(*((options.seed, *week) for week in chosen), strict=True)):
            total.add(week.tally)
            polls, days, wrong = polls + week.polls, days + week.days, wrong + bool(week.wrong)
            if week.wrong:
                print(f"WRONG, seed {options.seed}: {week.wrong}", flush=True)
    print("\n".join(table(total)))
    hours = days * DAY * len(MACHINES) / 3600
    print(f"{hours:,.0f} backend hours, {polls:,} polls in {time.monotonic() - began:.0f} s; seed {options.seed}")
    print(
        f"{wrong} weeks were wrong" if wrong else "no false restart, every hang found in time, nothing asked that works"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
