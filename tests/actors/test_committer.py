"""What the log tells about a store in trouble."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
import structlog.testing
import trio

from stellwerk.actors.committer import Committer
from stellwerk.errors import StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.ports import Committed, Ports
from stellwerk.stores.sqlite import SqliteStore
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.file_lock import FileLock
from stellwerk.system.threads import InlineRunner
from stellwerk.testing.store_contract import ManualClock, StoreWorld


async def no_pause(name: str) -> None:
    """Nothing stops here."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    path = tmp_path / "engine.db"
    store = SqliteStore(path, runner=InlineRunner(), clock=ManualClock(), lock=FileLock(path))
    await store.open()
    store._opened().execute("PRAGMA busy_timeout = 0")
    yield store
    await store.close()


@pytest.fixture
async def committer(store: SqliteStore, nursery: trio.Nursery) -> Committer:
    ports = Ports(
        clock=SystemClock(),
        entropy=SystemEntropy(),
        store=store,
        background=InlineRunner(),
        log=structlog.get_logger(),
        pause_point=no_pause,
    )
    committer = Committer(ports, Limits())
    nursery.start_soon(committer.run)
    return committer


async def test_trouble_of_the_store_is_logged_once_and_so_is_its_end(
    store: SqliteStore, committer: Committer, tmp_path: Path
) -> None:
    world = StoreWorld(store, ManualClock())
    path = tmp_path / "engine.db"
    other = sqlite3.connect(path, isolation_level=None)
    told: list[tuple[object, ...]] = []
    for name in ("first", "second"):
        with structlog.testing.capture_logs() as lines:
            other.execute("BEGIN IMMEDIATE")
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await committer.submit(world.changeset(name))
            other.execute("ROLLBACK")
            assert isinstance(await committer.submit(world.changeset(name)), Committed)
            await committer.submit(world.changeset(f"{name} other"))
        told += [(line["log_level"], line["event"], line.get("error")) for line in lines]
    other.close()
    assert told == 2 * [
        ("warning", "the store does not work", f"{path}: database is locked"),
        ("info", "the store works again", None),
    ]
    assert committer.statistics.failed_transactions == 6


async def test_a_file_that_was_deleted_is_logged(store: SqliteStore, committer: Committer, tmp_path: Path) -> None:
    world = StoreWorld(store, ManualClock())
    path = tmp_path / "engine.db"
    path.unlink()
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="was moved or deleted"):
                await committer.submit(world.changeset("i"))
    assert [line["error"] for line in lines] == [f"the database file {path} was moved or deleted while it was in use"]
