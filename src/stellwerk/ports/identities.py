"""Who may do what: identities, and the API keys by which the store knows them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import attrs

from stellwerk.ids import is_among
from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = ["ANYBODY", "ApiKeyRow", "Identity", "RevokeApiKey", "Scope", "StoreApiKey"]


class Scope(StrEnum):
    """What a caller may do. OPERATOR includes CLIENT; ADMIN includes everything."""

    WORKER = "worker"
    """Take external tasks and report what became of them."""
    CLIENT = "client"
    """Start instances, publish messages, complete user tasks, and read."""
    OPERATOR = "operator"
    """Deploy and delete definitions, cancel, repair, resolve incidents, prune, back up."""
    ADMIN = "admin"
    """Make and revoke API keys."""


_INCLUDED: dict[Scope, frozenset[Scope]] = {
    Scope.WORKER: frozenset({Scope.WORKER}),
    Scope.CLIENT: frozenset({Scope.CLIENT}),
    Scope.OPERATOR: frozenset({Scope.OPERATOR, Scope.CLIENT}),
    Scope.ADMIN: frozenset(Scope),
}


@frozen(kw_only=True)
class Identity:
    """A caller whose credential was checked. Each restriction is a tuple of names; one that ends with ``*`` stands for
    all that begin so. None: no restriction."""

    name: str
    """For people and logs."""
    scopes: tuple[Scope, ...]
    worker_ids: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    processes: tuple[str, ...] | None = None
    """Keys of processes."""
    expires_at_ms: InstantMs | None = None
    """Wall clock. None: it does not end by itself."""
    key_id: str | None = None
    """The API key that it came with."""

    def has(self, scope: Scope) -> bool:
        return any(scope in _INCLUDED[own] for own in self.scopes)

    @property
    def is_restricted(self) -> bool:
        """To some topics or processes."""
        return self.topics is not None or self.processes is not None

    def may_be_worker(self, worker_id: str) -> bool:
        return _matches(self.worker_ids, worker_id)

    def may_take(self, topic: str) -> bool:
        return _matches(self.topics, topic)

    def may_see(self, process_key: str) -> bool:
        return _matches(self.processes, process_key)


ANYBODY = Identity(name="anybody", scopes=tuple(Scope))
"""Everyone who can connect, where no credential is configured."""


@frozen(kw_only=True)
class ApiKeyRow:
    """A row of ``api_keys``. The key itself, ``sw_<key_id>_<secret>``, is shown once and never stored."""

    key_id: str
    secret_digest: str = attrs.field(repr=False)
    """SHA-256 of the secret, which has 256 random bits; hexadecimal."""
    identity: Identity
    created_at_ms: InstantMs
    """Wall clock, as are the others."""
    revoked_at_ms: InstantMs | None = None


@frozen
class StoreApiKey:
    """→ None. A key with this id must not exist."""

    row: ApiKeyRow


@frozen
class RevokeApiKey:
    """→ bool: False where there is no such key, or it was revoked before."""

    key_id: str
    now_ms: InstantMs


def _matches(allowed: Iterable[str] | None, name: str) -> bool:
    return allowed is None or is_among(name, allowed)
