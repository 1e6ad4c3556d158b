"""Plays a scenario in virtual time through the real watch: its polls, reader, judge and recovery."""

from __future__ import annotations

import asyncio

from factory_watchdog.config import load, schema
from factory_watchdog.ports import Host, World
from factory_watchdog.simulate import clock, expect
from factory_watchdog.simulate.manager import SimManager
from factory_watchdog.simulate.played import Collector, Played, watch_for
from factory_watchdog.simulate.script import Scenario, Timeline
from factory_watchdog.simulate.server import Server
from factory_watchdog.simulate.transport import SimTransport
from factory_watchdog.watcher import watcher_of
from factory_watchdog.world.http import Http


def play(scenario: Scenario) -> Played:
    """Play a scenario to its end and hold it against its expectations. Raises ConfigError for its [backend] table."""
    config = load.from_table(scenario.backend, file=f"scenario {scenario.name}")
    played = Played(scenario.name)
    clock.run(lambda: _watch(scenario, config, played))
    states = [(change.t, change.state) for change in played.changes]
    alerts = [raised.alert for raised in played.alerts]
    result = expect.Result(states, played.restarts, played.questions, alerts)
    played.failed = [*played.faults, *expect.failed(scenario, result)]
    return played


async def _watch(scenario: Scenario, config: schema.Backend, played: Played) -> None:
    loop = asyncio.get_running_loop()
    now = clock.ScriptedClock(Timeline(scenario.phases), loop.time)
    server = Server(scenario, now.boottime)
    world = World(
        http=Http(SimTransport(server)),
        units=SimManager(server),
        clock=now,
        flag=lambda: server.flag(config.busy_flag_ttl),
        maintenance=server.maintenance,
    )
    watcher = watcher_of(config, schema.Daemon(), world, Host(), Collector(played, now))
    await watch_for(watcher, sum(phase.length for phase in scenario.phases))
