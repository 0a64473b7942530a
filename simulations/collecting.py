"""What there is to judge at the end of a run: each instance with its history, its handlers and its client's events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from simulations.cluster.cluster import Cluster
from simulations.workloads.reading import InstanceOutcome
from simulations.world.backends import Backend
from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import InstanceSummary

__all__ = ["outcomes_of"]


def outcomes_of(backend: Backend, cluster: Cluster) -> Mapping[str, Sequence[InstanceOutcome]]:
    """By business key."""
    tasks: dict[str, list[ExternalTask]] = defaultdict(list)
    for task in backend.all_tasks():
        tasks[task.instance_id].append(task)
    outcomes: dict[str, list[InstanceOutcome]] = defaultdict(list)
    for row in backend.all_instances():
        outcomes[row.business_key or row.instance_id].append(_outcome(row, tasks[row.instance_id], backend, cluster))
    return outcomes


def _outcome(
    row: InstanceSummary, tasks: Sequence[ExternalTask], backend: Backend, cluster: Cluster
) -> InstanceOutcome:
    record = cluster.client.records.get(row.business_key or "")
    return InstanceOutcome(
        instance_id=row.instance_id,
        definition_id=row.definition_id,
        steps=backend.history(row.instance_id),
        runs=cluster.handlers.runs_of(row.instance_id),
        events=() if record is None else tuple(record.answers),
        tasks=tuple(tasks),
        start_sent=0.0 if record is None else record.start_sent or 0.0,
    )
