"""How much an operation brings along: beyond some size a transaction gains nothing by more of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stellwerk.core.history import encode_facts
from stellwerk.ports import Changeset, DeployDefinitions, FailTask, Operation, PublishMessage
from stellwerk.stores.tables import ROW_FAULTS

__all__ = ["BYTES_MAX", "bytes_of", "divide_by_bytes"]

BYTES_MAX = 16 * 1024 * 1024
"""Of facts and variables in one transaction, which needs them in memory several times over."""


def divide_by_bytes(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """In order, each part as long as `BYTES_MAX` allows; what is larger than that is a part of its own."""
    part: list[Operation] = []
    part_bytes = 0
    for operation in operations:
        size = bytes_of(operation)
        if part and part_bytes + size > BYTES_MAX:
            yield part
            part, part_bytes = [], 0
        part.append(operation)
        part_bytes += size
    if part:
        yield part


def bytes_of(operation: Operation) -> int:
    """Of facts, variables and files; 0 where there is something in it that cannot be written at all."""
    try:
        match operation:
            case Changeset():
                return _bytes_of_changeset(operation)
            case PublishMessage():
                return len(operation.message.variables)
            case FailTask():
                return len(operation.details or b"")
            case DeployDefinitions():
                return sum(len(row.xml) for row in operation.definitions)
            case _:
                return 0
    except ROW_FAULTS:
        return 0


def _bytes_of_changeset(changeset: Changeset) -> int:
    changes = changeset.changes
    return (
        len(encode_facts(changeset.facts))
        + len(changeset.snapshot or b"")
        + sum(len(ending.details or b"") for ending in changeset.endings)
        + sum(len(row.command) for row in changeset.inbox_sent)
        + sum(len(task.variables) for task in changes.new_tasks)
        + sum(len(task.variables) for task in changes.requeued_tasks)
        + sum(len(task.variables) for task in changes.user_tasks_opened)
    )
