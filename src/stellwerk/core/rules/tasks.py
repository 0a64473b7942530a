"""Tasks: external ones, those that wait for a person or a message, and those that are nothing but a name."""

from __future__ import annotations

from stellwerk.core import facts as f
from stellwerk.core.commands import (
    AssignUserTask,
    CompleteTask,
    CompleteUserTask,
    EndDraining,
    EndTaskInFailure,
    FailureKind,
    GiveUpTask,
    ThrowBpmnError,
)
from stellwerk.core.instance import ActivityInstance, Token
from stellwerk.core.rules.activities import Plan, drained, finish_activity, keep_result, plan_activity, start_activity
from stellwerk.core.rules.errors import BPMN_ERROR, Raised, catch, fail, technical_error
from stellwerk.core.rules.incidents import open_incident
from stellwerk.core.rules.values import (
    bindings,
    check_visible,
    evaluate_integer,
    evaluate_text,
    inner_scope,
    is_processcube,
)
from stellwerk.core.rules.waiting import Wait, open_wait, planned_wait
from stellwerk.core.step import NotOpen, Step, Work
from stellwerk.errors import BpmnFault, Conflict
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.model.expressions import Bindings, evaluate
from stellwerk.model.expressions.evaluation import evaluate_mapping_condition
from stellwerk.model.process import Event, ExternalWork, FlowNode, Task, TaskKind, UserWork

__all__ = [
    "assign_user_task",
    "complete_task",
    "complete_user_task",
    "end_draining",
    "end_task_in_failure",
    "enter_task",
    "finish_work",
    "give_up_task",
    "requeue_task",
    "start_waiting",
    "start_work",
    "throw_bpmn_error",
]


# --- starting ------------------------------------------------------------------------------------------------------


def enter_task(step: Step, token: Token, node: Task) -> None:
    if node.work is not None:
        start_work(step, token, node, node.work)
    elif node.kind is TaskKind.USER or node.waits:
        _start_user_task(step, token, node)
    elif node.kind is TaskKind.RECEIVE and node.message is not None:
        start_waiting(step, token, node, node.message)
    elif node.kind in (TaskKind.UNDEFINED, TaskKind.MANUAL):
        start_activity(step, token, node, plan_activity(step, token, node))
        step.later(Work.MOVE, token.id)
    else:
        # Refused at deploy; but whoever wrote the definition differently, work is never skipped without a word.
        raise BpmnFault(f'nothing says who does {node.kind.value} "{node.id}"')


def start_work(step: Step, token: Token, node: FlowNode, work: ExternalWork) -> None:
    """The token's execution mode becomes external: workers of the topic may lease its task (requirement E2).

    :raises BpmnFault: when an expression of the model fails; nothing has then changed.
    """
    plan = plan_activity(step, token, node)
    seen = bindings(step, token, plan.variables)
    topic = evaluate_text("the topic", work.topic, seen)
    if len(topic) > step.context.limits.topic_chars_max:
        raise BpmnFault(f"the topic is longer than {step.context.limits.topic_chars_max} characters")
    retries = step.context.default_retries
    if work.retries is not None:
        retries = evaluate_integer("the number of retries", work.retries, seen)
        if retries < 1:
            raise BpmnFault(f"the number of retries must be at least 1, not {retries}")
    priority = 0 if work.priority is None else evaluate_integer("the priority", work.priority, seen)
    variables = _for_worker(step, token, plan, work, seen)
    activity_id = start_activity(step, token, node, plan)
    limit = work.lock_expiries_max
    step.emit(
        f.TaskCreated(
            task_id=activity_id,
            activity_id=activity_id,
            topic=topic,
            priority=priority,
            retries=retries,
            retry_backoffs_ms=work.retry_backoffs_ms,
            lock_expiries_max=step.context.lock_expiries_max if limit is None else limit,
            single_try=work.single_try,
            lock_duration_ms=work.lock_duration_ms,
            variables=variables,
            headers=dict(node.headers),
        )
    )
    step.tasks_created[activity_id] = None


def requeue_task(step: Step, token_id: str, task_id: str, retries: int) -> None:
    """Offer a failed task again, with the variables as they are now.

    :raises Conflict: when an input mapping fails; nothing has then changed.
    """
    activity = step.state.activities[task_id]
    token = step.state.tokens[token_id]
    node = step.node(activity.node_id)
    work = node.work if isinstance(node, Task | Event) else None
    assert work is not None, node.id
    try:
        plan = plan_activity(step, token, node)
        variables = _for_worker(step, token, plan, work, bindings(step, token, plan.variables))
    except BpmnFault as fault:
        raise Conflict(f"the task cannot be offered again: {fault.message}") from None
    if plan.local is not None and activity.inner_scope_id is not None:
        step.emit(f.VariablesSet(activity.inner_scope_id, plan.local))
    step.emit(f.TaskRequeued(task_id, retries, variables))


def _for_worker(step: Step, token: Token, plan: Plan, work: ExternalWork, seen: Bindings) -> JsonValue:
    """All variables that the activity sees; in the ProcessCube dialect its payload, or what the token carries."""
    if work.payload is not None:
        return evaluate(work.payload, seen)
    if is_processcube(step):
        return token.payload
    check_visible(step, plan.variables)
    return plan.variables


def _start_user_task(step: Step, token: Token, node: Task) -> None:
    plan = plan_activity(step, token, node)
    check_visible(step, plan.variables)
    seen = bindings(step, token, plan.variables)
    user = node.user or UserWork()
    assignee = None if user.assignee is None else evaluate(user.assignee, seen)
    candidate_users = () if user.candidate_users is None else _names(evaluate(user.candidate_users, seen))
    candidate_groups = () if user.candidate_groups is None else _names(evaluate(user.candidate_groups, seen))
    due = None if user.due is None else evaluate(user.due, seen)
    activity_id = start_activity(step, token, node, plan)
    step.emit(
        f.UserTaskCreated(
            user_task_id=activity_id,
            activity_id=activity_id,
            name=node.name,
            assignee=None if assignee is None else str(assignee),
            candidate_users=candidate_users,
            candidate_groups=candidate_groups,
            form=user.form,
            due_at=None if due is None else str(due),
            variables=plan.variables,
        )
    )


def _names(value: JsonValue) -> tuple[str, ...]:
    """A list of names, or a text with commas between them (as Camunda models write it)."""
    if value is None:
        return ()
    parts = value if isinstance(value, list) else str(value).split(",")
    return tuple(text for part in parts if (text := str(part).strip()))


def start_waiting(step: Step, token: Token, node: FlowNode, definition: object) -> None:
    """Wait at a catch event or receive task."""
    plan = plan_activity(step, token, node)
    wait: Wait = planned_wait(step, token, node.id, definition, plan.variables)
    start_activity(step, token, node, plan)
    open_wait(step, wait, token_id=token.id)


# --- ending --------------------------------------------------------------------------------------------------------


def _open_task(step: Step, task_id: str) -> tuple[ActivityInstance, Token]:
    task = step.state.tasks.get(task_id)
    if task is None or task.failed:
        raise NotOpen(f"task {task_id} is not open")
    activity = step.state.activities[task.activity_id]
    return activity, step.state.tokens[activity.token_id]


def complete_task(step: Step, command: CompleteTask) -> None:
    """Completing moves the token on, in one step with the task's end (requirement E3)."""
    activity, token = _open_task(step, command.task_id)
    draining = step.state.tasks[command.task_id].draining
    step.emit(f.TaskCompleted(command.task_id, command.worker_id))
    step.finally_(command.task_id, "COMPLETED")
    keep_result(step, activity, command.variables)
    if draining:
        drained(step, token, step.state.activities[activity.id], completed=True)
    else:
        step.later(Work.MOVE, token.id)


def finish_work(step: Step, token: Token, activity: ActivityInstance, node: FlowNode) -> None:
    """The result is there: it may still mean an error (Camunda's error definitions on an external task).

    :raises BpmnFault: when an expression fails; the token can then be tried again.
    """
    work = node.work if isinstance(node, Task | Event) else None
    if work is not None and work.error_mappings:
        raised = _mapped_error(step, token, activity, work, {})
        if raised is not None:
            if not catch(step, token, raised):
                fail(step, token, BPMN_ERROR, raised)
            return
    finish_activity(step, token, activity, node)


def _mapped_error(
    step: Step, token: Token, activity: ActivityInstance, work: ExternalWork, failure: JsonObject
) -> Raised | None:
    visible = step.state.visible_variables(inner_scope(activity))
    seen = bindings(step, token, {**visible, "externalTask": failure, **failure} if failure else visible)
    for condition, code in work.error_mappings:
        if evaluate_mapping_condition(condition, seen):
            message = failure.get("errorMessage")
            return Raised(code or "", message if isinstance(message, str) else None, {})
    return None


def throw_bpmn_error(step: Step, command: ThrowBpmnError) -> None:
    activity, token = _open_task(step, command.task_id)
    step.emit(f.TaskErrorReported(command.task_id, command.error_code, command.message, command.worker_id))
    if step.state.tasks[command.task_id].draining:
        _end_drained(step, activity, token)
        return
    raised = Raised(command.error_code, command.message, command.variables)
    if catch(step, token, raised):
        step.finally_(command.task_id, "COMPLETED")
        return
    step.emit(f.TaskFailed(command.task_id, BPMN_ERROR, command.message or command.error_code))
    step.finally_(command.task_id, "FAILED")
    fail(step, token, BPMN_ERROR, raised)


def end_task_in_failure(step: Step, command: EndTaskInFailure) -> None:
    """The last attempt failed, or its lock ran out for the last time (requirements E4, L2)."""
    activity, token = _open_task(step, command.task_id)
    if step.state.tasks[command.task_id].draining:
        _end_drained(step, activity, token)
        return
    raised = _from_failure(step, token, activity, command)
    step.emit(f.TaskFailed(command.task_id, command.kind.value, command.message))
    step.finally_(command.task_id, "EXPIRED" if command.kind is FailureKind.LOCK_EXPIRED else "FAILED")
    if not catch(step, token, raised):
        fail(step, token, command.kind.value if raised.technical else BPMN_ERROR, raised)


def _from_failure(step: Step, token: Token, activity: ActivityInstance, command: EndTaskInFailure) -> Raised:
    """What the failure is for the process: a technical error, unless the model makes a BPMN error of it."""
    node = step.node(activity.node_id)
    work = node.work if isinstance(node, Task | Event) else None
    if work is not None and work.error_mappings and command.kind is FailureKind.RETRIES_EXHAUSTED:
        failure: JsonObject = {"errorMessage": command.message, "errorDetails": command.details}
        try:
            mapped = _mapped_error(step, token, activity, work, failure)
        except BpmnFault:
            mapped = None  # the failure itself is the better thing to report
        if mapped is not None:
            return mapped
    return technical_error(command.kind, command.message)


def end_draining(step: Step, command: EndDraining) -> None:
    activity, token = _open_task(step, command.task_id)
    if not step.state.tasks[command.task_id].draining:
        raise NotOpen(f"task {command.task_id} is not draining")
    _end_drained(step, activity, token)


def _end_drained(step: Step, activity: ActivityInstance, token: Token) -> None:
    step.emit(f.TaskDrained(activity.id))
    step.finally_(activity.id, "CANCELLED")
    drained(step, token, activity, completed=False)


def give_up_task(step: Step, command: GiveUpTask) -> None:
    """:raises Conflict: its scope fails, so it ends with its lease anyway."""
    _, token = _open_task(step, command.task_id)
    if step.state.tasks[command.task_id].draining:
        raise Conflict(f"task {command.task_id} is about to end: its scope has failed")
    kind = FailureKind.RETRIES_EXHAUSTED.value
    step.emit(f.TaskFailed(command.task_id, kind, command.message))
    step.finally_(command.task_id, "FAILED")
    open_incident(step, token, kind, command.message, task_id=command.task_id)


def complete_user_task(step: Step, command: CompleteUserTask) -> None:
    activity_id = step.state.user_tasks.get(command.user_task_id)
    if activity_id is None:
        raise NotOpen(f"user task {command.user_task_id} is not open")
    activity = step.state.activities[activity_id]
    step.emit(f.UserTaskCompleted(command.user_task_id))
    keep_result(step, activity, command.variables)
    step.later(Work.MOVE, activity.token_id)


def assign_user_task(step: Step, command: AssignUserTask) -> None:
    """:raises Conflict: somebody else has it (``assigned``)."""
    if command.user_task_id not in step.state.user_tasks:
        raise NotOpen(f"user task {command.user_task_id} is not open")
    has_it = step.state.assignees.get(command.user_task_id)
    if command.unless_assigned and has_it not in (None, command.assignee):
        raise Conflict(f"user task {command.user_task_id} is assigned to somebody else", code="assigned")
    step.emit(f.UserTaskAssigned(command.user_task_id, command.assignee))
