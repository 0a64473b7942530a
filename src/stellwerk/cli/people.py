"""``stellwerk message``, ``user-tasks`` and ``complete``: what comes from outside."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stellwerk.cli.client import segment
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.ids import USER_TASKS, find_id
from stellwerk.cli.lists import ROWS_DEFAULT, list_page
from stellwerk.cli.options import After, AsJson, Limit, OfInstance, Variables, check_seconds, read_object
from stellwerk.cli.output import print_json, say, user_task_lines

__all__ = ["complete", "message", "user_tasks"]

_TTL_MS_DEFAULT = 3_600_000


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
    """Publish a message: it reaches whoever waits for it, or starts an instance.

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
        answer = client.post("/messages", body)
    if json:
        print_json(answer)
        return 0
    kept = _duration(_TTL_MS_DEFAULT if ttl_ms is None else ttl_ms)
    say(f"published {answer['message_id']} (kept up to {kept} until something waits for it)")
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
