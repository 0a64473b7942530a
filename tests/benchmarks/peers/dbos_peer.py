"""DBOS Transact: a workflow without steps, put into a queue, with threads as many as it makes itself."""

from __future__ import annotations

import asyncio
import sys
import time
from importlib.metadata import version

import psycopg
from dbos import DBOS
from tests.benchmarks.peers.queue_contest import Tally, compete, until

__all__: list[str] = []

_POLL_SECONDS = 0.1
"""Ten times as often as by default."""
_NOTICED_SECONDS = 2
"""New queues are looked for once a second."""
_SENDERS = 16
_LEFT = "SELECT count(*) FROM dbos.workflow_status WHERE status <> 'SUCCESS'"


class _Queue:
    def __init__(self, url: str, tally: Tally) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._tally = tally
        loop = asyncio.get_running_loop()

        @DBOS.workflow(name="noop")  # type: ignore[untyped-decorator]
        def noop(number: int) -> None:
            loop.call_soon_threadsafe(tally.handle, number, time.perf_counter())

        self._noop = noop

    async def load(self, jobs: int) -> None:
        """Into a queue that is polled already, but may run none: it takes a while until a new queue is polled."""
        await self._register("many", worker_concurrency=0)
        self._tally.begin()
        numbers = iter(range(jobs))

        async def send_some() -> None:
            for number in numbers:
                await asyncio.to_thread(DBOS.enqueue_workflow, "many", self._noop, number)

        await asyncio.gather(*(send_some() for _ in range(_SENDERS)))

    async def drain(self, jobs: int) -> None:
        handled = self._tally.expect(jobs)
        queue = await asyncio.to_thread(DBOS.retrieve_queue, "many")
        self._tally.begin()  # and not with the first handler: very many are taken before one is run
        await asyncio.to_thread(queue.set_worker_concurrency, None)
        await handled()
        await until(self._is_empty)

    async def _is_empty(self) -> bool:
        row = self._connection.execute(_LEFT).fetchone()
        assert row is not None
        return bool(row[0] == 0)

    async def _register(self, name: str, worker_concurrency: int | None = None) -> None:
        options = {"polling_interval_sec": _POLL_SECONDS, "worker_concurrency": worker_concurrency}
        await asyncio.to_thread(DBOS.register_queue, name, **options)
        await asyncio.sleep(_NOTICED_SECONDS)

    async def listen(self) -> None:
        await self._register("single")

    async def send(self, number: int) -> None:
        await asyncio.to_thread(DBOS.enqueue_workflow, "single", self._noop, number)


async def _main(url: str) -> None:
    DBOS(config={"name": "benchmark", "system_database_url": url, "log_level": "ERROR"})
    tally = Tally()
    queue = _Queue(url, tally)
    await asyncio.to_thread(DBOS.launch)
    await compete(version("dbos"), tally, queue)
    await asyncio.to_thread(DBOS.destroy)


asyncio.run(_main(sys.argv[1]))
