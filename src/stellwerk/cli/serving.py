"""An engine within this process, from its options to the signal that ends it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from stellwerk.cli.mistakes import Mistake
from stellwerk.cli.output import say
from stellwerk.cli.streams import OutputFailed

if TYPE_CHECKING:
    from stellwerk.app import AppConfig, TlsConfig
    from stellwerk.app.databases import Database
    from stellwerk.server.auth.jwt import JwtConfig

__all__ = [
    "DRAIN_SECONDS_MAX",
    "WAIT_FOR_DB_SECONDS_DEFAULT",
    "ServeOptions",
    "announce",
    "database_option",
    "from_environment",
    "serve_here",
]

DRAIN_SECONDS_MAX = 3.0
"""How long workers may finish what they have before the engine stops; their leases survive it anyway."""
WAIT_FOR_DB_SECONDS_DEFAULT = 60.0
"""Machines start in no order: a database that cannot be reached yet may be about to."""


@attrs.frozen(kw_only=True)
class ServeOptions:
    """Those of ``stellwerk serve``, as they were given. They go to other processes as JSON."""

    db: str
    listen_db: str | None
    host: str
    port: int
    synchronous: str
    failure_policy: str | None
    keep_ended_ms: int | None
    log_level: str
    log_format: str
    wait_for_db_seconds: float = WAIT_FOR_DB_SECONDS_DEFAULT
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_jwks: str | None = None
    jwt_algorithms: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    cors: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ServeOptions:
        """Options that this version does not know are left out: a later one may have sent them. An earlier one, whose
        place this version takes, has not sent those that are new."""
        return cls(**{field.name: values[field.name] for field in attrs.fields(cls) if field.name in values})

    def config(self, descriptors: tuple[int, ...] = (), siblings: Path | None = None) -> AppConfig:
        """:param descriptors: of inherited sockets that listen.
        :param siblings: a directory of the processes that have inherited the same.

        :raises Mistake: they do not go together, or name what is not there.
        """
        from stellwerk.actors.node import NodeConfig
        from stellwerk.app import AppConfig
        from stellwerk.model.process import FailurePolicy
        from stellwerk.system.logging import LogFormat, LogLevel

        policy = None if self.failure_policy is None else FailurePolicy(self.failure_policy)
        return AppConfig(
            db=self._database(),
            synchronous="FULL" if self.synchronous == "full" else "NORMAL",
            host=self.host,
            port=self.port,
            listen_descriptors=descriptors,
            siblings=siblings,
            jwt=self._jwt(),
            tls=self._tls(),
            origins=tuple(self.cors),
            node=NodeConfig(failure_policy=policy, ended_kept_ms=self.keep_ended_ms),
            log_level=LogLevel(self.log_level),
            log_format=LogFormat(self.log_format),
        )

    def _jwt(self) -> JwtConfig | None:
        from stellwerk.errors import InvalidInput
        from stellwerk.server.auth.jwt import ALGORITHMS_DEFAULT, JwtConfig

        given = (self.jwt_issuer, self.jwt_audience, self.jwt_jwks)
        if given == (None, None, None) and self.jwt_algorithms is None:
            return None
        if None in given:
            raise Mistake("tokens need --jwt-issuer, --jwt-audience and --jwt-jwks")
        named = self.jwt_algorithms
        algorithms = ALGORITHMS_DEFAULT if named is None else tuple(name.strip() for name in named.split(","))
        try:
            return JwtConfig(
                issuer=self.jwt_issuer or "",
                audience=self.jwt_audience or "",
                jwks=self.jwt_jwks or "",
                algorithms=algorithms,
            )
        except InvalidInput as error:
            raise Mistake(error.message) from None

    def _tls(self) -> TlsConfig | None:
        from stellwerk.app import TlsConfig

        if self.tls_cert is None and self.tls_key is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise Mistake("TLS needs both --tls-cert and --tls-key")
        return TlsConfig(certificate=Path(self.tls_cert), key=Path(self.tls_key))

    def _database(self) -> Database:
        from stellwerk.stores.postgres.dsn import PostgresConfig

        database = database_option(self.db, self.listen_db)
        if isinstance(database, PostgresConfig) and self.wait_for_db_seconds > 0:
            return attrs.evolve(database, open_seconds_max=self.wait_for_db_seconds)
        return database


def database_option(db: str, listen_db: str | None = None) -> Database:
    """:raises Mistake: it is no database, or the file could not be made."""
    from stellwerk.app.databases import database_of
    from stellwerk.errors import InvalidInput

    if not db:
        raise Mistake("--db: the name of a file, :memory:, or postgresql://user@host/database")
    try:
        database = database_of(db, listen_db)
    except InvalidInput as error:
        raise Mistake(f"{'--db' if listen_db is None else '--listen-db'}: {error.message}") from None
    if isinstance(database, Path):
        _check_file(database)
    return database


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise Mistake(f"{path}: is a directory")
        if not path.absolute().parent.is_dir():
            raise Mistake(f"{path}: there is no directory {path.absolute().parent}")
    except OSError as error:
        raise Mistake(f"{path}: {error.strerror}") from None


def serve_here(config: AppConfig) -> None:
    """:raises Mistake: the port or the database cannot be had."""
    import trio

    from stellwerk.app import CannotListen, make_room
    from stellwerk.errors import Conflict, StoreUnavailable
    from stellwerk.system.memory import collect_seldom

    collect_seldom()
    make_room(config.http_limits)
    try:
        trio.run(_serve_until_signal, config)
    except (CannotListen, Conflict, StoreUnavailable) as error:
        raise Mistake(error.message) from None


async def _serve_until_signal(config: AppConfig) -> None:
    import trio

    from stellwerk.app import serve_engine, without_group
    from stellwerk.system.signals import exit_on_next, open_stop_signals

    stopping, opening, is_open = trio.Event(), trio.CancelScope(), False

    async def obey(signals: AsyncIterator[int]) -> None:
        await anext(signals)
        stopping.set()
        if not is_open:
            opening.cancel()  # it may wait for its database for long
        await exit_on_next(signals)

    with without_group(), open_stop_signals() as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(obey, signals)
            with opening:
                async with serve_engine(config) as engine:
                    is_open = True
                    announce(engine.url)
                    await stopping.wait()
                    await engine.drain(DRAIN_SECONDS_MAX)
            nursery.cancel_scope.cancel()


def announce(url: str) -> None:
    # Who closed our standard output does not want to know; the engine runs all the same.
    with contextlib.suppress(OutputFailed):
        say(f"stellwerk {version('stellwerk')} listening on {url}")


def from_environment(variable: str) -> str | None:
    """None where it is not set, or empty."""
    return os.environ.get(variable) or None
