"""What a session's worker may do, and until when: its credential on a connection that outlives it.

Before it runs out a fresh one is asked for; when it has run out the worker gets no more work, and a little later the
connection is closed. A credential that was revoked ends it at once. Leases stay until their deadlines in any case
(docs/worker-protocol, rule 12).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stellwerk.actors.bounds import shortened
from stellwerk.errors import CallerError, Forbidden, StellwerkError
from stellwerk.ports import Clock, Identity, Scope
from stellwerk.wire.messages import EngineMessage, NackCode, Reauthenticate

__all__ = ["Authority", "SessionCredential", "require_process", "require_topic", "require_worker", "require_worker_id"]

_CHECK_SECONDS = 2.0
"""A key that was revoked ends its sessions within so long, and what the authority keeps of it."""
_ASK_BEFORE_MS = 60_000
_ASK_BEFORE_SHARE = 3
"""So long before the end a fresh one is asked for, or a third of its time where that is less."""
_GRACE_MS = 10_000
"""Between the end of the credential and that of the connection: a fresh one may be late."""
_NAME_CHARS_MAX = 100


class Authority(Protocol):
    """Who knows the credentials."""

    async def identify(self, credential: str | None) -> Identity:
        """:raises Unauthenticated: it is missing or not good. StoreUnavailable: that cannot be told now."""

    async def check(self, identity: Identity) -> None:
        """:raises Unauthenticated: it was revoked meanwhile."""


class _Session(Protocol):
    """What its credential needs of a session."""

    closed: bool

    @property
    def topics(self) -> Sequence[str]: ...

    def send(self, message: EngineMessage) -> None: ...

    def close(self, code: str, message: str) -> None: ...

    def identity_changed(self) -> None: ...


class SessionCredential:
    def __init__(self, session: _Session, worker_id: str, identity: Identity, authority: Authority | None) -> None:
        """:param authority: None: nobody asks for credentials here."""
        self.identity = identity
        self.authority = authority
        self.has_ended = False
        """No more work; what is under way may be ended."""
        self._session = session
        self._worker_id = worker_id
        self._lifetime_ms = 0
        self._asked = False

    async def renew(self, token: str) -> None:
        """In the background: the worker has sent a fresh one."""
        assert self.authority is not None
        try:
            identity = await self.authority.identify(token)
            require_worker(identity, self._worker_id)
            for topic in self._session.topics:
                require_topic(identity, topic)
        except CallerError as error:
            self._session.close(error.code, error.message)
        except StellwerkError:
            self._asked = False  # it cannot be told now: ask again
        else:
            self.identity, self.has_ended, self._asked, self._lifetime_ms = identity, False, False, 0
            self._session.identity_changed()

    async def watch(self, clock: Clock) -> None:
        """Until the session ends."""
        assert self.authority is not None
        while not self._session.closed:
            wait_ms = self._look_at_end(clock.wall_ms())
            try:
                await self.authority.check(self.identity)
            except CallerError as error:
                self._session.close(error.code, error.message)
                return
            except StellwerkError:
                pass  # the store is away for a while: nothing is known against it
            await clock.sleep(min(_CHECK_SECONDS, wait_ms / 1000))

    def _look_at_end(self, now_ms: int) -> float:
        """→ for how many milliseconds there is nothing to do."""
        if self.identity.expires_at_ms is None:
            return float("inf")
        left_ms = self.identity.expires_at_ms - now_ms
        self._lifetime_ms = max(self._lifetime_ms, left_ms)
        ask_before_ms = min(_ASK_BEFORE_MS, self._lifetime_ms // _ASK_BEFORE_SHARE)
        if left_ms > ask_before_ms:
            return left_ms - ask_before_ms
        if not self._asked:
            self._asked = True
            self._session.send(Reauthenticate(max(0, left_ms)))
        if left_ms > 0:
            return left_ms
        self.has_ended = True
        if left_ms <= -_GRACE_MS:
            self._session.close(NackCode.UNAUTHENTICATED, "the credential has run out, and no fresh one came")
        return left_ms + _GRACE_MS


def require_worker(identity: Identity, worker_id: str) -> None:
    """:raises Forbidden: it may do no worker's work, or not under this name."""
    if not identity.has(Scope.WORKER):
        raise Forbidden(f"{_shown(identity.name)} may not work: that needs the scope {Scope.WORKER}")
    require_worker_id(identity, worker_id)


def require_worker_id(identity: Identity, worker_id: str) -> None:
    """:raises Forbidden: it may not work under this name."""
    if not identity.may_be_worker(worker_id):
        raise Forbidden(f'{_shown(identity.name)} may not be worker "{_shown(worker_id)}"')


def require_topic(identity: Identity, topic: str) -> None:
    """:raises Forbidden: it may not take tasks of this topic."""
    if not identity.may_take(topic):
        raise Forbidden(f'{_shown(identity.name)} may not take tasks of topic "{_shown(topic)}"')


def require_process(identity: Identity, process_key: str) -> None:
    """:raises Forbidden: it may neither see nor use this process."""
    if not identity.may_see(process_key):
        raise Forbidden(f'{_shown(identity.name)} may not use process "{_shown(process_key)}"')


def _shown(name: str) -> str:
    return shortened(name, _NAME_CHARS_MAX)
