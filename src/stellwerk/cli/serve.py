"""``stellwerk serve``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from stellwerk.cli.mistakes import Mistake
from stellwerk.cli.output import warn
from stellwerk.cli.serving import (
    WAIT_FOR_DB_SECONDS_DEFAULT,
    ServeOptions,
    database_option,
    from_environment,
    serve_here,
)
from stellwerk.cli.times import DURATIONS, duration_ms

__all__ = ["serve"]

_DB_VARIABLE = "STELLWERK_DB"
_LISTEN_DB_VARIABLE = "STELLWERK_LISTEN_DB"
_DB_DEFAULT = "stellwerk.db"
_ORIGIN = re.compile(r"https?://[^\s/*?#@]+")
_NODES_MAX = 64
"""Each is a process with connections of its own to the database."""


def serve(
    *,
    db: Annotated[
        str | None,
        Parameter(
            help="SQLite file; :memory: keeps nothing; postgresql://USER@HOST/DATABASE is shared by several engines. "
            f"Default: {_DB_VARIABLE}, or {_DB_DEFAULT}."
        ),
    ] = None,
    listen_db: Annotated[
        str | None,
        Parameter(
            help="A direct way to the database, where --db leads through a pooler in transaction mode (pgbouncer). "
            f"Default: {_LISTEN_DB_VARIABLE}."
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        Parameter(
            help="So many processes share the port (PostgreSQL only). They are started again when they die; SIGHUP "
            "replaces one after the other, and no request fails."
        ),
    ] = None,
    wait_for_db: Annotated[
        str | None,
        Parameter(
            help="PostgreSQL: how long to wait at the start for a database that cannot be reached (90s, 5min). "
            f"Default: {WAIT_FOR_DB_SECONDS_DEFAULT:g}s."
        ),
    ] = None,
    host: Annotated[
        str,
        Parameter(help="Address to listen on. One that other machines can reach needs an API key, or --jwt-issuer."),
    ] = "127.0.0.1",
    port: Annotated[int, Parameter(help="0 picks a free one.")] = 10560,
    synchronous: Annotated[
        Literal["full", "normal"],
        Parameter(help="SQLite: normal is faster, and may lose the last commits when the power fails."),
    ] = "full",
    failure_policy: Annotated[
        Literal["incident", "compensate"] | None,
        Parameter(
            help="What follows when a task fails for good, for models that do not say. Default: as fits the file."
        ),
    ] = None,
    keep_ended: Annotated[
        str | None,
        Parameter(
            help=f"Delete instances that ended longer ago than this, with all that belongs to them ({DURATIONS}). "
            "Default: they stay until you prune."
        ),
    ] = None,
    jwt_issuer: Annotated[
        str | None, Parameter(help="Whose tokens (JWT) are good, beside API keys: claim iss.")
    ] = None,
    jwt_audience: Annotated[str | None, Parameter(help="What stands in claim aud of tokens for this engine.")] = None,
    jwt_jwks: Annotated[
        str | None, Parameter(help="Where the issuer's keys are: an https URL (jwks_uri), or a file.")
    ] = None,
    jwt_algorithms: Annotated[
        str | None, Parameter(help="Separated by commas. Default: all that work with public keys.")
    ] = None,
    tls_cert: Annotated[
        Path | None, Parameter(help="Speak TLS: certificate with its chain, PEM. Renewed files are read again.")
    ] = None,
    tls_key: Annotated[Path | None, Parameter(help="Its private key, PEM.")] = None,
    cors: Annotated[
        tuple[str, ...],
        Parameter(
            help="Origin of another site whose pages may use the API (https://shop.example); several times.",
            negative=(),
            show_default=False,
        ),
    ] = (),
    log_level: Literal["debug", "info", "warning", "error"] = "info",
    log_format: Literal["text", "json"] = "text",
) -> int:
    """Run an engine until it is told to stop.

    Prints "stellwerk VERSION listening on URL" when it is ready. SIGTERM or Ctrl-C: workers are told to finish, then
    the engine stops within 5 seconds; a second signal stops it at once. The log goes to standard error.

    A password in --db can be seen by others on this machine: put it into ~/.pgpass, PGPASSWORD or STELLWERK_DB instead.

    For example:

        stellwerk serve
        stellwerk serve --db orders.db --port 8080
        stellwerk serve --db postgresql://stellwerk@db.example/orders --nodes 4 --keep-ended 90d
        stellwerk serve --host 0.0.0.0 --tls-cert chain.pem --tls-key key.pem
        stellwerk serve --db :memory: --port 0 --log-format json
    """
    if not 0 <= port <= 65535:
        raise Mistake(f"--port {port}: ports are 0 to 65535")
    from stellwerk.app.databases import has_password

    options = ServeOptions(
        db=db if db is not None else from_environment(_DB_VARIABLE) or _DB_DEFAULT,
        listen_db=listen_db if listen_db is not None else from_environment(_LISTEN_DB_VARIABLE),
        host=host,
        port=port,
        synchronous=synchronous,
        failure_policy=failure_policy,
        keep_ended_ms=None if keep_ended is None else duration_ms("--keep-ended", keep_ended),
        log_level=log_level,
        log_format=log_format,
        wait_for_db_seconds=_seconds_of_wait(wait_for_db),
        jwt_issuer=jwt_issuer,
        jwt_audience=jwt_audience,
        jwt_jwks=jwt_jwks,
        jwt_algorithms=jwt_algorithms,
        tls_cert=_absolute(tls_cert),
        tls_key=_absolute(tls_key),
        cors=cors,
    )
    _check(options, nodes, wait_for_db)
    if any(has_password(given) for given in (db, listen_db) if given is not None):
        warn(
            f"stellwerk: others can see passwords on a command line; {_DB_VARIABLE}, PGPASSWORD and ~/.pgpass hide them"
        )
    if nodes is None:
        serve_here(options.config())
    else:
        from stellwerk.cli.fleet import serve_fleet

        serve_fleet(options, nodes)
    return 0


def _absolute(file: Path | None) -> str | None:
    return None if file is None else str(file.absolute())


def _seconds_of_wait(wait_for_db: str | None) -> float:
    return WAIT_FOR_DB_SECONDS_DEFAULT if wait_for_db is None else duration_ms("--wait-for-db", wait_for_db) / 1000


def _check(options: ServeOptions, nodes: int | None, wait_for_db: str | None) -> None:
    """:raises Mistake: options that do not go together."""
    from stellwerk.app.databases import is_postgres

    database_option(options.db, options.listen_db)
    for origin in options.cors:
        if _ORIGIN.fullmatch(origin) is None:
            raise Mistake(f"--cors {origin}: an origin looks like https://shop.example, with no path")
    if is_postgres(options.db):
        if options.synchronous != "full":
            raise Mistake("--synchronous is for SQLite files; on PostgreSQL it is the database's synchronous_commit")
    elif wait_for_db is not None:
        raise Mistake(f"--wait-for-db {wait_for_db}: only a database of PostgreSQL is waited for")
    elif nodes is not None:
        raise Mistake(f"--nodes {nodes}: a file belongs to one process; several need --db postgresql://…")
    if nodes is not None and not 1 <= nodes <= _NODES_MAX:
        raise Mistake(f"--nodes {nodes}: 1 to {_NODES_MAX} processes")
