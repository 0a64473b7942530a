"""A database asked like an engine: the same application, in this process, without a socket.

Nothing begins to work in it by this: no timer fires, no lock is reclaimed, no message is correlated. A file must be one
that no engine holds; PostgreSQL may have any number of nodes at work meanwhile.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import trio

from stellwerk.cli.client import Client, Sink
from stellwerk.cli.mistakes import CommandFailed, Mistake
from stellwerk.errors import StoreUnavailable

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from stellwerk.app.databases import Database
    from stellwerk.stores.postgres.dsn import PostgresConfig

__all__ = ["OfflineClient"]

_MAGIC = b"SQLite format 3\0"
_JOURNAL_OFFSET = 18
_ROLLBACK_JOURNAL = 1
"""What stands there in a file that is not in write-ahead mode (SQLite's file format, 1.3)."""
_HELD = "in use by another"


@asynccontextmanager
async def _open_application(database: Database) -> AsyncIterator[Starlette]:
    """The HTTP API over it. The one place where the command line meets the composition root."""
    from stellwerk.actors.node import NodeConfig
    from stellwerk.app import AppConfig, serve_engine
    from stellwerk.server.http.api import Api
    from stellwerk.server.http.connection import Draining
    from stellwerk.system.logging import LogLevel

    config = AppConfig(db=database, port=None, node=NodeConfig(is_offline=True), log_level=LogLevel.ERROR)
    async with serve_engine(config) as served:
        node = served.node
        yield Api(node, entropy=node.ports.entropy, log=node.ports.log, draining=Draining()).application()


class OfflineClient(Client):
    """Commands are synchronous, the engine is not: it lives in a thread of its own until `close`."""

    def __init__(self, db: str, *, may_make: bool = False) -> None:
        """:param may_make: what is not there.

        :raises Mistake: there is no such file or database, it is none of ours, or an engine holds the file.
        """
        self._database = _checked(db, may_make=may_make)
        self._shown = _shown(self._database)
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._application: Starlette | None = None
        # A daemon: whoever interrupts the command does not wait for what the engine is at.
        self._thread = threading.Thread(target=self._run, name="stellwerk-offline", daemon=True)
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            raise self._mistake(self._failure)

    def close(self) -> None:
        """:raises BaseException: what ended the engine before, or while it was closed."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._closing.set)
        self._thread.join()
        if self._failure is not None:
            raise self._mistake(self._failure)

    def _run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:  # noqa: BLE001 - it is raised in the command's own thread
            self._failure = error
        finally:
            self._opened.set()

    async def _live(self) -> None:
        async with _open_application(self._database) as application:
            self._application = application
            self._token = trio.lowlevel.current_trio_token()
            self._closing = trio.Event()
            self._opened.set()
            await self._closing.wait()

    def _mistake(self, failure: BaseException) -> BaseException:
        if not isinstance(failure, StoreUnavailable):
            return failure
        if _HELD in failure.message:
            return Mistake(f"{failure.message}; ask an engine with --url, or wait for a command to end")
        return Mistake(failure.message)

    def _exchange(
        self, method: str, target: str, body: bytes | None, seconds_max: float, sink: Sink | None
    ) -> tuple[int, bytes]:
        assert self._application is not None
        call = _Call(method, target, body or b"", sink)
        try:
            trio.from_thread.run(call.run, self._application, trio_token=self._token)
        except trio.RunFinishedError:
            raise (self._failure or CommandFailed(f"{self._shown} was closed")) from None
        if call.failure is not None:
            raise call.failure
        return call.status, bytes(call.body)

    def _no_engine(self, status: int) -> CommandFailed:
        return CommandFailed(f"{self._shown}: an answer without content (status {status})")

    def _unavailable(self, message: str) -> CommandFailed:
        return Mistake(message)

    def _broken(self, message: str) -> CommandFailed:
        return CommandFailed(f"{self._shown}: {message}")


class _Call:
    """One request to an ASGI application (ASGI 3.0, HTTP)."""

    def __init__(self, method: str, target: str, body: bytes, sink: Sink | None) -> None:
        self._method = method
        self._path, _, self._query = target.partition("?")
        self._content = body
        self._sink = sink
        self._is_sent = False
        self._length: int | None = None
        self.status = 0
        self.body = bytearray()
        self.failure: Exception | None = None
        """What the sink raised: the application is not to see it."""

    async def run(self, application: Starlette) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self._method,
            "scheme": "http",
            "path": unquote_to_bytes(self._path).decode(),
            "raw_path": self._path.encode(),
            "query_string": self._query.encode(),
            "root_path": "",
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self._content))],
            "client": None,
            "server": None,
            "state": {},
        }
        await application(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._is_sent:
            await trio.sleep_forever()
        self._is_sent = True
        return {"type": "http.request", "body": self._content, "more_body": False}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            lengths = [int(value) for name, value in message.get("headers", ()) if name.lower() == b"content-length"]
            self._length = lengths[0] if lengths else None
            return
        piece = bytes(message.get("body", b""))
        if self._sink is None or self.status >= 400:
            self.body += piece
        elif piece and self.failure is None:
            self._hand_on(piece, self._sink)

    def _hand_on(self, piece: bytes, sink: Sink) -> None:
        try:
            sink(piece, self._length)
        except Exception as error:  # noqa: BLE001 - raised again where the command waits
            self.failure = error


def _checked(db: str, *, may_make: bool) -> Database:
    """:raises Mistake: naming what was wrong."""
    from stellwerk.app.databases import database_of
    from stellwerk.errors import InvalidInput

    try:
        database = database_of(db)
    except InvalidInput as error:
        raise Mistake(f"--db: {error.message}") from None
    if isinstance(database, Path | str):
        if not may_make or Path(database).exists():
            _check_file(Path(database))
    elif not may_make:
        _check_schema(database)
    return database


def _shown(database: Database) -> str:
    from stellwerk.app.databases import shown_database

    return shown_database(database)


def _check_schema(config: PostgresConfig) -> None:
    """So that no tables are made in a database that was named by mistake.

    :raises Mistake: naming it.
    """
    from stellwerk.app.databases import has_schema, shown_database
    from stellwerk.errors import StoreUnavailable

    try:
        found = has_schema(config)
    except StoreUnavailable as error:
        raise Mistake(error.message) from None
    if not found:
        raise Mistake(
            f"{shown_database(config)}: is not a database of stellwerk (`stellwerk serve --db …` makes it one)"
        )


def _check_file(file: Path) -> None:
    """So that a file that was named by mistake is neither made nor changed.

    :raises Mistake: naming it.
    """
    try:
        if file.is_dir():
            raise Mistake(f"{file}: is a directory")
        if file.exists() and not file.is_file():
            raise Mistake(f"{file}: is not a file")  # to open a pipe would wait for its other end
        with file.open("rb") as stream:
            head = stream.read(100)
    except FileNotFoundError:
        raise Mistake(f"{file}: there is no such file (`stellwerk serve --db {file}` makes one)") from None
    except OSError as error:
        raise Mistake(f"{file}: {error.strerror}") from None
    if not head.startswith(_MAGIC) and not Path(f"{file}-wal").exists():
        raise Mistake(f"{file}: is not a database of stellwerk")
    if head[_JOURNAL_OFFSET : _JOURNAL_OFFSET + 1] == bytes([_ROLLBACK_JOURNAL]):
        _check_tables(file)


def _check_tables(file: Path) -> None:
    """Before the engine's store puts a stranger's database into write-ahead mode."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations'").fetchone()
    except sqlite3.Error as error:
        raise Mistake(f"{file}: {error}") from None
    if found is None:
        raise Mistake(f"{file}: is an SQLite database, but not one of stellwerk")
