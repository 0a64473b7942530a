"""Locks on rows, which open transactions keep until they end, or stand idle for too long."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import attrs
import trio

from simulations.world.exchanges import Again, Blocked, Lost

__all__ = ["Owner", "RowLocks"]

_LOCK_SECONDS_MAX = 1.5
_DEADLOCK_SECONDS = 1.0
_IDLE_SECONDS_MAX = 5.0
"""PostgreSQL's ``lock_timeout``, ``deadlock_timeout`` and ``idle_in_transaction_session_timeout`` as stellwerk sets
them."""


@attrs.define(eq=False)
class Owner:
    """An open transaction."""

    name: str
    idle_since: float | None = None
    """Waits for its client since then."""
    keys: list[Hashable] = attrs.field(factory=list)
    waits_for: Owner | None = None
    is_over: bool = False


_HAIR_SECONDS = 1e-6


class RowLocks:
    def __init__(self, now: Callable[[], float], sometimes: Callable[[str], None]) -> None:
        self._now = now
        self._sometimes = sometimes
        self._owners: dict[Hashable, Owner] = {}
        self._released = trio.Event()

    def __bool__(self) -> bool:
        return bool(self._owners)

    def take_if_free(self, owner: Owner, key: Hashable) -> bool:
        """As SKIP LOCKED."""
        holder = self._holder(key)
        if holder is not None and holder is not owner:
            return False
        self._take(owner, key)
        return True

    async def take(self, owner: Owner, keys: Iterable[Hashable]) -> None:
        """One after the other, as they come.

        :raises Blocked: one was not released in time. Again: the two would wait for each other for ever. Lost: the
            transaction was ended meanwhile.
        """
        for key in keys:
            holder = self._holder(key)
            if holder is not None and holder is not owner:
                await self._wait(owner, key)
            self._take(owner, key)

    def release(self, owner: Owner) -> None:
        owner.is_over = True
        for key in owner.keys:
            if self._owners.get(key) is owner:
                del self._owners[key]
        owner.keys.clear()
        self._released.set()
        self._released = trio.Event()

    def clear(self) -> None:
        """All transactions are gone with the server."""
        for owner in list(self._owners.values()):
            owner.is_over = True
        self._owners.clear()

    def _take(self, owner: Owner, key: Hashable) -> None:
        if owner.is_over:
            raise Lost("the connection was closed")  # what it took now nobody would release
        if self._owners.get(key) is not owner:
            self._owners[key] = owner
            owner.keys.append(key)

    def _holder(self, key: Hashable) -> Owner | None:
        holder = self._owners.get(key)
        if holder is None or not self._is_idle_for_too_long(holder):
            return holder
        self._sometimes("database: a transaction stood idle until it was ended")
        self.release(holder)
        return None

    def _is_idle_for_too_long(self, owner: Owner) -> bool:
        return owner.idle_since is not None and self._now() >= owner.idle_since + _IDLE_SECONDS_MAX

    async def _wait(self, owner: Owner, key: Hashable) -> None:
        self._sometimes("database: a row was locked by another transaction")
        began = self._now()
        try:
            while (holder := self._holder(key)) is not None:
                owner.waits_for = holder
                waited = self._now() - began
                if waited >= _DEADLOCK_SECONDS and _waits_for(holder, owner):
                    raise Again("deadlock detected")
                if waited >= _LOCK_SECONDS_MAX:
                    raise Blocked("another session keeps a row locked that this needs")
                await self._wait_a_while(holder, began)
        finally:
            owner.waits_for = None

    async def _wait_a_while(self, holder: Owner, began: float) -> None:
        """Until something was released, or one of the limits has come."""
        limits = [began + _DEADLOCK_SECONDS, began + _LOCK_SECONDS_MAX]
        if holder.idle_since is not None:
            limits.append(holder.idle_since + _IDLE_SECONDS_MAX)
        now = self._now()
        # Sums of floats: what has come by one way of counting may be a hair away by the other.
        with trio.move_on_at(min((limit for limit in limits if limit > now), default=now + _HAIR_SECONDS)):
            await self._released.wait()


def _waits_for(first: Owner, other: Owner) -> bool:
    seen: list[Owner] = []
    owner: Owner | None = first
    while owner is not None and owner not in seen:
        if owner is other:
            return True
        seen.append(owner)
        owner = owner.waits_for
    return False
