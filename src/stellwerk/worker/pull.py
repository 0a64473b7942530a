"""A run whose tasks are polled over HTTP: for each topic one poll at a time, while there is room."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from stellwerk.wire.messages import Nack, NackCode, SessionLimits
from stellwerk.worker.connection import FRAME_BYTES_MAX
from stellwerk.worker.credentials import NoCredential
from stellwerk.worker.errors import ConnectionLost, ErrorKind, Operation
from stellwerk.worker.finals import LEASE_IS_GONE
from stellwerk.worker.handler import LOCK_SECONDS_MAX, LOCK_SECONDS_MIN, Handler
from stellwerk.worker.http_client import HttpCall, HttpClient
from stellwerk.worker.leases import FinalRequest, Lease
from stellwerk.worker.pull_api import Arrival, PullApi, RefusedRequest
from stellwerk.worker.renewals import Renewals, usual_ms
from stellwerk.worker.reports import Reports
from stellwerk.worker.runtime import Settings, WorkerRun
from stellwerk.worker.settings import Backoff

__all__ = ["PullRun"]

_ROOM_MAX = 1_000
"""For how many tasks one poll asks at most."""
_RESULTS_AT_ONCE = 8
_RENEWALS_AT_ONCE = 8
"""Of its own, so that results which are not answered do not keep leases from being extended."""
_GIVE_UP_TIMEOUT_S = 3.0
_INTERNAL_ERRORS_MAX = 5
_LIMITS = SessionLimits(
    frame_bytes_max=FRAME_BYTES_MAX,
    payload_bytes_max=FRAME_BYTES_MAX,
    max_tasks_max=_ROOM_MAX,
    lock_duration_ms_min=round(LOCK_SECONDS_MIN * 1000),
    lock_duration_ms_max=round(LOCK_SECONDS_MAX * 1000),
)
"""The engine's own are not known: it says when something is too much."""


class PullRun(WorkerRun):
    """It is the `Renewer` of its leases and the `Channel` of its results."""

    def __init__(self, settings: Settings, handlers: Mapping[str, Handler], reports: Reports) -> None:
        super().__init__(settings, handlers, reports)
        self._client = HttpClient(settings.dial, settings.endpoint, self._clock)
        self._api = PullApi(self._client, self._credentials, settings.worker_id)
        self._renewals = Renewals(self._table, self._clock, self._start_soon, self)
        self._results = trio.CapacityLimiter(_RESULTS_AT_ONCE)
        self._extensions = trio.CapacityLimiter(_RENEWALS_AT_ONCE)
        self._answered: set[str] = set()
        """Topics whose last poll the engine answered."""
        self._polls: dict[str, HttpCall] = {}
        self._gave_up = False
        self._known_extension_trouble: str | None = None
        self.limits = _LIMITS

    @property
    def is_connected(self) -> bool:
        return len(self._answered) == len(self._handlers) and not self._is_over()

    @property
    def _limits(self) -> SessionLimits | None:
        return self.limits

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            await super().run(task_status)
        finally:
            self._answered.clear()
            await self._client.close()

    # --- polls ---------------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        self._finals.welcomed(self)
        self._start_soon(self._renewals.run)
        async with trio.open_nursery() as nursery:
            for handler in self._handlers.values():
                nursery.start_soon(self._keep_polling, handler)

    def _is_over(self) -> bool:
        return self._stop_requested.is_set()

    async def _keep_polling(self, handler: Handler) -> None:
        backoff = Backoff(self._settings.reconnect_seconds_max, self._settings.entropy)
        while True:
            while not self._is_over() and not self._room_of(handler):
                await self._changed.wait()
            if self._is_over():
                return
            pause_s = await self._poll(handler, backoff)
            if pause_s > 0:
                with trio.move_on_after(pause_s):
                    await self._stop_requested.wait()

    def _room_of(self, handler: Handler) -> int:
        """A lease takes its place until its result was answered, a handler until it is back, whichever is later."""
        taken = self._table.count(handler.topic) + self._executions.lost[handler.topic]
        return min(_ROOM_MAX, max(0, handler.max_tasks - taken))

    async def _poll(self, handler: Handler, backoff: Backoff) -> float:
        """→ after how many seconds to poll again."""
        started = self._clock.monotonic()
        try:
            arrivals, waited_ms = await self._fetch(handler)
        except ConnectionLost as error:
            if not self._is_over():
                self._report_trouble(error)
        except RefusedRequest as error:
            self._poll_refused(error)
            self._answered.discard(handler.topic)
            return max(backoff.next_s(), error.retry_after_s)
        except NoCredential as error:
            self._critical(error)
        except Exception as error:  # noqa: BLE001 — reported, and logged unless it explains itself
            # Whatever it is: leases are held, so the worker goes on, and stops when it happens again and again.
            self._unexpected(error)
        else:
            backoff.reset()
            self._poll_answered(handler, arrivals)
            if arrivals or waited_ms < self._long_wait_ms():
                return 0.0
            return max(0.0, started + self._settings.idle_timeout_s - self._clock.monotonic())
        self._answered.discard(handler.topic)
        return backoff.next_s()

    async def _fetch(self, handler: Handler) -> tuple[list[Arrival], int]:
        """→ also for how long the engine was asked to wait."""
        # Whether it can be reached at all shows at once only if it answers at once.
        wait_ms = self._long_wait_ms() if handler.topic in self._answered else 0
        call = self._polls[handler.topic] = self._api.fetching(handler, self._room_of(handler), wait_ms)
        try:
            return await self._api.fetch(call), wait_ms
        finally:
            del self._polls[handler.topic]
            self._has_changed()

    def _long_wait_ms(self) -> int:
        return round(self._settings.long_polling_timeout_s * 1000)

    def _poll_answered(self, handler: Handler, arrivals: list[Arrival]) -> None:
        was_connected = self.is_connected
        self._answered.add(handler.topic)
        for arrival in arrivals:
            self._take(arrival)
        if self.is_connected:
            self.critical_errors = 0
            if not was_connected:
                self._trouble, self._is_known_trouble = None, False
                where, topics = self._settings.endpoint.http_url, ", ".join(self._handlers)
                self._reports.log.info("polling %s, topics: %s", where, topics)
        self._reports.heartbeat(Operation.FETCH_AND_LOCK)

    def _poll_refused(self, error: RefusedRequest) -> None:
        match error.code:
            case NackCode.UNAUTHENTICATED | NackCode.FORBIDDEN:
                self._reports.error(ErrorKind.PERMANENT_AUTHORIZATION_ERROR, error)
                self._critical(error)
            case _ if error.retryable:
                self._report_trouble(error)
            case _:
                self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, error)
                self._critical(error)

    def _take(self, arrival: Arrival) -> None:
        key = (arrival.offer.task_id, arrival.offer.fence)
        is_known = self._table.find(key) is not None
        self.task_arrived(arrival.offer, arrival.deadline_ms)
        lease = self._table.find(key)
        if lease is not None and not is_known:
            self._renewals.watch(lease)

    # --- extensions (Renewer) ------------------------------------------------------------------------------------

    def _send_extension(self, lease: Lease, duration_ms: int) -> None:
        self._renewals.extend(lease, max(duration_ms, self.limits.lock_duration_ms_min))

    async def extend_once(self, lease: Lease, duration_ms: int, timeout_s: float) -> bool:
        async with self._extensions:
            if not self._table.is_held(lease):
                return False
            try:
                deadline_ms = await self._api.extend(lease, duration_ms, timeout_s)
            except RefusedRequest as error:
                return self._extension_refused(lease, duration_ms, error)
            except Exception as error:  # noqa: BLE001 — reported; the handler is aborted at the deadline, not before
                self._extension_failed(lease, error)
                return True
        self._known_extension_trouble = None
        self.renewed(lease.key, deadline_ms)
        return False

    def _extension_refused(self, lease: Lease, duration_ms: int, error: RefusedRequest) -> bool:
        if error.retryable or error.code not in LEASE_IS_GONE:
            self._extension_failed(lease, error)
            # More than usual can be too much for this engine, and is what only the handler wishes.
            return error.retryable or duration_ms == usual_ms(lease)
        if lease.final is None:
            self.revoked(lease.key, "cancelled" if error.code == NackCode.CANCELLED else "lost")
        return False  # with a final request under way its answer tells more

    def _extension_failed(self, lease: Lease, error: Exception) -> None:
        is_known = self._known_extension_trouble == str(error)
        self._known_extension_trouble = str(error)
        self._reports.error(ErrorKind.EXTEND_LOCK, error, lease.task, is_known=is_known)

    # --- results (Channel) ---------------------------------------------------------------------------------------

    def send(self, message: FinalRequest) -> None:
        self._start_soon(self._hand_in_by_http, message)

    async def _hand_in_by_http(self, request: FinalRequest) -> None:
        async with self._results:
            if not self._table.awaits_request(request.ref):
                return  # its lease ran out meanwhile
            nack: Nack | None = None
            try:
                await self._api.hand_in(request)
            except RefusedRequest as error:
                nack = Nack(request.ref, error.code, error.message, self._is_worth_repeating(request, error))
            except (ConnectionLost, NoCredential) as error:
                nack = Nack(request.ref, NackCode.UNAVAILABLE, str(error), retryable=True)
            except Exception as error:  # noqa: BLE001 — one result must not end the worker that holds the others
                self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, error, with_traceback=True)
                nack = Nack(request.ref, NackCode.INTERNAL, "the worker could not hand it in")
        if nack is None:
            self.acked(request.ref)
        else:
            self.nacked(nack)

    def _is_worth_repeating(self, request: FinalRequest, error: RefusedRequest) -> bool:
        """An engine that always breaks on this one result will never take it."""
        lease = self._table.find((request.task_id, request.fence))
        is_hopeless = lease is None or lease.retries_sent >= _INTERNAL_ERRORS_MAX
        return error.retryable and not (error.code == NackCode.INTERNAL and is_hopeless)

    # --- the way down --------------------------------------------------------------------------------------------

    def _tell_room(self) -> None:
        if self._draining and not self._gave_up:
            self._gave_up = True
            for call in self._polls.values():
                self._start_soon(call.give_up, _GIVE_UP_TIMEOUT_S)

    def _is_flushed(self) -> bool:
        """What an answer that was on its way brings goes back first."""
        return not len(self._table) and not self._polls

    async def _say_goodbye(self) -> None:
        """A worker that polls is gone when it polls no more."""
