"""The database's clock is set while workers hold leases (consistency.md 19): they go on, and nobody waits an hour."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import attrs
import pytest
import structlog
import trio

from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask, OutcomeKind
from stellwerk.core.facts import TokenEntered
from stellwerk.ports import (
    Changeset,
    Committed,
    ExpiredLocks,
    ExpireLocks,
    ExtendLease,
    FetchAndLock,
    LeaseAnswerKind,
    LeaseTasks,
    NewInstance,
    Operation,
    RenewLease,
    RenewLeases,
    TaskEnding,
    TaskLease,
)
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.testing.store_contract.world import holder, new_task

HOUR_MS = 3_600_000
HOLDER = holder()

# As if the server's clock was set, for this database alone.
MOVABLE = """
CREATE TABLE ahead (ms bigint NOT NULL);
INSERT INTO ahead VALUES (0);
CREATE OR REPLACE FUNCTION stellwerk.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + (SELECT ms FROM public.ahead) $$"""
# Set forward by an hour right after somebody looked at it.
JUMPS_AFTER_ONE_LOOK = """
CREATE SEQUENCE looks;
CREATE OR REPLACE FUNCTION stellwerk.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
    + CASE WHEN nextval('public.looks') > 1 THEN 3600000 ELSE 0 END $$"""


@attrs.define
class Node:
    store: PostgresStore
    set_clock: Callable[[int], Awaitable[None]]
    """By so many ms ahead of what it would be."""

    async def do(self, operation: Operation) -> Any:
        return (await self.store.transact([operation]))[0]

    async def ready_task(self, name: str) -> None:
        await self.do(
            Changeset(
                instance_id=f"instance of {name}",
                expected_version=0,
                at_ms=1,
                facts=(TokenEntered("t", "n", "s"),),
                changes=RowChanges(new_tasks=(new_task(name),)),
                new_instance=NewInstance("p:1", "p", None),
            )
        )

    async def leased(self, name: str, duration_ms: int = 30_000) -> ExternalTask:
        await self.ready_task(name)
        task = (await self.do(LeaseTasks((TaskLease(name, HOLDER, duration_ms),))))[0]
        assert isinstance(task, ExternalTask)
        # Nodes look at the clock at least once a second.
        await self.store.next_lock_expiry()
        return task

    async def renew(self, task: ExternalTask) -> Any:
        lease = RenewLease(task.task_id, task.fence, HOLDER.session_id)
        return (await self.do(RenewLeases((lease,))))[0]

    async def complete(self, task: ExternalTask) -> Any:
        return await self.do(self.completion(task))

    def completion(self, task: ExternalTask) -> Changeset:
        ending = TaskEnding(task.task_id, task.fence, "COMPLETED", OutcomeKind.COMPLETE, "digest")
        return Changeset(
            instance_id=task.instance_id,
            expected_version=1,
            at_ms=1,
            facts=(TokenEntered("t", "n", "s"),),
            changes=RowChanges(),
            endings=(ending,),
        )

    async def expire(self) -> ExpiredLocks:
        expired = await self.do(ExpireLocks(10))
        assert isinstance(expired, ExpiredLocks)
        return expired


@pytest.fixture
async def node(postgres_dsn: str, ask: Callable[..., Awaitable[Any]]) -> AsyncIterator[Node]:
    await ask(MOVABLE)

    async def set_clock(ahead_ms: int) -> None:
        await ask(f"UPDATE ahead SET ms = {ahead_ms}")

    store = PostgresStore(
        PostgresConfig(dsn=postgres_dsn),
        clock=SystemClock(),
        entropy=SystemEntropy(),
        log=structlog.get_logger(),
        node_id="node",
    )
    await store.open()
    yield Node(store, set_clock)
    await store.close()


@pytest.fixture
def ask(postgres_dsn: str) -> Callable[[str], Awaitable[Any]]:
    """Statements over a connection of somebody else."""

    async def ask(statement: str) -> Any:
        from stellwerk.stores.postgres.bridge import Bridge

        async def run() -> None:
            connection = await asyncpg.connect(postgres_dsn)
            await connection.execute(statement)
            await connection.close()

        bridge = await Bridge.open()
        await bridge.run(run)
        await bridge.close()

    return ask


async def test_rule_19_workers_complete_renew_and_extend_after_a_jump_forward(node: Node) -> None:
    done, renewed, extended = [await node.leased(name) for name in ("done", "renewed", "extended")]
    await node.set_clock(HOUR_MS)
    assert isinstance(await node.complete(done), Committed)
    answer = await node.renew(renewed)
    assert answer.kind is LeaseAnswerKind.DONE
    assert (await node.do(ExtendLease("extended", extended.fence, 60_000))).kind is LeaseAnswerKind.DONE
    # On the new clock now: no second jump is added when it is renewed again.
    again = await node.renew(answer.task)
    assert again.kind is LeaseAnswerKind.DONE
    assert 0 <= again.task.lease.until_ms - answer.task.lease.until_ms < 10_000
    assert 29_000 < again.task.lease.until_ms - again.task.updated_at_ms <= 31_000


async def test_rule_19_a_step_under_lock_completes_what_was_leased_before_a_jump_forward(node: Node) -> None:
    task = await node.leased("wide")
    await node.set_clock(HOUR_MS)
    assert isinstance(await node.store.step_locked(task.instance_id, lambda _: node.completion(task)), Committed)


async def test_rule_19_no_lock_is_reclaimed_before_it_would_have_run_out(node: Node) -> None:
    await node.leased("long", 5_000)
    await node.set_clock(HOUR_MS)
    expiry_ms, now_ms = await node.store.next_lock_expiry()
    assert expiry_ms is not None
    assert 3_000 < expiry_ms - now_ms <= 5_001
    expired = await node.expire()
    assert (expired.returned, expired.failing) == ((), ())


async def test_rule_19_a_sweep_that_was_on_its_way_when_the_clock_was_set_reclaims_nothing(node: Node) -> None:
    live = await node.leased("live")
    await node.set_clock(HOUR_MS)
    # Nobody has looked at the clock since: something else had run out, and the sweep was sent.
    expired = await node.expire()
    assert (expired.returned, expired.failing) == ((), ())
    assert isinstance(await node.complete(live), Committed)


async def test_rule_19_a_sweep_before_which_the_clock_is_set_reclaims_only_what_had_run_out(
    node: Node, ask: Callable[..., Awaitable[Any]]
) -> None:
    live = await node.leased("live")
    await node.leased("dead", 1)
    await trio.sleep(0.01)
    await ask(JUMPS_AFTER_ONE_LOOK)
    expired = await node.expire()
    assert ([task.task_id for task in expired.returned], expired.failing) == (["dead"], ())
    assert isinstance(await node.complete(live), Committed)


async def test_rule_19_a_dead_workers_task_waits_for_its_own_lock_and_no_longer(node: Node) -> None:
    await node.leased("short", 1_000)
    await node.set_clock(HOUR_MS)
    with trio.fail_after(4):
        while True:
            expiry_ms, now_ms = await node.store.next_lock_expiry()
            assert expiry_ms is not None
            if expiry_ms <= now_ms:
                break
            await trio.sleep(min(1.0, (expiry_ms - now_ms) / 1000))
    assert [task.task_id for task in (await node.expire()).returned] == ["short"]


async def test_rule_19_what_is_leased_after_the_jump_runs_out_by_the_new_clock(node: Node) -> None:
    await node.leased("before", 20_000)
    await node.set_clock(HOUR_MS)
    after = await node.leased("after", 1_000)
    await trio.sleep(1.1)
    assert (await node.renew(after)).kind is LeaseAnswerKind.LEASE_LOST


async def test_rule_19_a_task_that_was_created_before_the_clock_was_set_back_is_handed_out(node: Node) -> None:
    await node.set_clock(HOUR_MS)
    await node.ready_task("by key")
    await node.ready_task("fetched")
    await node.set_clock(0)
    (task,) = await node.do(LeaseTasks((TaskLease("by key", HOLDER, 30_000),)))
    assert task is not None
    (other,) = await node.do(FetchAndLock(HOLDER, ("payment",), 5, 30_000))
    assert other.task_id == "fetched"
    assert isinstance(await node.complete(task), Committed)
