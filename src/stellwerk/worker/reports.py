"""What a worker tells its program: the error and heartbeat callbacks, and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from stellwerk.worker.errors import ErrorKind, Operation
from stellwerk.worker.task import Task

__all__ = ["ErrorCallback", "HeartbeatCallback", "Logger", "Reports"]

ErrorCallback: TypeAlias = Callable[[ErrorKind, Exception, Task | None], object]
HeartbeatCallback: TypeAlias = Callable[[Operation, str | None], object]


class Logger(Protocol):
    """`logging.Logger` and structlog's loggers are such."""

    def debug(self, msg: str, /, *args: object) -> object: ...
    def info(self, msg: str, /, *args: object) -> object: ...
    def warning(self, msg: str, /, *args: object) -> object: ...
    def exception(self, msg: str, /, *args: object) -> object: ...


class Reports:
    def __init__(self, logger: Logger | None) -> None:
        self.log: Logger = logger or logging.getLogger("stellwerk.worker")
        self.error_callbacks: list[ErrorCallback] = []
        self.heartbeat_callbacks: list[HeartbeatCallback] = []

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Whoever set up no logging sees on stderr what the worker does, from INFO on."""
        log = self.log
        if not isinstance(log, logging.Logger) or log.hasHandlers() or log.level != logging.NOTSET:
            yield
            return
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(logging.NOTSET)

    def error(
        self, kind: ErrorKind, error: Exception, task: Task | None = None, *, with_traceback: bool = False
    ) -> None:
        """`with_traceback`: of the exception that is being handled."""
        write = self.log.exception if with_traceback else self.log.warning
        write("%s: %s%s", kind.value, error, "" if task is None else f" ({task!r})")
        for callback in self.error_callbacks:
            try:
                callback(kind, error, task)
            except Exception:
                # A mistake in a callback must not end the worker, which may hold leases.
                self.log.exception("the error callback %r raised", callback)

    def heartbeat(self, operation: Operation, task_id: str | None = None) -> None:
        for callback in self.heartbeat_callbacks:
            try:
                callback(operation, task_id)
            except Exception:
                self.log.exception("the heartbeat callback %r raised", callback)
