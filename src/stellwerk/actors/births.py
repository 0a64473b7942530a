"""Tasks that are leased as they are created, because a worker has room at that moment (consistency.md 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stellwerk.actors.dispatcher import TopicDispatcher
from stellwerk.actors.leases import Subscription
from stellwerk.core.changes import NewTask
from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import BirthLease

__all__ = ["TopicBirths"]


class TopicBirths:
    """Reserves room when a step is decided; the commit fills it, a refusal gives it back."""

    def __init__(self, dispatcher: Callable[[str], TopicDispatcher]) -> None:
        self._dispatcher = dispatcher
        self._reserved: dict[str, Subscription] = {}

    def reserve(self, tasks: Sequence[NewTask]) -> tuple[BirthLease, ...]:
        leases = []
        for task in tasks:
            birth = self._dispatcher(task.topic).reserve_birth(task)
            if birth is not None:
                lease, self._reserved[task.task_id] = birth
                leases.append(lease)
        return tuple(leases)

    def give_back(self, leases: Sequence[BirthLease]) -> None:
        for lease in leases:
            subscription = self._reserved.pop(lease.task_id)
            subscription.end_reservation(lease.task_id)
            self._dispatcher(subscription.topic).wake()

    def born(self, tasks: Sequence[ExternalTask], began: float) -> None:
        """The step is durable: the leases exist. ``began``: monotonic seconds from before the commit."""
        for task in tasks:
            subscription = self._reserved.pop(task.task_id)
            subscription.end_reservation(task.task_id)
            self._dispatcher(task.topic).born(task, subscription, began)
