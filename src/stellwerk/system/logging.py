"""The log: one line for each event on stderr, as key=value text for people or as JSON for programs."""

from __future__ import annotations

import contextlib
import logging
import sys
from enum import Enum
from typing import Any, TextIO

import structlog

__all__ = ["LogFormat", "LogLevel", "open_log"]


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"


class _Lines:
    """Writes lines. A log that cannot be written (closed pipe, full disk) must never stop the engine."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = exception = critical = msg


def open_log(level: LogLevel = LogLevel.INFO, form: LogFormat = LogFormat.TEXT, stream: TextIO | None = None) -> Any:
    """A structlog logger of its own; the process's global configuration is not touched."""
    renderer: Any
    if form is LogFormat.JSON:
        renderer = structlog.processors.JSONRenderer(default=str)
    else:
        renderer = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if form is LogFormat.TEXT:
        processors.append(_plain_values)
    return structlog.wrap_logger(
        _Lines(sys.stderr if stream is None else stream),
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.name)),
    )


def _plain_values(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Logfmt refuses names with spaces and would print tracebacks over many lines."""
    return {name.replace(" ", "_"): value for name, value in event.items()}
