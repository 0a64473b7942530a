"""Hints merged while they wait, and as the payloads of NOTIFY.

A payload is a JSON object in ASCII, so that it means the same in every encoding of a database. Fields that a reader
does not know are skipped: nodes of other versions send them, too. What cannot be said in another way gets a channel of
its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import msgspec

from stellwerk.instants import InstantMs
from stellwerk.ports import Hint, RevokedHint
from stellwerk.values import frozen

__all__ = ["PAYLOAD_BYTES_MAX", "GatheredHints", "Notice", "notice_of", "payloads_of"]

PAYLOAD_BYTES_MAX = 7_999
"""PostgreSQL refuses one of 8,000."""
_GATHERED_CHARACTERS_MAX = 64_000
_ITEM_CHARACTERS = 50
"""What an item takes beside its texts, in memory as on the wire."""
_REASONS = frozenset({"cancelled", "expired", "lost"})


class GatheredHints:
    """The sum of some hints, in bounded memory: what would be too much becomes ``missed``."""

    def __init__(self) -> None:
        self._is_missed = self._has_messages = False
        self._timer_due_at_ms: InstantMs | None = None
        # Dictionaries for sets that keep their order.
        self._topics: dict[str, None] = {}
        self._process_keys: dict[str, None] = {}
        self._instances: dict[str, None] = {}
        self._revoked: dict[RevokedHint, None] = {}
        self._characters = 0

    def __bool__(self) -> bool:
        return bool(
            self._is_missed
            or self._has_messages
            or self._timer_due_at_ms is not None
            or self._topics
            or self._process_keys
            or self._revoked
            or self._instances
        )

    def add(self, hint: Hint) -> None:
        self._is_missed |= hint.missed
        self._has_messages |= hint.messages
        due_at_ms = [due for due in (hint.timer_due_at_ms, self._timer_due_at_ms) if due is not None]
        self._timer_due_at_ms = min(due_at_ms, default=None)
        self._add_texts(self._topics, hint.topics)
        self._add_texts(self._process_keys, hint.process_keys)
        self._add_texts(self._instances, hint.instances)
        for revoked in hint.revoked:
            if revoked not in self._revoked:
                self._revoked[revoked] = None
                self._characters += len(revoked.session_id) + len(revoked.task_id) + _ITEM_CHARACTERS
        if self._characters > _GATHERED_CHARACTERS_MAX:
            self._clear(is_missed=True)

    def take(self) -> Hint:
        """All of it; the next sum begins."""
        hint = Hint(
            topics=tuple(self._topics),
            timer_due_at_ms=self._timer_due_at_ms,
            messages=self._has_messages,
            process_keys=tuple(self._process_keys),
            revoked=tuple(self._revoked),
            instances=tuple(self._instances),
            missed=self._is_missed,
        )
        self._clear(is_missed=False)
        return hint

    def _add_texts(self, texts: dict[str, None], more: Sequence[str]) -> None:
        for text in more:
            if text not in texts:
                texts[text] = None
                self._characters += len(text) + _ITEM_CHARACTERS

    def _clear(self, *, is_missed: bool) -> None:
        self._is_missed, self._has_messages = is_missed, False
        self._timer_due_at_ms = None
        for texts in (self._topics, self._process_keys, self._instances):
            texts.clear()
        self._revoked.clear()
        self._characters = 0


# --- payloads --------------------------------------------------------------------------------------------------------


@frozen
class Notice:
    sender: str
    hint: Hint


class _Revoked(msgspec.Struct, array_like=True):
    session_id: str
    task_id: str
    fence: int
    reason: str


class _Payload(msgspec.Struct, kw_only=True):
    sender: str
    topics: list[str] = []
    timer_due_at_ms: int | None = None
    messages: bool = False
    process_keys: list[str] = []
    revoked: list[_Revoked] = []
    instances: list[str] = []
    missed: bool = False


def notice_of(payload: str) -> Notice:
    """:raises ValueError: it is none of ours."""
    read = msgspec.json.decode(payload, type=_Payload)
    hint = Hint(
        topics=tuple(read.topics),
        timer_due_at_ms=read.timer_due_at_ms,
        messages=read.messages,
        process_keys=tuple(read.process_keys),
        revoked=tuple(
            RevokedHint(
                revoked.session_id,
                revoked.task_id,
                revoked.fence,
                revoked.reason if revoked.reason in _REASONS else "lost",
            )
            for revoked in read.revoked
        ),
        instances=tuple(read.instances),
        missed=read.missed,
    )
    return Notice(read.sender, hint)


def payloads_of(hint: Hint, sender: str) -> Sequence[str]:
    """As many as it takes. With an item that fits into none there is one that says ``missed``."""
    head: dict[str, object] = {"sender": sender}
    if hint.timer_due_at_ms is not None:
        head["timer_due_at_ms"] = hint.timer_due_at_ms
    if hint.messages:
        head["messages"] = True
    if hint.missed:
        head["missed"] = True
    room = PAYLOAD_BYTES_MAX - len(_text(head)) - _FIELD_NAMES_BYTES
    parts: list[dict[str, list[object]]] = [{}]
    left = room
    for field, item in _items(hint):
        needed = len(_text(item)) + 1
        if needed > room:
            return [_text({"sender": sender, "missed": True})]
        if needed > left:
            parts.append({})
            left = room
        parts[-1].setdefault(field, []).append(item)
        left -= needed
    return [_text({**head, **parts[0]}), *(_text({"sender": sender, **part}) for part in parts[1:])]


def _items(hint: Hint) -> Iterator[tuple[str, object]]:
    yield from (("topics", topic) for topic in hint.topics)
    yield from (("process_keys", key) for key in hint.process_keys)
    for revoked in hint.revoked:
        yield "revoked", [revoked.session_id, revoked.task_id, revoked.fence, revoked.reason]
    yield from (("instances", instance_id) for instance_id in hint.instances)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


_FIELD_NAMES_BYTES = len(_text({field: [] for field in ("topics", "process_keys", "revoked", "instances")}))
