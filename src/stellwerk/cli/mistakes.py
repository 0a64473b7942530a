"""How a command ends otherwise than well: one line on stderr and an exit code."""

from __future__ import annotations

import os
import traceback

__all__ = [
    "ENDED_BADLY",
    "NO_ENGINE",
    "WRONG_USE",
    "CommandFailed",
    "EngineUnreachable",
    "Mistake",
    "traceback_if_wanted",
    "unexpected",
]

_DEBUG = "STELLWERK_DEBUG"

ENDED_BADLY = 1
"""The command did what it should, and what it is about ended in an error or waits with an incident."""
WRONG_USE = 2
NO_ENGINE = 3


class CommandFailed(Exception):
    """Ends the command. The message, one line or several, goes to stderr."""

    exit_code = ENDED_BADLY


class Mistake(CommandFailed):
    """Something in the command line, or in what it names, is wrong."""

    exit_code = WRONG_USE


class EngineUnreachable(CommandFailed):
    exit_code = NO_ENGINE


def unexpected(error: BaseException) -> Mistake:
    """What no command foresaw, as a line."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Mistake(what if os.environ.get(_DEBUG) else f"{what}; set {_DEBUG}=1 for the traceback")


def traceback_if_wanted(error: BaseException) -> str | None:
    """None without STELLWERK_DEBUG."""
    return "".join(traceback.format_exception(error)).rstrip() if os.environ.get(_DEBUG) else None
