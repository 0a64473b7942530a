"""The physical limit: what a step of a process writes, as bare statements in large batches, with nothing around them.

Each task that ends has its row changed and a row of history added, its instance's row changed, and the next task's row
added, already leased. One plpgsql function fed with arrays does it all in one round trip and one commit. Not a peer: it
starts nothing, guards nothing and keeps no variables. It runs on asyncpg.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version

import asyncpg
from tests.benchmarks.peers.queue_contest import Tally, compete

__all__: list[str] = []

_TASKS = 3
_BATCH = 1000
"""Instances in each commit: as many operations as the engine takes at most."""
_LEASE_MS = 30_000
_SCHEMA = """
CREATE TABLE instances (id bigint PRIMARY KEY, version int NOT NULL, status text NOT NULL) WITH (fillfactor = 70);
CREATE TABLE tasks (id bigint PRIMARY KEY, instance bigint NOT NULL, topic text NOT NULL, state text NOT NULL,
                    lock_owner text, lock_expire_at bigint, variables json NOT NULL) WITH (fillfactor = 70);
CREATE INDEX ON tasks (topic, id) WHERE state = 'READY';
CREATE INDEX ON tasks (lock_expire_at) WHERE state = 'LOCKED';
CREATE TABLE history (instance bigint NOT NULL, version int NOT NULL, facts text NOT NULL,
                      PRIMARY KEY (instance, version));
CREATE FUNCTION step(stepping bigint[], ended bigint[], created bigint[], now_ms bigint, step_status text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO history SELECT i.id, i.version + 1, $facts$FACTS$facts$ FROM instances i WHERE i.id = ANY(stepping);
  UPDATE instances SET version = version + 1, status = step_status WHERE id = ANY(stepping);
  UPDATE tasks SET state = 'COMPLETED' WHERE id = ANY(ended) AND lock_expire_at > now_ms;
  INSERT INTO tasks SELECT t.id, t.instance, 'noop', 'LOCKED', 'worker', now_ms + LEASE, '{"order": 1}'
    FROM unnest(created, stepping) AS t(id, instance) WHERE t.id IS NOT NULL;
END $$;
""".replace("LEASE", str(_LEASE_MS)).replace("FACTS", '[["TaskCompleted", {"task": "0123456789"}]]' * 8)


class _BareSql:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def load(self, jobs: int) -> None:
        """Instances with their first task, in as many batches as steps will come in."""
        self._instances = -(-jobs // _TASKS)
        for stepping in self._batches():
            await self._connection.execute(
                "INSERT INTO instances SELECT id, 0, 'RUNNING' FROM unnest($1::bigint[]) AS i(id)", stepping
            )
            await self._step(stepping, [], 0, "RUNNING")

    def _batches(self) -> Sequence[Sequence[int]]:
        ids = range(self._instances)
        return [list(ids[first : first + _BATCH]) for first in range(0, self._instances, _BATCH)]

    async def drain(self, jobs: int) -> None:
        for stepping in self._batches():
            for task in range(1, _TASKS + 1):
                ended = [_task_id(instance, task - 1) for instance in stepping]
                await self._step(stepping, ended, task, "RUNNING" if task < _TASKS else "COMPLETED")

    async def _step(self, stepping: Sequence[int], ended: Sequence[int], task: int, status: str) -> None:
        created = [_task_id(instance, task) for instance in stepping] if task < _TASKS else []
        now_ms = int(time.time() * 1000)
        await self._connection.execute("SELECT step($1, $2, $3, $4, $5)", stepping, ended, created, now_ms, status)

    async def listen(self) -> None:
        raise NotImplementedError("it hands out nothing")

    async def send(self, number: int) -> None:
        raise NotImplementedError("it hands out nothing")


def _task_id(instance: int, task: int) -> int:
    return instance * _TASKS + task


async def _main(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_SCHEMA)
        await compete(version("asyncpg"), Tally(), _BareSql(connection))
    finally:
        await connection.close()


asyncio.run(_main(sys.argv[1]))
