"""A sampling profiler of this process, all threads: where processor time goes.

Each sample books the processor time that a thread has used since the last one on the function that it is in; a thread
that waits costs nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

__all__ = ["Sampler"]

_EVERY_SECONDS = 0.001
_SWITCH_SECONDS = 0.0001
"""How soon a busy thread lets the sampler in."""
_FUNCTIONS_MAX = 400
_OURS = "stellwerk"


class Sampler:
    """`start`, then `stop`, which gives the result."""

    def __init__(self) -> None:
        self._own: defaultdict[tuple[str, str], float] = defaultdict(float)
        """Processor time by module and function."""
        self._of_ours: defaultdict[tuple[str, str], float] = defaultdict(float)
        """The same, with what foreign modules need booked on the function of ours that called them."""
        self._total = 0.0
        self._samples = 0
        self._used: dict[int, float] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._switch_before = 0.0

    def start(self) -> None:
        self._switch_before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()

    def stop(self) -> Mapping[str, object]:
        """→ ``seconds`` of processor time, number of ``samples``, and lists of [module, function, share]: ``own``, and
        ``ours`` with what foreign modules need booked on the stellwerk function that called them."""
        self._ends.set()
        self._thread.join()
        sys.setswitchinterval(self._switch_before)
        return {
            "seconds": self._total,
            "samples": self._samples,
            "own": self._shares(self._own),
            "ours": self._shares(self._of_ours),
        }

    def _shares(self, times: Mapping[tuple[str, str], float]) -> Sequence[tuple[str, str, float]]:
        total = self._total or 1.0
        ordered = sorted(times.items(), key=lambda item: item[1], reverse=True)[:_FUNCTIONS_MAX]
        return [(module, function, used / total) for (module, function), used in ordered]

    def _run(self) -> None:
        self._take()
        while not self._ends.wait(_EVERY_SECONDS):
            self._take()

    def _take(self) -> None:
        me = threading.get_ident()
        for thread_id, frame in sys._current_frames().items():
            if thread_id == me:
                continue
            # Safe: a thread that has a frame cannot end while this one holds the interpreter.
            used = time.clock_gettime(time.pthread_getcpuclockid(thread_id))
            spent = used - self._used.get(thread_id, used)  # nothing at first sight: that was before
            self._used[thread_id] = used
            if spent > 0:
                self._book(frame, spent)

    def _book(self, frame: FrameType, spent: float) -> None:
        self._samples += 1
        self._total += spent
        self._own[_place(frame)] += spent
        ours: FrameType | None = frame
        while ours is not None and not _module(ours).startswith(_OURS):
            ours = ours.f_back
        self._of_ours[_place(frame if ours is None else ours)] += spent


def _place(frame: FrameType) -> tuple[str, str]:
    function = frame.f_code.co_qualname
    if function == "__init__":  # made by attrs, which does not say of which class
        function = f"{type(frame.f_locals.get('self')).__name__}.__init__"
    return _module(frame), function


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else Path(frame.f_code.co_filename).stem
