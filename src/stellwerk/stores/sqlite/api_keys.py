"""The API keys in an SQLite file. Each function takes the connection first."""

from __future__ import annotations

import sqlite3

from stellwerk.ports import ApiKeyRow
from stellwerk.stores.key_rows import API_KEY_COLUMNS, api_key_from_row

__all__ = ["api_key", "api_keys", "has_api_keys"]

_KEYS = f"SELECT {', '.join(API_KEY_COLUMNS)} FROM api_keys"  # noqa: S608 -- constants
_ANY = "SELECT EXISTS (SELECT 1 FROM api_keys)"


def api_key(connection: sqlite3.Connection, key_id: str) -> ApiKeyRow | None:
    row = connection.execute(f"{_KEYS} WHERE key_id = ?", (key_id,)).fetchone()
    return None if row is None else api_key_from_row(row)


def api_keys(connection: sqlite3.Connection) -> list[ApiKeyRow]:
    found = connection.execute(f"{_KEYS} ORDER BY created_at_ms, key_id").fetchall()
    return [api_key_from_row(row) for row in found]


def has_api_keys(connection: sqlite3.Connection) -> bool:
    """Any that was ever made."""
    return bool(connection.execute(_ANY).fetchone()[0])
