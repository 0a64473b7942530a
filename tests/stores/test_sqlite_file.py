"""What can be wrong with a database file, and what is then said."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stellwerk.core.changes import RowChanges
from stellwerk.errors import InvariantBroken, StoreUnavailable
from stellwerk.ports import Committed, TaskQuery
from stellwerk.stores.sqlite import SqliteStore
from stellwerk.stores.sqlite.migrations import known_migrations
from stellwerk.system.file_lock import FileLock
from stellwerk.system.threads import InlineRunner
from stellwerk.testing.store_contract import ManualClock, StoreWorld
from stellwerk.testing.store_contract.world import new_task

MakeStore = Callable[[Path], SqliteStore]


@pytest.fixture
async def make_store() -> AsyncIterator[MakeStore]:
    made: list[SqliteStore] = []

    def make(path: Path) -> SqliteStore:
        made.append(SqliteStore(path, runner=InlineRunner(), clock=ManualClock(), lock=FileLock(path)))
        return made[-1]

    yield make
    for store in made:
        await store.close()


async def refusal(store: SqliteStore) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        await store.open()
    assert "\n" not in refused.value.message
    return refused.value.message


async def test_a_file_that_is_no_database_is_refused_and_stays_as_it_was(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear engine, " * 1_000)
    assert await refusal(make_store(path)) == f"{path} cannot be used: file is not a database"
    assert path.read_text() == "Dear engine, " * 1_000


async def test_another_programs_database_is_refused(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "photos.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE photos (id)")
    other.close()
    assert await refusal(make_store(path)) == f"{path} is an SQLite database, but not one of stellwerk"


async def test_a_directory_is_refused(tmp_path: Path, make_store: MakeStore) -> None:
    assert await refusal(make_store(tmp_path)) == f"{tmp_path} is a directory, not a database file"


async def test_a_place_that_does_not_exist_is_refused(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "nowhere" / "engine.db"
    assert await refusal(make_store(path)) == f"{path} cannot be created: there is no directory {path.parent}"


async def test_a_log_without_its_database_is_left_alone(tmp_path: Path, make_store: MakeStore) -> None:
    path, log, moved = tmp_path / "engine.db", tmp_path / "engine.db-wal", tmp_path / "moved.db"
    store = make_store(path)
    await store.open()
    await StoreWorld(store, ManualClock()).step("acknowledged")
    path.rename(moved)
    await store.close()
    expected = f"{path} is missing or empty, but its log {log} is there: put back what belongs to it"
    assert await refusal(make_store(path)) == expected
    path.touch()
    assert await refusal(make_store(path)) == expected
    moved.replace(path)
    again = make_store(path)
    await again.open()
    assert await again.instance("acknowledged") is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
async def test_a_file_without_permission_is_refused(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    path.touch(mode=0o400)
    assert "permission denied" in await refusal(make_store(path))


async def test_a_damaged_database_is_refused(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    store = make_store(path)
    await store.open()
    await store.close()
    body = bytearray(path.read_bytes())
    body[100:8_192] = b"\xff" * (8_192 - 100)
    path.write_bytes(body)
    assert str(path) in await refusal(make_store(path))


async def test_a_database_of_a_later_version_is_refused(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    store = make_store(path)
    await store.open()
    await store.close()
    later = known_migrations()[-1].number + 1
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO schema_migrations VALUES (?, 'later', 'x')", (later,))
    database.close()
    message = await refusal(make_store(path))
    assert message.startswith(f"{path} was written by a later version of stellwerk (schema {later}, ")


async def test_a_changed_migration_is_refused(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    store = make_store(path)
    await store.open()
    await store.close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE schema_migrations SET checksum = 'other'")
    database.close()
    assert "a schema 1 that this version of stellwerk does not know" in await refusal(make_store(path))


def test_migrations_are_numbered_without_gaps() -> None:
    numbers = [migration.number for migration in known_migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_l3_the_table_has_the_required_columns_and_partial_indexes(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    store = make_store(path)
    await store.open()
    await store.close()
    database = sqlite3.connect(path)
    columns = {row[1] for row in database.execute("PRAGMA table_info(external_tasks)")}
    assert columns >= {
        *("task_id", "token_id", "process_instance", "task_type", "state", "lock_owner", "lock_expire_at"),
        *("retries", "error_message", "variables", "created_at", "updated_at"),
    }
    indexes = [row[0] for row in database.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql NOTNULL")]
    assert any("(task_type" in index and "WHERE state = 'READY'" in index for index in indexes)
    assert any("(lock_expire_at" in index and "WHERE state = 'LOCKED'" in index for index in indexes)
    database.close()


# --- the exclusive lock --------------------------------------------------------------------------------------------


async def test_a_second_engine_is_refused_and_told_who_has_the_file(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    first = make_store(path)
    await first.open()
    assert await refusal(make_store(path)) == f"{path} is in use by another engine (pid {os.getpid()})"
    other_name = tmp_path / "link.db"
    other_name.symlink_to(path)
    assert "is in use by another engine" in await refusal(make_store(other_name))
    await first.close()
    await make_store(path).open()


async def test_a_second_engine_is_refused_under_every_name_of_the_file(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    await make_store(path).open()
    other_name = tmp_path / "hard.db"
    other_name.hardlink_to(path)
    assert await refusal(make_store(other_name)) == f"{other_name} is in use by another engine (pid {os.getpid()})"
    assert f"{other_name} is in use by another process (pid {os.getpid()})" in lock_elsewhere(other_name)


async def test_no_file_can_be_removed_to_let_a_second_engine_in(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    await make_store(path).open()
    for beside in tmp_path.iterdir():
        if beside != path:
            beside.unlink()
    assert f"{path} is in use by another process (pid {os.getpid()})" in lock_elsewhere(path)


async def test_a_refused_engine_leaves_the_first_ones_files_in_place(tmp_path: Path, make_store: MakeStore) -> None:
    """Had it closed a descriptor of the file, SQLite's locks were gone, and the next reader removed the log."""
    path = tmp_path / "engine.db"
    first = make_store(path)
    await first.open()
    await refusal(make_store(path))
    look = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM meta').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", look, str(path)], check=True)
    await StoreWorld(first, ManualClock()).ready_task()
    assert {file.name for file in tmp_path.iterdir()} == {"engine.db", "engine.db-wal", "engine.db-shm"}


async def test_a_file_with_two_names_is_refused_while_its_log_may_belong_to_the_other(
    tmp_path: Path, make_store: MakeStore
) -> None:
    path, other_name = tmp_path / "engine.db", tmp_path / "hard.db"
    store = make_store(path)
    await store.open()
    await store.close()
    other_name.hardlink_to(path)
    assert await refusal(make_store(other_name)) == (
        f"{other_name} has 2 names (hard links): remove all but the one it was used by"
    )
    other_name.unlink()
    await make_store(path).open()


async def test_an_engine_that_another_has_replaced_writes_no_more(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    store = make_store(path)
    await store.open()
    world = StoreWorld(store, ManualClock())
    await world.step("before")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("UPDATE meta SET value = value + 1 WHERE name = 'owner'")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"another engine has taken the file .*engine\.db"):
            await world.step("after")
    assert other.execute("SELECT instance_id FROM instances").fetchall() == [("before",)]
    other.close()
    await world.reopen()
    await world.step("after")


def lock_elsewhere(path: Path) -> str:
    """What another process is told that wants to lock the file."""
    command = [sys.executable, "-c", HOLD_THE_FILE, str(path)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True).stderr


HOLD_THE_FILE = """
import sys
from stellwerk.system.file_lock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


async def test_the_lock_dies_with_its_process_also_by_sigkill(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    command = [sys.executable, "-c", HOLD_THE_FILE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert await refusal(make_store(path)) == (
            f"{path} is in use by another process (pid {process.pid}): an engine, or another stellwerk command"
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
    await make_store(path).open()


async def test_a_store_that_is_not_open_says_so(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store(tmp_path / "engine.db")
    for call in (store.transact([]), store.task("t")):
        with pytest.raises(StoreUnavailable, match="is not open"):
            await call


# --- failures while it is open -------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_the_whole_batch_and_nothing_is_lost(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store(tmp_path / "engine.db")
    await store.open()
    world = StoreWorld(store, ManualClock())
    before = await world.ready_task()
    connection = store._opened()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    large = world.changeset("large", RowChanges(new_tasks=(new_task("t", variables=b'"' + b"x" * 500_000 + b'"'),)))
    with pytest.raises(StoreUnavailable, match="full"):
        await world.transact(world.changeset("small"), large)
    assert await store.instance("small") is None
    connection.execute("PRAGMA max_page_count = 1000000")
    outcomes = await world.transact(world.changeset("small"), large)
    assert [type(outcome) for outcome in outcomes] == [Committed, Committed]
    assert {task.task_id for task in await world.fetch()} == {before, "t"}


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_nothing_is_acknowledged_into_a_file_that_was_moved_or_deleted(
    tmp_path: Path, make_store: MakeStore, suffix: str, is_replaced: bool
) -> None:
    path = tmp_path / "engine.db"
    store = make_store(path)
    await store.open()
    world = StoreWorld(store, ManualClock())
    await world.ready_task()
    gone = Path(f"{path}{suffix}")
    gone.rename(tmp_path / "moved")
    if is_replaced:
        gone.write_bytes((tmp_path / "moved").read_bytes())
    expected = f"the database file {gone} was moved or deleted while it was in use"
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as refused:
            await world.ready_task()
        assert refused.value.message == expected


async def test_what_was_acknowledged_outlives_its_log(tmp_path: Path, make_store: MakeStore) -> None:
    path = tmp_path / "engine.db"
    store = make_store(path)
    await store.open()
    world = StoreWorld(store, ManualClock())
    await world.step("acknowledged")
    Path(f"{path}-wal").unlink()
    with pytest.raises(StoreUnavailable, match="deleted"):
        await world.step("refused")
    copy = tmp_path / "as-after-sigkill.db"
    copy.write_bytes(path.read_bytes())
    database = sqlite3.connect(copy)
    assert ("acknowledged",) in database.execute("SELECT instance_id FROM instances").fetchall()
    database.close()


class TooLarge(bytes):
    """Memory does not suffice to convert it."""

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise MemoryError("too large")


async def test_an_unforeseen_failure_of_one_operation_spares_its_neighbours(
    tmp_path: Path, make_store: MakeStore
) -> None:
    store = make_store(tmp_path / "engine.db")
    await store.open()
    world = StoreWorld(store, ManualClock())
    bad = world.changeset("bad", RowChanges(new_tasks=(new_task("t", variables=TooLarge(b"{}")),)))
    outcomes = await world.transact(world.changeset("first"), bad, world.changeset("last"))
    assert [type(outcome) for outcome in outcomes] == [Committed, InvariantBroken, Committed]
    assert await store.instance("bad") is None
    assert await store.task("t") is None


async def test_another_program_may_back_the_database_up(tmp_path: Path, make_store: MakeStore) -> None:
    path, copy = tmp_path / "engine.db", tmp_path / "backup.db"
    store = make_store(path)
    await store.open()
    world = StoreWorld(store, ManualClock())
    task_id = await world.ready_task()
    source, target = sqlite3.connect(path), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    await world.ready_task()
    restored = make_store(copy)
    await restored.open()
    assert [task.task_id for task in await restored.tasks()] == [task_id]


async def test_a_writer_of_another_program_delays_but_a_reader_never_does(
    tmp_path: Path, make_store: MakeStore
) -> None:
    path = tmp_path / "engine.db"
    store = make_store(path)
    await store.open()
    world = StoreWorld(store, ManualClock())
    await world.ready_task()
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM external_tasks").fetchone() == (1,)
    await world.ready_task()
    assert reader.execute("SELECT count(*) FROM external_tasks").fetchone() == (1,)
    reader.close()
    store._opened().execute("PRAGMA busy_timeout = 0")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        await world.ready_task()
    writer.close()
    assert len(await world.fetch()) == 2


async def test_rule_19_the_high_water_mark_is_in_the_file_with_each_write(
    tmp_path: Path, make_store: MakeStore
) -> None:
    path = tmp_path / "engine.db"
    store = make_store(path)
    await store.open()
    committed = await StoreWorld(store, ManualClock()).step("i")
    assert committed.now_ms > 0
    reader = sqlite3.connect(path)
    assert reader.execute("SELECT value FROM meta WHERE name = 'lease_clock_ms'").fetchone() == (committed.now_ms,)
    reader.close()


# --- query plans ---------------------------------------------------------------------------------------------------


async def test_hot_statements_use_their_index(tmp_path: Path, make_store: MakeStore) -> None:
    store = make_store(tmp_path / "engine.db")
    await store.open()
    seen: list[str] = []
    store._opened().set_trace_callback(seen.append)
    world = StoreWorld(store, ManualClock())
    task = await world.leased_task()
    await world.fetch("nothing")
    await world.expire()
    await store.ready_tasks("payment", 10)
    await store.due_timers(0, 10)
    await store.draining_ready(10)
    await store.tasks(TaskQuery(instance_id=task.instance_id))
    await store.matched_messages(0, 10)
    await world.commit(world.completion(task))
    store._opened().set_trace_callback(None)
    statements = {line for line in seen if line.lstrip().startswith(("SELECT", "UPDATE", "DELETE"))}
    assert len(statements) > 10
    for statement in statements:
        plan = [row[3] for row in store._opened().execute(f"EXPLAIN QUERY PLAN {statement}")]
        scans = [line for line in plan if line.startswith("SCAN") and "INDEX" not in line]
        assert scans == [], statement


async def test_the_scan_for_ready_tasks_reads_in_the_indexes_order(tmp_path: Path, make_store: MakeStore) -> None:
    from stellwerk.stores.sqlite import tables

    store = make_store(tmp_path / "engine.db")
    await store.open()
    plan = store._opened().execute(f"EXPLAIN QUERY PLAN {tables._SELECT_READY}", ("payment", 10)).fetchall()
    assert [row[3] for row in plan] == ["SEARCH external_tasks USING INDEX external_tasks_ready (task_type=?)"]
    plan = store._opened().execute(f"EXPLAIN QUERY PLAN {tables._SELECT_PAST_DUE}", (1, 0, 10)).fetchall()
    assert [row[3] for row in plan] == ["SEARCH external_tasks USING INDEX external_tasks_locked (lock_expire_at<?)"]
    plan = store._opened().execute(f"EXPLAIN QUERY PLAN {tables._SELECT_LEASES_OF_BOOT}", ("b",)).fetchall()
    assert [row[3] for row in plan] == ["SCAN external_tasks USING COVERING INDEX external_tasks_locked"]
