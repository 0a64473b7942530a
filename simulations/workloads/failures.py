"""Workloads in which something fails: `retries`, `single_try`, `single_try_caught`, `poison`, `errors`."""

from __future__ import annotations

from collections.abc import Iterator

from simulations.kernel.draws import between, chance, integer
from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import (
    Behaviour,
    Call,
    Failed,
    Raised,
    Returned,
    StartInstance,
    Workload,
    no_events,
    option,
)
from simulations.workloads.behaviours import failed, ordinary, seconds_of
from simulations.workloads.judging import completed_are, ended_as, entered_are
from simulations.workloads.models import Model
from simulations.workloads.reading import Reading

__all__ = ["ERRORS", "POISON", "RETRIES", "SINGLE_TRY", "SINGLE_TRY_CAUGHT"]


def _one_task(name: str, **attributes: str) -> Model:
    return Model(name).start().task("work", name, **attributes).end("end").path("start", "work", "end")


def _judge_one(reading: Reading) -> Iterator[str]:
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, ["work"])
    yield from entered_are(reading, {"work": 1, "end": 1})


# --- retries -------------------------------------------------------------------------------------------------------

_RETRIES = 4
_FAILURES = (0, 1, 2, 3)
"""Fewer than the retries."""
_GIVES_UP = (False, True)


def _retries_behaviour(spec: InstanceSpec, call: Call) -> Behaviour:
    """The first attempts fail. One that "gives up" says that none are left, in the last of them."""
    failures = int(option(spec, "failures", _FAILURES))
    then: Returned | Failed = Returned()
    if call.attempt <= failures:
        then = failed(spec, call)
        if call.attempt == failures and option(spec, "gives_up", _GIVES_UP):
            then = Failed(then.message, retry_after=0.1, retries=0)
        elif chance(spec.seed, 0.2, "explicit", call.attempt):
            then = Failed(then.message, retry_after=0.2, retries=_RETRIES)
    return Behaviour(seconds=seconds_of(spec, call, (0.02, 0.3)), then=then)


def _judge_retries(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    """An attempt whose lease was lost does not fail, so there may be fewer failures than were meant, never more."""
    yield from _judge_one(reading)
    failures = int(option(spec, "failures", _FAILURES))
    gives_up = failures > 0 and bool(option(spec, "gives_up", _GIVES_UP))
    kinds = [kind for task in reading.tasks_at("work") for kind in task.failures]
    if kinds.count("retries_exhausted") > gives_up:
        yield f"failed for good {kinds}, although the worker gave up {int(gives_up)} times"


RETRIES = Workload(
    name="retries",
    files={"retries.bpmn": _one_task("retries", retries=str(_RETRIES), backoff="PT0.2S,PT0.5S").xml()},
    topics=("retries",),
    start=lambda _: StartInstance(process="retries"),
    behave=_retries_behaviour,
    events=no_events,
    judge=_judge_retries,
    options={"failures": _FAILURES, "gives_up": _GIVES_UP},
    waits_for_operator=True,
)
"""A task whose first attempts fail, with and without a say in when the next one comes and how many are left.

Promise: COMPLETED; completed once, by a later attempt. The retries are never used up by what was not a failure: there
is an incident only where the worker itself gave up (at most one), or the lock ran out too often.
"""


# --- single_try ----------------------------------------------------------------------------------------------------


def _single_try_behaviour(spec: InstanceSpec, call: Call) -> Behaviour:
    """Some lose power when the work is done: nobody will ever know."""
    if call.element != "work":
        return ordinary(spec, call)
    crash = call.attempt == 1 and chance(spec.seed, 0.25, "crash")
    return Behaviour(seconds=seconds_of(spec, call, (0.1, 1.5)), then=Returned(), crash=crash)


def _begun_too_often(reading: Reading) -> Iterator[str]:
    """No handler of these fails or raises: only the operator can have it done once more."""
    for task in reading.tasks_at("work"):
        begun = sum(run.task_id == task.task_id for run in reading.outcome.runs)
        if begun > 1 + task.requeues:
            yield f"a single try was begun {begun} times, with {task.requeues} incidents resolved"


def _judge_single_try(_spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    yield from _judge_one(reading)
    yield from _begun_too_often(reading)


SINGLE_TRY = Workload(
    name="single_try",
    files={"single_try.bpmn": _one_task("single_try", single_try="true").xml()},
    topics=("single_try",),
    start=lambda _: StartInstance(process="single_try"),
    behave=_single_try_behaviour,
    events=no_events,
    judge=_judge_single_try,
)
"""A task that must not be begun twice; some of its workers lose power at the worst moment.

Promise: COMPLETED; no handler begins it a second time unless the operator resolved the incident that an expired lock
opened in between. (A lease that no handler ever began may be given again.)
"""


def _caught_model() -> Model:
    model = Model("single_try_caught", errors=("expired",)).start().task("work", "single_try_caught", single_try="true")
    # The code of the engine's own error has a colon, which an id must not have.
    model.boundary("event", "work", '<errorEventDefinition errorRef="expired"/>')
    model.task("inquire", "single_try_caught").end("end").end("inquired")
    return model.path("start", "work", "end").path("event", "inquire", "inquired")


def _caught_xml() -> bytes:
    return _caught_model().xml().replace(b'errorCode="expired"', b'errorCode="stellwerk:lock-expired"')


def _judge_caught(_spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    expired = any(error.caught_by == "event" for error in reading.errors)
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, ["inquire"] if expired else ["work"])
    yield from entered_are(
        reading, {"work": 1, "event": int(expired), "inquired": int(expired), "end": int(not expired)}
    )
    yield from _begun_too_often(reading)
    for task in reading.tasks_at("work"):
        if task.requeues or task.failures != (["lock_expired"] if expired else []):
            yield f"the task at work failed for good {task.failures} and was offered again {task.requeues} times"


SINGLE_TRY_CAUGHT = Workload(
    name="single_try_caught",
    files={"single_try_caught.bpmn": _caught_xml()},
    topics=("single_try_caught",),
    start=lambda _: StartInstance(process="single_try_caught"),
    behave=_single_try_behaviour,
    events=no_events,
    judge=_judge_caught,
)
"""As `SINGLE_TRY`, but the process itself catches the expired lock and lets somebody inquire.

Promise: COMPLETED by exactly one of the two ways; no handler begins the task a second time, and there is
never an incident of it.
"""


# --- poison --------------------------------------------------------------------------------------------------------


def _poison_behaviour(spec: InstanceSpec, call: Call) -> Behaviour:
    seconds = seconds_of(spec, call, (0.02, 0.3))
    if call.variables.get("repaired"):
        return Behaviour(seconds=seconds, then=Returned())
    if integer(spec.seed, 3, "poison") == 0:
        return Behaviour(seconds=seconds, then=Raised("poison"))
    return Behaviour(seconds=seconds, then=failed(spec, call))


def _judge_poison(_spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    yield from _judge_one(reading)
    if not reading.incidents_at("work"):
        yield "went well without an incident"
    if reading.variables.get("repaired") is not True:
        yield "what the operator set is lost"
    for run in reading.runs_at("work"):
        if run.end == "returned" and run.saw.get("repaired") is not True:
            yield f"attempt {run.attempt} returned without having seen what the operator had set"


POISON = Workload(
    name="poison",
    files={"poison.bpmn": _one_task("poison", retries="2", backoff="PT0.2S").xml()},
    topics=("poison",),
    start=lambda _: StartInstance(process="poison"),
    behave=_poison_behaviour,
    events=no_events,
    judge=_judge_poison,
    repair={"repaired": True},
    waits_for_operator=True,
)
"""A task that can only fail (technically, or by an error that nobody catches) until the operator repairs its variables.

Promise: it becomes an incident; after the repair the handler sees the repaired variables, and it is COMPLETED, once.
"""


# --- errors --------------------------------------------------------------------------------------------------------

_CODES = ("none", "known", "other")


def _errors_model() -> Model:
    """Inside a subprocess, so that the error leaves its scope; a link leads from the repair to the end."""
    model = Model("errors", errors=("known",)).start().open_subprocess("inside").start("begin")
    model.task("work", "errors", backoff="PT0.3S").end("done").path("begin", "work", "done").close_subprocess()
    model.boundary("on_known", "inside", '<errorEventDefinition errorRef="known"/>')
    model.boundary("on_any", "inside", "<errorEventDefinition/>")
    for name in ("known", "any"):
        model.task(f"after_{name}", "errors", backoff="PT0.3S").path(f"on_{name}", f"after_{name}", f"go_{name}")
        model.element("intermediateThrowEvent", f"go_{name}", '<linkEventDefinition name="away"/>')
    model.element("intermediateCatchEvent", "away", '<linkEventDefinition name="away"/>')
    return model.end("end").end("handled").path("start", "inside", "end").path("away", "handled")


def _errors_behaviour(spec: InstanceSpec, call: Call) -> Behaviour:
    code = str(option(spec, "code", _CODES))
    raises = call.element == "work" and code != "none"
    pause = between(spec.seed, 0.1, 0.9, "amount")
    return ordinary(spec, call, then=Raised(code, {"amount": pause}) if raises else None)


def _judge_errors(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    code = option(spec, "code", _CODES)
    after = {"none": None, "known": "known", "other": "any"}[str(code)]
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, ["work"] if after is None else [f"after_{after}"])
    yield from entered_are(
        reading,
        {
            "work": 1,
            "on_known": int(after == "known"),
            "on_any": int(after == "any"),
            "away": int(after is not None),
            "handled": int(after is not None),
            "end": int(after is None),
        },
    )
    raised = [(error.code, error.caught_by) for error in reading.errors]
    if raised != ([] if after is None else [(code, f"on_{after}")]):
        yield f"the errors and who caught them are {raised}"
    if (reading.variables.get("amount") is not None) != (after is not None):
        yield f"the error's variables: amount is {reading.variables.get('amount')!r}"


ERRORS = Workload(
    name="errors",
    files={"errors.bpmn": _errors_model().xml()},
    topics=("errors",),
    start=lambda _: StartInstance(process="errors"),
    behave=_errors_behaviour,
    events=no_events,
    judge=_judge_errors,
    options={"code": _CODES},
)
"""A business error that leaves a subprocess: caught by the event of its code, else by the one for all codes.

Promise: COMPLETED by the one way that the handler's code asks for, and no other; the error was caught once, by the
right event, with its variables; without an error the task is completed. Technical failures in between change nothing.
"""
