"""The leases that a worker holds, without any input or output: what may run, until when, what waits for an answer.

A lease is in the table from its offer until its final request (complete, fail, bpmn_error, release) was answered, or
until it was lost. Times are monotonic milliseconds.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from typing import TypeAlias

import attrs

from stellwerk.wire.messages import (
    BpmnErrorReport,
    Complete,
    Extend,
    Fail,
    LeaseRef,
    Release,
    TaskOffer,
)
from stellwerk.wire.session import lease_deadline_ms
from stellwerk.worker.task import Task

__all__ = ["FinalRequest", "Lease", "LeaseKey", "LeaseTable"]

LeaseKey: TypeAlias = tuple[str, int]
"""(task_id, fence)."""
FinalRequest: TypeAlias = Complete | Fail | BpmnErrorReport | Release

_REMEMBERED_MAX = 10_000
"""Fences that were revoked or finished: a frame that crossed with ours must not start them again."""
_BEGUN_MAX = 1_000
"""Single tries that were begun and let go of. Few are enough: it takes a connection that was lost for long to lose one.
"""


@attrs.define(eq=False)
class Lease:
    offer: TaskOffer
    deadline_ms: float
    task: Task | None = None
    """As the handler sees it. None: no handler was started."""
    has_begun: bool = False
    """The handler was called, so it may have had effects."""
    final: FinalRequest | None = None
    """Set once: the handler is done, and this is to be answered."""
    revoked: str | None = None
    """Why the engine took it away while its final request was unanswered: only the answer is awaited."""
    retries_sent: int = 0
    suspicion: int = 0
    """How many sessions were closed by the engine while the final request was under way (see `Finals`)."""
    sent_in: int = 0
    """The number of the session in which the final request was sent; 0: it waits to be sent."""
    unsure_ms: float = float("inf")
    """An extension by so much, the shortest, may have been done or may still be done: no answer to it came."""
    is_paused: bool = False
    """The final request was refused and is repeated after a while."""

    @property
    def key(self) -> LeaseKey:
        return (self.offer.task_id, self.offer.fence)


@attrs.define
class _Extension:
    lease: Lease
    request: Extend
    sent_ms: float


class LeaseTable:
    def __init__(self) -> None:
        self._leases: dict[LeaseKey, Lease] = {}
        self._by_topic: Counter[str] = Counter()
        self._finals: dict[int, Lease] = {}
        self._extensions: dict[int, _Extension] = {}
        self._deadlines: list[tuple[float, int, Lease]] = []
        self._counter = itertools.count(1)
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._let_go: dict[LeaseKey, None] | None = {}
        """Single tries that were begun and dropped while the engine may still have them locked. None: too many."""

    def __len__(self) -> int:
        return len(self._leases)

    def find(self, key: LeaseKey) -> Lease | None:
        return self._leases.get(key)

    def count(self, topic: str) -> int:
        """How many leases of the topic are held or wait for an answer."""
        return self._by_topic[topic]

    def next_ref(self) -> int:
        return next(self._counter)

    # --- what comes in -------------------------------------------------------------------------------------------

    def accept(self, offer: TaskOffer, deadline_ms: float) -> Lease | None:
        """A new lease, or None when this fence is known already: running, or over for good."""
        key = (offer.task_id, offer.fence)
        known = self._leases.get(key)
        if known is not None:
            self._set_deadline(known, deadline_ms)
            return None
        if offer.fence <= self._gone.get(offer.task_id, -1):
            return None
        lease = Lease(offer, deadline_ms)
        self._leases[key] = lease
        self._by_topic[offer.topic] += 1
        self._set_deadline(lease, deadline_ms)
        return lease

    def renew(self, key: LeaseKey, deadline_ms: float) -> Lease | None:
        """The engine's word, also when it is less than we thought. None: not held (any more)."""
        lease = self._leases.get(key)
        if lease is None or lease.revoked is not None:
            return None
        self._set_deadline(lease, deadline_ms)
        return lease

    def revoke(self, key: LeaseKey, reason: str) -> Lease | None:
        """Final for its fence, whatever arrives later. None: it was not held.

        With an unanswered final request the lease stays until the answer or its deadline, because that tells what
        became of the result; it is not reported as held any more.
        """
        self._remember(key)
        lease = self._leases.get(key)
        if lease is None or lease.revoked is not None:
            return None
        lease.revoked = reason
        if lease.final is None:
            self.drop(lease)
        return lease

    def answered(self, ref: int) -> Lease | None:
        """Whose final request this reference was. None: unknown, or given up already."""
        lease = self._finals.pop(ref, None)
        return lease if lease is not None and self._leases.get(lease.key) is lease else None

    def extension_answered(self, ref: int, *, granted: bool) -> Lease | None:
        extension = self._extensions.pop(ref, None)
        if extension is None or self._leases.get(extension.lease.key) is not extension.lease:
            return None
        if granted:
            # The engine counts from later than this, so this much is certain.
            until = lease_deadline_ms(extension.sent_ms, extension.request.lock_duration_ms)
            self._set_deadline(extension.lease, max(until, extension.lease.deadline_ms))
        return extension.lease

    # --- what goes out -------------------------------------------------------------------------------------------

    def finish(self, lease: Lease, request: FinalRequest) -> None:
        """From now on `request` is what the lease waits for."""
        assert self._leases.get(lease.key) is lease, f"{lease.key} is not held"
        if lease.final is not None:
            self._finals.pop(lease.final.ref, None)
        lease.final = request
        self._finals[request.ref] = lease

    def repeat(self, lease: Lease) -> FinalRequest:
        """The final request once more, under a new reference."""
        assert lease.final is not None
        self.finish(lease, attrs.evolve(lease.final, ref=self.next_ref()))
        assert lease.final is not None
        return lease.final

    def extend(self, lease: Lease, duration_ms: int, now_ms: float) -> Extend:
        request = Extend(self.next_ref(), lease.offer.task_id, lease.offer.fence, duration_ms)
        self._extensions[request.ref] = _Extension(lease, request, now_ms)
        return request

    def settle(self, lease: Lease) -> None:
        """The engine's answer says that this lease is over."""
        self.drop(lease)
        if self._let_go is not None:
            self._let_go.pop(lease.key, None)

    def drop(self, lease: Lease) -> None:
        """It is over for us: lost or given up."""
        self._remember(lease.key)
        if _is_begun_single_try(lease) and self._let_go is not None:
            self._let_go[lease.key] = None
            if len(self._let_go) > _BEGUN_MAX:
                self._let_go = None
        if self._leases.pop(lease.key, None) is not None:
            self._by_topic[lease.offer.topic] -= 1
        if lease.final is not None:
            self._finals.pop(lease.final.ref, None)

    def forget_extensions(self) -> None:
        """The connection that they were sent on is gone, so no answer will come."""
        self._extensions.clear()

    def holding(self) -> tuple[LeaseRef, ...]:
        """What is really still worked on: each until its final request was answered (consistency rule 16)."""
        return tuple(LeaseRef(*key) for key, lease in self._leases.items() if lease.revoked is None)

    def begun(self) -> tuple[LeaseRef, ...] | None:
        """Single tries that were begun and are not reported as held: nobody else must begin them (consistency rule 14).
        None: there were too many to remember."""
        if self._let_go is None:
            return None
        revoked = [key for key, lease in self._leases.items() if lease.revoked and _is_begun_single_try(lease)]
        return tuple(LeaseRef(*key) for key in (*self._let_go, *revoked))

    def unanswered(self) -> list[Lease]:
        return [lease for lease in self._leases.values() if lease.final is not None]

    def unfinished(self) -> list[Lease]:
        return [lease for lease in self._leases.values() if lease.final is None]

    def awaits_request(self, ref: int) -> bool:
        """Whether the final request with this reference is still the one to be answered."""
        lease = self._finals.get(ref)
        return lease is not None and self._leases.get(lease.key) is lease

    def awaits_answer(self, lease: Lease) -> bool:
        return self._leases.get(lease.key) is lease and lease.final is not None

    def is_held(self, lease: Lease) -> bool:
        return self._leases.get(lease.key) is lease and lease.revoked is None

    # --- deadlines -----------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> float:
        """The earliest; infinity when nothing is held."""
        while self._deadlines and not self._is_current(self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def pop_expired(self, now_ms: float) -> list[Lease]:
        """Leases that cannot be trusted any more; they are dropped."""
        expired: list[Lease] = []
        while self.next_deadline_ms() <= now_ms:
            lease = heapq.heappop(self._deadlines)[2]
            self.drop(lease)
            expired.append(lease)
        return expired

    def _set_deadline(self, lease: Lease, deadline_ms: float) -> None:
        lease.deadline_ms = deadline_ms
        heapq.heappush(self._deadlines, (deadline_ms, next(self._counter), lease))
        if len(self._deadlines) > 64 + 4 * len(self._leases):
            self._deadlines = [entry for entry in self._deadlines if self._is_current(entry)]
            heapq.heapify(self._deadlines)

    def _is_current(self, entry: tuple[float, int, Lease]) -> bool:
        deadline_ms, _, lease = entry
        return self._leases.get(lease.key) is lease and lease.deadline_ms == deadline_ms

    def _remember(self, key: LeaseKey) -> None:
        task_id, fence = key
        self._gone[task_id] = max(fence, self._gone.get(task_id, -1))
        self._gone.move_to_end(task_id)
        if len(self._gone) > _REMEMBERED_MAX:
            self._gone.popitem(last=False)


def _is_begun_single_try(lease: Lease) -> bool:
    return lease.offer.single_try and lease.has_begun
