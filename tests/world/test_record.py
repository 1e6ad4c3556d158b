"""Recording a real HTTP server, and playing what was recorded."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import time
from pathlib import Path

from factory_watchdog.cli.app import run_command_line
from factory_watchdog.record import record
from factory_watchdog.simulate import scenario
from factory_watchdog.simulate.real import RealServer, clock
from factory_watchdog.simulate.server import Server
from factory_watchdog.world.processes import described, start_ticks

BUSY = 'name = "busy"\n[[phase]]\nfor = "1h"\nrunning = 2\nsteps = 50.0\ntokens = 100.0\nkv = 0.5\n'


async def recorded(file: Path, **options: object) -> int:
    server = Server(scenario.loads(BUSY), clock(time.monotonic))
    async with RealServer(server) as real:
        return await record(real.url + "/", file, every=0.1, seconds=0.35, **options)  # type: ignore[arg-type]


def rows(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def test_rows_have_whole_pages_and_play_again(tmp_path: Path) -> None:
    file = tmp_path / "busy.jsonl.gz"
    count = asyncio.run(recorded(file, pause=True))
    written = rows(file)
    assert len(written) == count >= 3
    for row in written:
        assert set(row) == {"t", "wall", "health", "metrics", "models", "paused", "sleeping"}
        assert row["metrics"]["status"] == 200  # type: ignore[index]
        assert "vllm:num_requests_running" in row["metrics"]["body"]  # type: ignore[index]
    times = [row["t"] for row in written]
    assert times == sorted(times)
    assert run_command_line(["replay", str(file), "--set", "interval=250ms", "--set", "kind=vllm"]) == 0


def test_what_does_not_answer_is_told_by_its_kind(tmp_path: Path) -> None:
    file = tmp_path / "gone.jsonl.gz"
    asyncio.run(record("http://127.0.0.1:1", file, every=0.1, seconds=0.15))
    first = rows(file)[0]
    assert first["health"]["error"] == "refused"  # type: ignore[index]
    assert "status" not in first["health"]  # type: ignore[operator]


def test_processes_are_described_without_their_command_lines(tmp_path: Path) -> None:
    own = (os.getpid(), start_ticks(os.getpid()) or 0)
    asyncio.run(recorded(tmp_path / "busy.jsonl.gz", processes=lambda: [own]))
    (told,) = rows(tmp_path / "busy.jsonl.gz")[0]["procs"]  # type: ignore[misc]
    assert set(told) == {"pid", "ppid", "role", "state", "cpu", "start", "threads", "resident"}
    assert (told["pid"], told["start"], told["role"]) == (*own, "child")
    assert described([(own[0], own[1] + 1)]) == []


def test_a_wrong_duration_is_told(tmp_path: Path) -> None:
    assert run_command_line(["record", "http://127.0.0.1:1", str(tmp_path / "x"), "--every", "0s"]) != 0
