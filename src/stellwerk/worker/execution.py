"""Runs the handlers, each in its thread or scope, and turns what comes out into the request for the engine."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType

import attrs
import msgspec
import trio

from stellwerk.errors import StellwerkError
from stellwerk.json_values import JsonValue
from stellwerk.wire.messages import BpmnErrorReport, Complete, Fail, Release
from stellwerk.worker.errors import BpmnError, ErrorKind, Operation, TaskFailure, leaves_of
from stellwerk.worker.handler import Handler, HandlerMode, run_asyncio, run_trio
from stellwerk.worker.leases import FinalRequest, Lease
from stellwerk.worker.payloads import payload_from_json, result_to_json, text_for_json
from stellwerk.worker.reports import Reports
from stellwerk.worker.system import Threads
from stellwerk.worker.task import Task

__all__ = ["WORKER_STOPS", "Executions"]

WORKER_STOPS = "worker_stops"
_MESSAGE_CHARS_MAX = 2_000
_TRACEBACK_CHARS_MAX = 16_000
_MACHINERY = ("trio", "trio_asyncio", "outcome", "asyncio")
_SIGNS_OF_ASYNCIO = ("no running event loop", "unrecognized yield message")


@attrs.define(eq=False)
class _Execution:
    lease: Lease
    task: Task
    scope: trio.CancelScope | None = None
    """None: in a thread, which cannot be cancelled."""
    lost: bool = False
    """The lease is gone, and the handler is not back yet."""


class Executions:
    """The handlers that are under way.

    A handler whose lease is gone still takes its slot until it is back: `lost` counts these by topic.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        reports: Reports,
        threads: Threads,
        next_ref: Callable[[], int],
        ended: Callable[[Lease, FinalRequest], None],
    ) -> None:
        self._handlers = handlers
        self._reports = reports
        self._threads = threads
        self._next_ref = next_ref
        self._ended = ended
        self._by_lease: dict[Lease, _Execution] = {}
        self.running: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_lease)

    def has_room(self, topic: str) -> bool:
        return topic in self._handlers and self.running[topic] < self._handlers[topic].max_tasks

    def start(self, nursery: trio.Nursery, lease: Lease, task: Task) -> None:
        lease.task = task
        execution = _Execution(lease, task)
        self._by_lease[lease] = execution
        self.running[task.topic] += 1
        nursery.start_soon(self._run, execution, name=f"task {task.id} of {task.topic}")

    def abort(self, lease: Lease, reason: str) -> None:
        """Tell the handler to give up; its result is dropped unless the worker stops."""
        execution = self._by_lease.get(lease)
        if execution is None:
            return
        if reason != WORKER_STOPS and not execution.lost:
            execution.lost = True
            self.lost[execution.task.topic] += 1
        execution.task.signal.set(reason)
        if execution.scope is not None:
            execution.scope.cancel()

    async def _run(self, execution: _Execution) -> None:
        topic = execution.task.topic
        try:
            request = await self._outcome(execution, self._handlers[topic])
        finally:
            del self._by_lease[execution.lease]
            self.running[topic] -= 1
            if execution.lost:
                self.lost[topic] -= 1
        self._ended(execution.lease, request)

    async def _outcome(self, execution: _Execution, handler: Handler) -> FinalRequest:
        """What to tell the engine. A cancellation from outside passes through."""
        task = execution.task
        try:
            payload = payload_from_json(execution.lease.offer.variables, handler.payload_type)
        except StellwerkError as error:
            self._reports.error(ErrorKind.UNPROCESSABLE_EXTERNAL_TASK, error, task)
            return self._failure(task, error)
        self._reports.heartbeat(Operation.PROCESS_EXTERNAL_TASK, task.id)
        try:
            returned = await self._call(execution, handler, handler.bind(payload, task))
            return self._success(execution, returned)
        except (KeyboardInterrupt, trio.Cancelled):
            raise
        except BaseException as raised:
            leaf = _only_leaf(raised)
            if leaf is None:
                raise
            raised.__traceback__ = _users_traceback(raised)
            return self._raised(execution, leaf)

    async def _call(self, execution: _Execution, handler: Handler, call: Callable[[], object]) -> object:
        if handler.mode is HandlerMode.THREAD:
            return await self._threads.run_sync(call)
        run = run_asyncio if handler.mode is HandlerMode.ASYNCIO else run_trio
        with trio.CancelScope() as execution.scope:
            if execution.task.cancelled:
                execution.scope.cancel()
            return await run(call)
        return _Aborted

    def _success(self, execution: _Execution, returned: object) -> FinalRequest:
        if isinstance(returned, BpmnError):
            raise returned
        ref, task = self._next_ref(), execution.task
        if returned is _Aborted:
            return Release(ref, task.id, task.fence, started=True)
        return Complete(ref, task.id, task.fence, result_to_json(returned))

    def _raised(self, execution: _Execution, error: BaseException) -> FinalRequest:
        task = execution.task
        if isinstance(error, BpmnError):
            return self._bpmn_error(task, error)
        if task.cancelled:
            # It was told to give up, and did: no failure of the task, and no retry is used up.
            return Release(self._next_ref(), task.id, task.fence, started=True)
        reported = error if isinstance(error, Exception) else RuntimeError(f"the handler raised {error!r}")
        is_meant = isinstance(error, TaskFailure | StellwerkError)
        self._reports.error(ErrorKind.PROCESS_EXTERNAL_TASK, reported, task, with_traceback=not is_meant)
        return self._failure(task, error, _hint(self._handlers[task.topic], error))

    def _bpmn_error(self, task: Task, error: BpmnError) -> FinalRequest:
        try:
            details, variables = result_to_json(error.details), result_to_json(error.variables)
        except StellwerkError as unusable:
            self._reports.error(ErrorKind.PROCESS_EXTERNAL_TASK, unusable, task)
            return self._failure(task, unusable)
        message = None if error.message is None else text_for_json(str(error.message), _MESSAGE_CHARS_MAX)
        code = text_for_json(str(error.code), _MESSAGE_CHARS_MAX)
        return BpmnErrorReport(self._next_ref(), task.id, task.fence, code, message, details, variables)

    def _failure(self, task: Task, error: BaseException, hint: str = "") -> Fail:
        retry_after_ms = retries = None
        details = _traceback(error)
        message = str(error) or type(error).__name__
        if isinstance(error, TaskFailure):
            message, retries = error.message, error.retries
            retry_after_ms = None if error.retry_after is None else max(0, round(error.retry_after * 1000))
            details = details if error.details is None else error.details
        elif not isinstance(error, StellwerkError):
            message = f"{type(error).__name__}: {error}" if str(error) else message
        return Fail(
            self._next_ref(),
            task.id,
            task.fence,
            text_for_json(message + hint, _MESSAGE_CHARS_MAX),
            _details_to_json(details),
            retry_after_ms,
            retries,
        )


class _Aborted:
    """The result of a handler that was cancelled."""


def _only_leaf(error: BaseException) -> BaseException | None:
    """What a handler's own nursery wrapped into a group; None: there is a cancellation in it, which must pass."""
    leaves = leaves_of(error)
    if any(isinstance(leaf, trio.Cancelled | KeyboardInterrupt) for leaf in leaves):
        return None
    return leaves[0] if len(leaves) == 1 else error


def _users_traceback(error: BaseException) -> TracebackType | None:
    """From the handler on: how it was called says nothing to whoever wrote it."""
    found = error.__traceback__
    while found is not None and _is_machinery(found):
        found = found.tb_next
    return found or error.__traceback__


def _is_machinery(found: TracebackType) -> bool:
    module = str(found.tb_frame.f_globals.get("__name__", ""))
    return module.startswith("stellwerk.worker.") or module.partition(".")[0] in _MACHINERY


def _hint(handler: Handler, error: BaseException) -> str:
    """What to do when a coroutine written for asyncio runs on trio."""
    needs_asyncio = any(sign in str(error) for sign in _SIGNS_OF_ASYNCIO)
    if handler.mode is not HandlerMode.TRIO or not isinstance(error, RuntimeError | TypeError) or not needs_asyncio:
        return ""
    return f" (is this written for asyncio? Register it with @worker.task({handler.topic!r}, asyncio=True))"


def _traceback(error: BaseException) -> JsonValue:
    if isinstance(error, StellwerkError):
        return None
    text = "".join(traceback.format_exception(error))
    return {"type": type(error).__name__, "traceback": text_for_json(text[-_TRACEBACK_CHARS_MAX:], len(text) + 1)}


def _details_to_json(details: JsonValue) -> msgspec.Raw:
    """The details of a failure never stand in the way of reporting it."""
    try:
        return result_to_json(details)
    except StellwerkError:
        return result_to_json(text_for_json(repr(details), _TRACEBACK_CHARS_MAX))
