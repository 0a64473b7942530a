"""A node with its server: HTTP and workers on a port, and workers of this process without one."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import attrs
import h11
import trio

from stellwerk.actors.node import Node, NodeConfig, NodeIdentity, run_node
from stellwerk.app.access import Access, Certificate, refuse_new_database
from stellwerk.app.config import AppConfig, CannotListen
from stellwerk.app.databases import shown_database
from stellwerk.app.groups import without_group
from stellwerk.app.open_files import within_open_files
from stellwerk.app.wiring import open_ports
from stellwerk.errors import Conflict
from stellwerk.ports import Ports
from stellwerk.server.http.api import Api
from stellwerk.server.http.connection import Draining, HttpHost, UpgradeHandler
from stellwerk.server.http.limits import HttpLimits
from stellwerk.server.http.siblings import Siblings
from stellwerk.server.serving import Server
from stellwerk.server.websocket import WorkerSockets, asks_for_workers
from stellwerk.system.clock import is_virtual_time
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.machine import host_name, process_name
from stellwerk.system.memory_streams import MemoryListener
from stellwerk.system.sockets import adopt_listeners, listening_port, open_listeners, open_unix_listener

__all__ = ["ServedEngine", "serve_engine", "serve_node"]

_LAST_ANSWERS_SECONDS_MAX = 0.5
"""Requests under way get so long to end once the workers are gone."""
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - not to listen there, but to be found there


class ServedEngine:
    """A running node with its server."""

    def __init__(
        self, node: Node, server: Server, sockets: WorkerSockets, in_process: MemoryListener, url: str | None
    ) -> None:
        self.node = node
        self.in_process = in_process
        """Where workers of this process connect."""
        self._server = server
        self._sockets = sockets
        self._url = url

    def __repr__(self) -> str:
        return f"<ServedEngine {self._url or 'without a port'}, {self._server!r}>"

    @property
    def url(self) -> str:
        """Without a slash at the end.

        :raises Conflict: this engine has no port.
        """
        if self._url is None:
            raise Conflict("this engine has no port: open it with port=0 or a number")
        return self._url

    async def drain(self, seconds: float) -> None:
        """Ask workers and clients to go elsewhere, wait for it at most so long, then close all connections."""
        clock = self.node.ports.clock
        deadline = clock.monotonic() + seconds
        await self.wait_for_workers(seconds)
        with trio.move_on_after(max(0.0, deadline - clock.monotonic())):
            await self._server.wait_quiet()
        await self.hang_up(deadline - clock.monotonic())

    async def hand_over(self, *, workers_seconds: float, clients_seconds: float) -> None:
        """Leave all that is new to others, who listen on the same socket, and end when the last connection has gone.

        Workers are sent to them at once. A client's connection that is open takes one more request, for which it may
        take its time: no request fails by this. In the end, or earlier by `drain`, all connections are closed.
        """
        clock = self.node.ports.clock
        deadline = clock.monotonic() + workers_seconds + clients_seconds
        self._server.stop_accepting()
        await self.wait_for_workers(0)
        with trio.move_on_after(workers_seconds):
            await self._server.ended.wait()
        self._sockets.end_sessions()
        with trio.move_on_after(clients_seconds):
            await self._server.ended.wait()
        await self.hang_up(deadline - clock.monotonic())

    async def settle(self) -> None:
        """What workers of this process were about to get goes back. That takes a moment at most."""
        await self.node.settle(_LAST_ANSWERS_SECONDS_MAX)

    async def wait_for_workers(self, seconds: float) -> None:
        """Ask the workers to go elsewhere, and wait for it at most so long."""
        self._server.drain()
        await self.node.drain(seconds)

    async def hang_up(self, seconds: float = 0.0) -> None:
        """Listen no more and close all connections; answers under way get a moment to end.

        Leases that no worker got are given back: that takes at most so long, or a moment if that is longer.
        """
        self._server.hang_up()
        self._sockets.end_sessions()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.node.settle, max(seconds, _LAST_ANSWERS_SECONDS_MAX))
            with trio.move_on_after(_LAST_ANSWERS_SECONDS_MAX):
                await self._server.ended.wait()


@asynccontextmanager
async def serve_engine(config: AppConfig) -> AsyncIterator[ServedEngine]:
    """A node that serves HTTP and workers. Ends at once with the context; `ServedEngine.drain` comes before.

    :raises CannotListen: when the port cannot be had, or others could use it without a credential.
    :raises StoreUnavailable: when the database cannot be opened.
    """
    certificate = None if config.tls is None else Certificate(config.tls)
    tls = None if certificate is None else certificate.context
    listeners = await _listen(config)
    node_config = _identified(config.node, _url(_reachable(config.host), listeners, tls))
    url = _url(config.host, listeners, tls)
    try:
        refuse_new_database(config, listeners)
        with open_ports(attrs.evolve(config, node=node_config)) as ports:
            access = Access(config, ports, listeners, certificate) if listeners else None
            if access is not None:
                await access.check_jwks_file()
            async with serve_node(
                ports,
                node_config,
                listeners if tls is None else [_secured(listener, tls) for listener in listeners],
                http_limits=within_open_files(config.http_limits),
                siblings=config.siblings,
                url=url,
                access=access,
            ) as served:
                if access is not None:
                    ports.log.info("listening", url=url, db=shown_database(config.db), access=access.told)
                yield served
    finally:
        for listener in listeners:
            await trio.aclose_forcefully(listener)


@asynccontextmanager
async def serve_node(
    ports: Ports,
    config: NodeConfig,
    listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
    *,
    http_limits: HttpLimits | None = None,
    siblings: Path | None = None,
    url: str | None = None,
    access: Access | None = None,
) -> AsyncIterator[ServedEngine]:
    """The same on ports and listeners of the caller's, who closes the listeners if the node does not come to serve.

    :param siblings: `AppConfig.siblings`. :param url: of the listeners; None: nobody finds them by one.
    :param access: None: nobody needs a credential.
    :raises StoreUnavailable: when the store cannot be opened.
    """
    with without_group() as body:
        async with trio.open_nursery() as nursery:
            node = await nursery.start(run_node, ports, config)
            if access is not None:
                await access.begin(nursery)
            sockets = WorkerSockets(node, ports.log, None if access is None else access.gate)
            met, listening = await _meet_siblings(siblings, config.identity, ports)
            server = _server(node, sockets, ports, http_limits or HttpLimits(), met, access)
            in_process = MemoryListener()
            await nursery.start(server.serve, [in_process, *listening, *listeners])
            with body.running():
                yield ServedEngine(node, server, sockets, in_process, url)
            nursery.cancel_scope.cancel()


async def _listen(config: AppConfig) -> list[trio.SocketListener]:
    if config.listen_descriptors:
        return adopt_listeners(config.listen_descriptors)
    if config.port is None:
        return []
    if is_virtual_time():
        raise CannotListen("an engine in virtual time has no port: the clock would move on while the network works")
    try:
        return await open_listeners(config.host, config.port)
    except OSError as error:
        raise CannotListen(f"cannot listen on {config.host} port {config.port}: {error.strerror or error}") from None


def _identified(config: NodeConfig, url: str | None) -> NodeConfig:
    identity = NodeIdentity(node_id=SystemEntropy().uuid(), name=process_name(), url=url, version=version("stellwerk"))
    return attrs.evolve(config, identity=identity)


def _reachable(host: str) -> str:
    """Of all addresses of this machine, one that others may know."""
    return host_name() if host in _EVERY_ADDRESS else host


async def _meet_siblings(
    directory: Path | None, identity: NodeIdentity, ports: Ports
) -> tuple[Siblings | None, Sequence[trio.SocketListener]]:
    if directory is None:
        return None, ()
    siblings = Siblings(directory, identity.node_id)
    try:
        return siblings, [await open_unix_listener(siblings.socket)]
    except OSError as error:  # only figures depend on it
        ports.log.warning("this node's figures are its own only", reason=str(error))
        return siblings, ()


def _secured(listener: trio.SocketListener, tls: ssl.SSLContext) -> trio.SSLListener[trio.SocketStream]:
    return trio.SSLListener(listener, tls, https_compatible=True)


def _server(
    node: Node,
    sockets: WorkerSockets,
    ports: Ports,
    limits: HttpLimits,
    siblings: Siblings | None,
    access: Access | None,
) -> Server:
    draining = Draining()

    def upgrade(request: h11.Request) -> UpgradeHandler | None:
        return sockets.serve if asks_for_workers(request) else None

    api = Api(
        node,
        entropy=ports.entropy,
        log=ports.log,
        draining=draining,
        siblings=siblings,
        gate=None if access is None else access.gate,
        origins=() if access is None else access.origins,
    )
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


def _url(host: str, listeners: Sequence[trio.SocketListener], tls: ssl.SSLContext | None) -> str | None:
    if not listeners:
        return None
    in_url = f"[{host}]" if ":" in host else host
    return f"{'http' if tls is None else 'https'}://{in_url}:{listening_port(listeners)}"
