"""The quiet phase: nothing goes wrong any more, so everything must come to its end, and nobody may wait in vain.

How long that takes is not judged, only that it goes on: the limit is the time without any progress (V1, V2). Meanwhile
no task may wait while a worker that could take it has nothing to do (V3). In the end nothing may be left over (P3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import trio

from simulations.cluster.cluster import Cluster
from simulations.kernel.simulation import Simulation
from simulations.world.backends import Backend
from simulations.world.network import Network
from simulations.world.rows import RowChange, Transaction
from stellwerk.core.external_task import AttemptEnd, ExternalTask, TaskAttempt, TaskState
from stellwerk.ports import InstanceSummary
from stellwerk.stores.tables import ENDED_STATUSES

__all__ = ["NO_PROGRESS_SECONDS", "Progress", "QuietPhase"]

NO_PROGRESS_SECONDS = 60.0
"""Longer than any lock, back-off and timer of the workloads."""
SETTLE_SECONDS_MAX = 3_600.0
"""In all. No sound run comes near: who makes progress for so long makes the same again and again."""
WAIT_IN_VAIN_SECONDS = 20.0
_LOOK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 3.0
"""Until what was under way when the last instance ended has arrived: a heartbeat, and what follows from it."""

_LEFTOVERS_SECONDS = 12.0
"""Twice as long as until a node that was told nothing looks up the leases that it holds."""


class Progress:
    """A `CommitObserver`: when an instance made a step, or a task was handed on, for the last time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.last = 0.0
        self._handed_out: dict[str, tuple[ExternalTask, float]] = {}

    def committed(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            if _is_progress(change):
                self.last = self._now()
            leased = _leased(change)
            if leased is not None:
                self._handed_out[leased.task_id] = leased, self._now()

    def passed_over_since(self, waiting: ExternalTask) -> float:
        """When a task of the topic that comes before this one was handed out for the last time: until then it waited
        for its turn. Where locks run out before the work gets through, that may be for long."""
        rank = _rank(waiting)
        before = (at for task, at in self._handed_out.values() if task.topic == waiting.topic and _rank(task) < rank)
        return max(before, default=0.0)

    def undone(self, transaction: Transaction) -> None:
        """What was undone is done again."""

    def synced(self, number: int) -> None:
        """Nothing new."""


def _is_progress(change: RowChange) -> bool:
    """Leases that come and go are none: they could for ever."""
    if isinstance(change.after, TaskAttempt):
        return change.after.end in (AttemptEnd.FAILED, AttemptEnd.BPMN_ERROR)
    return change.table in ("history", "definitions")


def _leased(change: RowChange) -> ExternalTask | None:
    before, after = change.before, change.after
    if not isinstance(after, ExternalTask) or after.state is not TaskState.LOCKED:
        return None
    return None if isinstance(before, ExternalTask) and before.fence == after.fence else after


def _rank(task: ExternalTask) -> tuple[int, int, str]:
    """The order of hand-out."""
    return -task.priority, task.created_at_ms, task.task_id


@attrs.define
class Idleness:
    """Since when a task has waited, and a worker had nothing to do."""

    waiting: dict[str, float] = attrs.field(factory=dict)
    idle: dict[str, float] = attrs.field(factory=dict)


class QuietPhase:
    def __init__(
        self, simulation: Simulation, backend: Backend, cluster: Cluster, network: Network, progress: Progress
    ) -> None:
        self._simulation = simulation
        self._backend = backend
        self._cluster = cluster
        self._network = network
        self._progress = progress
        self._idleness = Idleness()

    async def settle(self) -> None:
        """Until every instance has ended."""
        began = self._progress.last = self._simulation.now()
        while not self._is_everything_done():
            self._check_progress(began)
            self._look_for_waiting()
            await trio.sleep(_LOOK_SECONDS)
        await trio.sleep(_LAST_WORDS_SECONDS)
        give_up = self._simulation.now() + _LEFTOVERS_SECONDS
        while any(self._leftovers()) and self._simulation.now() < give_up:
            await trio.sleep(_LOOK_SECONDS)
        for leftover in self._leftovers():
            self._simulation.properties.always("P3", False, leftover)

    # --- V1 --------------------------------------------------------------------------------------------------------

    def _is_everything_done(self) -> bool:
        return self._cluster.client.is_done and not any(map(_is_open, self._backend.all_instances()))

    def _check_progress(self, began: float) -> None:
        now, always = self._simulation.now(), self._simulation.properties.always
        invariant = "V2" if self._cluster.plan.options.stays_dead else "V1"
        quiet_for, seconds = now - self._progress.last, now - began
        always(invariant, quiet_for < NO_PROGRESS_SECONDS, lambda: self._standstill("no progress", NO_PROGRESS_SECONDS))
        always(invariant, seconds < SETTLE_SECONDS_MAX, lambda: self._standstill("no end", SETTLE_SECONDS_MAX))

    def _standstill(self, what: str, seconds: float) -> str:
        waiting = [record.spec.key for record in self._cluster.client.records.values() if not record.is_done]
        tasks: dict[str, list[str]] = {}
        for task in self._backend.all_tasks():
            tasks.setdefault(task.instance_id, []).append(f"{task.element_id} {task.state.value}")
        open_instances = [
            f"{row.business_key or row.instance_id} ({', '.join(tasks.get(row.instance_id, ['no task']))})"
            for row in self._backend.all_instances()
            if _is_open(row)
        ]
        return (
            f"{what} for {seconds:g} s; open: {'; '.join(open_instances[:5]) or 'nothing'}"
            f" ({len(open_instances)} in all); the client waits for {', '.join(waiting[:5]) or 'nothing'}"
        )

    # --- V3 --------------------------------------------------------------------------------------------------------

    def _look_for_waiting(self) -> None:
        now, seen = self._simulation.now(), self._idleness
        waiting = {task.task_id: task for task in self._ready_tasks()}
        idle = set(self._idle_workers())
        seen.waiting = {task_id: seen.waiting.get(task_id, now) for task_id in waiting}
        seen.idle = {host: seen.idle.get(host, now) for host in self._cluster.workers if host in idle}
        for task_id, since in seen.waiting.items():
            self._check_waiting(waiting[task_id], since, now)

    def _ready_tasks(self) -> Iterator[ExternalTask]:
        now_ms = self._backend.lease_now_ms()
        for task in self._backend.all_tasks():
            if task.state is TaskState.READY and not task.draining and task.available_at_ms <= now_ms:
                yield task

    def _idle_workers(self) -> Iterator[str]:
        for host, program in self._cluster.workers.items():
            worker = program.worker
            if self._cluster.is_up(host) and worker is not None:
                health = worker.health()
                if health.is_polling_active and health.active_task_count == 0:
                    yield host

    def _check_waiting(self, task: ExternalTask, since: float, now: float) -> None:
        since = max(since, self._progress.passed_over_since(task))
        for host, idle_since in self._idleness.idle.items():
            worker = self._cluster.workers[host].worker
            waited = now - max(since, idle_since)
            if waited >= WAIT_IN_VAIN_SECONDS and worker is not None and task.topic in worker.topics:
                message = f"task {task.task_id} ({task.topic}) waits, and {host} has had nothing to do for {waited:g} s"
                self._simulation.properties.always("V3", False, message)

    # --- P3 --------------------------------------------------------------------------------------------------------

    def _leftovers(self) -> Iterator[str]:
        for host, program in self._cluster.nodes.items():
            if not self._cluster.is_up(host) or program.served is None:
                continue
            node = program.served.node
            if len(node.leases):
                yield f"{host} holds {len(node.leases)} leases, and every instance has ended"
            if len(node.doubts):
                yield f"{host} doubts {len(node.doubts)} leases, and every instance has ended"
            if not node.leases.are_settled:
                yield f"{host} keeps room for {node.leases.under_way} leases, and every instance has ended"


def _is_open(row: InstanceSummary) -> bool:
    return row.status not in ENDED_STATUSES
