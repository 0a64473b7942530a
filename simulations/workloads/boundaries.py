"""Workloads in which an event at an activity's boundary races its completion: `boundary_timer`, `reminders`,
`withdrawal`."""

from __future__ import annotations

from collections.abc import Iterator

from simulations.kernel.draws import between
from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import Publish, StartInstance, Workload, no_events, option
from simulations.workloads.behaviours import ordinary
from simulations.workloads.judging import completed_are, ended_as, entered_are
from simulations.workloads.models import Model
from simulations.workloads.reading import Reading, TaskRecord

__all__ = ["BOUNDARY_TIMER", "REMINDERS", "WITHDRAWAL"]

_BACKOFF = "PT0.3S"


def _timer(kind: str, text: str) -> str:
    return f"<timerEventDefinition><{kind}>{text}</{kind}></timerEventDefinition>"


def _raced_model(key: str, inner: str, *messages: str) -> Model:
    """A task with an interrupting boundary event, which leads to a task of its own."""
    model = Model(key, messages=messages).start().task("work", key, backoff=_BACKOFF).boundary("event", "work", inner)
    model.task("instead", key, backoff=_BACKOFF).end("end").end("interrupted")
    return model.path("start", "work", "end").path("event", "instead", "interrupted")


def _judge_race(reading: Reading, *, happened: bool) -> Iterator[str]:
    """Either the event happened or the task was completed: never both, never neither."""
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, ["instead"] if happened else ["work"])
    yield from entered_are(
        reading,
        {"work": 1, "event": int(happened), "instead": int(happened), "end": int(not happened)},
    )
    (*_, task) = reading.tasks_at("work") or [TaskRecord(task_id="", element="work", created_at=0)]
    expected = "TaskCancelled" if happened else "TaskCompleted"
    if task.end != expected:
        yield f"the task at work ended as {task.end or 'nothing'} instead of {expected}"


# --- boundary_timer ------------------------------------------------------------------------------------------------


def _judge_boundary_timer(_spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    if reading.timers_fired not in ([], ["event"]):
        yield f"the timers fired: {reading.timers_fired}"
    yield from _judge_race(reading, happened=bool(reading.timers_fired))


BOUNDARY_TIMER = Workload(
    name="boundary_timer",
    files={"boundary_timer.bpmn": _raced_model("boundary_timer", _timer("timeDuration", "PT2S")).xml()},
    topics=("boundary_timer",),
    start=lambda _: StartInstance(process="boundary_timer"),
    behave=lambda spec, call: ordinary(spec, call, seconds=(1.0, 2.6) if call.element == "work" else (0.02, 0.4)),
    events=no_events,
    judge=_judge_boundary_timer,
)
"""An interrupting timer of two seconds at a task that takes about as long.

Promise: COMPLETED by exactly one of the two ways. The timer fired at most once; if it did, the task is cancelled, its
result is nowhere, whatever its handler did, and the task behind the timer is completed; if not, the task is completed.
"""


# --- reminders -----------------------------------------------------------------------------------------------------

_REMINDERS_MAX = 3


def _reminders_model() -> Model:
    model = Model("reminders").start().task("work", "reminders", backoff=_BACKOFF).end("end").end("reminded")
    model.boundary("event", "work", _timer("timeCycle", f"R{_REMINDERS_MAX}/PT0.8S"), interrupting=False)
    model.task("remind", "reminders", backoff=_BACKOFF)
    return model.path("start", "work", "end").path("event", "remind", "reminded")


def _judge_reminders(_spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    fired = len(reading.timers_fired)
    yield from ended_as(reading, "COMPLETED")
    if fired > _REMINDERS_MAX:
        yield f"the timer fired {fired} times"
    expected = {"work": 1, "event": fired, "remind": fired, "reminded": fired, "end": 1}
    yield from entered_are(reading, expected)
    if reading.completed.count("work") != 1 or reading.completed.count("remind") != fired:
        yield f"completed {reading.completed} after {fired} reminders"


REMINDERS = Workload(
    name="reminders",
    files={"reminders.bpmn": _reminders_model().xml()},
    topics=("reminders",),
    start=lambda _: StartInstance(process="reminders"),
    behave=lambda spec, call: ordinary(spec, call, seconds=(0.5, 3.5) if call.element == "work" else (0.02, 0.4)),
    events=no_events,
    judge=_judge_reminders,
)
"""A task that is reminded of up to three times, by a cycle that does not interrupt it.

Promise: COMPLETED; the task completed once; at most three reminders, each of which went its own way to the end once.
"""


# --- withdrawal ----------------------------------------------------------------------------------------------------

_WITHDRAWS = (False, True)


def _withdrawal_events(spec: InstanceSpec) -> tuple[Publish, ...]:
    if not option(spec, "withdraws", _WITHDRAWS):
        return ()
    after = between(spec.seed, 0.0, 3.0, "withdraws after")
    message_id = f"withdrawn {spec.key}"
    return (Publish(after=after, name="withdrawn", key=spec.key, message_id=message_id, variables={"by": "client"}),)


def _judge_withdrawal(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    expected = [("event", event.message_id) for event in _withdrawal_events(spec)]
    if reading.messages not in ([], expected):
        yield f"took the messages {reading.messages} instead of {expected} or none"
    yield from _judge_race(reading, happened=bool(reading.messages))
    if reading.variables.get("by") != ("client" if reading.messages else None):
        yield f"the message's variables: by is {reading.variables.get('by')!r} after {len(reading.messages)} messages"


WITHDRAWAL = Workload(
    name="withdrawal",
    files={
        "withdrawal.bpmn": _raced_model(
            "withdrawal", '<messageEventDefinition messageRef="withdrawn"/>', "withdrawn"
        ).xml()
    },
    topics=("withdrawal",),
    start=lambda _: StartInstance(process="withdrawal"),
    behave=lambda spec, call: ordinary(spec, call, seconds=(0.5, 2.5) if call.element == "work" else (0.02, 0.4)),
    events=_withdrawal_events,
    judge=_judge_withdrawal,
    options={"withdraws": _WITHDRAWS},
)
"""A message that interrupts a task, sent by the client while the task is leased (or before, or after, or never).

Promise: COMPLETED by exactly one of the two ways, as for `BOUNDARY_TIMER`; the message was taken at most once, and its
variables are there exactly if it was. A message that comes too late stays where it is and changes nothing.
"""
