"""What one has to know about a machine to read figures that were measured on it."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["describe_machine", "flush_ms"]

_FLUSHES = 40


def describe_machine(folder: Path) -> Mapping[str, object]:
    """``folder``: where the databases are made."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load_average": round(os.getloadavg()[0], 2),
        "flush_ms": round(flush_ms(folder), 3),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def flush_ms(folder: Path) -> float:
    """Median time of appending 4 KiB to a file and flushing it to the disk."""
    file = folder / "flush-probe"
    times = []
    with file.open("wb", buffering=0) as probe:
        for _ in range(_FLUSHES):
            began = time.perf_counter()
            probe.write(bytes(4096))
            os.fsync(probe.fileno())
            times.append(time.perf_counter() - began)
    file.unlink()
    return statistics.median(times) * 1000
