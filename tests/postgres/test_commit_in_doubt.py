"""The connection breaks while a commit is under way: what happened is found out, and never guessed (consistency.md 3).

The commit waits in the database for a lock that the test holds, so that the moment of the break is the test's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from stellwerk.core.changes import RowChanges
from stellwerk.core.facts import TokenEntered
from stellwerk.errors import StoreUnavailable
from stellwerk.ports import (
    Changeset,
    Committed,
    LeaseTasks,
    MessageRow,
    NewInstance,
    Operation,
    PublishMessage,
    TaskLease,
)
from stellwerk.stores.postgres import transactions
from stellwerk.stores.postgres.careful import transact_carefully
from stellwerk.stores.postgres.clock_watch import LeaseTime
from stellwerk.testing.databases import PostgresServer
from stellwerk.testing.store_contract.world import START_MS, holder, new_task


@attrs.frozen
class Node:
    """One that does everything the careful way."""

    link: Any

    async def transact(self, *operations: Operation) -> list[Any]:
        work = partial(transact_carefully, self.link.connections, operations, LeaseTime(START_MS))
        return list(await self.link.bridge.run(work))


def step(instance_id: str, version: int = 0, changes: RowChanges | None = None, **fields: Any) -> Changeset:
    """From `version` to the next."""
    values: dict[str, Any] = {
        "instance_id": instance_id,
        "expected_version": version,
        "at_ms": START_MS,
        "facts": (TokenEntered(f"token {version}", "Task_1", "scope"),),
        "changes": changes or RowChanges(),
        "new_instance": NewInstance("order:1", "order", None) if version == 0 else None,
        **fields,
    }
    return Changeset(**values)


def message(message_id: str = "m") -> MessageRow:
    return MessageRow(message_id, "paid", "1", b"{}", START_MS, START_MS + 60_000)


def wish(task_id: str = "t", worker_id: str = "worker", duration_ms: int = 30_000) -> TaskLease:
    return TaskLease(task_id, holder(worker_id), duration_ms)


async def at_once(*works: Callable[[], Awaitable[Any]]) -> list[Any]:
    """What each gives; started in that order."""
    given: list[Any] = [None] * len(works)

    async def run(place: int) -> None:
        given[place] = await works[place]()

    async with trio.open_nursery() as nursery:
        for place in range(len(works)):
            nursery.start_soon(run, place)
    return given


def steps() -> list[Operation]:
    lease = LeaseTasks((wish(),))
    return [step("i", 0, RowChanges(new_tasks=(new_task("t"),))), lease, PublishMessage(message()), step("i", 1)]


_SLOW_COMMIT = """
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON stellwerk.history DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_at_commit()"""
_COMMITTING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND query ILIKE 'COMMIT%'"
_WAITING_FOR_BATCH = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ILIKE '%.batches%'"


@attrs.frozen
class Doubt:
    """A node whose way to the database may break while its commit waits for what `server_side` holds."""

    node: Node
    network: Any
    server_side: Any

    async def value_of(self, statement: str, wanted: Callable[[Any], bool]) -> Any:
        with trio.fail_after(10):
            while not wanted(value := await self.server_side.look(statement)):
                await trio.sleep(0.005)
        return value

    async def committing(self) -> int:
        """→ the process that waits in its commit."""
        pid: int = await self.value_of(_COMMITTING, lambda pid: pid is not None)
        return pid


@pytest.fixture
async def doubt(
    open_link: Any,
    open_session: Callable[..., Awaitable[Any]],
    breakable_server: PostgresServer,
    breakable_dsn: str,
    network: Any,
) -> Doubt:
    server_side = await open_session(await open_link(breakable_dsn))
    node = Node(await open_link(network.dsn(breakable_dsn), connect_seconds_max=1))
    await server_side.execute(_SLOW_COMMIT)
    await server_side.hold("SELECT pg_advisory_xact_lock(1)")
    return Doubt(node, network, server_side)


async def check_done_once(doubt: Doubt, outcomes: list[Any]) -> None:
    assert [type(outcome) for outcome in outcomes] == [Committed, tuple, bool, Committed]
    assert (outcomes[0].version, outcomes[2], outcomes[3].version) == (1, True, 2)
    stored = await doubt.server_side.value("SELECT fence FROM stellwerk.external_tasks WHERE state = 'LOCKED'")
    assert outcomes[1][0].fence == stored
    assert await doubt.server_side.count("history") == 2
    assert await doubt.server_side.count("batches") == 1


async def test_rule_3_a_commit_whose_answer_is_lost_is_not_done_again(doubt: Doubt) -> None:
    async def lose() -> None:
        await doubt.committing()
        doubt.network.stall("answers")
        await doubt.server_side.release()
        await doubt.value_of("SELECT count(*) FROM stellwerk.history", lambda count: count == 2)
        doubt.network.cut()
        doubt.network.heal()

    outcomes, _ = await at_once(lambda: doubt.node.transact(*steps()), lose)
    await check_done_once(doubt, outcomes)


async def test_rule_3_the_old_backend_is_still_committing(doubt: Doubt) -> None:
    async def lose() -> None:
        await doubt.committing()
        doubt.network.cut()
        doubt.network.heal()
        await doubt.value_of(_WAITING_FOR_BATCH, lambda count: count == 1)
        assert await doubt.server_side.count("history") == 0  # looking would find nothing
        await doubt.server_side.release()

    outcomes, _ = await at_once(lambda: doubt.node.transact(*steps()), lose)
    await check_done_once(doubt, outcomes)


async def test_rule_3_the_old_backend_dies_before_it_has_committed(doubt: Doubt) -> None:
    async def kill() -> None:
        pid = await doubt.committing()
        await doubt.server_side.value("SELECT pg_terminate_backend($1)", pid)
        await doubt.value_of(_COMMITTING, lambda other: other not in (None, pid))
        await doubt.server_side.release()

    outcomes, _ = await at_once(lambda: doubt.node.transact(*steps()), kill)
    await check_done_once(doubt, outcomes)


async def test_rule_3_a_doubt_that_cannot_be_resolved_is_told(doubt: Doubt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_IN_DOUBT_SECONDS_MAX", 0.2)

    async def lose() -> None:
        await doubt.committing()
        doubt.network.cut()

    outcomes, _ = await at_once(lambda: doubt.node.transact(*steps()), lose)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * len(steps())
    assert "whether it happened is not known" in outcomes[0].message
    await doubt.server_side.release()
