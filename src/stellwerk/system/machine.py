"""What this process is called."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

__all__ = ["host_name", "process_name", "show_as"]


def host_name() -> str:
    return socket.gethostname()


def show_as(name: str) -> None:
    """What ``top`` and ``ps`` call this process where they show no arguments: 15 characters, on Linux."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def process_name(pid: int | None = None) -> str:
    """``host:pid``; None: of this process."""
    return f"{host_name()}:{os.getpid() if pid is None else pid}"
