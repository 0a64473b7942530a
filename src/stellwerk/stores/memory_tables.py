"""The rows of the memory store: dictionaries by key, and sorted keys for what is scanned in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import TypeVar

import attrs

from stellwerk.core.changes import IncidentRow, SubscriptionRow, TimerRow, UserTaskAssignment, UserTaskRow
from stellwerk.core.external_task import ExternalTask, Holder, TaskAttempt, TaskState
from stellwerk.core.lease import expiry_needs_instance
from stellwerk.ids import process_key_of
from stellwerk.instants import InstantMs
from stellwerk.ports import ApiKeyRow, DefinitionRow, InboxRow, InstanceSummary, MessageRow, NewInstance, ProcessRow
from stellwerk.stores.sorted_keys import SortedKeys
from stellwerk.stores.tables import ENDED_STATUSES, DataFault, InstanceState
from stellwerk.values import frozen

__all__ = ["MemoryTables", "StartSubscription", "StoredMessage", "Waiting"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ReadyKey = tuple[int, InstantMs, str]
"""(minus priority, created, id): the order of hand-out."""
InstantKey = tuple[InstantMs, str]
_Address = tuple[str, str | None, str | None]
"""(name, key, instance): without an instance whoever waits with the key; within one, the empty key is any; without a
key, what starts by the name."""


@frozen
class Waiting:
    """A row that belongs to an instance: timer, subscription, user task or incident."""

    instance_id: str
    row: object
    at_ms: InstantMs = 0
    """When it began to wait: on the lease clock for a subscription."""


@frozen
class StoredMessage:
    row: MessageRow
    is_consumed: bool = False


@frozen
class StartSubscription:
    definition_id: str
    process_key: str
    name: str
    opened_at_ms: InstantMs


class MemoryTables:
    """Every write notes how to undo it until `forget_undo` is called."""

    def __init__(self) -> None:
        self.tasks: dict[str, ExternalTask] = {}
        self.attempts: dict[str, dict[int, TaskAttempt]] = {}
        self.instances: dict[str, InstanceSummary] = {}
        self.history: dict[str, list[tuple[int, InstantMs, bytes]]] = {}
        self.snapshots: dict[str, tuple[int, bytes]] = {}
        self.timers: dict[str, Waiting] = {}
        self.subscriptions: dict[str, Waiting] = {}
        self.user_tasks: dict[str, Waiting] = {}
        self.incidents: dict[str, Waiting] = {}
        self.messages: dict[str, StoredMessage] = {}
        self.inbox: dict[tuple[str, str], InboxRow] = {}
        self.api_keys: dict[str, ApiKeyRow] = {}
        self.definitions: dict[str, list[DefinitionRow]] = {}
        self.processes: dict[str, ProcessRow] = {}
        self.start_subscriptions: dict[str, tuple[StartSubscription, ...]] = {}
        """By process key."""
        self.ready_by_topic: dict[str, SortedKeys[ReadyKey]] = {}
        self.waiting_by_topic: dict[str, SortedKeys[InstantKey]] = {}
        """READY, but their back-off had not ended when they were written."""
        self.tasks_of: dict[str, list[str]] = {}
        """Ids of the tasks of each instance."""
        self.ended: SortedKeys[InstantKey] = SortedKeys()
        """Instances by the time at which they ended."""
        self.locked: SortedKeys[InstantKey] = SortedKeys()
        self.timers_by_due: SortedKeys[InstantKey] = SortedKeys()
        self.messages_by_arrival: SortedKeys[InstantKey] = SortedKeys()
        self._undo: list[Callable[[], object]] = []

    # --- undo ------------------------------------------------------------------------------------------------------

    def forget_undo(self) -> None:
        self._undo.clear()

    def undo(self) -> None:
        """Take back all writes since `forget_undo`."""
        while self._undo:
            self._undo.pop()()

    def _insert(self, table: dict[K, V], key: K, value: V) -> None:
        if key in table:
            raise DataFault(f"{key} is there already")
        table[key] = value
        self._undo.append(partial(table.pop, key))

    def _replace(self, table: dict[K, V], key: K, value: V) -> None:
        if key in table:
            self._undo.append(partial(table.__setitem__, key, table[key]))
        else:
            self._undo.append(partial(table.pop, key))
        table[key] = value

    def _delete(self, table: dict[K, V], key: K) -> V | None:
        if key not in table:
            return None
        value = table.pop(key)
        self._undo.append(partial(table.__setitem__, key, value))
        return value

    def _add_key(self, keys: SortedKeys[InstantKey], key: InstantKey) -> None:
        keys.add(key)
        self._undo.append(partial(keys.discard, key))

    def _discard_key(self, keys: SortedKeys[InstantKey], key: InstantKey) -> None:
        keys.discard(key)
        self._undo.append(partial(keys.add, key))

    # --- external tasks --------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> ExternalTask | None:
        return self.tasks.get(task_id)

    def insert_task(self, task: ExternalTask) -> None:
        self._insert(self.tasks, task.task_id, task)
        self._index(task)
        self._undo.append(partial(self._unindex, task))
        siblings = self.tasks_of.setdefault(task.instance_id, [])
        siblings.append(task.task_id)
        self._undo.append(siblings.pop)

    def update_task(self, task: ExternalTask) -> None:
        before = self.tasks[task.task_id]
        self._swap(before, task)
        self._undo.append(partial(self._swap, task, before))

    def rewrite_variables(self, task: ExternalTask) -> None:
        """The row is kept as a whole anyway."""

    def rewrite_priority(self, task: ExternalTask) -> None:
        """The row is kept as a whole anyway."""

    def _swap(self, before: ExternalTask, after: ExternalTask) -> None:
        self._unindex(before)
        self.tasks[after.task_id] = after
        self._index(after)

    def _index(self, task: ExternalTask) -> None:
        if task.state is TaskState.LOCKED and task.lease is not None:
            self.locked.add((task.lease.until_ms, task.task_id))
        elif task.state is TaskState.READY and not task.draining:
            if task.available_at_ms > task.updated_at_ms:
                waiting = self.waiting_by_topic.setdefault(task.topic, SortedKeys())
                waiting.add((task.available_at_ms, task.task_id))
            else:
                self.ready_by_topic.setdefault(task.topic, SortedKeys()).add(_ready_key(task))

    def _unindex(self, task: ExternalTask) -> None:
        if task.state is TaskState.LOCKED and task.lease is not None:
            self.locked.discard((task.lease.until_ms, task.task_id))
        elif task.state is TaskState.READY and not task.draining:
            if task.available_at_ms > task.updated_at_ms:
                self.waiting_by_topic[task.topic].discard((task.available_at_ms, task.task_id))
            else:
                self.ready_by_topic[task.topic].discard(_ready_key(task))

    def ready(self, topics: Sequence[str], now_ms: InstantMs, limit: int) -> list[ExternalTask]:
        sources: list[Iterator[ReadyKey]] = []
        for topic in topics:
            sources.append(iter(self.ready_by_topic.get(topic, ())))
            sources.append(iter(sorted(self._due_again(topic, now_ms))))
        return [self.tasks[key[2]] for key in islice(heapq.merge(*sources), limit)]

    def _due_again(self, topic: str, now_ms: InstantMs) -> Iterator[ReadyKey]:
        for available_at_ms, task_id in self.waiting_by_topic.get(topic, ()):
            if available_at_ms > now_ms:
                return
            yield _ready_key(self.tasks[task_id])

    def next_available(self, topic: str, now_ms: InstantMs) -> InstantMs | None:
        waiting = self.waiting_by_topic.get(topic)
        return None if waiting is None else _first_instant(waiting, now_ms)

    def past_due(self, now_ms: InstantMs, limit: int, *, needs_instance: bool) -> list[ExternalTask]:
        found: list[ExternalTask] = []
        for until_ms, task_id in self.locked:
            if until_ms > now_ms or len(found) == limit:
                break
            task = self.tasks[task_id]
            if expiry_needs_instance(task) is needs_instance:
                found.append(task)
        return found

    def next_expiry(self, now_ms: InstantMs) -> InstantMs | None:
        return _first_instant(self.locked, now_ms)

    def leases_of(self, worker_id: str, boot_id: str) -> list[ExternalTask]:
        found: list[ExternalTask] = []
        for _, task_id in self.locked:
            task = self.tasks[task_id]
            if task.lease is not None and _is_boot_of(task.lease.holder, worker_id, boot_id):
                found.append(task)
        return sorted(found, key=lambda task: task.task_id)

    def attempt(self, task_id: str, fence: int) -> TaskAttempt | None:
        return self.attempts.get(task_id, {}).get(fence)

    def newest_attempt(self, task_id: str, worker_id: str) -> TaskAttempt | None:
        of_worker = [item for item in self.attempts.get(task_id, {}).values() if item.worker_id == worker_id]
        return max(of_worker, key=lambda item: item.fence, default=None)

    def insert_attempt(self, attempt: TaskAttempt) -> None:
        self._insert(self.attempts.setdefault(attempt.task_id, {}), attempt.fence, attempt)

    # --- instances -------------------------------------------------------------------------------------------------

    def instance(self, instance_id: str, *, is_new: bool = False) -> InstanceState | None:
        row = self.instances.get(instance_id)
        return None if row is None else InstanceState(row.version, row.status, row.definition_id, row.business_key)

    def insert_instance(self, instance_id: str, row: NewInstance, state: InstanceState, at_ms: InstantMs) -> None:
        summary = InstanceSummary(
            instance_id, row.definition_id, row.process_key, row.business_key, state.status, state.version, at_ms, None
        )
        self._insert(self.instances, instance_id, summary)

    def update_instance(self, instance_id: str, state: InstanceState, ended_at_ms: InstantMs | None) -> None:
        old = self.instances[instance_id]
        new = InstanceSummary(
            instance_id,
            old.definition_id,
            old.process_key,
            old.business_key,
            state.status,
            state.version,
            old.started_at_ms,
            old.ended_at_ms if ended_at_ms is None else ended_at_ms,
        )
        self._replace(self.instances, instance_id, new)
        if ended_at_ms is not None:
            self._no_longer_ended(old)
            self._add_key(self.ended, (ended_at_ms, instance_id))

    def _no_longer_ended(self, row: InstanceSummary) -> None:
        if row.ended_at_ms is not None:
            self._discard_key(self.ended, (row.ended_at_ms, row.instance_id))

    def ended_before(self, before_ms: InstantMs, limit: int) -> list[str]:
        earlier = takewhile(lambda key: key[0] < before_ms, self.ended)
        found = (instance_id for _, instance_id in earlier if self.instances[instance_id].status in ENDED_STATUSES)
        return list(islice(found, limit))

    def delete_instance(self, instance_id: str) -> int:
        deleted = sum(self._delete_task(task_id) for task_id in self._delete(self.tasks_of, instance_id) or ())
        steps = self._delete(self.history, instance_id)
        deleted += 0 if steps is None else len(steps)
        self._delete(self.snapshots, instance_id)
        for timer_id in _ids_of(self.timers, instance_id):
            self.delete_timer(timer_id)
        for table in (self.subscriptions, self.user_tasks, self.incidents):
            for row_id in _ids_of(table, instance_id):
                self._delete(table, row_id)
        self.drop_inbox(instance_id)
        row = self._delete(self.instances, instance_id)
        if row is not None:
            self._no_longer_ended(row)
        return deleted

    def _delete_task(self, task_id: str) -> int:
        """→ how many rows: its own, and those of its attempts."""
        task = self.tasks[task_id]
        self._unindex(task)
        self._undo.append(partial(self._index, task))
        self._delete(self.tasks, task_id)
        attempts = self._delete(self.attempts, task_id)
        return 1 if attempts is None else 1 + len(attempts)

    def append_history(self, instance_id: str, version: int, at_ms: InstantMs, facts: bytes) -> None:
        steps = self.history.setdefault(instance_id, [])
        steps.append((version, at_ms, facts))
        self._undo.append(steps.pop)

    def put_snapshot(self, instance_id: str, version: int, snapshot: bytes) -> None:
        self._replace(self.snapshots, instance_id, (version, snapshot))

    # --- what waits ------------------------------------------------------------------------------------------------

    def insert_timer(self, instance_id: str, row: TimerRow) -> None:
        self._insert(self.timers, row.timer_id, Waiting(instance_id, row))
        self._add_key(self.timers_by_due, (row.due_at_ms, row.timer_id))

    def delete_timer(self, timer_id: str) -> None:
        waiting = self._delete(self.timers, timer_id)
        if waiting is not None and isinstance(waiting.row, TimerRow):
            self._discard_key(self.timers_by_due, (waiting.row.due_at_ms, timer_id))

    def insert_subscription(self, instance_id: str, row: SubscriptionRow, now_ms: InstantMs) -> None:
        self._insert(self.subscriptions, row.subscription_id, Waiting(instance_id, row, now_ms))

    def delete_subscription(self, subscription_id: str) -> None:
        self._delete(self.subscriptions, subscription_id)

    def insert_user_task(self, instance_id: str, row: UserTaskRow, at_ms: InstantMs) -> None:
        self._insert(self.user_tasks, row.user_task_id, Waiting(instance_id, row, at_ms))

    def assign_user_task(self, row: UserTaskAssignment) -> None:
        waiting = self.user_tasks.get(row.user_task_id)
        if waiting is not None and isinstance(waiting.row, UserTaskRow):
            assigned = attrs.evolve(waiting.row, assignee=row.assignee)
            self._replace(self.user_tasks, row.user_task_id, Waiting(waiting.instance_id, assigned, waiting.at_ms))

    def delete_user_task(self, user_task_id: str) -> None:
        self._delete(self.user_tasks, user_task_id)

    def has_incident(self, instance_id: str, incident_id: str) -> bool:
        waiting = self.incidents.get(incident_id)
        return waiting is not None and waiting.instance_id == instance_id

    def insert_incident(self, instance_id: str, row: IncidentRow, at_ms: InstantMs) -> None:
        self._insert(self.incidents, row.incident_id, Waiting(instance_id, row, at_ms))

    def delete_incident(self, incident_id: str) -> None:
        self._delete(self.incidents, incident_id)

    # --- messages and the inbox ------------------------------------------------------------------------------------

    def knows_message(self, message_id: str) -> bool:
        return message_id in self.messages

    def has_message(self, message_id: str) -> bool:
        stored = self.messages.get(message_id)
        return stored is not None and not stored.is_consumed

    def insert_message(self, row: MessageRow) -> None:
        self._insert(self.messages, row.message_id, StoredMessage(row))
        self._add_key(self.messages_by_arrival, (row.published_at_ms, row.message_id))

    def consume_message(self, message_id: str) -> None:
        row = attrs.evolve(self.messages[message_id].row, variables=b"")
        self._replace(self.messages, message_id, StoredMessage(row, is_consumed=True))
        self._discard_key(self.messages_by_arrival, (row.published_at_ms, message_id))

    def drop_messages(self, now_ms: InstantMs, given_up: tuple[str, ...]) -> int:
        since = self._awaited_since()
        hopeless = set(given_up)
        ended = [
            stored
            for stored in self.messages.values()
            if stored.row.expires_at_ms <= now_ms
            and (stored.is_consumed or stored.row.message_id in hopeless or not _is_awaited(stored.row, since))
        ]
        for stored in ended:
            self._delete(self.messages, stored.row.message_id)
            if not stored.is_consumed:
                key = (stored.row.published_at_ms, stored.row.message_id)
                self._discard_key(self.messages_by_arrival, key)
        return sum(not stored.is_consumed for stored in ended)

    def _awaited_since(self) -> dict[_Address, InstantMs]:
        since: dict[_Address, InstantMs] = {}
        for waiting in self.subscriptions.values():
            assert isinstance(waiting.row, SubscriptionRow), waiting.row
            name, key, at_ms = waiting.row.name, waiting.row.key, waiting.at_ms
            addresses: tuple[_Address, ...] = (
                (name, key, None),
                (name, key, waiting.instance_id),
                (name, "", waiting.instance_id),
            )
            for address in addresses:
                since[address] = min(at_ms, since.get(address, at_ms))
        for start in (start for group in self.start_subscriptions.values() for start in group):
            address = (start.name, None, None)
            since[address] = min(start.opened_at_ms, since.get(address, start.opened_at_ms))
        return since

    def has_inbox_row(self, instance_id: str, dedupe_key: str) -> bool:
        return (instance_id, dedupe_key) in self.inbox

    def insert_inbox_row(self, row: InboxRow) -> None:
        self._insert(self.inbox, (row.instance_id, row.dedupe_key), row)

    def delete_inbox_row(self, instance_id: str, dedupe_key: str) -> None:
        self._delete(self.inbox, (instance_id, dedupe_key))

    def drop_inbox(self, instance_id: str) -> None:
        for key in [key for key in self.inbox if key[0] == instance_id]:
            self._delete(self.inbox, key)

    # --- definitions -----------------------------------------------------------------------------------------------

    def latest_definition(self, key: str) -> DefinitionRow | None:
        versions = self.definitions.get(key)
        return versions[-1] if versions else None

    def insert_definition(self, row: DefinitionRow) -> None:
        versions = self.definitions.setdefault(row.key, [])
        versions.append(row)
        self._undo.append(versions.pop)

    def has_definition(self, definition_id: str) -> bool:
        versions = self.definitions.get(process_key_of(definition_id), ())
        return any(row.definition_id == definition_id for row in versions)

    def has_instances_of(self, definition_id: str) -> bool:
        return any(row.definition_id == definition_id for row in self.instances.values())

    def delete_definition(self, definition_id: str) -> None:
        key = process_key_of(definition_id)
        left = [row for row in self.definitions[key] if row.definition_id != definition_id]
        self._replace(self.definitions, key, left)

    def replace_start_subscriptions(self, key: str, row: DefinitionRow | None, now_ms: InstantMs) -> None:
        before = {start.name: start.opened_at_ms for start in self.start_subscriptions.get(key, ())}
        names = () if row is None else row.start_messages
        starts = tuple(
            StartSubscription(row.definition_id, key, name, before.get(name, now_ms))
            for name in names
            if row is not None
        )
        self._replace(self.start_subscriptions, key, starts)

    def process(self, key: str) -> ProcessRow | None:
        return self.processes.get(key)

    def put_process(self, row: ProcessRow) -> None:
        self._replace(self.processes, row.key, row)

    # --- API keys --------------------------------------------------------------------------------------------------

    def api_key(self, key_id: str) -> ApiKeyRow | None:
        return self.api_keys.get(key_id)

    def insert_api_key(self, row: ApiKeyRow) -> None:
        self._insert(self.api_keys, row.key_id, row)

    def revoke_api_key(self, key_id: str, now_ms: InstantMs) -> None:
        self._replace(self.api_keys, key_id, attrs.evolve(self.api_keys[key_id], revoked_at_ms=now_ms))


def _ids_of(table: dict[str, Waiting], instance_id: str) -> list[str]:
    return [row_id for row_id, waiting in table.items() if waiting.instance_id == instance_id]


def _is_awaited(message: MessageRow, since: Mapping[_Address, InstantMs]) -> bool:
    """Somebody waits for it who did so before its time to live ended."""
    addresses: list[_Address] = [(message.name, message.key, message.instance_id)]
    if message.instance_id is None:
        addresses.append((message.name, None, None))
    return any(since[address] < message.expires_at_ms for address in addresses if address in since)


def _ready_key(task: ExternalTask) -> ReadyKey:
    return (-task.priority, task.created_at_ms, task.task_id)


def _first_instant(keys: SortedKeys[InstantKey], after_ms: InstantMs) -> InstantMs | None:
    return next((instant for instant, _ in keys.from_key((after_ms + 1, ""))), None)


def _is_boot_of(holder: Holder, worker_id: str, boot_id: str) -> bool:
    return holder.worker_id == worker_id and holder.boot_id == boot_id
