"""What nodes and workers log: warnings go into the trace, and what nobody expected to happen breaks the run."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping

from simulations.kernel.simulation import Simulation

__all__ = ["EngineLog", "WorkerLog"]

_FRAMES_SHOWN = 4
_PLAIN = (str, int, float, bool, type(None))

_EXPECTED_EXCEPTIONS = ("handler failed: ",)
"""A handler's exception is what the workload wanted."""


class EngineLog:
    """`stellwerk.ports.Log` of one node."""

    def __init__(self, simulation: Simulation, place: str) -> None:
        self._simulation = simulation
        self._place = place

    def debug(self, event: str, **values: object) -> None:
        return

    def info(self, event: str, **values: object) -> None:
        return

    def warning(self, event: str, **values: object) -> None:
        self._write("warning", event, values)

    def error(self, event: str, **values: object) -> None:
        """Only what is a mistake of ours is logged as an error."""
        self._write("error", event, values)
        said = ", ".join(f"{name}: {value}" for name, value in values.items())
        self._simulation.properties.always("P0", False, f"{self._place}: {event} ({said})")

    def exception(self, event: str, **values: object) -> None:
        self._write("error", event, values)
        self._simulation.properties.always("P0", False, lambda: f"{self._place}: {event}: {_raised()}")

    def _write(self, level: str, event: str, values: Mapping[str, object]) -> None:
        plain = {name: value if isinstance(value, _PLAIN) else str(value) for name, value in values.items()}
        self._simulation.trace(self._place, "log", level=level, event=event, values=plain)


class WorkerLog:
    """`stellwerk.worker.reports.Logger` of one worker."""

    def __init__(self, simulation: Simulation, place: str) -> None:
        self._simulation = simulation
        self._place = place

    def debug(self, msg: str, /, *args: object) -> None:
        return

    def info(self, msg: str, /, *args: object) -> None:
        return

    def warning(self, msg: str, /, *args: object) -> None:
        self._simulation.trace(self._place, "log", level="warning", event=msg % args)

    def exception(self, msg: str, /, *args: object) -> None:
        event = msg % args
        self._simulation.trace(self._place, "log", level="error", event=event)
        is_expected = event.startswith(_EXPECTED_EXCEPTIONS)
        self._simulation.properties.always("P0", is_expected, lambda: f"{self._place}: {event}: {_raised()}")


def _raised() -> str:
    """The exception that is being handled, and where it came from, without the machine's paths."""
    error = sys.exception()
    if error is None:
        return "no exception"
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_SHOWN:]
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return f"{type(error).__name__}: {error}, in {' > '.join(places)}"
