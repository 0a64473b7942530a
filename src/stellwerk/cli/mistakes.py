"""How a command ends otherwise than well: one line on stderr and an exit code."""

from __future__ import annotations

__all__ = ["ENDED_BADLY", "NO_ENGINE", "WRONG_USE", "CommandFailed", "EngineUnreachable", "Mistake"]

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
