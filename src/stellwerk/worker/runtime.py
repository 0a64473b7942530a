"""One run of a worker: its leases and handlers, the connections that come and go, and the way down."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import trio

from stellwerk.errors import InvalidInput, StellwerkError
from stellwerk.values import frozen
from stellwerk.wire.messages import (
    Authenticate,
    BpmnErrorReport,
    Complete,
    Fail,
    Hello,
    LeaseRef,
    Nack,
    NackCode,
    Release,
    TaskOffer,
)
from stellwerk.worker.connection import Link, with_link
from stellwerk.worker.errors import ConnectionLost, ErrorKind, Operation, Refused, TaskLost, WorkerGaveUp, leaves_of
from stellwerk.worker.execution import WORKER_STOPS, Executions
from stellwerk.worker.finals import LEASE_IS_GONE, Finals
from stellwerk.worker.handler import Handler
from stellwerk.worker.leases import FinalRequest, Lease, LeaseKey, LeaseTable
from stellwerk.worker.reports import Reports
from stellwerk.worker.session import Session
from stellwerk.worker.system import Clock, Dial, Endpoint, Entropy, Threads
from stellwerk.worker.task import CancelSignal, Task

__all__ = ["CRITICAL_ERRORS_MAX", "Settings", "TokenSource", "WorkerRun"]

TokenSource: TypeAlias = str | Callable[[], str | Awaitable[str]] | None

CRITICAL_ERRORS_MAX = 5
_BACKOFF_S_MIN = 0.1
_SUPERSEDED_WAIT_S = 30.0
_ABORT_TIMEOUT_S = 5.0
_FLUSH_TIMEOUT_S = 10.0
_GOODBYE_TIMEOUT_S = 3.0
_TICK_S = 1e-6
"""Virtual time moves only as far as it is waited for: a rest that rounding left over would be waited for for ever."""


@frozen(kw_only=True)
class Settings:
    endpoint: Endpoint
    worker_id: str
    token: TokenSource
    reconnect_seconds_max: float
    dial: Dial
    clock: Clock
    entropy: Entropy
    threads: Threads
    ctrl_c_interrupts: bool
    """Python raises `KeyboardInterrupt` for Ctrl-C wherever the main thread is, a coroutine handler included."""


class _IdentityFailed(Exception):
    """No credential could be had."""


class WorkerRun:
    """Leases and handlers live as long as the run; sessions come and go."""

    def __init__(self, settings: Settings, handlers: Mapping[str, Handler], reports: Reports) -> None:
        self._settings = settings
        self._handlers = handlers
        self._reports = reports
        self._clock = settings.clock
        self._trio_token = trio.lowlevel.current_trio_token()
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
        self._session: Session | None = None
        # Drawn here and not when the module is imported: forked processes must not share it.
        self._boot_id = settings.entropy.uuid()
        self._session_no = 0
        self._failed_attempts = 0
        self._identity_failures = 0
        self._changed = trio.Event()
        self._deadline_came_closer = trio.Event()
        self._watched_ms = float("inf")
        self._stop_requested = trio.Event()
        self._grace_s = 0.0
        self._draining = False
        self._said_goodbye = False
        self._trouble: str | None = None
        """Why there is no connection, as the log has it."""
        self._is_known_trouble = False
        self._failure: WorkerGaveUp | None = None
        self.critical_errors = 0
        self.identity_failed = False

    # --- for the public face -------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        return self._session is not None

    @property
    def active_task_count(self) -> int:
        return len(self._executions)

    def request_stop(self, grace_s: float) -> None:
        """From any thread, and from a signal handler. The shortest grace of several requests holds."""
        self._in_trio(self._begin_stop, grace_s)

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

    # --- connections ---------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        while not self._is_over():
            delay_s = await self._attempt()
            if not self._is_over():
                write = self._reports.log.debug if self._is_known_trouble else self._reports.log.info
                write("reconnecting in %.1f s, and again until it succeeds", delay_s)
                await self._clock.sleep(delay_s)

    def _is_over(self) -> bool:
        return self._failure is not None or self._said_goodbye

    async def _attempt(self) -> float:
        """One connection, from dialling to its end. → after how many seconds to try again."""
        try:
            token = await self._fresh_token()
            await with_link(self._settings.dial, self._settings.endpoint, lambda link: self._serve(link, token))
        except ConnectionLost as error:
            self._is_known_trouble = self._trouble == str(error)
            self._trouble = str(error)
            self._reports.error(ErrorKind.FETCH_AND_LOCK, error, is_known=self._is_known_trouble)
        except Refused as error:
            return self._refused(error)
        except _IdentityFailed as error:
            self._critical(error)
        except Exception as error:  # noqa: BLE001 — reported, and logged unless it explains itself
            # Whatever it is: leases are held, so the worker goes on, and stops when it happens again and again.
            self._unexpected(error)
        return self._backoff_s()

    def _unexpected(self, error: Exception) -> None:
        leaf = leaves_of(error)[0]
        cause = leaf if isinstance(leaf, Exception) else error
        if not isinstance(cause, StellwerkError):
            self._reports.log.exception("unexpected error in the worker")
        self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, cause)
        self._critical(cause)

    async def _serve(self, link: Link, token: str | None) -> None:
        session = Session(link, self, self._clock, self._handlers, self._reports.log)
        try:
            await session.run(self._hello(token))
        finally:
            self._session = None
            self._finals.disconnected()
            self._table.forget_extensions()
            self._has_changed()

    def _hello(self, token: str | None) -> Hello:
        self._session_no += 1
        return Hello(
            worker_id=self._settings.worker_id,
            boot_id=self._boot_id,
            session_no=self._session_no,
            client="stellwerk-python",
            holding=self._table.holding(),
            token=token,
            begun=self._table.begun(),
        )

    def _refused(self, error: Refused) -> float:
        is_dealt_with = self._finals.was_reason(error)
        match error.code:
            case NackCode.UNAUTHENTICATED | NackCode.FORBIDDEN:
                self._reports.error(ErrorKind.PERMANENT_AUTHORIZATION_ERROR, error)
                self._critical(error)
            case NackCode.SUPERSEDED:
                self._reports.error(ErrorKind.FETCH_AND_LOCK, error)
                return _SUPERSEDED_WAIT_S * (1.0 + self._settings.entropy.fraction() / 2)
            case NackCode.TOO_SLOW | NackCode.UNAVAILABLE | NackCode.INTERNAL:
                self._reports.error(ErrorKind.FETCH_AND_LOCK, error)
            case _:
                self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, error)
                if not is_dealt_with:
                    self._critical(error)
        return self._backoff_s()

    def _critical(self, error: Exception) -> None:
        self.critical_errors += 1
        if self.critical_errors >= CRITICAL_ERRORS_MAX and self._failure is None:
            self._failure = WorkerGaveUp(
                f"the worker stops after {self.critical_errors} critical errors in a row; the last: {error}"
            )
            self._begin_stop(0.0)

    def _backoff_s(self) -> float:
        """Doubling from 0.1 s to the maximum, the second half of it by chance."""
        longest = min(self._settings.reconnect_seconds_max, math.ldexp(_BACKOFF_S_MIN, min(self._failed_attempts, 10)))
        self._failed_attempts += 1
        return longest * (0.5 + self._settings.entropy.fraction() / 2)

    async def _fresh_token(self) -> str | None:
        source = self._settings.token
        if source is None or isinstance(source, str):
            return source
        try:
            token = await self._call_token_source(source)
        except Exception as error:
            self._identity_failures += 1
            self._reports.error(ErrorKind.IDENTITY_REFRESH, error)
            if self._identity_failures >= CRITICAL_ERRORS_MAX and not self.identity_failed:
                self.identity_failed = True
                self._reports.error(ErrorKind.CRITICAL_IDENTITY_FAILURE, error)
            raise _IdentityFailed(f"no credential: {error}") from error
        self._identity_failures, self.identity_failed = 0, False
        return token

    async def _call_token_source(self, source: Callable[[], str | Awaitable[str]]) -> str:
        if inspect.iscoroutinefunction(source):
            answer: str | Awaitable[str] = source()
        else:
            answer = await self._settings.threads.run_sync(source)
        return answer if isinstance(answer, str) else await answer

    # --- what a session tells (SessionOwner) ---------------------------------------------------------------------

    def holding(self) -> tuple[LeaseRef, ...]:
        return self._table.holding()

    def room_of(self, topic: str) -> int:
        """A handler whose lease is gone but which is not back yet still takes its slot."""
        if self._draining:
            return 0
        return max(0, self._handlers[topic].max_tasks - self._executions.lost[topic])

    def welcomed(self, session: Session, kept: Mapping[LeaseKey, float], lost: Mapping[LeaseKey, str]) -> None:
        self._session = session
        for key, deadline_ms in kept.items():
            self.renewed(key, deadline_ms)
        for key, reason in lost.items():
            self.revoked(key, reason)
        self._finals.welcomed(session)
        resumed = f", {len(kept)} lease{' goes' if len(kept) == 1 else 's go'} on" if kept else ""
        topics = ", ".join(self._handlers)
        self._trouble, self._is_known_trouble = None, False
        self._reports.log.info("connected to %s, topics: %s%s", self._settings.endpoint, topics, resumed)

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
            lambda: max(0.0, lease.deadline_ms / 1000 - self._monotonic_anywhere()),
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

    def token_wanted(self, session: Session) -> None:
        self._nursery.start_soon(self._authenticate, session)

    async def _authenticate(self, session: Session) -> None:
        try:
            token = await self._fresh_token()
        except _IdentityFailed as error:
            self._critical(error)
            return
        if token is not None and self._session is session:
            session.send(Authenticate(token))

    def sent_away(self, session: Session, reason: str, within_s: float) -> None:
        self._reports.log.info("the engine asks to connect elsewhere: %s", reason)
        self._start_soon(self._leave, session, within_s)

    async def _leave(self, session: Session, within_s: float) -> None:
        """Where there is time, what is held is finished first: this engine may be the only one. New work comes from the
        next session only, so that without any the session ends at once. Leases go on in the next one (protocol rule 8).
        """
        await self._wait_until(lambda: self._session is not session or not len(self._table), lambda: within_s)
        session.leave()

    def alive(self, pongs: int) -> None:
        self._reports.heartbeat(Operation.FETCH_AND_LOCK)
        if pongs >= 2:
            # The session has outlived a heartbeat: it is more than an engine that welcomes and hangs up.
            self._failed_attempts = self.critical_errors = 0
            self._finals.proven()

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
        session = self._session
        if session is not None and seconds * 1000 > session.limits.lock_duration_ms_max:
            longest_s = session.limits.lock_duration_ms_max / 1000
            raise InvalidInput(f"a lease can be extended by at most {longest_s:g} s at once, not by {seconds!r} s")
        self._in_trio(self._extend, lease, seconds)

    def _extend(self, lease: Lease, seconds: float) -> None:
        now_ms = self._clock.monotonic() * 1000
        if not self._table.is_held(lease) or lease.deadline_ms - now_ms >= seconds * 1000:
            return
        if self._session is None:
            error = ConnectionLost("a lease cannot be extended without a connection")
            self._reports.error(ErrorKind.EXTEND_LOCK, error, lease.task)
            return
        duration_ms = max(round(seconds * 1000), self._session.limits.lock_duration_ms_min)
        self._session.send(self._table.extend(lease, duration_ms, now_ms))

    # --- deadlines -----------------------------------------------------------------------------------------------

    async def _watch_deadlines(self) -> None:
        while True:
            self._expire_leases()
            self._watched_ms = self._table.next_deadline_ms()
            self._deadline_came_closer = trio.Event()
            left_s = self._watched_ms / 1000 - self._clock.monotonic()
            with trio.move_on_after(max(_TICK_S, left_s)):
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
            await self._wait_until(lambda: not len(self._table), lambda: _FLUSH_TIMEOUT_S)
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

    async def _say_goodbye(self) -> None:
        if self._session is None:
            return
        self._said_goodbye = True
        self._session.say_goodbye()
        with trio.move_on_after(_GOODBYE_TIMEOUT_S):
            while self._session is not None:
                await self._changed.wait()

    # --- small things --------------------------------------------------------------------------------------------

    def _room_changed(self) -> None:
        if self._session is not None:
            self._session.room_changed()
        self._has_changed()

    def _has_changed(self) -> None:
        """Wakes whoever waits in `_wait_until`."""
        self._changed.set()
        self._changed = trio.Event()

    def _in_trio(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._trio_token.run_sync_soon(self._call_safely, function, *arguments)
        except trio.RunFinishedError:
            self._reports.log.debug("the worker has ended already")

    def _call_safely(self, function: Callable[..., None], *arguments: object) -> None:
        """What raises in trio's queue of callbacks ends all of trio."""
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 — see above
            self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, error, with_traceback=True)

    def _start_soon(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        self._nursery.start_soon(function, *arguments)

    def _monotonic_anywhere(self) -> float:
        try:
            trio.lowlevel.current_trio_token()
        except RuntimeError:
            return trio.from_thread.run_sync(self._clock.monotonic, trio_token=self._trio_token)
        return self._clock.monotonic()
