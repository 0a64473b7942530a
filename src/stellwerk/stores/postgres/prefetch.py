"""Which rows operations concern, and reading them: locked, in the same order everywhere, before anything is judged.

The order: instances, tasks, messages, incidents, inbox rows, API keys, each by id; then the keys of what is deployed,
and of what starts.
The instant by which leases are judged is read after all locks, since any of them may have been waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

import asyncpg
import attrs

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask, OutcomeKind, TaskAttempt
from stellwerk.ids import process_key_of
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    ApiKeyRow,
    Changeset,
    CheckRepeat,
    DefinitionRow,
    DeleteDefinition,
    DeployDefinitions,
    DropMessages,
    ExpireLocks,
    ExtendLease,
    FailTask,
    FetchAndLock,
    LeaseTasks,
    NewInstance,
    Operation,
    ProcessRow,
    PruneInstances,
    PublishMessage,
    ReleaseLeases,
    RenewLeases,
    ResumeSession,
    RevokeApiKey,
    SetProcessEnabled,
    SetTaskPriority,
    SetTaskRetries,
    StoreApiKey,
)
from stellwerk.stores import rows
from stellwerk.stores.catalogue import split_definition_id
from stellwerk.stores.key_rows import API_KEY_COLUMNS, api_key_from_row
from stellwerk.stores.postgres.clock_watch import LeaseTime
from stellwerk.stores.postgres.parameters import findable
from stellwerk.stores.tables import InstanceState

__all__ = ["FetchedRows", "Wanted", "fetch_rows", "is_bigint", "is_scan"]

_BIGINT_MAX = 2**63 - 1

_TASK_COLUMNS = ", ".join(rows.TASK_COLUMNS)
_ATTEMPT_COLUMNS = ", ".join(f"a.{column}" for column in rows.ATTEMPT_COLUMNS)
_DEFINITION_COLUMNS = ", ".join(f"d.{column}" for column in rows.DEFINITION_COLUMNS)

_LOCK_INSTANCES = """
SELECT instance_id, version, status, definition_id, business_key FROM stellwerk.instances
WHERE instance_id = ANY($1::text[]) ORDER BY instance_id FOR UPDATE"""
_LOCK_TASKS = f"""
SELECT {_TASK_COLUMNS} FROM stellwerk.external_tasks
WHERE task_id = ANY($1::text[]) ORDER BY task_id FOR UPDATE"""  # noqa: S608 -- constants, here and below
_LOCK_MESSAGES = """
SELECT message_id, is_consumed FROM stellwerk.messages
WHERE message_id = ANY($1::text[]) ORDER BY message_id FOR UPDATE"""
_LOCK_INCIDENTS = """
SELECT incident_id, instance_id FROM stellwerk.incidents
WHERE incident_id = ANY($1::text[]) ORDER BY incident_id FOR UPDATE"""
_LOCK_INBOX = """
SELECT i.instance_id, i.dedupe_key
FROM unnest($1::text[], $2::text[]) AS wanted (instance_id, dedupe_key)
JOIN stellwerk.inbox i ON i.instance_id = wanted.instance_id AND i.dedupe_key = wanted.dedupe_key
ORDER BY i.instance_id, i.dedupe_key FOR UPDATE OF i"""
_LOCK_API_KEYS = f"""
SELECT {", ".join(API_KEY_COLUMNS)} FROM stellwerk.api_keys
WHERE key_id = ANY($1::text[]) ORDER BY key_id FOR UPDATE"""  # noqa: S608
_LOCK_PROCESS_KEYS = """
SELECT pg_advisory_xact_lock(hashtextextended('stellwerk definition ' || key, 0)) FROM unnest($1::text[]) AS key"""
_SHARE_PROCESS_KEYS = _LOCK_PROCESS_KEYS.replace("xact_lock", "xact_lock_shared")
# Whoever inserts one waits, and sees then what became of its definition.
_LOCK_OUT_NEW_INSTANCES = "LOCK TABLE stellwerk.instances IN SHARE MODE"
_IS_IN_USE = "SELECT EXISTS (SELECT FROM stellwerk.instances WHERE definition_id = $1)"
_DEPLOYED = """
SELECT d.process_key || ':' || d.version FROM unnest($1::text[], $2::bigint[]) AS wanted (key, version)
JOIN stellwerk.definitions d ON d.process_key = wanted.key AND d.version = wanted.version"""
_PROCESSES = f"""
SELECT {", ".join(rows.PROCESS_COLUMNS)} FROM stellwerk.processes WHERE process_key = ANY($1::text[])"""  # noqa: S608
_NEXT_NEWEST = f"""
SELECT {_DEFINITION_COLUMNS} FROM stellwerk.definitions d
WHERE process_key = $1 AND version <> $2 ORDER BY version DESC LIMIT 1"""  # noqa: S608
_LATEST_DEFINITIONS = f"""
SELECT {_DEFINITION_COLUMNS} FROM unnest($1::text[]) AS wanted (key) CROSS JOIN LATERAL (
    SELECT * FROM stellwerk.definitions WHERE process_key = wanted.key ORDER BY version DESC LIMIT 1
) AS d"""  # noqa: S608
_ATTEMPTS = f"""
SELECT {_ATTEMPT_COLUMNS} FROM unnest($1::text[], $2::bigint[]) AS wanted (task_id, fence)
JOIN stellwerk.task_attempts a ON a.task_id = wanted.task_id AND a.fence = wanted.fence"""  # noqa: S608
_NEWEST_ATTEMPTS = f"""
SELECT {_ATTEMPT_COLUMNS} FROM unnest($1::text[], $2::text[]) AS wanted (task_id, worker_id) CROSS JOIN LATERAL (
    SELECT * FROM stellwerk.task_attempts
    WHERE task_id = wanted.task_id AND worker_id = wanted.worker_id ORDER BY fence DESC LIMIT 1
) AS a"""  # noqa: S608

# Scans take what nobody else has locked. The CTE is materialized: a sub-select in a condition may run more than once,
# and then takes more rows than its limit. The instant stands in a sub-select, which is asked once.
_TAKE_READY = f"""
WITH waiting AS MATERIALIZED (
    SELECT found.* FROM unnest($1::text[]) AS wanted (topic) CROSS JOIN LATERAL (
        SELECT {_TASK_COLUMNS} FROM stellwerk.external_tasks
        WHERE task_type = wanted.topic AND state = 'READY' AND NOT draining AND available_at <= updated_at
        ORDER BY -priority, created_at, task_id LIMIT $2 FOR UPDATE SKIP LOCKED
    ) AS found
), due_again AS MATERIALIZED (
    SELECT found.* FROM unnest($1::text[]) AS wanted (topic) CROSS JOIN LATERAL (
        SELECT {_TASK_COLUMNS} FROM stellwerk.external_tasks
        WHERE task_type = wanted.topic AND state = 'READY' AND NOT draining AND available_at > updated_at
            AND available_at <= (SELECT coalesce($3::bigint, stellwerk.now_ms()))
        ORDER BY -priority, created_at, task_id LIMIT $2 FOR UPDATE SKIP LOCKED
    ) AS found
) SELECT * FROM waiting UNION ALL SELECT * FROM due_again"""  # noqa: S608
_EXPIRY_NEEDS_INSTANCE = """
(single_try OR draining OR (lock_expiries_max > 0 AND lock_expiries + 1 >= lock_expiries_max))"""
_TAKE_PAST_DUE = f"""
WITH due AS MATERIALIZED (
    SELECT {_TASK_COLUMNS} FROM stellwerk.external_tasks
    WHERE state = 'LOCKED' AND lock_expire_at <= (SELECT coalesce($1::bigint, stellwerk.now_ms()))
        AND NOT {_EXPIRY_NEEDS_INSTANCE}
    ORDER BY lock_expire_at, task_id LIMIT $2 FOR UPDATE SKIP LOCKED
) SELECT * FROM due"""  # noqa: S608
# These are told, and not changed: the step of their instance decides.
_FAILING = f"""
SELECT {_TASK_COLUMNS} FROM stellwerk.external_tasks
WHERE state = 'LOCKED' AND lock_expire_at <= $1::bigint AND {_EXPIRY_NEEDS_INSTANCE}
ORDER BY lock_expire_at, task_id LIMIT $2"""  # noqa: S608
_NEXT_EXPIRY = """
SELECT min(lock_expire_at) FROM stellwerk.external_tasks WHERE state = 'LOCKED' AND lock_expire_at > $1::bigint"""
_LEASES_OF_BOOT = """
SELECT task_id FROM stellwerk.external_tasks WHERE state = 'LOCKED' AND lock_owner = $1 AND lock_boot_id = $2"""


_SCANS = (FetchAndLock, ResumeSession, ExpireLocks, DropMessages, PruneInstances, DeleteDefinition)


def is_bigint(number: int) -> bool:
    """The database can hold it."""
    return -_BIGINT_MAX <= number <= _BIGINT_MAX


def is_scan(operation: Operation) -> bool:
    """It finds rows by more than their keys, and is done alone."""
    return isinstance(operation, _SCANS)


# --- which rows ----------------------------------------------------------------------------------------------------


@attrs.define
class Wanted:
    """Keys of the rows that operations read. Such as the database cannot hold are left out: they are not there."""

    instances: set[str] = attrs.field(factory=set)
    tasks: set[str] = attrs.field(factory=set)
    attempts: set[tuple[str, int]] = attrs.field(factory=set)
    newest_attempts: set[tuple[str, str]] = attrs.field(factory=set)
    """(task id, worker id)."""
    messages: set[str] = attrs.field(factory=set)
    incidents: set[str] = attrs.field(factory=set)
    inbox: set[tuple[str, str]] = attrs.field(factory=set)
    definitions: set[str] = attrs.field(factory=set)
    """Process keys."""
    deployed: set[str] = attrs.field(factory=set)
    """Those of them whose versions may change."""
    started: set[str] = attrs.field(factory=set)
    """Keys of processes whose versions have to stay."""
    definition_ids: set[str] = attrs.field(factory=set)
    processes: set[str] = attrs.field(factory=set)
    """Keys."""
    api_keys: set[str] = attrs.field(factory=set)

    @classmethod
    def by(cls, operations: Iterable[Operation]) -> Wanted:
        """:raises: what reading an impossible operation ends in."""
        wanted = cls()
        for operation in operations:
            wanted._add(operation)
        return wanted

    @classmethod
    def all_of(cls, parts: Iterable[Wanted]) -> Wanted:
        wanted = cls()
        for part in parts:
            for field in attrs.fields(cls):
                getattr(wanted, field.name).update(getattr(part, field.name))
        return wanted

    def _add(self, operation: Operation) -> None:
        match operation:
            case Changeset():
                self._add_changeset(operation)
            case LeaseTasks():
                self.tasks.update(wish.task_id for wish in operation.leases)
            case SetTaskRetries() | SetTaskPriority():
                self.tasks.add(operation.task_id)
            case FailTask() | ExtendLease():
                self._add_lease(operation.task_id, operation.fence)
            case RenewLeases() | ReleaseLeases():
                for lease in operation.leases:
                    self._add_lease(lease.task_id, lease.fence)
            case ResumeSession():
                for task_id, fence in operation.holding:
                    self._add_lease(task_id, fence)
            case CheckRepeat():
                self._add_repeat(operation)
            case FetchAndLock() | ExpireLocks() | DropMessages() | PruneInstances():
                return
            case _:
                self._add_catalogued(operation)

    def _add_catalogued(
        self,
        operation: DeployDefinitions
        | DeleteDefinition
        | SetProcessEnabled
        | PublishMessage
        | StoreApiKey
        | RevokeApiKey,
    ) -> None:
        match operation:
            case DeployDefinitions():
                for definition in operation.definitions:
                    self._add_process(definition.key)
            case SetProcessEnabled():
                self._add_process(operation.key)
            case DeleteDefinition():
                self._add_process(process_key_of(operation.definition_id))
                self.definition_ids.add(operation.definition_id)
            case PublishMessage():
                self.messages.add(operation.message.message_id)
            case StoreApiKey():
                self.api_keys.add(operation.row.key_id)
            case RevokeApiKey():
                self.api_keys.add(operation.key_id)
            case _:
                assert_never(operation)

    def _add_process(self, key: str) -> None:
        for keys in (self.definitions, self.deployed, self.processes):
            keys.add(key)

    def _add_lease(self, task_id: str, fence: int | None) -> None:
        self.tasks.add(task_id)
        if fence is not None and is_bigint(fence):
            self.attempts.add((task_id, fence))

    def _add_repeat(self, operation: CheckRepeat) -> None:
        self._add_lease(operation.task_id, operation.fence)
        if operation.worker_id is not None and operation.kind is OutcomeKind.FAIL:
            self.newest_attempts.add((operation.task_id, operation.worker_id))

    def _add_changeset(self, changeset: Changeset) -> None:
        instance_id = changeset.instance_id
        # The receivers too: what is sent to an instance must not pass its end.
        self.instances.update((instance_id, *(row.instance_id for row in changeset.inbox_sent)))
        for ending in changeset.endings:
            self._add_lease(ending.task_id, ending.fence)
        self.messages.update(changeset.messages_consumed)
        self.inbox.update((instance_id, dedupe_key) for dedupe_key in changeset.inbox_consumed)
        self.inbox.update((row.instance_id, row.dedupe_key) for row in changeset.inbox_sent)
        self._add_changes(changeset.changes)
        if changeset.new_instance is not None:
            self._add_start(changeset.new_instance)

    def _add_start(self, new: NewInstance) -> None:
        if new.must_be_newest:
            self.definitions.add(new.process_key)
        if new.must_be_deployed:
            self.definition_ids.add(new.definition_id)
            self.processes.add(new.process_key)
            self.started.add(new.process_key)

    def _add_changes(self, changes: RowChanges) -> None:
        self.incidents.update(changes.incidents_resolved)
        self.tasks.update(changes.cancelled_tasks, changes.drained_tasks)
        self.tasks.update(requeue.task_id for requeue in changes.requeued_tasks)


def _in_order(keys: Iterable[str]) -> list[str]:
    return sorted(key for key in keys if _is_storable(key))


def _columns_in_order(pairs: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    storable = sorted(pair for pair in pairs if all(map(_is_storable, pair)))
    return [pair[0] for pair in storable], [pair[1] for pair in storable]


def _is_storable(key: str) -> bool:
    return findable(key) is not None


# --- reading them --------------------------------------------------------------------------------------------------


@attrs.define
class FetchedRows:
    """As they are after the locks were got. What was asked for and is not in here does not exist."""

    wanted: Wanted
    now_ms: InstantMs = 0
    instances: dict[str, InstanceState] = attrs.field(factory=dict)
    tasks: dict[str, ExternalTask] = attrs.field(factory=dict)
    attempts: dict[tuple[str, int], TaskAttempt] = attrs.field(factory=dict)
    newest_attempts: dict[tuple[str, str], TaskAttempt] = attrs.field(factory=dict)
    consumed: dict[str, bool] = attrs.field(factory=dict)
    """By message id."""
    incidents: dict[str, str] = attrs.field(factory=dict)
    """→ instance id."""
    inbox: set[tuple[str, str]] = attrs.field(factory=set)
    definitions: dict[str, DefinitionRow] = attrs.field(factory=dict)
    deployed: set[str] = attrs.field(factory=set)
    """Ids of definitions."""
    processes: dict[str, ProcessRow] = attrs.field(factory=dict)
    is_in_use: bool = False
    """There are instances of the definition that is to be deleted."""
    next_newest: DefinitionRow | None = None
    """Of the same process, without that one."""
    api_keys: dict[str, ApiKeyRow] = attrs.field(factory=dict)
    ready: list[ExternalTask] = attrs.field(factory=list)
    past_due: list[ExternalTask] = attrs.field(factory=list)
    failing: list[ExternalTask] = attrs.field(factory=list)
    next_expiry_ms: InstantMs | None = None


async def fetch_rows(
    connection: asyncpg.Connection, operations: Sequence[Operation], wanted: Wanted, time: LeaseTime
) -> FetchedRows:
    """Lock and read what `operations` want: many that go by keys, or one scan."""
    now_ms = time.now_ms
    fetched = FetchedRows(wanted)
    for operation in operations:
        if isinstance(operation, FetchAndLock):
            await _take_ready(connection, operation, fetched, now_ms)
        elif isinstance(operation, ExpireLocks):
            await _take_past_due(connection, operation, fetched, now_ms)
        elif isinstance(operation, ResumeSession):
            await _find_leases(connection, operation, fetched)
    await _lock_rows(connection, wanted, fetched, time)
    await _read_rows(connection, wanted, fetched)
    fetched.now_ms = await connection.fetchval("SELECT stellwerk.now_ms()") if now_ms is None else now_ms
    for operation in operations:
        if isinstance(operation, ExpireLocks):
            await _find_failing(connection, operation, fetched)
        elif isinstance(operation, DeleteDefinition):
            await _find_users(connection, operation, fetched)
    return fetched


async def _lock_rows(connection: asyncpg.Connection, wanted: Wanted, fetched: FetchedRows, time: LeaseTime) -> None:
    if instance_ids := _in_order(wanted.instances):
        for row in await connection.fetch(_LOCK_INSTANCES, instance_ids):
            fetched.instances[row[0]] = InstanceState(*row[1:])
    if task_ids := _in_order(wanted.tasks):
        for row in await connection.fetch(_LOCK_TASKS, task_ids):
            fetched.tasks[row[0]] = time.as_it_is(rows.task_from_row(row[:]))
    if message_ids := _in_order(wanted.messages):
        fetched.consumed.update(map(tuple, await connection.fetch(_LOCK_MESSAGES, message_ids)))
    if incident_ids := _in_order(wanted.incidents):
        fetched.incidents.update(map(tuple, await connection.fetch(_LOCK_INCIDENTS, incident_ids)))
    if wanted.inbox:
        fetched.inbox.update(map(tuple, await connection.fetch(_LOCK_INBOX, *_columns_in_order(wanted.inbox))))
    if key_ids := _in_order(wanted.api_keys):
        for row in await connection.fetch(_LOCK_API_KEYS, key_ids):
            fetched.api_keys[row[0]] = api_key_from_row(row[:])
    if deployed := _in_order(wanted.deployed):
        await connection.execute(_LOCK_PROCESS_KEYS, deployed)
    if started := _in_order(wanted.started):
        await connection.execute(_SHARE_PROCESS_KEYS, started)


async def _read_rows(connection: asyncpg.Connection, wanted: Wanted, fetched: FetchedRows) -> None:
    """What cannot change any more while those locks are held."""
    if keys := _in_order(wanted.definitions):
        for row in await connection.fetch(_LATEST_DEFINITIONS, keys):
            fetched.definitions[row[0]] = rows.definition_from_row(row[:])
    if named := [named for named in map(split_definition_id, _in_order(wanted.definition_ids)) if named is not None]:
        columns = [key for key, _ in named], [version for _, version in named]
        fetched.deployed.update(row[0] for row in await connection.fetch(_DEPLOYED, *columns))
    if keys := _in_order(wanted.processes):
        for row in await connection.fetch(_PROCESSES, keys):
            fetched.processes[row[0]] = rows.process_from_row(row[:])
    # An attempt has a fence that its task has had.
    earlier = [(task_id, fence) for task_id, fence in wanted.attempts if _may_be_there(fetched, task_id, fence)]
    if earlier:
        fences = [task_id for task_id, _ in earlier], [fence for _, fence in earlier]
        for row in await connection.fetch(_ATTEMPTS, *fences):
            fetched.attempts[row[0], row[1]] = rows.attempt_from_row(row[:])
    if wanted.newest_attempts:
        for row in await connection.fetch(_NEWEST_ATTEMPTS, *_columns_in_order(wanted.newest_attempts)):
            fetched.newest_attempts[row[0], row[2]] = rows.attempt_from_row(row[:])


def _may_be_there(fetched: FetchedRows, task_id: str, fence: int) -> bool:
    task = fetched.tasks.get(task_id)
    return task is not None and fence <= task.fence


# --- scans ---------------------------------------------------------------------------------------------------------


async def _take_ready(
    connection: asyncpg.Connection, operation: FetchAndLock, fetched: FetchedRows, now_ms: InstantMs | None
) -> None:
    topics = _in_order(set(operation.topics))
    limit = min(operation.max_tasks, _BIGINT_MAX)
    if topics and limit > 0:
        found = await connection.fetch(_TAKE_READY, topics, limit, now_ms)
        fetched.ready = [rows.task_from_row(row[:]) for row in found]


async def _take_past_due(
    connection: asyncpg.Connection, operation: ExpireLocks, fetched: FetchedRows, now_ms: InstantMs | None
) -> None:
    found = await connection.fetch(_TAKE_PAST_DUE, now_ms, _limit(operation))
    fetched.past_due = [rows.task_from_row(row[:]) for row in found]
    fetched.tasks.update((task.task_id, task) for task in fetched.past_due)


async def _find_failing(connection: asyncpg.Connection, operation: ExpireLocks, fetched: FetchedRows) -> None:
    found = await connection.fetch(_FAILING, fetched.now_ms, _limit(operation))
    fetched.failing = [rows.task_from_row(row[:]) for row in found]
    fetched.next_expiry_ms = await connection.fetchval(_NEXT_EXPIRY, fetched.now_ms)


async def _find_users(connection: asyncpg.Connection, operation: DeleteDefinition, fetched: FetchedRows) -> None:
    named = split_definition_id(operation.definition_id)
    if named is None or operation.definition_id not in fetched.deployed:
        return
    await connection.execute(_LOCK_OUT_NEW_INSTANCES)
    fetched.is_in_use = await connection.fetchval(_IS_IN_USE, operation.definition_id)
    row = await connection.fetchrow(_NEXT_NEWEST, *named)
    fetched.next_newest = None if row is None else rows.definition_from_row(row[:])


def _limit(operation: ExpireLocks) -> int:
    return max(0, min(operation.limit, _BIGINT_MAX))


async def _find_leases(connection: asyncpg.Connection, operation: ResumeSession, fetched: FetchedRows) -> None:
    """They are locked with the tasks that the worker names, in order; what they are then is what counts."""
    holder = operation.holder
    if _is_storable(holder.worker_id) and _is_storable(holder.boot_id):
        found = await connection.fetch(_LEASES_OF_BOOT, holder.worker_id, holder.boot_id)
        fetched.wanted.tasks.update(row[0] for row in found)
