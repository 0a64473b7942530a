"""How to reach the database: what the operator says, checked before anything is dialled."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

import attrs

from stellwerk.errors import InvalidInput
from stellwerk.values import frozen

__all__ = ["Dsn", "PostgresConfig", "parse_dsn"]

_FORM = "postgresql://user:password@host:5432/database"
_ESCAPES = "the characters @ / ? # [ ] of user and password as %40 %2F %3F %23 %5B %5D"
_PORT = 5432
_PORT_MAX = 65535
_OURS = frozenset(
    {
        "application_name",
        "connect_timeout",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "tcp_user_timeout",
    }
)
"""What other clients read from a DSN and stellwerk sets by itself."""
_UNKNOWN_TO_ASYNCPG = ("channel_binding", "gssencmode", "load_balance_hosts", "require_auth", "requirepeer")
_OPTIONAL_VALUES = frozenset({"disable", "prefer"})
_WRITABLE = ("primary", "read-write", "any")


@frozen
class Dsn:
    text: str = attrs.field(repr=False)
    """For asyncpg, which gets host and port beside it."""
    hosts: Sequence[tuple[str | None, int | None]]
    """In the order in which they are tried. (None, None): where asyncpg looks by itself."""
    database: str | None
    user: str | None
    target: str
    """Which of the hosts will do: ``target_session_attrs``."""

    def __str__(self) -> str:
        """For people, without user and password."""
        hosts = ",".join("the default host" if host is None else f"{host}:{port}" for host, port in self.hosts)
        return f"PostgreSQL database {self.database or _default_database(self.user)} on {hosts}"


def _default_database(user: str | None) -> str:
    """The one that is taken where none is named, as libpq and asyncpg do."""
    named = os.environ.get("PGDATABASE") or user or os.environ.get("PGUSER")
    try:
        return named or getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return "(default)"


def parse_dsn(text: str) -> Dsn:
    """:raises InvalidInput: it is malformed, or asks for what asyncpg cannot do. The message never holds a password."""
    parts = _split(text)
    try:
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _malformed("what follows ? must be name=value, with & between several") from None
    hosts = _hosts(parts.netloc, parameters)
    target = parameters.pop("target_session_attrs", "primary")
    _check(parameters, target)
    kept = {name: value for name, value in parameters.items() if name not in (*_OURS, *_UNKNOWN_TO_ASYNCPG)}
    database = unquote(parts.path.lstrip("/")) or parameters.get("dbname", parameters.get("database"))
    user = unquote(parts.netloc.rpartition("@")[0].partition(":")[0]) or parameters.get("user")
    return Dsn(parts._replace(query=urlencode(kept)).geturl(), hosts, database, user, target)


def _malformed(what: str) -> InvalidInput:
    return InvalidInput(f"the DSN of the database is malformed: {what}; its form is {_FORM}")


def _split(text: str) -> SplitResult:
    if not text.startswith(("postgresql://", "postgres://")):
        raise InvalidInput(f"the DSN of the database does not begin with postgresql://; its form is {_FORM}")
    # Before anything of it is quoted: with one of these characters in it, a password may stand where a port is sought.
    behind = text.partition("://")[2]
    authority, _, rest = behind.partition("/")
    if "#" in behind or authority.count("@") > 1 or "@" in rest:
        raise _malformed(f"write {_ESCAPES}")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise _malformed(f"[ and ] belong around an IPv6 address only; write {_ESCAPES}") from None
    if "@" in parts.query:
        raise _malformed(f"write {_ESCAPES}")
    return parts


def _hosts(authority: str, parameters: dict[str, str]) -> Sequence[tuple[str | None, int | None]]:
    """Several are separated by commas; directories of sockets stand in the parameter ``host``."""
    _, at, named = authority.rpartition("@")
    if named:
        return [_host_and_port(unquote(host), may_be_shown=bool(at)) for host in named.split(",")]
    if not parameters.get("host"):
        return [(None, None)]
    hosts = parameters["host"].split(",")
    ports = [_port(port, may_be_shown=True) for port in parameters.get("port", str(_PORT)).split(",")]
    if len(ports) not in (1, len(hosts)):
        raise _malformed(f"it has {len(hosts)} hosts and {len(ports)} ports")
    return list(zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=True))


def _host_and_port(text: str, *, may_be_shown: bool) -> tuple[str, int]:
    """:raises InvalidInput: nothing of this name can be looked up."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.lstrip(":")
    elif text.startswith("/"):
        host, _, port = text.rpartition(":") if ":" in text else (text, "", "")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise _malformed("a host is missing")
    try:
        if not host.startswith("/"):
            host.encode("idna")
    except UnicodeError:
        raise _malformed("a host's name is none") from None
    return host, _port(port, may_be_shown=may_be_shown) if port else _PORT


def _port(text: str, *, may_be_shown: bool) -> int:
    """:param may_be_shown: False: without an @ before it, it may be the password of somebody who forgot the host."""
    if text.isdecimal() and 1 <= int(text) <= _PORT_MAX:
        return int(text)
    shown = f"the port {text!r}" if may_be_shown else "what stands where the port should"
    hint = "" if may_be_shown else " (or the host is missing behind user:password@)"
    raise _malformed(f"{shown} is not a number from 1 to {_PORT_MAX}{hint}")


def _check(parameters: dict[str, str], target: str) -> None:
    for name in _UNKNOWN_TO_ASYNCPG:
        if parameters.get(name, "prefer") not in _OPTIONAL_VALUES:
            raise InvalidInput(f"the DSN of the database asks for {name}={parameters[name]}, which is not supported")
    if target not in _WRITABLE:
        raise InvalidInput(
            f"the DSN of the database asks for target_session_attrs={target}: stellwerk writes; "
            f"it can be {', '.join(_WRITABLE)}"
        )


def _is_dsn(_instance: object, _attribute: attrs.Attribute[Any], value: str | None) -> None:
    if value is not None:
        parse_dsn(value)


def _is_positive(_instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if value <= 0:
        raise InvalidInput(f"{attribute.name} is {value}: it must be greater than 0")


def _shown(dsn: str | None) -> str:
    return "None" if dsn is None else f"<{parse_dsn(dsn)}>"


@frozen(kw_only=True)
class PostgresConfig:
    """:raises InvalidInput: something in it is malformed."""

    dsn: str = attrs.field(validator=_is_dsn, repr=_shown)
    """``postgresql://user:password@host:5432/database``, several hosts separated by commas."""
    listen_dsn: str | None = attrs.field(default=None, validator=_is_dsn, repr=_shown)
    """A way around the pooler for LISTEN and NOTIFY, which get lost in one. None: as `dsn`."""
    is_pooled: bool = False
    """`dsn` leads to a pooler that hands out servers for a transaction each, as pgbouncer may."""
    reading_connections_max: int = attrs.field(default=4, validator=_is_positive)
    """Beside them a node holds one connection that writes and one that listens."""
    connect_seconds_max: float = attrs.field(default=5.0, validator=_is_positive)
    """So long whoever needs a connection waits for a database that is away."""
    open_seconds_max: float = attrs.field(default=5.0, validator=_is_positive)
    """So long it is waited for when the store is opened."""
    command_seconds_max: float = attrs.field(default=10.0, validator=_is_positive)
    """So long one statement may take."""
