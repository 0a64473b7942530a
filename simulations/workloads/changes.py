"""Workloads in which something changes on the way: `cancelled`, `redeployed`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulations.kernel.draws import between, chance
from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import Cancel, Redeploy, StartInstance, Workload, option
from simulations.workloads.behaviours import ordinary
from simulations.workloads.judging import completed_are, ended_as, entered_are
from simulations.workloads.models import Model
from simulations.workloads.reading import Reading

__all__ = ["CANCELLED", "REDEPLOYED"]

_BACKOFF = "PT0.3S"


# --- cancelled -----------------------------------------------------------------------------------------------------

_CANCELS = (False, True)
_EARLY = (0.0, 4.0)
_LATE = (5.0, 10.0)
_ENDED = 409


def _cancelled_model() -> Model:
    """Two leases at a time, then one."""
    model = Model("cancelled").start().element("parallelGateway", "split").element("parallelGateway", "join")
    for task in ("left", "right", "last"):
        model.task(task, "cancelled", backoff=_BACKOFF)
    model.end("end").path("start", "split").path("split", "left", "join").path("split", "right", "join")
    return model.path("join", "last", "end")


def _cancels(spec: InstanceSpec) -> tuple[Cancel, ...]:
    if not option(spec, "cancels", _CANCELS):
        return ()
    limits = _LATE if chance(spec.seed, 0.3, "cancels late") else _EARLY
    return (Cancel(after=between(spec.seed, *limits, "cancels after"), reason=f"{spec.key} is not wanted"),)


def _judge_cancelled(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    cancels = _cancels(spec)
    if reading.status == "CANCELLED":
        if [cancel.reason for cancel in cancels] != [reading.reason]:
            yield f"is cancelled with the reason {reading.reason!r}"
        for task in reading.tasks:
            if task.end not in ("TaskCompleted", "TaskCancelled"):
                yield f"is cancelled, and the task at {task.element} ended as {task.end or 'nothing'}"
    else:
        yield from ended_as(reading, "COMPLETED")
        if sorted(reading.completed) != ["last", "left", "right"]:
            yield f"is completed after {reading.completed}"
    yield from entered_are(reading, {"left": 1, "right": 1, "end": int(reading.status == "COMPLETED")})
    for answer in reading.outcome.events:
        if answer.status == 200 and reading.status != "CANCELLED":
            yield f"was cancelled, says an answer, but ended {reading.status}"
        if answer.status == _ENDED and not answer.unanswered and reading.status == "CANCELLED":
            yield "could not be cancelled, says the only answer, but is"


CANCELLED = Workload(
    name="cancelled",
    files={"cancelled.bpmn": _cancelled_model().xml()},
    topics=("cancelled",),
    start=lambda _: StartInstance(process="cancelled"),
    behave=lambda spec, call: ordinary(spec, call, seconds=(0.3, 2.5)),
    events=_cancels,
    judge=_judge_cancelled,
    options={"cancels": _CANCELS},
)
"""The client cancels while two tasks are leased (or before, or when it is too late).

Promise: CANCELLED with the client's reason, every open task cancelled; or COMPLETED with all tasks done. The client's
answer tells which: 200 means cancelled, and 409 (if no request before it stayed without an answer) means that it had
ended otherwise.
"""


# --- redeployed ----------------------------------------------------------------------------------------------------

_REDEPLOYS = (False, True)
_BASE = "base"
_FILE = "redeployed.bpmn"


def _variant(tag: str) -> bytes:
    """The ids say which variant it is."""
    model = Model("redeployed").start()
    steps = _elements(tag)
    for step in steps:
        model.task(step, "redeployed", backoff=_BACKOFF)
    return model.end("end").path("start", *steps, "end").xml()


def _elements(tag: str) -> tuple[str, str]:
    return f"step1.{tag}", f"step2.{tag}"


def _redeploys(spec: InstanceSpec) -> tuple[Redeploy, ...]:
    if not option(spec, "redeploys", _REDEPLOYS):
        return ()
    after = between(spec.seed, 0.0, 1.5, "redeploys after")
    return (Redeploy(after=after, file=_FILE, xml=_variant(spec.key)),)


def _tag(reading: Reading) -> str:
    return reading.tasks[0].element.partition(".")[2] if reading.tasks else ""


def _judge_redeployed(_spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    steps = _elements(_tag(reading))
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, steps)
    yield from entered_are(reading, {**dict.fromkeys(steps, 1), "end": 1})


def _judge_together(pairs: Sequence[tuple[InstanceSpec, Reading]]) -> Iterator[str]:
    deployed = {_BASE, *(spec.key for spec, _ in pairs if _redeploys(spec))}
    tags: dict[int, str] = {}
    for spec, reading in pairs:
        tag = _tag(reading)
        if tag not in deployed:
            yield f"{spec.key} ran the variant {tag!r}, which nobody deployed"
        if tags.setdefault(reading.version, tag) != tag:
            yield f"version {reading.version} is {tags[reading.version]!r} and {tag!r}"
        yield from _too_old(spec, reading, pairs)


def _too_old(spec: InstanceSpec, reading: Reading, pairs: Sequence[tuple[InstanceSpec, Reading]]) -> Iterator[str]:
    for other, other_reading in pairs:
        for answer in other_reading.outcome.events:
            if answer.answered is None or answer.version is None:
                continue
            if answer.answered < reading.outcome.start_sent and reading.version < answer.version:
                yield (
                    f"{spec.key} was asked for after {other.key} had deployed version {answer.version}, "
                    f"but has version {reading.version}"
                )


REDEPLOYED = Workload(
    name="redeployed",
    files={_FILE: _variant(_BASE)},
    topics=("redeployed",),
    start=lambda _: StartInstance(process="redeployed"),
    behave=lambda spec, call: ordinary(spec, call, seconds=(0.1, 1.5)),
    events=_redeploys,
    judge=_judge_redeployed,
    judge_together=_judge_together,
    options={"redeploys": _REDEPLOYS},
)
"""New versions of the process are deployed while its instances run.

Promise: COMPLETED; an instance runs the version that it began with to its end, never a step of another. A version is
one file. Who asks for an instance after a deployment was acknowledged gets that version or a newer one.
"""
