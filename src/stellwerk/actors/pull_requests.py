"""What a worker without a connection of its own asks about a lease, each request for itself, and what operators do.

Many such workers only say who they are, not which lease they mean. Then it is the newest lease if that is theirs, else
their own newest one, so that a request whose answer was lost gets it again (consistency.md 13). Which of two leases of
one worker id a late request means cannot be known: who sends the fence is safe from that.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from stellwerk.actors.bounds import check_lock_duration, check_task_id
from stellwerk.actors.instance import Envelope
from stellwerk.actors.lease_commands import (
    bpmn_error_command,
    complete_command,
    fail_operation,
    last_failure_command,
    lease_outcome,
)
from stellwerk.actors.mailbox import Reply
from stellwerk.actors.requests import RequestServices
from stellwerk.core.commands import Command
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.errors import Conflict, InvalidInput, LimitExceeded, NotFound, PeerError, StellwerkError
from stellwerk.json_values import JsonObject, JsonValue, canonical, digest, dumps
from stellwerk.ports import (
    ExtendLease,
    FailTask,
    LeaseAnswer,
    LeaseAnswerKind,
    Operation,
    ReleaseLease,
    ReleaseLeases,
    RevokedLease,
)

__all__ = ["PullRequestServices", "PullRequests"]

_FENCE_MAX = 2**63 - 1


class PullRequestServices(RequestServices, Protocol):
    """What these need of their node."""

    def lease_ended(self, lease: RevokedLease, reason: str) -> None:
        """Without the worker's doing: it is told."""


class PullRequests:
    def __init__(self, services: PullRequestServices) -> None:
        self._services = services
        self._limits = services.limits

    # --- requests that the instance decides ------------------------------------------------------------------------

    async def complete(self, task_id: str, worker_id: str, variables: JsonValue, fence: int | None) -> None:
        result = self._value(variables, "$.variables")
        task, fence = await self._lease(task_id, worker_id, fence)
        command = complete_command(task_id, fence, worker_id, result)
        kind = await self._noted(self._command(task, command), "complete", task, fence, worker_id, result)
        self._ended(task, fence, kind)

    async def bpmn_error(
        self,
        task_id: str,
        worker_id: str,
        fence: int | None,
        *,
        code: str,
        message: str | None,
        details: JsonValue,
        variables: JsonObject,
    ) -> None:
        values = self._value(variables, "$.variables")
        task, fence = await self._lease(task_id, worker_id, fence)
        command = bpmn_error_command(
            task_id,
            fence,
            worker_id,
            code=code,
            message=message,
            details=self._value(details, "$.details"),
            variables=values,
            limits=self._limits,
        )
        kind = await self._noted(self._command(task, command), "bpmn_error", task, fence, worker_id, values)
        self._ended(task, fence, kind)

    async def _command(self, task: ExternalTask, command: Command) -> LeaseAnswerKind:
        reply: Reply[LeaseAnswerKind] = Reply()
        await self._services.post(task.instance_id, Envelope(command, reply))
        return await reply.wait()

    # --- requests that only the row decides ------------------------------------------------------------------------

    async def fail(
        self,
        task_id: str,
        worker_id: str,
        fence: int | None,
        *,
        message: str,
        details: JsonValue,
        retry_after_ms: int | None,
        retries: int | None,
    ) -> None:
        value = self._value(details, "$.details")
        task, fence = await self._lease(task_id, worker_id, fence)
        operation = fail_operation(
            task_id,
            fence,
            worker_id,
            message=message,
            details=value,
            retry_after_ms=retry_after_ms,
            retries=retries,
            jitter=self._services.ports.entropy.fraction(),
            limits=self._limits,
        )
        kind = await self._noted(self._fail(task, operation, value), "fail", task, fence, worker_id, value)
        self._ended(task, fence, kind, is_failure=True)

    async def _fail(self, task: ExternalTask, operation: FailTask, details: JsonValue) -> LeaseAnswerKind:
        answer = await self._operate(operation)
        if answer.kind is LeaseAnswerKind.NEEDS_INSTANCE:
            return await self._command(task, last_failure_command(operation, details))
        if answer.kind is LeaseAnswerKind.DONE and answer.task is not None:
            self._services.leases.finish(task.task_id, operation.fence)
            self._services.returned(answer.task)
        return _checked(answer)

    async def extend(self, task_id: str, worker_id: str, duration_ms: int, fence: int | None) -> ExternalTask:
        check_lock_duration(duration_ms, self._limits)
        task, fence = await self._lease(task_id, worker_id, fence)
        _check_holder(task, fence, worker_id)
        began = self._services.ports.clock.monotonic()
        answer = await self._operate(ExtendLease(task_id, fence, duration_ms, worker_id))
        _checked(answer)
        assert answer.task is not None
        held = self._services.leases.get(task_id, fence)
        if held is not None:
            self._services.dispatcher(held.subscription.topic).extended(held, answer.task, began)
            held.link.renewed([(held, answer.task)])
        return answer.task

    async def unlock(self, task_id: str, worker_id: str | None, fence: int | None, *, started: bool) -> None:
        task = await self._task(task_id)
        if worker_id is not None:
            fence = await self._fence_of(task, worker_id, fence)
            _check_holder(task, fence, worker_id)
        elif fence is None:
            fence = task.fence
        answer = await self._operate(ReleaseLeases((ReleaseLease(task_id, fence, None, started, worker_id),)))
        _checked(answer)
        assert answer.task is not None
        if answer.task.state is TaskState.LOCKED:
            raise Conflict("the task may be tried only once, and may have been begun: its lock has to run out")
        if worker_id is None:
            self._take_away(answer.task)
        else:
            self._services.leases.finish(task_id, fence)
        self._services.returned(answer.task)

    def _take_away(self, task: ExternalTask) -> None:
        assert task.lease is not None
        self._services.lease_ended(RevokedLease(task.task_id, task.topic, task.fence, task.lease.holder), "lost")

    async def _operate(self, operation: Operation) -> LeaseAnswer:
        outcome = await self._services.committer.submit(operation)
        answer = outcome[0] if isinstance(outcome, tuple) else outcome
        assert isinstance(answer, LeaseAnswer)
        return answer

    # --- which lease -----------------------------------------------------------------------------------------------

    async def _lease(self, task_id: str, worker_id: str, fence: int | None) -> tuple[ExternalTask, int]:
        """The task, and the fence that the worker means."""
        task = await self._task(task_id)
        return task, await self._fence_of(task, worker_id, fence)

    async def _task(self, task_id: str) -> ExternalTask:
        check_task_id(task_id, self._limits)
        canonical(task_id, "$.task_id")
        task = await self._services.ports.store.task(task_id)
        if task is None:
            raise NotFound(f"there is no task {task_id}")
        return task

    async def _fence_of(self, task: ExternalTask, worker_id: str, fence: int | None) -> int:
        if fence is not None:
            if not 0 <= fence <= _FENCE_MAX:
                raise InvalidInput(f"a fence is 0 to {_FENCE_MAX} @ $.fence")
            return fence
        if task.lease is not None and task.lease.holder.worker_id == worker_id:
            return task.fence
        attempts = await self._services.ports.store.attempts(task.task_id)
        own = [attempt.fence for attempt in attempts if attempt.worker_id == worker_id]
        if own:
            return max(own)
        if task.state is TaskState.CANCELLED:
            raise PeerError("the task was cancelled", code=LeaseAnswerKind.CANCELLED.value)
        raise PeerError("the task is not locked by this worker")

    # --- answers ---------------------------------------------------------------------------------------------------

    async def _noted(
        self,
        request: Awaitable[LeaseAnswerKind],
        name: str,
        task: ExternalTask,
        fence: int,
        worker_id: str,
        payload: JsonValue,
    ) -> LeaseAnswerKind:
        """Work was done and is not taken: whoever looks for it later finds it in the log."""
        try:
            return await request
        except PeerError as error:
            self._services.ports.log.info(
                "request refused",
                request=name,
                task=task.task_id,
                fence=fence,
                worker=worker_id,
                payload_digest=digest(payload),
                reason=error.code,
            )
            raise

    def _ended(self, task: ExternalTask, fence: int, kind: LeaseAnswerKind, *, is_failure: bool = False) -> None:
        held = self._services.leases.finish(task.task_id, fence)
        if held is not None:  # by its worker's session; that it uses two ways is its own affair
            self._services.wake_dispatchers([held.subscription.topic])
        statistics = self._services.session_statistics
        if kind is LeaseAnswerKind.REPEATED:
            statistics.repeated += 1
        elif is_failure:
            statistics.failed += 1
        else:
            statistics.completed += 1

    def _value(self, value: JsonValue, where: str) -> JsonValue:
        result = canonical(value, where)
        size = len(dumps(result))
        if size > self._limits.payload_bytes_max:
            raise LimitExceeded(f"{size} bytes, at most {self._limits.payload_bytes_max} are allowed @ {where}")
        return result


def _check_holder(task: ExternalTask, fence: int, worker_id: str) -> None:
    """A fence belongs to one worker for ever."""
    is_newest = task.lease is not None and fence == task.fence
    if is_newest and task.lease is not None and task.lease.holder.worker_id != worker_id:
        raise PeerError("the lease is another worker's")


def _checked(answer: LeaseAnswer) -> LeaseAnswerKind:
    """:raises StellwerkError: it was not done."""
    outcome = lease_outcome(answer)
    if isinstance(outcome, StellwerkError):
        raise outcome
    return outcome
