"""From the threads of handlers and programs into the worker's trio run."""

from __future__ import annotations

from collections.abc import Callable

import trio

from stellwerk.worker.errors import ErrorKind
from stellwerk.worker.reports import Reports
from stellwerk.worker.system import Clock

__all__ = ["Bridge"]


class Bridge:
    def __init__(self, clock: Clock, reports: Reports) -> None:
        """Inside the trio run."""
        self._clock = clock
        self._reports = reports
        self._trio_token = trio.lowlevel.current_trio_token()

    def run_soon(self, function: Callable[..., None], *arguments: object) -> None:
        """From any thread, and from a signal handler."""
        try:
            self._trio_token.run_sync_soon(self._call_safely, function, *arguments)
        except trio.RunFinishedError:
            self._reports.log.debug("the worker has ended already")

    def monotonic(self) -> float:
        """What the clock shows; from any thread."""
        try:
            trio.lowlevel.current_trio_token()
        except RuntimeError:
            return trio.from_thread.run_sync(self._clock.monotonic, trio_token=self._trio_token)
        return self._clock.monotonic()

    def _call_safely(self, function: Callable[..., None], *arguments: object) -> None:
        """What raises in trio's queue of callbacks ends all of trio."""
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 — see above
            self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, error, with_traceback=True)
