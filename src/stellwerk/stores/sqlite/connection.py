"""Opening an SQLite file: every way in which that can fail ends in one clear line."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal, TypeAlias

from stellwerk.errors import StoreUnavailable

__all__ = ["OpenFiles", "Synchronous", "check_content", "check_place", "open_connection"]

Synchronous: TypeAlias = Literal["FULL", "NORMAL"]
"""FULL: a commit is on the disk when it is answered. NORMAL: the last commits may be lost when the *machine* fails."""

_STATEMENTS_KEPT = 256
_CACHE_KIB = 64 * 1024
_PAGE_BYTES = 8_192
"""Of a new file. Rows of tasks and history have about 700 bytes: with 4,096 a commit costs half as much more."""
_CHECKPOINT_PAGES = 4_000
"""About 32 MB of write-ahead log between checkpoints: fewer flushes of the main file."""
_MAGIC = b"SQLite format 3\0"
_BUSY_MS = 5_000
"""How long a transaction waits for someone who looks at the file with another program."""


def check_place(path: Path) -> None:
    """Without opening anything: another engine of this process may have the file (see `FileLock`).

    :raises StoreUnavailable: when no database can be at `path`.
    """
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a directory, not a database file")
    if not path.parent.is_dir():
        raise StoreUnavailable(f"{path} cannot be created: there is no directory {path.parent}")
    if path.exists() and not path.is_file():
        raise StoreUnavailable(f"{path} is not a file")
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise StoreUnavailable(f"{path} cannot be read and written: permission denied")
    log = Path(f"{os.path.realpath(path)}-wal")
    if _size(path) == 0 and _size(log) > 0:
        # SQLite would take the database for a new one and delete the log, with the last commits of the old one.
        raise StoreUnavailable(f"{path} is missing or empty, but its log {log} is there: put back what belongs to it")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def check_content(path: Path) -> None:
    """So that a file that was named by mistake is left alone, with nothing beside it. For the holder of the lock only.

    :raises StoreUnavailable: when the file at `path` is no database, or has names that SQLite does not know of.
    """
    try:
        with path.open("rb") as file:
            is_database = file.read(len(_MAGIC)) in (b"", _MAGIC)
            names = os.fstat(file.fileno()).st_nlink
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from error
    if not is_database:
        raise StoreUnavailable(f"{path} cannot be used: file is not a database")
    if names > 1:
        # The write-ahead log lies beside one of them: opened by another, the last commits would be missing.
        raise StoreUnavailable(f"{path} has {names} names (hard links): remove all but the one it was used by")


class OpenFiles:
    """The database and the files that SQLite keeps beside it, as they were when it had just opened them."""

    def __init__(self, path: Path) -> None:
        real = os.path.realpath(path)
        self._found = [(name, os.stat(name)) for name in (real, f"{real}-wal", f"{real}-shm")]

    def lost(self) -> str | None:
        """The name of a file that is not where it was any more: what is written to it now, nobody will find.

        :raises OSError: when that cannot be seen.
        """
        for name, found in self._found:
            try:
                present = os.stat(name)
            except (FileNotFoundError, NotADirectoryError):
                return name
            if present.st_ino != found.st_ino or present.st_dev != found.st_dev:
                return name
        return None


def open_connection(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """:raises StoreUnavailable: naming the file, when it is no database or cannot be written."""
    try:
        # The one writer's thread opens, uses and closes it; only an engine without threads does so elsewhere.
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=_STATEMENTS_KEPT
        )
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error}") from error
    try:
        _configure(connection, path, synchronous)
    except sqlite3.Error as error:
        connection.close()
        raise StoreUnavailable(f"{path} cannot be used: {error}") from error
    except StoreUnavailable:
        connection.close()
        raise
    return connection


def _configure(connection: sqlite3.Connection, path: Path, synchronous: Synchronous) -> None:
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnavailable(f"{path} is in a place where SQLite cannot keep a write-ahead log (mode {mode})")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    connection.execute("PRAGMA temp_store = MEMORY")
