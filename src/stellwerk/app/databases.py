"""Which database a text names: a file, none at all, or PostgreSQL by a DSN."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from stellwerk.errors import InvalidInput, StoreUnavailable
from stellwerk.stores.postgres.dsn import PostgresConfig, parse_dsn

__all__ = [
    "MEMORY",
    "Database",
    "database_of",
    "extra_needed",
    "has_password",
    "has_schema",
    "is_postgres",
    "shown_database",
]

MEMORY: Literal[":memory:"] = ":memory:"
"""Instead of a file: nothing is kept beyond the process."""

Database: TypeAlias = Path | Literal[":memory:"] | PostgresConfig

_SCHEMES = ("postgresql://", "postgres://")
_FORM = "postgresql://user@host:5432/database"
_LIKE_POSTGRES = re.compile(
    r"(jdbc:)?postgres(ql)?:"
    r"|\s*(host|hostaddr|port|dbname|user|password|passfile|service|sslmode|application_name|connect_timeout|options"
    r"|target_session_attrs)\s*=",
    re.IGNORECASE,
)
"""What somebody means to be one, in other words: a file of such a name is ``./host=…``."""
_OTHER_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_EXTRA_MODULES = ("asyncpg", "trio_asyncio")


def is_postgres(db: str) -> bool:
    return db.startswith(_SCHEMES)


def database_of(db: str, listen_db: str | None = None) -> Database:
    """:param listen_db: a direct way to the database; `db` then leads through a pooler in transaction mode.

    :raises InvalidInput: one of them is malformed, or they do not go together. It holds no password.
    """
    if _LIKE_POSTGRES.match(db) and not is_postgres(db):
        raise InvalidInput(f"a database of PostgreSQL is named as {_FORM}, not in the forms of libpq or JDBC")
    if is_postgres(db):
        return PostgresConfig(dsn=db, listen_dsn=listen_db, is_pooled=listen_db is not None)
    if (other := _OTHER_SCHEME.match(db)) is not None:
        raise InvalidInput(f"{other[1]}://…: a database is a file, {MEMORY}, or postgresql://user@host/database")
    if listen_db is not None:
        raise InvalidInput("a direct way to the database is for postgresql://user@host/database through a pooler")
    return MEMORY if db == MEMORY else Path(db)


def has_password(db: str) -> bool:
    credentials = urlsplit(db).netloc.rpartition("@")[0]
    return is_postgres(db) and (":" in credentials or "password=" in db)


def shown_database(db: Database) -> str:
    """For people and logs, without user and password."""
    return str(parse_dsn(db.dsn)) if isinstance(db, PostgresConfig) else str(db)


def has_schema(config: PostgresConfig) -> bool:
    """Whether an engine has used the database. Blocks; outside of trio.

    :raises StoreUnavailable: it cannot be reached.
    """
    with extra_needed():
        from stellwerk.stores.postgres.connections import Connections
    connections = Connections(config, "a command", lambda: 0.5)

    async def look() -> bool:
        try:
            return await connections.read(_find_schema)
        finally:
            await connections.close()

    return asyncio.run(look())


async def _find_schema(connection: Any) -> bool:
    return bool(await connection.fetchval("SELECT to_regclass('stellwerk.schema_migrations') IS NOT NULL"))


@contextmanager
def extra_needed() -> Iterator[None]:
    """Around the imports of what only PostgreSQL needs.

    :raises StoreUnavailable: saying how to install it.
    """
    try:
        yield
    except ImportError as error:
        if error.name not in _EXTRA_MODULES:
            raise
        text = f"PostgreSQL needs {error.name}, which is not installed: pip install 'stellwerk[postgres]'"
        raise StoreUnavailable(text) from None
