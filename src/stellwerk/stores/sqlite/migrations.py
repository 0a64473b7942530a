"""The numbered migrations of the SQLite schema, and which of them a file has seen.

A migration that was released is never edited: its checksum stands in every database.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from importlib import resources

from stellwerk.errors import StoreUnavailable
from stellwerk.values import frozen

__all__ = ["Migration", "known_migrations", "migrate"]

_CREATE_REGISTER = """
CREATE TABLE schema_migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL
)"""


@frozen
class Migration:
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self) -> Iterator[str]:
        statement = ""
        for line in self.text.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                yield statement
                statement = ""


def known_migrations() -> list[Migration]:
    """In order; their files are named ``0001_what_it_does.sql``."""
    folder = resources.files("stellwerk.stores").joinpath("sql", "sqlite")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [Migration(int(file.name[:4]), file.name[5:-4], file.read_text(encoding="utf-8")) for file in files]


def migrate(connection: sqlite3.Connection, where: str) -> None:
    """Bring the schema up to date, in one transaction.

    :raises StoreUnavailable: naming `where`, for a file of another program or of a later version of stellwerk.
    """
    known = known_migrations()
    connection.execute("BEGIN IMMEDIATE")
    try:
        applied = _applied(connection, where)
        _check(applied, known, where)
        for migration in known[len(applied) :]:
            _apply(connection, migration)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _applied(connection: sqlite3.Connection, where: str) -> list[tuple[int, str]]:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "schema_migrations" in tables:
        return connection.execute("SELECT number, checksum FROM schema_migrations ORDER BY number").fetchall()
    if tables:
        raise StoreUnavailable(f"{where} is an SQLite database, but not one of stellwerk")
    connection.execute(_CREATE_REGISTER)
    return []


def _check(applied: list[tuple[int, str]], known: list[Migration], where: str) -> None:
    if len(applied) > len(known):
        raise StoreUnavailable(
            f"{where} was written by a later version of stellwerk"
            f" (schema {applied[-1][0]}, this version knows {known[-1].number})"
        )
    for (number, checksum), migration in zip(applied, known, strict=False):
        if number != migration.number or checksum != migration.checksum:
            raise StoreUnavailable(f"{where} has a schema {number} that this version of stellwerk does not know")


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    for statement in migration.statements():
        connection.execute(statement)
    connection.execute(
        "INSERT INTO schema_migrations (number, name, checksum) VALUES (?, ?, ?)",
        (migration.number, migration.name, migration.checksum),
    )
