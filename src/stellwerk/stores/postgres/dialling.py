"""New connections: to the first server that will do, and never in a hurry while the database is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import asyncpg

from stellwerk.errors import StoreUnavailable
from stellwerk.ports import Log
from stellwerk.stores.postgres.dsn import Dsn, PostgresConfig
from stellwerk.stores.postgres.faults import DATABASE_ERRORS, may_heal, unavailable

__all__ = ["Dialler", "close_quietly", "timeouts"]

_PAUSE_SECONDS_FIRST = 0.1
_PAUSE_SECONDS_MAX = 5.0
_LOCK_SECONDS_MAX = 1.5
"""The locks of other nodes last as long as a commit, and a deadlock is found after a second. Whoever waits here keeps
all others of this node waiting."""
_IDLE_IN_TRANSACTION_SECONDS_MAX = 5.0
_CLOSING_SECONDS_MAX = 2.0
_NAME_CHARS_MAX = 63
"""PostgreSQL cuts it there, without a word."""


def timeouts(config: PostgresConfig) -> Mapping[str, str]:
    """Those of the server. It gives up before the client does, which then knows what became of its statement."""
    command_ms = config.command_seconds_max * 900
    return {
        "statement_timeout": f"{command_ms:.0f}ms",
        "lock_timeout": f"{min(command_ms / 2, _LOCK_SECONDS_MAX * 1000):.0f}ms",
        "idle_session_timeout": "0",  # one that listens may be idle for long
        "idle_in_transaction_session_timeout": f"{min(command_ms, _IDLE_IN_TRANSACTION_SECONDS_MAX * 1000):.0f}ms",
    }


_SESSION: Mapping[str, str] = {
    "default_transaction_isolation": "read committed",
    "jit": "off",  # compiling a statement takes longer than any of ours
    # A node that has vanished must not keep its locks for the two hours of the kernel's defaults.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


class Dialler:
    """All connections of a node: while the database is away, they wait for one and the same next attempt."""

    def __init__(
        self, config: PostgresConfig, node_name: str, fraction: Callable[[], float], log: Log | None = None
    ) -> None:
        """:param fraction: uniform in [0, 1): nodes that lost the database together do not come back together.
        :param log: told who waits for the database at the start.
        """
        self._config = config
        self._log = log
        self._name = f"stellwerk {node_name}"[:_NAME_CHARS_MAX]
        self._fraction = fraction
        self._failures = 0
        self._not_before = 0.0

    async def connect(self, dsn: Dsn, *, is_pooled: bool, seconds_max: float | None = None) -> asyncpg.Connection:
        """Try until `seconds_max` is over (None: `connect_seconds_max`). Who may wait for longer than usual says so.

        :raises StoreUnavailable: with the last reason.
        """
        loop = asyncio.get_running_loop()
        usual = self._config.connect_seconds_max
        give_up = loop.time() + (usual if seconds_max is None else seconds_max)
        is_told = seconds_max is None or seconds_max <= usual
        while True:
            await asyncio.sleep(max(0.0, min(self._not_before, give_up) - loop.time()))
            try:
                connection = await self._first_that_serves(dsn, is_pooled)
            except DATABASE_ERRORS as error:
                problem = unavailable(error, dsn)
                self._note_failure(loop.time(), problem)
                if loop.time() >= give_up or not may_heal(error):
                    raise problem from error
                if not is_told and self._log is not None:
                    self._log.warning("waiting for the database", reason=problem.message, seconds_max=seconds_max)
                    is_told = True
            else:
                self._note_success(dsn)
                return connection

    async def _first_that_serves(self, dsn: Dsn, is_pooled: bool) -> asyncpg.Connection:
        """:raises DATABASE_ERRORS: that of the last host, or the first that tells more than that it is away."""
        problem: Exception | None = None
        for host, port in dsn.hosts:
            try:
                return await self._connect_to(dsn, host, port, is_pooled)
            except DATABASE_ERRORS as error:
                if problem is None or not may_heal(error):
                    problem = error
        assert problem is not None
        raise problem

    async def _connect_to(self, dsn: Dsn, host: str | None, port: int | None, is_pooled: bool) -> asyncpg.Connection:
        own = {"application_name": self._name}
        return await asyncpg.connect(
            dsn.text,
            host=host,
            port=port,
            timeout=self._config.connect_seconds_max / len(dsn.hosts),
            command_timeout=self._config.command_seconds_max,
            target_session_attrs=dsn.target,
            # A pooler refuses settings in the first message, and prepares a statement on another server than it runs.
            server_settings=own if is_pooled else {**_SESSION, **timeouts(self._config), **own},
            **({"statement_cache_size": 0} if is_pooled else {}),
        )

    def _note_failure(self, now: float, problem: StoreUnavailable) -> None:
        if now < self._not_before:
            return  # another connection's failure of the same moment
        if self._failures == 0 and self._log is not None:
            self._log.debug("no connection", reason=problem.message)
        pause = min(_PAUSE_SECONDS_FIRST * 2**self._failures, _PAUSE_SECONDS_MAX)
        self._not_before = now + pause * (0.5 + self._fraction() / 2)
        self._failures = min(self._failures + 1, 16)

    def _note_success(self, dsn: Dsn) -> None:
        if self._failures and self._log is not None:
            self._log.debug("connected again", database=str(dsn))
        self._failures = 0
        self._not_before = 0.0


async def close_quietly(connection: asyncpg.Connection) -> None:
    """Say good-bye where somebody listens."""
    try:
        await connection.close(timeout=_CLOSING_SECONDS_MAX)
    except DATABASE_ERRORS:
        connection.terminate()
