"""Tasks that are leased as they are created, because a worker has room at that moment (consistency.md 10)."""

from __future__ import annotations

from collections.abc import Sequence

from stellwerk.actors.doubts import LeaseDoubts
from stellwerk.actors.leases import Subscription
from stellwerk.actors.topics import Topics
from stellwerk.core.changes import NewTask
from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import BirthLease

__all__ = ["TopicBirths"]


class TopicBirths:
    """Reserves room when a step is decided; the commit fills it, a refusal gives it back."""

    def __init__(self, topics: Topics, doubts: LeaseDoubts) -> None:
        self._topics = topics
        self._doubts = doubts
        self._reserved: dict[str, Subscription] = {}

    def reserve(self, tasks: Sequence[NewTask]) -> tuple[BirthLease, ...]:
        leases = []
        for task in tasks:
            dispatcher = self._topics.find(task.topic)
            birth = None if dispatcher is None else dispatcher.reserve_birth(task)
            if birth is not None:
                lease, self._reserved[task.task_id] = birth
                leases.append(lease)
        return tuple(leases)

    def give_back(self, leases: Sequence[BirthLease]) -> None:
        """End the reservations that `born` has not filled."""
        for lease in leases:
            subscription = self._reserved.pop(lease.task_id, None)
            if subscription is not None:
                subscription.end_reservation(lease.task_id)
                self._topics.wake([subscription.topic])

    def leave_in_doubt(self, leases: Sequence[BirthLease]) -> None:
        """The store gave no answer: they may exist."""
        for lease in leases:
            self._doubts.add([lease.task_id], self._reserved[lease.task_id])
        self.give_back(leases)

    def born(self, tasks: Sequence[ExternalTask], began: float) -> None:
        """The step is durable: the leases exist. ``began``: monotonic seconds from before the commit."""
        for task in tasks:
            subscription = self._reserved.pop(task.task_id)
            subscription.end_reservation(task.task_id)
            self._topics.dispatcher(task.topic).born(task, subscription, began)
