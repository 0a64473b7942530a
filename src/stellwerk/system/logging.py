"""The log: one line for each event on stderr, as key=value text for people or as JSON for programs.

Ids, topics and paths that callers choose stand in it. What looks like a credential is masked wherever it stands, and
what a terminal could take for a command is written as text.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, TextIO

import structlog

__all__ = ["LogFormat", "LogLevel", "open_log"]

_SECRETS = (
    (re.compile(r"sw_[0-9A-Za-z]{6,}_[0-9A-Za-z]{16,}"), "sw_***"),
    (re.compile(r"eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}(?:\.[0-9A-Za-z_-]*)?"), "eyJ***"),
)
"""API keys of ours, and JSON Web Tokens, also such as are cut off: what is left of them is no use."""
_COMMANDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, marks that turn the direction of text, and lone surrogates."""


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

    def __init__(self, stream: TextIO, escaped: Callable[[str], str]) -> None:
        self._stream = stream
        self._escaped = escaped

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(_without_secrets(self._escaped(line)) + "\n")
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
    escaped = _escaped if form is LogFormat.TEXT else _escaped_in_json
    return structlog.wrap_logger(
        _Lines(sys.stderr if stream is None else stream, escaped),
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.name)),
    )


def _plain_values(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Logfmt refuses names with spaces and would print tracebacks over many lines."""
    return {name.replace(" ", "_"): value for name, value in event.items()}


def _escaped(line: str) -> str:
    return _COMMANDS.sub(lambda found: _escape_of(found[0]), line)


def _escaped_in_json(line: str) -> str:
    """The encoder has done that, with one exception."""
    return line.replace("\x7f", "\\u007f")


def _escape_of(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


def _without_secrets(line: str) -> str:
    for pattern, shown in _SECRETS:
        line = pattern.sub(shown, line)
    return line
