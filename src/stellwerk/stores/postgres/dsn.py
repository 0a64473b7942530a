"""How to reach the database: what the operator says, checked before anything is dialled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import attrs

from stellwerk.errors import InvalidInput
from stellwerk.values import frozen

__all__ = ["Dsn", "PostgresConfig", "parse_dsn"]

_FORM = "postgresql://user:password@host:5432/database"
_PORT = 5432
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
    target: str
    """Which of the hosts will do: ``target_session_attrs``."""

    def __str__(self) -> str:
        """For people, without user and password."""
        hosts = ",".join("the default host" if host is None else f"{host}:{port}" for host, port in self.hosts)
        return f"PostgreSQL database {self.database or '(default)'} on {hosts}"


def parse_dsn(text: str) -> Dsn:
    """:raises InvalidInput: it is malformed, or asks for what asyncpg cannot do. The message never holds a password."""
    try:
        parts = urlsplit(text)
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        hosts = _hosts(parts.netloc.rpartition("@")[2], parameters)
    except ValueError:
        raise InvalidInput(f"the DSN of the database is malformed; its form is {_FORM}") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise InvalidInput(f"the DSN of the database does not begin with postgresql://; its form is {_FORM}")
    if parts.fragment or parts.netloc.count("@") > 1 or "@" in parts.path + parts.query:
        raise InvalidInput(
            "in the DSN of the database, write the characters @ / ? # of user and password as %40 %2F %3F %23"
        )
    target = parameters.pop("target_session_attrs", "primary")
    _check(parameters, target)
    kept = {name: value for name, value in parameters.items() if name not in (*_OURS, *_UNKNOWN_TO_ASYNCPG)}
    database = unquote(parts.path.lstrip("/")) or parameters.get("dbname", parameters.get("database"))
    return Dsn(parts._replace(query=urlencode(kept)).geturl(), hosts, database, target)


def _hosts(authority: str, parameters: dict[str, str]) -> Sequence[tuple[str | None, int | None]]:
    """Several are separated by commas; directories of sockets stand in the parameter ``host``."""
    if authority:
        return [_host_and_port(unquote(host)) for host in authority.split(",")]
    if not parameters.get("host"):
        return [(None, None)]
    hosts = parameters["host"].split(",")
    ports = [int(port) for port in parameters.get("port", str(_PORT)).split(",")]
    return list(zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=True))


def _host_and_port(text: str) -> tuple[str, int]:
    """:raises ValueError: nothing of this name can be looked up."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.lstrip(":")
    elif text.startswith("/"):
        host, _, port = text.rpartition(":") if ":" in text else (text, "", "")
    else:
        host, _, port = text.partition(":")
        host.encode("idna")
    if not host:
        raise ValueError("no host")
    return host, int(port) if port else _PORT


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
    command_seconds_max: float = attrs.field(default=10.0, validator=_is_positive)
    """So long one statement may take."""
