"""How a changeset becomes rows: all guards first, then all writes (consistency.md 1)."""

from __future__ import annotations

import attrs

from stellwerk.core.changes import NewTask, RowChanges
from stellwerk.core.external_task import ExternalTask, TaskAttempt, TaskState
from stellwerk.core.history import encode_facts
from stellwerk.core.lease import (
    Cancel,
    Drain,
    End,
    LeaseAnswerKind,
    LeaseCommand,
    Requeue,
    TakeLease,
    apply_lease_command,
)
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    BirthLease,
    Changeset,
    Committed,
    LeaseAnswer,
    NewInstance,
    RefusedChangeset,
    RefusedGuard,
    RevokedLease,
    TaskEnding,
)
from stellwerk.stores.leases import attempt_for
from stellwerk.stores.tables import ENDED_STATUSES, DataFault, InstanceState, Tables
from stellwerk.values import frozen

__all__ = ["TaskOwner", "apply_changeset", "born_leased", "task_row"]

_NO_CHANGES = RowChanges()
_STATES = {state.value: state for state in TaskState}  # `TaskState(text)` is a call of Python code


@attrs.define
class _Step:
    """A changeset in the making."""

    tables: Tables
    changeset: Changeset
    now_ms: InstantMs
    ended: dict[str, ExternalTask] = attrs.field(factory=dict)
    attempts: list[TaskAttempt] = attrs.field(factory=list)
    revoked: list[RevokedLease] = attrs.field(factory=list)
    born_leased: list[ExternalTask] = attrs.field(factory=list)
    drained_ready: list[str] = attrs.field(factory=list)


def apply_changeset(tables: Tables, changeset: Changeset, now_ms: InstantMs) -> Committed | RefusedChangeset:
    """:raises DataFault: when a row cannot be written; the caller then undoes this changeset alone."""
    instance = tables.instance(changeset.instance_id, is_new=changeset.expected_version == 0)
    step = _Step(tables, changeset, now_ms)
    refused = (
        _guard_version(changeset, instance) or _guard_definition(step) or _guard_rows(step) or _guard_endings(step)
    )
    if refused is not None:
        return refused
    version = changeset.expected_version + 1
    written = _write_instance(step, instance, version)
    _write_tasks(step, written)
    if changeset.changes != _NO_CHANGES:
        _write_waiting(step)
    _write_effects(step)
    return Committed(version, tuple(step.revoked), tuple(step.born_leased), tuple(step.drained_ready), now_ms)


# --- guards --------------------------------------------------------------------------------------------------------


def _guard_version(changeset: Changeset, instance: InstanceState | None) -> RefusedChangeset | None:
    stored = 0 if instance is None else instance.version
    if stored == changeset.expected_version:
        return None
    return RefusedChangeset(RefusedGuard.VERSION, changeset.instance_id)


def _guard_definition(step: _Step) -> RefusedChangeset | None:
    new = step.changeset.new_instance
    if new is None:
        return None
    return _guard_newest(step, new) or _guard_deployed(step, new)


def _guard_newest(step: _Step, new: NewInstance) -> RefusedChangeset | None:
    if not new.must_be_newest:
        return None
    newest = step.tables.latest_definition(new.process_key)
    if newest is None or newest.definition_id == new.definition_id:
        return None
    return RefusedChangeset(RefusedGuard.DEFINITION, newest.definition_id)


def _guard_deployed(step: _Step, new: NewInstance) -> RefusedChangeset | None:
    if not new.must_be_deployed:
        return None
    if not step.tables.has_definition(new.definition_id):
        return RefusedChangeset(RefusedGuard.UNDEPLOYED, new.definition_id)
    process = step.tables.process(new.process_key)
    if process is not None and not process.is_enabled:
        return RefusedChangeset(RefusedGuard.DISABLED, new.process_key)
    return None


def _guard_rows(step: _Step) -> RefusedChangeset | None:
    """Messages, incidents and inbox rows: each exactly once, and still there."""
    tables, changeset = step.tables, step.changeset
    for message_id in changeset.messages_consumed:
        if not tables.has_message(message_id):
            return RefusedChangeset(RefusedGuard.MESSAGE, message_id)
    for incident_id in changeset.changes.incidents_resolved:
        if not tables.has_incident(changeset.instance_id, incident_id):
            return RefusedChangeset(RefusedGuard.INCIDENT, incident_id)
    for dedupe_key in changeset.inbox_consumed:
        if not tables.has_inbox_row(changeset.instance_id, dedupe_key):
            return RefusedChangeset(RefusedGuard.INBOX, dedupe_key)
    return _guard_uniqueness(changeset)


def _guard_uniqueness(changeset: Changeset) -> RefusedChangeset | None:
    messages, incidents, inbox_rows = (
        changeset.messages_consumed,
        changeset.changes.incidents_resolved,
        changeset.inbox_consumed,
    )
    if not (messages or incidents or inbox_rows):
        return None
    for guard, keys in (
        (RefusedGuard.MESSAGE, messages),
        (RefusedGuard.INCIDENT, incidents),
        (RefusedGuard.INBOX, inbox_rows),
    ):
        if len(keys) > 1 and len(set(keys)) < len(keys):
            return RefusedChangeset(guard, keys[0])
    return None


def _guard_endings(step: _Step) -> RefusedChangeset | None:
    for ending in step.changeset.endings:
        task = step.ended.get(ending.task_id) or step.tables.task(ending.task_id)
        if task is None or task.instance_id != step.changeset.instance_id:
            return _refused_lease(ending, LeaseAnswerKind.UNKNOWN, None)
        command = _command_of(ending)
        recorded = attempt_for(step.tables, task, ending.fence)
        changed, attempt, answer = apply_lease_command(task, command, step.now_ms, recorded)
        if answer is not LeaseAnswerKind.DONE:
            return _refused_lease(ending, answer, task)
        step.ended[ending.task_id] = changed
        if attempt is not None:
            step.attempts.append(attempt)
        if ending.fence is None:
            _tell_holder(step, task)
    return None


def _refused_lease(ending: TaskEnding, answer: LeaseAnswerKind, task: ExternalTask | None) -> RefusedChangeset:
    return RefusedChangeset(RefusedGuard.LEASE, ending.task_id, LeaseAnswer(answer, task))


def _command_of(ending: TaskEnding) -> End:
    return End(
        fence=ending.fence,
        outcome=ending.outcome,
        final_state=_STATES[ending.final_state],
        request_digest=ending.request_digest,
        message=ending.message,
        details=ending.details,
        worker_id=ending.worker_id,
        worker_gives_up=ending.worker_gives_up,
        only_past_due=ending.only_past_due,
    )


# --- writes --------------------------------------------------------------------------------------------------------


def _write_instance(step: _Step, instance: InstanceState | None, version: int) -> InstanceState:
    tables, changeset = step.tables, step.changeset
    status = changeset.changes.status
    ended_at_ms = changeset.at_ms if status in ENDED_STATUSES else None
    if instance is None:
        new = changeset.new_instance
        if new is None:
            raise DataFault(f"instance {changeset.instance_id} does not exist and is not being created")
        state = InstanceState(version, status or "RUNNING", new.definition_id, new.business_key)
        tables.insert_instance(changeset.instance_id, new, state, changeset.at_ms)
        if ended_at_ms is not None:
            tables.update_instance(changeset.instance_id, state, ended_at_ms)
    else:
        state = InstanceState(version, status or instance.status, instance.definition_id, instance.business_key)
        tables.update_instance(changeset.instance_id, state, ended_at_ms)
    tables.append_history(changeset.instance_id, version, changeset.at_ms, encode_facts(changeset.facts))
    if changeset.snapshot is not None:
        tables.put_snapshot(changeset.instance_id, version, changeset.snapshot)
    if ended_at_ms is not None:
        tables.drop_inbox(changeset.instance_id)
    return state


def _write_tasks(step: _Step, instance: InstanceState) -> None:
    """Endings first: an incident that opened and was resolved in one step ends its task and requeues it."""
    tables, changes = step.tables, step.changeset.changes
    for task in step.ended.values():
        tables.update_task(task)
    if changes.new_tasks:
        _insert_tasks(step, changes.new_tasks, instance)
    for requeue in changes.requeued_tasks:
        requeued = _move(step, requeue.task_id, Requeue(requeue.retries, requeue.variables))
        if requeued is not None:
            tables.rewrite_variables(requeued)
    for task_id in changes.drained_tasks:
        drained = _move(step, task_id, Drain())
        if drained is not None and drained.state is TaskState.READY:
            step.drained_ready.append(task_id)
    for task_id in changes.cancelled_tasks:
        _cancel(step, task_id)
    for attempt in step.attempts:
        tables.insert_attempt(attempt)


def _insert_tasks(step: _Step, new_tasks: tuple[NewTask, ...], instance: InstanceState) -> None:
    births = {birth.task_id: birth for birth in step.changeset.birth_leases}
    owner = TaskOwner(step.changeset.instance_id, instance.definition_id, instance.business_key)
    for new_task in new_tasks:
        task = task_row(new_task, owner, step.now_ms)
        birth = births.get(new_task.task_id)
        if birth is not None:
            task = born_leased(task, birth, step.now_ms)
            step.born_leased.append(task)
        step.tables.insert_task(task)


@frozen
class TaskOwner:
    """The instance of a new task."""

    instance_id: str
    definition_id: str
    business_key: str | None


def task_row(new: NewTask, owner: TaskOwner, now_ms: InstantMs) -> ExternalTask:
    """READY."""
    return ExternalTask(
        task_id=new.task_id,
        instance_id=owner.instance_id,
        token_id=new.token_id,
        activity_id=new.activity_id,
        element_id=new.element_id,
        definition_id=owner.definition_id,
        business_key=owner.business_key,
        topic=new.topic,
        priority=new.priority,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        available_at_ms=now_ms,
        state=TaskState.READY,
        retries_left=new.retries,
        retries=new.retries,
        retry_backoffs_ms=new.retry_backoffs_ms,
        attempt=0,
        lock_expiries=0,
        lock_expiries_max=new.lock_expiries_max,
        single_try=new.single_try,
        lock_duration_ms=new.lock_duration_ms,
        draining=False,
        fence=0,
        lease=None,
        outcome=None,
        error_message=None,
        variables=new.variables,
        headers=new.headers,
    )


def born_leased(task: ExternalTask, birth: BirthLease, now_ms: InstantMs) -> ExternalTask:
    leased, _, _ = apply_lease_command(task, TakeLease(birth.holder, birth.duration_ms), now_ms)
    return leased


def _move(step: _Step, task_id: str, command: LeaseCommand) -> ExternalTask | None:
    """Apply a command that the process gives; a task that is past it stays as it is, and then None is returned."""
    task = step.tables.task(task_id)
    if task is None:
        raise DataFault(f"task {task_id} does not exist")
    changed, attempt, answer = apply_lease_command(task, command, step.now_ms)
    if answer is not LeaseAnswerKind.DONE:
        return None
    step.tables.update_task(changed)
    if attempt is not None:
        step.attempts.append(attempt)
    return changed


def _cancel(step: _Step, task_id: str) -> None:
    before = step.tables.task(task_id)
    cancelled = _move(step, task_id, Cancel())
    if cancelled is not None and before is not None:
        _tell_holder(step, before)


def _tell_holder(step: _Step, before: ExternalTask) -> None:
    if before.state is TaskState.LOCKED and before.lease is not None:
        step.revoked.append(RevokedLease(before.task_id, before.topic, before.fence, before.lease.holder))


def _write_waiting(step: _Step) -> None:
    """Timers, subscriptions, user tasks and incidents."""
    tables, instance_id, changes = step.tables, step.changeset.instance_id, step.changeset.changes
    for timer_id in changes.timers_disarmed:
        tables.delete_timer(timer_id)
    for timer in changes.timers_armed:
        tables.insert_timer(instance_id, timer)
    for subscription_id in changes.subscriptions_closed:
        tables.delete_subscription(subscription_id)
    for subscription in changes.subscriptions_opened:
        tables.insert_subscription(instance_id, subscription, step.now_ms)
    for user_task_id in changes.user_tasks_closed:
        tables.delete_user_task(user_task_id)
    for user_task in changes.user_tasks_opened:
        tables.insert_user_task(instance_id, user_task, step.changeset.at_ms)
    for assignment in changes.user_tasks_assigned:
        tables.assign_user_task(assignment)
    for incident_id in changes.incidents_resolved:
        tables.delete_incident(incident_id)
    for incident in changes.incidents_opened:
        tables.insert_incident(instance_id, incident, step.changeset.at_ms)


def _write_effects(step: _Step) -> None:
    """Messages and inbox rows. What is sent to an instance that has ended is dropped."""
    tables, changeset = step.tables, step.changeset
    for message_id in changeset.messages_consumed:
        tables.consume_message(message_id)
    for dedupe_key in changeset.inbox_consumed:
        tables.delete_inbox_row(changeset.instance_id, dedupe_key)
    for row in changeset.inbox_sent:
        receiver = tables.instance(row.instance_id)
        has_ended = receiver is not None and receiver.status in ENDED_STATUSES
        if not has_ended and not tables.has_inbox_row(row.instance_id, row.dedupe_key):
            tables.insert_inbox_row(row)
