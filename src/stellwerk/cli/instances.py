"""``stellwerk start``, ``instances`` and ``cancel``."""

from __future__ import annotations

import difflib
import time
from http import HTTPStatus
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stellwerk.cli.client import EngineClient, Refused, segment
from stellwerk.cli.ids import INSTANCES, InstanceId, find_id
from stellwerk.cli.mistakes import ENDED_BADLY, Mistake
from stellwerk.cli.options import URL_DEFAULT, After, AsJson, Url, Variables, check_seconds, read_object
from stellwerk.cli.output import (
    incident_lines,
    print_json,
    print_table,
    say,
    short_instant,
    warn,
    warn_of_more,
)

__all__ = ["cancel", "instances", "start"]

_WAIT_MS_MAX = 20_000
"""One request waits so long at most; then it is asked again."""
_PAUSE_SECONDS = 0.1
_NAMED_MAX = 10
"""So many deployed processes are named to whoever asks for another."""


def start(
    process: Annotated[str, Parameter(help="The process's id in its BPMN file.")],
    /,
    *,
    variables: Variables = "{}",
    business_key: Annotated[str | None, Parameter(help="Your own name for the instance.")] = None,
    request_id: Annotated[str | None, Parameter(help="The same one again starts no second instance.")] = None,
    start_event: Annotated[str | None, Parameter(help="Id of the start event, where there are several.")] = None,
    version: Annotated[int | None, Parameter(help="Version of the process; the newest without it.")] = None,
    wait: Annotated[bool, Parameter(negative=(), help="Wait until it has ended or has an incident.")] = False,
    timeout: Annotated[float | None, Parameter(help="With --wait: at most so many seconds.")] = None,
    url: Url = URL_DEFAULT,
    json: AsJson = False,
) -> int:
    """Start an instance of a process and print its id.

    Exit code with --wait: 0 when it completed; 1 when it failed, was cancelled, has an incident or is still running.

    For example:

        stellwerk start order --variables '{"amount": 12.5}'
        stellwerk start order --variables @order.json --business-key A-17 --wait --timeout 60
    """
    check_seconds("--timeout", timeout)
    client = EngineClient(url)
    body = {
        "process": process,
        "variables": read_object(variables),
        "business_key": business_key,
        "request_id": request_id,
        "start_event_id": start_event,
        "version": version,
    }
    try:
        instance_id = str(client.post("/instances", body)["instance_id"])
    except Refused as refused:
        if refused.status != HTTPStatus.NOT_FOUND:
            raise
        raise _with_known_processes(client, refused, process) from None
    if not wait:
        print_json({"instance_id": instance_id}) if json else say(instance_id)
        return 0
    if not json:
        say(instance_id)
    view = _wait_for_end(client, instance_id, timeout)
    print_json(_outcome(view)) if json else _say_outcome(view)
    return 0 if view["status"] == "COMPLETED" else ENDED_BADLY


def _with_known_processes(client: EngineClient, refused: Refused, process: str) -> Mistake:
    definitions = client.get("/definitions")["definitions"]
    versions = [str(row["version"]) for row in definitions if row["key"] == process]
    if versions:
        return Mistake(f"{refused}; its versions: {', '.join(versions)}")
    keys = sorted({row["key"] for row in definitions})
    if not keys:
        return Mistake(f"{refused}, nor any other: stellwerk deploy FILE")
    known = difflib.get_close_matches(process, keys, n=3) or keys[:_NAMED_MAX]
    more = "" if len(known) == len(keys) else f" (of {len(keys)}; see: stellwerk definitions)"
    return Mistake(f"{refused}; deployed: {', '.join(known)}{more}")


def _wait_for_end(client: EngineClient, instance_id: str, seconds_max: float | None) -> dict[str, Any]:
    """The instance as it is when it has ended, has an incident, or the time is up."""
    path = f"/instances/{segment(instance_id)}"
    deadline = float("inf") if seconds_max is None else time.monotonic() + seconds_max
    while True:
        timeout_ms = int(min(max(0.0, deadline - time.monotonic()) * 1000, _WAIT_MS_MAX))
        query = {"timeout_ms": timeout_ms, "or_incident": True}
        client.get(path + "/wait", query, seconds_max=timeout_ms / 1000)
        view = client.get(path, {"history": False})
        if view["status"] != "RUNNING" or view["incidents"] or time.monotonic() >= deadline:
            return view
        # An engine that drains answers at once; do not run in circles until it is gone.
        time.sleep(_PAUSE_SECONDS)


def _outcome(view: dict[str, Any]) -> dict[str, Any]:
    return {name: view[name] for name in ("instance_id", "status", "variables", "incidents", "reason")}


def _say_outcome(view: dict[str, Any]) -> None:
    say(view["status"])
    for name, value in sorted(view["variables"].items()):
        say(f"  {name} = {_compact(value)}")
    if view["reason"] is not None:
        warn(view["reason"])
    for incident in view["incidents"]:
        for line in incident_lines(incident):
            warn(line)
    if view["status"] == "RUNNING" and not view["incidents"]:
        warn(f"still running; see: stellwerk show {view['instance_id']}")


def _compact(value: object) -> str:
    from stellwerk.json_values import dumps

    return dumps(value).decode()


def instances(
    *,
    process: Annotated[str | None, Parameter(help="Only instances of this process.")] = None,
    status: Annotated[
        Literal["running", "completed", "failed", "cancelled"] | None, Parameter(help="Only these.")
    ] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    after: After = None,
    url: Url = URL_DEFAULT,
    json: AsJson = False,
) -> int:
    """List instances, the newest first.

    For example:

        stellwerk instances --status running
        stellwerk instances --process order --limit 10 --json
    """
    query = {"process": process, "status": None if status is None else status.upper(), "limit": limit}
    answer = EngineClient(url).get("/instances", {**query, "after": after})
    page = answer["instances"]
    if answer["more"]:
        warn_of_more(page[-1]["instance_id"])
    if json:
        print_json(page)
        return 0
    rows = [
        (
            row["instance_id"],
            row["definition_id"],
            row["business_key"],
            row["status"],
            short_instant(row["started_at"])[:19],
        )
        for row in page
    ]
    columns = ("instance", "definition", "business key", "status", "started (UTC)")
    print_table("Instances", columns, rows, whole=("instance", "status"))
    return 0


def cancel(
    instance: InstanceId,
    /,
    *,
    reason: Annotated[str, Parameter(help="Goes into the history.")] = "cancelled by an operator",
    url: Url = URL_DEFAULT,
) -> int:
    """Cancel an instance: its tasks are taken from the workers, nothing is compensated.

    For example:

        stellwerk cancel 0199f2a4-... --reason "ordered twice"
    """
    client = EngineClient(url)
    instance_id = find_id(client, instance, INSTANCES)
    client.post(f"/instances/{segment(instance_id)}/cancel", {"reason": reason})
    say(f"cancelled {instance_id}")
    return 0
