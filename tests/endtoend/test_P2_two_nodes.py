"""Requirement P2 on PostgreSQL: two engines and ten workers; whatever dies, nothing that was acknowledged is lost.

Engines and workers are killed with SIGKILL and started again, or stand still for longer than a lock lasts; connections
to the database are terminated, and the answers to commits are lost, by a seeded plan. Four of the workers hand in what
they have whatever became of their leases. Short by default; the long run is
``pytest tests/endtoend/test_P2_two_nodes.py --chaos-seconds 120 -o faulthandler_timeout=0``.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from stellwerk.testing.databases import PostgresAccess, PostgresServer

WORKERS = 6
STUBBORN = 4
_CONNECTIONS = """
SELECT pid, query ~ '^LISTEN|pg_notify|^SELECT 1$' AS listens FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'stellwerk %' ORDER BY pid"""


@pytest.fixture
def cluster(tmp_path: Path, postgres_server: PostgresAccess, postgres_dsn: str, cluster_of: Any) -> Iterator[Any]:
    # Little room at each node: the tasks of one instance go to both.
    cluster = cluster_of(tmp_path, postgres_server, postgres_dsn, tasks_max=1)
    try:
        yield cluster
    finally:
        cluster.end()


def test_E5_two_engines_on_one_database_are_one(cluster: Any) -> None:
    """What is started on one is worked on through the other, and either knows all of it."""
    cluster.add_nodes(cluster.dsn, cluster.dsn)
    one, other = cluster.nodes
    one.deploy_tasks("chain", topics=("first", "second", "third"))
    cluster.add_workers(1)
    one.until(lambda: bool(one.request("GET", "/api/v1/workers")["workers"]))
    assert other.request("GET", "/api/v1/statistics")["sessions"] == 0
    started = [other.start_instance("chain", {"order": {"id": 7}}) for _ in range(5)]
    for instance_id in started:
        ended = other.wait(instance_id)
        assert ended["status"] == "COMPLETED"
        assert ended == one.wait(instance_id)
    for node in (one, other):
        assert {row["url"] for row in node.request("GET", "/api/v1/nodes")["nodes"]} == {one.url, other.url}
    # Requirement L3: what stands in the table as text and json can be asked for as what it is.
    rows = cluster.server.query(
        "SELECT task_id::uuid, variables::jsonb #> '{order,id}' AS id FROM stellwerk.external_tasks", dsn=cluster.dsn
    )
    assert [row["id"] for row in rows] == ["7"] * 15
    cluster.stop()


@attrs.define
class Chaos:
    """Blow after blow, each after the last one was got over: work goes on in between."""

    cluster: Any
    load: Any
    random: random.Random
    deadline: float
    blows: Counter[str] = attrs.field(factory=Counter)

    async def kill_processes(self) -> None:
        for what in self._plan(["node", "node for a while", "both nodes", "worker", "node paused"]):
            await self.load.progress(self.random.randint(10, 20))
            self.blows[what] += 1
            node = self.random.choice(self.cluster.nodes)
            if what == "worker":
                await trio.to_thread.run_sync(self.cluster.replace_worker, self.random.randrange(WORKERS))
            elif what == "node paused":
                await self._pause(node)
            else:
                await self._kill(self.cluster.nodes if what == "both nodes" else [node], what)

    async def _kill(self, nodes: list[Any], what: str) -> None:
        for node in nodes:
            node.kill()
        if what == "node for a while":
            await self.load.progress(20)  # the other node is enough
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(trio.to_thread.run_sync, node.start)

    async def _pause(self, node: Any) -> None:
        """It does not answer, and then goes on with what it had begun. Its workers find the other one meanwhile."""
        node.process.send_signal(signal.SIGSTOP)
        try:
            await self.load.progress(20)
        finally:
            node.process.send_signal(signal.SIGCONT)

    async def terminate_connections(self) -> None:
        for what in self._plan(["some", "listeners", "all"]):
            await self.load.progress(self.random.randint(10, 20))
            ended = await trio.to_thread.run_sync(self._terminate, what)
            self.blows[f"connections: {what}"] += ended

    def _terminate(self, what: str) -> int:
        rows = self.cluster.server.query(_CONNECTIONS, dsn=self.cluster.dsn)
        if what == "listeners":
            rows = [row for row in rows if row["listens"]]
        elif what == "some":
            rows = self.random.sample(rows, min(2, len(rows)))
        pids = [row["pid"] for row in rows]
        self.cluster.server.query("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", pids)
        return len(pids)

    async def pause_workers(self, are_stubborn: bool, seconds: float) -> None:
        """For longer than their leases last. Then they go on with what they had."""
        for what in self._plan([f"{'stubborn' if are_stubborn else 'roaming'} worker paused"], seconds):
            await self.load.progress(self.random.randint(5, 20))
            worker = self.random.choice(self.cluster.running_workers(are_stubborn=are_stubborn))
            self.blows[what] += 1
            worker.process.send_signal(signal.SIGSTOP)
            try:
                await trio.sleep(seconds)
            finally:
                worker.process.send_signal(signal.SIGCONT)

    async def lose_answers(self, network: Any) -> None:
        """What is asked of the database is done, and nobody hears of it."""
        for what in self._plan(["answers lost"]):
            await self.load.progress(self.random.randint(10, 20))
            held = network.held_bytes
            network.stall("answers")
            with trio.move_on_after(2):  # its node may be paused, or starts again
                while network.held_bytes == held:
                    await trio.sleep(0.001)
            network.cut()
            network.heal()
            self.blows[what] += network.held_bytes > held

    def _plan(self, kinds: list[str], seconds: float = 0.0) -> Iterator[str]:
        """Each kind once, then by chance until time is up: with ``seconds`` for the last one."""
        self.random.shuffle(kinds)
        yield from kinds
        while trio.current_time() + seconds < self.deadline:
            yield self.random.choice(kinds)


async def test_P2_two_nodes_killed_and_cut_off_under_load(
    cluster: Any, load_on: Any, open_network: Any, request: pytest.FixtureRequest
) -> None:
    seconds = request.config.getoption("--chaos-seconds")
    seeds = random.Random(request.config.getoption("--chaos-seed"))
    if not isinstance(cluster.server, PostgresServer):
        pytest.skip("a network that loses answers needs a private server")
    network = await open_network(cluster.server)
    await trio.to_thread.run_sync(cluster.add_nodes, network.dsn(cluster.dsn), cluster.dsn)
    load = load_on(cluster, "chaos", processes=("chain", "fork"))
    await trio.to_thread.run_sync(load.deploy)
    await trio.to_thread.run_sync(cluster.add_workers, WORKERS, STUBBORN)
    with trio.fail_after(60 + 3 * seconds):
        async with trio.open_nursery() as nursery:
            deadline = trio.current_time() + seconds
            for starter in ("one", "other"):
                nursery.start_soon(load.start_instances, starter)
            nursery.start_soon(load.set_variables)
            chaos = Chaos(cluster, load, random.Random(seeds.random()), deadline)
            async with trio.open_nursery() as blows:
                blows.start_soon(chaos.terminate_connections)
                blows.start_soon(chaos.kill_processes)
                blows.start_soon(chaos.lose_answers, network)
                blows.start_soon(chaos.pause_workers, True, 1.5)
                blows.start_soon(chaos.pause_workers, False, 5.5)
            await load.progress(20)
            await load.end()
    await trio.to_thread.run_sync(cluster.stop)
    load.check()
    assert all(chaos.blows.values()), chaos.blows
    urls = {node.url for node in cluster.nodes}
    assert any({line["url"] for line in worker.ledger("connected")} == urls for worker in cluster.workers)
    for node in cluster.nodes:
        assert "Traceback" not in node.log
    # What is guarded against has happened.
    codes = Counter(line["code"] for line in load.refused())
    assert codes["lease_lost"]
    assert load.worked_twice()
    assert load.variables_set
    assert any(worker.count("acknowledged") for worker in cluster.workers if worker.is_stubborn)
    print(
        f"{len(load.started)} instances, {cluster.acknowledged()} acknowledged results, {dict(codes)} refused, "
        f"{len(load.worked_twice())} tasks worked twice, {len(load.variables_set)} variables set, {dict(chaos.blows)}"
    )
