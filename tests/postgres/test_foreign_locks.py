"""Somebody else keeps rows or tables locked: a console with an open transaction, a backup, a VACUUM FULL.

What needs them is refused for now; all else goes on, and what is done already is not forgotten.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
import pytest
import structlog

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask
from stellwerk.core.facts import TokenEntered
from stellwerk.errors import StoreUnavailable
from stellwerk.ports import (
    Changeset,
    Committed,
    FailTask,
    LeaseAnswer,
    LeaseAnswerKind,
    LeaseTasks,
    MessageRow,
    NewInstance,
    Operation,
    PublishMessage,
    RenewLease,
    RenewLeases,
    TaskLease,
)
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.testing.store_contract.world import START_MS, holder, new_task

HOLDER = holder()


def start(name: str) -> Changeset:
    """An instance with one task."""
    return Changeset(
        instance_id=f"instance of {name}",
        expected_version=0,
        at_ms=1,
        facts=(TokenEntered("t", "n", "s"),),
        changes=RowChanges(new_tasks=(new_task(name),)),
        new_instance=NewInstance("p:1", "p", None),
    )


def lease(*names: str) -> LeaseTasks:
    return LeaseTasks(tuple(TaskLease(name, HOLDER, 30_000) for name in names))


def fail(task: ExternalTask) -> FailTask:
    return FailTask(task.task_id, task.fence, "digest", "out of order")


@attrs.frozen
class Node:
    store: PostgresStore

    async def transact(self, *operations: Operation) -> list[Any]:
        return list(await self.store.transact(operations))

    async def leased(self, *names: str) -> list[ExternalTask]:
        await self.transact(*map(start, names))
        (tasks,) = await self.transact(lease(*names))
        return list(tasks)


@pytest.fixture
async def node(postgres_dsn: str) -> AsyncIterator[Node]:
    store = PostgresStore(
        PostgresConfig(dsn=postgres_dsn),
        clock=SystemClock(),
        entropy=SystemEntropy(),
        log=structlog.get_logger(),
        node_id="node",
    )
    await store.open()
    yield Node(store)
    await store.close()


@pytest.fixture
async def other(open_link: Any, open_session: Callable[..., Awaitable[Any]], postgres_dsn: str) -> Any:
    return await open_session(await open_link(postgres_dsn))


async def test_leases_that_are_committed_are_told_although_their_neighbour_is_held_up(node: Node, other: Any) -> None:
    (held,) = await node.leased("held")
    await node.transact(start("free"))
    await other.hold("SELECT FROM stellwerk.external_tasks WHERE task_id = 'held' FOR UPDATE")
    renewal = RenewLeases((RenewLease("held", held.fence, HOLDER.session_id),))
    began = time.monotonic()
    leased, born, renewed = await node.transact(lease("free"), start("born"), renewal)
    assert time.monotonic() - began < 5.0
    assert [task.task_id for task in leased] == ["free"]
    assert isinstance(born, Committed)
    assert isinstance(renewed, StoreUnavailable)
    assert "another session keeps a row locked" in renewed.message
    await other.release()
    ((answer,),) = await node.transact(renewal)
    assert answer.kind is LeaseAnswerKind.DONE


async def test_only_what_needs_the_locked_row_is_refused(node: Node, other: Any) -> None:
    names = [f"task {number}" for number in range(9)]
    tasks = await node.leased(*names)
    await other.hold("SELECT FROM stellwerk.external_tasks WHERE task_id = 'task 4' FOR UPDATE")
    outcomes = await node.transact(*map(fail, tasks))
    assert isinstance(outcomes.pop(4), StoreUnavailable)
    assert all(isinstance(each, LeaseAnswer) and each.kind is LeaseAnswerKind.DONE for each in outcomes)
    await other.release()
    (answer,) = await node.transact(fail(tasks[4]))
    assert answer.kind is LeaseAnswerKind.DONE


async def test_an_instance_that_is_locked_holds_up_no_other(node: Node, other: Any) -> None:
    await node.transact(start("locked"), start("free"))
    await other.hold("SELECT FROM stellwerk.instances WHERE instance_id = 'instance of locked' FOR UPDATE")
    steps = [
        attrs.evolve(start(name), expected_version=1, new_instance=None, changes=RowChanges())
        for name in ("locked", "free")
    ]
    locked, free = await node.transact(*steps)
    assert (type(locked), type(free)) == (StoreUnavailable, Committed)


async def test_where_a_table_is_locked_nobody_waits_for_long(node: Node, other: Any) -> None:
    await other.hold("LOCK TABLE stellwerk.messages")
    messages = [
        PublishMessage(MessageRow(f"m{number}", "paid", "1", b"{}", START_MS, START_MS + 60_000))
        for number in range(50)
    ]
    began = time.monotonic()
    started, *published = await node.transact(start("first"), *messages)
    assert time.monotonic() - began < 6.0
    assert isinstance(started, Committed)
    assert {type(each) for each in published} == {StoreUnavailable}
    await other.release()
    assert await node.transact(*messages) == [True] * 50
