"""A backup of the database file while the engine works: whole or not there, and another engine goes on from it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar

import attrs
import pytest
import trio

from stellwerk.core.changes import RowChanges, TimerRow
from stellwerk.errors import Conflict, StoreUnavailable
from stellwerk.stores.memory import MemoryStore
from stellwerk.stores.sqlite import SqliteStore, backup
from stellwerk.stores.sqlite.backup import PARTIAL_SUFFIX, FileCopy, copy_file
from stellwerk.system.file_lock import FileLock
from stellwerk.system.threads import InlineRunner, OneThread
from stellwerk.testing.store_contract import ManualClock, StoreWorld
from stellwerk.testing.store_contract.world import START_MS, new_task

T = TypeVar("T")


def silent(_fraction: float) -> None:
    return


@attrs.define
class Engine:
    """A store that works in threads, as in a real engine."""

    directory: Path
    store: SqliteStore
    world: StoreWorld
    copier: OneThread

    @property
    def target(self) -> Path:
        return self.directory / "copy.db"

    def names(self) -> set[str]:
        """Of the files, without those that SQLite keeps beside the open database."""
        return {file.name for file in self.directory.iterdir()} - {"engine.db", "engine.db-wal", "engine.db-shm"}

    async def fill(self) -> None:
        """So that a copy takes several slices."""
        large = b'"' + b"x" * 1_000_000 + b'"'
        for number in range(12):
            await self.world.step(f"large-{number}", RowChanges(new_tasks=(new_task(f"t{number}", variables=large),)))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    writer, copier, clock, path = OneThread("writer"), OneThread("copier"), ManualClock(), tmp_path / "engine.db"
    store = SqliteStore(path, runner=writer, copier=copier, clock=clock, lock=FileLock(path), synchronous="NORMAL")
    await store.open()
    yield Engine(tmp_path, store, StoreWorld(store, clock), copier)
    with trio.CancelScope(shield=True):
        await store.close()
    writer.close()
    copier.close()


@attrs.define
class HeldCopy:
    """A copy that stands still after its first slice until it may go on. Without `go_on` it would stand for ever."""

    copy: FileCopy
    _stands: threading.Event = attrs.field(factory=threading.Event)
    _may_go: threading.Event = attrs.field(factory=threading.Event)

    def __attrs_post_init__(self) -> None:
        self.copy.on_progress = self._stand

    def _stand(self) -> None:
        self._stands.set()
        assert self._may_go.wait(60)

    async def stands(self) -> None:
        assert await trio.to_thread.run_sync(self._stands.wait, 60)

    def go_on(self) -> None:
        self._may_go.set()


@pytest.fixture
async def held(engine: Engine) -> AsyncIterator[HeldCopy]:
    await engine.fill()
    copy = HeldCopy(FileCopy(engine.directory / "engine.db", engine.target, engine.store._begin_copy))
    yield copy
    copy.go_on()


def content(path: Path) -> list[str]:
    """The instances in a database file that is sound."""
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        tasks = database.execute("SELECT count(*) FROM external_tasks").fetchone()
        history = database.execute("SELECT count(*) FROM history").fetchone()
        found = [row[0] for row in database.execute("SELECT instance_id FROM instances ORDER BY instance_id")]
        assert tasks == history == (len(found),)
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    return found


async def failure(copy: FileCopy, runner: OneThread, kind: type[Exception] = StoreUnavailable) -> str:
    with pytest.raises(kind) as failed:
        await runner.run_sync(copy.run)
    return str(failed.value)


# --- while work goes on --------------------------------------------------------------------------------------------


async def test_work_goes_on_beside_a_backup_and_is_not_in_it(engine: Engine, held: HeldCopy) -> None:
    before = sorted(engine.world.versions)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.copier.run_sync, held.copy.run)
        await held.stands()
        assert engine.names() == {f"copy.db{PARTIAL_SUFFIX}"}
        for _ in range(20):
            await engine.world.ready_task()
        assert len(await engine.world.fetch(max_tasks=5)) == 5
        held.go_on()
    assert engine.names() == {"copy.db"}
    assert content(engine.target) == before
    assert len(await engine.store.instances()) == len(before) + 20


@attrs.define
class Listener:
    """Hears how far a copy is, which waits after each slice until that was heard."""

    copy: FileCopy
    thread: OneThread
    error: Exception | None = None
    told: list[float] = attrs.field(factory=list)
    _heard: threading.Event = attrs.field(factory=threading.Event)

    async def run_sync(self, function: Callable[[], T]) -> T:
        ring = self.copy.on_progress

        def ring_and_wait() -> None:
            self._heard.clear()
            ring()
            assert self._heard.wait(60)

        self.copy.on_progress = ring_and_wait
        return await self.thread.run_sync(function)

    def hear(self, fraction: float) -> None:
        self.told.append(fraction)
        self._heard.set()
        if self.error is not None:
            raise self.error


@pytest.fixture
async def listener(engine: Engine) -> Listener:
    await engine.fill()
    return Listener(FileCopy(engine.directory / "engine.db", engine.target, engine.store._begin_copy), engine.copier)


async def test_a_backup_tells_how_far_it_is(engine: Engine, listener: Listener) -> None:
    await copy_file(listener, listener.copy, listener.hear)
    *while_copying, end = listener.told
    assert len(while_copying) > 2
    assert while_copying == sorted(set(while_copying))
    assert 0 < while_copying[0] < 0.5
    assert end == 1.0
    assert engine.names() == {"copy.db"}


async def test_a_failure_of_whoever_listens_ends_the_backup(engine: Engine, listener: Listener) -> None:
    listener.error = ZeroDivisionError("of the one who listens")
    with pytest.raises(ZeroDivisionError):
        await copy_file(listener, listener.copy, listener.hear)
    assert len(listener.told) == 1
    assert engine.names() == set()


async def test_a_backup_works_without_threads(tmp_path: Path) -> None:
    path, clock, told = tmp_path / "ä b%3F?#.db", ManualClock(), list[float]()
    store = SqliteStore(path, runner=InlineRunner(), clock=clock, lock=FileLock(path))
    await store.open()
    await StoreWorld(store, clock).ready_task()
    await store.backup(tmp_path / "copy.db", told.append)
    assert told[-1] == 1.0
    assert content(tmp_path / "copy.db") == ["instance-000002"]
    await store.close()


async def test_a_backup_has_the_permissions_of_the_database(engine: Engine) -> None:
    for mode in (0o600, 0o640):
        (engine.directory / "engine.db").chmod(mode)
        await engine.store.backup(engine.target, silent)
        assert engine.target.stat().st_mode & 0o777 == mode
        engine.target.unlink()


async def test_a_store_in_memory_has_no_file_to_back_up(tmp_path: Path) -> None:
    store = MemoryStore(ManualClock())
    await store.open()
    with pytest.raises(Conflict, match=r"copy\.db was not written: a store in memory has no file"):
        await store.backup(tmp_path / "copy.db", silent)
    assert list(tmp_path.iterdir()) == []


# --- restoring -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def restored(engine: Engine, wall: int) -> AsyncIterator[StoreWorld]:
    clock = ManualClock(wall=wall)
    store = SqliteStore(engine.target, runner=InlineRunner(), clock=clock, lock=FileLock(engine.target))
    await store.open()
    yield StoreWorld(store, clock)
    await store.close()


async def test_another_engine_goes_on_from_a_backup(engine: Engine) -> None:
    world = engine.world
    leased = await world.leased_task()
    await world.step("timed", RowChanges(timers_armed=(TimerRow("timer", "T", START_MS + 1),)))
    await engine.store.backup(engine.target, silent)
    await world.commit(world.completion(leased))
    async with restored(engine, START_MS + 1_000) as again:
        assert (await again.task(leased.task_id)).lease == leased.lease
        again.versions[leased.instance_id] = 1
        committed = await again.commit(again.completion(leased))
        assert committed.version == 2
        assert len(await again.store.history(leased.instance_id)) == 2
        due, _ = await again.store.due_timers(START_MS + 1, 10)
        assert [timer.timer_id for timer in due] == ["timer"]


async def test_rule_11_fences_grow_on_over_those_that_were_given_after_the_backup(engine: Engine) -> None:
    task_id = await engine.world.ready_task()
    await engine.store.backup(engine.target, silent)
    engine.world.clock.advance(1_000)
    after_the_backup = await engine.world.lease(task_id)
    async with restored(engine, START_MS + 2_000) as again:
        assert (await again.lease(task_id)).fence > after_the_backup.fence


async def test_rule_19_the_lease_clock_of_a_restored_file_never_goes_back(engine: Engine) -> None:
    engine.world.clock.advance(5_000)
    leased = await engine.world.leased_task()
    await engine.store.backup(engine.target, silent)
    async with restored(engine, START_MS - 3_600_000) as again:
        assert await again.store.lease_now() == START_MS + 5_000
        again.clock.seconds += 30
        await again.expire()
        assert (await again.lease(leased.task_id)).fence > leased.fence


async def test_a_backup_can_be_backed_up(engine: Engine) -> None:
    await engine.world.ready_task()
    await engine.store.backup(engine.target, silent)
    second = SqliteStore(engine.target, runner=InlineRunner(), clock=ManualClock(), lock=FileLock(engine.target))
    await second.open()
    await second.backup(engine.directory / "second.db", silent)
    await second.close()
    assert content(engine.directory / "second.db") == list(engine.world.versions)


# --- what is in the way --------------------------------------------------------------------------------------------


async def test_an_existing_file_is_never_overwritten(engine: Engine) -> None:
    engine.target.write_text("the backup of yesterday")
    for target in (engine.target, engine.directory / "engine.db", engine.directory):
        with pytest.raises(Conflict) as refused:
            await engine.store.backup(target, silent)
        assert refused.value.message == f"the backup {target} was not written: there is a file of that name"
    link = engine.directory / "link.db"
    link.symlink_to(engine.directory / "nothing.db")
    with pytest.raises(Conflict):
        await engine.store.backup(link, silent)
    assert engine.target.read_text() == "the backup of yesterday"
    assert engine.names() == {"copy.db", "link.db"}


async def test_a_file_that_appears_meanwhile_is_not_overwritten(engine: Engine, held: HeldCopy) -> None:
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def refused() -> None:
            message = await failure(held.copy, engine.copier, Conflict)
            assert message == f"the backup {engine.target} was not written: there is a file of that name"

        await held.stands()
        engine.target.write_text("somebody else's")
        held.go_on()
    assert engine.target.read_text() == "somebody else's"
    assert engine.names() == {"copy.db"}


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
async def test_the_log_of_another_database_would_spoil_the_backup(engine: Engine, suffix: str) -> None:
    log = Path(f"{engine.target}{suffix}")
    log.write_bytes(b"old")
    with pytest.raises(Conflict) as refused:
        await engine.store.backup(engine.target, silent)
    assert refused.value.message == f"the backup {engine.target} was not written: {log} is in the way"
    assert engine.names() == {log.name}


async def test_a_place_that_cannot_be_written_is_named(engine: Engine) -> None:
    for target, reason in (
        (engine.directory / "nowhere" / "copy.db", f"there is no directory {engine.directory / 'nowhere'}"),
        (engine.directory / ("x" * 250), "File name too long"),
    ):
        with pytest.raises(StoreUnavailable) as refused:
            await engine.store.backup(target, silent)
        assert refused.value.message == f"the backup {target} cannot be written: {reason}"
    assert engine.names() == set()


async def test_a_disk_that_becomes_full_leaves_nothing_behind(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await engine.fill()
    connect = backup._connect

    def connect_to_a_small_disk(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        if path.name.endswith(PARTIAL_SUFFIX):
            connection.execute("PRAGMA max_page_count = 100")
        return connection

    monkeypatch.setattr(backup, "_connect", connect_to_a_small_disk)
    with pytest.raises(StoreUnavailable, match=r"copy\.db cannot be written: database or disk is full"):
        await engine.store.backup(engine.target, silent)
    assert engine.names() == set()
    await engine.world.ready_task()


async def test_two_backups_to_one_place_do_not_mix(engine: Engine, held: HeldCopy) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.copier.run_sync, held.copy.run)
        await held.stands()
        second = FileCopy(engine.directory / "engine.db", engine.target, engine.store._begin_copy)
        with pytest.raises(Conflict, match="another one is being written there"):
            second.run()
        held.go_on()
    assert content(engine.target) == sorted(engine.world.versions)


async def test_a_file_that_another_engine_has_taken_is_not_backed_up(engine: Engine) -> None:
    with closing(sqlite3.connect(engine.directory / "engine.db", isolation_level=None)) as other:
        other.execute("UPDATE meta SET value = value + 1 WHERE name = 'owner'")
    with pytest.raises(StoreUnavailable, match="another engine has taken the file"):
        await engine.store.backup(engine.target, silent)
    assert engine.names() == set()


async def test_a_file_that_was_moved_is_not_backed_up(engine: Engine) -> None:
    path = engine.directory / "engine.db"
    path.rename(engine.directory / "moved.db")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"engine\.db was moved or deleted"):
            await engine.store.backup(engine.target, silent)
        path.write_bytes(b"")
    assert engine.names() == {"moved.db"}


async def test_a_store_that_is_not_open_has_nothing_to_back_up(tmp_path: Path) -> None:
    path = tmp_path / "engine.db"
    store = SqliteStore(path, runner=InlineRunner(), clock=ManualClock(), lock=FileLock(path))
    with pytest.raises(StoreUnavailable, match="is not open"):
        await store.backup(tmp_path / "copy.db", silent)
    assert list(tmp_path.iterdir()) == []


# --- ending early --------------------------------------------------------------------------------------------------


@pytest.fixture
def stands_at_first_slice(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Every copy stands still after its first slice until it is told to stop. → lets all of them go on."""
    may_go = threading.Event()
    stop = FileCopy.stop

    def stop_and_go(copy: FileCopy) -> None:
        stop(copy)
        may_go.set()

    class Standing(FileCopy):
        def __setattr__(self, name: str, value: object) -> None:
            object.__setattr__(self, name, value)
            if name == "fraction" and value:
                assert may_go.wait(60)

    monkeypatch.setattr("stellwerk.stores.sqlite.store.FileCopy", Standing)
    monkeypatch.setattr(FileCopy, "stop", stop_and_go)
    yield may_go.set
    may_go.set()


@pytest.mark.usefixtures("stands_at_first_slice")
async def test_a_cancelled_backup_leaves_nothing_behind(engine: Engine) -> None:
    await engine.fill()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.store.backup, engine.target, silent)
        while not engine.names():
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught
    assert engine.names() == set()
    await engine.world.ready_task()


@pytest.mark.usefixtures("stands_at_first_slice")
async def test_a_store_that_is_closed_ends_its_backups_first(engine: Engine) -> None:
    await engine.fill()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ends() -> None:
            with pytest.raises(StoreUnavailable, match=r"copy\.db was stopped before its end"):
                await engine.store.backup(engine.target, silent)

        while not engine.names():
            await trio.lowlevel.checkpoint()
        await engine.store.close()
        assert engine.names() == set()
    assert content(engine.directory / "engine.db") == sorted(engine.world.versions)


COPY_UNTIL_KILLED = """
import sqlite3, sys
from pathlib import Path
from stellwerk.stores.sqlite.backup import FileCopy

def first_slice():
    print(copy.fraction, flush=True)
    sys.stdin.read()

copy = FileCopy(Path(sys.argv[1]), Path(sys.argv[2]), lambda source: source.execute("BEGIN"))
copy.on_progress = first_slice
copy.run()
"""


async def test_what_a_killed_backup_left_is_no_backup_and_the_next_one_takes_its_place(engine: Engine) -> None:
    await engine.fill()
    command = [sys.executable, "-c", COPY_UNTIL_KILLED, str(engine.directory / "engine.db"), str(engine.target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert 0 < float(process.stdout.readline()) < 1
        with pytest.raises(Conflict, match="another one is being written there"):
            await engine.store.backup(engine.target, silent)
        process.kill()
        process.wait()
    assert engine.names() == {f"copy.db{PARTIAL_SUFFIX}"}
    await engine.world.ready_task()
    await engine.store.backup(engine.target, silent)
    assert engine.names() == {"copy.db"}
    assert content(engine.target) == sorted(engine.world.versions)


async def test_a_backup_that_was_killed_between_its_two_names_stays_whole(engine: Engine) -> None:
    await engine.world.ready_task()
    await engine.store.backup(engine.target, silent)
    engine.directory.joinpath(f"copy.db{PARTIAL_SUFFIX}").hardlink_to(engine.target)
    moved = engine.target.rename(engine.directory / "moved.db")
    await engine.world.ready_task()
    await engine.store.backup(engine.target, silent)
    assert engine.names() == {"copy.db", "moved.db"}
    assert [len(content(path)) for path in (moved, engine.target)] == [1, 2]


async def test_a_backup_that_another_process_ends_at_this_moment_stays_whole(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, lock = engine.directory / f"copy.db{PARTIAL_SUFFIX}", fcntl.flock
    partial.write_bytes(b"whole")

    def lock_too_late(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            partial.rename(engine.target)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    with pytest.raises(Conflict, match="another one is being written there"):
        await engine.store.backup(engine.target, silent)
    assert engine.target.read_bytes() == b"whole"


async def test_where_there_are_no_hard_links_the_backup_is_renamed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on FAT, or on some network shares."""

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    await engine.world.ready_task()
    await engine.store.backup(engine.target, silent)
    assert engine.names() == {"copy.db"}
    with pytest.raises(Conflict):
        await engine.store.backup(engine.target, silent)
