"""The signals that ask the process to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

import trio

__all__ = ["exit_at_once", "open_stop_signals"]


def open_stop_signals() -> AbstractContextManager[AsyncIterator[int]]:
    """SIGTERM and SIGINT, in order of arrival."""
    return trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT)


def exit_at_once(signal_number: int) -> None:
    """End the process without any clean-up. What was acknowledged is durable, so nothing is lost by it."""
    os._exit(128 + signal_number)
