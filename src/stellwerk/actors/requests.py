"""What a worker asks about a lease: complete, fail, bpmn_error, extend, release. One answer for each, after the commit.

Nothing here waits for a commit: requests of one frame land in the same batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeAlias

import attrs

from stellwerk.actors.bounds import check_lock_duration, check_task_id
from stellwerk.actors.committer import Committer
from stellwerk.actors.credentials import require_process, require_topic
from stellwerk.actors.dispatcher import TopicDispatcher
from stellwerk.actors.instance import Envelope
from stellwerk.actors.lease_commands import (
    bpmn_error_command,
    complete_command,
    fail_operation,
    last_failure_command,
    lease_outcome,
)
from stellwerk.actors.leases import LeaseBook, WorkerLink
from stellwerk.actors.mailbox import Reply
from stellwerk.core.commands import Command
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import (
    CallerError,
    InvariantBroken,
    NotFound,
    PeerError,
    StellwerkError,
    StoreUnavailable,
)
from stellwerk.ids import process_key_of
from stellwerk.json_values import JsonValue, digest, loads
from stellwerk.limits import Limits
from stellwerk.ports import (
    ExtendLease,
    FailTask,
    Identity,
    LeaseAnswer,
    LeaseAnswerKind,
    Operation,
    Outcome,
    Ports,
    ReleaseLease,
    ReleaseLeases,
)
from stellwerk.wire.messages import BpmnErrorReport, Complete, Extend, Fail, Release

__all__ = ["RequestServices", "SessionStatistics", "WorkerRequests"]

WorkerRequest: TypeAlias = Complete | Fail | BpmnErrorReport | Extend | Release

_REQUEST_BYTES = 500
_RELEASING = (Complete, Fail, BpmnErrorReport, Release)
"""Requests that end the lease when they succeed."""


@attrs.define
class SessionStatistics:
    revoked: int = 0
    taken_back: int = 0
    completed: int = 0
    failed: int = 0
    repeated: int = 0


class RequestServices(Protocol):
    """What the sessions of a node share (given by the node)."""

    ports: Ports
    committer: Committer
    leases: LeaseBook
    limits: Limits
    session_statistics: SessionStatistics

    def spawn(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run in the background, supervised: a failure is logged."""

    async def post(self, instance_id: str, envelope: Envelope) -> None:
        """Put a command into an instance's mailbox."""

    def dispatcher(self, topic: str) -> TopicDispatcher: ...

    def wake_dispatchers(self, topics: Iterable[str]) -> None: ...

    def returned(self, task: ExternalTask) -> None:
        """A lease ended without the task: READY again, now or later (or to be ended, if it drains)."""

    def undeliverable(self, task: ExternalTask, bytes_needed: int) -> None: ...

    def session_ended(self, link: WorkerLink) -> None: ...

    def connections_changed(self) -> None:
        """A worker subscribes to something else than before, or for more or less."""


class Requester(WorkerLink, Protocol):
    """The session that the requests belong to."""

    pending: Counter[tuple[str, int]]

    @property
    def identity(self) -> Identity:
        """What its credential allows."""

    def acknowledge(self, ref: int) -> None: ...

    def refuse(self, ref: int, error: StellwerkError) -> None: ...

    def finished(self, task_id: str, fence: int) -> None: ...


class WorkerRequests:
    def __init__(self, session: Requester, services: RequestServices) -> None:
        self._session = session
        self._services = services
        self._limits = services.limits
        self._waiting: dict[tuple[str, int], list[WorkerRequest]] = {}
        """By lease with a request under way: the later ones."""
        self._bytes_waiting = 0

    async def handle(self, request: WorkerRequest) -> None:
        """Requests for one lease are answered, and take effect, in the order in which they came."""
        key = (request.task_id, request.fence)
        self._session.pending[key] += 1
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = []
            await self._begin(request)
        elif self._bytes_waiting + _size_of(request) > self._limits.frame_bytes_max:
            self._tell(request, StoreUnavailable("too many requests for one lease wait"))
        else:
            waiting.append(request)
            self._bytes_waiting += _size_of(request)

    async def _begin(self, request: WorkerRequest) -> None:
        await self._answer_failure(request, self._start(request))

    async def _answer_failure(self, request: WorkerRequest, attempt: Awaitable[None]) -> None:
        try:
            await attempt
        except StellwerkError as error:
            self._answer(request, error)
        except Exception:
            self._answer(request, InvariantBroken("the request failed; it may be repeated"))
            raise

    def _begin_next(self, key: tuple[str, int]) -> None:
        waiting = self._waiting[key]
        if not waiting:
            del self._waiting[key]
            return
        request = waiting.pop(0)
        self._bytes_waiting -= _size_of(request)
        self._services.spawn(self._begin, request)

    async def _start(self, request: WorkerRequest) -> None:
        check_task_id(request.task_id, self._limits)
        await self._check_rights(request)
        match request:
            case Complete():
                await self._complete(request)
            case BpmnErrorReport():
                await self._bpmn_error(request)
            case Fail():
                await self._fail(request)
            case Extend():
                await self._extend(request)
            case Release():
                await self._release(request)

    async def _check_rights(self, request: WorkerRequest) -> None:
        """What the session was given it may also answer for. Of other leases of its worker, which another session was
        given, only those of topics and processes that its credential names.

        :raises Forbidden: it names others.
        """
        identity = self._session.identity
        held = self._services.leases.get(request.task_id, request.fence)
        if not identity.is_restricted or (held is not None and held.link is self._session):
            return
        task = await self._services.ports.store.task(request.task_id)
        if task is None:
            raise NotFound(f"there is no task {request.task_id}")
        require_topic(identity, task.topic)
        require_process(identity, process_key_of(task.definition_id))

    # --- requests that the instance decides ------------------------------------------------------------------------

    async def _complete(self, request: Complete) -> None:
        variables = self._value(bytes(request.variables), "$.variables")
        command = complete_command(request.task_id, request.fence, self._session.holder.worker_id, variables)
        await self._command(request, command)

    async def _bpmn_error(self, request: BpmnErrorReport) -> None:
        command = bpmn_error_command(
            request.task_id,
            request.fence,
            self._session.holder.worker_id,
            code=request.code,
            message=request.message,
            details=self._value(bytes(request.details), "$.details"),
            variables=self._value(bytes(request.variables), "$.variables"),
            limits=self._limits,
        )
        await self._command(request, command)

    async def _command(self, request: WorkerRequest, command: Command) -> None:
        def answered(reply: Reply[LeaseAnswerKind]) -> None:
            self._answer(request, _outcome(reply))

        instance_id = await self._instance_of(request.task_id)
        await self._services.post(instance_id, Envelope(command, Reply(answered)))

    async def _instance_of(self, task_id: str) -> str:
        held = self._services.leases.get(task_id)
        if held is not None:
            return held.instance_id
        task = await self._services.ports.store.task(task_id)
        if task is None:
            raise NotFound(f"there is no task {task_id}")
        return task.instance_id

    # --- requests that only the row decides ------------------------------------------------------------------------

    async def _fail(self, request: Fail) -> None:
        details = self._value(bytes(request.details), "$.details")
        operation = fail_operation(
            request.task_id,
            request.fence,
            self._session.holder.worker_id,
            message=request.message,
            details=details,
            retry_after_ms=request.retry_after_ms,
            retries=request.retries,
            jitter=self._services.ports.entropy.fraction(),
            limits=self._limits,
        )

        def answered(answer: LeaseAnswer) -> None:
            if answer.kind is LeaseAnswerKind.NEEDS_INSTANCE:
                self._services.spawn(self._fail_for_good, request, operation, details)
                return
            if answer.kind is LeaseAnswerKind.DONE and answer.task is not None:
                self._services.returned(answer.task)
            self._answer(request, lease_outcome(answer))

        await self._operate(request, operation, answered)

    async def _fail_for_good(self, request: Fail, operation: FailTask, details: JsonValue) -> None:
        command = last_failure_command(operation, details)
        await self._answer_failure(request, self._command(request, command))

    async def _extend(self, request: Extend) -> None:
        check_lock_duration(request.lock_duration_ms, self._limits)
        began = self._services.ports.clock.monotonic()

        def answered(answer: LeaseAnswer) -> None:
            held = self._services.leases.get(request.task_id, request.fence)
            if answer.kind is LeaseAnswerKind.DONE and answer.task is not None and held is not None:
                self._services.dispatcher(held.subscription.topic).extended(held, answer.task, began)
                held.link.renewed([(held, answer.task)])
            self._answer(request, lease_outcome(answer))

        wish = ExtendLease(request.task_id, request.fence, request.lock_duration_ms, self._session.holder.worker_id)
        await self._operate(request, wish, answered)

    async def _release(self, request: Release) -> None:
        def answered(answer: LeaseAnswer) -> None:
            if answer.kind is LeaseAnswerKind.DONE and answer.task is not None:
                self._services.returned(answer.task)
            self._answer(request, lease_outcome(answer))

        wish = ReleaseLease(request.task_id, request.fence, None, request.started, self._session.holder.worker_id)
        await self._operate(request, ReleaseLeases((wish,)), answered)

    async def _operate(
        self, request: WorkerRequest, operation: Operation, answered: Callable[[LeaseAnswer], None]
    ) -> None:
        def done(reply: Reply[Outcome]) -> None:
            try:
                outcome = reply.result()
            except StellwerkError as error:
                self._answer(request, error)
                return
            if isinstance(outcome, tuple):
                (outcome,) = outcome
            assert isinstance(outcome, LeaseAnswer)
            answered(outcome)

        await self._services.committer.post(operation, done)

    # --- answers ---------------------------------------------------------------------------------------------------

    def _answer(self, request: WorkerRequest, outcome: LeaseAnswerKind | StellwerkError) -> None:
        self._tell(request, outcome)
        self._begin_next((request.task_id, request.fence))

    def _tell(self, request: WorkerRequest, outcome: LeaseAnswerKind | StellwerkError) -> None:
        key = (request.task_id, request.fence)
        self._session.pending[key] -= 1
        if not self._session.pending[key]:
            del self._session.pending[key]
        if isinstance(outcome, StellwerkError):
            if isinstance(outcome, PeerError):
                self._note_late(request, outcome)
                self._session.finished(*key)
            self._session.refuse(request.ref, outcome)
            return
        self._count(request, outcome)
        if isinstance(request, _RELEASING):
            self._session.finished(*key)
        self._session.acknowledge(request.ref)

    def _note_late(self, request: WorkerRequest, error: PeerError) -> None:
        """Work was done and is not taken: whoever looks for it later finds it in the log."""
        self._services.ports.log.info(
            "request refused",
            request=type(request).__name__,
            task=request.task_id,
            fence=request.fence,
            worker=self._session.holder.worker_id,
            payload_digest=_payload_digest(request),
            reason=error.code,
        )

    def _count(self, request: WorkerRequest, outcome: LeaseAnswerKind) -> None:
        statistics = self._services.session_statistics
        if outcome is LeaseAnswerKind.REPEATED:
            statistics.repeated += 1
        elif isinstance(request, Complete | BpmnErrorReport):
            statistics.completed += 1
        elif isinstance(request, Fail):
            statistics.failed += 1

    def _value(self, text: bytes, where: str) -> JsonValue:
        try:
            return loads(text, bytes_max=self._limits.payload_bytes_max)
        except CallerError as error:
            raise type(error)(f"{error.message} in {where}") from None


def _size_of(request: WorkerRequest) -> int:
    """Bytes in memory, about."""
    texts = ("variables", "details", "message", "code")
    return _REQUEST_BYTES + sum(len(getattr(request, name, None) or "") for name in texts)


def _payload_digest(request: WorkerRequest) -> str | None:
    """Tells which result it was without telling what is in it, which has no place in a log."""
    match request:
        case Complete(variables=payload) | BpmnErrorReport(variables=payload) | Fail(details=payload):
            return digest(loads(bytes(payload)))
        case _:
            return None


def _outcome(reply: Reply[LeaseAnswerKind]) -> LeaseAnswerKind | StellwerkError:
    try:
        return reply.result()
    except StellwerkError as error:
        return error
