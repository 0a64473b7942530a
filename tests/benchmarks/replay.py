"""What the store alone would take: a recorded run's transactions, in the same batches, done again in a bare loop."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
from tests.benchmarks.processes import cpu_seconds_of_server

from stellwerk.app import MEMORY, AppConfig
from stellwerk.core.external_task import ExternalTask, Lease
from stellwerk.errors import StellwerkError
from stellwerk.instants import InstantMs
from stellwerk.ports import Changeset, Committed, Operation, Outcome, Store
from stellwerk.stores.memory import MemoryStore
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.sqlite.store import SqliteStore
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.file_lock import FileLock
from stellwerk.system.logging import open_log
from stellwerk.system.threads import OneThread

__all__ = ["Recording", "Replayed", "replay"]


@attrs.frozen
class Transaction:
    operations: Sequence[Operation]
    outcomes: Sequence[Outcome]

    def now_ms(self) -> InstantMs | None:
        """What the lease clock said, where an outcome tells."""
        for outcome in self.outcomes:
            match outcome:
                case Committed():
                    return outcome.now_ms
                case (ExternalTask(lease=Lease(since_ms=since_ms)), *_):
                    return since_ms
                case _:
                    continue
        return None


class Recording:
    """Every transaction that a store was asked for."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.measured_from = 0

    def mark(self) -> None:
        """What was recorded until now prepares; what comes is measured."""
        self.measured_from = len(self.transactions)

    def listen_to(self, store: Store) -> None:
        inner = store.transact

        async def transact(operations: Sequence[Operation]) -> Sequence[Outcome]:
            outcomes = await inner(operations)
            self.transactions.append(Transaction(operations, outcomes))
            return outcomes

        setattr(store, "transact", transact)  # noqa: B010 — mypy rightly dislikes the plain assignment


class _RecordedClock:
    """Says the recorded times again: fences follow from the lease clock, and completions name them."""

    def __init__(self, first_ms: InstantMs) -> None:
        self._first_ms = first_ms
        self.now_ms = first_ms

    def wall_ms(self) -> InstantMs:
        return self._first_ms

    def monotonic(self) -> float:
        elapsed_ms = self.now_ms - self._first_ms
        return (elapsed_ms + 0.25) / 1000 if elapsed_ms else 0.0  # a quarter: whole milliseconds stay whole

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a store does not sleep")


@attrs.frozen
class _DictatedClock:
    """The same for a store that would ask its database what time it is."""

    clock: _RecordedClock

    def open(self) -> None:
        """Nothing to do."""

    def now_ms(self) -> InstantMs:
        return self.clock.now_ms

    def close(self) -> None:
        """Nothing to do."""


@attrs.frozen
class Replayed:
    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    """Of the database server; 0 where there is none."""
    transactions: int
    operations: int
    refused: int
    """Operations that did not come out as in the run: more than a few, and the figures mean nothing."""


async def replay(recording: Recording, config: AppConfig, server_pid: int | None = None) -> Replayed:
    """Do it all again on a fresh store of the same kind: that of `config` itself, where it names a server's database.

    :param server_pid: of the database server.
    """
    instants = (each.now_ms() for each in recording.transactions)
    clock = _RecordedClock(next(now_ms for now_ms in instants if now_ms is not None))
    with _fresh_store(config, clock) as store:
        await store.open()
        try:
            await _run(store, clock, recording.transactions[: recording.measured_from])
            return await _measured(store, clock, recording.transactions[recording.measured_from :], server_pid)
        finally:
            await store.close()


async def _measured(
    store: Store, clock: _RecordedClock, transactions: Sequence[Transaction], server_pid: int | None
) -> Replayed:
    def server_cpu() -> float:
        return 0.0 if server_pid is None else cpu_seconds_of_server(server_pid)

    server_before = server_cpu()
    began, cpu = time.perf_counter(), time.process_time()
    outcomes = await _run(store, clock, transactions)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    server_cpu_seconds = server_cpu() - server_before
    done = [
        pair
        for transaction, answers in zip(transactions, outcomes, strict=True)
        for pair in zip(transaction.operations, answers, strict=True)
    ]
    refused = sum(_is_refused(operation, outcome) for operation, outcome in done)
    return Replayed(seconds, cpu_seconds, server_cpu_seconds, len(transactions), len(done), refused)


async def _run(store: Store, clock: _RecordedClock, transactions: Sequence[Transaction]) -> Sequence[Sequence[Outcome]]:
    outcomes = []
    for transaction in transactions:
        clock.now_ms = transaction.now_ms() or clock.now_ms
        outcomes.append(await store.transact(transaction.operations))
    return outcomes


def _is_refused(operation: Operation, outcome: Outcome) -> bool:
    if isinstance(operation, Changeset):
        return not isinstance(outcome, Committed)
    return isinstance(outcome, StellwerkError)


@contextmanager
def _fresh_store(config: AppConfig, clock: _RecordedClock) -> Iterator[Store]:
    if config.db == MEMORY:
        yield MemoryStore(clock)
        return
    if not isinstance(config.db, Path):
        yield _postgres_store(config, clock)
        return
    folder = Path(tempfile.mkdtemp(prefix="replay-", dir=config.db.parent))
    thread = OneThread("replay")
    file = folder / "replay.db"
    try:
        yield SqliteStore(file, runner=thread, clock=clock, lock=FileLock(file), synchronous=config.synchronous)
    finally:
        thread.close()
        shutil.rmtree(folder)


def _postgres_store(config: AppConfig, clock: _RecordedClock) -> Store:
    from stellwerk.stores.postgres.store import PostgresStore

    assert isinstance(config.db, PostgresConfig)
    return PostgresStore(
        config.db,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        log=open_log(config.log_level, config.log_format),
        node_id="replay",
        lease_clock=_DictatedClock(clock),
    )
