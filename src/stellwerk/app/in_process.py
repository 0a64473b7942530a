"""Workers in the engine's own process: ordinary ones, whose connection is no socket."""

from __future__ import annotations

from typing import TypedDict, Unpack

import trio

from stellwerk.errors import Conflict
from stellwerk.system.clock import is_virtual_time
from stellwerk.system.memory_streams import MemoryListener
from stellwerk.system.threads import InlineRunner
from stellwerk.worker import Worker
from stellwerk.worker.options import Transport
from stellwerk.worker.reports import Logger
from stellwerk.worker.runtime import TokenSource
from stellwerk.worker.system import Dial, Endpoint, Threads

__all__ = ["InProcessWorkers", "WorkerOptions"]

_URL = "http://in-process"
"""Goes nowhere; it stands in logs."""


class WorkerOptions(TypedDict, total=False):
    """Those of `Worker` that make sense within a process."""

    worker_id: str | None
    max_tasks: int
    lock_duration: float
    token: TokenSource
    reconnect_seconds_max: float
    transport: Transport
    idle_timeout: float
    long_polling_timeout: float
    logger: Logger | None
    threads: Threads | None


class _InProcessWorker(Worker):
    def __init__(self, engine: InProcessWorkers, url: str, *, dial: Dial, **options: Unpack[WorkerOptions]) -> None:
        super().__init__(url, dial=dial, **options)
        self.engine = engine


class InProcessWorkers:
    """Makes workers, and runs those that end with the engine."""

    def __init__(self, listener: MemoryListener, nursery: trio.Nursery) -> None:
        self._listener = listener
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._endpoint = Endpoint.from_url(_URL)
        self._running: dict[Worker, trio.Event] = {}

    def __repr__(self) -> str:
        return f"<InProcessWorkers {len(self._running)} running>"

    def make(self, **options: Unpack[WorkerOptions]) -> Worker:
        """See `stellwerk.app.engine.Engine.worker`."""
        if is_virtual_time() and options.get("threads") is None:
            options["threads"] = InlineRunner()
        return _InProcessWorker(self, _URL, dial=self._dial, **options)

    async def _dial(self, endpoint: Endpoint) -> trio.abc.Stream:
        if endpoint != self._endpoint:
            raise Conflict("a worker that an engine made works for that engine; make one with Worker(url) instead")
        if trio.lowlevel.current_trio_token() is not self._token:
            raise Conflict("a worker that an engine made runs in the engine's own trio run: use worker.serve()")
        return await self._listener.connect()

    async def start(self, worker: Worker) -> None:
        if isinstance(worker, _InProcessWorker) and worker.engine is not self:
            raise Conflict("the worker was made by another engine and works for that one: start it there")
        await self._nursery.start(self._run, worker)

    async def _run(self, worker: Worker, task_status: trio.TaskStatus[None]) -> None:
        if worker in self._running:
            raise Conflict("the worker runs already")
        ended = self._running[worker] = trio.Event()
        try:
            await worker.serve(task_status=task_status)
        finally:
            del self._running[worker]
            ended.set()

    async def stop(self, *, grace: float) -> None:
        """Stop those that run and wait for their ends, see `Worker.stop`."""
        while self._running:
            for worker in self._running:  # again and again: a handler may have started another one
                worker.stop(grace=grace)
            await next(iter(self._running.values())).wait()
