"""The engine's process: what ``stellwerk serve`` runs, and a loader beside it that starts instances.

Commands (lines of JSON on standard input): ``load`` starts instances, ``cost`` gives the processor time so far,
``single`` starts one instance after the other and ``paced`` so many a second, ``profile`` and ``profiled`` say where
processor time goes between them, ``mark`` and ``replay`` belong to ``--record``. It ends with its input.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio
from tests.benchmarks.models import models
from tests.benchmarks.replay import Recording, replay
from tests.benchmarks.sampling import Sampler

from stellwerk.actors.node import Node
from stellwerk.app import AppConfig, serve_engine
from stellwerk.app.databases import database_of
from stellwerk.system.logging import LogLevel
from stellwerk.system.memory import collect_seldom

__all__: list[str] = []

_STARTS_AT_ONCE = 200
_END_SECONDS_MAX = 60.0

Command = Callable[..., Awaitable[object]]


@attrs.define(eq=False)
class _Engine:
    node: Node
    config: AppConfig
    recording: Recording | None
    sampler: Sampler | None = None

    async def load(self, process: str, count: int) -> Mapping[str, object]:
        """Start `count` instances, many at once: each answer comes after its commit."""
        began, cpu = time.perf_counter(), time.process_time()
        left = iter(range(count))

        async def start_some() -> None:
            for number in left:
                await self.node.start_instance(process, {"order": number})

        async with trio.open_nursery() as nursery:
            for _ in range(_STARTS_AT_ONCE):
                nursery.start_soon(start_some)
        return {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}

    async def single(self, process: str, count: int) -> Mapping[str, object]:
        """One instance at a time, each to its end. Monotonic instants: when its start was asked for and answered."""
        starts = []
        for number in range(count):
            asked = time.monotonic()
            instance_id = await self.node.start_instance(process, {"order": number})
            starts.append((instance_id, asked, time.monotonic()))
            ended = await self.node.wait_for_end(instance_id, timeout_seconds=_END_SECONDS_MAX)
            assert ended.status == "COMPLETED", ended
        return {"starts": starts}

    async def paced(self, process: str, count: int, rate: float) -> Mapping[str, object]:
        """So many starts a second, whether or not the ones before have ended. Monotonic instants as of `single`."""
        starts: list[tuple[str, float, float]] = []

        async def run_one(number: int) -> None:
            asked = time.monotonic()
            instance_id = await self.node.start_instance(process, {"order": number})
            starts.append((instance_id, asked, time.monotonic()))
            ended = await self.node.wait_for_end(instance_id, timeout_seconds=_END_SECONDS_MAX)
            assert ended.status == "COMPLETED", ended

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(count):
                await trio.sleep_until(began + number / rate)
                nursery.start_soon(run_one, number)
        return {"starts": starts}

    async def cost(self) -> Mapping[str, object]:
        commits = self.node.committer.statistics
        return {
            "cpu_seconds": time.process_time(),
            "transactions": commits.transactions,
            "operations": commits.operations,
        }

    async def profile(self) -> Mapping[str, object]:
        self.sampler = Sampler()
        self.sampler.start()
        return {}

    async def profiled(self) -> Mapping[str, object]:
        assert self.sampler is not None
        return self.sampler.stop()

    async def mark(self) -> Mapping[str, object]:
        assert self.recording is not None
        self.recording.mark()
        return {}

    async def replay(self, dsn: str | None = None, server_pid: int | None = None) -> Mapping[str, object]:
        """:param dsn: of a fresh database, on PostgreSQL."""
        assert self.recording is not None
        config = self.config if dsn is None else attrs.evolve(self.config, db=database_of(dsn))
        return attrs.asdict(await replay(self.recording, config, server_pid))


async def _answer_commands(commands: Mapping[str, Command]) -> None:
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        command: dict[str, Any] = json.loads(line)
        _say(await commands[command.pop("do")](**command))


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


async def _run(config: AppConfig, *, record: bool, deployed: bool) -> None:
    async with serve_engine(config) as served:
        recording = Recording() if record else None
        if recording is not None:
            recording.listen_to(served.node.ports.store)
        if not deployed:
            await served.node.deploy(list(models().items()))
        engine = _Engine(served.node, config, recording)
        _say({"url": served.url})
        commands: tuple[Command, ...] = (
            engine.load,
            engine.single,
            engine.paced,
            engine.cost,
            engine.profile,
            engine.profiled,
            engine.mark,
            engine.replay,
        )
        await _answer_commands({command.__name__: command for command in commands})


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--db", required=True)
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--synchronous", choices=["FULL", "NORMAL"], default="FULL")
    arguments.add_argument("--record", action="store_true")
    arguments.add_argument("--deployed", action="store_true", help="the database has the processes already")
    options = arguments.parse_args()
    config = AppConfig(
        db=database_of(options.db),
        synchronous=options.synchronous,
        port=options.port,
        log_level=LogLevel.WARNING,
    )

    async def run() -> None:
        await _run(config, record=options.record, deployed=options.deployed)

    collect_seldom()  # as the command does
    trio.run(run)


if __name__ == "__main__":
    main()
