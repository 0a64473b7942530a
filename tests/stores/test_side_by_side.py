"""The memory store and another one side by side: the same operations in any order, and always equal answers."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import asyncpg
import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stellwerk.core.changes import (
    IncidentRow,
    RowChanges,
    SubscriptionRow,
    TaskRequeue,
    TimerRow,
    UserTaskRow,
)
from stellwerk.core.external_task import Holder, OutcomeKind
from stellwerk.core.facts import TokenEntered, VariablesSet
from stellwerk.errors import InvalidInput
from stellwerk.ports import (
    ApiKeyRow,
    BirthLease,
    Changeset,
    CheckRepeat,
    Committed,
    DefinitionRow,
    DeployDefinitions,
    DropMessages,
    ExpireLocks,
    ExtendLease,
    FailTask,
    FetchAndLock,
    Identity,
    InboxRow,
    InstanceFilter,
    LeaseTasks,
    MessageRow,
    NewInstance,
    Operation,
    Pruned,
    PruneInstances,
    PublishMessage,
    ReleaseLease,
    ReleaseLeases,
    RenewLease,
    RenewLeases,
    ResumeSession,
    RevokeApiKey,
    Scope,
    SetTaskPriority,
    SetTaskRetries,
    Store,
    StoreApiKey,
    TaskEnding,
    TaskLease,
    TaskQuery,
)
from stellwerk.stores.memory import MemoryStore
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.stores.sqlite import SqliteStore
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.file_lock import FileLock
from stellwerk.testing.store_contract import DictatedLeaseClock, ManualClock
from stellwerk.testing.store_contract.world import START_MS, new_task

T = TypeVar("T")


class AtOnce:
    """A runner without any checkpoint: 40,000 calls need no event loop."""

    async def run_sync(self, function: Callable[[], T]) -> T:
        return function()


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waited for something")


_FAST = "/dev/shm"
"""Where files cost no disk: nothing here is about durability."""

INSTANCES = [f"i{number}" for number in range(4)]
BUSINESS_KEYS = dict(zip(INSTANCES, [None, "k1", "k1", "k2"], strict=True))
TASKS = [f"t{number}" for number in range(8)]
TOPICS = ["payment", "ship"]
SMALL = ["1", "2", "3"]

instances, tasks, topics, small = map(st.sampled_from, (INSTANCES, TASKS, TOPICS, SMALL))
fence_offsets = st.sampled_from([0, 0, 0, 0, -1, 1])
durations = st.sampled_from([1_000, 2_000, 5_000])
digests = st.sampled_from(["d1", "d1", "d2"])
holders = st.builds(
    lambda worker, boot, number: Holder(worker, boot, number, f"{boot}-{number}"),
    st.sampled_from(["w", "v"]),
    st.sampled_from(["b", "c"]),
    st.integers(1, 4),
)
new_tasks = st.builds(
    new_task,
    tasks,
    topic=topics,
    priority=st.integers(-1, 1),
    retries=st.integers(1, 3),
    retry_backoffs_ms=st.sampled_from([(), (1_000,), (0, 4_000)]),
    lock_expiries_max=st.sampled_from([0, 1, 2, 10]),
    single_try=st.sampled_from([False, False, True]),
    lock_duration_ms=st.sampled_from([None, None, 3_000]),
)


filters = st.builds(
    InstanceFilter,
    status=st.sampled_from([None, None, "RUNNING", "FAILED"]),
    process_key=st.sampled_from([None, None, "p", "q"]),
    definition_id=st.sampled_from([None, None, "p:1", "p:2"]),
    business_key=st.sampled_from([None, None, "k1"]),
    with_incident=st.sampled_from([None, None, True, False]),
    process_keys=st.sampled_from([None, None, None, (), ("p",), ("q", "x"), ("*",), ("q*", "p"), ("pp*",)]),
    started_from_ms=st.sampled_from([None, None, START_MS + 500, START_MS + 1_000]),
    started_before_ms=st.sampled_from([None, None, START_MS + 500, START_MS + 1_000]),
)


task_queries = st.builds(
    TaskQuery,
    instance_id=st.none() | st.none() | instances,
    topic=st.none() | topics,
    state=st.sampled_from([None, None, "READY", "LOCKED", "COMPLETED", "WAITING"]),
    worker_id=st.sampled_from([None, None, None, "w", "x"]),
    is_locked=st.sampled_from([None, None, True, False]),
    definition_id=st.sampled_from([None, None, None, "p:1", "p:2"]),
    process_key=st.sampled_from([None, None, None, "p", "q", "p:"]),
    element_id=st.sampled_from([None, None, None, "Task_1", "E"]),
    business_key=st.sampled_from([None, None, None, "k1"]),
    with_retries_left=st.sampled_from([None, None, True, False]),
    priority_from=st.sampled_from([None, None, 0]),
    priority_to=st.sampled_from([None, None, 0]),
    task_ids=st.sampled_from([None, None, None, (), ("t1", "gone", "t1", "t2", "t3"), ("t4",)]),
)


def few(elements: st.SearchStrategy[Any], max_size: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, max_size=max_size).map(tuple)


row_changes = st.builds(
    RowChanges,
    new_tasks=few(new_tasks, 3),
    cancelled_tasks=few(tasks, 1),
    drained_tasks=few(tasks, 1),
    requeued_tasks=few(st.builds(TaskRequeue, tasks, st.integers(0, 2), st.sampled_from([b"{}", b"[1]"])), 1),
    timers_armed=few(st.builds(TimerRow, small, st.just("T"), st.integers(0, 3)), 1),
    timers_disarmed=few(small, 1),
    subscriptions_opened=few(st.builds(SubscriptionRow, small, st.just("C"), small, small), 1),
    subscriptions_closed=few(small, 1),
    user_tasks_opened=few(
        st.builds(
            UserTaskRow, small, st.just("U"), st.none(), st.none(), few(small), st.just(()), st.none(), st.just(b"1")
        ),
        1,
    ),
    user_tasks_closed=few(small, 1),
    incidents_opened=few(st.builds(IncidentRow, small, st.just("k"), st.just("E"), st.just("m")), 1),
    incidents_resolved=few(small, 1),
    status=st.sampled_from([None, None, None, None, "FAILED", "RUNNING"]),
)
plain_changes = st.builds(RowChanges, new_tasks=few(new_tasks, 3))
messages = st.builds(
    lambda message_id, name, key, at: MessageRow(message_id, name, key, b"{}", at, at + 5),
    *(small, small, small, st.integers(0, 3)),
)


class SideBySide(RuleBasedStateMachine):
    """`versions` are those that the stores reported last, so that most requests make sense."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.other = self.make_other()
        self.versions: dict[str, int] = {}
        self.waiting: list[Operation] = []

    def make_other(self) -> Store:
        raise NotImplementedError

    def teardown(self) -> None:
        at_once(self.other.close())

    @initialize()
    def open(self) -> None:
        at_once(self.memory.open())
        at_once(self.other.open())

    # --- helpers ---------------------------------------------------------------------------------------------------

    def fence(self, task_id: str, offset: int) -> int:
        task = self.memory._tables.task(task_id)
        return (task.fence if task is not None else 1) + offset

    def owner(self, task_id: str) -> str:
        task = self.memory._tables.task(task_id)
        return task.instance_id if task is not None else INSTANCES[0]

    def submit(self, operation: Operation) -> None:
        self.waiting.append(operation)
        if len(self.waiting) < 3 and not isinstance(operation, Changeset):
            return
        self.flush()

    def flush(self) -> None:
        operations, self.waiting = self.waiting, []
        in_memory = at_once(self.memory.transact(operations))
        in_other = at_once(self.other.transact(operations))
        assert [told(outcome) for outcome in in_memory] == [told(outcome) for outcome in in_other]
        for operation, outcome in zip(operations, in_memory, strict=True):
            if isinstance(operation, Changeset) and isinstance(outcome, Committed):
                self.versions[operation.instance_id] = outcome.version
            if isinstance(outcome, Pruned):
                self.versions = {name: row.version for name, row in self.memory._tables.instances.items()}

    def ask(self, question: Callable[[Store], Coroutine[Any, Any, Any]]) -> None:
        """A page after a row that is not there is refused by both."""
        in_memory, in_other = (answer(question(store)) for store in (self.memory, self.other))
        assert in_memory == in_other

    def step(self, instance_id: str, changes: RowChanges, stale: bool = False, **fields: Any) -> None:
        version = self.versions.get(instance_id, 0)
        self.submit(
            Changeset(
                instance_id=instance_id,
                expected_version=version + 1 if stale else version,
                at_ms=self.clock.wall_ms(),
                facts=(TokenEntered("t", "n", "s"), VariablesSet("s", {"version": version, "ü": [1.5, None]})),
                changes=changes,
                new_instance=NewInstance("p:1", "p", BUSINESS_KEYS[instance_id]) if version == 0 else None,
                **fields,
            )
        )

    # --- rules -----------------------------------------------------------------------------------------------------

    @rule(instance_id=instances, changes=plain_changes, births=few(st.builds(BirthLease, tasks, holders, durations)))
    def create_tasks(self, instance_id: str, changes: RowChanges, births: tuple[BirthLease, ...]) -> None:
        self.step(instance_id, changes, birth_leases=births)

    @rule(
        instance_id=instances,
        changes=row_changes,
        stale=st.sampled_from([False, False, False, True]),
        consumed=few(small, 1),
        sent=few(st.builds(InboxRow, instances, small, st.just(b"{}")), 1),
        taken=few(small, 1),
        snapshot=st.sampled_from([None, b"s"]),
    )
    def change_anything(
        self,
        instance_id: str,
        changes: RowChanges,
        stale: bool,
        consumed: tuple[str, ...],
        sent: tuple[InboxRow, ...],
        taken: tuple[str, ...],
        snapshot: bytes | None,
    ) -> None:
        fields: dict[str, Any] = {"messages_consumed": consumed, "inbox_sent": sent, "inbox_consumed": taken}
        self.step(instance_id, changes, stale, snapshot=snapshot, **fields)

    @rule(
        task_id=tasks,
        offset=fence_offsets,
        outcome=st.sampled_from([*OutcomeKind, OutcomeKind.COMPLETE, None]),
        final=st.sampled_from(["COMPLETED", "FAILED", "EXPIRED", "CANCELLED"]),
        digest=digests,
        gives_up=st.booleans(),
    )
    def end_a_task(
        self, task_id: str, offset: int, outcome: OutcomeKind | None, final: str, digest: str, gives_up: bool
    ) -> None:
        fence = None if outcome is None and digest == "d2" else self.fence(task_id, offset)
        ending = TaskEnding(
            task_id, fence, final, outcome, None if outcome is None else digest, "m", b"[]", None, gives_up
        )
        self.step(self.owner(task_id), RowChanges(), endings=(ending,))

    @rule(task_id=tasks)
    def complete_properly(self, task_id: str) -> None:
        ending = TaskEnding(task_id, self.fence(task_id, 0), "COMPLETED", OutcomeKind.COMPLETE, "d1")
        self.step(self.owner(task_id), RowChanges(), endings=(ending,))

    @rule(wishes=few(st.builds(TaskLease, tasks, holders, durations), 4))
    def lease(self, wishes: tuple[TaskLease, ...]) -> None:
        self.submit(LeaseTasks(wishes))

    @rule(holder=holders, wanted=few(topics, 3), max_tasks=st.integers(0, 4), duration_ms=durations)
    def fetch(self, holder: Holder, wanted: tuple[str, ...], max_tasks: int, duration_ms: int) -> None:
        self.submit(FetchAndLock(holder, wanted, max_tasks, duration_ms))

    @rule(
        task_id=tasks,
        offset=fence_offsets,
        digest=digests,
        wait_ms=st.sampled_from([None, 0, 2_000]),
        retries=st.sampled_from([None, None, 0, 2]),
        worker_id=st.sampled_from([None, "w"]),
        jitter=st.sampled_from([0.0, 0.5]),
    )
    def fail(
        self, task_id: str, offset: int, digest: str, wait_ms: Any, retries: Any, worker_id: Any, jitter: float
    ) -> None:
        fence = self.fence(task_id, offset)
        self.submit(FailTask(task_id, fence, digest, "m", b"{}", wait_ms, retries, worker_id, jitter))

    @rule(task_id=tasks, offset=fence_offsets, duration_ms=durations)
    def extend(self, task_id: str, offset: int, duration_ms: int) -> None:
        self.submit(ExtendLease(task_id, self.fence(task_id, offset), duration_ms))

    @rule(task_id=tasks, offset=fence_offsets, holder=holders)
    def renew(self, task_id: str, offset: int, holder: Holder) -> None:
        lease = RenewLease(task_id, self.fence(task_id, offset), holder.session_id)
        self.submit(RenewLeases((lease, lease)))

    @rule(task_id=tasks, offset=fence_offsets, holder=holders, by_worker=st.booleans(), started=st.booleans())
    def release(self, task_id: str, offset: int, holder: Holder, by_worker: bool, started: bool) -> None:
        session_id = None if by_worker else holder.session_id
        self.submit(ReleaseLeases((ReleaseLease(task_id, self.fence(task_id, offset), session_id, started),)))

    @rule(holder=holders, named=few(tasks, 3), begun=st.none() | few(tasks, 3), offset=fence_offsets)
    def resume(self, holder: Holder, named: tuple[str, ...], begun: tuple[str, ...] | None, offset: int) -> None:
        holding = tuple((task_id, self.fence(task_id, offset)) for task_id in named)
        tried = None if begun is None else tuple((task_id, self.fence(task_id, offset)) for task_id in begun)
        self.submit(ResumeSession(holder, holding, tried))

    @rule(limit=st.integers(1, 5))
    def expire(self, limit: int) -> None:
        self.submit(ExpireLocks(limit))

    @rule(
        task_id=tasks,
        offset=fence_offsets,
        kind=st.sampled_from(OutcomeKind),
        digest=digests,
        worker_id=st.sampled_from([None, "w", "v"]),
    )
    def check_repeat(self, task_id: str, offset: int, kind: OutcomeKind, digest: str, worker_id: str | None) -> None:
        self.submit(CheckRepeat(task_id, self.fence(task_id, offset), kind, digest, worker_id))

    @rule(keys=few(small), digest=digests, starts=few(small))
    def deploy(self, keys: tuple[str, ...], digest: str, starts: tuple[str, ...]) -> None:
        rows = tuple(DefinitionRow(key, None, digest, b"<x/>", 0, starts) for key in keys)
        self.submit(DeployDefinitions(rows))

    @rule(message=messages)
    def publish(self, message: MessageRow) -> None:
        self.submit(PublishMessage(message))

    @rule(now_ms=st.integers(3, 9))
    def drop_messages(self, now_ms: int) -> None:
        self.submit(DropMessages(now_ms))

    @rule(task_id=tasks, priority=st.integers(-2, 2))
    def set_priority(self, task_id: str, priority: int) -> None:
        self.submit(SetTaskPriority(task_id, priority))

    @rule(task_id=tasks, retries=st.integers(0, 3))
    def set_retries(self, task_id: str, retries: int) -> None:
        self.submit(SetTaskRetries(task_id, retries))

    @rule(key_ids=few(small), scopes=few(st.sampled_from(Scope)), topics=st.none() | few(topics))
    def store_api_keys(self, key_ids: tuple[str, ...], scopes: tuple[Scope, ...], topics: Any) -> None:
        for key_id in key_ids:
            identity = Identity(name=f"ü{key_id}", scopes=scopes, topics=topics, key_id=key_id)
            row = ApiKeyRow(key_id=key_id, secret_digest="d", identity=identity, created_at_ms=self.clock.wall_ms())
            self.submit(StoreApiKey(row))

    @rule(key_id=small)
    def revoke_api_key(self, key_id: str) -> None:
        self.submit(RevokeApiKey(key_id, self.clock.wall_ms()))

    @rule(age_ms=st.sampled_from([-1, 0, 1_000]), limit=st.integers(0, 3))
    def prune(self, age_ms: int, limit: int) -> None:
        self.submit(PruneInstances(self.clock.wall_ms() - age_ms, limit))

    @rule(
        instance_id=instances,
        changes=row_changes,
        holder=holders,
        status=st.sampled_from(["COMPLETED", "FAILED", "CANCELLED"]),
    )
    def live_end_and_prune(self, instance_id: str, changes: RowChanges, holder: Holder, status: str) -> None:
        """Some of its tasks are leased then, some failed once, and some wait."""
        self.step(instance_id, changes)
        for task in changes.new_tasks[:2]:
            self.submit(LeaseTasks((TaskLease(task.task_id, holder, 1_000),)))
            self.flush()
        for task in changes.new_tasks[:1]:
            self.submit(FailTask(task.task_id, self.fence(task.task_id, 0), "d1", "m"))
        self.step(instance_id, RowChanges(status=status))
        self.waiting.append(PruneInstances(self.clock.wall_ms() + 1, 1))
        self.flush()

    @rule(wanted=filters, limit=st.integers(0, 3), after=st.none() | instances)
    def list_instances(self, wanted: InstanceFilter, limit: int, after: str | None) -> None:
        self.flush()
        self.ask(lambda store: store.instances(wanted, limit=limit, after=after))

    @rule(wanted=task_queries, limit=st.integers(0, 3), after=st.none() | tasks)
    def list_tasks(self, wanted: TaskQuery, limit: int, after: str | None) -> None:
        self.flush()
        self.ask(lambda store: store.count_tasks(wanted))
        self.ask(lambda store: store.tasks(wanted, limit=limit, after=after))

    @rule(milliseconds=st.sampled_from([0, 500, 1_000, 5_000]), wall=st.sampled_from([0, 0, 3_600_000, -3_600_000]))
    def time_passes(self, milliseconds: int, wall: int) -> None:
        self.flush()
        self.clock.advance(milliseconds)
        self.clock.wall += wall

    @rule()
    def reopen(self) -> None:
        self.flush()
        at_once(self.memory.close())
        at_once(self.memory.open())
        at_once(self.other.close())
        at_once(self.other.open())

    @invariant()
    def everything_that_can_be_read_is_equal(self) -> None:
        if not self.waiting:
            assert at_once(everything(self.memory)) == at_once(everything(self.other))


def answer(coroutine: Coroutine[Any, Any, Any]) -> object:
    try:
        return at_once(coroutine)
    except InvalidInput as refusal:
        return refusal.message


def told(outcome: object) -> object:
    """Texts of data errors differ: each names its own tables."""
    guard = getattr(outcome, "guard", None)
    if guard is not None and guard.value == "data":
        return "data error"
    return type(outcome) if isinstance(outcome, Exception) else outcome


async def everything(store: Store) -> list[object]:
    found: list[object] = [await store.lease_now(), await store.instances(limit=2), await store.definitions()]
    for instance_id in INSTANCES:
        found += [await store.load_instance(instance_id), await store.history(instance_id)]
    for task_id in TASKS:
        found += [await store.task(task_id), list(await store.attempts(task_id))]
    for topic in TOPICS:
        found += [await store.ready_tasks(topic, 3), await store.tasks(TaskQuery(topic=topic))]
    found += [await store.draining_ready(9), await store.due_timers(1, 2), await store.matched_messages(4, 2)]
    found += [await store.incidents(), await store.user_tasks("i1")]
    found += [sorted(row.dedupe_key for row in await store.inbox(99)), await store.latest_definition("1")]
    found.append(await store.topic_backlogs())
    found += [list(await store.api_keys()), await store.has_api_keys(), await store.api_key("1")]
    return found


class BesideSqlite(SideBySide):
    def make_other(self) -> Store:
        self.directory = tempfile.TemporaryDirectory(dir=_FAST if Path(_FAST).is_dir() else None)
        path = Path(self.directory.name) / "engine.db"
        return SqliteStore(path, runner=AtOnce(), clock=self.clock, lock=FileLock(path), synchronous="NORMAL")

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


class LoopOfItsOwn:
    """A bridge to asyncio without trio: each call runs to its end."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self.runner.run(work())

    async def close(self) -> None:
        """The runner goes on for the next example."""


class BesidePostgres(SideBySide):
    dsn: ClassVar[str]
    runner: ClassVar[asyncio.Runner]

    def make_other(self) -> Store:
        bridge = LoopOfItsOwn(self.runner)

        async def open_bridge() -> LoopOfItsOwn:
            return bridge

        at_once(bridge.run(lambda: empty(self.dsn)))
        return PostgresStore(
            PostgresConfig(dsn=self.dsn),
            clock=self.clock,
            entropy=SystemEntropy(),
            log=structlog.get_logger(),
            node_id="side by side",
            lease_clock=DictatedLeaseClock(self.clock),
            open_bridge=open_bridge,
        )


async def empty(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'stellwerk'")
    names = [f"stellwerk.{row[0]}" for row in tables if row[0] != "schema_migrations"]
    await connection.execute(f"TRUNCATE {', '.join(names)}")
    await connection.close()


BesideSqlite.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
BesidePostgres.TestCase.settings = settings(BesideSqlite.TestCase.settings, max_examples=20, stateful_step_count=30)
TestBesideSqlite = BesideSqlite.TestCase


class TestBesidePostgres(BesidePostgres.TestCase):  # type: ignore[valid-type,misc]
    @pytest.fixture(autouse=True)
    def database(self, postgres_dsn: str) -> Iterator[None]:
        BesidePostgres.dsn = postgres_dsn
        with asyncio.Runner() as BesidePostgres.runner:
            yield
