"""The numbered migrations of the PostgreSQL schema, and which of them a database has seen.

A migration that was released is never edited: its checksum stands in every database. One that nodes of the versions
before can live with says so in its first line, ``-- readable from N``: whoever knows migration N may go on working.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from importlib import resources

import asyncpg

from stellwerk.errors import StoreUnavailable
from stellwerk.values import frozen

__all__ = ["AppliedMigration", "Migration", "known_migrations", "migrate"]

_LOCK = 0x7374656C6C776572
"""Key of the advisory lock that the nodes of one database take turns with: "stellwer"."""
_WAIT_SECONDS = 600
"""So long may a migration take, another node's before it included."""
_LOCK_SECONDS_MAX = 2
"""Whoever waits for the lock of a table makes everybody behind it wait too, the nodes that are at work among them."""
_PAUSE_SECONDS = 3.0
"""In which those get on with their work before it is tried again."""
_READABLE_FROM = re.compile(r"-- readable from (\d+)\n")

_REGISTER = "schema_migrations"
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'stellwerk')"
_CREATE_REGISTER = """
CREATE TABLE stellwerk.schema_migrations (
    number bigint PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    readable_from bigint NOT NULL
)"""
# Not to_regclass(): it goes on seeing no schema in the transaction that has waited while another node made it.
_TABLES = """
SELECT c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'stellwerk' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"""
_HAS_FUNCTIONS = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
               WHERE n.nspname = 'stellwerk')"""
_APPLIED = "SELECT number, checksum, readable_from FROM stellwerk.schema_migrations ORDER BY number"
_NOTE = "INSERT INTO stellwerk.schema_migrations (number, name, checksum, readable_from) VALUES ($1, $2, $3, $4)"


@frozen
class Migration:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def readable_from(self) -> int:
        """The oldest schema whose programs can work on this one."""
        told = _READABLE_FROM.match(self.text)
        return int(told[1]) if told else self.number


@frozen
class AppliedMigration:
    number: int
    checksum: str
    readable_from: int


def known_migrations() -> Sequence[Migration]:
    """In order; their files are named ``0001_what_it_does.sql``."""
    folder = resources.files("stellwerk.stores").joinpath("sql", "postgres")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [Migration(int(file.name[:4]), file.name[5:-4], file.read_text(encoding="utf-8")) for file in files]


async def migrate(connection: asyncpg.Connection, where: str, known: Sequence[Migration] | None = None) -> None:
    """Bring the schema up to date in one transaction; of several nodes that start at once, one does it.

    :param where: names the database in errors.
    :raises StoreUnavailable: the schema is foreign, was changed, or belongs to a later version that this one cannot
        work beside.
    """
    _check_encoding(connection, where)
    known = known_migrations() if known is None else known
    if await _is_up_to_date(connection, where, known):
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            await _migrate(connection, where, known)
            return
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            # A backup reads the tables, say, or a console has a transaction open.
            if loop.time() - began > _WAIT_SECONDS:
                raise StoreUnavailable(
                    f"{where} cannot be migrated: another session keeps its tables locked"
                ) from error
        await asyncio.sleep(_PAUSE_SECONDS)


async def _migrate(connection: asyncpg.Connection, where: str, known: Sequence[Migration]) -> None:
    """All or nothing."""
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(f"SET LOCAL statement_timeout = '{_WAIT_SECONDS}s'; SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_catalog.pg_advisory_xact_lock($1)", _LOCK, timeout=_WAIT_SECONDS)
        await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS_MAX}s'")
        for migration in await _missing(connection, where, known):
            await _apply(connection, migration)


def _check_encoding(connection: asyncpg.Connection, where: str) -> None:
    encoding = connection.get_settings().server_encoding
    if encoding != "UTF8":
        raise StoreUnavailable(
            f"{where} has the encoding {encoding}, which cannot hold all text:"
            " create it with createdb --encoding=UTF8 --template=template0"
        )


async def _is_up_to_date(connection: asyncpg.Connection, where: str, known: Sequence[Migration]) -> bool:
    """Most starts find nothing to do, and shall wait for nobody then."""
    async with connection.transaction(readonly=True):  # a pooler wants one around every statement
        if _REGISTER not in await _tables(connection):
            return False
        return not _unapplied(await _applied(connection, where), where, known)


async def _missing(connection: asyncpg.Connection, where: str, known: Sequence[Migration]) -> Sequence[Migration]:
    tables = await _tables(connection)
    if _REGISTER in tables:
        return _unapplied(await _applied(connection, where), where, known)
    if tables or await connection.fetchval(_HAS_FUNCTIONS):
        raise _foreign(where)
    if not await connection.fetchval(_HAS_SCHEMA):  # who may not create one in this database is given it, empty
        await connection.execute("CREATE SCHEMA stellwerk")
    await connection.execute(_CREATE_REGISTER)
    return known


async def _tables(connection: asyncpg.Connection) -> Collection[str]:
    return {row["relname"] for row in await connection.fetch(_TABLES)}


def _foreign(where: str) -> StoreUnavailable:
    return StoreUnavailable(f"{where} has a schema named stellwerk that is not one of this program")


async def _applied(connection: asyncpg.Connection, where: str) -> Mapping[int, AppliedMigration]:
    try:
        found = await connection.fetch(_APPLIED)
    except asyncpg.UndefinedColumnError:
        raise _foreign(where) from None
    return {row["number"]: AppliedMigration(**row) for row in found}


def _unapplied(applied: Mapping[int, AppliedMigration], where: str, known: Sequence[Migration]) -> Sequence[Migration]:
    newest = known[-1].number
    needed = max((migration.readable_from for migration in applied.values()), default=0)
    if needed > newest:
        raise StoreUnavailable(
            f"{where} was migrated by a later version of stellwerk"
            f" (its schema is readable from {needed}, this version knows {newest})"
        )
    for migration in known:
        if migration.number in applied and applied[migration.number].checksum != migration.checksum:
            raise StoreUnavailable(
                f"{where} has a schema {migration.number} that is not the one of this version of stellwerk"
            )
    return [migration for migration in known if migration.number not in applied]


async def _apply(connection: asyncpg.Connection, migration: Migration) -> None:
    await connection.execute(migration.text, timeout=_WAIT_SECONDS)
    await connection.execute(_NOTE, migration.number, migration.name, migration.checksum, migration.readable_from)
