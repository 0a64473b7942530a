"""A worker process that goes to another engine when its own is gone.

Run as ``python roaming_worker.py LEDGER SEED LOCK_SECONDS TASKS_MAX URL URL…``; SIGTERM ends it. It works on the topics
first, second and third: each task takes a random moment and gives a random number.

The ledger gets a line (JSON) when a result is handed in (``done``: task, fence, topic, instance, value), when the
engine has acknowledged it (``acknowledged``: task, fence), when a lease was lost before (``lost``), and when it has
dialled an engine (``connected``: url).
"""

from __future__ import annotations

import json
import logging
import random
import sys
from pathlib import Path
from typing import Any, TextIO

import trio

from stellwerk.worker import Task, Worker
from stellwerk.worker.system import Endpoint, network_dial

TOPICS = ("first", "second", "third")
TASK_SECONDS_MAX = 0.06


class Roaming:
    """Dials another engine than the last time: that one is gone, or may accept connections and do nothing with them."""

    def __init__(self, urls: list[str], first: int, ledger: TextIO) -> None:
        self._urls = urls
        self._current = first
        self._ledger = ledger
        self._dial = network_dial()

    async def __call__(self, endpoint: Endpoint) -> trio.abc.Stream:
        for _ in self._urls:
            url = self._urls[self._current % len(self._urls)]
            self._current += 1
            try:
                stream = await self._dial(Endpoint.from_url(url))
            except OSError:
                continue
            _write(self._ledger, event="connected", url=url)
            return stream
        raise ConnectionRefusedError(f"no engine answers, and {endpoint} is not asked")


class Handlers:
    def __init__(self, seed: int, ledger: TextIO) -> None:
        self._random = random.Random(seed)
        self._ledger = ledger
        self._fences: dict[str, int] = {}
        """Under which fence the latest result of each task was handed in."""

    def register(self, worker: Worker) -> None:
        for topic in TOPICS:
            worker.task(topic)(self._handler(topic))
        worker.on_heartbeat(self._heard)
        worker.on_error(self._failed)

    def _handler(self, topic: str) -> Any:
        async def handle(payload: dict[str, Any], task: Task) -> dict[str, int]:
            await trio.sleep(self._random.uniform(0, TASK_SECONDS_MAX))
            value = self._random.getrandbits(48)
            self._fences[task.id] = task.fence
            self._note("done", task, value=value)
            return {topic: value}

        return handle

    def _heard(self, operation: str, task_id: str | None) -> None:
        if operation == "finishExternalTask" and task_id is not None:
            _write(self._ledger, event="acknowledged", task=task_id, fence=self._fences[task_id])

    def _failed(self, kind: str, error: Exception, task: Task | None) -> None:
        if task is not None:
            self._note("lost", task, kind=str(kind), reason=str(error))

    def _note(self, event: str, task: Task, **more: object) -> None:
        own = {"task": task.id, "fence": task.fence, "topic": task.topic, "instance": task.process_instance_id}
        _write(self._ledger, event=event, **own, **more)


def _write(ledger: TextIO, **line: object) -> None:
    ledger.write(json.dumps(line) + "\n")


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    ledger_file, seed, lock_seconds, tasks_max, *urls = sys.argv[1:]
    with Path(ledger_file).open("a", buffering=1) as ledger:
        worker = Worker(
            urls[0],
            max_tasks=int(tasks_max),
            lock_duration=float(lock_seconds),
            reconnect_seconds_max=0.5,
            dial=Roaming(urls, int(seed), ledger),
        )
        Handlers(int(seed), ledger).register(worker)
        worker.run()


if __name__ == "__main__":
    main()
