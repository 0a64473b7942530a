"""The other nodes on the same store: what they are told, and what this node does when they tell.

All that is told is a hint, and each has a poll behind it: with every hint lost the same happens a little later. Only
what others could need is told: a timer or a message is looked after by the clockwork of the node that wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from stellwerk.actors.clockwork import Clockwork
from stellwerk.actors.committer import Committer
from stellwerk.actors.definitions import Definitions
from stellwerk.actors.leases import HeldLease, LeaseBook, WorkerLink
from stellwerk.actors.topics import Topics
from stellwerk.actors.views import EndWaiters
from stellwerk.core.changes import RowChanges
from stellwerk.core.external_task import ExternalTask
from stellwerk.core.instance import InstanceStatus
from stellwerk.ports import Hint, Ports, Resumed, ResumeSession, RevokedHint, RevokedLease

__all__ = ["NeighbourServices", "Neighbours"]

_CHECK_LEASES_SECONDS = 5.0
_LEASES_AT_ONCE = 1_000
_LATE_LEASES_SECONDS = (2.0, 10.0)
"""After a hello, one after the other: together longer than a database may take for a commit."""
_STILL_RUNNING = (None, InstanceStatus.RUNNING.value)


class NeighbourServices(Protocol):
    """What this needs of its node."""

    ports: Ports
    committer: Committer
    leases: LeaseBook
    live_topics: Topics
    clockwork: Clockwork
    definition_cache: Definitions

    def returned(self, task: ExternalTask) -> None: ...


class Neighbours:
    """Only where the store is shared."""

    def __init__(self, node: NeighbourServices, waiters: EndWaiters, *, is_offline: bool) -> None:
        """:param is_offline: this node has no clockwork of its own, so that others must fire its timers."""
        self._node = node
        self._store = node.ports.store
        self._waiters = waiters
        self._is_offline = is_offline
        self._check_asked = trio.Event()

    # --- telling ---------------------------------------------------------------------------------------------------

    def tell_stepped(self, instance_id: str, changes: RowChanges) -> None:
        """A step is durable here. READY tasks are told by those who know whether a worker here has room."""
        if changes.status not in _STILL_RUNNING or changes.incidents_opened:
            self._store.tell(Hint(instances=(instance_id,)))
        if self._is_offline and (changes.timers_armed or changes.subscriptions_opened):
            due_at_ms = min((timer.due_at_ms for timer in changes.timers_armed), default=None)
            self._store.tell(Hint(timer_due_at_ms=due_at_ms, messages=bool(changes.subscriptions_opened)))

    def tell_revoked(self, lease: RevokedLease, reason: str) -> None:
        """Its worker is not connected here."""
        revoked = RevokedHint(lease.holder.session_id, lease.task_id, lease.fence, reason)
        self._store.tell(Hint(revoked=(revoked,)))

    def tell_deployed(self, process_keys: Sequence[str]) -> None:
        if process_keys:
            self._store.tell(Hint(process_keys=tuple(process_keys), messages=self._is_offline))

    def tell_published(self) -> None:
        if self._is_offline:
            self._store.tell(Hint(messages=True))

    # --- hearing ---------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """For ever. Whoever begins (again) to listen has missed what was told before."""
        self.heard(Hint(missed=True))
        while True:
            self.heard(await self._store.hints())

    def heard(self, hint: Hint) -> None:
        if hint.missed:
            self._look_at_everything()
        self._node.live_topics.scan_soon(hint.topics)
        if hint.timer_due_at_ms is not None:
            self._node.clockwork.timer_armed(hint.timer_due_at_ms)
        if hint.messages:
            self._node.clockwork.match_messages()
        self._node.definition_cache.forget_latest(hint.process_keys)
        for revoked in hint.revoked:
            self._revoked(revoked)
        for instance_id in hint.instances:
            self._waiters.changed(instance_id)

    def _look_at_everything(self) -> None:
        node = self._node
        node.live_topics.scan_soon()
        node.clockwork.look_now()
        node.definition_cache.forget_all_latest()
        self._waiters.changed_all()
        self._check_asked.set()

    def _revoked(self, revoked: RevokedHint) -> None:
        held = self._node.leases.get(revoked.task_id, revoked.fence)
        if held is not None and held.link.holder.session_id == revoked.session_id:
            self._end(held, revoked.reason)

    def _end(self, held: HeldLease, reason: str) -> None:
        self._node.leases.remove(held.task_id, held.fence)
        if not held.link.closed:
            held.link.revoked([(held.task_id, held.fence)], reason)
        self._node.live_topics.wake([held.subscription.topic])

    # --- the poll behind revocations -------------------------------------------------------------------------------

    async def check_leases(self) -> None:
        """For ever: read the leases that are held through this node again by key (consistency.md 18)."""
        while True:
            self._check_asked = trio.Event()
            held = list(self._node.leases)
            for begin in range(0, len(held), _LEASES_AT_ONCE):
                await self._check(held[begin : begin + _LEASES_AT_ONCE])
            with trio.move_on_after(_CHECK_LEASES_SECONDS):
                await self._check_asked.wait()

    async def _check(self, leases: Sequence[HeldLease]) -> None:
        standing = set(await self._store.standing_leases([(held.task_id, held.fence) for held in leases]))
        now = self._node.ports.clock.monotonic()
        for held in leases:
            key = (held.task_id, held.fence)
            if self._node.leases.get(*key) is not held:
                continue  # meanwhile it ended in the ordinary way
            # A lease stands also when its worker process took it along to another node.
            has_left = held.link.closed and held.deadline <= now
            if has_left or (key not in standing and not held.link.asks_about(*key)):
                self._end(held, "lost")

    # --- leases of a node that died --------------------------------------------------------------------------------

    async def take_back_late_leases(self, link: WorkerLink, begun: tuple[tuple[str, int], ...] | None) -> None:
        """Those for former sessions of the worker process whose commits came only after its hello.

        The node that asked for them gives them back, unless it died meanwhile. Then nobody else knows of them, and the
        worker never got them: it had left that connection before it said hello here.

        ``begun``: what its hello said of single tries, which may stand among them still (see `ResumeSession`).
        """
        for seconds in _LATE_LEASES_SECONDS:
            await self._node.ports.clock.sleep(seconds)
            if link.closed:
                return  # the next one looks
            resumed = await self._node.committer.submit(ResumeSession(link.holder, (), begun))
            assert isinstance(resumed, Resumed)
            for task in resumed.released:
                self._node.leases.remove(task.task_id, task.fence)
                self._node.returned(task)
