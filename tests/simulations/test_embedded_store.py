"""The real SQLite store on a simulated host: its file outlives the host, and is nobody else's meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from simulations.kernel.simulation import Simulation
from simulations.world.embedded import EmbeddedDatabase, EmbeddedStore
from simulations.world.hosts import HostClock, Hosts
from simulations.world.network import Network
from simulations.world.rows import RowChange, Transaction
from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import StoreUnavailable
from stellwerk.testing.store_contract import StoreWorld
from stellwerk.testing.store_contract.world import new_task


@attrs.define
class Watcher:
    transactions: list[Transaction] = attrs.field(factory=list)
    synced_to: int = 0

    def committed(self, transaction: Transaction) -> None:
        self.transactions.append(transaction)

    def undone(self, transaction: Transaction) -> None:
        raise AssertionError("what SQLite has committed is safe")

    def synced(self, number: int) -> None:
        self.synced_to = number


@attrs.define
class World:
    simulation: Simulation
    hosts: Hosts
    database: EmbeddedDatabase
    watcher: Watcher

    def store(self, host: str = "node-1") -> EmbeddedStore:
        if host not in self.hosts:
            self.hosts.add(host, HostClock(self.simulation))
        return self.database.store_for(host, host, self.hosts[host].clock)

    async def node(self, host: str = "node-1") -> Any:
        store = self.store(host)
        await store.open()
        clock: Any = self.hosts[host].clock
        return StoreWorld(store, clock)


Scenario = Callable[[World], Awaitable[None]]
Simulate = Callable[..., Simulation]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    def run(scenario: Scenario, *, seed: int = 1, invariants: tuple[str, ...] = ()) -> Simulation:
        simulation = Simulation(seed, keep_trace=True)
        failures: list[BaseException] = []
        folder = tmp_path / f"disk-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                hosts = Hosts(simulation, Network(simulation), nursery)
                clock = HostClock(simulation)
                database = EmbeddedDatabase(simulation, hosts, clock, folder, (0.0005, 0.002))
                watcher = Watcher()
                database.observers.append(watcher)
                try:
                    await scenario(World(simulation, hosts, database, watcher))
                except BaseException as error:
                    failures.append(error)
                    raise
                finally:
                    database.close()
                simulation.abort()

        simulation.run(main)
        if failures:
            raise failures[0]
        assert [violation.invariant for violation in simulation.properties.violations] == list(invariants)
        return simulation

    return run


def test_observers_are_told_every_row_before_and_after(simulate: Simulate) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        task = await node.leased_task()
        await node.commit(node.completion(task))
        changes = [change for transaction in world.watcher.transactions for change in transaction.changes]
        assert [states(change) for change in changes if change.table == "tasks"] == [
            ("", "READY"),
            ("READY", "LOCKED"),
            ("LOCKED", "COMPLETED"),
        ]
        assert [transaction.number for transaction in world.watcher.transactions] == [1, 2, 3]
        assert world.watcher.synced_to == 3
        assert [row.state.value for row in world.database.all_tasks()] == ["COMPLETED"]
        assert len(world.database.history(task.instance_id)) == 2

    simulate(scenario)


def states(change: RowChange) -> tuple[str, ...]:
    return tuple(row.state.value if isinstance(row, ExternalTask) else "" for row in (change.before, change.after))


def test_what_was_committed_is_there_after_a_power_cut(simulate: Simulate) -> None:
    async def scenario(world: World) -> None:
        steps = 0

        async def program() -> None:
            nonlocal steps
            node = await world.node()
            life = world.hosts["node-1"].incarnation
            while True:
                task = new_task(f"task-{life}-{steps}")
                await node.step(f"order-{life}-{steps}", RowChanges(new_tasks=(task,)))
                steps += 1

        world.hosts.add("node-1", HostClock(world.simulation))
        for _ in range(3):
            world.hosts.start("node-1", program)
            await trio.sleep(0.05)
            world.hosts.power_cut("node-1")
        node = await world.node()
        rows = await node.store.instances(limit=1000)
        # The last one of each life may have been committed without an answer.
        assert steps <= len(rows) <= steps + 3
        assert len(rows) == len(world.database.all_instances()) == len(await node.store.tasks())
        assert world.simulation.properties.hits["disk: a file was opened as a dead node left it"] == 3

    simulate(scenario)


def test_a_second_engine_on_the_file_is_refused_while_the_first_lives(simulate: Simulate) -> None:
    async def scenario(world: World) -> None:
        await world.node("node-1")
        other = world.store("node-2")
        with pytest.raises(StoreUnavailable, match=r"simulated disk/engine-0.db is in use by another engine \(pid 1\)"):
            await other.open()
        world.hosts.start("node-1", trio.sleep_forever)

    simulate(scenario)


def test_a_frozen_engine_keeps_its_file(simulate: Simulate) -> None:
    async def scenario(world: World) -> None:
        async def program() -> None:
            await world.node("node-1")
            await trio.sleep_forever()

        world.hosts.add("node-1", HostClock(world.simulation))
        world.hosts.start("node-1", program)
        await trio.sleep(1)
        world.hosts.freeze("node-1")
        with pytest.raises(StoreUnavailable, match="in use"):
            await world.node("node-2")
        world.hosts.thaw("node-1")
        world.hosts.stop("node-1")
        await world.node("node-2")

    simulate(scenario)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("read_only", "database or disk is full"), ("unavailable", "disk I/O error"), ("refuse", "disk I/O error")],
)
def test_a_commit_that_fails_leaves_nothing(simulate: Simulate, fault: str, reason: str) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        await node.step("order-1")
        getattr(world.database, fault)(*((1.0, 5.0) if fault == "refuse" else (5.0,)))
        with pytest.raises(StoreUnavailable, match=f"simulated disk/engine-0.db: {reason}"):
            await node.step("order-2")
        if fault == "unavailable":
            with pytest.raises(StoreUnavailable, match=reason):
                await node.store.load_instance("order-1")
        await trio.sleep(5)
        assert [row.instance_id for row in await node.store.instances()] == ["order-1"]
        await node.step("order-2")
        assert len(world.watcher.transactions) == 2

    simulate(scenario)


def test_a_slow_disk_takes_its_time_and_does_one_thing_after_the_other(simulate: Simulate) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        world.database.slow(1.0, for_seconds=60)
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(node.step, f"order-{number}")
        assert 2.0 < world.simulation.now() < 6.1

    simulate(scenario)


def test_who_is_cancelled_waits_until_his_transaction_is_over(simulate: Simulate) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        world.database.slow(1.0, for_seconds=60)
        with trio.move_on_after(0.1):
            await node.step("order")
        assert world.simulation.now() > 0.5
        assert len(world.watcher.transactions) == 1

    simulate(scenario)


def test_D1_a_file_that_lost_a_task_is_found_out(simulate: Simulate) -> None:
    async def scenario(world: World) -> None:
        node = await world.node()
        task_id = await node.ready_task()
        await node.store.close()
        with sqlite3.connect(world.database.path()) as connection:
            connection.execute("DELETE FROM external_tasks WHERE task_id = ?", (task_id,))
        connection.close()
        await node.store.open()

    simulate(scenario, invariants=("D1",))


def test_faults_that_a_file_cannot_have_are_refused(simulate: Simulate) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ValueError, match="dies with its node"):
            world.database.crash(1)
        with pytest.raises(ValueError, match="no clock of its own"):
            world.database.jump_clock(1)
        with pytest.raises(ValueError, match="answers"):
            world.database.lose_answers(0.5, 1)
        world.database.lose_answers(0.0, 0.0)

    simulate(scenario)


def test_one_seed_is_one_run(simulate: Simulate) -> None:
    async def scenario(world: World) -> None:
        async def program() -> None:
            node = await world.node()
            for number in range(20):
                try:
                    await node.step(f"order-{number}-{world.hosts['node-1'].incarnation}")
                except StoreUnavailable as error:
                    world.simulation.trace("node-1", "log", reason=error.message)

        world.database.refuse(0.3, 60)
        world.hosts.add("node-1", HostClock(world.simulation))
        world.hosts.start("node-1", program)
        await trio.sleep(0.02)
        world.hosts.stop("node-1")
        world.hosts.start("node-1", program)
        await world.hosts.ended("node-1")

    first, second, other = (simulate(scenario, seed=seed) for seed in (3, 3, 4))
    assert first.trace.count > 20
    assert first.trace.digest() == second.trace.digest() != other.trace.digest()
