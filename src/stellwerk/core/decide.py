"""Commands in, facts out: the one place where a process instance decides what happens.

`decide` is a pure function. It gives the facts and the state after them, or it raises and nothing has happened.
"""

from __future__ import annotations

from typing import assert_never

from stellwerk.core import commands as c
from stellwerk.core import facts as f
from stellwerk.core.instance import InstanceState, Token, TokenStatus
from stellwerk.core.rules.compensation import handler_ended
from stellwerk.core.rules.events import correlate_message, enter_event_node, fire_timer
from stellwerk.core.rules.flows import leave
from stellwerk.core.rules.gateways import enter_gateway
from stellwerk.core.rules.incidents import MODEL_FAULT, open_incident, report_deadlock
from stellwerk.core.rules.scopes import cancel_instance, enter_subprocess, scope_is_empty, start_instance
from stellwerk.core.rules.tasks import (
    assign_user_task,
    complete_task,
    complete_user_task,
    end_draining,
    end_task_in_failure,
    enter_task,
    finish_work,
    give_up_task,
    requeue_task,
    throw_bpmn_error,
)
from stellwerk.core.step import Context, NotOpen, Step, TaskFinal, Work
from stellwerk.errors import BpmnFault, Conflict, InvalidInput, NotFound
from stellwerk.model.process import Event, FlowNode, Gateway, SubProcess, Task
from stellwerk.values import frozen

__all__ = ["Context", "Decision", "NotOpen", "TaskFinal", "decide"]

_MESSAGE_CHARS_MAX = 1_000


@frozen
class Decision:
    facts: tuple[f.Fact, ...]
    state: InstanceState
    """After the facts."""
    endings: tuple[TaskFinal, ...] = ()
    """The task that the command ended, and what its row becomes (at most one)."""


def decide(state: InstanceState | None, command: c.Command, context: Context) -> Decision:
    """What happens when `command` is done to `state` (None: the instance does not exist). `state` is not changed.

    :raises NotOpen: when what the command names is not open here (any more): the store knows how it ended.
    :raises CallerError: NotFound, Conflict (``exists``, ``ended``), InvalidInput, LimitExceeded.
    """
    step = _begin(state, command, context)
    _run(step)
    report_deadlock(step)
    return Decision(tuple(step.facts), step.state, tuple(step.endings))


def _begin(state: InstanceState | None, command: c.Command, context: Context) -> Step:
    if isinstance(command, c.StartInstance):
        if state is not None:
            raise Conflict(f"instance {command.instance_id} exists", code="exists")
        return start_instance(command, context)
    if state is None:
        raise NotFound("the instance does not exist")
    step = Step(state.fork(), context)
    _do(step, command)
    return step


def _do(step: Step, command: c.Command) -> None:
    match command:
        case c.CompleteTask():
            complete_task(step, command)
        case c.ThrowBpmnError():
            throw_bpmn_error(step, command)
        case c.EndTaskInFailure():
            end_task_in_failure(step, command)
        case c.EndDraining():
            end_draining(step, command)
        case c.FireTimer():
            fire_timer(step, command)
        case c.CorrelateMessage():
            correlate_message(step, command)
        case c.CompleteUserTask():
            complete_user_task(step, command)
        case c.AssignUserTask():
            assign_user_task(step, command)
        case c.ResolveIncident():
            _resolve_incident(step, command)
        case c.CancelInstance() | c.SetVariables() | c.GiveUpTask():
            _change_by_hand(step, command)
        case c.StartInstance():
            raise AssertionError("handled before")
        case _:
            assert_never(command)


def _change_by_hand(step: Step, command: c.CancelInstance | c.SetVariables | c.GiveUpTask) -> None:
    if step.state.ended:
        raise Conflict(f"instance {step.state.instance_id} is {step.state.status.value}", code="ended")
    if isinstance(command, c.CancelInstance):
        cancel_instance(step, command)
        return
    if isinstance(command, c.GiveUpTask):
        give_up_task(step, command)
        return
    scope_id = command.scope_id or step.state.root_scope_id
    if scope_id not in step.state.scopes:
        raise NotFound(f"scope {scope_id} does not exist")
    step.emit(f.VariablesSet(scope_id, command.variables))


def _resolve_incident(step: Step, command: c.ResolveIncident) -> None:
    """A failed task is offered again; anything else is tried again from where its token stands."""
    if command.retries < 1:
        raise InvalidInput(f"retries must be at least 1, not {command.retries} @ $.retries")
    incident = step.state.incidents.get(command.incident_id)
    if incident is None:
        raise NotOpen(f"incident {command.incident_id} is not open")
    assert incident.token_id is not None, incident
    step.emit(f.IncidentResolved(incident.id))
    if incident.task_id is not None:
        requeue_task(step, incident.token_id, incident.task_id, command.retries)
    step.emit(f.TokenRevived(incident.token_id))
    if incident.task_id is None:
        step.later(Work.MOVE, incident.token_id)


# --- moving tokens -------------------------------------------------------------------------------------------------


def _run(step: Step) -> None:
    """Do what is to be done until everything waits."""
    queue = step.queue
    while queue:
        work, subject_id = queue.popleft()
        if work is Work.MOVE:
            _move(step, subject_id)
        elif work is Work.SCOPE:
            scope_is_empty(step, subject_id)
        else:
            assert work is Work.HANDLER
            handler_ended(step, subject_id)


def _move(step: Step, token_id: str) -> None:
    """Go on with a token; where the model is at fault it stops there, with an incident, and can be tried again."""
    token = step.state.tokens.get(token_id)
    if token is None or token.status is not TokenStatus.ACTIVE:
        return  # cancelled by what another token did in this step
    try:
        _go_on(step, token)
    except BpmnFault as fault:
        open_incident(step, step.state.tokens[token_id], MODEL_FAULT, _shortened(fault.message))


def _shortened(message: str) -> str:
    """A message may show a variable's value: thousands of incidents of one step must not show a large one each."""
    return message if len(message) <= _MESSAGE_CHARS_MAX else message[: _MESSAGE_CHARS_MAX - 1] + "…"


def _go_on(step: Step, token: Token) -> None:
    """From where the token stands: the end of its activity, the way out of a node that is done, or the node itself."""
    step.check_bytes()
    node = step.node(token.node_id)
    if token.activity_id is not None:
        finish_work(step, token, step.state.activities[token.activity_id], node)
    elif token.leaving:
        leave(step, token, node)
    else:
        _count_nodes(step)
        _enter(step, token, node)


def _count_nodes(step: Step) -> None:
    step.nodes_entered += 1
    if step.nodes_entered > step.context.limits.steps_in_one_command_max:
        limit = step.context.limits.steps_in_one_command_max
        raise BpmnFault(f"more than {limit} nodes in one step: a loop without a wait state?")


def _enter(step: Step, token: Token, node: FlowNode) -> None:
    match node:
        case Task(loop=None):
            enter_task(step, token, node)
        case Gateway():
            enter_gateway(step, token, node)
        case Event():
            enter_event_node(step, token, node)
        case SubProcess():
            enter_subprocess(step, token, node)
        case _:
            raise BpmnFault(f'"{node.id}" is of a kind that cannot be run')
