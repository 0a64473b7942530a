"""Workloads of several tokens: `parallel`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import StartInstance, Workload, no_events
from simulations.workloads.behaviours import ordinary
from simulations.workloads.judging import ended_as, entered_are, order_is, runs_saw
from simulations.workloads.models import Model
from simulations.workloads.reading import Reading

__all__ = ["PARALLEL"]

_BRANCHES = (("a1", "a2"), ("b1",), ("c1", "c2"))
_TASKS = tuple(task for branch in _BRANCHES for task in branch)
_BACKOFF = "PT0.3S"


def _model() -> Model:
    model = Model("parallel").start().element("parallelGateway", "split").element("parallelGateway", "join")
    for branch in _BRANCHES:
        for task in branch:
            model.task(task, "parallel", backoff=_BACKOFF)
        model.path("split", *branch, "join")
    model.task("last", "parallel", backoff=_BACKOFF).end("end")
    return model.path("start", "split").path("join", "last", "end")


def _judge(_spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    yield from ended_as(reading, "COMPLETED")
    if sorted(reading.completed) != sorted((*_TASKS, "last")):
        yield f"completed {reading.completed} instead of each of {[*_TASKS, 'last']} once"
    yield from entered_are(reading, {**dict.fromkeys((*_TASKS, "last", "end"), 1), "join": len(_BRANCHES)})
    for branch in _BRANCHES:
        for earlier, later in pairwise(branch):
            yield from order_is(reading, earlier, later)
            yield from runs_saw(reading, later, [earlier])
        yield from order_is(reading, branch[-1], "last")
    yield from runs_saw(reading, "last", _TASKS)


PARALLEL = Workload(
    name="parallel",
    files={"parallel.bpmn": _model().xml()},
    topics=("parallel",),
    start=lambda _: StartInstance(process="parallel"),
    behave=lambda spec, call: ordinary(spec, call, seconds=(0.02, 0.8)),
    events=no_events,
    judge=_judge,
)
"""Three branches of one or two tasks, a join, a last task.

Promise: COMPLETED; each task completed once; the join fired once, after all branches, so that the last handler saw the
results of all of them, exactly as they are in the end.
"""
