"""Runners for what blocks: one thread of its own, or none at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import outcome
import trio

from stellwerk.errors import InvariantBroken
from stellwerk.system.clock import is_virtual_time

__all__ = ["InlineRunner", "OneThread"]

T = TypeVar("T")

_Job = tuple[Callable[[], object], Callable[["outcome.Outcome[Any]"], None]]


class OneThread:
    """A thread that does one job after the other, in the order in which they were handed in.

    A job is never abandoned: a task that is cancelled while it waits gets its cancellation after the job's end.
    Not for virtual time: a clock that jumps when all tasks wait would jump while the thread works.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"OneThread({self._name!r}, {self._jobs.qsize()} jobs wait)"

    async def run_sync(self, function: Callable[[], T]) -> T:
        """:raises InvariantBroken: trio's clock is not the real one."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if is_virtual_time():
            raise InvariantBroken(
                f"thread {self._name} cannot be used under {type(trio.lowlevel.current_clock()).__name__}: the clock "
                "would move on while the thread works; use InlineRunner, or let stellwerk.open_engine choose"
            )
        if self._is_closed:
            raise trio.ClosedResourceError(f"thread {self._name} is closed")
        self._start()
        task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()

        def deliver(result: outcome.Outcome[Any]) -> None:
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)

        self._jobs.put((function, deliver))
        result: T = await trio.lowlevel.wait_task_rescheduled(_refuse_to_abort)
        return result

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: an interpreter that ends on an error must not hang on a thread that nobody closed.
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, deliver = job
            deliver(outcome.capture(function))
            del job, function, deliver

    def close(self) -> None:
        """Let the jobs that wait be done, then end the thread."""
        self._is_closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None


def _refuse_to_abort(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class InlineRunner:
    """Runs the function at once in the caller's thread: for virtual time, in which no thread may work."""

    async def run_sync(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return function()
