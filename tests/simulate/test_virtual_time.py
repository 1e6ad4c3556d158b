"""Virtual time: the loop that jumps, the scripted clocks, and the server behind httpx in it."""

import asyncio
import time

import httpx
import pytest

from factory_watchdog.simulate import clock, scenario
from factory_watchdog.simulate.script import Timeline
from factory_watchdog.simulate.server import EPOCH, Server
from factory_watchdog.simulate.transport import SimTransport


def test_a_day_passes_at_once_and_to_the_second() -> None:
    async def main() -> list[float]:
        loop, seen = asyncio.get_running_loop(), []
        for _ in range(8640):
            await asyncio.sleep(10.0)
            seen.append(loop.time())
        return seen

    began = time.perf_counter()
    assert clock.run(main) == [10.0 * tick for tick in range(1, 8641)]
    assert time.perf_counter() - began < 10.0


def test_times_add_up_without_rounding() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time()

    assert clock.run(main) == 100.0


def test_deadlines_are_virtual() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600.0):
                await asyncio.sleep(7200.0)
        return asyncio.get_running_loop().time()

    assert clock.run(main) == 3600.0


def test_what_runs_in_another_thread_elsewhere_runs_at_once() -> None:
    def fail() -> None:
        raise KeyError("x")

    async def main() -> float:
        assert await asyncio.to_thread(lambda: 3) == 3
        with pytest.raises(KeyError):
            await asyncio.to_thread(fail)
        return asyncio.get_running_loop().time()

    assert clock.run(main) == 0.0


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(clock.NothingToDoError):
        clock.run(main)


def test_a_suspend_is_a_jump_of_boot_time_and_a_step_one_of_the_wall_clock() -> None:
    text = '[[phase]]\nfor = "1m"\n[[phase]]\nfor = "1m"\nsuspend = "1h"\nclock_step = "-2h"'

    async def main() -> list[tuple[float, float]]:
        loop = asyncio.get_running_loop()
        scripted = clock.ScriptedClock(Timeline(scenario.loads(text).phases), loop.time)
        seen = []
        for _ in range(4):
            seen.append((scripted.boottime(), scripted.wall() - EPOCH))
            await asyncio.sleep(30.0)
        return seen

    assert clock.run(main) == [(0.0, 0.0), (30.0, 30.0), (3660.0, -3540.0), (3690.0, -3510.0)]


def fetch(phase: str, path: str, deadline: float = 30.0, method: str = "GET") -> tuple[object, float, float]:
    """What comes of a request, when, and how many requests the server has in it afterwards."""

    async def main() -> tuple[object, float, float]:
        loop = asyncio.get_running_loop()
        server = Server(scenario.loads(f'[[phase]]\nfor = "1h"\n{phase}'), loop.time)
        async with httpx.AsyncClient(transport=SimTransport(server), timeout=None) as client:
            try:
                async with asyncio.timeout(deadline):
                    response = await client.request(method, f"http://simulated{path}", content=b"{}")
                    came: object = response.status_code
            except (httpx.TransportError, TimeoutError) as error:
                came = type(error)
        return came, loop.time(), server.numbers()[0].running

    return clock.run(main)


@pytest.mark.parametrize(
    ("phase", "comes_to"),
    [
        ("", (200, 0.0, 0.0)),
        ('health = "status 503"', (503, 0.0, 0.0)),
        ('health = "slow 8s"', (200, 8.0, 0.0)),
        ('health = "refused"', (httpx.ConnectError, 0.0, 0.0)),
        ('health = "reset"', (httpx.ReadError, 0.0, 0.0)),
        ('health = "timeout"', (TimeoutError, 30.0, 0.0)),
    ],
)
def test_requests_in_virtual_time(phase: str, comes_to: tuple[object, float, float]) -> None:
    assert fetch(phase, "/health") == comes_to


def test_questions_in_virtual_time() -> None:
    post = "/v1/completions"
    assert fetch('question = "ok 2s"', post, method="POST") == (200, 2.0, 0.0)
    assert fetch('question = "timeout"', post, method="POST") == (TimeoutError, 30.0, 0.0)
    assert fetch('question = "ok 40s"', post, method="POST") == (TimeoutError, 30.0, 0.0)
