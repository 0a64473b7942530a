"""Whether the database answers, as all that asks it finds out; and one line in the log when it is away, not one from
each who has noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

import attrs

from stellwerk.errors import StoreUnavailable
from stellwerk.ports import Clock, Log

__all__ = ["AWAY", "BACK", "Answers", "Asking", "OutageLog"]

AWAY: Final = "the store does not work"
BACK: Final = "the store works again"
"""In the words of the committer, on every store."""

Asking = Literal["read", "write"]

SILENT_SECONDS_MAX: Final = 5.0
"""Who has not been answered for so long is not ready. A node asks at least once a second."""
_STEADY_SECONDS = 1.0
"""Who answers again so long after the last failure is back: a database that is half there is not told over and over."""


@attrs.define
class _Kind:
    """What is known of everything of one kind that is asked."""

    pending: int = 0
    asked_at: float | None = None
    """Since when nothing was answered that was asked. None: all was."""
    failed_at: float | None = None
    """The last failure since it last worked steadily."""
    has_answered: bool = False
    reason: str = ""


class Answers:
    """A database that is read-only answers who reads, so that both kinds have to be answered."""

    def __init__(self, clock: Clock, log: Log, where: str) -> None:
        """:param where: what each message about the database begins with."""
        self._clock = clock
        self._log = log
        self.where = where
        self._kinds: Mapping[Asking, _Kind] = {"read": _Kind(), "write": _Kind()}
        self._away_since: float | None = None

    def is_away(self) -> bool:
        return self._away_since is not None

    def trouble(self) -> str | None:
        """Why this node cannot serve: nothing of a kind was answered for some seconds, or ever. None: it can."""
        now = self._clock.monotonic()
        for kind in self._kinds.values():
            if kind.asked_at is None:
                continue
            is_broken = kind.failed_at is not None and not kind.has_answered
            if is_broken or now - kind.asked_at >= SILENT_SECONDS_MAX:
                return kind.reason or f"the database has not answered for {now - kind.asked_at:.0f} s"
        return None

    @contextmanager
    def asking(self, what: Asking) -> Iterator[None]:
        """Around whatever is asked. All but `StoreUnavailable` is an answer."""
        kind = self._kinds[what]
        if kind.asked_at is None:
            kind.asked_at = self._clock.monotonic()
        kind.pending += 1
        try:
            yield
        except StoreUnavailable as error:
            kind.pending -= 1
            self._failed(kind, error.message)
            raise
        except Exception:
            self._answered(kind)
            raise
        except BaseException:
            # Who does not wait any more has learned nothing.
            kind.pending -= 1
            if not kind.pending and kind.failed_at is None:
                kind.asked_at = None
            raise
        else:
            self._answered(kind)

    def _failed(self, kind: _Kind, reason: str) -> None:
        kind.failed_at = self._clock.monotonic()
        kind.reason = reason
        if self._away_since is None:
            self._away_since = kind.failed_at
            self._log.warning(AWAY, reason=reason)

    def _answered(self, kind: _Kind) -> None:
        now = self._clock.monotonic()
        kind.pending -= 1
        kind.has_answered = True
        kind.asked_at = now if kind.pending else None
        if kind.failed_at is None:
            return
        if now - kind.failed_at >= _STEADY_SECONDS:
            kind.failed_at, kind.reason = None, ""
        if self._away_since is not None and all(each.failed_at is None for each in self._kinds.values()):
            self._log.info(BACK, seconds=round(now - self._away_since, 1))
            self._away_since = None


class OutageLog:
    """The log of all others. While the database is away, what they cannot do for that is for who debugs."""

    def __init__(self, inner: Log, answers: Answers) -> None:
        self._inner = inner
        self._answers = answers

    def debug(self, event: str, **values: object) -> object:
        return self._inner.debug(event, **values)

    def info(self, event: str, **values: object) -> object:
        return self._inner.debug(event, **values) if event == BACK else self._inner.info(event, **values)

    def warning(self, event: str, **values: object) -> object:
        if event == AWAY or (self._answers.is_away() and self._is_of_the_outage(values)):
            return self._inner.debug(event, **values)
        return self._inner.warning(event, **values)

    def error(self, event: str, **values: object) -> object:
        return self._inner.error(event, **values)

    def exception(self, event: str, **values: object) -> object:
        return self._inner.exception(event, **values)

    def _is_of_the_outage(self, values: Mapping[str, object]) -> bool:
        return any(isinstance(value, str) and value.startswith(self._answers.where) for value in values.values())
