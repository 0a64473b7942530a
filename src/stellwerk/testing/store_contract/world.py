"""What the contract's tests stand on: a clock set by hand, and a store with short words for what is done to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import attrs

from stellwerk.core.changes import NewTask, RowChanges
from stellwerk.core.external_task import ExternalTask, Holder, OutcomeKind
from stellwerk.core.facts import Fact, TokenEntered
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    Changeset,
    Committed,
    ExpiredLocks,
    ExpireLocks,
    FailTask,
    FetchAndLock,
    LeaseAnswer,
    LeaseTasks,
    NewInstance,
    Operation,
    Outcome,
    RefusedChangeset,
    Store,
    TaskEnding,
    TaskLease,
)
from stellwerk.stores.lease_clock import LeaseClock

__all__ = ["START_MS", "ContractBase", "DictatedLeaseClock", "ManualClock", "StoreWorld", "holder", "new_task"]

T = TypeVar("T")

START_MS = 1_800_000_000_000


@attrs.define
class ManualClock:
    """`Clock` that only moves when it is told to."""

    wall: InstantMs = START_MS
    seconds: float = 1_000.0

    def wall_ms(self) -> InstantMs:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, milliseconds: int) -> None:
        """Wall time and monotonic time together. Multiples of 125 ms stay exact."""
        self.wall += milliseconds
        self.seconds += milliseconds / 1000

    async def sleep(self, seconds: float) -> None:
        self.advance(int(seconds * 1000))


class DictatedLeaseClock(LeaseClock):
    """The lease clock for a store whose database has one of its own, which no test can set."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._high_water_ms: InstantMs = 0

    def open(self, high_water_ms: InstantMs = 0) -> None:
        super().open(max(high_water_ms, self._high_water_ms))

    def close(self) -> None:
        self._high_water_ms = self.now_ms()


def holder(worker_id: str = "worker", boot_id: str = "boot", session_no: int = 1) -> Holder:
    return Holder(worker_id, boot_id, session_no, f"{boot_id}-{session_no}")


_TASK = NewTask(
    task_id="task",
    token_id="token",  # noqa: S106 -- a BPMN token
    activity_id="activity",
    element_id="Task_1",
    topic="payment",
    priority=0,
    retries=3,
    retry_backoffs_ms=(),
    lock_expiries_max=10,
    single_try=False,
    lock_duration_ms=None,
    variables=b'{"order":1}',
    headers=b'{"h":"v"}',
)


def new_task(task_id: str, **changes: Any) -> NewTask:
    names = {"token_id": f"token of {task_id}", "activity_id": f"activity of {task_id}"}
    return attrs.evolve(_TASK, **{"task_id": task_id, **names, **changes})


@attrs.define
class StoreWorld:
    """An open store."""

    store: Store
    clock: ManualClock
    versions: dict[str, int] = attrs.field(factory=dict)
    _numbers: count[int] = attrs.field(factory=lambda: count(1))

    def fresh(self, prefix: str) -> str:
        return f"{prefix}-{next(self._numbers):06d}"

    async def do(self, operation: Operation, expected: type[T]) -> T:
        """One operation in its own transaction; its outcome has the type `expected`."""
        outcome = (await self.store.transact([operation]))[0]
        assert isinstance(outcome, expected), outcome
        return outcome

    async def reopen(self) -> None:
        await self.store.close()
        await self.store.open()

    # --- changesets ------------------------------------------------------------------------------------------------

    def changeset(self, instance_id: str, changes: RowChanges | None = None, **fields: Any) -> Changeset:
        """The next step of that instance."""
        version = self.versions.get(instance_id, 0)
        facts: tuple[Fact, ...] = (TokenEntered(f"token {version}", "Task_1", "scope"),)
        values: dict[str, Any] = {
            "instance_id": instance_id,
            "expected_version": version,
            "at_ms": self.clock.wall_ms(),
            "facts": facts,
            "changes": changes or RowChanges(),
            "new_instance": NewInstance("order:1", "order", "business key") if version == 0 else None,
            **fields,
        }
        return Changeset(**values)

    async def commit(self, changeset: Changeset) -> Committed:
        committed = await self.do(changeset, Committed)
        self.versions[changeset.instance_id] = committed.version
        return committed

    async def refuse(self, changeset: Changeset) -> RefusedChangeset:
        return await self.do(changeset, RefusedChangeset)

    async def step(self, instance_id: str, changes: RowChanges | None = None, **fields: Any) -> Committed:
        return await self.commit(self.changeset(instance_id, changes, **fields))

    async def instance_with(self, *tasks: NewTask) -> str:
        instance_id = self.fresh("instance")
        await self.step(instance_id, RowChanges(new_tasks=tasks))
        return instance_id

    async def ready_task(self, **changes: Any) -> str:
        """A new instance with one READY task."""
        task_id = self.fresh("task")
        await self.instance_with(new_task(task_id, **changes))
        return task_id

    # --- leases ----------------------------------------------------------------------------------------------------

    async def lease(self, task_id: str, by: Holder | None = None, duration_ms: int = 30_000) -> ExternalTask:
        wish = TaskLease(task_id, by or holder(), duration_ms)
        leased = (await self.do(LeaseTasks((wish,)), tuple))[0]
        assert isinstance(leased, ExternalTask)
        return leased

    async def leased_task(self, *, by: Holder | None = None, **changes: Any) -> ExternalTask:
        return await self.lease(await self.ready_task(**changes), by)

    async def fetch(self, *topics: str, max_tasks: int = 10, by: Holder | None = None) -> list[ExternalTask]:
        operation = FetchAndLock(by or holder(), topics or ("payment",), max_tasks, 30_000)
        return list(await self.do(operation, tuple))

    async def fail(self, task: ExternalTask, digest: str = "fail", **fields: Any) -> LeaseAnswer:
        values: dict[str, Any] = {
            "task_id": task.task_id,
            "fence": task.fence,
            "request_digest": digest,
            "message": "out of order",
            **fields,
        }
        return await self.do(FailTask(**values), LeaseAnswer)

    def completion(self, task: ExternalTask, digest: str = "result", **fields: Any) -> Changeset:
        """The step that completes that task."""
        ending = TaskEnding(task.task_id, task.fence, "COMPLETED", OutcomeKind.COMPLETE, digest)
        return self.changeset(task.instance_id, endings=(ending,), **fields)

    def ending(self, task: ExternalTask, final_state: str, outcome: OutcomeKind | None, **fields: Any) -> Changeset:
        digest = None if outcome is None else "digest"
        ending = TaskEnding(task.task_id, task.fence, final_state, outcome, digest, "message", b'{"d":1}', None)
        return self.changeset(task.instance_id, endings=(ending,), **fields)

    async def expire(self, limit: int = 100) -> ExpiredLocks:
        return await self.do(ExpireLocks(limit), ExpiredLocks)

    async def task(self, task_id: str) -> ExternalTask:
        task = await self.store.task(task_id)
        assert task is not None
        return task

    async def state(self, task_id: str) -> str:
        return (await self.task(task_id)).state.value

    async def transact(self, *operations: Operation) -> list[Outcome]:
        return list(await self.store.transact(operations))


class ContractBase(ABC):
    """What a test class gives: a store for that clock. The same store may be closed and opened again."""

    @abstractmethod
    def make_store(self, clock: ManualClock) -> Store: ...

    @asynccontextmanager
    async def open_world(self) -> AsyncIterator[StoreWorld]:
        clock = ManualClock()
        store = self.make_store(clock)
        await store.open()
        try:
            yield StoreWorld(store, clock)
        finally:
            await store.close()
