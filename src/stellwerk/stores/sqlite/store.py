"""The store on one SQLite file, for one engine at a time. SQLite stays in one thread, one hop for each call."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.errors import InvariantBroken, StellwerkError, StoreUnavailable
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    ApiKeyRow,
    Clock,
    DefinitionRow,
    DueTimer,
    HistoryStep,
    InboxRow,
    InstanceFilter,
    InstanceSummary,
    KeptMessage,
    MatchedMessage,
    Operation,
    Outcome,
    ReadyScan,
    StoredInstance,
    TaskQuery,
    ThreadRunner,
    TopicBacklog,
    UserTaskFilter,
)
from stellwerk.stores.alone import AloneStore
from stellwerk.stores.catalogue import split_definition_id
from stellwerk.stores.lease_clock import LeaseClock
from stellwerk.stores.operations import apply_operation
from stellwerk.stores.sqlite import api_keys, listing, messages, reads, task_listing
from stellwerk.stores.sqlite.backup import FileCopy, copy_file
from stellwerk.stores.sqlite.connection import OpenFiles, Synchronous, check_content, check_place, open_connection
from stellwerk.stores.sqlite.migrations import migrate
from stellwerk.stores.sqlite.tables import RecentRows, SqliteTables
from stellwerk.stores.tables import ROW_FAULTS, refusal_of

__all__ = ["ExclusiveLock", "SqliteStore"]

T = TypeVar("T")

_FAULTS: tuple[type[Exception], ...] = (
    *ROW_FAULTS,
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""One operation is at fault; any other `sqlite3.Error` is the database's own and ends the whole transaction."""

_OUR_OWN: tuple[type[Exception], ...] = (sqlite3.Error, StellwerkError)
"""What is raised on purpose, or by the database: no mistake in one operation."""

_NEXT_OWNER = """
INSERT INTO meta (name, value) VALUES ('owner', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"""
_SELECT_OWNER = "SELECT value FROM meta WHERE name = 'owner'"
_RAISE_HIGH_WATER_MARK = "UPDATE meta SET value = max(value, ?) WHERE name = 'lease_clock_ms'"


def _is_of_one_operation(error: Exception) -> bool:
    return isinstance(error, _FAULTS) or not isinstance(error, _OUR_OWN)


def _refusal(operation: Operation, error: Exception) -> Outcome:
    """A row that cannot be written is refused; anything else, such as too little memory, was not foreseen."""
    if isinstance(error, _FAULTS):
        return refusal_of(operation, error)
    return InvariantBroken(f"the store could not do {type(operation).__name__}: {type(error).__name__}: {error}")


def _nothing() -> None:
    return


class ExclusiveLock(Protocol):
    """Ends with the process, however that ends."""

    def acquire(self) -> None:
        """:raises StoreUnavailable: naming the file and the process that has it."""

    def release(self) -> None: ...


class SqliteStore(AloneStore):
    """`Store` on the file `path`; `lock` keeps a second engine away from it.

    Should one get in anyway, or the file be moved or deleted, every later transaction is refused: what it would
    acknowledge might be lost. Only opening it anew helps then.

    Backups run in `copier`, which should be a thread of its own: in that of `runner` all other work waits for them.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        runner: ThreadRunner,
        clock: Clock,
        lock: ExclusiveLock,
        synchronous: Synchronous = "FULL",
        copier: ThreadRunner | None = None,
    ) -> None:
        self._path = Path(path)
        self._runner = runner
        self._copier = runner if copier is None else copier
        self._copies: set[FileCopy] = set()
        self._clock = LeaseClock(clock)
        self._lock = lock
        self._synchronous: Synchronous = synchronous
        self._connection: sqlite3.Connection | None = None
        self._recent = RecentRows()
        self._files: OpenFiles | None = None
        self._owner = 0
        """Grows with each opening of the file."""
        self._is_lost_because: str | None = None

    @property
    def file(self) -> Path:
        return self._path

    def __repr__(self) -> str:
        state = "closed" if self._connection is None else "open"
        return f"SqliteStore({str(self._path)!r}, {self._synchronous}, {state})"

    # --- open and close --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._clock.open(await self._runner.run_sync(self._open))

    def _open(self) -> InstantMs:
        """→ the stored high-water mark of the lease clock."""
        check_place(self._path)
        self._lock.acquire()
        try:
            check_content(self._path)
            self._connection = open_connection(self._path, self._synchronous)
            migrate(self._connection, str(self._path))
            self._owner = self._take_over(self._connection)
            self._files = OpenFiles(self._path)
            row = self._connection.execute("SELECT value FROM meta WHERE name = 'lease_clock_ms'").fetchone()
        except (sqlite3.Error, OSError) as error:
            self._close()
            raise StoreUnavailable(f"{self._path} cannot be used: {error}") from error
        except StoreUnavailable:
            self._close()
            raise
        self._is_lost_because = None
        high_water_ms: InstantMs = row[0]
        return high_water_ms

    def _take_over(self, connection: sqlite3.Connection) -> int:
        """→ the number by which this store knows that no other has opened the file since."""
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_NEXT_OWNER)
        owner: int = connection.execute(_SELECT_OWNER).fetchone()[0]
        connection.execute("COMMIT")
        return owner

    async def close(self) -> None:
        await self._stop_copies()
        await self._runner.run_sync(partial(self._close_at, self._clock.now_ms()))

    def _close_at(self, now_ms: InstantMs) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):  # a mark of the last write is there anyway
                self._connection.execute(_RAISE_HIGH_WATER_MARK, (now_ms,))
        self._close()

    def _close(self) -> None:
        self._recent.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._lock.release()

    # --- writing ---------------------------------------------------------------------------------------------------

    async def lease_now(self) -> InstantMs:
        return self._clock.now_ms()

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        now_ms = self._clock.now_ms()
        return await self._runner.run_sync(partial(self._transact, tuple(operations), now_ms))

    def _transact(self, operations: Sequence[Operation], now_ms: InstantMs) -> Sequence[Outcome]:
        connection = self._opened()
        self._refuse_if_lost()
        try:
            outcomes = self._apply(connection, operations, now_ms)
            self._check_files(connection)
            return outcomes
        except sqlite3.Error as error:
            self._recent.clear()
            raise StoreUnavailable(f"{self._path}: {error}") from error
        except Exception:
            self._recent.clear()
            raise
        finally:
            with suppress(sqlite3.Error):  # what made it fail was said; the next transaction will say it again
                self._roll_back(connection)

    def _apply(
        self, connection: sqlite3.Connection, operations: Sequence[Operation], now_ms: InstantMs
    ) -> Sequence[Outcome]:
        try:
            return self._apply_together(connection, operations, now_ms)
        except Exception as error:
            # Nothing was committed for certain only while the transaction is still open.
            if not _is_of_one_operation(error) or not connection.in_transaction:
                raise
        # One of them is at fault: do them again, each behind a savepoint of its own.
        self._roll_back(connection)
        return self._apply_apart(connection, operations, now_ms)

    def _apply_together(
        self, connection: sqlite3.Connection, operations: Sequence[Operation], now_ms: InstantMs
    ) -> Sequence[Outcome]:
        self._begin(connection)
        tables = SqliteTables(connection, self._recent, trusts_insertions=True)
        outcomes = [apply_operation(tables, operation, now_ms) for operation in operations]
        tables.send()
        if tables.has_written:
            self._commit(connection, now_ms)
            tables.keep_recent()
        return outcomes

    def _apply_apart(
        self, connection: sqlite3.Connection, operations: Sequence[Operation], now_ms: InstantMs
    ) -> Sequence[Outcome]:
        self._recent.clear()
        self._begin(connection)
        outcomes = [self._apply_alone(connection, operation, now_ms) for operation in operations]
        self._commit(connection, now_ms)
        return outcomes

    def _apply_alone(self, connection: sqlite3.Connection, operation: Operation, now_ms: InstantMs) -> Outcome:
        connection.execute("SAVEPOINT operation")
        # Without the cache: it does not know what the operations before this one did.
        tables = SqliteTables(connection, RecentRows(), trusts_insertions=False)
        try:
            outcome = apply_operation(tables, operation, now_ms)
            tables.send()
        except Exception as error:
            if not _is_of_one_operation(error):
                raise
            connection.execute("ROLLBACK TO operation")
            outcome = _refusal(operation, error)
        connection.execute("RELEASE operation")
        return outcome

    def _begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute(_SELECT_OWNER).fetchone() != (self._owner,):
            self._lose(f"another engine has taken the file {self._path}")

    def _check_files(self, connection: sqlite3.Connection) -> None:
        """What was committed may only be acknowledged while it can be found again."""
        try:
            name = None if self._files is None else self._files.lost()
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be seen: {error.strerror}") from error
        if name is None:
            return
        with suppress(sqlite3.Error):  # should only the log be gone, it can still be brought into the database
            connection.execute("PRAGMA wal_checkpoint").fetchall()
        self._lose(f"the database file {name} was moved or deleted while it was in use")

    def _lose(self, reason: str) -> NoReturn:
        self._is_lost_because = reason
        raise StoreUnavailable(reason)

    def _refuse_if_lost(self) -> None:
        if self._is_lost_because is not None:
            raise StoreUnavailable(self._is_lost_because)

    def _commit(self, connection: sqlite3.Connection, now_ms: InstantMs) -> None:
        connection.execute(_RAISE_HIGH_WATER_MARK, (now_ms,))
        connection.execute("COMMIT")

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"{self._path} is not open")
        return self._connection

    # --- backup ----------------------------------------------------------------------------------------------------

    async def backup(self, target: Path, progress: Callable[[float], None]) -> None:
        self._opened()
        self._refuse_copy()
        copy = FileCopy(self._path, Path(target), self._begin_copy)
        self._copies.add(copy)
        try:
            await copy_file(self._copier, copy, progress)
        finally:
            self._copies.discard(copy)

    def _begin_copy(self, source: sqlite3.Connection) -> None:
        source.execute("BEGIN")
        if source.execute(_SELECT_OWNER).fetchone() != (self._owner,):
            raise StoreUnavailable(f"another engine has taken the file {self._path}")
        self._refuse_copy()

    def _refuse_copy(self) -> None:
        """What is at the path now may be another file than the one that is open."""
        self._refuse_if_lost()
        name = None if self._files is None else self._files.lost()
        if name is not None:
            raise StoreUnavailable(f"the database file {name} was moved or deleted while it was in use")

    async def _stop_copies(self) -> None:
        if not self._copies:
            return
        for copy in self._copies:
            copy.stop()
        await self._copier.run_sync(_nothing)  # behind them: the file must not be given up before they have ended

    # --- reading ---------------------------------------------------------------------------------------------------

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return await self._runner.run_sync(partial(self._read_now, read))

    def _read_now(self, read: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._opened()
        try:
            return read(connection)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path}: {error}") from error

    async def load_instance(self, instance_id: str) -> StoredInstance | None:
        return await self._read(partial(reads.load_instance, instance_id=instance_id))

    async def history(self, instance_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[HistoryStep]:
        return await self._read(partial(reads.history, instance_id=instance_id, after=after, limit=limit))

    async def instance(self, instance_id: str) -> InstanceSummary | None:
        return await self._read(partial(reads.instance, instance_id=instance_id))

    async def instances(
        self, wanted: InstanceFilter = InstanceFilter(), *, limit: int = 100, after: str | None = None
    ) -> Sequence[InstanceSummary]:
        return await self._read(partial(listing.instances, wanted=wanted, limit=limit, after=after))

    async def definition(self, definition_id: str) -> DefinitionRow | None:
        named = split_definition_id(definition_id)
        return None if named is None else await self._read(partial(reads.definition, key=named[0], version=named[1]))

    async def latest_definition(self, key: str) -> DefinitionRow | None:
        return await self._read(partial(reads.latest_definition, key=key))

    async def definitions(self) -> Sequence[DefinitionRow]:
        return await self._read(reads.definitions)

    async def disabled_processes(self) -> Sequence[str]:
        return await self._read(reads.disabled_processes)

    async def task(self, task_id: str) -> ExternalTask | None:
        return await self._read(partial(reads.task, task_id=task_id))

    async def tasks(
        self, wanted: TaskQuery = TaskQuery(), *, limit: int = 1000, after: str | None = None
    ) -> Sequence[ExternalTask]:
        now_ms = self._clock.now_ms()
        return await self._read(partial(task_listing.tasks, wanted=wanted, now_ms=now_ms, limit=limit, after=after))

    async def count_tasks(self, wanted: TaskQuery = TaskQuery()) -> int:
        return await self._read(partial(task_listing.count_tasks, wanted=wanted, now_ms=self._clock.now_ms()))

    async def topic_backlogs(self) -> Sequence[TopicBacklog]:
        return await self._read(partial(listing.topic_backlogs, now_ms=self._clock.now_ms()))

    async def held_leases(self, worker_ids: Sequence[str]) -> Mapping[tuple[str, str], int]:
        now_ms = self._clock.now_ms()
        return await self._read(partial(task_listing.held_leases, worker_ids=worker_ids, now_ms=now_ms))

    async def attempts(self, task_id: str) -> Sequence[TaskAttempt]:
        return await self._read(partial(reads.attempts, task_id=task_id))

    async def ready_tasks(self, topic: str, limit: int) -> ReadyScan:
        now_ms = self._clock.now_ms()
        return await self._read(partial(reads.ready_tasks, topic=topic, now_ms=now_ms, limit=limit))

    async def next_lock_expiry(self) -> tuple[InstantMs | None, InstantMs]:
        return await self._read(reads.next_lock_expiry), self._clock.now_ms()

    async def draining_ready(self, limit: int) -> Sequence[tuple[str, str]]:
        return await self._read(partial(reads.draining_ready, limit=limit))

    async def due_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        return await self._read(partial(reads.due_timers, now_ms=now_ms, limit=limit))

    async def matched_messages(self, now_ms: InstantMs, limit: int) -> Sequence[MatchedMessage]:
        return await self._read(partial(messages.matched_messages, now_ms=now_ms, limit=limit))

    async def message(self, message_id: str) -> KeptMessage | None:
        return await self._read(partial(messages.message, message_id=message_id))

    async def waiting_messages(
        self, now_ms: InstantMs, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[KeptMessage]:
        return await self._read(partial(messages.waiting_messages, now_ms=now_ms, limit=limit, after=after))

    async def awaited_names(self, limit: int) -> Sequence[str]:
        return await self._read(partial(messages.awaited_names, limit=limit))

    async def receivers(self, name: str, limit: int) -> Sequence[tuple[str, str]]:
        return await self._read(partial(messages.receivers, name=name, limit=limit))

    async def incident_counts(self, instance_ids: Sequence[str]) -> Mapping[str, int]:
        return await self._read(partial(listing.incident_counts, instance_ids=instance_ids))

    async def incidents(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        return await self._read(partial(reads.incidents, instance_id=instance_id, limit=limit, after=after))

    async def user_tasks(
        self,
        instance_id: str | None = None,
        *,
        wanted: UserTaskFilter = UserTaskFilter(),
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[Mapping[str, object]]:
        read = partial(reads.user_tasks, instance_id=instance_id, filtered=wanted, limit=limit, after=after)
        return await self._read(read)

    async def incident(self, incident_id: str) -> Mapping[str, object] | None:
        found = await self._read(partial(reads.incidents, incident_id=incident_id))
        return found[0] if found else None

    async def user_task(self, user_task_id: str) -> Mapping[str, object] | None:
        found = await self._read(partial(reads.user_tasks, user_task_id=user_task_id))
        return found[0] if found else None

    async def inbox(self, limit: int) -> Sequence[InboxRow]:
        return await self._read(partial(reads.inbox, limit=limit))

    async def api_key(self, key_id: str) -> ApiKeyRow | None:
        return await self._read(partial(api_keys.api_key, key_id=key_id))

    async def api_keys(self) -> Sequence[ApiKeyRow]:
        return await self._read(api_keys.api_keys)

    async def has_api_keys(self) -> bool:
        return await self._read(api_keys.has_api_keys)
