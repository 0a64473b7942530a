"""The contract of stores, for each store that stellwerk brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from stellwerk.ports import Store
from stellwerk.stores.memory import MemoryStore
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.store import PostgresStore
from stellwerk.stores.sqlite import SqliteStore
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.file_lock import FileLock
from stellwerk.system.threads import OneThread
from stellwerk.testing.store_contract import DictatedLeaseClock, ManualClock, StoreContract


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


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def place(self, postgres_dsn: str) -> None:
        self.dsn = postgres_dsn

    def make_store(self, clock: ManualClock) -> Store:
        return PostgresStore(
            PostgresConfig(dsn=self.dsn),
            clock=clock,
            entropy=SystemEntropy(),
            log=structlog.get_logger(),
            node_id="contract",
            lease_clock=DictatedLeaseClock(clock),
        )
