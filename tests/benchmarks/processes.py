"""What processes of this machine use, as Linux tells."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["bytes_resident", "cpu_seconds_of_server"]


def cpu_seconds_of_server(pid: int) -> float:
    """User and system time of all its processes, those that have ended too.

    :param pid: of the process that starts the others (the postmaster).
    """
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            ticks += _ticks(entry, pid)
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(entry: Path, pid: int) -> int:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    own, of_ended_children = slice(11, 13), slice(13, 15)
    if int(entry.name) == pid:
        return sum(map(int, fields[own] + fields[of_ended_children]))
    parent = int(fields[1])
    return sum(map(int, fields[own])) if parent == pid else 0


def bytes_resident(pid: int) -> int:
    """The most that a process has had in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(kilobytes) * 1024
