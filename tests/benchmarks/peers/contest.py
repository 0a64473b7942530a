"""What every contestant does: run so many instances when told to, and say how long that took.

Uses nothing but the standard library: peers run it in an environment of their own.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping

__all__ = ["Contest", "Stopwatch", "compete"]


class Stopwatch:
    """Measures its block: wall time and this process's processor time."""

    seconds = 0.0
    cpu_seconds = 0.0
    more: Mapping[str, object] = {}
    """Goes into the answer beside the times."""

    def __enter__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu_seconds = time.perf_counter() - self._began, time.process_time() - self._cpu


class Contest:
    """One contestant. Made anew for each round, outside the measured time."""

    handled = 0
    """How often handlers ran."""

    def run(self, instances: int, stopwatch: Stopwatch) -> int:
        """Run so many instances, in a block of the stopwatch. → how many of them ended."""
        raise NotImplementedError


def compete(version: str, make: Callable[[], Contest], stopwatches: type[Stopwatch] = Stopwatch) -> None:
    """Answer each line ``{"instances": N}`` of standard input with the figures of a round."""
    _say({"version": version, "runtime": f"Python {platform.python_version()}"})
    for line in sys.stdin:
        contest, stopwatch = make(), stopwatches()
        ended = contest.run(json.loads(line)["instances"], stopwatch)
        _say(
            {
                "seconds": stopwatch.seconds,
                "cpu_seconds": stopwatch.cpu_seconds,
                "ended": ended,
                "handled": contest.handled,
                **stopwatch.more,
            }
        )


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)
