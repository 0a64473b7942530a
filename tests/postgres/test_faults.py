"""What each error of a real server means: one operation's fault, try again, in doubt, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest
import trio

from stellwerk.errors import InvalidInput, InvariantBroken, StoreUnavailable
from stellwerk.stores.postgres.faults import DATABASE_ERRORS, Fault, fault_of, unavailable
from stellwerk.testing.databases import PostgresAccess

STATEMENTS = [
    ("INSERT INTO numbers VALUES (1)", Fault.DATA),  # 23505, the key is there
    ("INSERT INTO numbers VALUES (NULL)", Fault.DATA),  # 23502
    ("INSERT INTO numbers VALUES (-1)", Fault.DATA),  # 23514, a check
    ("SELECT 1 / 0", Fault.DATA),  # 22012
    ("SELECT 9223372036854775807 + 1::bigint", Fault.DATA),  # 22003
    ("""SELECT '{"a":'::json""", Fault.DATA),  # 22P02
    ("SELECT (SELECT * FROM generate_series(1, 2))", Fault.DATA),  # 21000
    ("INSERT INTO names SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) AS n", Fault.DATA),  # 54000
    ("DO $$ BEGIN RAISE EXCEPTION 'no'; END $$", Fault.DATA),  # P0001
    ("SELECT pg_sleep(5)", Fault.REFUSED),  # 57014, statement_timeout
    ("SELECT * FROM nothing_of_this_name", Fault.REFUSED),  # 42P01
    ("SET TRANSACTION READ ONLY; INSERT INTO numbers VALUES (3)", Fault.REFUSED),  # 25006
    ("SELECT pg_terminate_backend(pg_backend_pid())", Fault.LOST),  # 57P01
    *(
        (f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$", fault)
        for code, fault in [
            ("40001", Fault.AGAIN),
            ("40P01", Fault.AGAIN),
            ("55P03", Fault.BLOCKED),
            ("0A000", Fault.AGAIN),
            ("08006", Fault.LOST),
            ("40003", Fault.LOST),
            ("57P02", Fault.LOST),
            ("53100", Fault.REFUSED),
            ("53200", Fault.REFUSED),
            ("53300", Fault.REFUSED),
            ("57P03", Fault.REFUSED),
            ("58030", Fault.REFUSED),
            ("XX000", Fault.REFUSED),
        ]
    ),
]


async def _error_of(work: Callable[[], Any]) -> Exception:
    try:
        await work()
    except Exception as error:
        return error
    raise AssertionError("no error")


@pytest.fixture(scope="module")
def numbers_dsn(postgres_server: PostgresAccess) -> Iterator[str]:
    """A database with a few tables: nothing that fails here changes them."""
    dsn = postgres_server.create_database(is_migrated=False)
    postgres_server.query("CREATE TABLE numbers (number int PRIMARY KEY CHECK (number > 0))", dsn=dsn)
    postgres_server.query("INSERT INTO numbers VALUES (1), (2)", dsn=dsn)
    postgres_server.query("CREATE TABLE names (name text UNIQUE)", dsn=dsn)
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture
async def link(open_link: Any, numbers_dsn: str) -> Any:
    return await open_link(numbers_dsn, command_seconds_max=1)


@pytest.mark.parametrize("statement, fault", STATEMENTS, ids=[statement[:60] for statement, _ in STATEMENTS])
async def test_errors_of_the_server(link: Any, statement: str, fault: Fault) -> None:
    error = await _error_of(lambda: link.write(lambda connection: connection.execute(statement)))
    assert fault_of(error) is fault
    assert isinstance(error, DATABASE_ERRORS)
    assert await link.written("SELECT 1") == 1


@pytest.mark.parametrize("value", ["text", 2**40, object(), float("nan")])
async def test_values_that_asyncpg_cannot_send(link: Any, value: object) -> None:
    error = await _error_of(lambda: link.written("INSERT INTO numbers VALUES ($1::int)", value))
    assert fault_of(error) is Fault.DATA


async def test_nul_and_lone_surrogates_are_the_operation_s_fault(link: Any) -> None:
    for text in ("a\0b", "a\ud800b"):
        with pytest.raises(Exception, match=r"surrogates|0x00") as refused:
            await link.written("INSERT INTO names VALUES ($1)", text)
        assert fault_of(refused.value) is Fault.DATA


async def test_of_two_in_a_deadlock_one_may_go_on_and_one_is_told(open_link: Any, link: Any, numbers_dsn: str) -> None:
    other = await open_link(numbers_dsn, command_seconds_max=4)
    faults: list[Fault] = []

    async def swap(which: Any, first: int, second: int) -> None:
        async def work(connection: Any) -> None:
            async with which.connections.transaction(connection):
                await connection.execute("SELECT FROM numbers WHERE number = $1 FOR UPDATE", first)
                await connection.execute("SELECT FROM pg_sleep(0.2)")
                await connection.execute("SELECT FROM numbers WHERE number = $1 FOR UPDATE", second)

        try:
            await which.write(work)
        except asyncpg.PostgresError as error:
            faults.append(fault_of(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(swap, link, 1, 2)
        nursery.start_soon(swap, other, 2, 1)
    assert faults in ([Fault.AGAIN], [Fault.BLOCKED])  # whichever limit is reached first


async def test_a_connection_that_is_closed_already_is_lost(link: Any) -> None:
    async def work(connection: Any) -> None:
        connection.terminate()
        await connection.execute("SELECT 1")

    assert fault_of(await _error_of(lambda: link.write(work))) is Fault.LOST
    assert await link.written("SELECT 1") == 1


async def test_a_plan_that_does_not_fit_the_schema_any_more_is_to_be_done_again(link: Any) -> None:
    """Another node has migrated while this one goes on."""

    async def work(connection: Any) -> None:
        await connection.fetch("SELECT * FROM names")
        async with connection.transaction():
            await link.connections.read(lambda other: other.execute("ALTER TABLE names ADD COLUMN size int"))
            await connection.fetch("SELECT * FROM names")

    assert fault_of(await _error_of(lambda: link.write(work))) is Fault.AGAIN


@pytest.mark.parametrize(
    "error, fault",
    [
        (TimeoutError(), Fault.LOST),
        (ConnectionResetError(), Fault.LOST),
        (asyncio.IncompleteReadError(b"", 1), Fault.MISTAKE),
        (StoreUnavailable("closed"), Fault.REFUSED),
        (InvariantBroken("ours"), Fault.MISTAKE),
        (InvalidInput("theirs"), Fault.MISTAKE),
        (MemoryError(), Fault.MISTAKE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_other_errors(error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault


async def test_reads_tell_that_the_database_is_unavailable_and_what_to_do(link: Any) -> None:
    def failing(code: str) -> Any:
        statement = f"DO $$ BEGIN RAISE EXCEPTION 'reason' USING ERRCODE = '{code}', DETAIL = 'a row'; END $$"
        return link.read(lambda connection: connection.execute(statement))

    for code, way_out in [("53100", "free some space"), ("53200", "out of memory"), ("25006", "promoted")]:
        with pytest.raises(StoreUnavailable, match=way_out) as unreadable:
            await failing(code)
        assert unreadable.value.message.startswith("PostgreSQL database stellwerk_")
        assert "a row" not in unreadable.value.message
    with pytest.raises(StoreUnavailable, match="longer than command_seconds_max"):
        await link.value("SELECT pg_sleep(5)")
    with pytest.raises(asyncpg.DataError):
        await link.value("SELECT $1::int", "text")


def test_what_is_unavailable_already_stays_as_it_is() -> None:
    error = StoreUnavailable("the reason")
    assert unavailable(error, "it") is error
