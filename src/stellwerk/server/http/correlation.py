"""Messages that are to reach somebody before their request is answered, and whom they have reached."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

import attrs

from stellwerk.actors.node import Node
from stellwerk.actors.views import MessageStatus
from stellwerk.core.facts import MessageCorrelated
from stellwerk.errors import Conflict
from stellwerk.ids import derived_id
from stellwerk.ports import InstanceFilter, InstanceSummary

__all__ = ["Correlation", "Receiver"]

_LOOK_AGAIN_SECONDS = 0.01
_UNDER_WAY_SECONDS_MAX = 2.0
_HELD_UP_SECONDS_MAX = 20.0
"""What waits for it has not taken it by then, and perhaps cannot."""
_TTL_SECONDS_MIN = 1.0
"""However short its time to live is said to be."""
_TOLD_SECONDS_MAX = 0.25
"""The step that took it was told of by then, if this node did it."""
_STEPS_MAX = 1_000
_INSTANCES_MAX = 100
"""Among so many with one business key the one is looked for that a message has reached."""
_RESULT_STEPS_MAX = 10


@attrs.frozen
class Receiver:
    instance_id: str
    has_started: bool
    """The message started it."""


class Correlation:
    """One message: entered before it is published, so that no step is missed that may have taken it."""

    def __init__(self, node: Node, name: str, key: str) -> None:
        self._node = node
        self._clock = node.ports.clock
        self._name = name
        self._key = key
        self._steps: deque[tuple[str, int]] = deque(maxlen=_STEPS_MAX)

    def __enter__(self) -> Self:
        self._node.step_watchers.add(self._stepped)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._node.step_watchers.discard(self._stepped)

    def _stepped(self, instance_id: str, version: int) -> None:
        self._steps.append((instance_id, version))

    async def is_taken(self, message_id: str, *, wait_ms: int = 0) -> bool:
        """Until it has reached somebody, or cannot any more. Who was to get it when its time ended may be about to.

        :param wait_ms: its time to live. A message that is kept for longer was published before.
        :raises Conflict: that is not known, and is not going to be soon.
        """
        awaited_until = self._clock.monotonic()
        ends_at = awaited_until + _TTL_SECONDS_MIN + wait_ms / 1000
        while (view := await self._node.message(message_id)).status is not MessageStatus.CORRELATED:
            now = self._clock.monotonic()
            if view.is_awaited:
                awaited_until = now + _UNDER_WAY_SECONDS_MAX
            if view.status is not MessageStatus.WAITING and now >= awaited_until:
                return False
            if now >= ends_at + (_HELD_UP_SECONDS_MAX if view.is_awaited else _UNDER_WAY_SECONDS_MAX):
                raise _unknown(message_id, is_awaited=view.is_awaited)
            await self._clock.sleep(_LOOK_AGAIN_SECONDS)
        return True

    async def receiver(self, message_id: str, instance_id: str | None) -> Receiver | None:
        """Of a message that is taken. None: that cannot be told, another node gave it to an instance whose business key
        is not the message's, or it was some time ago.

        :param instance_id: of the only instance that it was for.
        """
        if instance_id is not None:
            return Receiver(instance_id, has_started=False)
        started = await self._started_by(message_id)
        if started is not None:
            return Receiver(started.instance_id, has_started=True)
        reached = await self._stepped_with(message_id) or await self._with_business_key(message_id)
        return None if reached is None else Receiver(reached, has_started=False)

    async def _started_by(self, message_id: str) -> InstanceSummary | None:
        """The id of such an instance follows from the message's."""
        for row in await self._node.definitions():
            if self._name in row.start_messages:
                instance_id = derived_id("message", message_id, row.definition_id)
                summary = await self._node.ports.store.instance(instance_id)
                if summary is not None:
                    return summary
        return None

    async def _stepped_with(self, message_id: str) -> str | None:
        """Among the instances that this node has moved meanwhile. The step is told a moment after it is durable."""
        until = self._clock.monotonic() + _TOLD_SECONDS_MAX
        while True:
            while self._steps:
                instance_id, version = self._steps.pop()
                if await self._has_taken(message_id, instance_id, after=version - 1, limit=1):
                    return instance_id
            if self._clock.monotonic() >= until:
                return None
            await self._clock.sleep(_LOOK_AGAIN_SECONDS)

    async def _with_business_key(self, message_id: str) -> str | None:
        """Where files have no correlation keys of their own, the key is the business key."""
        if not self._key:
            return None
        for summary in await self._node.instances(InstanceFilter(business_key=self._key), limit=_INSTANCES_MAX):
            first = max(0, summary.version - _RESULT_STEPS_MAX)
            if await self._has_taken(message_id, summary.instance_id, after=first, limit=_RESULT_STEPS_MAX):
                return summary.instance_id
        return None

    async def _has_taken(self, message_id: str, instance_id: str, *, after: int, limit: int) -> bool:
        steps = await self._node.ports.store.history(instance_id, after=after, limit=limit)
        facts = (fact for step in steps for fact in step.facts)
        return any(isinstance(fact, MessageCorrelated) and fact.message_id == message_id for fact in facts)


def _unknown(message_id: str, *, is_awaited: bool) -> Conflict:
    if is_awaited:
        return Conflict(f"what waits for the message {message_id} has not taken it yet; it still may")
    return Conflict(f"the message {message_id} was published before and is kept: it may reach somebody who comes later")
