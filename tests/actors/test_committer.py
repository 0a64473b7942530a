"""How much is committed together, and what the log tells about a store in trouble."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import structlog
import structlog.testing
import trio
import trio.testing

from stellwerk.actors.committer import Committer
from stellwerk.errors import StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.ports import Changeset, Committed, Operation, Outcome, Ports, Store
from stellwerk.stores.memory import MemoryStore
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


def new_committer(store: Store, limits: Limits) -> Committer:
    ports = Ports(
        clock=SystemClock(),
        entropy=SystemEntropy(),
        store=store,
        background=InlineRunner(),
        log=structlog.get_logger(),
        pause_point=no_pause,
    )
    return Committer(ports, limits)


@pytest.fixture
async def committer(store: SqliteStore, nursery: trio.Nursery) -> Committer:
    committer = new_committer(store, Limits())
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


# --- how much is committed together ----------------------------------------------------------------------------------

COMMIT_SECONDS = 0.016
"""Of a disk, for each transaction. A sum of these is exact."""
OPERATIONS_MAX = 100


class SlowStore(MemoryStore):
    """As long as a disk takes, however much is in a transaction."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.batches: list[int] = []

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        self.batches.append(len(operations))
        await trio.sleep(COMMIT_SECONDS)
        return await super().transact(operations)


class Clients:
    """Each has one operation under way at a time, and the next one as soon as that is answered."""

    def __init__(self, nursery: trio.Nursery, operations_max: int = OPERATIONS_MAX) -> None:
        self._nursery = nursery
        self._store = SlowStore()
        self.committer = new_committer(self._store, Limits(commit_operations_max=operations_max))
        self._started = 0
        self.slowest = 0.0
        nursery.start_soon(self.committer.run)

    @property
    def batches(self) -> list[int]:
        return self._store.batches

    def _operation(self) -> Changeset:
        self._started += 1
        return StoreWorld(self._store, ManualClock()).changeset(f"i{self._started}")

    async def submit(self, times: int = 1) -> None:
        for _ in range(times):
            began = trio.current_time()
            assert isinstance(await self.committer.submit(self._operation()), Committed)
            self.slowest = max(self.slowest, trio.current_time() - began)

    async def submit_at_once(self, clients: int, times: int = 1) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(self.submit, times)


@pytest.fixture
async def clients(nursery: trio.Nursery) -> AsyncIterator[Clients]:
    yield Clients(nursery)
    nursery.cancel_scope.cancel()


async def test_an_operation_that_comes_alone_is_committed_alone_and_at_once(
    autojump_clock: object, clients: Clients
) -> None:
    for pause in (1.0, 0.1, 0.0):
        await trio.sleep(pause)
        began = trio.current_time()
        await clients.submit()
        assert trio.current_time() - began == pytest.approx(COMMIT_SECONDS, abs=1e-9)
    assert clients.batches == [1, 1, 1]
    assert clients.committer.statistics.largest_batch == 1


async def test_what_comes_during_a_commit_is_the_next_one_together_and_waits_no_longer(
    autojump_clock: object, clients: Clients
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clients.submit)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(COMMIT_SECONDS / 2)
        began = trio.current_time()
        await clients.submit_at_once(30)
    assert trio.current_time() - began == pytest.approx(COMMIT_SECONDS * 1.5, abs=1e-9)
    assert clients.batches == [1, 30]


@pytest.mark.parametrize("number", [2, 20, 90])
async def test_batches_grow_with_the_load(autojump_clock: object, clients: Clients, number: int) -> None:
    """So many clients, so large the batches; and none waits for more than the commit under way and its own."""
    began = trio.current_time()
    await clients.submit_at_once(number, times=10)
    assert sum(clients.batches) == number * 10
    assert clients.batches[1:-1] == [number] * (len(clients.batches) - 2)
    assert len(clients.batches) <= 11
    assert trio.current_time() - began == pytest.approx(len(clients.batches) * COMMIT_SECONDS, abs=1e-9)
    assert clients.slowest <= 2 * COMMIT_SECONDS + 1e-9
    # When the load is gone they are as small as before.
    await clients.submit(times=3)
    assert clients.batches[-3:] == [1, 1, 1]


async def test_no_batch_is_larger_than_the_limit(autojump_clock: object, clients: Clients) -> None:
    began = trio.current_time()
    await clients.submit_at_once(OPERATIONS_MAX * 5 // 2)
    assert max(clients.batches) == OPERATIONS_MAX
    assert sum(clients.batches) == OPERATIONS_MAX * 5 // 2
    assert len(clients.batches) <= 4, "batches are not filled"
    assert trio.current_time() - began == pytest.approx(len(clients.batches) * COMMIT_SECONDS, abs=1e-9)
    assert clients.committer.statistics.largest_batch == OPERATIONS_MAX
