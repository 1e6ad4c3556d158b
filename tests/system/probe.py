"""A service manager to talk to from outside the box: reads JSON lines [method, argument ...], answers each with one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Any

from factory_watchdog.core.model import UnitFacts
from factory_watchdog.world.systemd import Manager


def _plain(answer: Any) -> Any:
    return dataclasses.asdict(answer) if isinstance(answer, UnitFacts) else answer


async def main() -> None:
    manager = Manager(sys.argv[1])  # type: ignore[arg-type]
    while line := await asyncio.to_thread(sys.stdin.readline):
        method, *arguments = json.loads(line)
        print(json.dumps(_plain(await getattr(manager, method)(*arguments))), flush=True)
    await manager.close()


asyncio.run(main())
