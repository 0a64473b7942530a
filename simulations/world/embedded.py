"""The real SQLite store in a simulation: its code and its file, on a simulated host, with a disk that fails.

What it commits is done a second time in memory. That tells observers what each row was before, and whether the file
holds what it should: after each commit, and again when a node opens what another start of it left behind.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import trio

from simulations.kernel.draws import between, chance
from simulations.kernel.properties import Properties
from simulations.kernel.scheduling import PLACE
from simulations.kernel.simulation import Simulation
from simulations.world.commits import CommitLog
from simulations.world.exchanges import Batch
from simulations.world.hosts import Hosts
from simulations.world.rows import CommitObserver
from simulations.world.tables import DatabaseRows
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import StoreUnavailable
from stellwerk.instants import InstantMs
from stellwerk.ports import Clock, HistoryStep, InstanceFilter, InstanceSummary, Operation, Outcome, TaskQuery
from stellwerk.stores.sqlite import listing, reads, task_listing
from stellwerk.stores.sqlite.store import SqliteStore
from stellwerk.system.file_lock import FileLock

__all__ = ["EmbeddedDatabase", "EmbeddedStore"]

T = TypeVar("T")

_ROWS_MAX = 1_000_000
_FILES = ("", "-wal")
"""What is left when the power goes: the index of the log (``-shm``) is made anew."""


class EmbeddedDatabase:
    """One file for one node at a time. Faults last until an instant (true seconds)."""

    def __init__(
        self, simulation: Simulation, hosts: Hosts, clock: Clock, folder: Path, seconds: tuple[float, float]
    ) -> None:
        """:param folder: empty, and for nobody else.
        :param clock: any, for the rows in memory, whose time comes from the transactions.
        :param seconds: what each access to the disk takes, at least and at most.
        """
        self.simulation = simulation
        self.seconds = seconds
        self._hosts = hosts
        self._folder = folder
        self._starts = 0
        self._stores: Counter[str] = Counter()
        self._opened: list[EmbeddedStore] = []
        self.rows = DatabaseRows(clock)
        self.commits = CommitLog(simulation, self.rows, sync_seconds=0)
        # A transaction is judged at one instant, and that alone is stored with it: what the clock showed a moment later
        # is forgotten with its node, and the next one may begin before it (consistency.md 19).
        self.commits.clock = lambda: 0
        self.disk = DiskFaults(simulation.seed, simulation.properties, simulation.now)
        simulation.on_over.append(self.observers.clear)

    @property
    def observers(self) -> list[CommitObserver]:
        return self.commits.observers

    @property
    def commit_count(self) -> int:
        return self.commits.count

    def start(self) -> None:
        """A file is always there."""

    def close(self) -> None:
        """Let go of all files."""
        for store in self._opened:
            store.let_go()
        self._opened.clear()

    def store_for(self, host_name: str, node_id: str, clock: Clock) -> EmbeddedStore:
        self._stores[host_name] += 1
        name = f"{host_name}.{self._stores[host_name]}"
        return EmbeddedStore(self, host_name, name, clock)

    # --- the file --------------------------------------------------------------------------------------------------

    def path_for(self, store: EmbeddedStore) -> Path:
        """Where the file is for who opens it now. When its last user died, that is a copy of what he left on the disk:
        to this process he is still there."""
        for user in [user for user in self._opened if not user.is_closed and self._is_dead(user)]:
            self._take_over(user)
        self._opened = [user for user in self._opened if not user.is_closed] + [store]
        return self.path()

    def readable(self, text: str) -> str:
        """A message without what differs from run to run."""
        return text.replace(str(self._folder), "simulated disk").replace(f"pid {os.getpid()}", "pid 1")

    def path(self) -> Path:
        return self._folder / f"engine-{self._starts}.db"

    def _is_dead(self, user: EmbeddedStore) -> bool:
        if user.host not in self._hosts or not user.place:
            return False
        host = self._hosts[user.host]
        return not host.is_up or host.place != user.place

    def _take_over(self, user: EmbeddedStore) -> None:
        left = self.path()
        self._starts += 1
        for ending in _FILES:
            if Path(f"{left}{ending}").exists():
                shutil.copyfile(f"{left}{ending}", f"{self.path()}{ending}")
        user.let_go()
        self.simulation.properties.sometimes("disk: a file was opened as a dead node left it")

    # --- what was committed ----------------------------------------------------------------------------------------

    def committed(
        self,
        store: EmbeddedStore,
        connection: sqlite3.Connection,
        operations: Sequence[Operation],
        outcomes: Sequence[Outcome],
        now_ms: InstantMs,
    ) -> None:
        """Do it in memory as well, and compare."""
        count = self.commits.count
        batch = Batch(f"{store.name}/{self.commits.count + 1}", store.host, operations)
        expected = self.commits.apply(batch, now_ms=now_ms)
        always = self.simulation.properties.always
        for operation, outcome, other in zip(operations, outcomes, expected, strict=True):
            always(
                "D1",
                _is_same(outcome, other),
                f"SQLite gave another outcome of {type(operation).__name__} than the rows in memory",
            )
        if self.commits.count > count:
            self._compare_written(connection)

    def compare_all(self, connection: sqlite3.Connection) -> None:
        """Whether the file holds what was committed, and nothing else."""
        always = self.simulation.properties.always
        tasks = task_listing.tasks(connection, TaskQuery(), 0, _ROWS_MAX, None)
        always("D1", sorted(tasks, key=_task_id) == self.all_tasks(), "the file's tasks are not those committed")
        instances = listing.instances(connection, InstanceFilter(), _ROWS_MAX, None)
        known = self.all_instances()
        always("D1", sorted(instances, key=_instance_id) == known, "the file's instances are not those committed")
        for row in known:
            steps = list(reads.history(connection, row.instance_id))
            always("D1", steps == self.history(row.instance_id), f"the file lacks history of {row.instance_id}")

    def _compare_written(self, connection: sqlite3.Connection) -> None:
        """The tasks and instances of the last commit."""
        assert self.commits.last is not None
        always, tables = self.simulation.properties.always, self.rows.tables
        for table, key in dict.fromkeys((change.table, change.key) for change in self.commits.last.changes):
            if table == "tasks":
                is_there = reads.task(connection, str(key)) == tables.tasks.get(str(key))
                always("D1", is_there, f"the file does not hold the task {key} as it was committed")
            elif table == "instances":
                is_there = reads.instance(connection, str(key)) == tables.instances.get(str(key))
                always("D1", is_there, f"the file does not hold the instance {key} as it was committed")

    # --- faults ----------------------------------------------------------------------------------------------------

    def read_only(self, seconds: float) -> None:
        """The disk is full."""
        self.disk.full_until = self.simulation.now() + seconds

    def unavailable(self, seconds: float) -> None:
        """Neither reading nor writing."""
        self.disk.broken_until = self.simulation.now() + seconds

    def slow(self, seconds_each: float, for_seconds: float) -> None:
        self.disk.slow_seconds, self.disk.slow_until = seconds_each, self.simulation.now() + for_seconds

    def refuse(self, chance: float, for_seconds: float) -> None:
        """Commits fail."""
        self.disk.failing_chance, self.disk.failing_until = chance, self.simulation.now() + for_seconds

    def crash(self, down_seconds: float) -> None:
        """:raises ValueError: always."""
        raise ValueError("a file dies with its node: crash that one")

    def jump_clock(self, milliseconds: int) -> None:
        """:raises ValueError: always."""
        raise ValueError("a file has no clock of its own: set that of its node")

    def lose_answers(self, chance: float, for_seconds: float) -> None:
        """:raises ValueError: unless there is nothing to lose."""
        if for_seconds:
            raise ValueError("a file's answers are not lost: nothing is between it and its node")

    def lose_hints(self, chance: float) -> None:
        """There are none: its node is alone."""

    # --- for those who judge ---------------------------------------------------------------------------------------

    def lease_now_ms(self) -> int:
        users = [user for user in self._opened if not user.is_closed]
        return users[-1].now_ms() if users else self.rows.now_ms()

    def all_tasks(self) -> list[ExternalTask]:
        return self.rows.all_tasks()

    def all_instances(self) -> list[InstanceSummary]:
        return self.rows.all_instances()

    def history(self, instance_id: str) -> list[HistoryStep]:
        return self.rows.all_steps(instance_id)


class DiskFaults:
    """What is wrong with the disk for a while."""

    def __init__(self, seed: int, properties: Properties, now: Callable[[], float]) -> None:
        self._seed = seed
        self._sometimes = properties.sometimes
        self._now = now
        self.full_until = self.broken_until = self.slow_until = self.slow_seconds = 0.0
        self.failing_until = self.failing_chance = 0.0

    def fail_reading(self) -> None:
        """:raises sqlite3.OperationalError: as SQLite does."""
        if self._now() < self.broken_until:
            self._sometimes("disk: broken")
            raise sqlite3.OperationalError("disk I/O error")

    def fail_committing(self, key: str) -> None:
        """:raises sqlite3.OperationalError: as SQLite does."""
        self.fail_reading()
        now = self._now()
        if now < self.full_until:
            self._sometimes("disk: full")
            raise sqlite3.OperationalError("database or disk is full")
        if now < self.failing_until and chance(self._seed, self.failing_chance, "commit fails", key):
            self._sometimes("disk: a commit failed")
            raise sqlite3.OperationalError("disk I/O error")

    def seconds(self, usual: tuple[float, float], key: str) -> float:
        seconds = between(self._seed, *usual, "disk", key)
        if self._now() < self.slow_until:
            self._sometimes("disk: slow")
            seconds += between(self._seed, 0.5 * self.slow_seconds, 1.5 * self.slow_seconds, "disk slow", key)
        return seconds


class DiskRunner:
    """`ThreadRunner`: one job after the other, each of which takes its time and is never abandoned."""

    def __init__(self, database: EmbeddedDatabase, name: str) -> None:
        self._database = database
        self._name = name
        self._jobs = 0
        self._waiting: deque[trio.Event] = deque()
        self._is_busy = False

    async def run_sync(self, function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            await self._take_turn()
        try:
            return await self._run(function)
        finally:
            self._is_busy = False
            if self._waiting:
                self._waiting.popleft().set()

    async def _take_turn(self) -> None:
        while self._is_busy:
            turn = trio.Event()
            self._waiting.append(turn)
            await turn.wait()
        self._is_busy = True

    async def _run(self, function: Callable[[], T]) -> T:
        """The job is done somewhere within the time that it takes: a node may die before it or after it."""
        self._jobs += 1
        key = f"{self._name}/{self._jobs}"
        seconds = self._database.disk.seconds(self._database.seconds, key)
        with trio.CancelScope(shield=True):
            await trio.sleep(round(seconds / 2, 6))
        result = function()
        with trio.CancelScope(shield=True):
            await trio.sleep(round(seconds / 2, 6))
        return result


class EmbeddedStore(SqliteStore):
    """The store of one start of a node. All that is done to rows is the real one's."""

    def __init__(self, database: EmbeddedDatabase, host: str, name: str, clock: Clock) -> None:
        super().__init__(
            database.path(),
            runner=DiskRunner(database, name),
            clock=clock,
            lock=FileLock(database.path()),
            synchronous="FULL",
        )
        self.host = host
        self.name = name
        self.place = ""
        """Where it was opened: host and incarnation."""
        self._database = database
        self._commits = 0

    @property
    def is_closed(self) -> bool:
        return self._connection is None

    def now_ms(self) -> InstantMs:
        return self._clock.now_ms()

    def let_go(self) -> None:
        """As the kernel does for a dead process."""
        self._close()

    async def open(self) -> None:
        self.place = PLACE.get()
        self._path = self._database.path_for(self)
        self._lock = FileLock(self._path)
        try:
            await super().open()
        except StoreUnavailable as error:
            raise StoreUnavailable(self._database.readable(error.message)) from error
        self._database.compare_all(self._opened())

    def _transact(self, operations: Sequence[Operation], now_ms: InstantMs) -> Sequence[Outcome]:
        try:
            outcomes = super()._transact(operations, now_ms)
        except StoreUnavailable as error:
            raise StoreUnavailable(self._database.readable(error.message)) from error
        self._database.committed(self, self._opened(), operations, outcomes, now_ms)
        return outcomes

    def _commit(self, connection: sqlite3.Connection, now_ms: InstantMs) -> None:
        self._commits += 1
        self._database.disk.fail_committing(f"{self.name}/{self._commits}")
        super()._commit(connection, now_ms)

    def _read_now(self, read: Callable[[sqlite3.Connection], T]) -> T:
        def ask(connection: sqlite3.Connection) -> T:
            self._database.disk.fail_reading()
            return read(connection)

        try:
            return super()._read_now(ask)
        except StoreUnavailable as error:
            raise StoreUnavailable(self._database.readable(error.message)) from error


def _is_same(outcome: Outcome, other: Outcome) -> bool:
    """Texts of data errors differ: each names its own tables."""
    return outcome == other or (type(outcome) is type(other) and _is_data_error(outcome) and _is_data_error(other))


def _is_data_error(outcome: Outcome) -> bool:
    guard = getattr(outcome, "guard", None)
    return isinstance(outcome, Exception) or (guard is not None and guard.value == "data")


def _task_id(task: ExternalTask) -> str:
    return task.task_id


def _instance_id(row: InstanceSummary) -> str:
    return row.instance_id
