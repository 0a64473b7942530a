"""Rows of the databases' table ``api_keys`` as values, and back. The identity is one JSON object, which may grow."""

from __future__ import annotations

from collections.abc import Mapping

from stellwerk.json_values import dumps, loads
from stellwerk.ports import ApiKeyRow, Identity, Scope
from stellwerk.stores.rows import SqlRow

__all__ = ["API_KEY_COLUMNS", "api_key_from_row", "api_key_to_row"]

API_KEY_COLUMNS = ("key_id", "secret_digest", "identity", "created_at_ms", "revoked_at_ms")

_SCOPES = {scope.value: scope for scope in Scope}


def api_key_to_row(row: ApiKeyRow) -> SqlRow:
    identity = dumps(_identity_to_json(row.identity)).decode()
    return (row.key_id, row.secret_digest, identity, row.created_at_ms, row.revoked_at_ms)


def api_key_from_row(row: SqlRow) -> ApiKeyRow:
    identity = loads(row[2])
    assert isinstance(identity, dict)
    return ApiKeyRow(
        key_id=row[0],
        secret_digest=row[1],
        identity=_identity_from_json(identity),
        created_at_ms=row[3],
        revoked_at_ms=row[4],
    )


def _identity_to_json(identity: Identity) -> object:
    return {
        "name": identity.name,
        "scopes": [scope.value for scope in identity.scopes],
        "worker_ids": identity.worker_ids,
        "topics": identity.topics,
        "processes": identity.processes,
        "expires_at_ms": identity.expires_at_ms,
        "key_id": identity.key_id,
    }


def _identity_from_json(fields: Mapping[str, object]) -> Identity:
    """A scope that only a later version knows gives nothing here."""
    scopes, expires_at_ms, key_id = fields["scopes"], fields["expires_at_ms"], fields["key_id"]
    assert isinstance(scopes, list)
    assert expires_at_ms is None or isinstance(expires_at_ms, int)
    return Identity(
        name=str(fields["name"]),
        scopes=tuple(_SCOPES[scope] for scope in scopes if scope in _SCOPES),
        worker_ids=_names(fields["worker_ids"]),
        topics=_names(fields["topics"]),
        processes=_names(fields["processes"]),
        expires_at_ms=expires_at_ms,
        key_id=None if key_id is None else str(key_id),
    )


def _names(value: object) -> tuple[str, ...] | None:
    """None, which lifts the restriction, must have been written as such."""
    if value is None:
        return None
    assert isinstance(value, list)
    return tuple(map(str, value))
