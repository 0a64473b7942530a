"""Workloads that wait for messages and people: `message_race`, `messages`, `message_start`, `user_task`."""

from __future__ import annotations

from collections.abc import Iterator

from simulations.kernel.draws import between
from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import CompleteUserTask, Publish, StartInstance, Workload, no_events, option
from simulations.workloads.behaviours import ordinary
from simulations.workloads.judging import completed_are, ended_as, entered_are, runs_saw
from simulations.workloads.models import Model
from simulations.workloads.reading import Reading

__all__ = ["MESSAGES", "MESSAGE_RACE", "MESSAGE_START", "USER_TASK"]

_BACKOFF = "PT0.3S"
_HOUR_MS = 3_600_000


def _catch(name: str) -> str:
    return f'<messageEventDefinition messageRef="{name}"/>'


# --- message_race --------------------------------------------------------------------------------------------------

_SENT = ("never", "early", "late")
_AFTER = {"early": (0.0, 1.0), "late": (1.5, 3.5)}
_TTL_MS = {"early": None, "late": 0}
"""Who sends late means whoever waits by then, and not for long: also when the engine is away meanwhile."""


def _race_model() -> Model:
    model = Model("message_race", messages=("paid",)).start().task("ask", "message_race", backoff=_BACKOFF)
    model.element("eventBasedGateway", "which").element("intermediateCatchEvent", "payment", _catch("paid"))
    timer = "<timerEventDefinition><timeDuration>PT2S</timeDuration></timerEventDefinition>"
    model.element("intermediateCatchEvent", "deadline", timer)
    for task in ("thank", "remind"):
        model.task(task, "message_race", backoff=_BACKOFF)
    model.end("end").end("reminded").path("start", "ask", "which")
    return model.path("which", "payment", "thank", "end").path("which", "deadline", "remind", "reminded")


def _race_events(spec: InstanceSpec) -> tuple[Publish, ...]:
    sent = str(option(spec, "sent", _SENT))
    if sent == "never":
        return ()
    after = between(spec.seed, *_AFTER[sent], "sent after")
    message_id = f"paid {spec.key}"
    publish = Publish(
        after=after,
        name="paid",
        key=spec.key,
        message_id=message_id,
        variables={"amount": 12},
        ttl_ms=_TTL_MS[sent],
    )
    return (publish,)


def _judge_race(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    expected = [("payment", event.message_id) for event in _race_events(spec)]
    happened = bool(reading.messages)
    if happened and reading.messages != expected:
        yield f"took the messages {reading.messages} instead of {expected}"
    if reading.timers_fired != ([] if happened else ["deadline"]):
        yield f"took {len(reading.messages)} messages, and the timers fired: {reading.timers_fired}"
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, ["ask", "thank" if happened else "remind"])
    ways = {"payment": happened, "thank": happened, "end": happened}
    ways |= {"deadline": not happened, "remind": not happened, "reminded": not happened}
    yield from entered_are(reading, {"which": 1, **{node: int(taken) for node, taken in ways.items()}})
    if reading.variables.get("amount") != (12 if happened else None):
        yield f"the message's variables: amount is {reading.variables.get('amount')!r}"


MESSAGE_RACE = Workload(
    name="message_race",
    files={"message_race.bpmn": _race_model().xml()},
    topics=("message_race",),
    start=lambda _: StartInstance(process="message_race"),
    behave=ordinary,
    events=_race_events,
    judge=_judge_race,
    options={"sent": _SENT},
)
"""A message against a timer behind an event-based gateway. The message may come before the token does, or never.

Promise: COMPLETED by exactly one of the two ways. Either the message was taken (once, and its variables are there) and
the timer never fired, or the timer fired once and no message was taken. Which of them is not promised.
"""


# --- messages ------------------------------------------------------------------------------------------------------


def _messages_model() -> Model:
    model = Model("messages", messages=("news",)).start().task("work", "messages", backoff=_BACKOFF)
    model.element("intermediateCatchEvent", "first", _catch("news"))
    model.element("receiveTask", "second", messageRef="news").end("end")
    return model.path("start", "work", "first", "second", "end")


def _messages_events(spec: InstanceSpec) -> tuple[Publish, ...]:
    """Both may be there before anybody waits for them; the second is sent when the first was acknowledged."""
    after = between(spec.seed, 0.0, 1.5, "first after")
    pause = between(spec.seed, 0.0, 0.5, "pause")
    return tuple(
        Publish(
            after=at,
            name="news",
            key=spec.key,
            message_id=f"{name} {spec.key}",
            variables={f"by_{name}": name},
            ttl_ms=ttl_ms,
        )
        for name, at, ttl_ms in (("first", after, None), ("second", after + pause, _HOUR_MS))
    )


def _judge_messages(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, ["work"])
    yield from entered_are(reading, {"work": 1, "first": 1, "second": 1, "end": 1})
    expected = [("first", f"first {spec.key}"), ("second", f"second {spec.key}")]
    if reading.messages != expected:
        yield f"took the messages {reading.messages} instead of {expected}"
    for name in ("first", "second"):
        if reading.variables.get(f"by_{name}") != name:
            yield f"the variables of the {name} message are lost"


MESSAGES = Workload(
    name="messages",
    files={"messages.bpmn": _messages_model().xml()},
    topics=("messages",),
    start=lambda _: StartInstance(process="messages"),
    behave=ordinary,
    events=_messages_events,
    judge=_judge_messages,
)
"""Two messages with one name and key, for two events one after the other.

Promise: COMPLETED; each message was taken exactly once, in the order in which they were sent (the second was sent when
the first was acknowledged), and the variables of both are there. However often the client repeats one, it counts once.
"""


# --- message_start -------------------------------------------------------------------------------------------------


def _start_model() -> Model:
    model = Model("message_start", messages=("ordered",)).start("begin", message="ordered")
    return model.task("work", "message_start", backoff=_BACKOFF).end("end").path("begin", "work", "end")


def _ordered(spec: InstanceSpec) -> Publish:
    return Publish(
        after=0.0, name="ordered", key=spec.key, message_id=f"ordered {spec.key}", variables={"item": spec.key}
    )


def _judge_start(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, ["work"])
    yield from entered_are(reading, {"begin": 1, "work": 1, "end": 1})
    expected = [("begin", f"ordered {spec.key}")]
    if reading.messages != expected:
        yield f"took the messages {reading.messages} instead of {expected}"
    for run in reading.runs_at("work"):
        if run.saw.get("item") != spec.key:
            yield f"attempt {run.attempt} saw item = {run.saw.get('item')!r} instead of {spec.key!r}"


MESSAGE_START = Workload(
    name="message_start",
    files={"message_start.bpmn": _start_model().xml()},
    topics=("message_start",),
    start=_ordered,
    behave=ordinary,
    events=no_events,
    judge=_judge_start,
)
"""An instance that a message starts. Promise: exactly one instance, however often the message is repeated, with its
variables; COMPLETED."""


# --- user_task -----------------------------------------------------------------------------------------------------


def _user_model() -> Model:
    model = Model("user_task").start().element("userTask", "approve").task("book", "user_task", backoff=_BACKOFF)
    return model.end("end").path("start", "approve", "book", "end")


def _user_events(spec: InstanceSpec) -> tuple[CompleteUserTask, ...]:
    after = between(spec.seed, 0.0, 2.0, "approved after")
    return (CompleteUserTask(after=after, element="approve", variables={"approved": spec.key}),)


def _judge_user(spec: InstanceSpec, reading: Reading) -> Iterator[str]:
    yield from ended_as(reading, "COMPLETED")
    yield from completed_are(reading, ["book"])
    yield from entered_are(reading, {"approve": 1, "book": 1, "end": 1})
    if reading.user_tasks_completed != ["approve"]:
        yield f"the user tasks that were completed are {reading.user_tasks_completed}"
    if reading.variables.get("approved") != spec.key:
        yield f"approved is {reading.variables.get('approved')!r} instead of {spec.key!r}"
    yield from runs_saw(reading, "book", ["approved"])


USER_TASK = Workload(
    name="user_task",
    files={"user_task.bpmn": _user_model().xml()},
    topics=("user_task",),
    start=lambda _: StartInstance(process="user_task"),
    behave=ordinary,
    events=_user_events,
    judge=_judge_user,
)
"""A person completes a task, then a worker one. Promise: COMPLETED; the person's task was completed once, with the
person's variables, which the handler sees, however often the request is repeated."""
