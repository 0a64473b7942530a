"""The gate: who a caller is, by the credential that came along.

Without any credential configured it is open, and the engine listens to this machine only. It closes with the first API
key, and does not open again when all are revoked: nobody gets in by that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

import attrs
import trio

from stellwerk.errors import StellwerkError, StoreUnavailable, Unauthenticated
from stellwerk.ports import ANYBODY, ApiKeyRow, Clock, Identity, Store
from stellwerk.server.auth.credentials import credential_in
from stellwerk.server.auth.keys import is_right, looks_like_key, read_key

__all__ = ["KEY_SECONDS_MAX", "NOBODY", "Gate", "TokenVerifier"]

KEY_SECONDS_MAX = 2.0
"""For so long a key is believed to be as it was read, be it revoked or made meanwhile."""
_STALE_SECONDS_MAX = 300.0
_PATIENCE_SECONDS = 1.0
"""While the store does not answer a key is believed for so long, and each time waited for so long: nothing can be done
then but to look at figures."""
_KEYS_KEPT_MAX = 10_000
"""Also ids that do not exist: who guesses is to fill no memory."""

NOBODY = Identity(name="nobody", scopes=(), worker_ids=(), topics=(), processes=())
"""A caller without a credential, where nothing asks for one."""


class TokenVerifier(Protocol):
    @property
    def leeway_ms(self) -> int:
        """By how much a token may be used beyond its end."""

    async def identify(self, token: str) -> Identity:
        """:raises Unauthenticated: it is not good. StoreUnavailable: that cannot be told now."""


@attrs.frozen
class _Read:
    row: ApiKeyRow | None
    at: float
    """On the monotonic clock."""


class Gate:
    def __init__(
        self, store: Store, clock: Clock, *, may_be_open: bool = True, tokens: TokenVerifier | None = None
    ) -> None:
        """:param may_be_open: False: whoever can connect might be anybody."""
        self._store = store
        self._clock = clock
        self._tokens = tokens
        self.is_open = may_be_open and tokens is None
        """Everybody is `ANYBODY`."""
        self.takes_tokens = tokens is not None
        """There may be administrators without an API key."""
        self._is_unknown = False
        """Whether there are keys could not be told yet: nobody comes in meanwhile."""
        self._rows: OrderedDict[str, _Read] = OrderedDict()

    async def watch(self) -> None:
        """Close it soon after the first key was made, by whichever node. Requests do not wait for that: an engine whose
        database is away still tells how it is."""
        while self.is_open or self._is_unknown:
            await self._clock.sleep(KEY_SECONDS_MAX)
            try:
                await self.look()
            except StellwerkError:
                continue  # whoever wants something of the store is told

    async def look(self) -> None:
        """Close it if there is a key. :raises StoreUnavailable: that cannot be told now."""
        if self.is_open or self._is_unknown:
            if await self._store.has_api_keys():
                self.close()
            elif self._is_unknown:  # still: the first key may have been made here meanwhile
                self.is_open, self._is_unknown = True, False

    async def look_first(self) -> None:
        """Before anybody is let in. Where it cannot be told now whether there are keys, nobody is until it can."""
        try:
            await self.look()
        except StoreUnavailable:
            self.is_open, self._is_unknown = False, True

    def close(self) -> None:
        """For good: there is a key."""
        self.is_open = self._is_unknown = False

    def forget(self, key_id: str) -> None:
        """It was revoked, on this node."""
        self._rows.pop(key_id, None)

    async def identify(self, credential: str | None) -> Identity:
        """:raises Unauthenticated: it is missing or not good. StoreUnavailable: that cannot be told now."""
        if self._is_unknown:
            await self.look()
        if self.is_open:
            return ANYBODY
        if credential is None:
            raise Unauthenticated("a credential is needed: an API key or a token")
        if self._tokens is not None and not looks_like_key(credential):
            return await self._tokens.identify(credential)
        return await self._by_key(credential)

    async def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Identity:
        """Of a request with these headers. :raises Unauthenticated: and others, see `identify`."""
        return ANYBODY if self.is_open else await self.identify(credential_in(headers))

    async def check(self, identity: Identity) -> None:
        """Whether one that was identified before still is: its key may be revoked, or the gate closed meanwhile. What
        runs out by itself is not looked at: see `check_end`.

        :raises Unauthenticated: it is not.
        """
        if identity.key_id is not None:
            row = await self._row(identity.key_id)
            if row is None or row.revoked_at_ms is not None:
                raise Unauthenticated("the API key was revoked")
        elif identity == ANYBODY and not self.is_open:
            raise Unauthenticated("a credential is needed now: the first API key was made")

    def check_end(self, identity: Identity) -> None:
        """:raises Unauthenticated: the credential that it came with has run out."""
        if identity.expires_at_ms is None:
            return
        leeway_ms = 0 if identity.key_id is not None or self._tokens is None else self._tokens.leeway_ms
        if identity.expires_at_ms + leeway_ms <= self._clock.wall_ms():
            raise Unauthenticated("the credential has run out")

    async def _by_key(self, credential: str) -> Identity:
        key = read_key(credential)
        row = None if key is None else await self._row(key.key_id)
        if not is_right(row, credential if key is None else key.secret) or row is None:
            raise Unauthenticated("the API key is not valid")
        if row.revoked_at_ms is not None:
            raise Unauthenticated("the API key was revoked")
        if row.identity.expires_at_ms is not None and row.identity.expires_at_ms <= self._clock.wall_ms():
            raise Unauthenticated("the API key has expired")
        return attrs.evolve(row.identity, key_id=row.key_id)

    async def _row(self, key_id: str) -> ApiKeyRow | None:
        """As it was read a moment ago, or longer while the store does not answer: figures can be seen then, too."""
        read = self._rows.get(key_id)
        age = float("inf") if read is None else self._clock.monotonic() - read.at
        if read is not None and age <= KEY_SECONDS_MAX:
            return read.row
        if read is None or age > _STALE_SECONDS_MAX:
            return await self._read(key_id)
        with trio.move_on_after(_PATIENCE_SECONDS):
            try:
                return await self._read(key_id)
            except StoreUnavailable:
                return read.row
        return read.row

    async def _read(self, key_id: str) -> ApiKeyRow | None:
        now = self._clock.monotonic()
        row = await self._store.api_key(key_id)
        self._rows[key_id] = _Read(row, now)
        self._rows.move_to_end(key_id)
        if len(self._rows) > _KEYS_KEPT_MAX:
            self._rows.popitem(last=False)
        return row
