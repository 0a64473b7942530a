"""Workloads that undo what they did: `saga`, `saga_parallel`, `saga_thrown`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import (
    Behaviour,
    Call,
    Failed,
    Raised,
    StartInstance,
    Workload,
    no_events,
    option,
)
from simulations.workloads.behaviours import failed, ordinary, seconds_of
from simulations.workloads.judging import completed_are, ended_as, entered_are, order_is, runs_saw
from simulations.workloads.models import Model
from simulations.workloads.reading import Reading, Undoing

__all__ = ["SAGA", "SAGA_PARALLEL", "SAGA_THROWN"]

_BACKOFF = "PT0.3S"


# --- what was undone -----------------------------------------------------------------------------------------------


def _undoing_problems(reading: Reading, expected: Sequence[str]) -> Iterator[str]:
    """Exactly these were undone, in this order, one after the other, once each, by handlers that saw what the activity
    had left."""
    if [one.element for one in reading.undone] != list(expected):
        yield f"undid {[one.element for one in reading.undone]} instead of {list(expected)}"
    previous_end = -1
    for one in reading.undone:
        if one.began_at < previous_end or one.ended_at < 0:
            yield f"{one.handler} and another handler overlap, or it has no end"
        previous_end = one.ended_at
        ends = [task.end for task in reading.tasks_at(one.handler)]
        if ends != ["TaskCompleted"]:
            yield f"the tasks of {one.handler} ended as {ends} instead of one that was completed"
        yield from _handler_saw(reading, one)


def _handler_saw(reading: Reading, one: Undoing) -> Iterator[str]:
    for run in reading.runs_at(one.handler):
        for name, value in one.variables.items():
            if run.saw.get(name) != value:
                yield f"{one.handler} saw {name} = {run.saw.get(name)!r}, but {one.element} had left {value!r}"


def _completed_of(reading: Reading, elements: Sequence[str]) -> list[str]:
    return [element for element in reading.completed if element in elements]


# --- saga ----------------------------------------------------------------------------------------------------------

_STEPS = ("reserve", "charge", "ship")
_FAILS_AT = ("nowhere", "ship", "charge", "reserve")
_WAYS = ("error", "gives_up", "exhausts")


def _saga_model() -> Model:
    model = Model("saga", policy="compensate").start()
    for step in _STEPS:
        model.task(step, "saga", backoff=_BACKOFF).handler(f"undo_{step}", "saga_undo", step, backoff=_BACKOFF)
    return model.end("end").path("start", *_STEPS, "end")


def _saga_behaviour(spec: InstanceSpec, call: Call) -> Behaviour:
    # Only the first step can have an incident: also one of locks that ran out, before a later step that fails.
    is_repaired = call.element == _STEPS[0] and call.variables.get("repaired")
    if call.element != option(spec, "fails_at", _FAILS_AT) or is_repaired:
        return ordinary(spec, call)
    way = option(spec, "way", _WAYS)
    then: Raised | Failed = Raised("declined")
    if way == "gives_up":
        then = Failed(f"{call.element} gives up", retries=0)
    elif way == "exhausts":
        then = failed(spec, call)
    return Behaviour(seconds=seconds_of(spec, call, (0.02, 0.4)), then=then)


def _judge_saga(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    done = _completed_of(reading, _STEPS)
    yield from _forward_problems(done, reading)
    fails_at = option(spec, "fails_at", _FAILS_AT)
    if reading.status == "COMPLETED":
        yield from _undoing_problems(reading, [])
        if done != list(_STEPS):
            yield f"is completed after {done}"
        if fails_at in ("charge", "ship"):
            yield f"is completed, although {fails_at} never goes well"
        if fails_at == "reserve" and not reading.incidents_at("reserve"):
            yield "reserve goes well only after an incident, and there was none"
        return
    yield from ended_as(reading, "FAILED")
    yield from _undoing_problems(reading, done[::-1])
    yield from _failure_problems(reading, _STEPS, str(fails_at) if fails_at != "reserve" else "nowhere")
    if not done:
        yield "failed where nothing was to be undone: an incident should wait there"


def _forward_problems(done: list[str], reading: Reading) -> Iterator[str]:
    if done != list(_STEPS[: len(done)]):
        yield f"completed {done}, which is not how the steps follow each other"
    for position, step in enumerate(_STEPS):
        if reading.entered.count(step) > 1:
            yield f"{step} was entered {reading.entered.count(step)} times"
        yield from runs_saw(reading, step, _STEPS[:position])


def _failure_problems(reading: Reading, elements: Sequence[str], fails_at: str) -> Iterator[str]:
    """The instance failed at the element that always fails, or because a lock ran out too often."""
    last = [task for element in elements for task in reading.tasks_at(element) if task.end == "TaskFailed"]
    if not any(task.element == fails_at or "lock_expiries_exhausted" in task.failures[-1:] for task in last):
        yield f"failed ({reading.reason}), but nothing had failed for good but {[task.element for task in last]}"


SAGA = Workload(
    name="saga",
    files={"saga.bpmn": _saga_model().xml()},
    topics=("saga", "saga_undo"),
    start=lambda _: StartInstance(process="saga"),
    behave=_saga_behaviour,
    events=no_events,
    judge=_judge_saga,
    repair={"repaired": True},
    options={"fails_at": _FAILS_AT, "way": _WAYS},
    waits_for_operator=True,
)
"""Three steps, each with a handler that undoes it; one of them may fail for good: by a business error that nobody
catches, because the worker gives up, or because all attempts fail.

Promise: COMPLETED with nothing undone, or FAILED, and then exactly the completed steps are undone, once each, in
reverse order, one after the other, by handlers that see the variables as they were when the step was completed. It is
FAILED exactly when a later step failed for good (or lost its lock too often). The first step has nothing before it to
undo: its failure is an incident, and the operator's repair makes it go well.
"""


# --- saga_parallel -------------------------------------------------------------------------------------------------

_BOOKINGS = ("flight", "hotel")


def _parallel_model() -> Model:
    model = Model("saga_parallel", policy="compensate").start()
    model.element("parallelGateway", "split").element("parallelGateway", "join")
    for booking in _BOOKINGS:
        model.task(booking, "saga_parallel", backoff=_BACKOFF)
        model.handler(f"undo_{booking}", "saga_undo", booking, backoff=_BACKOFF)
    model.task("check", "saga_parallel", backoff=_BACKOFF).end("end").path("start", "split").path("join", "end")
    for branch in (*_BOOKINGS, "check"):
        model.path("split", branch, "join")
    return model


def _parallel_behaviour(spec: InstanceSpec, call: Call) -> Behaviour:
    if call.element in _BOOKINGS:
        return ordinary(spec, call, seconds=(0.05, 1.5))
    fails = call.element == "check" and option(spec, "fails", (False, True))
    return ordinary(spec, call, seconds=(0.05, 1.0), then=Raised("not allowed") if fails else None)


def _judge_parallel(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    fails = option(spec, "fails", (False, True))
    done = _completed_of(reading, _BOOKINGS)
    if reading.status == "COMPLETED":
        yield from _undoing_problems(reading, [])
        yield from entered_are(reading, {**dict.fromkeys((*_BOOKINGS, "check"), 1), "end": 1})
        if fails or sorted(reading.completed) != sorted((*_BOOKINGS, "check")):
            yield f"is completed after {reading.completed}"
        return
    yield from ended_as(reading, "FAILED")
    yield from entered_are(reading, {**dict.fromkeys((*_BOOKINGS, "check"), 1), "end": 0})
    yield from _undoing_problems(reading, done[::-1])
    yield from _failure_problems(reading, (*_BOOKINGS, "check"), "check" if fails else "")
    yield from _draining_problems(reading)


def _draining_problems(reading: Reading) -> Iterator[str]:
    bookings = [task for element in _BOOKINGS for task in reading.tasks_at(element)]
    for task in bookings:
        is_late = task.end == "TaskCompleted" and task.ended_at > reading.failing_at
        if is_late and not task.draining:
            yield f"{task.element} was completed after the failure without having been waited for"
    if reading.undone and any(reading.undone[0].began_at < task.ended_at for task in bookings):
        yield "compensation began before the bookings had come to an end"


SAGA_PARALLEL = Workload(
    name="saga_parallel",
    files={"saga_parallel.bpmn": _parallel_model().xml()},
    topics=("saga_parallel", "saga_undo"),
    start=lambda _: StartInstance(process="saga_parallel"),
    behave=_parallel_behaviour,
    events=no_events,
    judge=_judge_parallel,
    options={"fails": (False, True)},
)
"""Two bookings that can be undone beside a check that may fail with a business error.

Promise: COMPLETED with all three done and nothing undone; or FAILED, and then a booking is undone exactly when it was
completed, in reverse order of completion, after both had come to an end: one that is leased when the check fails is
waited for, and what its worker completes then counts and is undone (consistency.md 15).
"""


# --- saga_thrown ---------------------------------------------------------------------------------------------------

_THROWS = ("nothing", "all", "charge")
_THROWN_STEPS = ("reserve", "charge")


def _thrown_model() -> Model:
    model = Model("saga_thrown", errors=("all", "charge")).start()
    for step in _THROWN_STEPS:
        model.task(step, "saga_thrown", backoff=_BACKOFF).handler(f"undo_{step}", "saga_undo", step, backoff=_BACKOFF)
    model.task("ship", "saga_thrown", backoff=_BACKOFF).task("notify", "saga_thrown", backoff=_BACKOFF)
    for code, ref in (("all", ""), ("charge", ' activityRef="charge"')):
        model.boundary(f"stop_{code}", "ship", f'<errorEventDefinition errorRef="{code}"/>')
        model.element("intermediateThrowEvent", f"throw_{code}", f"<compensateEventDefinition{ref}/>")
        model.path(f"stop_{code}", f"throw_{code}", "notify")
    model.end("end").end("refused")
    return model.path("start", *_THROWN_STEPS, "ship", "end").path("notify", "refused")


def _thrown_behaviour(spec: InstanceSpec, call: Call) -> Behaviour:
    throws = str(option(spec, "throws", _THROWS))
    is_refused = call.element == "ship" and throws != "nothing"
    return ordinary(spec, call, then=Raised(throws, {"why": throws}) if is_refused else None)


def _judge_thrown(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    throws = option(spec, "throws", _THROWS)
    yield from ended_as(reading, "COMPLETED")
    if throws == "nothing":
        yield from completed_are(reading, [*_THROWN_STEPS, "ship"])
        yield from entered_are(reading, {"ship": 1, "end": 1, "notify": 0})
        yield from _undoing_problems(reading, [])
        return
    undone = ["charge"] if throws == "charge" else [*_THROWN_STEPS[::-1]]
    yield from completed_are(reading, [*_THROWN_STEPS, *(f"undo_{step}" for step in undone), "notify"])
    yield from entered_are(reading, {"ship": 1, "end": 0, f"stop_{throws}": 1, "notify": 1, "refused": 1})
    yield from _undoing_problems(reading, undone)
    if reading.variables.get("why") != throws:
        yield f"the error's variables are lost: why is {reading.variables.get('why')!r}"
    for step in undone:
        yield from order_is(reading, f"undo_{step}", "notify")


SAGA_THROWN = Workload(
    name="saga_thrown",
    files={"saga_thrown.bpmn": _thrown_model().xml()},
    topics=("saga_thrown", "saga_undo"),
    start=lambda _: StartInstance(process="saga_thrown"),
    behave=_thrown_behaviour,
    events=no_events,
    judge=_judge_thrown,
    options={"throws": _THROWS},
)
"""A business error that is caught, and then an event that undoes everything or one activity.

Promise: COMPLETED. Without the error nothing is undone; with it exactly what the event names, in reverse order, one
after the other, before the process goes on; the error's variables are there. A lock that ran out too often is an
incident and changes nothing of this.
"""
