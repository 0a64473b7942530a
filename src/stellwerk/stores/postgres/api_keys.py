"""The API keys in PostgreSQL. Each function takes the connection first."""

from __future__ import annotations

import asyncpg

from stellwerk.ports import ApiKeyRow
from stellwerk.stores.key_rows import API_KEY_COLUMNS, api_key_from_row
from stellwerk.stores.postgres.parameters import findable

__all__ = ["api_key", "api_keys", "has_api_keys"]

_KEYS = f"SELECT {', '.join(API_KEY_COLUMNS)} FROM stellwerk.api_keys"  # noqa: S608 -- constants
_ANY = "SELECT EXISTS (SELECT FROM stellwerk.api_keys)"


async def api_key(connection: asyncpg.Connection, key_id: str) -> ApiKeyRow | None:
    row = await connection.fetchrow(f"{_KEYS} WHERE key_id = $1", findable(key_id))
    return None if row is None else api_key_from_row(row)


async def api_keys(connection: asyncpg.Connection) -> list[ApiKeyRow]:
    return [api_key_from_row(row) for row in await connection.fetch(f"{_KEYS} ORDER BY created_at_ms, key_id")]


async def has_api_keys(connection: asyncpg.Connection) -> bool:
    """Any that was ever made."""
    return bool(await connection.fetchval(_ANY))
