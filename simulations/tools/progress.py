"""How far long work is: one line that changes on a terminal, and a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time

from stellwerk.cli.output import warn

__all__ = ["Progress"]

_TERMINAL_SECONDS = 0.1
_LOG_SECONDS = 30.0


class Progress:
    """On standard error."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._every = _TERMINAL_SECONDS if self._is_terminal else _LOG_SECONDS
        self._shown_at = time.monotonic() if not self._is_terminal else 0.0
        self._is_open = False

    def show(self, text: str) -> None:
        """Unless the last one is young."""
        now = time.monotonic()
        if now - self._shown_at < self._every:
            return
        self._shown_at = now
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{text[:width]:<{width}}")
            sys.stderr.flush()
            self._is_open = True
        else:
            warn(text)

    def clear(self) -> None:
        """Before anything else is printed."""
        if self._is_open:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{'':<{width}}\r")
            sys.stderr.flush()
            self._is_open = False
