"""trio made deterministic: which task runs next is decided here, by the seed.

This is the one module that knows private names of trio: a flag that makes its run loop sort what is runnable before
shuffling it, and the random generator that shuffles. Neither has a public name (trio's issues 239, 2675 and 3089 ask
for one), so their presence and trio's version are checked, and a test of this module tells when they no longer do what
they did. Putting an object of our own in place of the generator gives more than a seed: it sees the runnable tasks
themselves, and can hold back those of a host that stands still.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import trio
import trio._core._run

__all__ = ["PLACE", "SCHEDULES", "TRIO_VERSIONS", "Scheduler", "deterministic"]

trio_run: Any = trio._core._run
"""Its names are private, and one of them is declared final."""

PLACE: ContextVar[str] = ContextVar("place", default="")
"""Where a task runs: host and incarnation (``node-1#2``). Empty: the harness. Tasks inherit it from who starts them."""

TRIO_VERSIONS = ((0, 31), (0, 36))
"""At least, and less than: where this was seen to work."""
SCHEDULES = ("keyed", "fifo")

_PRIVATE_NAMES = ("_ALLOW_DETERMINISTIC_SCHEDULING", "_r", "GLOBAL_RUN_CONTEXT")
_LIVELOCK_STEPS = 50_000
"""Of tasks, without time passing."""
_STEPS_MAX = 3_000_000
"""Of tasks, in a whole run: many times what the largest plans need. Time may pass in ever so small parts."""
_NOTED_MAX = 4_096
_MASK = (1 << 64) - 1

_Key = tuple[int, int]


class Scheduler(random.Random):
    """Takes the place of the generator by which trio shuffles the tasks that can run.

    ``keyed``: the order follows from the seed, the time and the names of the tasks, so that leaving out a task or a
    fault shifts no other decision. ``fifo``: in the order in which the tasks were made.
    """

    def __init__(self, seed: int, schedule: str, on_livelock: Callable[[str], None]) -> None:
        """:param on_livelock: told what goes round in circles."""
        super().__init__(seed)
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule {schedule!r} is not known, only {', '.join(SCHEDULES)}")
        self._seed = seed
        self._is_keyed = schedule == "keyed"
        self._on_livelock = on_livelock
        self._frozen: set[str] = set()
        self._held: list[Any] = []
        self._batch: list[Any] = []
        """What runs at present: the run loop takes one after the other from it."""
        self._keys: dict[tuple[str, str], int] = {}
        self._hash = hashlib.sha256()
        self.steps = 0
        self._instant = -1.0
        self._steps_max = _LIVELOCK_STEPS
        self._steps_in_all_max = _STEPS_MAX
        self._noted: list[str] = []
        """What ran, and is not in the hash yet."""

    # --- what trio calls -------------------------------------------------------------------------------------------

    def shuffle(self, x: Any) -> None:
        """Order what can run now; the run loop takes it from the end. A held back task is taken out."""
        self._batch = x
        if self._frozen:
            self._hold_back(x)
        now = trio_run.GLOBAL_RUN_CONTEXT.runner.clock.current_time()
        if now != self._instant:
            self._begin_instant(now)
        self.steps += len(x)
        if self.steps > self._steps_max:
            self._tell_of_livelock(x)
        if len(x) > 1:
            self._order(x, now)
        self._note(x)

    def _hold_back(self, batch: list[Any]) -> None:
        frozen = self._frozen
        held = [task for task in batch if task.context.get(PLACE) in frozen]
        if held:
            self._held += held
            batch[:] = [task for task in batch if task.context.get(PLACE) not in frozen]

    def _begin_instant(self, now: float) -> None:
        self._instant = now
        self._steps_max = min(self.steps + _LIVELOCK_STEPS, self._steps_in_all_max)
        self._noted.append(f"\n{now:.6f}")
        if len(self._noted) > _NOTED_MAX:
            self._hash_noted()

    def _tell_of_livelock(self, batch: Sequence[Any]) -> None:
        names = sorted({f"{task.context.get(PLACE, '')} {task.name}" for task in batch})
        if self.steps > self._steps_in_all_max:
            what = f"{self.steps} steps of tasks and no end"
        else:
            what = f"{_LIVELOCK_STEPS} steps of tasks at one instant"
        self._steps_max = self._steps_in_all_max = self.steps + _LIVELOCK_STEPS
        self._on_livelock(f"{what}, now of {', '.join(names[:10])}")

    def _order(self, batch: list[Any], now: float) -> None:
        if not self._is_keyed:
            batch.reverse()
            return
        salt = (self._seed ^ round(now * 1e6) * 0xC2B2AE3D27D4EB4F) & _MASK
        ranked = [(_mixed(self._key(task) ^ salt), position, task) for position, task in enumerate(batch)]
        ranked.sort(key=_rank)
        batch[:] = [task for _, _, task in ranked]

    def _key(self, task: Any) -> int:
        name = (task.context.get(PLACE, ""), task.name)
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = zlib.crc32(" ".join(name).encode()) * 0x9E3779B97F4A7C15 & _MASK
        return key

    def _note(self, batch: Sequence[Any]) -> None:
        """By batches: a comma ends one."""
        noted = self._noted
        for task in batch:
            noted.append(task.name)
        noted.append(",")

    def _hash_noted(self) -> None:
        self._hash.update("|".join(self._noted).encode())
        self._noted.clear()

    # --- what the world calls --------------------------------------------------------------------------------------

    def freeze(self, place: str) -> None:
        """No task of this place makes a step until `thaw`. Timers and messages reach them meanwhile, as they reach a
        process that is stopped."""
        self._frozen.add(place)
        self._hold_back(self._batch)  # also those whose turn would come at this very instant

    def thaw(self, place: str) -> None:
        self._frozen.discard(place)
        self._release()

    def kill(self, place: str) -> None:
        """As if the power went: no task makes a step, and no ``finally`` runs, until the run is taken down."""
        self.freeze(place)

    def thaw_all(self) -> None:
        self._frozen.clear()
        self._release()

    def _release(self) -> None:
        if not self._held:
            return
        free = [task for task in self._held if task.context.get(PLACE, "") not in self._frozen]
        self._held = [task for task in self._held if task.context.get(PLACE, "") in self._frozen]
        trio_run.GLOBAL_RUN_CONTEXT.runner.runq.extend(free)

    def digest(self) -> str:
        """Of every batch of tasks that ran, in order."""
        self._hash_noted()
        return self._hash.hexdigest()


def _mixed(number: int) -> int:
    number = (number ^ number >> 31) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


def _rank(entry: tuple[int, int, Any]) -> _Key:
    return entry[:2]


@contextmanager
def deterministic(scheduler: Scheduler) -> Iterator[None]:
    """While it lasts, runs of trio are ordered by `scheduler`.

    :raises RuntimeError: this version of trio was not tried.
    """
    _check_version()
    before = (trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r)
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio_run._r = scheduler
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r = before


def _check_version() -> None:
    version = tuple(int(part) for part in trio.__version__.split(".")[:2])
    missing = [name for name in _PRIVATE_NAMES if not hasattr(trio_run, name)]
    if missing or not TRIO_VERSIONS[0] <= version < TRIO_VERSIONS[1]:
        raise RuntimeError(
            f"the simulation's scheduling was tried with trio from {_dotted(TRIO_VERSIONS[0])} to below "
            f"{_dotted(TRIO_VERSIONS[1])}; this is {trio.__version__}: look at simulations/kernel/scheduling.py"
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
