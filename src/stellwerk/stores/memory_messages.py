"""Messages of the memory store: those that are kept, and what waits for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest

import attrs

from stellwerk.core.changes import SubscriptionRow
from stellwerk.instants import INSTANT_MS_MAX, InstantMs
from stellwerk.ports import KeptMessage, MatchedMessage, MessageRow
from stellwerk.stores.memory_tables import MemoryTables, StartSubscription, StoredMessage
from stellwerk.values import frozen

__all__ = ["awaited_names", "matched_messages", "message", "receivers", "waiting_messages"]


@frozen
class _Subscription:
    subscription_id: str
    instance_id: str
    key: str
    opened_at_ms: InstantMs


@attrs.define
class _Waiting:
    """What waits for messages. The subscriptions of a group are in the order in which they were opened."""

    by_key: dict[tuple[str, str], list[_Subscription]] = attrs.field(factory=dict)
    """By name and key."""
    by_instance: dict[tuple[str, str], list[_Subscription]] = attrs.field(factory=dict)
    """By name and instance."""
    starts: dict[str, list[StartSubscription]] = attrs.field(factory=dict)
    """By name; in the order of their process keys."""
    taken: set[str] = attrs.field(factory=set)
    """Subscriptions that a message was found for."""

    @classmethod
    def of(cls, tables: MemoryTables) -> _Waiting:
        waiting = cls()
        opened = sorted((stored.at_ms, subscription_id) for subscription_id, stored in tables.subscriptions.items())
        for at_ms, subscription_id in opened:
            stored = tables.subscriptions[subscription_id]
            row = stored.row
            assert isinstance(row, SubscriptionRow), row
            subscription = _Subscription(subscription_id, stored.instance_id, row.key, at_ms)
            waiting.by_key.setdefault((row.name, row.key), []).append(subscription)
            waiting.by_instance.setdefault((row.name, stored.instance_id), []).append(subscription)
        for _, group in sorted(tables.start_subscriptions.items()):
            for start in group:
                waiting.starts.setdefault(start.name, []).append(start)
        return waiting

    def find(self, message: MessageRow, until_ms: InstantMs) -> _Subscription | None:
        """The first that is free; opened before `until_ms`."""
        if message.instance_id is None:
            group = self.by_key.get((message.name, message.key), [])
        else:
            group = self.by_instance.get((message.name, message.instance_id), [])
        while group and group[0].subscription_id in self.taken:
            del group[0]
        return next((found for found in group if self._fits(found, message, until_ms)), None)

    def _fits(self, subscription: _Subscription, message: MessageRow, until_ms: InstantMs) -> bool:
        if subscription.opened_at_ms >= until_ms:
            return False
        is_for_any_key = message.instance_id is not None and not message.key
        return subscription.subscription_id not in self.taken and (is_for_any_key or message.key == subscription.key)

    def start(self, message: MessageRow, until_ms: InstantMs) -> StartSubscription | None:
        group = self.starts.get(message.name, []) if message.instance_id is None else []
        return next((start for start in group if start.opened_at_ms < until_ms), None)

    def is_there(self, message: MessageRow) -> bool:
        until_ms = message.expires_at_ms
        return self.start(message, until_ms) is not None or self.find(message, until_ms) is not None

    def names(self) -> set[str]:
        return {name for name, _ in self.by_key} | self.starts.keys()


def matched_messages(tables: MemoryTables, now_ms: InstantMs) -> Iterator[MatchedMessage]:
    waiting = _Waiting.of(tables)
    for _, message_id in tables.messages_by_arrival:
        message = tables.messages[message_id].row
        until_ms = INSTANT_MS_MAX if message.expires_at_ms > now_ms else message.expires_at_ms
        found, start = waiting.find(message, until_ms), waiting.start(message, until_ms)
        if found is not None:
            waiting.taken.add(found.subscription_id)
            yield MatchedMessage(message, found.instance_id, found.subscription_id, None)
        elif start is not None:
            yield MatchedMessage(message, None, None, start.definition_id)


def message(tables: MemoryTables, message_id: str) -> KeptMessage | None:
    stored = tables.messages.get(message_id)
    return None if stored is None else _kept(_Waiting.of(tables), [stored])[0]


def waiting_messages(tables: MemoryTables, now_ms: InstantMs, limit: int, after: str | None) -> list[KeptMessage]:
    waiting = _Waiting.of(tables)
    ids = (
        message_id
        for message_id, stored in tables.messages.items()
        if not stored.is_consumed
        and (after is None or message_id > after)
        and (stored.row.expires_at_ms > now_ms or waiting.is_there(stored.row))
    )
    return _kept(waiting, [tables.messages[message_id] for message_id in nsmallest(limit, ids)])


def _kept(waiting: _Waiting, found: Sequence[StoredMessage]) -> list[KeptMessage]:
    return [
        KeptMessage(
            message_id=stored.row.message_id,
            name=stored.row.name,
            key=stored.row.key,
            published_at_ms=stored.row.published_at_ms,
            expires_at_ms=stored.row.expires_at_ms,
            is_correlated=stored.is_consumed,
            is_awaited=waiting.is_there(stored.row),
            instance_id=stored.row.instance_id,
        )
        for stored in found
    ]


def awaited_names(tables: MemoryTables, limit: int) -> list[str]:
    return nsmallest(limit, _Waiting.of(tables).names())


def receivers(tables: MemoryTables, name: str, limit: int) -> list[tuple[str, str]]:
    groups = sorted((key, group) for (of_name, key), group in _Waiting.of(tables).by_key.items() if of_name == name)
    return [(found.instance_id, key) for key, group in groups for found in group][:limit]
