"""What this process is called."""

from __future__ import annotations

import os
import socket

__all__ = ["host_name", "process_name"]


def host_name() -> str:
    return socket.gethostname()


def process_name() -> str:
    """``host:pid``"""
    return f"{host_name()}:{os.getpid()}"
