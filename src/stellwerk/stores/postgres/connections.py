"""The connections of a node: one that writes, some that read, and those that listen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TypeVar

import asyncpg

from stellwerk.errors import StoreUnavailable
from stellwerk.ports import Log
from stellwerk.stores.postgres.dialling import Dialler, close_quietly, timeouts
from stellwerk.stores.postgres.dsn import PostgresConfig, parse_dsn
from stellwerk.stores.postgres.faults import DATABASE_ERRORS, Fault, fault_of, is_read_only, unavailable

__all__ = ["Connections"]

_READ_PAUSE_SECONDS_FIRST = 0.05
_READ_PAUSE_SECONDS_MAX = 1.0

T = TypeVar("T")
Work = Callable[[asyncpg.Connection], Awaitable[T]]


class Connections:
    """For one loop of asyncio. They are made when they are needed, and made anew when they broke."""

    def __init__(
        self, config: PostgresConfig, node_name: str, fraction: Callable[[], float], log: Log | None = None
    ) -> None:
        """:param node_name: for people who look at the server's connections.
        :param fraction: uniform in [0, 1), for the jitter of what is tried again."""
        self._config = config
        self._dsn = parse_dsn(config.dsn)
        self._listen_dsn = self._dsn if config.listen_dsn is None else parse_dsn(config.listen_dsn)
        self._dialler = Dialler(config, node_name, fraction, log)
        self._known: set[asyncpg.Connection] = set()
        """All that may be used again; those that are not in it any more are closed by who has them."""
        self._writer: asyncpg.Connection | None = None
        self._turn = asyncio.Lock()
        self._idle: list[asyncpg.Connection] = []
        self._places = asyncio.Semaphore(config.reading_connections_max)
        self._is_closed = False

    @property
    def where(self) -> str:
        """Names the database in messages for people."""
        return str(self._dsn)

    async def open(self) -> None:
        """Connect once, so that a mistake in the DSN shows at once.

        :raises StoreUnavailable: saying what is wrong, and what to do.
        """
        self._writer = await self._connect(self._config.open_seconds_max)

    async def close(self) -> None:
        self._is_closed = True
        connections = [*self._idle, *([] if self._writer is None else [self._writer])]
        self._idle.clear()
        self._writer = None
        self._known.clear()
        for connection in connections:
            await close_quietly(connection)

    async def read(self, work: Work[T]) -> T:
        """For all that may happen twice: it is done again when its connection was lost or others were in the way, for
        as long as a connection may take.

        :raises StoreUnavailable: the database cannot answer.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._config.connect_seconds_max
        pause = 0.0
        while True:
            try:
                return await self._read_once(work)
            except DATABASE_ERRORS as error:
                is_over = pause > 0 and loop.time() + pause > give_up
                if is_over or fault_of(error) not in (Fault.LOST, Fault.AGAIN):
                    raise self._told(error) from error
            # Once at once, since connections are lost together; a pooler that has lost its server wants more patience.
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, _READ_PAUSE_SECONDS_FIRST), _READ_PAUSE_SECONDS_MAX)

    async def write(self, work: Work[T]) -> T:
        """On the one writing connection, one after the other. Errors of the work go to the caller as they are:
        `fault_of` tells what became of it.

        :raises StoreUnavailable: there is no connection; the work was not begun.
        """
        async with self._soon(self._turn, "has not answered an earlier request yet"):
            if self._writer is None or not self._is_fit(self._writer):
                self._writer = None
                self._writer = await self._connect()
            async with self._used(self._writer):
                return await work(self._writer)

    async def listen(self) -> asyncpg.Connection:
        """A new connection past every pooler, which the caller closes.

        :raises StoreUnavailable: there is none to be had.
        """
        return await self._dialler.connect(
            self._listen_dsn, is_pooled=self._config.is_pooled and self._config.listen_dsn is None
        )

    @asynccontextmanager
    async def transaction(self, connection: asyncpg.Connection) -> AsyncIterator[None]:
        """READ COMMITTED, with the limits on time that a pooler does not let the connection have."""
        async with connection.transaction(isolation="read_committed"):
            if self._config.is_pooled:
                await self._set_timeouts(connection)
            yield

    def statement(self, connection: asyncpg.Connection) -> AbstractAsyncContextManager[None]:
        """Around a single statement: behind a pooler it needs a transaction too, else each of its messages may go to
        another server."""
        return self.transaction(connection) if self._config.is_pooled else nullcontext()

    def drop_all(self) -> None:
        """Use none of the present connections again: their server is not the right one any more."""
        self._known.clear()
        self._drop_idle()

    async def _read_once(self, work: Work[T]) -> T:
        async with self._soon(self._places, f"all {self._config.reading_connections_max} reading connections are busy"):
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                async with self._used(connection), self._snapshot(connection):
                    return await work(connection)
            finally:
                if self._is_fit(connection):
                    self._idle.append(connection)

    @asynccontextmanager
    async def _snapshot(self, connection: asyncpg.Connection) -> AsyncIterator[None]:
        """A pooler wants a transaction around every statement; in this one, works may begin any of their own."""
        if not self._config.is_pooled:
            yield
            return
        async with connection.transaction(isolation="repeatable_read"):
            await self._set_timeouts(connection)
            yield

    @asynccontextmanager
    async def _used(self, connection: asyncpg.Connection) -> AsyncIterator[None]:
        try:
            yield
        except DATABASE_ERRORS as error:
            self._judge(connection, error)
            raise
        except asyncio.CancelledError:
            self._known.discard(connection)  # its statement may still run
            raise
        finally:
            if not self._is_fit(connection):
                self._discard(connection)

    def _judge(self, connection: asyncpg.Connection, error: BaseException) -> None:
        if is_read_only(error):
            self.drop_all()
        elif fault_of(error) is Fault.LOST:
            self._known.discard(connection)
            self._drop_idle()  # most often all were lost together

    @asynccontextmanager
    async def _soon(self, turn: asyncio.Lock | asyncio.Semaphore, problem: str) -> AsyncIterator[None]:
        if turn.locked():
            try:
                async with asyncio.timeout(self._config.command_seconds_max):
                    await turn.acquire()
            except TimeoutError:
                raise StoreUnavailable(f"{self.where}: {problem}") from None
        else:
            await turn.acquire()
        try:
            yield
        finally:
            turn.release()

    async def _connect(self, seconds_max: float | None = None) -> asyncpg.Connection:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        connection = await self._dialler.connect(self._dsn, is_pooled=self._config.is_pooled, seconds_max=seconds_max)
        self._known.add(connection)
        return connection

    async def _set_timeouts(self, connection: asyncpg.Connection) -> None:
        settings = timeouts(self._config).items()
        await connection.execute(";".join(f"SET LOCAL {name} = '{value}'" for name, value in settings))

    def _told(self, error: Exception) -> Exception:
        return error if fault_of(error) in (Fault.DATA, Fault.MISTAKE) else unavailable(error, self.where)

    def _is_fit(self, connection: asyncpg.Connection) -> bool:
        return connection in self._known and not connection.is_closed() and not connection.is_in_transaction()

    def _drop_idle(self) -> None:
        while self._idle:
            self._discard(self._idle.pop())

    def _discard(self, connection: asyncpg.Connection) -> None:
        self._known.discard(connection)
        connection.terminate()
