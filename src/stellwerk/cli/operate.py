"""``stellwerk message``, ``complete`` and ``resolve``, and the lists of what waits for them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stellwerk.cli.client import EngineClient, segment
from stellwerk.cli.options import URL_DEFAULT, AsJson, Url, Variables, read_object
from stellwerk.cli.output import print_json, print_table, say, short_instant

__all__ = ["complete", "incidents", "message", "resolve", "user_tasks"]


def message(
    name: Annotated[str, Parameter(help="The message's name in the BPMN file.")],
    /,
    *,
    key: Annotated[str, Parameter(help="Correlation key: whom it is for.")] = "",
    variables: Variables = "{}",
    ttl_seconds: Annotated[float | None, Parameter(help="How long it waits for a receiver. Default: an hour.")] = None,
    message_id: Annotated[str | None, Parameter(help="The same one again is no second message.")] = None,
    url: Url = URL_DEFAULT,
) -> int:
    """Publish a message: it reaches whoever waits for it, or starts an instance.

    For example:

        stellwerk message "payment received" --key A-17 --variables '{"amount": 12.5}'
    """
    body = {
        "name": name,
        "key": key,
        "variables": read_object(variables),
        "ttl_ms": None if ttl_seconds is None else int(ttl_seconds * 1000),
        "message_id": message_id,
    }
    say(str(EngineClient(url).post("/messages", body)["message_id"]))
    return 0


def complete(
    user_task: Annotated[str, Parameter(help="Id of the user task.")],
    /,
    *,
    variables: Variables = "{}",
    url: Url = URL_DEFAULT,
) -> int:
    """Complete a user task.

    For example:

        stellwerk complete 0199f2a4-... --variables '{"approved": true}'
    """
    EngineClient(url).post(f"/user-tasks/{segment(user_task)}/complete", {"variables": read_object(variables)})
    say(f"completed {user_task}")
    return 0


def resolve(
    incident: Annotated[str, Parameter(help="Id of the incident.")],
    /,
    *,
    retries: Annotated[int, Parameter(help="How many attempts the task gets.")] = 1,
    url: Url = URL_DEFAULT,
) -> int:
    """Resolve an incident: the instance tries again from where it stands.

    For example:

        stellwerk resolve 0199f2a4-... --retries 3
    """
    EngineClient(url).post(f"/incidents/{segment(incident)}/resolve", {"retries": retries})
    say(f"resolved {incident}")
    return 0


def incidents(*, url: Url = URL_DEFAULT, json: AsJson = False) -> int:
    """List open incidents."""
    rows = EngineClient(url).get("/incidents")["incidents"]
    if json:
        print_json(rows)
        return 0
    columns = ("incident", "instance", "kind", "element", "since (UTC)", "message")
    cells = [
        (
            row["incident_id"],
            row["instance_id"],
            row["kind"],
            row["element_id"],
            short_instant(row["opened_at"]),
            row["message"],
        )
        for row in rows
    ]
    print_table("Incidents", columns, cells)
    return 0


def user_tasks(*, url: Url = URL_DEFAULT, json: AsJson = False) -> int:
    """List open user tasks."""
    rows = EngineClient(url).get("/user-tasks")["user_tasks"]
    if json:
        print_json(rows)
        return 0
    columns = ("user task", "instance", "element", "name", "assignee", "since (UTC)")
    cells = [
        (
            row["user_task_id"],
            row["instance_id"],
            row["element_id"],
            row["name"],
            row["assignee"],
            short_instant(row["created_at"]),
        )
        for row in rows
    ]
    print_table("User tasks", columns, cells)
    return 0
