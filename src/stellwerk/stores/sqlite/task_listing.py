"""Lists and counts of external tasks. Each function takes the connection first.

Finished tasks are the bulk of a file; nothing here reads them that can do without.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing

from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.instants import InstantMs
from stellwerk.json_values import dumps
from stellwerk.ports import TaskQuery
from stellwerk.stores import rows
from stellwerk.stores.tables import no_page_after

__all__ = ["BACKING_OFF", "LOCKED", "READY", "count_tasks", "held_leases", "tasks"]

READY = "state = 'READY' AND draining = 0 AND available_at <= updated_at"
BACKING_OFF = "state = 'READY' AND draining = 0 AND available_at > updated_at"
_DRAINED = "state = 'READY' AND draining = 1"
LOCKED = "state = 'LOCKED'"
"""The conditions of the partial indexes, for which SQLite looks word by word."""

_OPEN = {TaskState.READY.value: (READY, BACKING_OFF, _DRAINED), TaskState.LOCKED.value: (LOCKED,)}
_BY_ID = "task_id IN (SELECT value FROM json_each(:task_ids))"
_OF_INSTANCE = "process_instance = :instance_id"
_OF_INSTANCES = "process_instance IN (SELECT instance_id FROM instances WHERE business_key = :business_key)"
_IS_LOCKED = "(state = 'LOCKED' AND lock_expire_at > :now_ms)"
_FILTERS = {
    "instance_id": _OF_INSTANCE,
    "topic": "task_type = :topic",
    "state": "state = :state",
    "worker_id": "state = 'LOCKED' AND lock_owner = :worker_id",
    "definition_id": "definition_id = :definition_id",
    "process_key": "rtrim(definition_id, '0123456789') = :process_key || ':'",
    "element_id": "element_id = :element_id",
    "business_key": "business_key = :business_key",
    "priority_from": "priority >= :priority_from",
    "priority_to": "priority <= :priority_to",
    "task_ids": _BY_ID,
}
_EITHER = {
    "is_locked": {True: _IS_LOCKED, False: f"NOT {_IS_LOCKED}"},
    "with_retries_left": {True: "retries > 0", False: "retries <= 0"},
}
_TASK_COLUMNS = ", ".join(rows.TASK_COLUMNS)
_HELD_LEASES = f"""
SELECT lock_owner, task_type, count(*) FROM external_tasks
WHERE {LOCKED} AND lock_owner IN (SELECT value FROM json_each(?1)) AND lock_expire_at > ?2
GROUP BY lock_owner, task_type"""  # noqa: S608

_Anchor = tuple[InstantMs, str]
"""(created, id) of the row after which the page begins."""
_Parameters = dict[str, object]


def tasks(
    connection: sqlite3.Connection, wanted: TaskQuery, now_ms: InstantMs, limit: int, after: str | None
) -> list[ExternalTask]:
    """Oldest first.

    :param now_ms: the lease clock.
    """
    anchor = None if after is None else _anchor(connection, after)
    indexed = _indexed(wanted)
    conditions, parameters = _conditions(wanted, indexed), {**_parameters(wanted, now_ms), "limit": limit}
    if indexed is None:
        return _of_all(connection, conditions, parameters, anchor)
    if anchor is not None:
        conditions.append("(created_at, task_id) > (:anchor_created_at, :anchor_task_id)")
        parameters.update(zip(("anchor_created_at", "anchor_task_id"), anchor, strict=True))
    return _few(connection, indexed, conditions, parameters)


def count_tasks(connection: sqlite3.Connection, wanted: TaskQuery, now_ms: InstantMs) -> int:
    indexed = _indexed(wanted)
    conditions, parameters = _conditions(wanted, indexed), _parameters(wanted, now_ms)
    counts = (
        connection.execute(f"SELECT count(*) FROM external_tasks{_where(each)}", parameters).fetchone()[0]  # noqa: S608 -- constants, here and below
        for each in ([index, *conditions] for index in indexed or ("TRUE",))
    )
    return sum(counts)


def held_leases(
    connection: sqlite3.Connection, worker_ids: Sequence[str], now_ms: InstantMs
) -> dict[tuple[str, str], int]:
    """By worker id and topic."""
    counted = connection.execute(_HELD_LEASES, (dumps(list(worker_ids)).decode(), now_ms)).fetchall()
    return {(worker_id, topic): count for worker_id, topic, count in counted}


# --- conditions ----------------------------------------------------------------------------------------------------


def _conditions(wanted: TaskQuery, indexed: Sequence[str] | None) -> list[str]:
    """Those that the index does not answer: looking at a row for them would cost more than the index saves."""
    is_of_state = indexed is not None and wanted.state is not None and indexed == _OPEN.get(wanted.state)
    answered = (*(indexed or ()), *([_FILTERS["state"]] if is_of_state else ()))
    given = [condition for name, condition in _FILTERS.items() if getattr(wanted, name) is not None]
    given = [condition for condition in given if condition not in answered]
    return given + [
        by_value[value] for name, by_value in _EITHER.items() if (value := getattr(wanted, name)) is not None
    ]


def _parameters(wanted: TaskQuery, now_ms: InstantMs) -> _Parameters:
    values: _Parameters = {name: getattr(wanted, name) for name in _FILTERS}
    return {**values, "task_ids": dumps(list(wanted.task_ids or ())).decode(), "now_ms": now_ms}


def _indexed(wanted: TaskQuery) -> Sequence[str] | None:
    """Conditions that an index answers, which have all that is wanted between them, and nothing twice. None: no index
    does."""
    if wanted.task_ids is not None:
        return (_BY_ID,)
    if wanted.instance_id is not None:
        return (_OF_INSTANCE,)
    if wanted.business_key is not None:
        return (_OF_INSTANCES,)
    if wanted.worker_id is not None or wanted.is_locked:
        return (LOCKED,)
    return None if wanted.state is None else _OPEN.get(wanted.state)


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


# --- pages ---------------------------------------------------------------------------------------------------------


def _anchor(connection: sqlite3.Connection, task_id: str) -> _Anchor:
    row = connection.execute("SELECT created_at FROM external_tasks WHERE task_id = ?", (task_id,)).fetchone()
    if row is None:
        raise no_page_after("external task", task_id)
    return row[0], task_id


def _few(
    connection: sqlite3.Connection, indexed: Sequence[str], conditions: Sequence[str], parameters: _Parameters
) -> list[ExternalTask]:
    """Of what an index finds: all keys are sorted, but only the page's rows are read."""
    keys = " UNION ALL ".join(
        f"SELECT created_at, task_id FROM external_tasks{_where([index, *conditions])}"  # noqa: S608
        for index in indexed
    )
    statement = (
        f"SELECT {_TASK_COLUMNS} FROM external_tasks WHERE task_id IN"  # noqa: S608
        f" (SELECT task_id FROM ({keys}) ORDER BY created_at, task_id LIMIT :limit) ORDER BY created_at, task_id"
    )
    return [rows.task_from_row(row) for row in connection.execute(statement, parameters).fetchall()]


def _of_all(
    connection: sqlite3.Connection, conditions: Sequence[str], parameters: Mapping[str, object], anchor: _Anchor | None
) -> list[ExternalTask]:
    """Along the table itself, where tasks lie in the order of their creation: the lease clock never goes back.

    Those of one millisecond lie in any order and are read together.
    """
    limit = parameters["limit"]
    assert isinstance(limit, int)
    where = _where(["rowid > :row_before", *conditions])
    statement = f"SELECT {_TASK_COLUMNS} FROM external_tasks{where} ORDER BY rowid"  # noqa: S608
    found: list[rows.SqlRow] = []
    with closing(
        connection.execute(statement, {**parameters, "row_before": _row_before(connection, anchor)})
    ) as cursor:
        for row in cursor:
            if len(found) >= limit and (not found or _age(row)[0] > _age(found[-1])[0]):
                break
            if anchor is None or _age(row) > anchor:
                found.append(row)
    return [rows.task_from_row(row) for row in sorted(found, key=_age)[:limit]]


def _age(row: rows.SqlRow) -> _Anchor:
    return row[_CREATED_AT], row[_TASK_ID]


def _row_before(connection: sqlite3.Connection, anchor: _Anchor | None) -> int:
    """The last row of the milliseconds before the anchor's."""
    if anchor is None:
        return 0
    row = connection.execute(_SELECT_ROW_BEFORE, (anchor[1], anchor[0])).fetchone()
    return 0 if row is None else int(row[0])


_CREATED_AT, _TASK_ID = rows.TASK_COLUMNS.index("created_at"), rows.TASK_COLUMNS.index("task_id")
_SELECT_ROW_BEFORE = """
SELECT rowid FROM external_tasks
WHERE rowid < (SELECT rowid FROM external_tasks WHERE task_id = ?) AND created_at < ?
ORDER BY rowid DESC LIMIT 1"""
