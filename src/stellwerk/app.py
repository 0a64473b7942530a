"""The composition root: picks the store and the adapters, and wires a node to its server.

`open_engine` embeds a node in a trio program; `serve_engine` gives it a port as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal

import attrs
import h11
import trio

from stellwerk.actors.node import Node, NodeConfig, run_node
from stellwerk.errors import StellwerkError
from stellwerk.ports import Ports, Store
from stellwerk.server.http.api import Api
from stellwerk.server.http.connection import Draining, HttpHost, UpgradeHandler
from stellwerk.server.http.limits import HttpLimits
from stellwerk.server.serving import Server
from stellwerk.server.websocket import WorkerSockets, asks_for_workers
from stellwerk.stores.memory import MemoryStore
from stellwerk.stores.sqlite.connection import Synchronous
from stellwerk.stores.sqlite.store import SqliteStore
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.file_lock import FileLock
from stellwerk.system.logging import LogFormat, LogLevel, open_log
from stellwerk.system.sockets import listening_port, open_listeners
from stellwerk.system.threads import OneThread

__all__ = [
    "MEMORY",
    "PORT_DEFAULT",
    "AppConfig",
    "CannotListen",
    "ServedEngine",
    "open_engine",
    "serve_engine",
    "without_group",
]

PORT_DEFAULT = 10560
MEMORY: Literal[":memory:"] = ":memory:"
"""Instead of a file: nothing is kept beyond the process."""

_LAST_ANSWERS_SECONDS_MAX = 0.5
"""Requests under way get so long to end once the workers are gone."""


@attrs.frozen(kw_only=True)
class AppConfig:
    db: Path | Literal[":memory:"] = Path("stellwerk.db")
    synchronous: Synchronous = "FULL"
    """SQLite's setting. With NORMAL a power failure (not a crash of the process) may lose the last commits."""
    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    """0: a free one."""
    node: NodeConfig = attrs.field(factory=NodeConfig)
    http_limits: HttpLimits = attrs.field(factory=HttpLimits)
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT


class CannotListen(StellwerkError):
    """The port is taken, the address is not this machine's, or the name is unknown."""

    code = "cannot_listen"


class ServedEngine:
    """A running node with its server."""

    def __init__(self, node: Node, server: Server, sockets: WorkerSockets, url: str) -> None:
        self.node = node
        self.url = url
        """Without a slash at the end."""
        self._server = server
        self._sockets = sockets

    async def drain(self, seconds: float) -> None:
        """Ask the workers to go elsewhere, wait for it at most so long, then close all connections."""
        self._server.drain()
        await self.node.drain(seconds)
        self._server.stop_accepting()
        self._sockets.end_sessions()
        with trio.move_on_after(_LAST_ANSWERS_SECONDS_MAX):
            await self._server.ended.wait()


@asynccontextmanager
async def open_engine(config: AppConfig) -> AsyncIterator[Node]:
    """A node without a port, for embedding.

    :raises StoreUnavailable: when the database cannot be opened, because another engine has it, say.
    """
    with without_group(), _ports(config) as ports:
        async with trio.open_nursery() as nursery:
            yield await nursery.start(run_node, ports, config.node)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def serve_engine(config: AppConfig) -> AsyncIterator[ServedEngine]:
    """A node that serves HTTP and workers on a port. Ends at once with the context; `ServedEngine.drain` comes before.

    :raises CannotListen: when the port cannot be had; StoreUnavailable: when the database cannot be opened.
    """
    listeners = await _listen(config.host, config.port)
    port = listening_port(listeners)
    try:
        with without_group(), _ports(config) as ports:
            async with trio.open_nursery() as nursery:
                node = await nursery.start(run_node, ports, config.node)
                sockets = WorkerSockets(node, ports.log)
                server = _server(node, sockets, ports, config.http_limits)
                await nursery.start(server.serve, listeners)
                url = f"http://{_in_url(config.host)}:{port}"
                ports.log.info("listening", url=url, db=str(config.db))
                yield ServedEngine(node, server, sockets, url)
                nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            await trio.aclose_forcefully(listener)


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    try:
        return await open_listeners(host, port)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host} port {port}: {error.strerror or error}") from None


def _server(node: Node, sockets: WorkerSockets, ports: Ports, limits: HttpLimits) -> Server:
    draining = Draining()

    def upgrade(request: h11.Request) -> UpgradeHandler | None:
        return sockets.serve if asks_for_workers(request) else None

    api = Api(node, entropy=ports.entropy, log=ports.log, draining=draining)
    return Server(
        HttpHost(
            application=api.application(),
            upgrade=upgrade,
            limits=limits,
            clock=ports.clock,
            entropy=ports.entropy,
            log=ports.log,
            draining=draining,
        )
    )


@contextmanager
def _ports(config: AppConfig) -> Iterator[Ports]:
    clock = SystemClock()
    background = OneThread("stellwerk-background")
    try:
        with _store(config, clock) as store:
            yield Ports(
                clock=clock,
                entropy=SystemEntropy(),
                store=store,
                background=background,
                log=open_log(config.log_level, config.log_format),
                pause_point=_no_pause,
            )
    finally:
        background.close()


@contextmanager
def _store(config: AppConfig, clock: SystemClock) -> Iterator[Store]:
    """Not opened yet; the thread that it works in ends with the context."""
    if config.db == MEMORY:
        yield MemoryStore(clock)
        return
    thread = OneThread("stellwerk-sqlite")
    try:
        yield SqliteStore(
            config.db, runner=thread, clock=clock, lock=FileLock(config.db), synchronous=config.synchronous
        )
    finally:
        thread.close()


async def _no_pause(name: str) -> None:
    return


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextmanager
def without_group() -> Iterator[None]:
    """A nursery wraps even a single error; who opens an engine wants to catch the error itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        only: BaseException = group
        while isinstance(only, BaseExceptionGroup) and len(only.exceptions) == 1:
            only = only.exceptions[0]
        if isinstance(only, BaseExceptionGroup):
            raise
        raise only from None
