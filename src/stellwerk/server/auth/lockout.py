"""How keys lock everybody out: when nobody is left who may make others."""

from __future__ import annotations

from collections.abc import Iterable

from stellwerk.errors import Conflict
from stellwerk.instants import InstantMs
from stellwerk.ports import ApiKeyRow, Scope

__all__ = ["FIRST_KEY", "LAST_ADMIN", "can_make_keys", "is_last_admin", "refuse_unless_meant"]

FIRST_KEY = (
    "the first API key closes the engine to everybody without one, and this one can make no others: that takes the "
    "scope admin, bound to no worker ids, topics or processes"
)
LAST_ADMIN = "this is the last API key that can make and revoke others"
_WAYS_OUT = {FIRST_KEY: "make such a one first", LAST_ADMIN: "make another with the scope admin first"}


def can_make_keys(row: ApiKeyRow, now_ms: InstantMs) -> bool:
    identity = row.identity
    is_good = row.revoked_at_ms is None and (identity.expires_at_ms is None or identity.expires_at_ms > now_ms)
    is_bound = identity.is_restricted or identity.worker_ids is not None
    return is_good and not is_bound and identity.has(Scope.ADMIN)


def is_last_admin(row: ApiKeyRow, rows: Iterable[ApiKeyRow], now_ms: InstantMs) -> bool:
    """:param rows: all there are."""
    others = (other for other in rows if other.key_id != row.key_id)
    return can_make_keys(row, now_ms) and not any(can_make_keys(other, now_ms) for other in others)


def refuse_unless_meant(what: str, where: str, *, is_meant: bool, takes_tokens: bool) -> str:
    """→ a warning.

    :param where: in the request one can say that it is meant.
    :param takes_tokens: an administrator may come with one.
    :raises Conflict: everybody would be locked out.
    """
    if takes_tokens:
        return f"{what}; from now on only a token with that scope can"
    if not is_meant:
        raise Conflict(f"{what}; {_WAYS_OUT[what]}, or say that you mean it @ {where}.force")
    return f"{what}; from now on only `stellwerk keys create --db …`, at the database, makes one that can"
