"""The write path of the embedded stores: what each operation of the port does to the rows."""

from __future__ import annotations

from typing import assert_never

from stellwerk.instants import InstantMs
from stellwerk.ports import (
    Changeset,
    CheckRepeat,
    DeleteDefinition,
    DeployDefinitions,
    DropMessages,
    ExpireLocks,
    ExtendLease,
    FailTask,
    FetchAndLock,
    LeaseTasks,
    Operation,
    Outcome,
    Pruned,
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
from stellwerk.stores import catalogue, leases
from stellwerk.stores.changesets import apply_changeset
from stellwerk.stores.tables import DataFault, Tables

__all__ = ["PRUNED_ROWS_MAX", "apply_operation"]

PRUNED_ROWS_MAX = 5_000
"""Of history, tasks and attempts: after so many a slice of pruning ends, whatever its limit of instances, since all
other work waits for it."""


def apply_operation(tables: Tables, operation: Operation, now_ms: InstantMs) -> Outcome:
    """Do one operation within the open transaction.

    :raises DataFault: a row cannot be written; nothing of the operation may then stay.
    """
    match operation:
        case Changeset():
            return apply_changeset(tables, operation, now_ms)
        case StoreApiKey() | RevokeApiKey():
            return _apply_key_operation(tables, operation)
        case (
            LeaseTasks()
            | FetchAndLock()
            | FailTask()
            | ExtendLease()
            | RenewLeases()
            | ReleaseLeases()
            | ResumeSession()
            | ExpireLocks()
            | CheckRepeat()
            | SetTaskRetries()
            | SetTaskPriority()
        ):
            return _apply_lease_operation(tables, operation, now_ms)
        case _:
            return _apply_catalogue_operation(tables, operation, now_ms)


def _apply_lease_operation(
    tables: Tables,
    operation: LeaseTasks
    | FetchAndLock
    | FailTask
    | ExtendLease
    | RenewLeases
    | ReleaseLeases
    | ResumeSession
    | ExpireLocks
    | CheckRepeat
    | SetTaskRetries
    | SetTaskPriority,
    now_ms: InstantMs,
) -> Outcome:
    match operation:
        case LeaseTasks():
            return leases.lease_tasks(tables, operation, now_ms)
        case FetchAndLock():
            return leases.fetch_and_lock(tables, operation, now_ms)
        case FailTask():
            return leases.fail_task(tables, operation, now_ms)
        case ExtendLease():
            return leases.extend_lease(tables, operation, now_ms)
        case RenewLeases():
            return leases.renew_leases(tables, operation, now_ms)
        case ReleaseLeases():
            return leases.release_leases(tables, operation, now_ms)
        case ResumeSession():
            return leases.resume_session(tables, operation, now_ms)
        case ExpireLocks():
            return leases.expire_locks(tables, operation.limit, now_ms)
        case CheckRepeat():
            return leases.check_repeat(tables, operation)
        case SetTaskRetries() | SetTaskPriority():
            return leases.set_on_task(tables, operation, now_ms)
        case _:
            assert_never(operation)


def _apply_catalogue_operation(
    tables: Tables,
    operation: DeployDefinitions
    | DeleteDefinition
    | SetProcessEnabled
    | PublishMessage
    | DropMessages
    | PruneInstances,
    now_ms: InstantMs,
) -> Outcome:
    match operation:
        case DeployDefinitions():
            return catalogue.deploy(tables, operation, now_ms)
        case DeleteDefinition():
            return catalogue.delete_definition(tables, operation, now_ms)
        case SetProcessEnabled():
            return catalogue.set_process_enabled(tables, operation, now_ms)
        case PublishMessage():
            return _publish(tables, operation)
        case DropMessages():
            return tables.drop_messages(operation.now_ms, operation.given_up)
        case PruneInstances():
            return _prune(tables, operation)
        case _:
            assert_never(operation)


def _prune(tables: Tables, operation: PruneInstances) -> Pruned:
    if operation.limit < 1:
        raise DataFault(f"a slice of {operation.limit} instances cannot be pruned")
    instances = rows = 0
    for instance_id in tables.ended_before(operation.ended_before_ms, operation.limit):
        rows += tables.delete_instance(instance_id)
        instances += 1
        if rows >= PRUNED_ROWS_MAX:
            break
    return Pruned(instances)


def _publish(tables: Tables, operation: PublishMessage) -> bool:
    if tables.knows_message(operation.message.message_id):
        return False
    tables.insert_message(operation.message)
    return True


def _apply_key_operation(tables: Tables, operation: StoreApiKey | RevokeApiKey) -> Outcome:
    if isinstance(operation, RevokeApiKey):
        return _revoke_api_key(tables, operation)
    if tables.api_key(operation.row.key_id) is not None:
        raise DataFault(f"the API key {operation.row.key_id} is there already")
    tables.insert_api_key(operation.row)
    return None


def _revoke_api_key(tables: Tables, operation: RevokeApiKey) -> bool:
    row = tables.api_key(operation.key_id)
    if row is None or row.revoked_at_ms is not None:
        return False
    tables.revoke_api_key(operation.key_id, operation.now_ms)
    return True
