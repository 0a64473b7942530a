"""The write path of the embedded stores: what each operation of the port does to the rows."""

from __future__ import annotations

from typing import assert_never

import attrs

from stellwerk.instants import InstantMs
from stellwerk.ports import (
    Changeset,
    CheckRepeat,
    DefinitionRow,
    DeployDefinitions,
    Deployed,
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
)
from stellwerk.stores import leases
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
        case _:
            return _apply_catalogue_operation(tables, operation)


def _apply_catalogue_operation(
    tables: Tables, operation: DeployDefinitions | PublishMessage | DropMessages | PruneInstances
) -> Outcome:
    match operation:
        case DeployDefinitions():
            return _deploy(tables, operation)
        case PublishMessage():
            return _publish(tables, operation)
        case DropMessages():
            return tables.drop_messages(operation.now_ms)
        case PruneInstances():
            return _prune(tables, operation)
        case _:
            assert_never(operation)


def _deploy(tables: Tables, operation: DeployDefinitions) -> Deployed:
    deployed: list[DefinitionRow] = []
    unchanged: list[str] = []
    for wanted in operation.definitions:
        latest = tables.latest_definition(wanted.key)
        if latest is not None and latest.digest == wanted.digest:
            deployed.append(latest)
            unchanged.append(wanted.key)
            continue
        row = attrs.evolve(wanted, version=1 if latest is None else latest.version + 1)
        tables.insert_definition(row)
        deployed.append(row)
    return Deployed(tuple(deployed), tuple(unchanged))


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
