"""A process that writes is killed: what it was told is there, and nothing is there by half."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

WRITE_UNTIL_KILLED = """
import sys
import trio
from stellwerk.core.changes import RowChanges
from stellwerk.stores.sqlite import SqliteStore
from stellwerk.system.clock import SystemClock
from stellwerk.system.file_lock import FileLock
from stellwerk.system.threads import OneThread
from stellwerk.testing.store_contract import ManualClock, StoreWorld
from stellwerk.testing.store_contract.world import new_task

async def main():
    path, prefix = sys.argv[1], sys.argv[2]
    store = SqliteStore(path, runner=OneThread("sqlite"), clock=SystemClock(), lock=FileLock(path))
    await store.open()
    world = StoreWorld(store, ManualClock())
    for batch in range(100_000):
        names = [f"{prefix}-{batch}-{number}" for number in range(20)]
        steps = [world.changeset(name, RowChanges(new_tasks=(new_task(name),))) for name in names]
        await store.transact(steps)
        print(batch, flush=True)

trio.run(main)
"""


@pytest.mark.parametrize("acknowledged", [1, 7, 23])
def test_what_was_acknowledged_survives_sigkill_and_batches_are_whole(tmp_path: Path, acknowledged: int) -> None:
    path = tmp_path / "engine.db"
    for run in ("first", "second"):
        command = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path), run]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            last = [int(process.stdout.readline()) for _ in range(acknowledged)][-1]
            process.kill()
            last = max([last, *(int(line) for line in process.stdout if line.endswith("\n"))])
        database = sqlite3.connect(path)
        (instances,) = database.execute(
            "SELECT count(*) FROM instances WHERE instance_id LIKE ?", (f"{run}-%",)
        ).fetchone()
        assert instances >= (last + 1) * 20
        assert instances % 20 == 0
        for table in ("history", "external_tasks"):
            assert (
                database.execute(f"SELECT count(*) FROM {table}").fetchone()
                == database.execute("SELECT count(*) FROM instances").fetchone()
            )
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()
