"""Real workers in the process of a test, connected whenever the time does not make a leap."""

from __future__ import annotations

import trio.testing

from stellwerk.app.engine import Engine
from stellwerk.errors import Conflict, StellwerkError
from stellwerk.worker import Worker

__all__ = ["HandlerWorkers"]


class HandlerWorkers:
    """A worker that is connected while the clock leaps over days would count as lost: it is stopped before (unless its
    handlers are at work, then there are no leaps) and started again afterwards."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._workers: list[Worker] = []
        self._running = False

    @property
    def topics(self) -> list[str]:
        return [topic for worker in self._workers for topic in worker.topics]

    @property
    def are_busy(self) -> bool:
        return any(worker.health().active_task_count for worker in self._workers)

    def new(self, *topics: str) -> Worker:
        """:raises Conflict: one of the topics has a handler already."""
        for topic in topics:
            if topic in self.topics:
                raise Conflict(f'topic "{topic}" has a handler already')
        worker = self._engine.worker(worker_id=f"process-test {' '.join(topics)}")
        self._workers.append(worker)
        self._running = False
        return worker

    async def start(self) -> None:
        if self._running:
            return
        for worker in self._workers:
            if not worker.health().is_polling_active:
                await self._engine.start_worker(worker)
        self._running = True

    async def stop(self) -> None:
        """They hand back what they have not begun, and say goodbye."""
        if not self._running:
            return
        self._running = False
        for worker in self._workers:
            worker.stop()
        await trio.testing.wait_all_tasks_blocked()
        if any(worker.health().is_polling_active for worker in self._workers):
            raise StellwerkError("a worker did not stop by itself")
