"""The signals that ask the process to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

import trio

__all__ = ["exit_at_once", "exit_on_next", "open_stop_signals"]


def open_stop_signals() -> AbstractContextManager[AsyncIterator[int]]:
    """SIGTERM, SIGINT and SIGHUP (its terminal was closed), in order of arrival.

    Who started us may have SIGHUP ignored, as nohup does.
    """
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangup)


async def exit_on_next(signals: AsyncIterator[int]) -> None:
    """SIGHUP comes twice where a terminal is closed, from the system and from the shell: it hurries nobody."""
    async for number in signals:
        if number != signal.SIGHUP:
            exit_at_once(number)


def exit_at_once(signal_number: int) -> None:
    """End the process without any clean-up. What was acknowledged is durable, so nothing is lost by it."""
    os._exit(128 + signal_number)
