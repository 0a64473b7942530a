"""What the nodes of a run keep their rows in, and what the harness needs of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from simulations.kernel.simulation import Simulation
from simulations.plans.plan import DATABASE, Plan
from simulations.world.database import Database, DatabaseSettings
from simulations.world.embedded import EmbeddedDatabase
from simulations.world.hosts import HostClock, Hosts
from simulations.world.network import Network
from simulations.world.rows import CommitObserver
from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import HistoryStep, InstanceSummary, Store

__all__ = ["Backend", "open_backend"]

_FAST = Path("/dev/shm")
"""Where files cost no disk: what a power cut leaves is simulated."""


class Backend(Protocol):
    """`Database`, or the file of a real SQLite store (`EmbeddedDatabase`)."""

    @property
    def observers(self) -> list[CommitObserver]: ...
    @property
    def commit_count(self) -> int: ...

    def start(self) -> None:
        """Switch it on."""

    def store_for(self, host_name: str, node_id: str, clock: HostClock) -> Store: ...

    # what faults do
    def crash(self, down_seconds: float, /) -> None: ...
    def read_only(self, seconds: float, /) -> None: ...
    def unavailable(self, seconds: float, /) -> None: ...
    def slow(self, seconds_each: float, for_seconds: float, /) -> None: ...
    def refuse(self, chance: float, for_seconds: float, /) -> None: ...
    def lose_answers(self, chance: float, for_seconds: float, /) -> None: ...
    def jump_clock(self, milliseconds: int, /) -> None: ...
    def lose_hints(self, chance: float, /) -> None: ...

    # for those who judge
    def lease_now_ms(self) -> int: ...
    def all_tasks(self) -> Sequence[ExternalTask]: ...
    def all_instances(self) -> Sequence[InstanceSummary]: ...
    def history(self, instance_id: str) -> Sequence[HistoryStep]: ...


@contextmanager
def open_backend(simulation: Simulation, plan: Plan, hosts: Hosts, network: Network) -> Iterator[Backend]:
    """What the plan asks for. Its files, if it has any, are gone afterwards."""
    if plan.options.backend == "shared":
        yield _shared(simulation, plan, hosts, network)
        return
    with TemporaryDirectory(prefix="simulation-", dir=_FAST if _FAST.is_dir() else None) as folder:
        backend = EmbeddedDatabase(
            simulation, hosts, HostClock(simulation), Path(folder), plan.options.database_latency
        )
        try:
            yield backend
        finally:
            backend.close()


def _shared(simulation: Simulation, plan: Plan, hosts: Hosts, network: Network) -> Backend:
    options = plan.options
    offset_ms, rate = plan.clock_of(DATABASE)
    clock = HostClock(simulation, offset_ms=offset_ms, rate=rate)
    hosts.add(DATABASE, clock)
    settings = DatabaseSettings(
        isolation=options.isolation,
        sync_seconds=options.sync_seconds,
        statement_seconds=options.database_latency,
        hint_loss=options.hint_loss,
        hint_doubling=options.hint_doubling,
        hint_late_seconds=options.hint_late,
    )
    return Database(simulation, hosts, network, clock, settings)
