"""The committer: everything that is written passes through here, many operations in one transaction.

It takes what has piled up while the last transaction was under way, so batches grow under load and stay at one when
idle; nothing is ever delayed on purpose. An answer is given only after the commit is durable.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from stellwerk.actors.figures import BATCH_BOUNDS, SECONDS_BOUNDS, Histogram
from stellwerk.actors.mailbox import Mailbox, MailboxClosed, Reply
from stellwerk.errors import InvariantBroken, StellwerkError, StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.ports import Operation, Outcome, Ports
from stellwerk.values import frozen

__all__ = ["Committer", "CommitterStatistics"]

_BATCHES_WAITING_MAX = 20
"""Operations that may wait, in full batches: more than the sessions and instances can have open at once is a fault."""
_STOPPED = "the engine stops; the request may be repeated"


@attrs.define
class CommitterStatistics:
    transactions: int = 0
    operations: int = 0
    largest_batch: int = 0
    failed_transactions: int = 0
    store_ms: float = 0.0
    """How long the store took for the last transaction."""
    batch_sizes: Histogram = attrs.field(factory=lambda: Histogram(BATCH_BOUNDS))
    """Operations of each transaction."""
    store_seconds: Histogram = attrs.field(factory=lambda: Histogram(SECONDS_BOUNDS))
    """How long the store took for each."""


@frozen
class _Request:
    operation: Operation
    reply: Reply[Outcome]


class Committer:
    def __init__(self, ports: Ports, limits: Limits) -> None:
        self._ports = ports
        self._batch_max = limits.commit_operations_max
        self._mailbox: Mailbox[_Request] = Mailbox(limits.commit_operations_max * _BATCHES_WAITING_MAX)
        self.statistics = CommitterStatistics()
        self._troubles_told: set[str] = set()
        """Of the store since it last worked."""

    async def submit(self, operation: Operation) -> Outcome:
        """Make `operation` durable and give its outcome (see `ports`).

        :raises StoreUnavailable: nothing was acknowledged; StellwerkError when this one operation could not be done.
        """
        reply: Reply[Outcome] = Reply()
        await self._put(_Request(operation, reply))
        return await reply.wait()

    async def post(self, operation: Operation, callback: Callable[[Reply[Outcome]], None]) -> None:
        """Like `submit`, but the outcome goes to `callback`, which must not block or raise."""
        await self._put(_Request(operation, Reply(callback)))

    async def _put(self, request: _Request) -> None:
        try:
            await self._mailbox.put(request)
        except MailboxClosed:
            raise StoreUnavailable(_STOPPED) from None

    async def run(self) -> None:
        requests: list[_Request] = []
        try:
            while True:
                await self._mailbox.wait()
                # Whoever can run now may have more for the same transaction; nobody is waited for.
                await trio.lowlevel.cancel_shielded_checkpoint()
                requests = self._mailbox.take(self._batch_max)
                await self._commit(requests)
        except Exception:
            self._fail_all(requests, InvariantBroken("the store failed; the request may be repeated"))
            raise
        except BaseException:
            # The node stops: nobody will take what is still waiting, or comes later.
            self._fail_all([*requests, *self._mailbox.close()], StoreUnavailable(_STOPPED))
            raise

    async def _commit(self, requests: list[_Request]) -> None:
        await self._ports.pause_point("before-commit")
        began = self._ports.clock.monotonic()
        try:
            outcomes = await self._ports.store.transact([request.operation for request in requests])
        except StellwerkError as error:
            self.statistics.failed_transactions += 1
            self._tell(error)
            self._fail_all(requests, error)
            return
        seconds = self._ports.clock.monotonic() - began
        self._tell_recovery()
        await self._ports.pause_point("after-commit")
        self._count(len(requests), seconds)
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                self._tell(outcome)
            elif isinstance(outcome, InvariantBroken):
                name = type(request.operation).__name__
                self._ports.log.error("an operation failed", operation=name, error=outcome.message)
            self._answer(request, outcome)

    def _answer(self, request: _Request, outcome: Outcome) -> None:
        try:
            if isinstance(outcome, StellwerkError):
                request.reply.fail(outcome)
            else:
                request.reply.set(outcome)
        except Exception:  # whoever cannot take an answer must not keep his neighbours from theirs
            self._ports.log.exception("an answer could not be taken", operation=type(request.operation).__name__)

    def _fail_all(self, requests: list[_Request], error: StellwerkError) -> None:
        for request in requests:
            if not request.reply.answered:
                self._answer(request, error)

    def _tell(self, error: StellwerkError) -> None:
        """A disk that is full fails every transaction: the log has it once."""
        if error.message not in self._troubles_told:
            self._troubles_told.add(error.message)
            self._ports.log.warning("the store does not work", code=error.code, error=error.message)

    def _tell_recovery(self) -> None:
        if self._troubles_told:
            self._troubles_told.clear()
            self._ports.log.info("the store works again")

    def _count(self, operations: int, seconds: float) -> None:
        counted = self.statistics
        counted.transactions += 1
        counted.operations += operations
        counted.largest_batch = max(counted.largest_batch, operations)
        counted.store_ms = seconds * 1000
        counted.batch_sizes.observe(operations)
        counted.store_seconds.observe(seconds)
