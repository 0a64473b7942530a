"""Workloads of several tokens: `parallel`, `wide`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from simulations.kernel.draws import between
from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import Behaviour, Call, StartInstance, Workload, no_events
from simulations.workloads.behaviours import ordinary
from simulations.workloads.judging import ended_as, entered_are, order_is, runs_saw
from simulations.workloads.models import Model
from simulations.workloads.reading import Reading

__all__ = ["PARALLEL", "WIDE"]

_BRANCHES = (("a1", "a2"), ("b1",), ("c1", "c2"))
_TASKS = tuple(task for branch in _BRANCHES for task in branch)
_BACKOFF = "PT0.3S"


# --- parallel ------------------------------------------------------------------------------------------------------


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


# --- wide ----------------------------------------------------------------------------------------------------------

_EQUALS = tuple(f"equal{number}" for number in range(1, 8))
_TOGETHER = (0.0, 0.06)


def _wide_model() -> Model:
    model = Model("wide").start().element("parallelGateway", "split").element("parallelGateway", "join")
    for task in _EQUALS:
        model.task(task, "wide", backoff=_BACKOFF, lock_duration="PT1S").path("split", task, "join")
    return model.end("end").path("start", "split").path("join", "end")


def _wide_behaviour(spec: InstanceSpec, call: Call) -> Behaviour:
    """All end at about the same time, whoever does them."""
    at_least = between(spec.seed, 0.1, 0.8, "together")
    return ordinary(spec, call, seconds=(at_least + _TOGETHER[0], at_least + _TOGETHER[1]), failing=0.25)


def _judge_wide(_spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    yield from ended_as(reading, "COMPLETED")
    if sorted(reading.completed) != sorted(_EQUALS):
        yield f"completed {reading.completed} instead of each of {[*_EQUALS]} once"
    yield from entered_are(reading, {**dict.fromkeys((*_EQUALS, "end"), 1), "join": len(_EQUALS)})


WIDE = Workload(
    name="wide",
    files={"wide.bpmn": _wide_model().xml()},
    topics=("wide",),
    start=lambda _: StartInstance(process="wide"),
    behave=_wide_behaviour,
    events=no_events,
    judge=_judge_wide,
)
"""Seven tasks side by side with short locks, which end at about the same time: many requests for one instance at once.

Promise: COMPLETED; each task completed once; the join fired once.
"""
