"""API keys: made, listed, revoked."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import Forbidden, InvalidInput, NotFound
from stellwerk.instants import InstantMs, to_rfc3339
from stellwerk.ports import ApiKeyRow, Identity, RevokeApiKey, Scope, StoreApiKey
from stellwerk.server.auth.gate import Gate
from stellwerk.server.auth.keys import digest_of, new_key
from stellwerk.server.auth.lockout import FIRST_KEY, LAST_ADMIN, can_make_keys, is_last_admin, refuse_unless_meant
from stellwerk.server.http import requests, shapes
from stellwerk.server.http.about import about
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint, check_lengths, identity_of

__all__ = ["KeyEndpoints", "NewKey"]

_NAMES_MAX = 1000
_EXPIRES_IN_MS_MAX = 100 * 365 * 24 * 3_600_000
_SCOPES = {"minItems": 1, "items": {"type": "string", "enum": [scope.value for scope in Scope]}}
"""What the document of the API says about them. They are checked where they are used."""


@attrs.frozen(kw_only=True)
class NewKey:
    """What a key allows. Of names, one that ends with ``*`` stands for all that begin so; null: no restriction."""

    name: str = attrs.field(metadata={"minLength": 1, "maxLength": 255})
    """For people."""
    scopes: tuple[str, ...] = attrs.field(metadata=_SCOPES)
    worker_ids: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    processes: tuple[str, ...] | None = None
    """Keys of processes."""
    expires_in_ms: int | None = None
    """Null: never."""
    force: bool = False
    """Also where it is the first key and can make no others, so that everybody is locked out."""


@attrs.frozen(kw_only=True)
class _Revocation:
    force: bool = False
    """Also the last key that can make others."""


class KeyEndpoints:
    def __init__(self, context: ApiContext, gate: Gate | None) -> None:
        self._context = context
        self._gate = gate
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("POST", "/keys", self.create, Scope.ADMIN),
            Endpoint("GET", "/keys", self.keys, Scope.ADMIN),
            Endpoint("DELETE", "/keys/{key_id}", self.revoke, Scope.ADMIN),
        )

    @about("Make an API key", shapes.CreatedKey, status=201, body=NewKey, codes=["conflict"])
    async def create(self, request: Request) -> Response:
        wanted = await self._context.body(request, NewKey)
        _check_unbound(request)
        ports = self._node.ports
        text, key = new_key(ports.entropy)
        now_ms = ports.clock.wall_ms()
        row = ApiKeyRow(
            key_id=key.key_id,
            secret_digest=digest_of(key.secret),
            identity=_identity_of(wanted, key.key_id, now_ms),
            created_at_ms=now_ms,
        )
        warning = await self._warning_of_first(row, is_meant=wanted.force)
        request.scope["stellwerk.target"] = {
            "key_id": key.key_id,
            "name": wanted.name,
            "scopes": ",".join(wanted.scopes),
        }
        await self._node.committer.submit(StoreApiKey(row))
        if self._gate is not None:
            self._gate.close()
        # Caches on the way must not keep what is shown only once.
        return answer({**_key_view(row), "key": text, "warning": warning}, 201, {"cache-control": "no-store"})

    async def _warning_of_first(self, row: ApiKeyRow, *, is_meant: bool) -> str | None:
        """:raises Conflict: it would lock everybody out."""
        if can_make_keys(row, row.created_at_ms) or await self._node.ports.store.has_api_keys():
            return None
        return refuse_unless_meant(FIRST_KEY, "$", is_meant=is_meant, takes_tokens=self._takes_tokens)

    @about("API keys, without the keys themselves", shapes.Keys)
    async def keys(self, request: Request) -> Response:
        self._context.query(request, requests.NoQuery)
        rows = await self._node.ports.store.api_keys()
        return await self._context.answer_rows("keys", rows, _key_view)

    @about("Revoke an API key", shapes.RevokedKey, query=_Revocation, codes=["conflict"])
    async def revoke(self, request: Request) -> Response:
        """Also one that was revoked before: it is what was wanted."""
        query = self._context.query(request, _Revocation)
        _check_unbound(request)
        key_id = request.path_params["key_id"]
        row = await self._node.ports.store.api_key(key_id)
        if row is None:
            raise NotFound("there is no API key with this id")
        warning = await self._warning_of_last(row, is_meant=query.force)
        await self._node.committer.submit(RevokeApiKey(key_id, self._node.ports.clock.wall_ms()))
        if self._gate is not None:
            self._gate.forget(key_id)
        return answer({"warning": warning})

    async def _warning_of_last(self, row: ApiKeyRow, *, is_meant: bool) -> str | None:
        """:raises Conflict: nobody could make keys any more."""
        ports = self._node.ports
        if not is_last_admin(row, await ports.store.api_keys(), ports.clock.wall_ms()):
            return None
        return refuse_unless_meant(LAST_ADMIN, "query", is_meant=is_meant, takes_tokens=self._takes_tokens)

    @property
    def _takes_tokens(self) -> bool:
        return self._gate is not None and self._gate.takes_tokens


def _check_unbound(request: Request) -> None:
    """:raises Forbidden: the caller is bound to some names, and a key that it made might be bound to none."""
    identity = identity_of(request)
    if identity.is_restricted or identity.worker_ids is not None:
        raise Forbidden(f"{identity.name} is bound to some workers, topics or processes: it makes and revokes no keys")


def _identity_of(wanted: NewKey, key_id: str, now_ms: InstantMs) -> Identity:
    """:raises InvalidInput: naming what is wrong."""
    check_lengths(name=wanted.name)
    if not wanted.name:
        raise InvalidInput("a key needs a name, for people @ $.name")
    expires_in_ms = wanted.expires_in_ms
    if expires_in_ms is not None and not 0 < expires_in_ms <= _EXPIRES_IN_MS_MAX:
        raise InvalidInput(f"1 to {_EXPIRES_IN_MS_MAX} ms @ $.expires_in_ms")
    scopes = _scopes_of(wanted.scopes)
    _check_needed(wanted, scopes)
    return Identity(
        name=wanted.name,
        scopes=scopes,
        worker_ids=_names_of("worker_ids", wanted.worker_ids),
        topics=_names_of("topics", wanted.topics),
        processes=_names_of("processes", wanted.processes),
        expires_at_ms=None if expires_in_ms is None else now_ms + expires_in_ms,
        key_id=key_id,
    )


def _scopes_of(given: Sequence[str]) -> tuple[Scope, ...]:
    known = [scope.value for scope in Scope]
    for index, name in enumerate(given):
        if name not in known:
            raise InvalidInput(f"a scope is one of {', '.join(known)} @ $.scopes[{index}]")
    if not given:
        raise InvalidInput("a key needs a scope at least @ $.scopes")
    return tuple(scope for scope in Scope if scope.value in given)


def _check_needed(wanted: NewKey, scopes: Sequence[Scope]) -> None:
    """:raises InvalidInput: a restriction of what the scopes do not allow anyway: something else was meant."""
    if not {Scope.WORKER, Scope.ADMIN} & set(scopes) and wanted.worker_ids is not None:
        raise InvalidInput("worker ids are for keys with the scope worker, which this one has not @ $.worker_ids")
    if not {Scope.WORKER, Scope.OPERATOR, Scope.ADMIN} & set(scopes) and wanted.topics is not None:
        raise InvalidInput("topics are for keys with the scope worker, which this one has not @ $.topics")


def _names_of(field: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not 1 <= len(names) <= _NAMES_MAX:
        raise InvalidInput(f"1 to {_NAMES_MAX} names, or null for no restriction @ $.{field}")
    for index, name in enumerate(names):
        check_lengths(**{field: name})
        if not name:
            raise InvalidInput(f"a name is not empty @ $.{field}[{index}]")
        if "*" in name[:-1]:
            raise InvalidInput(f'"{name}": * stands for the rest of a name, at its end only @ $.{field}[{index}]')
        if field == "processes" and ":" in name:
            raise InvalidInput(
                f'"{name}": processes are named by their keys, all versions together @ $.{field}[{index}]'
            )
    return tuple(names)


def _key_view(row: ApiKeyRow) -> dict[str, object]:
    identity = row.identity
    return {
        "key_id": row.key_id,
        "name": identity.name,
        "scopes": [scope.value for scope in identity.scopes],
        "worker_ids": identity.worker_ids,
        "topics": identity.topics,
        "processes": identity.processes,
        "created_at": to_rfc3339(row.created_at_ms),
        "expires_at": None if identity.expires_at_ms is None else to_rfc3339(identity.expires_at_ms),
        "revoked_at": None if row.revoked_at_ms is None else to_rfc3339(row.revoked_at_ms),
    }
