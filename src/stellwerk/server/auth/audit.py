"""The audit log: who was refused, and who did what an operator or administrator does. Never a credential."""

from __future__ import annotations

from collections.abc import Mapping

from stellwerk.ports import ANYBODY, Clock, Identity, Log, Scope
from stellwerk.server.auth.keys import without_secrets

__all__ = ["Audit"]

_EVENT = "audit"
_AUDITED = (Scope.OPERATOR, Scope.ADMIN)
_TEXT_CHARS_MAX = 200
_REFUSALS_MAX = 100
_REFUSALS_SECONDS = 10.0
"""At most so many refusals are told one by one in this time: who is refused must not fill the disk. The rest is
counted."""


class Audit:
    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._window_began = float("-inf")
        self._told = 0
        self._untold = 0

    def refused(
        self,
        code: str,
        reason: str,
        *,
        who: Identity | None,
        action: str,
        target: Mapping[str, object],
        peer: tuple[str, int] | None,
    ) -> None:
        """:param who: None: not known."""
        if self._may_tell():
            name = None if who is None else _shown(who.name)
            key = None if who is None else who.key_id
            self._log.warning(
                _EVENT,
                outcome="refused",
                who=name,
                key=key,
                action=action,
                target=_target_text(target),
                peer=_peer_text(peer),
                code=code,
                reason=_shown(reason),
            )

    def done(
        self,
        scope: Scope | None,
        status: int,
        *,
        who: Identity,
        action: str,
        target: Mapping[str, object],
        peer: tuple[str, int] | None,
    ) -> None:
        """An action that needs `scope` was answered. On an engine that is open to everybody only what concerns keys is
        told: there is nobody to name."""
        if scope not in _AUDITED or (who == ANYBODY and scope is not Scope.ADMIN):
            return
        self._log.info(
            _EVENT,
            outcome="done" if status < 400 else "failed",
            who=_shown(who.name),
            key=who.key_id,
            action=action,
            target=_target_text(target),
            peer=_peer_text(peer),
            status=status,
        )

    def _may_tell(self) -> bool:
        now = self._clock.monotonic()
        if now - self._window_began > _REFUSALS_SECONDS:
            if self._untold:
                self._log.warning(_EVENT, outcome="refused", untold=self._untold)
            self._window_began, self._told, self._untold = now, 0, 0
        if self._told >= _REFUSALS_MAX:
            self._untold += 1
            return False
        self._told += 1
        return True


def _target_text(target: Mapping[str, object]) -> str:
    return _shown(" ".join(f"{name}={value}" for name, value in target.items()))


def _peer_text(peer: tuple[str, int] | None) -> str | None:
    return None if peer is None else f"{peer[0]}:{peer[1]}"


def _shown(text: str) -> str:
    return without_secrets(text)[:_TEXT_CHARS_MAX]
