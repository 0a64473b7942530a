"""Whose filter is decided next: each worker's share of the time is the same, however many filters it has, and however
slow they are (start-time fair queueing, https://doi.org/10.1109/90.649569)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio

from stellwerk.ports import Clock

__all__ = ["Turns"]

_WORKERS_MAX = 10_000
_SECONDS_MIN = 0.001
"""The least that a turn counts: in virtual time it takes no time at all."""

_Share = Callable[[], float]


@attrs.define(eq=False)
class _Waiting:
    share: _Share
    """Asked again each time: others may have come to whoever waits."""
    turn: trio.Event = attrs.field(factory=trio.Event)


class Turns:
    """One turn at a time. It goes to whoever has had the least so far, of equals to who has waited longest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._had: OrderedDict[str, float] = OrderedDict()
        """Seconds, by worker. Who comes late starts where the others are: nobody saves up."""
        self._level = 0.0
        self._waiting: dict[_Waiting, None] = {}
        self._is_taken = False

    def had(self, worker_id: str) -> float:
        """How much it has had, or counts as having had."""
        return max(self._level, self._had.get(worker_id, 0.0))

    def least(self, worker_ids: Iterable[str]) -> str:
        """Of those that share a filter, the one that pays for it."""
        return min(worker_ids, key=lambda worker_id: (self.had(worker_id), worker_id))

    @asynccontextmanager
    async def turn(self, share: _Share) -> AsyncIterator[None]:
        """:param share: what the one that will be served has had."""
        await self._take(share)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, share: _Share) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        waiting = _Waiting(share)
        self._waiting[waiting] = None
        try:
            await waiting.turn.wait()
        except BaseException:
            if waiting not in self._waiting:  # its turn has come already
                self._pass_on()
            self._waiting.pop(waiting, None)
            raise

    def _pass_on(self) -> None:
        if not self._waiting:
            self._is_taken = False
            return
        following = min(self._waiting, key=lambda waiting: waiting.share())
        del self._waiting[following]
        following.turn.set()

    @contextmanager
    def charged(self, worker_id: str) -> Iterator[None]:
        """What is done within is done for this worker."""
        self._level = share = self.had(worker_id)
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._had[worker_id] = share + max(_SECONDS_MIN, self._clock.monotonic() - began)
            self._had.move_to_end(worker_id)
            if len(self._had) > _WORKERS_MAX:
                self._had.popitem(last=False)
