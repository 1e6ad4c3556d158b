"""Virtual time: an event loop that jumps to the next thing to happen, and the clocks of a host that is scripted."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

from factory_watchdog.simulate.script import Timeline
from factory_watchdog.simulate.server import EPOCH

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PLACES = 9  # decimals that virtual time is kept to, so that sums of intervals stay the numbers that people expect


class NothingToDoError(RuntimeError):
    """Every task waits for something that no timer will bring about."""


class _Jump(selectors.SelectSelector):
    """A selector that does not wait: it lets the time pass that it was told to wait for."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise NothingToDoError("all tasks wait, and no timer is set")
        if timeout > 0:
            self._jump(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is virtual and begins at 0; deterministic, and as fast as its tasks can run.

    What is given to an executor runs at once and in the loop's own thread, since no time would pass for another one.
    """

    def __init__(self) -> None:
        self._virtual = 0.0
        super().__init__(_Jump(self._pass))

    def time(self) -> float:
        return self._virtual

    def _pass(self, seconds: float) -> None:
        self._virtual = round(self._virtual + seconds, _PLACES)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` in virtual time from 0 on, and give its result. Raises NothingToDoError where it would never end."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


class ScriptedClock:
    """The clocks of a host whose suspends and wall clock steps are those of a `timeline`.

    `monotonic` is what timers run on, usually the loop's time. At the start of a phase its suspend is already over.
    """

    def __init__(self, timeline: Timeline, monotonic: Callable[[], float], epoch: float = EPOCH) -> None:
        self._timeline = timeline
        self._monotonic = monotonic
        self._epoch = epoch

    def boottime(self) -> float:
        """Seconds from the start, suspends included: the `t` of scenarios."""
        return self._timeline.boottime(self._monotonic())

    def wall(self) -> float:
        now = self.boottime()
        return self._epoch + now + self._timeline.span(now).step
