"""Workloads of one token: `sequence`, `slow`, `storm`."""

from __future__ import annotations

from collections.abc import Iterator

from simulations.kernel.draws import between, chance
from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import Behaviour, Call, Returned, StartInstance, Workload, no_events, option
from simulations.workloads.behaviours import ordinary, seconds_of
from simulations.workloads.judging import completed_are, ended_as, entered_are, runs_saw
from simulations.workloads.models import Model
from simulations.workloads.reading import Reading

__all__ = ["SEQUENCE", "SLOW", "STORM"]

_STEPS = (1, 2, 3, 4)
_BACKOFF = "PT0.3S"


# --- sequence ------------------------------------------------------------------------------------------------------


def _steps(spec: InstanceSpec) -> list[str]:
    count = int(option(spec, "steps", _STEPS))
    return [f"step{number}" for number in range(1, count + 1)]


def _sequence_model() -> Model:
    """As many steps as the variable ``steps`` says: behind each but the last is a way out."""
    model = Model("sequence").start().path("start", "step1")
    for number in _STEPS:
        model.task(f"step{number}", "sequence", backoff=_BACKOFF)
        if number == _STEPS[-1]:
            model.path(f"step{number}", "end")
        else:
            model.path(f"step{number}", f"more{number}")
            model.choice(f"more{number}", otherwise="end", **{f"step{number + 1}": f"=steps > {number}"})
    return model.end("end")


def _judge_sequence(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    steps = _steps(spec)
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, steps)
    yield from entered_are(reading, {**dict.fromkeys(steps, 1), "end": 1})
    for position, step in enumerate(steps):
        yield from runs_saw(reading, step, steps[:position])


SEQUENCE = Workload(
    name="sequence",
    files={"sequence.bpmn": _sequence_model().xml()},
    topics=("sequence",),
    start=lambda spec: StartInstance(process="sequence", variables={"steps": len(_steps(spec))}),
    behave=ordinary,
    events=no_events,
    judge=_judge_sequence,
    options={"steps": _STEPS},
)
"""One to four tasks one after the other.

Promise: COMPLETED; each step completed once, in order; each handler saw the results of the steps before, exactly as
they are in the end. A task whose locks ran out too often waits for the operator and is then done like any other.
"""


# --- slow ----------------------------------------------------------------------------------------------------------


def _slow_behaviour(spec: InstanceSpec, call: Call) -> Behaviour:
    """Several times as long as the lock of one second; some ask for more time themselves."""
    extends = chance(spec.seed, 0.3, "extends", call.attempt)
    return Behaviour(
        seconds=seconds_of(spec, call, (1.5, 4.5)),
        then=Returned(),
        extend_seconds=between(spec.seed, 1.0, 6.0, "extension", call.attempt) if extends else None,
        crash=call.attempt == 1 and chance(spec.seed, 0.1, "crash"),
    )


def _judge_one(_spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, ["work"])
    yield from entered_are(reading, {"work": 1, "end": 1})


def _one_task(name: str, **attributes: str) -> bytes:
    model = Model(name).start().task("work", name, backoff=_BACKOFF, **attributes).end("end")
    return model.path("start", "work", "end").xml()


SLOW = Workload(
    name="slow",
    files={"slow.bpmn": _one_task("slow", lock_duration="PT1S")},
    topics=("slow",),
    start=lambda _: StartInstance(process="slow"),
    behave=_slow_behaviour,
    events=no_events,
    judge=_judge_one,
)
"""A handler that takes longer than its lock, which must be renewed again and again.

Promise: COMPLETED; the task completed once, by a run that held its lease to the end. Without faults there is one run.
"""


# --- storm ---------------------------------------------------------------------------------------------------------

STORM = Workload(
    name="storm",
    files={"storm.bpmn": _one_task("storm")},
    topics=("storm",),
    start=lambda _: StartInstance(process="storm"),
    behave=lambda spec, call: ordinary(spec, call, failing=0.3),
    events=no_events,
    judge=_judge_one,
)
"""One task for which very many workers wait. Promise: as `SLOW`."""
