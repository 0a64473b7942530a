"""Does what the workers wrote down agree with what had to happen? Pure; every finding names its order.

Repeated handler runs are allowed (a killed worker's tasks are given to another), repeated effects are not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import attrs

from stellwerk.cli.demo.ledger import EventKind, LedgerEvent
from stellwerk.cli.demo.orders import PlannedOrder

__all__ = ["EndedInstance", "audit", "count_repeated_runs"]


@attrs.frozen
class EndedInstance:
    """What the engine says about one instance."""

    instance_id: str
    order: str
    """Its business key."""
    status: str


def audit(
    plan: Sequence[PlannedOrder],
    instances: Iterable[EndedInstance],
    events: Iterable[LedgerEvent],
    outside: Iterable[str],
) -> list[str]:
    """One line for each thing that is not as it has to be; empty when all is well.

    :param events: of all ledgers, by time.
    :param outside: the keys of what was done in the world outside, ``order.topic``.
    """
    known = {planned.order.order for planned in plan}
    of_order: dict[str, list[LedgerEvent]] = defaultdict(list)
    for event in events:
        if event.kind is not EventKind.RENEWED:
            of_order[event.order].append(event)
    instances_of_order: dict[str, list[EndedInstance]] = defaultdict(list)
    for instance in instances:
        instances_of_order[instance.order].append(instance)
    findings = [f"{name}: nobody ordered this" for name in sorted((of_order.keys() | instances_of_order) - known)]
    for planned in plan:
        name = planned.order.order
        findings.extend(f"{name}: {what}" for what in _check_order(planned, instances_of_order[name], of_order[name]))
    return findings + _check_outside(plan, outside)


def count_repeated_runs(events: Iterable[LedgerEvent]) -> int:
    """Handler runs beyond the first for one order's piece of work, whatever the reason."""
    begun = [(event.order, event.topic) for event in events if event.kind is EventKind.BEGIN]
    return len(begun) - len(set(begun))


def _check_order(
    planned: PlannedOrder, instances: Sequence[EndedInstance], events: Sequence[LedgerEvent]
) -> Iterator[str]:
    yield from _check_instance(planned, instances)
    yield from _check_trail(planned, events)
    yield from _check_done_once(events)
    yield from _check_leases(events)
    yield from _check_sequence(planned.fate.trail, events)


def _check_instance(planned: PlannedOrder, instances: Sequence[EndedInstance]) -> Iterator[str]:
    if len(instances) != 1:
        yield f"started {len(instances)} times"
        return
    [instance] = instances
    if instance.status != planned.fate.status:
        expected = f"{planned.fate.status} ({planned.fate.value})"
        yield f"instance {instance.instance_id} is {instance.status} where {expected} was due"


def _check_trail(planned: PlannedOrder, events: Sequence[LedgerEvent]) -> Iterator[str]:
    """What was done, by the first time each topic's work is seen, has to be the fate's trail."""
    trail = tuple(_first_done(events))
    if trail != planned.fate.trail:
        due = " → ".join(planned.fate.trail)
        yield f"{planned.fate.value}: done was {' → '.join(trail) or 'nothing'} where {due} was due"


def _first_done(events: Iterable[LedgerEvent]) -> Mapping[str, LedgerEvent]:
    """For each topic, in order of time, the first event that shows its work as done."""
    first: dict[str, LedgerEvent] = {}
    for event in events:
        if event.kind in (EventKind.DONE, EventKind.FOUND):
            first.setdefault(event.topic, event)
    return first


def _check_done_once(events: Iterable[LedgerEvent]) -> Iterator[str]:
    done: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if event.kind is EventKind.DONE:
            done[event.topic].append(event.worker)
    for topic, workers in done.items():
        if len(workers) > 1:
            yield f"{topic} was done {len(workers)} times, by {', '.join(workers)}"


def _check_leases(events: Iterable[LedgerEvent]) -> Iterator[str]:
    """One task for each piece of work, and each of its leases is run at most once."""
    tasks: dict[str, set[str]] = defaultdict(set)
    leases: set[tuple[str, int]] = set()
    for event in events:
        if event.kind is not EventKind.BEGIN:
            continue
        tasks[event.topic].add(event.task_id)
        if (event.task_id, event.fence) in leases:
            yield f"{event.topic}: fence {event.fence} of task {event.task_id} was run twice"
        leases.add((event.task_id, event.fence))
    for topic, task_ids in tasks.items():
        if len(task_ids) > 1:
            yield f"{topic} was given out as {len(task_ids)} tasks: {', '.join(sorted(task_ids))}"


def _check_sequence(trail: Sequence[str], events: Sequence[LedgerEvent]) -> Iterator[str]:
    """A step begins after the one before it was done, and a step that is over is never leased again."""
    begun: dict[str, list[LedgerEvent]] = defaultdict(list)
    for event in events:
        if event.kind is EventKind.BEGIN:
            begun[event.topic].append(event)
    done = _first_done(events)
    for earlier, later in pairwise(trail):
        if later not in begun:
            continue
        began_ns = begun[later][0].at_ns
        if earlier not in done or done[earlier].at_ns > began_ns:
            yield f"{later} began before {earlier} was done"
        fences_before = [event.fence for event in begun[earlier] if event.at_ns <= began_ns]
        for event in begun[earlier]:
            if fences_before and event.at_ns > began_ns and event.fence > max(fences_before):
                yield f"{earlier} was leased again (fence {event.fence}) although {later} had begun"


def _check_outside(plan: Iterable[PlannedOrder], outside: Iterable[str]) -> list[str]:
    due = {f"{planned.order.order}.{topic}" for planned in plan for topic in planned.fate.trail}
    keys = set(outside)
    missing = [f"{key.partition('.')[0]}: {key.partition('.')[2]} is missing outside" for key in sorted(due - keys)]
    surplus = [f"{key.partition('.')[0]}: {key.partition('.')[2]} was not due outside" for key in sorted(keys - due)]
    return missing + surplus
