"""One run of a worker, whatever way the tasks come: its leases and handlers, their deadlines, and the way down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping

import trio

from stellwerk.errors import InvalidInput, StellwerkError
from stellwerk.wire.messages import BpmnErrorReport, Complete, Fail, Nack, NackCode, Release, SessionLimits, TaskOffer
from stellwerk.worker.bridge import Bridge
from stellwerk.worker.credentials import Credentials
from stellwerk.worker.errors import ErrorKind, Operation, Refused, TaskLost, WorkerGaveUp, leaves_of
from stellwerk.worker.execution import WORKER_STOPS, Executions
from stellwerk.worker.finals import LEASE_IS_GONE, Finals
from stellwerk.worker.handler import Handler
from stellwerk.worker.leases import FinalRequest, Lease, LeaseKey, LeaseTable
from stellwerk.worker.reports import Reports
from stellwerk.worker.settings import CRITICAL_ERRORS_MAX, Settings, TokenSource
from stellwerk.worker.task import CancelSignal, Task

__all__ = ["CRITICAL_ERRORS_MAX", "TICK_S", "Settings", "TokenSource", "WorkerRun"]

_ABORT_TIMEOUT_S = 5.0
_FLUSH_TIMEOUT_S = 10.0
TICK_S = 1e-6
"""Virtual time moves only as far as it is waited for: a rest that rounding left over would be waited for for ever."""


class WorkerRun(ABC):
    """Leases and handlers live as long as the run; connections come and go."""

    def __init__(self, settings: Settings, handlers: Mapping[str, Handler], reports: Reports) -> None:
        self._settings = settings
        self._handlers = handlers
        self._reports = reports
        self._clock = settings.clock
        self._credentials = Credentials(settings.token, settings.threads, reports)
        self._bridge = Bridge(self._clock, reports)
        self._table = LeaseTable()
        self._executions = Executions(
            handlers,
            reports,
            settings.threads,
            self._table.next_ref,
            self._handler_ended,
            ctrl_c_interrupts=settings.ctrl_c_interrupts,
        )
        self._finals = Finals(self._table, reports, self._clock, settings.entropy, self._start_soon)
        self._changed = trio.Event()
        self._deadline_came_closer = trio.Event()
        self._watched_ms = float("inf")
        self._stop_requested = trio.Event()
        self._grace_s = 0.0
        self._draining = False
        self._trouble: str | None = None
        """Why there is no connection, as the log has it."""
        self._refusal: str | None = None
        """What was said last of the credential, or of what it does not allow."""
        self._is_known_trouble = False
        self._failure: WorkerGaveUp | None = None
        self.critical_errors = 0

    # --- the way the tasks come ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def is_connected(self) -> bool: ...

    @abstractmethod
    async def _stay_connected(self) -> None:
        """Let tasks come until the run is over, whatever happens to connections."""

    @property
    @abstractmethod
    def _limits(self) -> SessionLimits | None:
        """What the engine accepts, if that is known."""

    @abstractmethod
    def _send_extension(self, lease: Lease, duration_ms: int) -> None:
        """Ask for so much from now; less than what is left is not asked for."""

    @abstractmethod
    def _tell_room(self) -> None:
        """There is room for more or fewer tasks of some topic, or for none any more (`_draining`)."""

    def _is_flushed(self) -> bool:
        """Every result was answered, and nothing more can come."""
        return not len(self._table)

    @abstractmethod
    async def _say_goodbye(self) -> None:
        """The last thing on the way down."""

    # --- for the public face -------------------------------------------------------------------------------------

    @property
    def identity_failed(self) -> bool:
        return self._credentials.failed_critically

    @property
    def active_task_count(self) -> int:
        return len(self._executions)

    def request_stop(self, grace_s: float) -> None:
        """From any thread, and from a signal handler. The shortest grace of several requests holds."""
        self._bridge.run_soon(self._begin_stop, grace_s)

    def _begin_stop(self, grace_s: float) -> None:
        self._grace_s = min(grace_s, self._grace_s) if self._stop_requested.is_set() else grace_s
        self._stop_requested.set()
        self._has_changed()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Until the stop is done.

        :raises WorkerGaveUp: after too many critical errors in a row.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._watch_deadlines)
            nursery.start_soon(self._stay_connected)
            task_status.started()
            await self._stop_requested.wait()
            await self._drain()
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    # --- troubles ------------------------------------------------------------------------------------------------

    def _report_trouble(self, error: StellwerkError) -> None:
        """The same one again is no news for the log."""
        self._is_known_trouble = self._trouble == str(error)
        self._trouble = str(error)
        self._reports.error(ErrorKind.FETCH_AND_LOCK, error, is_known=self._is_known_trouble)

    def _unexpected(self, error: Exception) -> None:
        leaf = leaves_of(error)[0]
        cause = leaf if isinstance(leaf, Exception) else error
        if not isinstance(cause, StellwerkError):
            self._reports.log.exception("unexpected error in the worker")
        self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, cause)
        self._critical(cause)

    def _not_authorized(self, error: Refused) -> None:
        """401, 403, or what a session is closed with for the same."""
        text = f"{self._settings.endpoint.http_url} refuses this worker: {error}"
        if error.code == NackCode.UNAUTHENTICATED:
            text += f"; {self._credentials.origin}"
        refused = Refused(text, code=error.code)
        self._is_known_trouble = self.critical_errors > 0 and self._refusal == text
        self._refusal = text
        self._reports.error(ErrorKind.PERMANENT_AUTHORIZATION_ERROR, refused, is_known=self._is_known_trouble)
        self._critical(refused)

    def _critical(self, error: Exception) -> None:
        self.critical_errors += 1
        if self.critical_errors >= CRITICAL_ERRORS_MAX and self._failure is None:
            self._failure = WorkerGaveUp(
                f"the worker stops after {self.critical_errors} critical errors in a row; the last: {error}"
            )
            self._begin_stop(0.0)

    # --- tasks and leases ----------------------------------------------------------------------------------------

    def task_arrived(self, offer: TaskOffer, deadline_ms: float) -> None:
        lease = self._table.accept(offer, deadline_ms)
        if lease is None:
            return
        self._mind_deadline()
        if self._draining or not self._executions.has_room(offer.topic):
            self._give_back(lease)
            return
        self._executions.start(self._nursery, lease, self._task(lease))

    def _give_back(self, lease: Lease) -> None:
        if not self._draining and not self._executions.lost[lease.offer.topic]:
            # Only a slot that is still taken after a revocation explains it; nothing else does.
            error = StellwerkError(f"the engine sent more tasks of topic {lease.offer.topic!r} than there is room for")
            self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, error)
        self._hand_in(lease, Release(self._table.next_ref(), *lease.key, started=False))

    def _task(self, lease: Lease) -> Task:
        return Task(
            lease.offer,
            self._settings.worker_id,
            CancelSignal(),
            lambda: max(0.0, lease.deadline_ms / 1000 - self._bridge.monotonic()),
            lambda seconds: self._ask_for_extension(lease, seconds),
        )

    def renewed(self, key: LeaseKey, deadline_ms: float) -> None:
        lease = self._table.renew(key, deadline_ms)
        if lease is not None:
            self._mind_deadline()
            self._reports.heartbeat(Operation.EXTEND_LOCK, lease.offer.task_id)

    def revoked(self, key: LeaseKey, reason: str) -> None:
        lease = self._table.revoke(key, reason)
        if lease is None or lease.final is not None:
            return
        if reason in ("cancelled", "suspended"):
            self._reports.log.info("task %s was revoked: %s", lease.offer.task_id, reason)
            self._lose(lease, reason)
        else:
            self._lose(lease, reason, TaskLost(f"the lease was revoked: {reason}"))

    def _lose(self, lease: Lease, reason: str, error: TaskLost | None = None) -> None:
        """The handler's result will be dropped."""
        self._executions.abort(lease, reason)
        if error is not None:
            self._reports.error(ErrorKind.EXTEND_LOCK, error, lease.task)
        self._room_changed()

    def acked(self, ref: int) -> None:
        if self._table.extension_answered(ref, granted=True) is not None:
            self._mind_deadline()
            return
        lease = self._table.answered(ref)
        if lease is None:
            return
        request, task_id = lease.final, lease.offer.task_id
        if isinstance(request, Release):
            self._table.drop(lease)  # which leaves a single try locked
        else:
            self._table.settle(lease)
        if isinstance(request, Complete):
            self._reports.heartbeat(Operation.FINISH_EXTERNAL_TASK, task_id)
        elif isinstance(request, Fail | BpmnErrorReport):
            self._reports.heartbeat(Operation.HANDLE_ERROR, task_id)
        self._finals.answered()
        self._has_changed()

    def nacked(self, nack: Nack) -> None:
        error = Refused(nack.message, code=nack.code)
        extended = self._table.extension_answered(nack.ref, granted=False)
        if extended is not None:
            self._reports.error(ErrorKind.EXTEND_LOCK, error, extended.task)
            if nack.code in LEASE_IS_GONE and self._table.revoke(extended.key, nack.code) is not None:
                self._lose(extended, "lost")
            return
        lease = self._table.answered(nack.ref)
        if lease is not None:
            self._finals.refused(lease, nack, error)
            self._has_changed()

    # --- results -------------------------------------------------------------------------------------------------

    def _handler_ended(self, lease: Lease, request: FinalRequest) -> None:
        self._expire_leases()
        self._room_changed()
        if not self._table.is_held(lease) or lease.final is not None:
            self._reports.log.info("the result for task %s comes too late and is dropped", lease.offer.task_id)
            return
        self._hand_in(lease, request)

    def _hand_in(self, lease: Lease, request: FinalRequest) -> None:
        """Sent now, or after the next welcome."""
        self._finals.hand_in(lease, request)
        self._has_changed()

    def _ask_for_extension(self, lease: Lease, seconds: float) -> None:
        """From any thread.

        :raises InvalidInput: when it is longer than this engine allows.
        """
        limits = self._limits
        if limits is not None and seconds * 1000 > limits.lock_duration_ms_max:
            longest_s = limits.lock_duration_ms_max / 1000
            raise InvalidInput(f"a lease can be extended by at most {longest_s:g} s at once, not by {seconds!r} s")
        self._bridge.run_soon(self._extend, lease, seconds)

    def _extend(self, lease: Lease, seconds: float) -> None:
        now_ms = self._clock.monotonic() * 1000
        if self._table.is_held(lease) and lease.deadline_ms - now_ms < seconds * 1000:
            self._send_extension(lease, round(seconds * 1000))

    # --- deadlines -----------------------------------------------------------------------------------------------

    async def _watch_deadlines(self) -> None:
        while True:
            self._expire_leases()
            self._watched_ms = self._table.next_deadline_ms()
            self._deadline_came_closer = trio.Event()
            left_s = self._watched_ms / 1000 - self._clock.monotonic()
            with trio.move_on_after(max(TICK_S, left_s)):
                await self._deadline_came_closer.wait()

    def _mind_deadline(self) -> None:
        if self._table.next_deadline_ms() < self._watched_ms:
            self._deadline_came_closer.set()

    def _expire_leases(self) -> None:
        """The worker trusts no lease beyond its deadline, connected or not (protocol rule 5)."""
        for lease in self._table.pop_expired(self._clock.monotonic() * 1000):
            if lease.final is None:
                self._lose(lease, "expired", TaskLost("no renewal arrived before the lease ran out"))
            elif not isinstance(lease.final, Release):
                error = TaskLost(f"task {lease.offer.task_id}: no answer came before the lease ran out")
                self._reports.error(ErrorKind.FINISH_EXTERNAL_TASK, error, lease.task)
            self._finals.answered()
            self._has_changed()

    # --- the way down --------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Protocol rule 11. Reports and renewals go on until the last answer."""
        self._draining = True
        self._room_changed()
        await self._wait_until(lambda: not self._table.unfinished(), lambda: self._grace_s)
        for lease in self._table.unfinished():
            self._executions.abort(lease, WORKER_STOPS)
        await self._wait_until(lambda: not self._table.unfinished(), lambda: _ABORT_TIMEOUT_S)
        for lease in self._table.unfinished():
            self._hand_in(lease, Release(self._table.next_ref(), *lease.key, started=True))
        if self._failure is None:
            await self._wait_until(self._is_flushed, lambda: _FLUSH_TIMEOUT_S)
        for lease in self._table.unanswered():
            error = TaskLost(f"task {lease.offer.task_id}: the worker stops before its result was acknowledged")
            self._reports.error(ErrorKind.FINISH_EXTERNAL_TASK, error, lease.task)
        await self._say_goodbye()

    async def _wait_until(self, condition: Callable[[], bool], timeout_s: Callable[[], float]) -> None:
        """Whichever comes first; the timeout may become shorter meanwhile."""
        started = self._clock.monotonic()
        while not condition():
            left = started + timeout_s() - self._clock.monotonic()
            if left <= 0:
                return
            with trio.move_on_after(left):
                await self._changed.wait()

    # --- small things --------------------------------------------------------------------------------------------

    def _room_changed(self) -> None:
        self._tell_room()
        self._has_changed()

    def _has_changed(self) -> None:
        """Wakes whoever waits in `_wait_until`."""
        self._changed.set()
        self._changed = trio.Event()

    def _start_soon(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        self._nursery.start_soon(function, *arguments)
