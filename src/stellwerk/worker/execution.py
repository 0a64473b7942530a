"""Runs the handlers, each in its thread or scope, and turns what comes out into the request for the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType

import attrs
import trio

from stellwerk.errors import InvalidInput, StellwerkError
from stellwerk.wire.messages import Complete, Release
from stellwerk.worker.errors import BpmnError, ErrorKind, Operation, TaskFailure, leaves_of
from stellwerk.worker.failures import bpmn_error_report, failure, plain_failure, unusable_numbers
from stellwerk.worker.handler import Handler, HandlerMode, run_asyncio, run_trio
from stellwerk.worker.leases import FinalRequest, Lease
from stellwerk.worker.payloads import payload_from_json, result_to_json
from stellwerk.worker.reports import Reports
from stellwerk.worker.system import Threads
from stellwerk.worker.task import Task
from stellwerk.worker.texts import described, text_of

__all__ = ["WORKER_STOPS", "Executions"]

WORKER_STOPS = "worker_stops"
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
        *,
        ctrl_c_interrupts: bool,
    ) -> None:
        """``ctrl_c_interrupts``: a `KeyboardInterrupt` in a coroutine may be the user's Ctrl-C, and ends the worker."""
        self._handlers = handlers
        self._reports = reports
        self._threads = threads
        self._next_ref = next_ref
        self._ended = ended
        self._ctrl_c_interrupts = ctrl_c_interrupts
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
            request = await self._safe_outcome(execution, self._handlers[topic])
        finally:
            del self._by_lease[execution.lease]
            self.running[topic] -= 1
            if execution.lost:
                self.lost[topic] -= 1
        self._end(execution.lease, request)

    def _end(self, lease: Lease, request: FinalRequest) -> None:
        instead = plain_failure(self._next_ref(), *lease.key, "the worker could not hand in what the handler gave")
        for attempted in (request, instead):
            try:
                self._ended(lease, attempted)
                return
            except Exception as error:  # noqa: BLE001 — one task must not take the other tasks' worker with it
                self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, error, lease.task, with_traceback=True)

    async def _safe_outcome(self, execution: _Execution, handler: Handler) -> FinalRequest:
        """The boundary of one execution: what the user's objects do in here fails their task, and nothing else."""
        try:
            return await self._outcome(execution, handler)
        except BaseException as error:
            if self._must_pass(error, handler) is not None:
                raise
            reported = error if isinstance(error, Exception) else RuntimeError(described(error))
            self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, reported, execution.task, with_traceback=True)
            return plain_failure(self._next_ref(), *execution.lease.key, f"in the worker: {described(error)}")

    async def _outcome(self, execution: _Execution, handler: Handler) -> FinalRequest:
        """What to tell the engine. A cancellation from outside passes through."""
        task = execution.task
        if task.cancelled or task.lock_remaining <= 0:
            # It was under way for longer than its lease lasts, or this process stood still: somebody else may be at it.
            return Release(self._next_ref(), task.id, task.fence, started=False)
        execution.lease.has_begun = True
        try:
            payload = payload_from_json(execution.lease.offer.variables, handler.payload_type)
        except StellwerkError as error:
            self._reports.error(ErrorKind.UNPROCESSABLE_EXTERNAL_TASK, error, task)
            return failure(self._next_ref(), task.id, task.fence, error)
        self._reports.heartbeat(Operation.PROCESS_EXTERNAL_TASK, task.id)
        try:
            returned = await self._call(execution, handler, handler.bind(payload, task))
            return self._success(execution, returned)
        except BaseException as raised:  # noqa: BLE001 — it becomes the task's failure, reported with its traceback
            passing = self._must_pass(raised, handler)
            if passing is not None:
                raise passing from None
            raised.__traceback__ = _users_traceback(raised)
            return self._raised(execution, _only_leaf(raised))

    def _must_pass(self, error: BaseException, handler: Handler) -> BaseException | None:
        """The part of `error` that is not the handler's: the run is being cancelled, or Ctrl-C was pressed.

        A `trio.Cancelled` that nobody ordered now was kept and raised again by the handler. A `KeyboardInterrupt` in a
        thread never comes from the keyboard.
        """
        passing: tuple[type[BaseException], ...] = ()
        if trio.current_effective_deadline() == float("-inf"):
            passing += (trio.Cancelled,)
        if self._ctrl_c_interrupts and handler.mode is not HandlerMode.THREAD:
            passing += (KeyboardInterrupt,)
        if isinstance(error, BaseExceptionGroup):
            return error.subgroup(passing) if passing else None
        return error if isinstance(error, passing) else None

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
        reported = error if isinstance(error, Exception) else RuntimeError(f"the handler raised {described(error)}")
        is_meant = isinstance(error, TaskFailure | StellwerkError)
        self._reports.error(ErrorKind.PROCESS_EXTERNAL_TASK, reported, task, with_traceback=not is_meant)
        unusable = unusable_numbers(error)
        if unusable is not None:
            self._reports.error(ErrorKind.UNPROCESSABLE_EXTERNAL_TASK, unusable, task)
        return failure(self._next_ref(), task.id, task.fence, error, _hint(self._handlers[task.topic], error))

    def _bpmn_error(self, task: Task, error: BpmnError) -> FinalRequest:
        try:
            return bpmn_error_report(self._next_ref(), task.id, task.fence, error)
        except InvalidInput as unusable:
            self._reports.error(ErrorKind.UNPROCESSABLE_EXTERNAL_TASK, unusable, task)
            return plain_failure(self._next_ref(), task.id, task.fence, f"{unusable.message} ({described(error)})")


class _Aborted:
    """The result of a handler that was cancelled."""


def _only_leaf(error: BaseException) -> BaseException:
    """What a handler's own nursery wrapped into a group."""
    leaves = leaves_of(error)
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
    needs_asyncio = any(sign in text_of(error) for sign in _SIGNS_OF_ASYNCIO)
    if handler.mode is not HandlerMode.TRIO or not isinstance(error, RuntimeError | TypeError) or not needs_asyncio:
        return ""
    return f" (is this written for asyncio? Register it with @worker.task({handler.topic!r}, asyncio=True))"
