"""``stellwerk message``, ``messages``, ``user-tasks`` and ``complete``: what comes from outside."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import Parameter

from stellwerk.cli.client import Client, segment
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.ids import USER_TASKS, find_id
from stellwerk.cli.lists import ROWS_DEFAULT, list_page
from stellwerk.cli.options import After, AsJson, Limit, OfInstance, Variables, check_seconds, read_object
from stellwerk.cli.output import (
    Column,
    print_json,
    print_table,
    say,
    short_instant,
    user_task_lines,
    warn,
    warn_of_more,
)
from stellwerk.cli.unknown import close_matches

__all__ = ["complete", "message", "messages", "user_tasks"]

_TTL_MS_DEFAULT = 3_600_000
_WAITING, _CORRELATED = "waiting", "correlated"
_CORRELATION_SECONDS_MAX = 0.5
_PAUSE_SECONDS = 0.03


def message(
    name: Annotated[str, Parameter(help="The message's name in the BPMN file.")],
    /,
    *,
    key: Annotated[str, Parameter(help="Correlation key: whom it is for.")] = "",
    variables: Variables = "{}",
    ttl_seconds: Annotated[float | None, Parameter(help="How long it waits for a receiver. Default: an hour.")] = None,
    message_id: Annotated[str | None, Parameter(help="The same one again is no second message.")] = None,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """Publish a message, and say whether it has reached somebody: who waits for it, or an instance that it starts.

    Where nothing waits for it yet, it is kept for its time to live; names like it that are waited for are told.
    With --db it is kept in the file, and reaches whom it is for when an engine runs on it (within its time to live).

    For example:

        stellwerk message "payment received" --key A-17 --variables '{"amount": 12.5}'
    """
    check_seconds("--ttl-seconds", ttl_seconds, is_bounded=True)
    ttl_ms = None if ttl_seconds is None else int(ttl_seconds * 1000)
    body = {
        "name": name,
        "key": key,
        "variables": read_object(variables),
        "ttl_ms": ttl_ms,
        "message_id": message_id,
    }
    with engine.open() as client:
        published = str(client.post("/messages", body)["message_id"])
        # In a file nothing is correlated: there is nothing to wait for.
        became = _what_became_of(client, published, 0.0 if engine.file is not None else _CORRELATION_SECONDS_MAX)
        if became["status"] == _WAITING and not became["is_awaited"]:
            _warn_of_awaited_names(client, name, key)
    if json:
        print_json({"message_id": published, "status": became["status"]})
        return 0
    kept = f"kept up to {_duration(_TTL_MS_DEFAULT if ttl_ms is None else ttl_ms)}"
    told = f"{kept} in the file, for an engine" if engine.file is not None else _told(became, kept)
    say(f"published {published}: {told}")
    return 0


def _what_became_of(client: Client, message_id: str, seconds_max: float) -> dict[str, Any]:
    """The message: when it is correlated, which takes a moment, or nothing waits for it, or after so long."""
    deadline = time.monotonic() + seconds_max
    while True:
        became = client.get(f"/messages/{quote(message_id, safe='')}")
        if became["status"] != _WAITING or not became["is_awaited"] or time.monotonic() >= deadline:
            return became
        time.sleep(_PAUSE_SECONDS)


def _told(became: Mapping[str, Any], kept: str) -> str:
    if became["status"] != _WAITING:
        return "correlated" if became["status"] == _CORRELATED else "its time to live is over"
    waits = "something waits for it and has not taken it yet" if became["is_awaited"] else "nothing waits for it yet"
    return f"{waits}, {kept}"


def _warn_of_awaited_names(client: Client, name: str, key: str) -> None:
    names = client.get("/awaited-messages")["names"]
    if name in names:
        whose = f"with the key {key!r}" if key else "without a key"
        warn(f'"{name}" is waited for, but not {whose}')
    elif alike := close_matches(name, names):
        warn(f'nothing waits for "{name}"; what is waited for and like it: {", ".join(alike)}')


def messages(*, limit: Limit = ROWS_DEFAULT, after: After = None, engine: Engine = HERE, json: AsJson = False) -> int:
    """List the messages that are kept: those that nothing has waited for yet, or that could not be taken.

    For example:

        stellwerk messages
        stellwerk messages --json | jq -r '.[] | select(.name == "paid") | .key'
    """
    with engine.open() as client:
        answer = client.get("/messages", {"limit": limit, "after": after})
    rows = answer["messages"]
    if answer["more"]:
        warn_of_more(rows[-1]["message_id"])
    if json:
        print_json(rows)
        return 0
    columns = (
        Column("message", "id"),
        "name",
        "key",
        Column("published (UTC)", "instant"),
        Column("kept until (UTC)", "instant"),
        "awaited",
    )
    cells = [
        (
            row["message_id"],
            row["name"],
            row["key"],
            short_instant(row["published_at"])[:19],
            short_instant(row["expires_at"])[:19],
            "yes" if row["is_awaited"] else "no",
        )
        for row in rows
    ]
    print_table("Messages that are kept", columns, cells)
    return 0


def _duration(milliseconds: int) -> str:
    for unit, size in (("h", 3_600_000), ("min", 60_000)):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds / 1000:g} s"


def user_tasks(
    *,
    instance: OfInstance = None,
    limit: Limit = ROWS_DEFAULT,
    after: After = None,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """List open user tasks.

    For example:

        stellwerk user-tasks
        stellwerk user-tasks --instance 0199f2a4-... --json
    """
    return list_page(
        engine, USER_TASKS, "User tasks", user_task_lines, json, instance=instance, limit=limit, after=after
    )


def complete(
    user_task: Annotated[str, Parameter(help="Id of the user task, or its unique beginning.")],
    /,
    *,
    variables: Variables = "{}",
    engine: Engine = HERE,
) -> int:
    """Complete a user task.

    For example:

        stellwerk complete 0199f2a4-... --variables '{"approved": true}'
    """
    given = read_object(variables)
    with engine.open() as client:
        user_task_id = find_id(client, user_task, USER_TASKS)
        client.post(f"/user-tasks/{segment(user_task_id)}/complete", {"variables": given})
    say(f"completed {user_task_id}")
    return 0
