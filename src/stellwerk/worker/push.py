"""A run whose tasks are pushed over a WebSocket: sessions with the engine, one after the other."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from stellwerk.wire.messages import Authenticate, Hello, LeaseRef, NackCode, SessionLimits
from stellwerk.worker.connection import Link, with_link
from stellwerk.worker.credentials import NoCredential
from stellwerk.worker.errors import ConnectionLost, ErrorKind, Operation, Refused
from stellwerk.worker.handler import Handler
from stellwerk.worker.leases import Lease, LeaseKey
from stellwerk.worker.reports import Reports
from stellwerk.worker.runtime import Settings, WorkerRun
from stellwerk.worker.session import Session
from stellwerk.worker.settings import CRITICAL_ERRORS_MAX, Backoff

__all__ = ["PushRun"]

_SUPERSEDED_WAIT_S = 30.0
_GOODBYE_TIMEOUT_S = 3.0


class PushRun(WorkerRun):
    """Its sessions see it as their `SessionOwner`."""

    def __init__(self, settings: Settings, handlers: Mapping[str, Handler], reports: Reports) -> None:
        super().__init__(settings, handlers, reports)
        self._session: Session | None = None
        # Drawn here and not when the module is imported: forked processes must not share it.
        self._boot_id = settings.entropy.uuid()
        self._session_no = 0
        self._backoff = Backoff(settings.reconnect_seconds_max, settings.entropy)
        self._said_goodbye = False

    @property
    def is_connected(self) -> bool:
        return self._session is not None

    @property
    def _limits(self) -> SessionLimits | None:
        return None if self._session is None else self._session.limits

    # --- connections ---------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        while not self._is_over():
            critical_errors = self.critical_errors
            delay_s = await self._attempt()
            if not self._is_over():
                self._say_what_follows(delay_s, is_critical=self.critical_errors > critical_errors)
                await self._clock.sleep(delay_s)

    def _say_what_follows(self, delay_s: float, *, is_critical: bool) -> None:
        write = self._reports.log.debug if self._is_known_trouble else self._reports.log.info
        if is_critical:
            write(
                "trying again in %.1f s; after %d such errors in a row the worker stops", delay_s, CRITICAL_ERRORS_MAX
            )
        else:
            write("reconnecting in %.1f s, and again until it succeeds", delay_s)

    def _is_over(self) -> bool:
        return self._failure is not None or self._said_goodbye

    async def _attempt(self) -> float:
        """One connection, from dialling to its end. → after how many seconds to try again."""
        try:
            token = await self._credentials.fresh()
            await with_link(self._settings.dial, self._settings.endpoint, lambda link: self._serve(link, token))
        except ConnectionLost as error:
            self._report_trouble(error)
        except Refused as error:
            return self._refused(error)
        except NoCredential as error:
            self._critical(error)
        except Exception as error:  # noqa: BLE001 — reported, and logged unless it explains itself
            # Whatever it is: leases are held, so the worker goes on, and stops when it happens again and again.
            self._unexpected(error)
        return self._backoff.next_s()

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
                self._not_authorized(error)
            case NackCode.SUPERSEDED:
                self._reports.error(ErrorKind.FETCH_AND_LOCK, error)
                return _SUPERSEDED_WAIT_S * (1.0 + self._settings.entropy.fraction() / 2)
            case NackCode.TOO_SLOW | NackCode.UNAVAILABLE | NackCode.INTERNAL:
                self._reports.error(ErrorKind.FETCH_AND_LOCK, error)
            case _:
                self._reports.error(ErrorKind.UNEXPECTED_LOOP_ERROR, error)
                if not is_dealt_with:
                    self._critical(error)
        return self._backoff.next_s()

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

    def token_wanted(self, session: Session) -> None:
        self._nursery.start_soon(self._authenticate, session)

    async def _authenticate(self, session: Session) -> None:
        try:
            token = await self._credentials.fresh()
        except NoCredential as error:
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
            self._backoff.reset()
            self.critical_errors = 0
            self._finals.proven()

    # --- what the run needs of it (WorkerRun) ---------------------------------------------------------------------

    def _send_extension(self, lease: Lease, duration_ms: int) -> None:
        if self._session is None:
            error = ConnectionLost("a lease cannot be extended without a connection")
            self._reports.error(ErrorKind.EXTEND_LOCK, error, lease.task)
            return
        allowed_ms = max(duration_ms, self._session.limits.lock_duration_ms_min)
        self._session.send(self._table.extend(lease, allowed_ms, self._clock.monotonic() * 1000))

    def _tell_room(self) -> None:
        if self._session is not None:
            self._session.room_changed()

    async def _say_goodbye(self) -> None:
        if self._session is None:
            return
        self._said_goodbye = True
        self._session.say_goodbye()
        with trio.move_on_after(_GOODBYE_TIMEOUT_S):
            while self._session is not None:
                await self._changed.wait()
