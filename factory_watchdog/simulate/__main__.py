"""A simulated model server as a process of its own: `python -m factory_watchdog.simulate --port 8000`.

It runs as a systemd unit, of type notify too: it refuses connections for --load-time, then says READY=1. POST /_sim
with a JSON object changes what it shows at once, by the keys of a phase in a scenario file: {"running": 4, "steps": 0,
"question": "timeout"}; {"crash": true} ends it. Ends on SIGTERM, unless --ignore-term.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from factory_watchdog.config import durations
from factory_watchdog.simulate import scenario as scenarios
from factory_watchdog.simulate.real import RealServer, clock
from factory_watchdog.simulate.script import Engine, Phase, Scenario
from factory_watchdog.simulate.server import Server


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. Gives 2 where the scenario file is wrong, 1 where the port cannot be taken."""
    options = _options(arguments)
    try:
        asyncio.run(_serve(options, _scenario(options)))
    except scenarios.ScenarioError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"cannot serve on port {options.port}: {error}\n")
        return 1
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    cli = argparse.ArgumentParser(prog="python -m factory_watchdog.simulate", description=__doc__)
    cli.add_argument("--port", type=int, required=True)
    cli.add_argument("--control-port", type=int, help="takes POST /_sim too, also while the port refuses")
    cli.add_argument("--scenario", metavar="FILE", help="plays this scenario from the start on; else an idle server")
    cli.add_argument(
        "--load-time", type=_duration, metavar="DURATION", default=0.0, help="refuses for so long at first"
    )
    cli.add_argument("--engines", type=int, default=1, help="data-parallel engines, without a scenario")
    cli.add_argument("--ignore-term", action="store_true", help="does not end on SIGTERM")
    return cli.parse_args(arguments)


def _duration(text: str) -> float:
    try:
        return durations.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _scenario(options: argparse.Namespace) -> Scenario:
    if options.scenario:
        scenario = scenarios.load(options.scenario)
    else:
        engines = (Engine(),) * options.engines
        scenario = Scenario("interactive", (Phase(length=math.inf, engines=engines),))
        scenario = dataclasses.replace(scenario, server=dataclasses.replace(scenario.server, engines=options.engines))
    return dataclasses.replace(
        scenario, server=dataclasses.replace(scenario.server, load_time=options.load_time, start_time=True)
    )


async def _serve(options: argparse.Namespace, scenario: Scenario) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if options.ignore_term else ended.set)
    loop.add_signal_handler(signal.SIGINT, ended.set)
    server = Server(scenario, clock(time.monotonic), epoch=time.time(), loading=True)
    async with RealServer(server, options.port, options.control_port):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), options.load_time)
        if not ended.is_set():
            _notify("READY=1")
            await ended.wait()


def _notify(message: str) -> None:
    """Tell the service manager, where there is one; see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(message.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


if __name__ == "__main__":
    sys.exit(main())
