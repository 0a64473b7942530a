"""Who may come in: the gate of an engine, and the addresses that it may listen on."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from stellwerk.app.config import MEMORY, AppConfig, CannotListen, TlsConfig
from stellwerk.errors import Conflict
from stellwerk.ports import Log, Ports
from stellwerk.server.auth.gate import Gate
from stellwerk.server.auth.jwt import JwtConfig
from stellwerk.system.documents import document_at
from stellwerk.system.tls import open_tls, reload_tls, version_of

if TYPE_CHECKING:
    from stellwerk.server.auth.signatures import JwtVerifier

__all__ = ["Access", "Certificate", "refuse_new_database"]

_LOOK_SECONDS = 60.0
"""Between two looks at the files of the certificate."""

_ONLY_HERE = (
    "no credential is configured, so that everybody who can connect may do everything: the engine listens on a "
    "loopback address only (127.0.0.1). To listen on others make an API key first (stellwerk keys create --db … "
    "--scopes admin), or say whose tokens are good (--jwt-issuer …)"
)


def refuse_new_database(config: AppConfig, listeners: Sequence[trio.SocketListener]) -> None:
    """Before anything is made.

    :raises CannotListen: others can connect, and there can be no API key in a database that is not there yet.
    """
    is_new = config.db is MEMORY or (isinstance(config.db, Path) and not config.db.exists())
    if is_new and config.jwt is None and not all(_is_loopback(listener.socket) for listener in listeners):
        raise CannotListen(f"{config.host}: {_ONLY_HERE}")


class Access:
    """The gate of an engine that listens."""

    def __init__(
        self,
        config: AppConfig,
        ports: Ports,
        listeners: Sequence[trio.SocketListener],
        certificate: Certificate | None = None,
    ) -> None:
        """:raises Conflict: tokens are wanted, and the packages for them are not installed."""
        self._ports = ports
        self._host = config.host
        self._is_local = all(_is_loopback(listener.socket) for listener in listeners)
        self._tokens = None if config.jwt is None else _verifier(config.jwt, ports)
        self.gate = Gate(ports.store, ports.clock, may_be_open=self._is_local, tokens=self._tokens)
        self._jwks_file = None if config.jwt is None or config.jwt.jwks_is_url else config.jwt.jwks
        self.origins = config.origins
        self._certificate = certificate

    async def begin(self, nursery: trio.Nursery) -> None:
        """Before anybody is let in, with the store open.

        :param nursery: where the certificate, and the keys for tokens, are kept fresh.
        :raises CannotListen: others can connect, and there is no credential.
        """
        if self._certificate is not None:
            nursery.start_soon(self._certificate.keep_fresh, self._ports)
        if self._tokens is not None:
            nursery.start_soon(self._tokens.keys.run)
        elif not self._is_local and not await self._ports.store.has_api_keys():
            raise CannotListen(f"{self._host}: {_ONLY_HERE}")
        await self.gate.look_first()
        nursery.start_soon(self.gate.watch)

    async def check_jwks_file(self) -> None:
        """Before the store is opened.

        :raises CannotListen: the issuer's keys are to be in a file in which they are not. A URL may answer later.
        """
        if self._jwks_file is None or self._tokens is None:
            return
        try:
            await self._tokens.keys.read_first()
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CannotListen(f"the keys of the tokens' issuer, {self._jwks_file}: {reason}") from None

    @property
    def told(self) -> str:
        """For the log."""
        return "only this machine, without a credential" if self.gate.is_open else "with a credential"


class Certificate:
    """Of the listeners; a renewed one is taken without a restart."""

    def __init__(self, config: TlsConfig) -> None:
        """:raises CannotListen: the files are no certificate and its key."""
        self._config = config
        try:
            self._version = version_of(config.certificate, config.key)
            self.context = open_tls(config.certificate, config.key)
        except OSError as error:
            what = f"TLS with {config.certificate} and {config.key}"
            raise CannotListen(f"{what}: {error.strerror or error}") from None

    async def keep_fresh(self, ports: Ports) -> None:
        """For ever."""
        while True:
            await ports.clock.sleep(_LOOK_SECONDS)
            self.look(ports.log)

    def look(self, log: Log) -> None:
        """New connections get what is in the files now. What is no good there is left alone."""
        try:
            version = version_of(self._config.certificate, self._config.key)
            if version == self._version:
                return
            self._version = version
            reload_tls(self.context, self._config.certificate, self._config.key)
        except OSError as error:
            log.warning("the new certificate cannot be used", reason=str(error))
        else:
            log.info("certificate read again", file=str(self._config.certificate))


def _verifier(config: JwtConfig, ports: Ports) -> JwtVerifier:
    try:
        from stellwerk.server.auth.signatures import JwtVerifier, SigningKeys
    except ImportError:
        raise Conflict("tokens need joserfc: pip install 'stellwerk[jwt]'") from None
    keys = SigningKeys(document_at(config.jwks), ports.clock, ports.log, place=config.jwks)
    return JwtVerifier(config, keys, ports.clock, ports.log)


def _is_loopback(socket: trio.socket.SocketType) -> bool:
    if socket.family == trio.socket.AF_UNIX:
        return True
    return ipaddress.ip_address(socket.getsockname()[0].partition("%")[0]).is_loopback
