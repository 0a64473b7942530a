"""What an engine is made of."""

from __future__ import annotations

from pathlib import Path

import attrs

from stellwerk.actors.node import NodeConfig
from stellwerk.app.databases import MEMORY, Database
from stellwerk.errors import StellwerkError
from stellwerk.ports import Clock
from stellwerk.server.auth.jwt import JwtConfig
from stellwerk.server.http.limits import HttpLimits
from stellwerk.stores.sqlite.connection import Synchronous
from stellwerk.system.logging import LogFormat, LogLevel

__all__ = ["MEMORY", "PORT_DEFAULT", "AppConfig", "CannotListen", "TlsConfig"]

PORT_DEFAULT = 10560


@attrs.frozen(kw_only=True)
class TlsConfig:
    """PEM files."""

    certificate: Path
    """With all that leads to the root."""
    key: Path


@attrs.frozen(kw_only=True)
class AppConfig:
    db: Database = Path("stellwerk.db")
    synchronous: Synchronous = "FULL"
    """SQLite's setting. With NORMAL a power failure (not a crash of the process) may lose the last commits."""
    host: str = "127.0.0.1"
    port: int | None = PORT_DEFAULT
    """0: a free one. None: none at all, only workers in this process can connect."""
    listen_descriptors: tuple[int, ...] = ()
    """Instead of `host` and `port`: sockets that listen already, which this process has inherited."""
    siblings: Path | None = None
    """A directory of the processes that have inherited the same, for what they ask each other."""
    jwt: JwtConfig | None = None
    """Whose tokens are good, beside API keys. None: nobody's."""
    tls: TlsConfig | None = None
    """None: the port speaks plain HTTP."""
    origins: tuple[str, ...] = ()
    """Of other sites whose pages may use the HTTP API (CORS)."""
    node: NodeConfig = attrs.field(factory=NodeConfig)
    http_limits: HttpLimits = attrs.field(factory=HttpLimits)
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.TEXT
    clock: Clock | None = None
    """None: the machine's, or under a virtual clock of trio's `stellwerk.system.clock.VirtualClock`."""


class CannotListen(StellwerkError):
    """The port is taken, the address is not this machine's, or the name is unknown."""

    code = "cannot_listen"
