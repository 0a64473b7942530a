"""Hints between the nodes of one database, over LISTEN and NOTIFY.

They are sent after the commits that they tell of, never in their transactions, and over a connection that does nothing
else: NOTIFY makes commits queue up behind each other (consistency.md 20). So a hint may be lost; whoever gets one looks
at rows, and a poll stands behind each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg

from stellwerk.ports import Clock, Entropy, Hint, Log
from stellwerk.stores.postgres.connections import Connections
from stellwerk.stores.postgres.notice_payloads import GatheredHints, notice_of, payloads_of

__all__ = ["CHANNEL", "Notices"]

CHANNEL = "stellwerk_hints"
_NOTIFY = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload"

_KEEPALIVE = "SELECT 1"
_KEEPALIVE_SECONDS = 10.0
"""A connection that only listens does not notice when the network in between forgets it."""
_ANSWER_SECONDS_MAX = 5.0
_SEND_PAUSE_SECONDS = 0.005
"""Between two sendings: each wakes up every node."""
_RETRY_SECONDS_MIN = 0.1
_RETRY_SECONDS_MAX = 5.0
_HEARD_SECONDS = 60.0
_COMPLAINT_SECONDS = 60.0
_FAILURES_TOLD = 2
"""Before so many in a row have failed, nobody has to know: the connection was replaced, or the database is away, which
the store tells."""


class Notices:
    """A task on the store's loop, with a connection of its own that listens and sends."""

    def __init__(
        self,
        connections: Connections,
        *,
        sender: str,
        others_known: Callable[[], bool],
        clock: Clock,
        entropy: Entropy,
        log: Log,
        is_away: Callable[[], bool] = lambda: False,
        keepalive_seconds: float = _KEEPALIVE_SECONDS,
        answer_seconds_max: float = _ANSWER_SECONDS_MAX,
    ) -> None:
        """
        :param sender: an id that no other node has.
        :param is_away: whether the database is away, which the log has already.
        :param others_known: whether there is anybody to tell; whoever was heard here counts as well.
        """
        self._connections = connections
        self._sender = sender
        self._others_known = others_known
        self._clock = clock
        self._entropy = entropy
        self._log = log
        self._is_away = is_away
        self._keepalive_seconds = keepalive_seconds
        self._answer_seconds_max = answer_seconds_max
        self._task: asyncio.Task[None] | None = None
        self._is_told = False
        """That this node is deaf."""
        self._begin()
        self._heard_until = self._complain_at = float("-inf")
        self.is_listening = False
        self.sent = self.received = self.ignored = self.losses = 0
        """Payloads; and how often the connection was lost or could not be made."""

    def __repr__(self) -> str:
        counts = f"sent={self.sent}, received={self.received}, ignored={self.ignored}, losses={self.losses}"
        return f"Notices({'listening' if self.is_listening else 'deaf'}, {counts})"

    async def start(self) -> None:
        """Returns when it listens, so that what is read from now on misses nothing; or when the first attempt has
        failed: then it goes on trying, and says ``missed`` once it listens."""
        self._begin()
        self._task = asyncio.create_task(self._run())
        await self._tried.wait()

    async def stop(self) -> None:
        """What was told and is not on its way is dropped. May be called again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def tell(self, hint: Hint) -> None:
        """To the other nodes, soon and perhaps. From any task of the thread, trio's as well; never blocks or fails.

        What is told while there is no connection is kept, in bounded memory.
        """
        if self._task is not None and (self._clock.monotonic() < self._heard_until or self._others_known()):
            self._outgoing.add(hint)
            self._woken.set()

    async def next(self) -> Hint:
        """Wait for what other nodes told since the last call, all in one. For one caller at a time."""
        await self._arrived.wait()
        self._arrived.clear()
        return self._incoming.take()

    def _begin(self) -> None:
        """Events belong to the loop that waits for them first, and a store may be opened again."""
        self._outgoing = GatheredHints()
        self._woken = asyncio.Event()
        """There is something to send, or the connection was lost."""
        self._incoming = GatheredHints()
        self._arrived = asyncio.Event()
        self._tried = asyncio.Event()

    # --- the connection --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            heard_since = self._clock.monotonic()
            try:
                await self._hold(await self._connections.listen())
            except Exception as error:  # noqa: BLE001 - whatever it is: a node that is deaf and mute must try again
                self.losses += 1
                if self._clock.monotonic() - heard_since > self._keepalive_seconds:
                    failures = 0
                if failures >= _FAILURES_TOLD and not self._is_told and not self._is_away():
                    self._is_told = True
                    self._log.warning("no hints from other nodes, nor to them", reason=_reason(error))
            self._tried.set()
            await asyncio.sleep(self._retry_seconds(failures))
            failures += 1

    async def _hold(self, connection: asyncpg.Connection) -> None:
        """Until it is lost, which raises. Its statements come one after the other, from here."""
        connection.add_termination_listener(lambda _: self._woken.set())
        try:
            async with asyncio.timeout(self._answer_seconds_max):
                await connection.add_listener(CHANNEL, self._receive)
            await self._send(connection)
            self._listens()
            while not connection.is_closed():
                await self._wait_and_send(connection)
            raise ConnectionError("the connection that listens was closed")
        finally:
            self.is_listening = False
            # Not a farewell: that would wait for a server which may be gone.
            connection.terminate()

    async def _wait_and_send(self, connection: asyncpg.Connection) -> None:
        try:
            async with asyncio.timeout(self._keepalive_seconds):
                await self._woken.wait()
        except TimeoutError:
            async with asyncio.timeout(self._answer_seconds_max):
                await connection.fetchval(_KEEPALIVE)
        else:
            await self._send(connection)
            await asyncio.sleep(_SEND_PAUSE_SECONDS)

    async def _send(self, connection: asyncpg.Connection) -> None:
        self._woken.clear()
        if not self._outgoing or connection.is_closed():
            return
        payloads = payloads_of(self._outgoing.take(), self._sender)
        try:
            async with asyncio.timeout(self._answer_seconds_max):
                await connection.execute(_NOTIFY, CHANNEL, payloads)
        except BaseException:
            self._outgoing.add(Hint(missed=True))
            raise
        self.sent += len(payloads)

    def _retry_seconds(self, failures: int) -> float:
        """From half of a time that doubles to all of it: many nodes must not come back at once."""
        whole: float = min(_RETRY_SECONDS_MAX, _RETRY_SECONDS_MIN * 2 ** min(failures, 10))
        return whole * (1 + self._entropy.fraction()) / 2

    # --- hearing ---------------------------------------------------------------------------------------------------

    def _listens(self) -> None:
        self.is_listening = True
        if self._tried.is_set():
            (self._log.info if self._is_told else self._log.debug)("hears other nodes again")
            self._is_told = False
            self._hear(Hint(missed=True))
        self._tried.set()

    def _receive(self, connection: object, process_id: int, channel: str, payload: object) -> None:
        try:
            notice = notice_of(str(payload))
        except ValueError as error:
            self._ignore(process_id, error)
            return
        if notice.sender != self._sender:
            self.received += 1
            self._heard_until = self._clock.monotonic() + _HEARD_SECONDS
            self._hear(notice.hint)

    def _hear(self, hint: Hint) -> None:
        self._incoming.add(hint)
        if self._incoming:
            self._arrived.set()

    def _ignore(self, process_id: int, error: ValueError) -> None:
        """Anybody can send on the channel: a line now and then will do."""
        self.ignored += 1
        if self._clock.monotonic() >= self._complain_at:
            self._complain_at = self._clock.monotonic() + _COMPLAINT_SECONDS
            self._log.warning(
                "hint not understood", channel=CHANNEL, backend=process_id, ignored=self.ignored, reason=str(error)
            )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the database does not answer"
    return str(error) or type(error).__name__
