"""What became of the instances, from the rows at the end of a run and from what handlers and client noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from simulations.cluster.clients import ClientRecord
from simulations.workloads.performing import Handlers
from simulations.workloads.reading import InstanceOutcome
from stellwerk.core.external_task import ExternalTask
from stellwerk.ports import HistoryStep, InstanceSummary

__all__ = ["Rows", "outcomes_of"]


class Rows(Protocol):
    """What a backend shows of the database at the end."""

    def all_instances(self) -> Sequence[InstanceSummary]: ...

    def all_tasks(self) -> Sequence[ExternalTask]: ...

    def history(self, instance_id: str) -> Sequence[HistoryStep]: ...


def outcomes_of(
    rows: Rows, handlers: Handlers, records: Mapping[str, ClientRecord]
) -> dict[str, list[InstanceOutcome]]:
    """Business key to the instances that have it; instances without one are under the empty text."""
    tasks: dict[str, list[ExternalTask]] = {}
    for task in rows.all_tasks():
        tasks.setdefault(task.instance_id, []).append(task)
    found: dict[str, list[InstanceOutcome]] = {}
    for instance in rows.all_instances():
        key = instance.business_key or ""
        record = records.get(key)
        found.setdefault(key, []).append(
            InstanceOutcome(
                instance_id=instance.instance_id,
                definition_id=instance.definition_id,
                steps=rows.history(instance.instance_id),
                runs=handlers.runs_of(instance.instance_id),
                events=() if record is None else tuple(record.answers),
                tasks=tuple(tasks.get(instance.instance_id, ())),
                start_sent=0.0 if record is None else record.start_sent or 0.0,
            )
        )
    return found
