"""Which operations of a batch may go through the one function of the database, and which are done carefully.

*Regular* are the steps of instances that complete leased tasks, create tasks and wait for timers or messages, and the
leases of tasks by key: nearly everything, where nothing goes wrong. All else (failures, cancellations, incidents,
messages, scans) is done by the shared rules of `stellwerk.stores.operations`, in transactions of several statements.

The outcomes are as if all were done one after the other in the given order: what touches a row that an operation
before it touches, and what follows a scan, waits for that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import OutcomeKind
from stellwerk.ports import (
    Changeset,
    CheckRepeat,
    ExtendLease,
    FailTask,
    LeaseTasks,
    Operation,
    PublishMessage,
    ReleaseLeases,
    RenewLeases,
    RevokeApiKey,
    SetTaskPriority,
    SetTaskRetries,
    StoreApiKey,
    TaskEnding,
)
from stellwerk.values import frozen

__all__ = ["Plan", "divide"]


@frozen
class Plan:
    """Positions of operations, each in order."""

    regular: tuple[int, ...]
    careful: tuple[int, ...]


def divide(operations: Sequence[Operation]) -> Plan:
    touched: set[str] = set()
    regular: list[int] = []
    careful: list[int] = []
    is_barred = False
    for position, operation in enumerate(operations):
        keys = _keys_of(operation)
        if keys is None:
            is_barred = True
            careful.append(position)
            continue
        before = len(touched)
        touched.update(keys)
        # Each key is new, and occurs once in this operation too.
        is_alone = len(touched) == before + len(keys)
        if is_alone and not is_barred and _is_regular(operation):
            regular.append(position)
        else:
            careful.append(position)
    return Plan(tuple(regular), tuple(careful))


def _is_regular(operation: Operation) -> bool:
    if isinstance(operation, LeaseTasks):
        return True
    if not isinstance(operation, Changeset):
        return False
    return (
        (operation.expected_version == 0) == (operation.new_instance is not None)
        and not operation.messages_consumed
        and not operation.inbox_consumed
        and not operation.inbox_sent
        and _are_regular(operation.changes)
        and all(map(_is_regular_ending, operation.endings))
        and not (operation.new_instance is not None and operation.endings)
    )


def _are_regular(changes: RowChanges) -> bool:
    return not (
        changes.cancelled_tasks
        or changes.drained_tasks
        or changes.requeued_tasks
        or changes.user_tasks_opened
        or changes.user_tasks_assigned
        or changes.user_tasks_closed
        or changes.incidents_opened
        or changes.incidents_resolved
    )


def _is_regular_ending(ending: TaskEnding) -> bool:
    return (
        ending.outcome is OutcomeKind.COMPLETE
        and ending.final_state == "COMPLETED"
        and ending.fence is not None
        and ending.request_digest is not None
    )


# --- which rows ----------------------------------------------------------------------------------------------------


def _keys_of(operation: Operation) -> Sequence[str] | None:
    """The ids of all rows that the operation may read or write; None: it scans, or it is about what has no such id.

    Ids of different tables in one name space: a chance meeting makes an operation careful, and no more than that.
    """
    match operation:
        case Changeset():
            return _keys_of_changeset(operation)
        case LeaseTasks():
            return [lease.task_id for lease in operation.leases]
        case FailTask() | ExtendLease() | CheckRepeat() | SetTaskRetries() | SetTaskPriority():
            return [operation.task_id]
        case RenewLeases() | ReleaseLeases():
            return _once(lease.task_id for lease in operation.leases)
        case PublishMessage():
            return [operation.message.message_id]
        case StoreApiKey():
            return [operation.row.key_id]
        case RevokeApiKey():
            return [operation.key_id]
        case _:
            return None


def _keys_of_changeset(changeset: Changeset) -> Sequence[str]:
    changes = changeset.changes
    keys = [changeset.instance_id]
    keys += [ending.task_id for ending in changeset.endings]
    keys += [task.task_id for task in changes.new_tasks]
    keys += _waiting_keys(changes)
    if changeset.messages_consumed or changeset.inbox_sent:
        keys += _once((*changeset.messages_consumed, *(row.instance_id for row in changeset.inbox_sent)))
    return keys


def _waiting_keys(changes: RowChanges) -> list[str]:
    return [
        *changes.cancelled_tasks,
        *changes.drained_tasks,
        *(task.task_id for task in changes.requeued_tasks),
        *(timer.timer_id for timer in changes.timers_armed),
        *changes.timers_disarmed,
        *(subscription.subscription_id for subscription in changes.subscriptions_opened),
        *changes.subscriptions_closed,
        *(task.user_task_id for task in changes.user_tasks_opened),
        *(task.user_task_id for task in changes.user_tasks_assigned),
        *changes.user_tasks_closed,
        *(incident.incident_id for incident in changes.incidents_opened),
        *changes.incidents_resolved,
    ]


def _once(keys: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(keys))
