"""``stellwerk keys``: API keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from stellwerk.cli.client import segment
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.mistakes import Mistake
from stellwerk.cli.options import AsJson, flag
from stellwerk.cli.output import brief_instant, print_json, print_table, say, warn
from stellwerk.cli.times import DURATIONS, duration_ms
from stellwerk.cli.unknown import warn_of_unknown_process

__all__ = ["create", "list_keys", "revoke"]

_PATH = "/keys"
_NAMES = "separated by commas; NAME* stands for all that begin so. Default: all."
_NAME_CHARS_MAX = 255
_WHICH_SCOPES = (
    "--scopes: what may the key do? One or several of worker (take tasks and report on them), client (start, read, "
    "complete user tasks), operator (deploy, cancel, repair, and what client may), admin (everything, and keys); the "
    "first key should be an admin's: stellwerk keys create --scopes admin"
)
_COLUMNS = ("key", "name", "scopes", "workers", "topics", "processes", "made (UTC)", "state")


def create(
    *,
    scopes: Annotated[
        str | None,
        Parameter(
            help="What it may do, separated by commas: worker (take tasks and report on them), client (start, read, "
            "complete user tasks), operator (deploy, cancel, repair; and what client may), admin (all, and keys)."
        ),
    ] = None,
    name: Annotated[
        str | None, Parameter(help="For people and logs. Default: the worker ids without their *, or the scopes.")
    ] = None,
    worker: Annotated[str | None, Parameter(help=f"Worker ids that it may have, {_NAMES}")] = None,
    topics: Annotated[str | None, Parameter(help=f"Topics that it may take tasks of, {_NAMES}")] = None,
    processes: Annotated[str | None, Parameter(help=f"Ids of processes that it may use and see, {_NAMES}")] = None,
    expires: Annotated[str | None, Parameter(help=f"After so long it is good no more ({DURATIONS}).")] = None,
    yes: Annotated[
        bool, flag(help="Also where it is the first key and can make no others, so that only --db can.")
    ] = False,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """Make an API key, and print it: the only time that it is shown.

    The engine keeps a digest of it. From the first key on nobody gets in without one, nodes that run included. Make one
    with the scope admin first: it can make the others. Another one is not made as the first, unless with --yes.

    For example:

        stellwerk keys create --scopes admin --name ops
        stellwerk keys create --scopes worker --worker 'billing-*' --topics payment,refund --expires 90d
        stellwerk keys create --scopes client,operator --processes order --db orders.db
    """
    if scopes is None:
        raise Mistake(_WHICH_SCOPES)
    given_scopes, workers = _names("--scopes", scopes), _names("--worker", worker)
    body = {
        "name": name if name is not None else _name_for(given_scopes or [], workers or []),
        "scopes": given_scopes,
        "worker_ids": workers,
        "topics": _names("--topics", topics),
        "processes": _names("--processes", processes),
        "expires_in_ms": None if expires is None else duration_ms("--expires", expires),
        "force": True if yes else None,
    }
    with engine.open(may_make=True) as client:
        for process in _names("--processes", processes) or ():
            if not process.endswith("*"):
                warn_of_unknown_process(client, process)
        made = client.post(_PATH, body)
    _warn_of_lockout(made)
    if json:
        print_json(made)
        return 0
    warn(f"API key {made['key_id']}; what follows is shown this once only (commands and workers take it from")
    warn("STELLWERK_TOKEN or --token, HTTP clients send it as Authorization: Bearer …)")
    say(made["key"])
    return 0


def list_keys(*, engine: Engine = HERE, json: AsJson = False) -> int:
    """List the API keys, those that were revoked too. The keys themselves are nowhere kept."""
    with engine.open() as client:
        rows = client.get(_PATH)["keys"]
    if json:
        print_json(rows)
    else:
        print_table("API keys", _COLUMNS, map(_row, rows))
    return 0


def revoke(
    key_id: Annotated[str, Parameter(name="KEY", help="The id of the key: what stands between its underscores.")],
    /,
    *,
    yes: Annotated[bool, flag(help="Also the last key that can make others, so that only --db can.")] = False,
    engine: Engine = HERE,
) -> int:
    """Make an API key worthless, for good.

    Requests with it are refused within seconds on every node, and connections of workers that came with it are closed;
    what these hold stays leased until its deadline.

    For example:

        stellwerk keys revoke 4fTq0Zb81Xy
    """
    if key_id.startswith("sw_"):
        raise Mistake("only the id of the key is wanted: what stands between its underscores")
    with engine.open() as client:
        answer = client.delete(f"{_PATH}/{segment(key_id)}", {"force": True if yes else None})
    _warn_of_lockout(answer)
    say(f"revoked {key_id}")
    return 0


def _warn_of_lockout(answer: Mapping[str, Any]) -> None:
    """Earlier engines say nothing of it."""
    if answer.get("warning"):
        warn(f"stellwerk: {answer['warning']}")


def _name_for(scopes: Sequence[str], workers: Sequence[str]) -> str:
    """A pattern such as ``billing-*`` is no name: ``billing`` is."""
    names = [name for pattern in workers if (name := pattern.rstrip("*").rstrip("-_.:/ "))]
    return ", ".join(names or scopes)[:_NAME_CHARS_MAX]


def _names(option: str, given: str | None) -> list[str] | None:
    if given is None:
        return None
    names = [name.strip() for name in given.split(",")]
    if not all(names):
        raise Mistake(f"{option} {given}: names separated by commas are expected")
    return names


def _row(key: Mapping[str, Any]) -> list[str]:
    return [
        key["key_id"],
        key["name"],
        ",".join(key["scopes"]),
        *(_allowed(key[field]) for field in ("worker_ids", "topics", "processes")),
        brief_instant(key["created_at"]),
        _state(key),
    ]


def _allowed(names: list[str] | None) -> str:
    return "all" if names is None else ",".join(names)


def _state(key: Mapping[str, Any]) -> str:
    if key["revoked_at"] is not None:
        return f"revoked {brief_instant(key['revoked_at'])}"
    return "good" if key["expires_at"] is None else f"until {brief_instant(key['expires_at'])}"
