"""Handing in what became of the tasks: now or after the next welcome, and again until the engine has answered.

Two things must not happen. A request that the engine will never take must not be repeated for ever, nor may its lease
be let go: the task would be handed out again, its handler run again, and no retry be used up by it. And a message that
makes the engine close the session must not do so after every reconnect, with everybody else's results behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from stellwerk.errors import StellwerkError
from stellwerk.wire.messages import Nack, NackCode, Release, SessionLimits
from stellwerk.worker.errors import ErrorKind, Refused
from stellwerk.worker.failures import problem_of, simpler_failure
from stellwerk.worker.leases import FinalRequest, Lease, LeaseTable
from stellwerk.worker.reports import Reports
from stellwerk.worker.system import Clock, Entropy

__all__ = ["LEASE_IS_GONE", "Channel", "Finals"]

LEASE_IS_GONE = (NackCode.LEASE_LOST, NackCode.ALREADY_FINISHED, NackCode.CANCELLED, NackCode.NOT_FOUND)
_ABOUT_WHAT_WAS_SENT = (NackCode.INVALID, NackCode.TOO_LARGE, NackCode.UNKNOWN_TYPE, NackCode.INTERNAL)
"""With these the engine closes a session because of a message of the worker's."""
_SUSPICION_MAX = 3
_REPEAT_S_MIN = 0.1
_REPEAT_S_MAX = 5.0
_HOPELESS_S = 300.0


class Channel(Protocol):
    """Where requests go: a session, or whatever sends them one by one. Their answers come back to the run."""

    limits: SessionLimits

    def send(self, message: FinalRequest) -> None: ...


class Finals:
    """The final requests of a run's leases.

    When a session was closed because of what was sent, its unanswered requests are *suspects*: in the next session they
    go one at a time, each after the answer to the one before. So the harmless ones get through, and the one that is
    alone each time is found and simplified.
    """

    def __init__(
        self,
        table: LeaseTable,
        reports: Reports,
        clock: Clock,
        entropy: Entropy,
        start_soon: Callable[..., None],
    ) -> None:
        """``start_soon``: in the run's nursery."""
        self._table = table
        self._reports = reports
        self._clock = clock
        self._entropy = entropy
        self._start_soon = start_soon
        self._session: Channel | None = None
        self._session_number = 0
        self._one_at_a_time = False
        self._proven = False
        self._cut_off: list[Lease] = []
        """Their requests were under way when the last session ended."""

    # --- sessions ------------------------------------------------------------------------------------------------

    def welcomed(self, session: Channel) -> None:
        """Everything that is unanswered goes (again), as far as this engine takes it."""
        self._session = session
        self._session_number += 1
        for lease in self._table.unanswered():
            assert lease.final is not None
            self._table.finish(lease, self._acceptable(lease, lease.final))
        self._send_waiting()

    def proven(self) -> None:
        """The session has outlived a heartbeat, so what it subscribed to is no reason to close it."""
        if not self._proven:
            self._proven = True
            if self._one_at_a_time:
                self._send_waiting()

    def disconnected(self) -> None:
        self._cut_off = [] if self._session is None else self._under_way()
        self._session, self._proven = None, False

    def was_reason(self, error: Refused) -> bool:
        """The engine closed the last session with this error. → whether a request that was under way may have been the
        reason, which is dealt with then.
        """
        cut_off, self._cut_off = self._cut_off, []
        if error.code not in _ABOUT_WHAT_WAS_SENT or not cut_off:
            return False
        was_alone = self._one_at_a_time and len(cut_off) == 1
        self._one_at_a_time = True
        for lease in cut_off:
            lease.suspicion += 1
            if was_alone and lease.suspicion >= _SUSPICION_MAX and self._table.awaits_answer(lease):
                self._reports.error(ErrorKind.FINISH_EXTERNAL_TASK, error, lease.task)
                self._simplify(lease, error)
        return True

    # --- requests ------------------------------------------------------------------------------------------------

    def hand_in(self, lease: Lease, request: FinalRequest) -> None:
        """Sent now, or after the next welcome."""
        accepted = self._acceptable(lease, request)
        self._table.finish(lease, accepted)
        lease.sent_in, lease.is_paused = 0, False
        if self._one_at_a_time:
            self._send_waiting()
        elif self._session is not None:
            self._send(lease, accepted, self._session)

    def answered(self) -> None:
        """A request was answered, or its lease is over."""
        if self._one_at_a_time:
            self._send_waiting()

    def refused(self, lease: Lease, nack: Nack, error: Refused) -> None:
        """The lease's final request was not taken."""
        if not isinstance(lease.final, Release):
            self._reports.error(ErrorKind.FINISH_EXTERNAL_TASK, error, lease.task)
        if nack.retryable:
            lease.retries_sent += 1
            self._pause(lease, min(_REPEAT_S_MAX, math.ldexp(_REPEAT_S_MIN, min(lease.retries_sent, 10))))
        elif nack.code in LEASE_IS_GONE:
            self._table.settle(lease)
        elif isinstance(lease.final, Release):
            self._table.drop(lease)
        else:
            # The lease is ours still, but this request will never be taken.
            self._simplify(lease, error)
        self.answered()

    def _acceptable(self, lease: Lease, request: FinalRequest) -> FinalRequest:
        problem = None if self._session is None else problem_of(request, self._session.limits)
        if problem is None:
            return request
        error = StellwerkError(problem, code=NackCode.TOO_LARGE)
        self._reports.error(ErrorKind.FINISH_EXTERNAL_TASK, error, lease.task)
        return simpler_failure(request, self._table.next_ref, problem) or request

    def _simplify(self, lease: Lease, error: Refused) -> None:
        assert lease.final is not None
        lease.suspicion = min(lease.suspicion, 1)
        simpler = simpler_failure(lease.final, self._table.next_ref, f"the engine refused the result: {error.message}")
        if simpler is not None:
            self.hand_in(lease, simpler)
            return
        # Not even a plain failure is taken. The lease stays reported as held: without that the engine would release
        # it and hand the task out again at once, for ever, at no cost of a retry. Held it blocks this one place, and
        # the engine's answers are in the reports, until somebody repairs the cause or stops the worker. Then nothing
        # releases it, so its lock expires, which the engine counts.
        self._pause(lease, _HOPELESS_S)

    def _pause(self, lease: Lease, longest_s: float) -> None:
        assert lease.final is not None
        lease.sent_in, lease.is_paused = 0, True
        self._start_soon(self._end_pause, lease, lease.final, longest_s * (0.5 + self._entropy.fraction() / 2))

    async def _end_pause(self, lease: Lease, request: FinalRequest, seconds: float) -> None:
        await self._clock.sleep(seconds)
        if lease.final is request:
            lease.is_paused = False
            self._send_waiting()

    # --- sending -------------------------------------------------------------------------------------------------

    def _send_waiting(self) -> None:
        if self._session is None:
            return
        unanswered = [lease for lease in self._table.unanswered() if not lease.is_paused]
        waiting = [lease for lease in unanswered if lease.sent_in != self._session_number]
        self._one_at_a_time = any(lease.suspicion for lease in unanswered)
        if self._one_at_a_time:
            if not self._proven or self._under_way():
                return
            waiting = sorted(waiting, key=lambda lease: lease.suspicion)[:1]
        for lease in waiting:
            self._send(lease, self._table.repeat(lease), self._session)

    def _send(self, lease: Lease, request: FinalRequest, session: Channel) -> None:
        lease.sent_in = self._session_number
        session.send(request)

    def _under_way(self) -> list[Lease]:
        """Sent in this session and not answered."""
        return [lease for lease in self._table.unanswered() if lease.sent_in == self._session_number]
