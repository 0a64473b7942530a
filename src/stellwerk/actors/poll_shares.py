"""How the topics of one poll share its room, so that none starves behind the backlog of another.

At first each topic may take its share; when each has taken it, or has no more tasks, the rest is for whoever comes.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from stellwerk.actors.dispatcher import TopicDispatcher
from stellwerk.actors.leases import Subscription

__all__ = ["SharedSubscription", "end_shares", "share_out"]


@attrs.define(eq=False)
class SharedSubscription(Subscription):
    share: int | None = None
    """Tasks that it may take before the others had their turn; None: as many as there is room for."""
    share_bytes: int = 0
    """And of how many bytes, its last one apart."""
    _bytes_taken: int = 0

    def reserve(self, task_id: str, payload_bytes: int) -> None:
        self._bytes_taken += payload_bytes
        super().reserve(task_id, payload_bytes)

    @property
    def room(self) -> int:
        room = super().room
        if self.share is None or room == 0:
            return room
        return 0 if self.has_its_share else self.share - self.taken

    @property
    def has_its_share(self) -> bool:
        return self.share is not None and (self.taken >= self.share or self._bytes_taken >= self.share_bytes)


def share_out(parts: Sequence[tuple[SharedSubscription, TopicDispatcher]], max_tasks: int, bytes_max: int) -> None:
    """The same room for each. Places that cannot be divided go to the topics whose turn is the longest ago."""
    share, places = divmod(max_tasks, len(parts))
    turn = 1 + max(dispatcher.turn for _, dispatcher in parts)
    in_turn = sorted(parts, key=lambda part: part[1].turn)
    for number, (subscription, dispatcher) in enumerate(in_turn):
        subscription.share = share
        subscription.share_bytes = bytes_max // len(parts)
        if number < places:
            subscription.share += 1
            dispatcher.turn = turn


def end_shares(subscriptions: Sequence[SharedSubscription]) -> None:
    for subscription in subscriptions:
        subscription.share = None
