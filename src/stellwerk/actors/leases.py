"""The leases that workers connected to this node hold, as far as this node knows. Memory hints; the rows judge.

Room is derived, never counted: what a worker can still take is its ``max_tasks`` less the leases that stand here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs

from stellwerk.actors.payloads import TaskFilter
from stellwerk.core.external_task import ExternalTask, Holder
from stellwerk.wire.session import surely_left

__all__ = ["HeldLease", "LeaseBook", "Subscription", "WorkerLink", "deadline_of"]


_FINISHED_REMEMBERED = 10_000
"""Leases ended lately: a report that crossed with the acknowledgement is not answered with `revoked`."""


class WorkerLink(Protocol):
    """What a dispatcher needs of a worker's session."""

    holder: Holder

    @property
    def accepts_work(self) -> bool:
        """Connected, heard lately, confirming what it gets, and neither it nor the node is draining."""

    @property
    def heartbeat_ms(self) -> int: ...

    def vouches_for(self, task_id: str, fence: int) -> bool:
        """Its last report is younger than two heartbeats and contains the lease (consistency.md 18)."""

    def reserve(self, payload_bytes: int) -> None:
        """So much is about to be delivered, and counts against what it can take at once."""

    def end_reservation(self, payload_bytes: int) -> None:
        """It was delivered, or it will not be."""

    def deliver(self, leases: Sequence[tuple[HeldLease, ExternalTask]]) -> None: ...

    def renewed(self, leases: Sequence[tuple[HeldLease, ExternalTask]]) -> None: ...

    def revoked(self, leases: Sequence[tuple[str, int]], reason: str) -> None: ...

    @property
    def closed(self) -> bool:
        """The connection is gone. Its leases stand until their deadlines, or until the worker process is back."""

    def asks_about(self, task_id: str, fence: int) -> bool:
        """A request for the lease is under way: what becomes of it is that request's answer (consistency.md 16)."""


@attrs.define(eq=False)
class Subscription:
    """One session's room for one topic."""

    link: WorkerLink
    topic: str
    max_tasks: int = 0
    lock_duration_ms: int = 30_000
    filter: TaskFilter | None = None
    """Only tasks that it matches; None: all. `TopicDispatcher.filters_changed` must follow a change."""
    variables: tuple[str, ...] | None = None
    """Only these variables are sent; None: all."""
    part: int = 0
    """Counts the subscriptions that one link has to one topic, with different conditions."""
    leases: dict[str, HeldLease] = attrs.field(factory=dict, repr=False)
    reserved: dict[str, list[int]] = attrs.field(factory=dict, repr=False)
    """Tasks whose lease is being asked of the store, and about how many bytes they take. Twice at once where the store
    is so slow that a lease which it has given runs out before its answer is here."""

    @property
    def filter_key(self) -> str | None:
        return None if self.filter is None else self.filter.key

    @property
    def key(self) -> tuple[str, int]:
        """Within its topic."""
        return self.link.holder.session_id, self.part

    @property
    def room(self) -> int:
        if not self.link.accepts_work:
            return 0
        return max(0, self.max_tasks - self.taken)

    @property
    def taken(self) -> int:
        return len(self.leases) + len(self.reserved)

    def reserve(self, task_id: str, payload_bytes: int) -> None:
        self.reserved.setdefault(task_id, []).append(payload_bytes)
        self.link.reserve(payload_bytes)

    def end_reservation(self, task_id: str) -> None:
        """The store has answered."""
        sizes = self.reserved[task_id]
        self.link.end_reservation(sizes.pop())
        if not sizes:
            del self.reserved[task_id]


@attrs.define(eq=False)
class HeldLease:
    task_id: str
    fence: int
    instance_id: str
    subscription: Subscription
    duration_ms: int
    single_try: bool
    deadline: float
    """Monotonic seconds, counted from before the store call that gave or renewed it: never later than the row's."""

    @property
    def link(self) -> WorkerLink:
        return self.subscription.link


def deadline_of(task: ExternalTask, began: float) -> float:
    """Until when the lease can be trusted: what was left of it in the store's transaction, counted from before that.

    ``updated_at_ms`` is the instant of that transaction, rounded down, on the clock of ``until_ms``, which may run
    faster than ours.
    """
    assert task.lease is not None
    return began + surely_left(max(0, task.lease.until_ms - task.updated_at_ms - 1)) / 1000


class LeaseBook:
    """All held leases of the node, by task."""

    def __init__(self) -> None:
        self._by_task: dict[str, HeldLease] = {}
        self._finished: OrderedDict[tuple[str, int], None] = OrderedDict()
        self.under_way = 0
        """Leases that are being asked of the store, or given back to it because no worker got them or has them."""

    @property
    def are_settled(self) -> bool:
        return self.under_way == 0

    def __len__(self) -> int:
        return len(self._by_task)

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(list(self._by_task.values()))

    def add(self, task: ExternalTask, subscription: Subscription, began: float) -> HeldLease:
        """Note the lease that `task` carries. ``began``: monotonic seconds from before the store call."""
        assert task.lease is not None
        self.remove(task.task_id)
        held = HeldLease(
            task_id=task.task_id,
            fence=task.fence,
            instance_id=task.instance_id,
            subscription=subscription,
            duration_ms=task.lease.duration_ms,
            single_try=task.single_try,
            deadline=deadline_of(task, began),
        )
        self._by_task[task.task_id] = held
        subscription.leases[task.task_id] = held
        return held

    def get(self, task_id: str, fence: int | None = None) -> HeldLease | None:
        held = self._by_task.get(task_id)
        if held is None or (fence is not None and held.fence != fence):
            return None
        return held

    def finish(self, task_id: str, fence: int) -> HeldLease | None:
        """Forget the lease because a request that ends it was answered, and remember that for a while."""
        self._finished[task_id, fence] = None
        if len(self._finished) > _FINISHED_REMEMBERED:
            self._finished.popitem(last=False)
        return self.remove(task_id, fence)

    def is_finished(self, task_id: str, fence: int) -> bool:
        return (task_id, fence) in self._finished

    def drop(self, held: HeldLease) -> bool:
        """Forget the lease if it stands here as it was then. One that a later session of its worker has kept, with the
        same fence, is none of the earlier session's business any more."""
        if self._by_task.get(held.task_id) is not held:
            return False
        self.remove(held.task_id)
        return True

    def remove(self, task_id: str, fence: int | None = None) -> HeldLease | None:
        """Forget the lease (of this fence, if one is given)."""
        held = self.get(task_id, fence)
        if held is not None:
            del self._by_task[task_id]
            held.subscription.leases.pop(task_id, None)
        return held
