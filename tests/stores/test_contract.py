"""The contract of stores, for each store that stellwerk brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stellwerk.ports import Store
from stellwerk.stores.memory import MemoryStore
from stellwerk.stores.sqlite import SqliteStore
from stellwerk.system.file_lock import FileLock
from stellwerk.system.threads import OneThread
from stellwerk.testing.store_contract import ManualClock, StoreContract


class TestMemoryStore(StoreContract):
    def make_store(self, clock: ManualClock) -> Store:
        return MemoryStore(clock)


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> Iterator[None]:
        self.path = tmp_path / "engine.db"
        self.thread = OneThread("sqlite")
        yield
        self.thread.close()

    def make_store(self, clock: ManualClock) -> Store:
        return SqliteStore(self.path, runner=self.thread, clock=clock, lock=FileLock(self.path), synchronous="NORMAL")
