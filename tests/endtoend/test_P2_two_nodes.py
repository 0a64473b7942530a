"""Requirement P2 on PostgreSQL: two engines and eight workers; whatever dies, nothing that was acknowledged is lost.

Engines are killed with SIGKILL and started again, connections to the database are terminated, by a seeded plan. Short
by default; the long run is
``pytest tests/endtoend/test_P2_two_nodes.py --chaos-seconds 120 -o faulthandler_timeout=0``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from stellwerk.testing.databases import PostgresAccess

WORKERS = 8
_CONNECTIONS = """
SELECT pid, query LIKE 'LISTEN%' AS listens FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'stellwerk %' ORDER BY pid"""


@pytest.fixture
def cluster(tmp_path: Path, postgres_server: PostgresAccess, postgres_dsn: str, cluster_of: Any) -> Iterator[Any]:
    cluster = cluster_of(tmp_path, postgres_server)
    try:
        cluster.add_nodes(postgres_dsn, postgres_dsn)
        yield cluster
    finally:
        cluster.end()


@attrs.define
class Chaos:
    """Blow after blow, each after the last one was got over: work goes on in between."""

    cluster: Any
    load: Any
    dsn: str
    random: random.Random
    deadline: float
    blows: Counter[str] = attrs.field(factory=Counter)

    async def kill_nodes(self) -> None:
        for what in self._plan(["one", "one for a while", "both"]):
            await self.load.progress(self.random.randint(20, 60))
            nodes = self.cluster.nodes if what == "both" else [self.random.choice(self.cluster.nodes)]
            for node in nodes:
                node.kill()
            self.blows[what] += 1
            if what == "one for a while":
                await self.load.progress(20)  # the other node is enough
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(trio.to_thread.run_sync, node.start)

    async def terminate_connections(self) -> None:
        for what in self._plan(["some", "listeners", "all"]):
            await self.load.progress(self.random.randint(10, 40))
            ended = await trio.to_thread.run_sync(self._terminate, what)
            self.blows[f"connections: {what}"] += ended

    def _terminate(self, what: str) -> int:
        rows = self.cluster.server.query(_CONNECTIONS, dsn=self.dsn)
        if what == "listeners":
            rows = [row for row in rows if row["listens"]]
        elif what == "some":
            rows = self.random.sample(rows, min(2, len(rows)))
        pids = [row["pid"] for row in rows]
        self.cluster.server.query("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", pids)
        return len(pids)

    def _plan(self, kinds: list[str]) -> Iterator[str]:
        """Each kind once, then by chance until time is up."""
        self.random.shuffle(kinds)
        yield from kinds
        while trio.current_time() < self.deadline:
            yield self.random.choice(kinds)


async def test_P2_two_nodes_killed_and_cut_off_under_load(
    cluster: Any, postgres_dsn: str, load_on: Any, request: pytest.FixtureRequest
) -> None:
    seconds = request.config.getoption("--chaos-seconds")
    seeds = random.Random(request.config.getoption("--chaos-seed"))
    load = load_on(cluster, "chaos", postgres_dsn)
    load.deploy()
    cluster.add_workers(WORKERS)
    with trio.fail_after(60 + 3 * seconds):
        async with trio.open_nursery() as nursery:
            deadline = trio.current_time() + seconds
            for starter in ("one", "other"):
                nursery.start_soon(load.start_instances, starter)
            chaos = Chaos(cluster, load, postgres_dsn, random.Random(seeds.random()), deadline)
            kills = Chaos(cluster, load, postgres_dsn, random.Random(seeds.random()), deadline)
            async with trio.open_nursery() as blows:
                blows.start_soon(chaos.terminate_connections)
                blows.start_soon(kills.kill_nodes)
            await load.progress(20)
            await load.end()
    await trio.to_thread.run_sync(cluster.stop)
    load.check()
    print(len(load.started), cluster.acknowledged(), chaos.blows, kills.blows, load.answers)
    assert all(chaos.blows.values()), chaos.blows
    for node in cluster.nodes:
        assert "Traceback" not in node.log
