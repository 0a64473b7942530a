"""The simulated database is a stand-in for the real ones: it passes the same contract, and beside the memory store the
same operations in any order give equal answers. In both isolation modes, without faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

import pytest
import structlog
from hypothesis import HealthCheck, settings
from tests.stores.test_side_by_side import SideBySide

from simulations.kernel.simulation import Simulation
from simulations.world.database import Database, DatabaseSettings
from simulations.world.exchanges import Request
from simulations.world.shared_store import SharedStore
from stellwerk.ports import Store
from stellwerk.testing.store_contract import ManualClock, StoreContract

T = TypeVar("T")


class NoHosts:
    """The database is there, and no program has to be started for it."""

    def start(self, name: str, program: Callable[[], Awaitable[None]]) -> None:
        raise AssertionError("nothing is started here")

    def stop(self, name: str) -> None:
        raise AssertionError("nothing is stopped here")


class NoNetwork:
    async def carry(self, source: str, target: str) -> None:
        raise AssertionError("requests come another way")


class StraightLine:
    """Each request is done at once, without a network and without trio."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ask(self, request: Request[T]) -> T:
        return await self._database.execute(request)

    def post(self, request: Request[object]) -> None:
        with pytest.raises(StopIteration):
            self._database.execute(request).send(None)


class AloneOnDatabase(SharedStore):
    """A store whose database stops and starts with it, as the contract's tests of the clock expect."""

    def __init__(self, clock: ManualClock, isolation: str) -> None:
        settings = DatabaseSettings(isolation=isolation, sync_seconds=0, statement_seconds=(0, 0))
        database = Database(Simulation(1), NoHosts(), NoNetwork(), clock, settings)
        database.is_up = True
        self.rows = database.rows
        super().__init__(
            database, StraightLine(database), "node-1", "node-1.1", "node-1", clock, structlog.get_logger()
        )

    async def open(self) -> None:
        await self.rows.open()
        await super().open()

    async def close(self) -> None:
        await super().close()
        await self.rows.close()


class TestSerialisable(StoreContract):
    def make_store(self, clock: ManualClock) -> Store:
        return AloneOnDatabase(clock, "serialisable")


class TestReadCommitted(StoreContract):
    def make_store(self, clock: ManualClock) -> Store:
        return AloneOnDatabase(clock, "read_committed")


class BesideDatabase(SideBySide):
    isolation: ClassVar[str]

    def make_other(self) -> Store:
        return AloneOnDatabase(self.clock, self.isolation)


class BesideSerialisable(BesideDatabase):
    isolation = "serialisable"


class BesideReadCommitted(BesideDatabase):
    isolation = "read_committed"


for machine in (BesideSerialisable, BesideReadCommitted):
    machine.TestCase.settings = settings(
        max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
TestBesideSerialisable = BesideSerialisable.TestCase
TestBesideReadCommitted = BesideReadCommitted.TestCase
