"""What holds for every instance of every workload, and the phrases of which judgements are made.

Each function yields one sentence for each broken promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import Workload
from simulations.workloads.reading import HandlerRun, InstanceOutcome, Reading, TaskRecord
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import InvariantBroken
from stellwerk.json_values import JsonValue

__all__ = [
    "completed_are",
    "ended_as",
    "entered_are",
    "general_problems",
    "judge",
    "judge_instance",
    "order_is",
    "runs_saw",
]


def judge(
    workloads: Mapping[str, Workload], specs: Iterable[InstanceSpec], outcomes: Mapping[str, Sequence[InstanceOutcome]]
) -> Iterator[tuple[str, str]]:
    """The key of a spec and what is wrong with its instance, for all of a run.

    `outcomes`: business key to the instances that have it. More than one instance of a spec, none, or one of no spec is
    wrong in itself: a start is idempotent, and what was acknowledged exists.
    """
    specs = list(specs)
    readings: dict[str, list[tuple[InstanceSpec, Reading]]] = {}
    for spec in specs:
        found = outcomes.get(spec.key, ())
        if len(found) != 1:
            ids = ", ".join(outcome.instance_id for outcome in found)
            yield spec.key, f"has {len(found)} instances instead of one: {ids or 'none'}"
            continue
        try:
            reading = Reading(found[0])
        except (InvariantBroken, KeyError) as error:
            yield spec.key, f"has a history that cannot be folded: {error!r}"
            continue
        readings.setdefault(spec.kind, []).append((spec, reading))
        for problem in _problems(workloads[spec.kind], spec, reading):
            yield spec.key, problem
    for key in outcomes.keys() - {spec.key for spec in specs}:
        yield key, "nobody asked for this instance"
    for kind, pairs in readings.items():
        together = workloads[kind].judge_together
        for problem in together(pairs) if together is not None else ():
            yield kind, problem


def judge_instance(workload: Workload, spec: InstanceSpec, outcome: InstanceOutcome) -> list[str]:
    """What is wrong with one instance by itself."""
    return list(_problems(workload, spec, Reading(outcome)))


def _problems(workload: Workload, spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    yield from general_problems(spec, reading)
    yield from workload.judge(spec, reading)


# --- what always holds ---------------------------------------------------------------------------------------------


def general_problems(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    """Whatever the workload and the faults:

    - the instance has ended, with neither task nor incident left, and is the spec's;
    - a handler was only ever given a task of its instance, at the task's element, and once for each lease;
    - a completed task has a run that returned, by the worker that the history names, and the variables hold the stamp
      of such a run; nothing else has left a stamp;
    - a business error in the history was really raised by a handler; attempts were used up only by as many handlers
      that failed as there are retries, or by one that gave up; a lock ran out for good only after as many leases, or
      with a single try.

    It counts on an operator who resolves incidents with the number of retries of the model.
    """
    if not reading.state.ended:
        yield f"has not ended: {reading.status}"
    elif reading.state.incidents:
        yield f"has ended with open incidents at {sorted(row.node_id for row in reading.state.incidents.values())}"
    elif any(not task.end for task in reading.tasks):
        yield f"has ended with open tasks at {[task.element for task in reading.tasks if not task.end]}"
    if reading.state.business_key != spec.key:
        yield f"has the business key {reading.state.business_key!r}"
    yield from _foreign_runs(reading)
    yield from _results(reading)
    for task in reading.tasks:
        yield from _causes(reading, task)


def _foreign_runs(reading: Reading) -> Iterator[str]:
    elements = {task.task_id: task.element for task in reading.tasks}
    leases = Counter((run.task_id, run.element, run.fence) for run in reading.outcome.runs)
    for (_, element, fence), count in leases.items():
        if count > 1:
            yield f"handlers began {count} times on one lease at {element}, fence {fence}"
    for run in reading.outcome.runs:
        if elements.get(run.task_id) != run.element:
            yield f"a handler got task {run.task_id} at {run.element}, which its history does not have"


def _results(reading: Reading) -> Iterator[str]:
    done = dict.fromkeys(reading.completed)
    for element in dict.fromkeys(task.element for task in reading.tasks):
        if element in reading.variables and element not in done:
            yield f"has a result of {element}, whose task was never completed"
    for task in reading.tasks:
        if task.end == "TaskCompleted":
            yield from _origin(reading, task)
    for element in done:
        yield from _stamp(reading, element)


def _origin(reading: Reading, task: TaskRecord) -> Iterator[str]:
    returned = [run for run in reading.outcome.runs if run.task_id == task.task_id and run.end == "returned"]
    if not returned:
        yield f"the task at {task.element} is completed, but no handler returned"
    elif task.worker_id not in {run.worker_id for run in returned}:
        yield f"the task at {task.element} is completed by {task.worker_id}, on which no handler returned"


def _stamp(reading: Reading, element: str) -> Iterator[str]:
    stamp = reading.variables.get(element)
    found = [run for run in reading.runs_at(element) if run.end == "returned" and _is_stamp_of(stamp, run)]
    by = {task.worker_id for task in reading.tasks_at(element) if task.end == "TaskCompleted"}
    if not found:
        yield f"the variable {element} is {stamp!r}, which no handler returned there"
    elif found[0].worker_id not in by:
        yield f"the variable {element} comes from {found[0].worker_id}, the completion from {sorted(map(str, by))}"


def _is_stamp_of(stamp: JsonValue, run: HandlerRun) -> bool:
    return stamp == {"attempt": run.attempt, "fence": run.fence, "worker": run.worker_id}


def _causes(reading: Reading, task: TaskRecord) -> Iterator[str]:
    runs = [run for run in reading.outcome.runs if run.task_id == task.task_id]
    said = [run.says for run in runs if run.end == "raised"]
    for code in task.errors:
        if code not in said:
            yield f"error {code} is reported for the task at {task.element}, but no handler raised it"
    row = next((row for row in reading.outcome.tasks if row.task_id == task.task_id), None)
    for kind in dict.fromkeys(task.failures):
        if not _is_explained(kind, task, runs, row):
            yield f"the task at {task.element} failed for good ({kind}) without a cause"


def _is_explained(kind: str, task: TaskRecord, runs: list[HandlerRun], row: ExternalTask | None) -> bool:
    match kind:
        case "retries_exhausted":
            failed = sum(run.end == "failed" for run in runs)
            needed = 1 if row is None else row.retries
            return any(run.gave_up for run in runs) or failed >= needed * task.failures.count(kind)
        case "bpmn_error":
            return bool(task.errors)
        case "lock_expired":
            return row is None or row.single_try
        case "lock_expiries_exhausted":
            return row is None or 0 < row.lock_expiries_max <= row.attempt
        case _:
            return False


# --- phrases -------------------------------------------------------------------------------------------------------


def ended_as(reading: Reading, *statuses: str) -> Iterator[str]:
    if reading.status not in statuses:
        yield f"ended {reading.status} ({reading.reason or 'no reason'}) instead of {' or '.join(statuses)}"


def completed_are(reading: Reading, expected: Sequence[str]) -> Iterator[str]:
    """These external tasks were completed, in this order, and no others."""
    if reading.completed != list(expected):
        yield f"completed {reading.completed} instead of {list(expected)}"


def entered_are(reading: Reading, counts: Mapping[str, int]) -> Iterator[str]:
    """So many tokens came to these nodes. Other nodes do not matter."""
    for node, expected in counts.items():
        found = reading.entered.count(node)
        if found != expected:
            yield f"{node} was entered {found} times instead of {expected}"


def order_is(reading: Reading, earlier: str, later: str) -> Iterator[str]:
    """The tasks at `later` were created after those at `earlier` had been completed."""
    ends = [task.ended_at for task in reading.tasks_at(earlier)]
    begins = [task.created_at for task in reading.tasks_at(later)]
    if ends and begins and max(ends) > min(begins):
        yield f"{later} was begun before {earlier} had ended"


def runs_saw(reading: Reading, element: str, earlier: Iterable[str]) -> Iterator[str]:
    """Every handler at `element` saw the very results of the elements before it that the instance has in the end."""
    for run in reading.runs_at(element):
        for name in earlier:
            if run.saw.get(name) != reading.variables.get(name):
                yield (
                    f"attempt {run.attempt} at {element} saw {name} = {run.saw.get(name)!r}, "
                    f"which in the end is {reading.variables.get(name)!r}"
                )
