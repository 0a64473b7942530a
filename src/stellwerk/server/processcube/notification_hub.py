"""Who is told what happens in instances. Nothing is kept for those who are not there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from stellwerk.actors.node import Node
from stellwerk.errors import StoreUnavailable
from stellwerk.server.processcube.notification_reading import InstanceReading, Notification

__all__ = ["NotificationHub", "Subscriber"]

_READINGS_MAX = 1_000
"""Instances whose place in their history is kept in mind; others are read again from the beginning."""
_PENDING_MAX = 10_000
_SLICE_STEPS = 25


class Subscriber(Protocol):
    def notify(self, notification: Notification) -> None:
        """May neither wait nor fail."""


class NotificationHub:
    """Reads what instances of this node do from their histories, as long as somebody wants to know."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._subscribers: dict[Subscriber, None] = {}
        self._readings: OrderedDict[str, InstanceReading] = OrderedDict()
        self._pending: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """By instance: the first and the last step that is to be told."""
        self._is_telling = False

    def add(self, subscriber: Subscriber) -> None:
        """Told of every step from here on."""
        self._subscribers[subscriber] = None
        self._node.step_watchers.add(self._stepped)

    def remove(self, subscriber: Subscriber) -> None:
        self._subscribers.pop(subscriber, None)
        if not self._subscribers:
            self._node.step_watchers.discard(self._stepped)
            self._readings.clear()

    @contextmanager
    def told(self, subscriber: Subscriber) -> Iterator[None]:
        self.add(subscriber)
        try:
            yield
        finally:
            self.remove(subscriber)

    def _stepped(self, instance_id: str, version: int) -> None:
        first, _ = self._pending.get(instance_id, (version, version))
        self._pending[instance_id] = first, version
        if len(self._pending) > _PENDING_MAX:
            self._pending.popitem(last=False)
        if not self._is_telling:
            self._is_telling = True
            self._node.spawn(self._tell_pending)

    async def _tell_pending(self) -> None:
        """In one task, so that each instance's steps stay in order."""
        try:
            while self._pending:
                instance_id, (first, last) = self._pending.popitem(last=False)
                try:
                    await self._tell(instance_id, first, last)
                except StoreUnavailable:
                    raise
                except Exception:  # a fault in one instance's reading must not keep the others' from being told
                    self._readings.pop(instance_id, None)
                    self._node.ports.log.exception("notifications not told", instance=instance_id)
        finally:
            self._is_telling = False

    async def _tell(self, instance_id: str, first: int, last: int) -> None:
        reading = await self._reading(instance_id)
        if reading is None:
            return
        while reading.version < last:
            steps = await self._node.ports.store.history(instance_id, after=reading.version, limit=_SLICE_STEPS)
            if not steps:
                return  # pruned meanwhile
            for step in steps:
                found = reading.read(step)
                for notification in found if step.version >= first else ():
                    for subscriber in tuple(self._subscribers):
                        subscriber.notify(notification)
        if reading.has_ended:
            self._readings.pop(instance_id, None)

    async def _reading(self, instance_id: str) -> InstanceReading | None:
        known = self._readings.get(instance_id)
        if known is not None:
            self._readings.move_to_end(instance_id)
            return known
        row = await self._node.ports.store.instance(instance_id)
        if row is None:
            return None
        process = (await self._node.definition_cache.get(row.definition_id)).process
        reading = InstanceReading(instance_id, row.definition_id, row.business_key, process)
        self._readings[instance_id] = reading
        if len(self._readings) > _READINGS_MAX:
            self._readings.popitem(last=False)
        return reading
