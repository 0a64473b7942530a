"""One step of an instance in the making: the commands, what they come to, and whom its guards may refuse."""

from __future__ import annotations

from collections.abc import Sequence

from stellwerk.actors.mailbox import Reply
from stellwerk.core.commands import (
    Command,
    CompleteTask,
    CorrelateMessage,
    EndDraining,
    EndTaskInFailure,
    FailureKind,
    FireTimer,
    GiveUpTask,
    ResolveIncident,
    StartInstance,
    ThrowBpmnError,
)
from stellwerk.core.decide import Decision, TaskFinal
from stellwerk.core.external_task import OutcomeKind
from stellwerk.core.facts import Fact
from stellwerk.core.instance import InstanceState
from stellwerk.errors import InvariantBroken, NotFound, PeerError, StellwerkError
from stellwerk.json_values import dumps
from stellwerk.ports import CheckRepeat, LeaseAnswer, LeaseAnswerKind, TaskEnding
from stellwerk.values import frozen

__all__ = ["Envelope", "Step", "answer_lease", "endings_of", "messages_of", "repeat_of", "subjects_of"]


@frozen
class Envelope:
    """A command and whom to tell. The reply's value is a `LeaseAnswerKind` for requests of workers, else None."""

    command: Command
    reply: Reply[LeaseAnswerKind]
    must_be_newest: bool = False
    """For `StartInstance`: only if no newer version of the process is deployed when it commits (consistency.md 7)."""


@frozen
class Step:
    """What a batch of commands comes to."""

    accepted: tuple[Envelope, ...]
    refused: tuple[tuple[Envelope, StellwerkError], ...]
    facts: tuple[Fact, ...]
    endings: tuple[TaskEnding, ...]
    state: InstanceState | None


def answer_lease(envelope: Envelope, answer: LeaseAnswer) -> None:
    kind = answer.kind
    if kind in (LeaseAnswerKind.DONE, LeaseAnswerKind.REPEATED):
        envelope.reply.set(kind)
    elif kind is LeaseAnswerKind.UNKNOWN:
        envelope.reply.fail(NotFound("there is no such task"))
    else:
        envelope.reply.fail(PeerError(f"the lease is not valid any more ({kind.value})", code=kind.value))


def messages_of(envelopes: Sequence[Envelope]) -> list[str]:
    commands = (envelope.command for envelope in envelopes)
    starting = (command for command in commands if isinstance(command, CorrelateMessage | StartInstance))
    return [command.message_id for command in starting if command.message_id is not None]


def subjects_of(command: Command) -> tuple[str, ...]:
    """The ids of rows that a command's guards may name."""
    match command:
        case CompleteTask() | ThrowBpmnError() | EndTaskInFailure() | EndDraining() | GiveUpTask():
            return (command.task_id,)
        case CorrelateMessage():
            return (command.message_id, command.subscription_id)
        case StartInstance():
            return (command.message_id,) if command.message_id is not None else ()
        case FireTimer():
            return (command.timer_id,)
        case ResolveIncident():
            return (command.incident_id,)
        case _:
            return ()


def repeat_of(command: Command) -> CheckRepeat | None:
    match command:
        case CompleteTask():
            kind = OutcomeKind.COMPLETE
        case ThrowBpmnError():
            kind = OutcomeKind.BPMN_ERROR
        case EndTaskInFailure() if command.request_digest is not None:
            kind = OutcomeKind.FAIL
        case _:
            return None
    assert command.request_digest is not None
    return CheckRepeat(command.task_id, command.fence, kind, command.request_digest, command.worker_id)


def endings_of(command: Command, decision: Decision) -> list[TaskEnding]:
    return [_ending(command, final) for final in decision.endings]


def _ending(command: Command, final: TaskFinal) -> TaskEnding:
    match command:
        case CompleteTask():
            return TaskEnding(
                final.task_id,
                command.fence,
                final.final_state,
                OutcomeKind.COMPLETE,
                command.request_digest,
                worker_id=command.worker_id,
            )
        case ThrowBpmnError():
            return TaskEnding(
                final.task_id,
                command.fence,
                final.final_state,
                OutcomeKind.BPMN_ERROR,
                command.request_digest,
                message=f"{command.error_code}: {command.message}" if command.message else command.error_code,
                details=dumps(command.details),
                worker_id=command.worker_id,
            )
        case EndTaskInFailure():
            return TaskEnding(
                final.task_id,
                command.fence,
                final.final_state,
                OutcomeKind.FAIL if command.request_digest is not None else None,
                command.request_digest,
                message=command.message,
                details=dumps(command.details) if command.details is not None else None,
                worker_id=command.worker_id,
                worker_gives_up=command.worker_gives_up,
                only_past_due=command.kind in (FailureKind.LOCK_EXPIRED, FailureKind.LOCK_EXPIRIES_EXHAUSTED),
            )
        case EndDraining():
            return TaskEnding(final.task_id, None, final.final_state, None, None)
        case GiveUpTask():
            return TaskEnding(final.task_id, None, final.final_state, None, None, message=command.message)
        case _:
            raise InvariantBroken(f"{type(command).__name__} ended a task")
