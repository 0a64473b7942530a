"""A worker process: several `Worker` objects with a handler that does nothing.

Waits for the line ``go``. While it works it writes how many completions were acknowledged, whenever that has changed;
its last line, when its input has ended, are its figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import attrs
import trio
from tests.benchmarks.models import TOPIC
from tests.benchmarks.sampling import Sampler

from stellwerk.worker import Task, Worker

__all__: list[str] = []

_TELL_EVERY_SECONDS = 0.01


@attrs.define(eq=False)
class _Tally:
    acknowledged: int = 0
    first_start: float | None = None
    last_acknowledgement: float = 0.0
    runs: list[tuple[str, float, float]] = attrs.field(factory=list)
    """Instance, monotonic instants of begin and return of the handler; only if asked for."""

    def heard(self, operation: str, _task_id: str | None) -> None:
        if operation == "finishExternalTask":
            self.acknowledged += 1
            self.last_acknowledgement = time.monotonic()

    def add_handler(self, worker: Worker, topic: str, *, timed: bool) -> None:
        if timed:

            @worker.task(topic)
            async def note(payload: object, task: Task) -> None:
                begin = time.monotonic()
                self.runs.append((task.process_instance_id, begin, time.monotonic()))

        else:

            @worker.task(topic)
            async def do_nothing(payload: object) -> None:
                if self.first_start is None:
                    self.first_start = time.monotonic()


async def _tell(tally: _Tally) -> None:
    told = 0
    while True:
        await trio.sleep(_TELL_EVERY_SECONDS)
        if tally.acknowledged != told:
            told = tally.acknowledged
            _say({"acknowledged": told})


async def _tell_connected(workers: list[Worker]) -> None:
    while not all(worker.health().is_connected for worker in workers):
        await trio.sleep(_TELL_EVERY_SECONDS)
    _say({"connected": True})


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


async def _run(url: str, topic: str, workers: int, max_tasks: int, *, timed: bool, sampled: bool) -> None:
    tally = _Tally()
    made = [Worker(url, max_tasks=max_tasks) for _ in range(workers)]
    for worker in made:
        tally.add_handler(worker, topic, timed=timed)
        worker.on_heartbeat(tally.heard)
    _say({"ready": True})
    if not await trio.to_thread.run_sync(sys.stdin.readline):
        return
    sampler = Sampler() if sampled else None
    if sampler is not None:
        sampler.start()
    cpu = time.process_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell, tally)
        for worker in made:
            nursery.start_soon(worker.serve)
        if timed:
            await _tell_connected(made)
        await trio.to_thread.run_sync(sys.stdin.read)
        cpu = time.process_time() - cpu
        nursery.cancel_scope.cancel()
    _say({"cpu_seconds": cpu, **attrs.asdict(tally), "profile": None if sampler is None else sampler.stop()})


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--url", required=True)
    arguments.add_argument("--topic", default=TOPIC)
    arguments.add_argument("--workers", type=int, default=4)
    arguments.add_argument("--max-tasks", type=int, default=32)
    arguments.add_argument("--timed", action="store_true", help="note when each handler begins and returns")
    arguments.add_argument("--sampled", action="store_true", help="say where processor time goes")
    options = arguments.parse_args()

    async def run() -> None:
        crew = options.workers, options.max_tasks
        await _run(options.url, options.topic, *crew, timed=options.timed, sampled=options.sampled)

    trio.run(run)


if __name__ == "__main__":
    main()
