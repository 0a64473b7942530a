"""Two nodes that write to one database at once: every guard holds, and nothing is done twice or by halves.

A third session holds the locks at which the nodes meet, so that the order of things is the test's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from stellwerk.core.changes import IncidentRow, RowChanges, TimerRow
from stellwerk.core.external_task import ExternalTask, Holder, OutcomeKind
from stellwerk.core.facts import TokenEntered, VariablesSet
from stellwerk.errors import InvalidInput
from stellwerk.ports import (
    Changeset,
    CheckRepeat,
    Committed,
    DefinitionRow,
    DeployDefinitions,
    Deployed,
    DropMessages,
    ExpireLocks,
    ExtendLease,
    FailTask,
    FetchAndLock,
    InboxRow,
    LeaseAnswer,
    LeaseAnswerKind,
    LeaseTasks,
    MessageRow,
    NewInstance,
    Operation,
    PublishMessage,
    RefusedChangeset,
    RefusedGuard,
    ReleaseLease,
    ReleaseLeases,
    RenewLease,
    RenewLeases,
    ResumeSession,
    StoredInstance,
    TaskEnding,
    TaskLease,
)
from stellwerk.stores.postgres.careful import step_locked, transact_carefully
from stellwerk.stores.postgres.clock_watch import LeaseTime
from stellwerk.testing.store_contract.world import START_MS, holder, new_task

NOW_MS: int | None = START_MS


@attrs.frozen
class Node:
    """One that does everything the careful way."""

    link: Any

    async def transact(self, *operations: Operation, now_ms: int | None = NOW_MS) -> list[Any]:
        work = partial(transact_carefully, self.link.connections, operations, LeaseTime(now_ms))
        return list(await self.link.bridge.run(work))

    async def do(self, operation: Operation, now_ms: int | None = NOW_MS) -> Any:
        return (await self.transact(operation, now_ms=now_ms))[0]

    async def step_locked(self, instance_id: str, decide: Callable[[StoredInstance | None], Changeset | None]) -> Any:
        return await self.link.bridge.run(
            partial(step_locked, self.link.connections, instance_id, decide, LeaseTime(NOW_MS))
        )


@pytest.fixture
async def a(open_link: Any, postgres_dsn: str) -> Node:
    return Node(await open_link(postgres_dsn))


@pytest.fixture
async def b(open_link: Any, postgres_dsn: str) -> Node:
    return Node(await open_link(postgres_dsn))


@pytest.fixture
async def other(open_link: Any, open_session: Callable[..., Awaitable[Any]], postgres_dsn: str) -> Any:
    """A connection that somebody else has, in a transaction where it is wanted."""
    return await open_session(await open_link(postgres_dsn))


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


def definition(digest: str) -> DeployDefinitions:
    return DeployDefinitions((DefinitionRow("order", None, digest, b"<x/>", START_MS, ("paid",)),))


def wish(task_id: str = "t", worker_id: str = "worker", duration_ms: int = 30_000) -> TaskLease:
    return TaskLease(task_id, holder(worker_id), duration_ms)


def steps() -> list[Operation]:
    lease = LeaseTasks((wish(),))
    return [step("i", 0, RowChanges(new_tasks=(new_task("t"),))), lease, PublishMessage(message()), step("i", 1)]


async def leased(node: Node, task_id: str = "t") -> ExternalTask:
    """A leased task of the instance ``i``."""
    created = step("i", 0, RowChanges(new_tasks=(new_task(task_id),)))
    _, (task,) = await node.transact(created, LeaseTasks((wish(task_id),)))
    assert isinstance(task, ExternalTask)
    return task


async def at_once(*works: Callable[[], Awaitable[Any]]) -> list[Any]:
    """What each gives; started in that order."""
    given: list[Any] = [None] * len(works)

    async def run(place: int) -> None:
        given[place] = await works[place]()

    async with trio.open_nursery() as nursery:
        for place in range(len(works)):
            nursery.start_soon(run, place)
    return given


async def race(other: Any, lock: str, *works: Callable[[], Awaitable[Any]]) -> list[Any]:
    """All of them wait for what `lock` has locked before any can go on."""

    async def let_go() -> None:
        await other.all_wait(len(works))
        await other.release()

    await other.hold(lock)
    return (await at_once(*works, let_go))[:-1]


async def one_behind_the_other(
    other: Any, table: str, first: Callable[[], Awaitable[Any]], second: Callable[[], Awaitable[Any]]
) -> list[Any]:
    """`first` has written all but its last rows, to `table`, when `second` begins; then it commits."""
    came = trio.Event()

    async def follow() -> Any:
        await came.wait()
        return await second()

    async def direct() -> None:
        await other.all_wait(1)
        came.set()
        await other.all_wait(2)
        await other.release()

    await other.hold(f"LOCK TABLE stellwerk.{table} IN SHARE MODE")
    return (await at_once(first, follow, direct))[:-1]


def guards(outcomes: list[Any]) -> list[RefusedGuard | None]:
    """None: committed."""
    found = [outcome.guard if isinstance(outcome, RefusedChangeset) else None for outcome in outcomes]
    return sorted(found, key=lambda guard: "" if guard is None else guard.value)


# --- one row, two nodes ----------------------------------------------------------------------------------------------


async def test_rule_1_one_of_two_nodes_steps_an_instance(a: Node, b: Node, other: Any) -> None:
    await a.do(step("i"))
    lock = "SELECT FROM stellwerk.instances FOR UPDATE"
    outcomes = await race(other, lock, lambda: a.do(step("i", 1)), lambda: b.do(step("i", 1)))
    assert guards(outcomes) == [None, RefusedGuard.VERSION]
    assert await other.count("history") == 2


async def test_rule_1_a_task_is_leased_to_one_of_two_nodes(a: Node, b: Node, other: Any) -> None:
    await a.do(step("i", 0, RowChanges(new_tasks=(new_task("t"),))))
    lock = "SELECT FROM stellwerk.external_tasks FOR UPDATE"
    by_a, by_b = LeaseTasks((wish(worker_id="a"),)), LeaseTasks((wish(worker_id="b"),))
    (to_a,), (to_b,) = await race(other, lock, lambda: a.do(by_a), lambda: b.do(by_b))
    assert (to_a is None) != (to_b is None)
    winner = to_a or to_b
    assert winner.lease.holder.worker_id == ("a" if to_b is None else "b")
    assert await other.value("SELECT lock_owner FROM stellwerk.external_tasks") == winner.lease.holder.worker_id


async def test_rule_1_a_completion_and_an_expiry_of_one_lease(a: Node, b: Node, other: Any) -> None:
    task = await leased(a)
    ending = TaskEnding("t", task.fence, "COMPLETED", OutcomeKind.COMPLETE, "digest")
    fail = FailTask("t", task.fence, "other digest", "out of order")
    lock = "SELECT FROM stellwerk.external_tasks FOR UPDATE"
    completed, failed = await race(other, lock, lambda: a.do(step("i", 1, endings=(ending,))), lambda: b.do(fail))
    state = await other.value("SELECT state FROM stellwerk.external_tasks")
    if isinstance(completed, Committed):
        assert (failed.kind, state) == (LeaseAnswerKind.ALREADY_FINISHED, "COMPLETED")
    else:
        assert completed.guard is RefusedGuard.LEASE
        assert (failed.kind, state) == (LeaseAnswerKind.DONE, "READY")


async def test_L8_a_failure_repeated_on_another_node_costs_one_retry(a: Node, b: Node, other: Any) -> None:
    task = await leased(a)
    fail = FailTask("t", task.fence, "digest", "out of order")
    lock = "SELECT FROM stellwerk.external_tasks FOR UPDATE"
    answers = await race(other, lock, lambda: a.do(fail), lambda: b.do(fail))
    assert {answer.kind for answer in answers} == {LeaseAnswerKind.DONE, LeaseAnswerKind.REPEATED}
    assert {answer.task.retries_left for answer in answers} == {2}
    assert await other.count("task_attempts") == 1


async def test_rule_6_a_message_goes_to_one_of_two_instances(a: Node, b: Node, other: Any) -> None:
    await a.transact(step("i"), step("j"), PublishMessage(message()))
    taken = [step(name, 1, messages_consumed=("m",)) for name in "ij"]
    lock = "SELECT FROM stellwerk.messages FOR UPDATE"
    outcomes = await race(other, lock, lambda: a.do(taken[0]), lambda: b.do(taken[1]))
    assert guards(outcomes) == [None, RefusedGuard.MESSAGE]
    assert await other.count("history") == 3


@pytest.mark.parametrize("what", ["incident", "inbox row"])
async def test_rule_9_one_of_two_nodes_settles_an(what: str, a: Node, b: Node, other: Any) -> None:
    incident = IncidentRow("x", "failed", "Task_1", "out of order")
    await a.transact(
        step("sender", inbox_sent=(InboxRow("i", "x", b"{}"),)),
        step("i", 0, RowChanges(incidents_opened=(incident,))),
    )
    fields: dict[str, Any] = {"inbox_consumed": ("x",)}
    if what == "incident":
        fields = {"changes": RowChanges(incidents_resolved=("x",))}
    table = "incidents" if what == "incident" else "inbox"
    lock = "SELECT FROM stellwerk.instances WHERE instance_id = 'i' FOR UPDATE"
    outcomes = await race(other, lock, lambda: a.do(step("i", 1, **fields)), lambda: b.do(step("i", 1, **fields)))
    assert guards(outcomes) == [None, RefusedGuard.VERSION]
    again = await b.do(step("i", 2, **fields))
    assert again.guard in (RefusedGuard.INCIDENT, RefusedGuard.INBOX)
    assert await other.count(table) == 0


async def test_what_is_sent_to_an_instance_that_ends_meanwhile_is_dropped(a: Node, b: Node, other: Any) -> None:
    await a.transact(step("i"), step("j"))
    end, send = step("i", 1, RowChanges(status="COMPLETED")), step("j", 1, inbox_sent=(InboxRow("i", "x", b"{}"),))
    ended, sent = await one_behind_the_other(other, "history", lambda: a.do(end), lambda: b.do(send))
    assert isinstance(ended, Committed)
    assert isinstance(sent, Committed)
    assert await other.count("inbox") == 0


# --- a row that is not there yet -------------------------------------------------------------------------------------


async def test_an_instance_that_two_nodes_create_is_there_once(a: Node, b: Node, other: Any) -> None:
    outcomes = await one_behind_the_other(
        other, "history", lambda: a.do(step("i")), lambda: b.do(step("i", 0, RowChanges(status="COMPLETED")))
    )
    assert isinstance(outcomes[0], Committed)
    assert outcomes[1] == RefusedChangeset(RefusedGuard.VERSION, "i")
    assert await other.value("SELECT status FROM stellwerk.instances") == "RUNNING"


async def test_a_message_published_on_two_nodes_is_published_once(a: Node, b: Node, other: Any) -> None:
    slow = (PublishMessage(message()), step("i", inbox_sent=(InboxRow("j", "x", b"{}"),)))
    first, second = await one_behind_the_other(
        other, "inbox", lambda: a.transact(*slow), lambda: b.transact(PublishMessage(message()), step("k"))
    )
    assert first[0] is True
    assert second[0] is False
    assert isinstance(second[1], Committed)


async def test_rule_5_an_inbox_row_sent_by_two_nodes_is_kept_once(a: Node, b: Node, other: Any) -> None:
    def send(sender: str) -> Changeset:
        return step(sender, inbox_sent=(InboxRow("not there yet", "x", sender.encode()),))

    first, second = await one_behind_the_other(
        other, "definitions", lambda: a.transact(send("i"), definition("d1")), lambda: b.transact(send("j"))
    )
    assert [type(outcome) for outcome in (*first, *second)] == [Committed, Deployed, Committed]
    assert await other.value("SELECT command FROM stellwerk.inbox") == "i"


@pytest.mark.parametrize(("digest", "version", "unchanged"), [("d1", 1, ("order",)), ("d2", 2, ())])
async def test_rule_7_two_nodes_deploy_one_process(
    digest: str, version: int, unchanged: tuple[str, ...], a: Node, b: Node, other: Any
) -> None:
    first, second = await one_behind_the_other(
        other, "definitions", lambda: a.do(definition("d1")), lambda: b.do(definition(digest))
    )
    assert (first.definitions[0].version, first.unchanged) == (1, ())
    assert (second.definitions[0].version, second.unchanged) == (version, unchanged)
    started = await other.value("SELECT string_agg(definition_id, ' ') FROM stellwerk.start_subscriptions")
    assert started == f"order:{version}"


async def test_rule_7_a_start_that_asks_for_the_newest_version_is_told_of_it(a: Node, b: Node) -> None:
    await a.do(definition("d1"))
    await b.do(definition("d2"))
    new = NewInstance("order:1", "order", None, must_be_newest=True)
    refused = await a.do(step("i", new_instance=new))
    assert refused == RefusedChangeset(RefusedGuard.DEFINITION, "order:2")


# --- scans -----------------------------------------------------------------------------------------------------------


async def test_fault_62_and_63_every_task_is_fetched_by_one_worker_and_never_too_many(
    open_link: Any, postgres_dsn: str
) -> None:
    nodes = [Node(await open_link(postgres_dsn)) for _ in range(4)]
    tasks = tuple(new_task(f"t{number:03d}", priority=number % 3) for number in range(200))
    await nodes[0].do(step("i", 0, RowChanges(new_tasks=tasks)))
    fetched: list[str] = []

    async def fetch(node: Node, worker_id: str) -> None:
        while found := await node.do(FetchAndLock(holder(worker_id), ("payment", "nothing"), 7, 30_000)):
            assert len(found) <= 7
            assert {task.lease.holder.worker_id for task in found} == {worker_id}
            fetched.extend(task.task_id for task in found)

    async with trio.open_nursery() as nursery:
        for number, node in enumerate(nodes):
            nursery.start_soon(fetch, node, f"worker {number}")
    assert sorted(fetched) == [task.task_id for task in tasks]


async def test_scans_leave_out_what_others_work_on(a: Node, other: Any) -> None:
    tasks = tuple(new_task(name, priority=priority) for name, priority in (("t1", 3), ("t2", 2), ("t3", 1)))
    await a.do(step("i", 0, RowChanges(new_tasks=tasks)))
    await other.hold("SELECT FROM stellwerk.external_tasks WHERE task_id = 't1' FOR UPDATE")
    assert [task.task_id for task in await a.do(FetchAndLock(holder(), ("payment",), 2, 1_000))] == ["t2", "t3"]
    await other.release()
    await other.hold("SELECT FROM stellwerk.external_tasks WHERE task_id = 't2' FOR UPDATE")
    expired = await a.do(ExpireLocks(10), START_MS + 5_000)
    assert [task.task_id for task in expired.returned] == ["t3"]
    await other.release()


async def test_of_several_topics_the_foremost_tasks_are_taken_in_order(a: Node) -> None:
    wanted = [("t1", "ship", 1), ("t2", "payment", 2), ("t3", "ship", 3), ("t4", "payment", 0), ("t5", "other", 9)]
    tasks = tuple(new_task(name, topic=topic, priority=priority) for name, topic, priority in wanted)
    await a.do(step("i", 0, RowChanges(new_tasks=tasks)))
    operation = FetchAndLock(holder(), ("payment", "ship", "payment"), 3, 1_000)
    assert [task.task_id for task in await a.do(operation)] == ["t3", "t2", "t1"]
    assert [task.task_id for task in await a.do(operation)] == ["t4"]


async def test_more_messages_than_one_step_deletes_are_dropped_and_counted(a: Node, other: Any) -> None:
    await other.execute(
        "INSERT INTO stellwerk.messages (message_id, name, key, variables, published_at_ms, expires_at_ms, is_consumed)"
        " SELECT n, 'paid', '1', '{}', 0, n, n <= 10 FROM generate_series(1, 5020) AS n"
    )
    assert await a.do(DropMessages(5_015)) == 5_005
    assert await other.count("messages") == 5


async def test_the_instant_is_read_after_the_locks(a: Node, other: Any) -> None:
    await a.do(step("i", 0, RowChanges(new_tasks=(new_task("t"),))), None)
    (task,) = await a.do(LeaseTasks((wish(duration_ms=400),)), None)

    async def outlast() -> None:
        await other.all_wait(1)
        with trio.fail_after(10):
            while await other.value("SELECT stellwerk.now_ms()") < task.lease.until_ms:
                await trio.sleep(0.01)
        await other.release()

    await other.hold("SELECT FROM stellwerk.external_tasks FOR UPDATE")
    answer, _ = await at_once(lambda: a.do(ExtendLease("t", task.fence, 60_000), None), outlast)
    assert answer.kind is LeaseAnswerKind.LEASE_LOST


async def test_rows_that_go_and_come_back_in_one_batch_end_as_one_after_the_other(a: Node, other: Any) -> None:
    def due(due_at_ms: int) -> TimerRow:
        return TimerRow("timer", "T", due_at_ms)

    def send(command: bytes) -> tuple[InboxRow, ...]:
        return (InboxRow("i", "x", command),)

    outcomes = await a.transact(
        step("i", 0, RowChanges(timers_armed=(due(1),)), inbox_sent=send(b"1")),
        step("i", 1, RowChanges(timers_disarmed=("timer",), timers_armed=(due(2),)), inbox_sent=send(b"2")),
        step("i", 2, RowChanges(timers_disarmed=("timer",)), inbox_consumed=("x",), inbox_sent=send(b"3")),
        step("i", 3, RowChanges(timers_armed=(due(4),)), inbox_sent=send(b"4"), snapshot=b"first"),
        step("i", 4, snapshot=b"last"),
    )
    assert [outcome.version for outcome in outcomes] == [1, 2, 3, 4, 5]
    assert await other.value("SELECT string_agg(due_at_ms::text, ' ') FROM stellwerk.timers") == "4"
    assert await other.value("SELECT string_agg(command, ' ') FROM stellwerk.inbox") == "3"
    assert await other.value("SELECT snapshot FROM stellwerk.snapshots WHERE version = 5") == b"last"


async def test_a_pooler_in_transaction_mode_changes_nothing(open_link: Any, pooled_dsn: str) -> None:
    node = Node(await open_link(pooled_dsn, is_pooled=True))
    created, (task,), published, stepped = await node.transact(*steps())
    assert (created.version, published, stepped.version) == (1, True, 2)
    bad = step("bad", 0, RowChanges(cancelled_tasks=("nothing",)))
    refused, answer = await node.transact(bad, FailTask("t", task.fence, "digest", "out of order"))
    assert (refused.guard, answer.kind) == (RefusedGuard.DATA, LeaseAnswerKind.DONE)
    assert len(await node.do(FetchAndLock(holder(), ("payment",), 5, 1_000), START_MS + 600_000)) == 1
    assert (await node.step_locked("i", next_step)).version == 3


async def test_every_statement_goes_by_keys_or_along_an_index(open_link: Any, postgres_dsn: str, a: Node) -> None:
    """Also while the planner knows nothing of the tables yet."""
    link = await open_link(postgres_dsn)
    node = Node(link)
    waiting = RowChanges(
        new_tasks=(new_task("t"), new_task("u")),
        timers_armed=(TimerRow("timer", "T", 1),),
        incidents_opened=(IncidentRow("x", "failed", "Task_1", "out of order"),),
    )
    sent = (InboxRow("i", "x", b"{}"),)
    created = step("i", 0, waiting, inbox_sent=sent)
    settled = RowChanges(timers_disarmed=("timer",), incidents_resolved=("x",), cancelled_tasks=("u",))
    settle = step("i", 1, settled, messages_consumed=("m",), inbox_consumed=("x",), snapshot=b"s")
    await node.transact(definition("d1"), PublishMessage(message()), created, settle, step("i", 2))
    (task,) = await node.do(FetchAndLock(holder(), ("payment",), 5, 1_000))
    await node.transact(
        FailTask("t", task.fence, "digest", "out of order"),
        CheckRepeat("t", task.fence - 1, OutcomeKind.FAIL, "digest", "worker"),
        ResumeSession(holder(), (("t", task.fence),)),
        ExpireLocks(5),
        DropMessages(START_MS),
    )
    await node.step_locked("i", next_step)
    await link.bridge.run(link.connections.close)
    scans = "SELECT string_agg(relname, ' ') FROM pg_stat_user_tables WHERE seq_scan > 0 AND schemaname = 'stellwerk'"
    found = await a.link.value(f"{scans} AND relname NOT IN ('schema_migrations', 'start_subscriptions')")
    assert found is None
    assert await a.link.value("SELECT idx_scan > 0 FROM pg_stat_user_tables WHERE relname = 'external_tasks'")


# --- size ------------------------------------------------------------------------------------------------------------

_MEGABYTE = 1024 * 1024
_STEPS_BY_TRANSACTION = """
SELECT string_agg(steps, ' | ' ORDER BY began) FROM (
    SELECT min(place) AS began, string_agg(step, ' ' ORDER BY place) AS steps FROM (
        SELECT instance_id || '.' || version AS step, ctid AS place, xmin::text AS transaction FROM stellwerk.history
    ) AS rows GROUP BY transaction
) AS transactions"""


async def test_a_transaction_is_bounded_in_bytes(a: Node, other: Any) -> None:
    """Facts, and variables of tasks and messages. What follows sees what was before; what is too large goes alone."""
    facts = (VariablesSet("s", {"text": "x" * (5 * _MEGABYTE)}),)
    variables = b'"' + b"x" * (5 * _MEGABYTE) + b'"'
    sent = (InboxRow("i0", "key", b"{}"),)
    outcomes = await a.transact(
        step("i0", facts=facts, inbox_sent=sent),
        step("i1", changes=RowChanges(new_tasks=(new_task("t", variables=variables),))),
        PublishMessage(attrs.evolve(message(), variables=variables)),
        step("i2", facts=facts),
        step("i0", 1, inbox_consumed=("key",)),
        step("i3", facts=(VariablesSet("s", {"text": "x" * (17 * _MEGABYTE)}),)),
        step("i1", 1, RowChanges(cancelled_tasks=("t",))),
    )
    assert [type(outcome) for outcome in outcomes] == [Committed, Committed, bool, *[Committed] * 4]
    groups = await other.value(_STEPS_BY_TRANSACTION)
    assert groups == "i0.1 i1.1 | i2.1 i0.2 | i3.1 | i1.2"


# --- a data error ----------------------------------------------------------------------------------------------------


BAD = {
    "a task that exists": step("bad", 0, RowChanges(new_tasks=(new_task("new"), new_task("t")))),
    "a timer that exists": step("bad", 0, RowChanges(timers_armed=(TimerRow("timer", "T", 1),))),
    "one timer twice": step("bad", 0, RowChanges(timers_armed=(TimerRow("x", "T", 1),) * 2)),
    "a task that does not exist": step("bad", 0, RowChanges(cancelled_tasks=("nothing",))),
    "a NUL character": step("bad", 0, new_instance=NewInstance("order:1", "order", "\0")),
    "a lone surrogate": step("bad\ud800"),
    "no JSON": step("bad", 0, RowChanges(new_tasks=(new_task("new", variables=b"{"),))),
    "too large a number": step("bad", 0, RowChanges(new_tasks=(new_task("new", priority=2**63),))),
    "no changes at all": step("bad", changes=None, inbox_sent=None),
}


async def test_rule_1_an_operation_that_cannot_be_written_spoils_no_neighbour(a: Node, other: Any) -> None:
    timer = RowChanges(timers_armed=(TimerRow("timer", "T", 1),))
    await a.transact(step("i", 0, RowChanges(new_tasks=(new_task("t"),))), step("timed", 0, timer))
    for number, (name, bad) in enumerate(BAD.items(), 1):
        before: list[Operation] = [step("i", 2 * number - 1, inbox_sent=(InboxRow("timed", "x", b"{}"),))]
        after: list[Operation] = [step("i", 2 * number), PublishMessage(message(name))]
        consume = step("timed", number, inbox_consumed=("x",))
        outcomes = await a.transact(*before, bad, *after, consume)
        assert [type(outcome) for outcome in outcomes] == [Committed, RefusedChangeset, Committed, bool, Committed], (
            name
        )
        assert outcomes[1].guard is RefusedGuard.DATA
    assert await other.count("instances") == 2
    assert await other.count("history") == 2 + 3 * len(BAD)
    assert await other.count("timers") == 1
    assert await other.count("external_tasks") == 1


async def test_many_bad_operations_are_refused_one_by_one(a: Node, other: Any) -> None:
    operations = [step(f"i{n:02d}", 0, RowChanges(timers_armed=(TimerRow(str(n // 3), "T", 1),))) for n in range(30)]
    outcomes = await a.transact(*operations)
    assert [isinstance(outcome, Committed) for outcome in outcomes] == [n % 3 == 0 for n in range(30)]
    assert await other.count("instances") == 10


async def test_a_refusal_names_what_is_wrong_and_quotes_no_row(a: Node) -> None:
    armed = RowChanges(timers_armed=(TimerRow("timer-secret", "T", 1),))
    _, refused = await a.transact(step("i", 0, armed), step("j", 0, armed))
    assert "timers_pkey" in refused.subject
    assert "secret" not in refused.subject


async def test_an_operation_on_a_lease_that_cannot_be_written_is_refused(a: Node) -> None:
    task = await leased(a)
    fail = FailTask("t", task.fence, "digest", "a NUL \0 in it")
    refused, answer = await a.transact(fail, ExtendLease("t", task.fence, 60_000))
    assert isinstance(refused, InvalidInput)
    assert "the store cannot write this" in refused.message
    assert answer.kind is LeaseAnswerKind.DONE


async def test_what_no_row_can_be_called_is_unknown(a: Node) -> None:
    for name in ("a\0b", "\udc80"):
        await check_unknown(name, a)


async def check_unknown(name: str, a: Node) -> None:
    by = Holder(name, name, 2, name)
    outcomes = await a.transact(
        LeaseTasks((wish(name),)),
        FailTask(name, 2**70, "digest", "out of order"),
        RenewLeases((RenewLease(name, 1, name),)),
        ReleaseLeases((ReleaseLease(name, 1, None, True),)),
        CheckRepeat(name, 1, OutcomeKind.FAIL, "digest", name),
        ResumeSession(by, ((name, 1),)),
        FetchAndLock(by, (name,), 5, 1_000),
        step("i", messages_consumed=(name,)),
    )
    unknown = LeaseAnswer(LeaseAnswerKind.UNKNOWN)
    assert outcomes[:5] == [(None,), unknown, (unknown,), (unknown,), unknown]
    assert outcomes[5].lost[0].reason == "lost"
    assert outcomes[6] == ()
    assert outcomes[7] == RefusedChangeset(RefusedGuard.MESSAGE, name)


# --- others in the way -----------------------------------------------------------------------------------------------


async def test_the_loser_of_a_deadlock_tries_again(a: Node, other: Any) -> None:
    task = await leased(a)
    ending = TaskEnding("t", task.fence, "COMPLETED", OutcomeKind.COMPLETE, "digest")
    await other.execute("SET deadlock_timeout = '1min'")
    await other.hold("SELECT FROM stellwerk.external_tasks FOR UPDATE")

    async def cross() -> None:
        await other.all_wait(1)
        await other.execute("SELECT FROM stellwerk.instances FOR UPDATE")
        await other.release()

    with trio.fail_after(20):
        committed, _ = await at_once(lambda: a.do(step("i", 1, endings=(ending,))), cross)
    assert isinstance(committed, Committed)
    assert await other.count("history") == 2


async def test_a_serialization_failure_is_tried_again(a: Node, other: Any) -> None:
    await other.execute(
        """
        CREATE SEQUENCE tries;
        CREATE FUNCTION fail_twice() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('tries') <= 2 THEN RAISE EXCEPTION USING ERRCODE = '40001'; END IF;
                RETURN NEW;
            END $$;
        CREATE TRIGGER fail_twice BEFORE INSERT ON stellwerk.history FOR EACH ROW EXECUTE FUNCTION fail_twice();
        """
    )
    assert isinstance(await a.do(step("i")), Committed)
    assert await other.value("SELECT last_value FROM tries") == 3
    assert await other.count("history") == 1
    assert await other.count("batches") == 1


async def test_what_writes_nothing_commits_nothing(a: Node, other: Any) -> None:
    assert await a.transact(LeaseTasks((wish("nothing"),)), step("i", 3)) == [
        (None,),
        RefusedChangeset(RefusedGuard.VERSION, "i"),
    ]
    assert await other.count("batches") == 0


async def test_a_connection_lost_before_the_commit_is_made_anew(a: Node, other: Any) -> None:
    async def kill() -> None:
        await other.all_wait(1)
        await other.value("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        await other.all_wait(1)
        await other.release()

    await other.hold("LOCK TABLE stellwerk.history IN SHARE MODE")
    committed, _ = await at_once(lambda: a.do(step("i")), kill)
    assert isinstance(committed, Committed)
    assert await other.count("history") == 1


# --- a step under lock -----------------------------------------------------------------------------------------------


def next_step(stored: StoredInstance | None) -> Changeset:
    return step("i", 0 if stored is None else stored.version)


async def test_rule_4_while_a_node_decides_under_lock_no_other_steps_the_instance(a: Node, b: Node, other: Any) -> None:
    await a.do(step("i"))
    locked, refused = await one_behind_the_other(
        other, "history", lambda: a.step_locked("i", next_step), lambda: b.do(step("i", 1))
    )
    assert locked.version == 2
    assert refused == RefusedChangeset(RefusedGuard.VERSION, "i")


async def test_rule_4_who_decides_under_lock_sees_the_step_of_the_other_node(a: Node, b: Node, other: Any) -> None:
    await a.do(step("i"))
    seen: list[int] = []

    def decide(stored: StoredInstance | None) -> Changeset:
        assert stored is not None
        seen.append(len(stored.steps))
        return next_step(stored)

    stepped, locked = await one_behind_the_other(
        other, "history", lambda: b.do(step("i", 1)), lambda: a.step_locked("i", decide)
    )
    assert (stepped.version, locked.version, seen) == (2, 3, [2])


async def test_rule_4_two_nodes_create_the_instance_under_lock(a: Node, b: Node, other: Any) -> None:
    first, second = await one_behind_the_other(
        other, "history", lambda: a.step_locked("i", next_step), lambda: b.step_locked("i", next_step)
    )
    assert (first.version, second.version) == (1, 2)


async def test_a_decision_for_nothing_or_with_an_error_leaves_nothing_behind(a: Node, other: Any) -> None:
    def fail(stored: StoredInstance | None) -> Changeset:
        raise ValueError("the model is wrong")

    assert await a.step_locked("i", lambda stored: None) is None
    with pytest.raises(ValueError, match="the model is wrong"):
        await a.step_locked("i", fail)
    refused = await a.step_locked("i", lambda stored: step("i", 0, RowChanges(cancelled_tasks=("nothing",))))
    assert refused.guard is RefusedGuard.DATA
    assert await other.count("batches") == 0
    assert (await a.step_locked("i", next_step)).version == 1
