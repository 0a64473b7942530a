"""What a worker tells its program: the error and heartbeat callbacks, and the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from stellwerk.worker.errors import ErrorKind, Operation
from stellwerk.worker.task import Task
from stellwerk.worker.texts import described, text_of

__all__ = ["ErrorCallback", "HeartbeatCallback", "Logger", "Reports"]

ErrorCallback: TypeAlias = Callable[[ErrorKind, Exception, Task | None], object]
HeartbeatCallback: TypeAlias = Callable[[Operation, str | None], object]


class Logger(Protocol):
    """`logging.Logger` and structlog's loggers are such."""

    def debug(self, msg: str, /, *args: object) -> object: ...
    def info(self, msg: str, /, *args: object) -> object: ...
    def warning(self, msg: str, /, *args: object) -> object: ...
    def exception(self, msg: str, /, *args: object) -> object: ...


class _Guarded:
    """The program's own logger. A worker that holds leases does not end because it cannot write its log."""

    def __init__(self, logger: Logger, instead: logging.Logger) -> None:
        self._logger = logger
        self._instead = instead

    def debug(self, msg: str, /, *args: object) -> None:
        self._write(self._logger.debug, msg, *args)

    def info(self, msg: str, /, *args: object) -> None:
        self._write(self._logger.info, msg, *args)

    def warning(self, msg: str, /, *args: object) -> None:
        self._write(self._logger.warning, msg, *args)

    def exception(self, msg: str, /, *args: object) -> None:
        self._write(self._logger.exception, msg, *args)

    def _write(self, write: Callable[..., object], msg: str, *args: object) -> None:
        try:
            write(msg, *args)
        except Exception as error:  # noqa: BLE001 — said to the standard logger, together with what was to be written
            self._instead.warning("the logger raised %s; it should have written: " + msg, described(error), *args)


def _safe_logger(logger: Logger | None) -> Logger:
    standard = logging.getLogger("stellwerk.worker")
    if logger is None:
        return standard
    # Those of `logging` guard themselves.
    return logger if isinstance(logger, logging.Logger) else _Guarded(logger, standard)


_IN_WORDS = {
    ErrorKind.FETCH_AND_LOCK: "not connected",
    ErrorKind.EXTEND_LOCK: "lease",
    ErrorKind.PROCESS_EXTERNAL_TASK: "handler failed",
    ErrorKind.FINISH_EXTERNAL_TASK: "result not taken",
    ErrorKind.UNPROCESSABLE_EXTERNAL_TASK: "cannot be processed",
    ErrorKind.IDENTITY_REFRESH: "credential not refreshed",
    ErrorKind.CRITICAL_IDENTITY_FAILURE: "no credential",
    ErrorKind.PERMANENT_AUTHORIZATION_ERROR: "not authorized",
    ErrorKind.UNEXPECTED_LOOP_ERROR: "unexpected",
}
"""For the log. Programs get the kind, whose names are those of workers that poll."""


class Reports:
    def __init__(self, logger: Logger | None) -> None:
        self.log = _safe_logger(logger)
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
        self,
        kind: ErrorKind,
        error: Exception,
        task: Task | None = None,
        *,
        with_traceback: bool = False,
        is_known: bool = False,
    ) -> None:
        """`with_traceback`: of the exception that is being handled. `is_known`: the log has it already."""
        write = self.log.debug if is_known else self.log.exception if with_traceback else self.log.warning
        write("%s: %s%s", _IN_WORDS[kind], text_of(error), "" if task is None else f" ({task!r})")
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
