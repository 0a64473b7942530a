"""``stellwerk message``, ``complete``, ``resolve`` and ``set-variables``, and the lists of what waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from stellwerk.cli.client import EngineClient, segment
from stellwerk.cli.ids import INCIDENTS, INSTANCES, USER_TASKS, InstanceId, Listing, find_id, find_row
from stellwerk.cli.options import URL_DEFAULT, After, AsJson, Limit, Url, Variables, check_seconds, read_object
from stellwerk.cli.output import incident_lines, print_json, say, user_task_lines, warn_of_more

__all__ = ["complete", "incidents", "message", "resolve", "set_variables", "user_tasks"]

_TTL_MS_DEFAULT = 3_600_000
_ROWS_DEFAULT = 100


def message(
    name: Annotated[str, Parameter(help="The message's name in the BPMN file.")],
    /,
    *,
    key: Annotated[str, Parameter(help="Correlation key: whom it is for.")] = "",
    variables: Variables = "{}",
    ttl_seconds: Annotated[float | None, Parameter(help="How long it waits for a receiver. Default: an hour.")] = None,
    message_id: Annotated[str | None, Parameter(help="The same one again is no second message.")] = None,
    url: Url = URL_DEFAULT,
    json: AsJson = False,
) -> int:
    """Publish a message: it reaches whoever waits for it, or starts an instance.

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
    answer = EngineClient(url).post("/messages", body)
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


def complete(
    user_task: Annotated[str, Parameter(help="Id of the user task, or its unique beginning.")],
    /,
    *,
    variables: Variables = "{}",
    url: Url = URL_DEFAULT,
) -> int:
    """Complete a user task.

    For example:

        stellwerk complete 0199f2a4-... --variables '{"approved": true}'
    """
    given = read_object(variables)
    client = EngineClient(url)
    user_task_id = find_id(client, user_task, USER_TASKS)
    client.post(f"/user-tasks/{segment(user_task_id)}/complete", {"variables": given})
    say(f"completed {user_task_id}")
    return 0


def resolve(
    incident: Annotated[str, Parameter(help="Id of the incident, or its unique beginning.")],
    /,
    *,
    retries: Annotated[int, Parameter(help="How many attempts the task gets.")] = 1,
    variables: Annotated[
        str | None, Parameter(help="Set these variables of the process first: a JSON object, or @FILE.")
    ] = None,
    url: Url = URL_DEFAULT,
) -> int:
    """Resolve an incident: the instance tries again from where it stands.

    For example:

        stellwerk resolve 0199f2a4-... --retries 3
        stellwerk resolve 0199f2a4-... --variables '{"amount": 12.5}'
    """
    given = None if variables is None else read_object(variables)
    client = EngineClient(url)
    incident_id = find_id(client, incident, INCIDENTS)
    if given is not None:
        found = find_row(client, incident_id, INCIDENTS)
        client.post(f"/instances/{segment(str(found['instance_id']))}/variables", {"variables": given})
    client.post(f"/incidents/{segment(incident_id)}/resolve", {"retries": retries})
    say(f"resolved {incident_id}")
    return 0


def set_variables(instance: InstanceId, /, *, variables: Variables, url: Url = URL_DEFAULT) -> int:
    """Set variables of a running instance's process. The others keep their values.

    For example:

        stellwerk set-variables 0199f2a4-... --variables '{"amount": 12.5}'
    """
    given = read_object(variables)
    client = EngineClient(url)
    instance_id = find_id(client, instance, INSTANCES)
    client.post(f"/instances/{segment(instance_id)}/variables", {"variables": given})
    say(f"set {', '.join(sorted(given)) or 'nothing'} in {instance_id}")
    return 0


def incidents(
    *, limit: Limit = _ROWS_DEFAULT, after: After = None, url: Url = URL_DEFAULT, json: AsJson = False
) -> int:
    """List open incidents."""
    rows = _page(INCIDENTS, limit, after, url)
    if json:
        print_json(rows)
        return 0
    if not rows:
        say("Incidents: none")
    for row in rows:
        for line in incident_lines(row, with_instance=True):
            say(line)
        say("")
    return 0


def user_tasks(
    *, limit: Limit = _ROWS_DEFAULT, after: After = None, url: Url = URL_DEFAULT, json: AsJson = False
) -> int:
    """List open user tasks."""
    rows = _page(USER_TASKS, limit, after, url)
    if json:
        print_json(rows)
        return 0
    if not rows:
        say("User tasks: none")
    for row in rows:
        for line in user_task_lines(row, with_instance=True):
            say(line)
        say("")
    return 0


def _page(listing: Listing, limit: int, after: str | None, url: str) -> Sequence[Mapping[str, Any]]:
    answer = EngineClient(url).get(listing.path, {"limit": limit, "after": after})
    rows: list[Mapping[str, Any]] = answer[listing.plural]
    if answer["more"]:
        warn_of_more(str(rows[-1][listing.id_field]))
    return rows
