"""What this process is called, and how many files it may have open."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from pathlib import Path

__all__ = ["allow_open_files", "host_name", "open_files_max", "process_name", "show_as"]


def host_name() -> str:
    return socket.gethostname()


def show_as(name: str) -> None:
    """What ``top`` and ``ps`` call this process where they show no arguments: 15 characters, on Linux."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def process_name(pid: int | None = None) -> str:
    """``host:pid``; None: of this process."""
    return f"{host_name()}:{os.getpid() if pid is None else pid}"


def open_files_max() -> int:
    """Sockets count as files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def allow_open_files(wanted: int) -> None:
    """Raise the limit of this process to so many, or as far as the system lets it. Nothing is ever lowered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
