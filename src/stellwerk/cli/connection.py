"""``--url`` or ``--db``: whom a command asks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter

from stellwerk.cli.client import Client, EngineClient
from stellwerk.cli.mistakes import Mistake

__all__ = ["HERE", "TOKEN_VARIABLE", "URL_DEFAULT", "Engine", "credential"]

URL_DEFAULT = "http://127.0.0.1:10560"
_URL_VARIABLE = "STELLWERK_URL"
TOKEN_VARIABLE = "STELLWERK_TOKEN"  # noqa: S105 - its name


def credential(given: str | None) -> str | None:
    """The one of the option ``--token``, or of the environment."""
    found = given if given is not None else os.environ.get(TOKEN_VARIABLE)
    if found is not None and not (found.isascii() and found.isprintable()):
        raise Mistake(f"the credential (--token, {TOKEN_VARIABLE}) has characters that none has")
    return found or None


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class Engine:
    """The options that every command has which asks an engine."""

    url: Annotated[
        str | None,
        Parameter(name="--url", help=f"Where the engine is. Default: {_URL_VARIABLE}, or {URL_DEFAULT}."),
    ] = None
    db: Annotated[
        str | None,
        Parameter(name="--db", help="Instead of --url: a file that no engine has open, or postgresql://USER@HOST/DB."),
    ] = None

    token: Annotated[
        str | None,
        Parameter(
            name="--token", help=f"API key or token for --url. Default: {TOKEN_VARIABLE}, which others cannot see."
        ),
    ] = attrs.field(default=None, repr=False)

    def open(self, *, may_make: bool = False) -> Client:
        """:param may_make: a database that is not there.

        :raises Mistake: when both are given, the URL is none, or the file cannot be used.
        """
        if self.db is None:
            return EngineClient(self._url(), credential(self.token))
        if self.url is not None:
            raise Mistake("--url and --db exclude each other")
        from stellwerk.cli.offline import OfflineClient

        return OfflineClient(self.db, may_make=may_make)

    @property
    def file(self) -> Path | None:
        """What `db` names, if it is a file."""
        from stellwerk.app.databases import is_postgres

        return None if self.db is None or is_postgres(self.db) else Path(self.db)

    def _url(self) -> str:
        return self.url if self.url is not None else os.environ.get(_URL_VARIABLE) or URL_DEFAULT


HERE = Engine()
"""The engine on this machine, or where the environment says."""
