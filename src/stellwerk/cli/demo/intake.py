"""Orders come in, some at a time, whatever happens to the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import cattrs

from stellwerk.cli.demo.engine_api import EngineApi
from stellwerk.cli.demo.orders import PlannedOrder
from stellwerk.cli.mistakes import EngineUnreachable

__all__ = ["OrderIntake"]

CLERKS = 4
"""Threads that start instances, so that some requests are under way when the engine is killed."""


class OrderIntake:
    """A context in which the orders are started, evenly over `seconds`."""

    def __init__(
        self, plan: Sequence[PlannedOrder], make_api: Callable[[Callable[[], bool]], EngineApi], seconds: float
    ) -> None:
        self._plan = plan
        self._make_api = make_api
        self._interval = seconds / max(1, len(plan))
        self._stop = threading.Event()
        self._executor = ThreadPoolExecutor(CLERKS, thread_name_prefix="clerk")
        self._clerks: list[Future[None]] = []
        self._started = [0] * CLERKS

    @property
    def started(self) -> int:
        """Orders whose start the engine has acknowledged."""
        return sum(self._started)

    def __enter__(self) -> Self:
        begin = time.monotonic()
        self._clerks = [self._executor.submit(self._start_share, clerk, begin) for clerk in range(CLERKS)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._executor.shutdown()

    def raise_failure(self) -> None:
        """Raise what a clerk failed with, if one did."""
        for clerk in self._clerks:
            if clerk.done():
                clerk.result()

    def _start_share(self, clerk: int, begin: float) -> None:
        api = self._make_api(self._stop.is_set)
        try:
            for number in range(clerk, len(self._plan), CLERKS):
                if self._stop.wait(max(0.0, begin + number * self._interval - time.monotonic())):
                    return
                order = self._plan[number].order
                api.start(order, cattrs.unstructure(order))
                self._started[clerk] += 1
        except EngineUnreachable:
            if not self._stop.is_set():
                raise
