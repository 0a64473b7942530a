"""What the simulated database does to nodes: answers lost, commits undone, phases in which it refuses, clock jumps.

Each test is a simulation of its own: the network, the hosts and the database are those of the cluster's runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from simulations.kernel.simulation import Simulation
from simulations.world.database import Database, DatabaseSettings
from simulations.world.exchanges import DATABASE
from simulations.world.hosts import HostClock, Hosts
from simulations.world.network import Network, NetworkSettings
from simulations.world.rows import Transaction
from simulations.world.shared_store import SharedStore
from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import TaskState
from stellwerk.core.facts import TokenEntered
from stellwerk.errors import StoreUnavailable
from stellwerk.ports import (
    Changeset,
    Committed,
    ExpiredLocks,
    ExpireLocks,
    Hint,
    NewInstance,
    NodeReport,
    RefusedChangeset,
    Resumed,
    ResumeSession,
    StoredInstance,
)
from stellwerk.testing.store_contract import StoreWorld
from stellwerk.testing.store_contract.world import holder, new_task

ISOLATIONS = pytest.mark.parametrize("isolation", ["serialisable", "read_committed"])


@attrs.define
class Watcher:
    """A `CommitObserver` that keeps what it was told."""

    events: list[tuple[str, int]] = attrs.field(factory=list)
    transactions: list[Transaction] = attrs.field(factory=list)

    def committed(self, transaction: Transaction) -> None:
        self.events.append(("committed", transaction.number))
        self.transactions.append(transaction)

    def undone(self, transaction: Transaction) -> None:
        self.events.append(("undone", transaction.number))

    def synced(self, number: int) -> None:
        self.events.append(("synced", number))

    def numbers(self, kind: str) -> list[int]:
        return [number for event, number in self.events if event == kind]


@attrs.define
class World:
    simulation: Simulation
    network: Network
    hosts: Hosts
    database: Database
    watcher: Watcher
    nursery: trio.Nursery

    async def store(self, host: str) -> SharedStore:
        if host not in self.hosts:
            self.hosts.add(host, HostClock(self.simulation))
        store = self.database.store_for(host, host, self.hosts[host].clock)
        await store.open()
        return store

    async def node(self, host: str = "node-1") -> Any:
        """Short words for what is done on the store of a node."""
        clock: Any = HostClock(self.simulation)
        return StoreWorld(await self.store(host), clock)

    def sometimes(self, name: str) -> int:
        return self.simulation.properties.hits[f"database: {name}"]


Scenario = Callable[[World], Awaitable[None]]


def simulate(scenario: Scenario, *, seed: int = 1, **settings: Any) -> Simulation:
    """A run of that scenario; what it asserts fails the test."""
    simulation = Simulation(seed, keep_trace=True)
    failures: list[BaseException] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            network = Network(simulation, NetworkSettings(slow=0.0))
            hosts = Hosts(simulation, network, nursery)
            hosts.add(DATABASE, HostClock(simulation))
            database = Database(simulation, hosts, network, hosts[DATABASE].clock, DatabaseSettings(**settings))
            watcher = Watcher()
            database.observers.append(watcher)
            database.start()
            try:
                await scenario(World(simulation, network, hosts, database, watcher, nursery))
            except BaseException as error:
                failures.append(error)
                raise
            simulation.abort()

    simulation.run(main)
    if failures:
        raise failures[0]
    assert simulation.properties.violations == []
    return simulation


def first_step(instance_id: str) -> Changeset:
    """Of a new instance."""
    facts = (TokenEntered("token", "Task_1", "scope"),)
    new = NewInstance("order:1", "order", None)
    return Changeset(
        instance_id=instance_id, expected_version=0, at_ms=0, facts=facts, changes=RowChanges(), new_instance=new
    )


# --- durability ----------------------------------------------------------------------------------------------------


@ISOLATIONS
def test_a_commit_and_all_that_saw_it_is_answered_after_the_sync(isolation: str) -> None:
    async def scenario(world: World) -> None:
        node, other = await world.node("node-1"), await world.node("node-2")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.step, "order")
            while not world.watcher.transactions:
                await trio.sleep(0.001)
            committed_at = world.simulation.now()
            stored = await other.store.load_instance("order")
        assert stored is not None
        assert stored.version == 1
        assert world.simulation.now() >= committed_at + 0.9
        assert world.watcher.events == [("committed", 1), ("synced", 1)]

    simulate(scenario, sync_seconds=1.0, isolation=isolation)


def test_a_crash_undoes_what_was_not_synced_newest_first_and_the_node_submits_it_again() -> None:
    async def scenario(world: World) -> None:
        first, second = await world.node("node-1"), await world.node("node-2")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.step, "order-1", RowChanges(new_tasks=(new_task("t1"),)))
            nursery.start_soon(second.step, "order-2", RowChanges(new_tasks=(new_task("t2"),)))
            while len(world.watcher.transactions) < 2:
                await trio.sleep(0.001)
            world.database._crash(2.0)
            assert world.watcher.numbers("undone") == [2, 1]
            assert world.database.all_instances() == []
            assert world.database.all_tasks() == []
        assert [row.instance_id for row in world.database.all_instances()] == ["order-1", "order-2"]
        assert world.watcher.numbers("committed") == [1, 2, 3, 4]
        assert world.simulation.now() > 2.0
        assert await first.state("t1") == "READY"

    simulation = simulate(scenario, sync_seconds=0.5)
    assert simulation.properties.hits["database: a commit was undone by a crash"] == 1


def test_half_of_all_crashes_come_right_after_a_commit() -> None:
    undone = 0

    async def scenario(world: World) -> None:
        nonlocal undone
        node = await world.node()
        world.database.crash(1.0)
        for number in range(20):
            await node.step(f"order-{number}")
            await trio.sleep(0.02)
        undone += len(world.watcher.numbers("undone"))
        assert len(world.database.all_instances()) == 20

    for seed in range(10):
        simulate(scenario, seed=seed)
    assert 2 <= undone <= 8


def test_rule_19_the_lease_clock_never_falls_over_a_crash() -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        await trio.sleep(5)
        before = await node.store.lease_now()
        world.hosts[DATABASE].clock.jump(-3_600_000)
        world.database._crash(1.0)
        await trio.sleep(2)
        assert before + 2_000 <= await node.store.lease_now() <= before + 3_000

    simulate(scenario)


def test_a_crash_ends_open_transactions_and_their_locks() -> None:
    async def scenario(world: World) -> None:
        node, other = await world.node("node-1"), await world.node("node-2")
        await node.step("order")

        def crash_once(stored: StoredInstance | None) -> Changeset:
            if not world.sometimes("crashed"):
                world.database._crash(0.5)
            assert stored is not None
            changeset: Changeset = node.changeset("order")
            return changeset

        assert isinstance(await node.store.step_locked("order", crash_once), Committed)
        other.versions["order"] = 2
        assert (await other.step("order")).version == 3

    simulate(scenario)


# --- consistency.md 3: a commit in doubt ---------------------------------------------------------------------------


@ISOLATIONS
def test_rule_3_a_lost_answer_is_resolved_by_the_same_batch_again(isolation: str) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        world.database.lose_answers(1.0, for_seconds=0.05)
        committed = await node.step("order", RowChanges(new_tasks=(new_task("t"),)))
        assert committed.version == 1
        task = await node.lease("t")
        world.database.lose_answers(1.0, for_seconds=0.05)
        assert (await node.commit(node.completion(task))).version == 2
        assert world.watcher.numbers("committed") == [1, 2, 3]
        assert world.sometimes("committed, and the answer was lost") >= 2
        assert world.sometimes("a batch submitted again had been committed") >= 2

    for seed in range(3):
        simulate(scenario, seed=seed, isolation=isolation)


@ISOLATIONS
def test_rule_3_a_lease_whose_answer_was_lost_is_told_only_while_it_stands(isolation: str) -> None:
    async def scenario(world: World) -> None:
        node, other = await world.node("node-1"), await world.node("node-2")
        task_id = await node.ready_task()
        outcomes: list[Any] = []

        async def lease() -> None:
            with pytest.raises(AssertionError):  # there is no lease in the answer
                outcomes.append(await node.lease(task_id))

        async with trio.open_nursery() as nursery:
            world.network.cut(DATABASE, "node-1", both=False)
            nursery.start_soon(lease)
            await trio.sleep(1)
            leased = await other.task(task_id)
            assert leased.state is TaskState.LOCKED
            await other.fail(leased)
            # Until nobody waits for the first answer any more.
            await trio.sleep(12)
            world.network.heal()

    simulate(scenario, isolation=isolation)


@ISOLATIONS
def test_rule_3_a_node_cut_off_from_the_database_finds_out_what_happened(isolation: str) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.step, "order")
            await trio.sleep(0.0001)
            world.network.cut("node-1", DATABASE)
            await trio.sleep(30)
            world.network.heal()
        assert world.watcher.numbers("committed") == [1]
        assert node.versions == {"order": 1}

    simulate(scenario, isolation=isolation)


def test_rule_3_after_a_minute_it_is_not_known_whether_it_happened() -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        world.network.cut(DATABASE, "node-1", both=False)
        with pytest.raises(StoreUnavailable, match="whether it happened is not known"):
            await node.step("order")
        assert 60 <= world.simulation.now() < 75
        assert world.watcher.numbers("committed") == [1]
        assert world.sometimes("not known whether a batch was committed") == 1

    simulate(scenario)


def test_what_was_sent_happens_although_the_caller_was_cancelled() -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        with trio.move_on_after(0.0001) as scope:
            await node.step("order")
        assert scope.cancelled_caught
        await trio.sleep(1)
        assert world.watcher.numbers("committed") == [1]
        assert world.sometimes("did what nobody waits for any more") == 1

    simulate(scenario)


@pytest.mark.parametrize("end", ["power_cut", "stop"])
def test_what_was_sent_happens_although_the_node_is_dead(end: str) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()

        async def program() -> None:
            await node.step("order")
            raise AssertionError("it is dead by now")

        world.hosts.start("node-1", program)
        while not world.watcher.transactions:
            await trio.sleep(0.0001)
        getattr(world.hosts, end)("node-1")
        await trio.sleep(1)
        assert [row.instance_id for row in world.database.all_instances()] == ["order"]
        assert world.watcher.transactions[0].node == "node-1"

    simulate(scenario, sync_seconds=0.1)


# --- phases --------------------------------------------------------------------------------------------------------


@ISOLATIONS
def test_a_read_only_database_answers_who_reads(isolation: str) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        await node.step("order")
        world.database.read_only(5)
        with pytest.raises(StoreUnavailable, match="read-only"):
            await node.step("order")
        assert (await node.store.load_instance("order")).version == 1
        await trio.sleep(5)
        assert (await node.step("order")).version == 2

    simulate(scenario, isolation=isolation)


@ISOLATIONS
def test_an_unavailable_database_refuses_all_at_once(isolation: str) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        world.database.unavailable(5)
        with pytest.raises(StoreUnavailable, match="starting up"):
            await node.step("order")
        with pytest.raises(StoreUnavailable, match="starting up"):
            await node.store.load_instance("order")
        assert world.simulation.now() < 1
        assert node.store.trouble() is not None
        await trio.sleep(5)
        assert (await node.step("order")).version == 1
        assert world.watcher.numbers("committed") == [1]

    simulate(scenario, isolation=isolation)


def test_a_slow_database_takes_its_time() -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        world.database.slow(2.0, for_seconds=10)
        await node.step("order")
        assert 1.0 <= world.simulation.now() <= 3.1

    simulate(scenario)


@ISOLATIONS
def test_a_refused_transaction_leaves_nothing(isolation: str) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        world.database.refuse(1.0, for_seconds=1)
        with pytest.raises(StoreUnavailable, match="aborted"):
            await node.step("order")
        await trio.sleep(1)
        assert world.database.all_instances() == []
        assert (await node.step("order")).version == 1

    simulate(scenario, isolation=isolation)


def test_a_node_that_opens_its_store_on_a_dead_database_is_told() -> None:
    async def scenario(world: World) -> None:
        await trio.sleep(1)
        world.database._crash(60)
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await world.store("node-1")
        assert 4 <= world.simulation.now() <= 7
        store = world.database.store_for("node-1", "node-1", world.hosts["node-1"].clock)
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.transact([first_step("order-1")])

    simulate(scenario)


# --- the database's clock ------------------------------------------------------------------------------------------


@ISOLATIONS
def test_rule_19_leases_from_before_a_jump_of_the_clock_last_as_long_as_ever(isolation: str) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        first, second = await node.leased_task(), await node.leased_task()
        await node.store.next_lock_expiry()
        world.database.jump_clock(60_000)
        assert (await node.expire()).returned == ()
        assert (await node.commit(node.completion(first))).version == 2
        assert world.watcher.transactions[-1].jump is not None
        await trio.sleep(31)
        assert [task.task_id for task in (await node.expire()).returned] == [second.task_id]

    simulate(scenario, isolation=isolation)


@ISOLATIONS
def test_rule_19_a_lease_from_before_the_jump_was_noticed_does_not_make_the_pause_longer(isolation: str) -> None:
    """The sweep pauses for leases of the time before the jump, and not for those that were given after it."""

    async def scenario(world: World) -> None:
        node, other = await world.node("node-1"), await world.node("node-2")
        first = await node.leased_task()
        await other.store.next_lock_expiry()
        world.database.jump_clock(600_000)
        second = await node.leased_task()
        assert (await other.expire()).returned == ()
        await trio.sleep(31)
        returned = {task.task_id for task in (await other.expire()).returned}
        assert returned == {first.task_id, second.task_id}

    simulate(scenario, isolation=isolation)


def test_the_clock_of_the_database_is_never_set_back() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ValueError, match="never falls"):
            world.database.jump_clock(-1)

    simulate(scenario)


# --- two nodes -----------------------------------------------------------------------------------------------------


@ISOLATIONS
def test_rule_4_nobody_else_steps_an_instance_that_is_locked(isolation: str) -> None:
    async def scenario(world: World) -> None:
        nodes = [await world.node(f"node-{number}") for number in range(1, 4)]
        await nodes[0].step("order")
        committed: list[int] = []

        def decide(node: Any, stored: StoredInstance | None) -> Changeset:
            assert stored is not None
            node.versions["order"] = stored.version
            changeset: Changeset = node.changeset("order")
            return changeset

        async def step(node: Any) -> None:
            outcome = await node.store.step_locked("order", partial(decide, node))
            assert isinstance(outcome, Committed)
            committed.append(outcome.version)

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(step, node)
        assert sorted(committed) == [2, 3, 4]
        assert world.sometimes("a row was locked by another transaction") > 0

    for seed in range(3):
        simulate(scenario, seed=seed, isolation=isolation)


@ISOLATIONS
def test_a_frozen_node_keeps_its_locks_until_the_server_ends_its_transaction(isolation: str) -> None:
    async def scenario(world: World) -> None:
        node, other = await world.node("node-1"), await world.node("node-2")
        await other.step("order")
        results: list[object] = []

        def decide(stored: StoredInstance | None) -> Changeset:
            assert stored is not None
            node.versions["order"] = stored.version
            changeset: Changeset = node.changeset("order")
            return changeset

        async def program() -> None:
            results.append(await node.store.step_locked("order", decide))

        world.hosts.start("node-1", program)
        while not world.database.locks:
            await trio.sleep(0.0001)
        world.hosts.freeze("node-1")
        with pytest.raises(StoreUnavailable, match="locked"):
            await other.step("order")
        await trio.sleep(4)
        assert (await other.step("order")).version == 2
        world.hosts.thaw("node-1")
        await world.hosts.ended("node-1")
        assert [result.version for result in results if isinstance(result, Committed)] == [3]
        assert world.sometimes("a transaction stood idle until it was ended") == 1

    simulate(scenario, isolation=isolation)


def test_the_weaker_mode_does_a_batch_in_parts() -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        task = await node.leased_task()
        before = len(world.watcher.transactions)
        outcomes = await node.transact(node.completion(task), ExpireLocks(10), node.changeset("order"))
        assert [type(outcome) for outcome in outcomes] == [Committed, ExpiredLocks, Committed]
        first, second = world.watcher.transactions[before:]
        assert [len(first.operations), len(second.operations)] == [1, 1]
        assert first.us < second.us

    simulate(scenario, isolation="read_committed")


def test_in_the_weaker_mode_a_batch_may_fail_in_the_middle() -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        task = await node.leased_task()
        world.database.refuse(0.5, for_seconds=10)
        outcomes: list[Any] = []
        with trio.move_on_after(9):
            while not outcomes:
                try:
                    outcomes = await node.transact(first_step("order-1"), ExpireLocks(10), node.completion(task))
                except StoreUnavailable:
                    await trio.sleep(0.1)
        kinds = {type(outcome) for outcome in outcomes}
        if StoreUnavailable in kinds:
            assert world.sometimes("a batch was done in part") > 0
            parts.append(len(kinds))

    parts: list[int] = []
    for seed in range(8):
        simulate(scenario, seed=seed, isolation="read_committed")
    assert parts


@pytest.mark.parametrize("after_seconds", [0.005, 0.015, 0.025, 0.035, 0.045])
def test_in_the_weaker_mode_who_gives_up_a_transaction_leaves_no_lock(after_seconds: float) -> None:
    """Also while one of its statements is under way: then that one finds out."""

    async def scenario(world: World) -> None:
        node = await world.node()
        await node.leased_task()
        await trio.sleep(31)
        with trio.move_on_after(after_seconds):
            await node.expire()
        await trio.sleep(0.2)
        assert not world.database.locks

    simulate(scenario, isolation="read_committed", statement_seconds=(0.01, 0.01))


def test_in_the_weaker_mode_a_session_that_resumes_locks_the_leases_that_it_finds() -> None:
    """What it gives back, a sweep at the same time does not take for expired as well."""

    async def scenario(world: World) -> None:
        node, other = await world.node("node-1"), await world.node("node-2")
        task = await node.leased_task()
        lease = task.lease
        await trio.sleep((lease.until_ms - world.database.rows.now_ms()) / 1000 - 0.085)
        again = attrs.evolve(lease.holder, session_no=lease.holder.session_no + 1, session_id="next")
        resumed: list[object] = []

        async def resume() -> None:
            resumed.extend(await node.store.transact([ResumeSession(again, ())]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume)
            await trio.sleep(0.085)
            expired = await other.expire()
        assert isinstance(resumed[0], Resumed)
        assert resumed[0].released
        assert expired.returned == ()
        skipped.append(world.sometimes("a scan skipped a locked row"))

    skipped: list[int] = []
    for seed in range(5):
        simulate(scenario, seed=seed, isolation="read_committed", statement_seconds=(0.03, 0.03))
    assert any(skipped)


def test_in_the_weaker_mode_scans_skip_what_another_transaction_has_locked() -> None:
    fetched: list[int] = []

    async def scenario(world: World) -> None:
        nodes = [await world.node(f"node-{number}") for number in range(1, 4)]
        for number in range(6):
            await nodes[0].step(f"order-{number}", RowChanges(new_tasks=(new_task(f"t{number}"),)))
        leased: list[str] = []

        async def fetch(node: Any, worker: str) -> None:
            leased.extend(task.task_id for task in await node.fetch(max_tasks=4, by=holder(worker)))

        async with trio.open_nursery() as nursery:
            for number, node in enumerate(nodes):
                nursery.start_soon(fetch, node, f"w{number}")
        assert len(leased) == len(set(leased))
        fetched.append(world.sometimes("a scan skipped a locked row"))

    for seed in range(5):
        simulate(scenario, seed=seed, isolation="read_committed")
    assert any(fetched)


def test_rule_1_two_nodes_that_step_one_instance_get_one_commit() -> None:
    async def scenario(world: World) -> None:
        nodes = [await world.node(f"node-{number}") for number in range(1, 4)]
        outcomes: list[Any] = []

        async def start(node: Any) -> None:
            outcomes.extend(await node.transact(first_step("order-1")))

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(start, node)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == [
            "Committed",
            "RefusedChangeset",
            "RefusedChangeset",
        ]
        assert {outcome.guard.value for outcome in outcomes if isinstance(outcome, RefusedChangeset)} == {"version"}

    for isolation in ("serialisable", "read_committed"):
        for seed in range(2):
            simulate(scenario, seed=seed, isolation=isolation)


# --- hints ---------------------------------------------------------------------------------------------------------


async def two_that_know_each_other(world: World) -> tuple[SharedStore, SharedStore]:
    first, second = await world.store("node-1"), await world.store("node-2")
    first._others_known = second._others_known = True
    return first, second


def test_a_hint_reaches_the_other_nodes_and_not_the_sender() -> None:
    async def scenario(world: World) -> None:
        first, second = await two_that_know_each_other(world)
        first.tell(Hint(topics=("payment",)))
        assert await second.hints() == Hint(topics=("payment",))
        with trio.move_on_after(10) as nothing:
            await first.hints()
        assert nothing.cancelled_caught

    simulate(scenario)


def test_hints_are_lost_doubled_and_late() -> None:
    async def scenario(world: World) -> None:
        first, second = await two_that_know_each_other(world)
        heard = 0

        async def listen() -> None:
            nonlocal heard
            while True:
                await second.hints()
                heard += 1

        world.nursery.start_soon(listen)
        for number in range(100):
            first.tell(Hint(topics=(f"t{number}",)))
            await trio.sleep(0.5)
        await trio.sleep(2)
        hits = world.simulation.properties.hits
        assert heard == 100 - hits["hints: lost"] + hits["hints: doubled"]
        assert 20 <= hits["hints: lost"] <= 60
        assert 5 <= hits["hints: doubled"] <= 40
        world.database.hints.lose_all(10)
        first.tell(Hint(messages=True))
        await trio.sleep(5)
        assert hits["hints: lost"] + heard == 101 + hits["hints: doubled"]

    simulate(scenario, hint_loss=0.4, hint_doubling=0.3, hint_late_seconds=0.2)


def test_rule_18_who_listens_again_after_a_crash_looks_at_everything() -> None:
    async def scenario(world: World) -> None:
        first, second = await two_that_know_each_other(world)
        world.database._crash(1.0)
        first.tell(Hint(topics=("payment",)))
        assert (await first.hints()).missed
        with trio.fail_after(20):
            assert (await second.hints()).missed
        world.nursery.start_soon(second.hints)
        first.tell(Hint(topics=("payment",)))

    simulate(scenario)


def test_nodes_know_of_each_other_by_their_reports() -> None:
    async def scenario(world: World) -> None:
        def report(node_id: str) -> NodeReport:
            counts: Any = dict.fromkeys(("workers", "leases", "instances_live", "commits", "operations", "store_ms"), 0)
            fields: Any = {"name": node_id, "url": None, "version": "1", "started_at_ms": 0, "is_draining": False}
            return NodeReport(node_id=node_id, **fields, **counts)

        first, second = await world.store("node-1"), await world.store("node-2")
        await first.report_node(report("node-1"))
        first.tell(Hint(topics=("nobody hears it",)))
        await second.report_node(report("node-2"))
        second.tell(Hint(topics=("payment",)))
        assert await first.hints() == Hint(topics=("payment",))
        await trio.sleep(3)
        assert [(row.report.node_id, row.seen_ms_ago // 1000) for row in await first.nodes()] == [
            ("node-1", 3),
            ("node-2", 3),
        ]
        await first.forget_node("node-1")
        assert [row.report.node_id for row in await second.nodes()] == ["node-2"]

    simulate(scenario)


# --- determinism ---------------------------------------------------------------------------------------------------


@ISOLATIONS
def test_one_seed_is_one_run(isolation: str) -> None:
    async def scenario(world: World) -> None:
        nodes = [await world.node(f"node-{number}") for number in range(1, 4)]
        world.database.refuse(0.2, for_seconds=5)
        world.database.lose_answers(0.3, for_seconds=5)
        world.database.slow(0.02, for_seconds=3)

        async def work(node: Any, worker: str) -> None:
            for number in range(8):
                try:
                    await node.step(
                        f"{worker}-{number}", RowChanges(new_tasks=(new_task(f"task of {worker}-{number}"),))
                    )
                    for task in await node.fetch(by=holder(worker)):
                        await node.fail(task)
                except StoreUnavailable:
                    await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            for number, node in enumerate(nodes):
                nursery.start_soon(work, node, f"w{number}")
            await trio.sleep(1)
            world.database.crash(0.5)

    first, second, other = (simulate(scenario, seed=seed, isolation=isolation) for seed in (3, 3, 4))
    assert first.trace.count > 20
    assert first.trace.digest() == second.trace.digest() != other.trace.digest()
    assert first.scheduler.digest() == second.scheduler.digest()
