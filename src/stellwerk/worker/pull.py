"""A run whose tasks are polled over HTTP, while there is room: topics that are alike in one poll (see `polls`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio

from stellwerk.wire.messages import Nack, NackCode, SessionLimits
from stellwerk.worker.connection import FRAME_BYTES_MAX
from stellwerk.worker.credentials import NoCredential
from stellwerk.worker.errors import ConnectionLost, ErrorKind, Operation
from stellwerk.worker.finals import LEASE_IS_GONE
from stellwerk.worker.handler import LOCK_SECONDS_MAX, LOCK_SECONDS_MIN, Handler
from stellwerk.worker.http_client import HttpClient
from stellwerk.worker.leases import FinalRequest, Lease
from stellwerk.worker.polls import PolledTopic, PollGroup, TopicPoll, poll_groups
from stellwerk.worker.pull_api import Arrival, PullApi, RefusedRequest
from stellwerk.worker.renewals import Renewals, usual_ms
from stellwerk.worker.reports import Reports
from stellwerk.worker.runtime import TICK_S, Settings, WorkerRun
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
        self._topics = [
            PolledTopic(handler, Backoff(settings.reconnect_seconds_max, settings.entropy))
            for handler in handlers.values()
        ]
        self._polls: set[TopicPoll] = set()
        self._gave_up = False
        self._known_extension_trouble: str | None = None
        self.limits = _LIMITS

    @property
    def is_connected(self) -> bool:
        return all(topic.is_answered for topic in self._topics) and not self._is_over()

    @property
    def _limits(self) -> SessionLimits | None:
        return self.limits

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            await super().run(task_status)
        finally:
            for topic in self._topics:
                topic.is_answered = False
            await self._client.close()

    # --- polls ---------------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        self._finals.welcomed(self)
        self._start_soon(self._renewals.run)
        groups = poll_groups(self._topics, self._settings.long_polling_timeout_s, self._settings.idle_timeout_s)
        async with trio.open_nursery() as nursery:
            for group in groups:
                nursery.start_soon(self._keep_polling, group, nursery)

    def _is_over(self) -> bool:
        return self._stop_requested.is_set()

    async def _keep_polling(self, group: PollGroup, nursery: trio.Nursery) -> None:
        while not self._is_over():
            now = self._clock.monotonic()
            for poll in group.begin(self._room_of, now):
                self._polls.add(poll)
                nursery.start_soon(self._poll, group, poll)
            with trio.move_on_after(max(TICK_S, group.next_look(self._room_of, now) - now)):
                await self._changed.wait()

    def _room_of(self, topic: PolledTopic) -> int:
        """A lease takes its place until its result was answered, a handler until it is back, whichever is later."""
        taken = self._table.count(topic.name) + self._executions.lost[topic.name]
        return min(_ROOM_MAX, max(0, topic.handler.max_tasks - taken))

    async def _poll(self, group: PollGroup, poll: TopicPoll) -> None:
        fail = partial(group.failed, poll)
        try:
            arrivals = await self._fetch(poll)
        except ConnectionLost as error:
            if not self._is_over():
                self._report_trouble(error)
            fail(self._clock.monotonic())
        except RefusedRequest as error:
            self._poll_refused(error)
            fail(
                self._clock.monotonic(),
                pause_s=error.retry_after_s,
                is_due_to_a_topic=not error.retryable or error.code == NackCode.FORBIDDEN,
            )
        except NoCredential as error:
            self._critical(error)
            fail(self._clock.monotonic())
        except Exception as error:  # noqa: BLE001 — reported, and logged unless it explains itself
            # Whatever it is: leases are held, so the worker goes on, and stops when it happens again and again.
            self._unexpected(error)
            fail(self._clock.monotonic())
        else:
            self._poll_answered(group, poll, arrivals)
        self._has_changed()

    async def _fetch(self, poll: TopicPoll) -> list[Arrival]:
        try:
            if self._gave_up:
                raise ConnectionLost("the worker stops")
            poll.call = self._api.fetching([topic.handler for topic in poll.topics], poll.max_tasks, poll.wait_s)
            return await self._api.fetch(poll.call)
        finally:
            self._polls.discard(poll)

    def _poll_answered(self, group: PollGroup, poll: TopicPoll, arrivals: list[Arrival]) -> None:
        was_connected = self.is_connected
        topics = {arrival.offer.topic for arrival in arrivals}
        for arrival in arrivals:
            self._take(arrival)
        group.answered(poll, topics, len(arrivals), self._clock.monotonic())
        if self.is_connected:
            self.critical_errors = 0
            if not was_connected:
                self._trouble, self._is_known_trouble = None, False
                where, names = self._settings.endpoint.http_url, ", ".join(self._handlers)
                self._reports.log.info("polling %s, topics: %s", where, names)
        self._reports.heartbeat(Operation.FETCH_AND_LOCK)

    def _poll_refused(self, error: RefusedRequest) -> None:
        match error.code:
            case NackCode.UNAUTHENTICATED | NackCode.FORBIDDEN:
                self._not_authorized(error)
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
            for poll in self._polls:
                if poll.call is not None:
                    self._start_soon(poll.call.give_up, _GIVE_UP_TIMEOUT_S)

    def _is_flushed(self) -> bool:
        """What an answer that was on its way brings goes back first."""
        return not len(self._table) and not self._polls

    async def _say_goodbye(self) -> None:
        """A worker that polls is gone when it polls no more."""
