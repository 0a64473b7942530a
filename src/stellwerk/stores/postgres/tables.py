"""The careful way's view of the PostgreSQL tables: rows that were locked and read before, under its own writes.

Reading is synchronous, so every row must have been asked for (`prefetch`). The writes are gathered and sent together.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from operator import itemgetter
from typing import NoReturn

import asyncpg
import attrs

from stellwerk.core.changes import IncidentRow, SubscriptionRow, TimerRow, UserTaskAssignment, UserTaskRow
from stellwerk.core.external_task import ExternalTask, TaskAttempt, TaskState
from stellwerk.errors import InvariantBroken
from stellwerk.instants import InstantMs
from stellwerk.json_values import dumps
from stellwerk.ports import ApiKeyRow, DefinitionRow, InboxRow, MessageRow, NewInstance, ProcessRow
from stellwerk.stores import rows
from stellwerk.stores.catalogue import split_definition_id
from stellwerk.stores.key_rows import api_key_to_row
from stellwerk.stores.postgres.prefetch import FetchedRows, is_bigint
from stellwerk.stores.postgres.statements import Write, send_rows
from stellwerk.stores.rows import SqlRow
from stellwerk.stores.tables import DataFault, InstanceState

__all__ = ["PostgresTables"]

_WAVE_ORDER = (
    Write.APPEND_HISTORY,
    Write.INSERT_ATTEMPTS,
    Write.INSERT_TIMERS,
    Write.DELETE_TIMERS,
    Write.INSERT_SUBSCRIPTIONS,
    Write.DELETE_SUBSCRIPTIONS,
    Write.INSERT_USER_TASKS,
    Write.ASSIGN_USER_TASKS,
    Write.DELETE_USER_TASKS,
    Write.INSERT_INCIDENTS,
    Write.DELETE_INCIDENTS,
    Write.CONSUME_MESSAGES,
    Write.INSERT_INBOX,
    Write.DELETE_INBOX,
    Write.DROP_INBOX,
    Write.INSERT_DEFINITIONS,
    Write.DELETE_DEFINITIONS,
    Write.DROP_START_SUBSCRIPTIONS,
    Write.PUT_START_SUBSCRIPTIONS,
    Write.INSERT_API_KEYS,
    Write.REVOKE_API_KEYS,
)
_UPDATES = frozenset(
    {
        Write.UPDATE_INSTANCES,
        Write.END_INSTANCES,
        Write.UPDATE_TASKS,
        Write.REWRITE_VARIABLES,
        Write.REWRITE_PRIORITIES,
    }
)
"""Of rows that are locked: each must still be there."""


@attrs.define
class _Wave:
    """Writes in which no statement stands in another's way: within it, each row is deleted after it is inserted."""

    rows: dict[str, list[SqlRow]] = attrs.field(factory=dict)
    """By statement."""
    barred: set[tuple[str, SqlRow]] = attrs.field(factory=set)
    """(statement, key) of what was deleted, or may be changed only once."""


@attrs.define
class _WrittenInstance:
    state: InstanceState
    ended_at_ms: InstantMs | None = None
    new: tuple[NewInstance, InstantMs] | None = None
    """Set where the row is to be inserted: with when it started."""


class PostgresTables:
    """`Tables` for one transaction. Of tasks and instances only their last state is written."""

    def __init__(self, fetched: FetchedRows) -> None:
        self._fetched = fetched
        self._tasks: dict[str, ExternalTask] = {}
        """As this transaction leaves them."""
        self._inserted_tasks: set[str] = set()
        self._rewritten: set[str] = set()
        self._reprioritised: set[str] = set()
        self._instances: dict[str, _WrittenInstance] = {}
        self._snapshots: dict[str, SqlRow] = {}
        self._attempts: dict[tuple[str, int], TaskAttempt] = {}
        self._messages: dict[str, SqlRow] = {}
        """New ones."""
        self._consumed = dict(fetched.consumed)
        self._incidents = dict(fetched.incidents)
        self._inbox = set(fetched.inbox)
        self._definitions = dict(fetched.definitions)
        self._api_keys = dict(fetched.api_keys)
        self._deployed = set(fetched.deployed)
        self._processes = dict(fetched.processes)
        self._processes_written: set[str] = set()
        self._starts: dict[str, tuple[DefinitionRow | None, InstantMs]] = {}
        self._waves = [_Wave()]

    # --- sending ---------------------------------------------------------------------------------------------------

    @property
    def has_written(self) -> bool:
        written = (self._tasks, self._instances, self._messages, self._processes_written, self._starts)
        return any(written) or bool(self._waves[0].rows)

    async def send(self, connection: asyncpg.Connection) -> None:
        """:raises InvariantBroken: a locked row is gone."""
        self._add_starts()
        for statement, parameters in self._statements():
            written = await send_rows(connection, statement, parameters)
            if statement in _UPDATES and written != len(parameters):
                raise InvariantBroken(f"of {len(parameters)} locked rows only {written} were there: {statement[:60]}")

    def _statements(self) -> Iterable[tuple[str, list[SqlRow]]]:
        found = (
            (Write.INSERT_INSTANCES, self._new_instances()),
            (Write.UPDATE_INSTANCES, self._stepped_instances()),
            (Write.END_INSTANCES, self._ended_instances()),
            (Write.PUT_SNAPSHOTS, list(self._snapshots.values())),
            (Write.INSERT_TASKS, self._new_tasks()),
            (Write.UPDATE_TASKS, self._changed_tasks()),
            (Write.REWRITE_VARIABLES, self._rewritten_tasks()),
            (Write.REWRITE_PRIORITIES, self._reprioritised_tasks()),
            (Write.INSERT_MESSAGES, [self._messages[key] for key in sorted(self._messages)]),
            (Write.PUT_PROCESSES, [rows.process_to_row(self._processes[key]) for key in self._processes_written]),
        )
        yield from ((statement, parameters) for statement, parameters in found if parameters)
        for wave in self._waves:
            yield from ((statement, wave.rows[statement]) for statement in _WAVE_ORDER if statement in wave.rows)

    def _new_instances(self) -> list[SqlRow]:
        """In order of their ids, as tasks and messages: should another node insert the same ones, one waits for the
        other, and not each for each."""
        return [
            (
                instance_id,
                new.definition_id,
                new.process_key,
                new.business_key,
                written.state.status,
                written.state.version,
                started_at_ms,
                written.ended_at_ms,
            )
            for instance_id, written in sorted(self._instances.items(), key=itemgetter(0))
            if written.new is not None
            for new, started_at_ms in (written.new,)
        ]

    def _stepped_instances(self) -> list[SqlRow]:
        return [
            (instance_id, written.state.status, written.state.version)
            for instance_id, written in self._instances.items()
            if written.new is None and written.ended_at_ms is None
        ]

    def _ended_instances(self) -> list[SqlRow]:
        return [
            (instance_id, written.state.status, written.state.version, written.ended_at_ms)
            for instance_id, written in self._instances.items()
            if written.new is None and written.ended_at_ms is not None
        ]

    def _new_tasks(self) -> list[SqlRow]:
        tasks = [self._tasks[task_id] for task_id in sorted(self._inserted_tasks)]
        return [(*rows.fixed_task_row(task), *rows.moving_task_row(task)) for task in tasks]

    def _changed_tasks(self) -> list[SqlRow]:
        return [
            (task_id, *rows.moving_task_row(task))
            for task_id, task in self._tasks.items()
            if task_id not in self._inserted_tasks
        ]

    def _rewritten_tasks(self) -> list[SqlRow]:
        changed = sorted(self._rewritten - self._inserted_tasks)
        return [(task_id, self._tasks[task_id].variables.decode()) for task_id in changed]

    def _reprioritised_tasks(self) -> list[SqlRow]:
        changed = sorted(self._reprioritised - self._inserted_tasks)
        return [(task_id, self._tasks[task_id].priority) for task_id in changed]

    def _add_starts(self) -> None:
        """The start subscriptions of the newest version of each process that was deployed."""
        for key, (row, now_ms) in self._starts.items():
            names = [] if row is None else list(dict.fromkeys(row.start_messages))
            self._write(Write.DROP_START_SUBSCRIPTIONS, (key, dumps(names).decode()))
            for name in names:
                assert row is not None
                self._write(Write.PUT_START_SUBSCRIPTIONS, (key, name, row.definition_id, now_ms))
        self._starts.clear()

    # --- waves -----------------------------------------------------------------------------------------------------

    def _write(self, statement: str, parameters: SqlRow) -> None:
        self._waves[-1].rows.setdefault(statement, []).append(parameters)

    def _delete(self, statement: str, *key: str) -> None:
        self._write(statement, key)
        self._waves[-1].barred.add((statement, key))

    def _insert(self, statement: str, parameters: SqlRow, *bars: tuple[str, SqlRow]) -> None:
        """Behind the wave that bars it: a deletion there would delete this row too."""
        if not self._waves[-1].barred.isdisjoint(bars):
            self._waves.append(_Wave())
        self._write(statement, parameters)

    # --- external tasks --------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> ExternalTask | None:
        task = self._tasks.get(task_id) or self._fetched.tasks.get(task_id)
        if task is None:
            _check_asked(task_id, self._fetched.wanted.tasks)
        return task

    def insert_task(self, task: ExternalTask) -> None:
        if task.task_id in self._tasks or task.task_id in self._fetched.tasks:
            raise DataFault(f"task {task.task_id} is there already")
        self._inserted_tasks.add(task.task_id)
        self._tasks[task.task_id] = task

    def update_task(self, task: ExternalTask) -> None:
        self._tasks[task.task_id] = task

    def rewrite_variables(self, task: ExternalTask) -> None:
        self._rewritten.add(task.task_id)

    def rewrite_priority(self, task: ExternalTask) -> None:
        self._reprioritised.add(task.task_id)

    def ready(self, topics: Sequence[str], now_ms: InstantMs, limit: int) -> list[ExternalTask]:
        found = sorted(self._fetched.ready, key=lambda task: (-task.priority, task.created_at_ms, task.task_id))
        return found[:limit]

    def past_due(self, now_ms: InstantMs, limit: int, *, needs_instance: bool) -> list[ExternalTask]:
        """Judged once more: the database's clock may have been set back since they were found."""
        found = self._fetched.failing if needs_instance else self._fetched.past_due
        due = [(task.lease.until_ms, task.task_id, task) for task in found if task.lease is not None]
        return [task for until_ms, _, task in sorted(due, key=itemgetter(0, 1)) if until_ms <= now_ms]

    def next_expiry(self, now_ms: InstantMs) -> InstantMs | None:
        return self._fetched.next_expiry_ms

    def leases_of(self, worker_id: str, boot_id: str) -> list[ExternalTask]:
        known = {**self._fetched.tasks, **self._tasks}
        return [task for _, task in sorted(known.items(), key=itemgetter(0)) if _is_leased_by(task, worker_id, boot_id)]

    def attempt(self, task_id: str, fence: int) -> TaskAttempt | None:
        attempt = self._attempts.get((task_id, fence)) or self._fetched.attempts.get((task_id, fence))
        if attempt is None and is_bigint(fence):
            _check_asked((task_id, fence), self._fetched.wanted.attempts)
        return attempt

    def newest_attempt(self, task_id: str, worker_id: str) -> TaskAttempt | None:
        stored = self._fetched.newest_attempts.get((task_id, worker_id))
        if stored is None:
            _check_asked((task_id, worker_id), self._fetched.wanted.newest_attempts)
        made = (item for item in self._attempts.values() if item.task_id == task_id and item.worker_id == worker_id)
        found = [*made] if stored is None else [stored, *made]
        return max(found, key=lambda attempt: attempt.fence, default=None)

    def insert_attempt(self, attempt: TaskAttempt) -> None:
        self._attempts[attempt.task_id, attempt.fence] = attempt
        self._write(Write.INSERT_ATTEMPTS, rows.attempt_to_row(attempt))

    # --- instances -------------------------------------------------------------------------------------------------

    def instance(self, instance_id: str, *, is_new: bool = False) -> InstanceState | None:
        written = self._instances.get(instance_id)
        if written is not None:
            return written.state
        state = self._fetched.instances.get(instance_id)
        if state is None:
            _check_asked(instance_id, self._fetched.wanted.instances)
        return state

    def insert_instance(self, instance_id: str, row: NewInstance, state: InstanceState, at_ms: InstantMs) -> None:
        self._instances[instance_id] = _WrittenInstance(state, new=(row, at_ms))

    def update_instance(self, instance_id: str, state: InstanceState, ended_at_ms: InstantMs | None) -> None:
        written = self._instances.setdefault(instance_id, _WrittenInstance(state))
        written.state = state
        if ended_at_ms is not None:
            written.ended_at_ms = ended_at_ms

    def ended_before(self, before_ms: InstantMs, limit: int) -> list[str]:
        return _has_its_own_statement("pruning")

    def delete_instance(self, instance_id: str) -> int:
        return _has_its_own_statement("pruning")

    def append_history(self, instance_id: str, version: int, at_ms: InstantMs, facts: bytes) -> None:
        self._write(Write.APPEND_HISTORY, (instance_id, version, at_ms, facts.decode()))

    def put_snapshot(self, instance_id: str, version: int, snapshot: bytes) -> None:
        self._snapshots[instance_id] = (instance_id, version, snapshot)

    # --- what waits ------------------------------------------------------------------------------------------------

    def insert_timer(self, instance_id: str, row: TimerRow) -> None:
        parameters = (row.timer_id, instance_id, row.element_id, row.due_at_ms)
        self._insert(Write.INSERT_TIMERS, parameters, (Write.DELETE_TIMERS, (row.timer_id,)))

    def delete_timer(self, timer_id: str) -> None:
        self._delete(Write.DELETE_TIMERS, timer_id)

    def insert_subscription(self, instance_id: str, row: SubscriptionRow, now_ms: InstantMs) -> None:
        key = row.subscription_id
        parameters = (key, instance_id, row.element_id, row.name, row.key, now_ms)
        self._insert(Write.INSERT_SUBSCRIPTIONS, parameters, (Write.DELETE_SUBSCRIPTIONS, (key,)))

    def delete_subscription(self, subscription_id: str) -> None:
        self._delete(Write.DELETE_SUBSCRIPTIONS, subscription_id)

    def insert_user_task(self, instance_id: str, row: UserTaskRow, at_ms: InstantMs) -> None:
        parameters = rows.user_task_to_row(instance_id, row, at_ms)
        self._insert(Write.INSERT_USER_TASKS, parameters, (Write.DELETE_USER_TASKS, (row.user_task_id,)))

    def assign_user_task(self, row: UserTaskAssignment) -> None:
        once = (Write.ASSIGN_USER_TASKS, (row.user_task_id,))
        self._insert(Write.ASSIGN_USER_TASKS, (row.user_task_id, row.assignee), once)
        self._waves[-1].barred.add(once)

    def delete_user_task(self, user_task_id: str) -> None:
        self._delete(Write.DELETE_USER_TASKS, user_task_id)

    def has_incident(self, instance_id: str, incident_id: str) -> bool:
        if incident_id not in self._incidents:
            _check_asked(incident_id, self._fetched.wanted.incidents)
        return self._incidents.get(incident_id) == instance_id

    def insert_incident(self, instance_id: str, row: IncidentRow, at_ms: InstantMs) -> None:
        self._incidents[row.incident_id] = instance_id
        parameters = rows.incident_to_row(instance_id, row, at_ms)
        self._insert(Write.INSERT_INCIDENTS, parameters, (Write.DELETE_INCIDENTS, (row.incident_id,)))

    def delete_incident(self, incident_id: str) -> None:
        self._incidents.pop(incident_id, None)
        self._delete(Write.DELETE_INCIDENTS, incident_id)

    # --- messages and the inbox ------------------------------------------------------------------------------------

    def knows_message(self, message_id: str) -> bool:
        if message_id not in self._consumed:
            _check_asked(message_id, self._fetched.wanted.messages)
        return message_id in self._consumed

    def has_message(self, message_id: str) -> bool:
        return self.knows_message(message_id) and not self._consumed[message_id]

    def insert_message(self, row: MessageRow) -> None:
        self._consumed[row.message_id] = False
        self._messages[row.message_id] = rows.message_to_row(row)

    def consume_message(self, message_id: str) -> None:
        self._consumed[message_id] = True
        self._write(Write.CONSUME_MESSAGES, (message_id,))

    def drop_messages(self, now_ms: InstantMs, given_up: tuple[str, ...]) -> int:
        return _has_its_own_statement("dropping messages")

    def has_inbox_row(self, instance_id: str, dedupe_key: str) -> bool:
        key = (instance_id, dedupe_key)
        if key not in self._inbox:
            _check_asked(key, self._fetched.wanted.inbox)
        return key in self._inbox

    def insert_inbox_row(self, row: InboxRow) -> None:
        key = (row.instance_id, row.dedupe_key)
        self._inbox.add(key)
        parameters = (*key, row.command.decode())
        self._insert(Write.INSERT_INBOX, parameters, (Write.DELETE_INBOX, key), (Write.DROP_INBOX, (row.instance_id,)))

    def delete_inbox_row(self, instance_id: str, dedupe_key: str) -> None:
        self._inbox.discard((instance_id, dedupe_key))
        self._delete(Write.DELETE_INBOX, instance_id, dedupe_key)

    def drop_inbox(self, instance_id: str) -> None:
        self._inbox = {key for key in self._inbox if key[0] != instance_id}
        self._delete(Write.DROP_INBOX, instance_id)

    # --- definitions -----------------------------------------------------------------------------------------------

    def latest_definition(self, key: str) -> DefinitionRow | None:
        row = self._definitions.get(key)
        if row is None:
            _check_asked(key, self._fetched.wanted.definitions)
        return row

    def insert_definition(self, row: DefinitionRow) -> None:
        self._definitions[row.key] = row
        self._deployed.add(row.definition_id)
        *columns, adopt_java = rows.definition_to_row(row)
        self._write(Write.INSERT_DEFINITIONS, (*columns, bool(adopt_java)))

    def has_definition(self, definition_id: str) -> bool:
        if definition_id not in self._deployed:
            _check_asked(definition_id, self._fetched.wanted.definition_ids)
        return definition_id in self._deployed

    def has_instances_of(self, definition_id: str) -> bool:
        """One is deleted in a transaction of its own."""
        return self._fetched.is_in_use

    def delete_definition(self, definition_id: str) -> None:
        named = split_definition_id(definition_id)
        assert named is not None, definition_id
        self._deployed.discard(definition_id)
        self._definitions = {key: row for key, row in self._definitions.items() if key != named[0]}
        if self._fetched.next_newest is not None:
            self._definitions[named[0]] = self._fetched.next_newest
        self._write(Write.DELETE_DEFINITIONS, named)

    def replace_start_subscriptions(self, key: str, row: DefinitionRow | None, now_ms: InstantMs) -> None:
        self._starts[key] = row, now_ms

    def process(self, key: str) -> ProcessRow | None:
        if key not in self._processes:
            _check_asked(key, self._fetched.wanted.processes)
        return self._processes.get(key)

    def put_process(self, row: ProcessRow) -> None:
        self._processes[row.key] = row
        self._processes_written.add(row.key)

    # --- API keys --------------------------------------------------------------------------------------------------

    def api_key(self, key_id: str) -> ApiKeyRow | None:
        row = self._api_keys.get(key_id)
        if row is None:
            _check_asked(key_id, self._fetched.wanted.api_keys)
        return row

    def insert_api_key(self, row: ApiKeyRow) -> None:
        self._api_keys[row.key_id] = row
        self._write(Write.INSERT_API_KEYS, api_key_to_row(row))

    def revoke_api_key(self, key_id: str, now_ms: InstantMs) -> None:
        self._api_keys[key_id] = attrs.evolve(self._api_keys[key_id], revoked_at_ms=now_ms)
        self._write(Write.REVOKE_API_KEYS, (key_id, now_ms))


def _check_asked(key: object, asked: Container[object]) -> None:
    if key not in asked:
        raise InvariantBroken(f"the row {key} was neither locked nor read before it was needed")


def _has_its_own_statement(what: str) -> NoReturn:
    raise InvariantBroken(f"{what} is not done row by row on PostgreSQL")


def _is_leased_by(task: ExternalTask, worker_id: str, boot_id: str) -> bool:
    if task.state is not TaskState.LOCKED or task.lease is None:
        return False
    return task.lease.holder.worker_id == worker_id and task.lease.holder.boot_id == boot_id
