"""procrastinate: one worker with its asyncio concurrency, woken by LISTEN/NOTIFY; tasks are deferred in batches."""

from __future__ import annotations

import asyncio
import logging
import sys
from importlib.metadata import version

import procrastinate
from tests.benchmarks.peers.queue_contest import Tally, compete, until

__all__: list[str] = []

_CONCURRENCY = 20
_LOAD_BATCH = 1000
_LEFT = "SELECT count(*) AS jobs FROM procrastinate_jobs WHERE status <> 'succeeded'"


class _Queue:
    def __init__(self, app: procrastinate.App, tally: Tally) -> None:
        self._app = app
        self._worker: asyncio.Task[None] | None = None

        @app.task(name="noop")  # type: ignore[untyped-decorator]
        async def noop(number: int) -> None:
            tally.handle(number)

        self._noop = noop
        self._expect = tally.expect

    async def load(self, jobs: int) -> None:
        for first in range(0, jobs, _LOAD_BATCH):
            numbers = range(first, min(jobs, first + _LOAD_BATCH))
            await self._noop.batch_defer_async(*({"number": number} for number in numbers))

    async def drain(self, jobs: int) -> None:
        handled = self._expect(jobs)
        await self.listen()
        await handled()
        await until(self._is_empty)

    async def _is_empty(self) -> bool:
        row = await self._app.connector.execute_query_one_async(_LEFT)
        return bool(row["jobs"] == 0)

    async def listen(self) -> None:
        if self._worker is None:
            work = self._app.run_worker_async(concurrency=_CONCURRENCY, install_signal_handlers=False)
            self._worker = asyncio.create_task(work)

    async def send(self, number: int) -> None:
        await self._noop.defer_async(number=number)

    async def stop(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)


async def _main(url: str) -> None:
    pool = {"min_size": 5, "max_size": _CONCURRENCY + 5}
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, **pool))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        tally = Tally()
        queue = _Queue(app, tally)
        await compete(version("procrastinate"), tally, queue)
        await queue.stop()


logging.disable(logging.CRITICAL)
asyncio.run(_main(sys.argv[1]))
