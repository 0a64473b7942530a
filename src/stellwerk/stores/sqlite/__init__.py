"""The store on an SQLite file."""

from stellwerk.stores.sqlite.store import ExclusiveLock, SqliteStore

__all__ = ["ExclusiveLock", "SqliteStore"]
