"""``stellwerk start``, ``instances``, ``set-variables`` and ``cancel``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stellwerk.cli.client import Client, Refused, segment
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.ids import INSTANCES, InstanceId, find_id
from stellwerk.cli.mistakes import ENDED_BADLY, CommandFailed, Mistake
from stellwerk.cli.options import After, AsJson, Variables, any_case, check_seconds, flag, read_object
from stellwerk.cli.output import (
    Column,
    counted,
    incident_lines,
    one_line,
    print_json,
    print_table,
    say,
    short_instant,
    warn,
    warn_of_more,
)
from stellwerk.cli.tasks import has_live_node
from stellwerk.cli.times import instant
from stellwerk.cli.unknown import close_matches, warn_of_unknown_process

__all__ = ["cancel", "instances", "set_variables", "start"]

_FIRST_WAIT_MS = 3_000
"""After so long without an end a look at what is missing is due."""
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
    wait: Annotated[bool, flag(help="Wait until it has ended or has an incident.")] = False,
    timeout: Annotated[float | None, Parameter(help="With --wait: at most so many seconds.")] = None,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """Start an instance of a process and print its id.

    Exit code with --wait: 0 when it completed; 1 when it failed, was cancelled, has an incident or is still running.
    With --db, --wait does not wait unless nodes run on the database (PostgreSQL): the instance has come as far as it
    gets until an engine runs there.

    For example:

        stellwerk start order --variables '{"amount": 12.5}'
        stellwerk start order --variables @order.json --business-key A-17 --wait --timeout 60
    """
    check_seconds("--timeout", timeout)
    body = {
        "process_def_id": process if version is None else f"{process}:{version}",
        "variables": read_object(variables),
        "business_key": business_key,
        "request_id": request_id,
        "start_event_id": start_event,
    }
    with engine.open() as client:
        instance_id = _started(client, body, process)
        if not wait:
            print_json({"instance_id": instance_id}) if json else say(instance_id)
            return 0
        if not json:
            say(instance_id)
        # Without an engine there is nothing to wait for: what it does itself was done in the starting step.
        is_alone = engine.db is not None and (engine.file is not None or not has_live_node(client))
        view = _wait_for_end(client, instance_id, 0.0 if is_alone else timeout)
    print_json(_outcome(view)) if json else _say_outcome(view)
    if _goes_on(view) and (is_alone or not json):
        _warn_that_it_goes_on(instance_id, engine, is_alone=is_alone)
    return 0 if view["status"] == "COMPLETED" else ENDED_BADLY


def _started(client: Client, body: Mapping[str, object], process: str) -> str:
    try:
        return str(client.post("/process-instances", body)["instance_id"])
    except Refused as refused:
        if refused.status != HTTPStatus.NOT_FOUND:
            raise
        raise _with_known_processes(client, refused, process) from None


def _with_known_processes(client: Client, refused: Refused, process: str) -> Mistake:
    definitions = client.get("/process-definitions")["definitions"]
    versions = [str(row["version"]) for row in definitions if row["key"] == process]
    if versions:
        return Mistake(f"{refused}; its versions: {', '.join(versions)}")
    keys = sorted({row["key"] for row in definitions})
    if not keys:
        return Mistake(f"{refused}, nor any other: stellwerk deploy FILE")
    known = close_matches(process, keys) or keys[:_NAMED_MAX]
    more = "" if len(known) == len(keys) else f" (of {len(keys)}; see: stellwerk definitions)"
    return Mistake(f"{refused}; deployed: {', '.join(known)}{more}")


def _wait_for_end(client: Client, instance_id: str, seconds_max: float | None) -> dict[str, Any]:
    """The instance as it is when it has ended, has an incident, or the time is up."""
    path = f"/process-instances/{segment(instance_id)}"
    deadline = float("inf") if seconds_max is None else time.monotonic() + seconds_max
    wait_ms_max = _FIRST_WAIT_MS
    while True:
        timeout_ms = int(min(max(0.0, deadline - time.monotonic()) * 1000, wait_ms_max))
        query = {"timeout_ms": timeout_ms, "or_incident": True}
        client.get(path + "/wait", query, seconds_max=timeout_ms / 1000)
        view = client.get(path)
        if view["status"] != "RUNNING" or view["incidents"] or time.monotonic() >= deadline:
            return view
        if wait_ms_max == _FIRST_WAIT_MS:
            _warn_of_unattended_work(client, view)
            wait_ms_max = _WAIT_MS_MAX
        # An engine that drains answers at once; do not run in circles until it is gone.
        time.sleep(_PAUSE_SECONDS)


def _warn_of_unattended_work(client: Client, view: Mapping[str, Any]) -> None:
    """Nobody sees from waiting alone that a worker was forgotten."""
    open_topics = {task["topic"] for task in view["tasks"] if task["state"] == "READY"}
    if not open_topics:
        return
    unattended = [row["topic"] for row in client.get("/topics")["topics"] if row["is_unattended"]]
    for topic in sorted(open_topics.intersection(unattended)):
        warn(f"waiting for a worker: none is connected for topic {topic} (see: stellwerk topics)")


def _outcome(view: dict[str, Any]) -> dict[str, Any]:
    return {name: view[name] for name in ("instance_id", "status", "variables", "incidents", "reason")}


def _say_outcome(view: dict[str, Any]) -> None:
    say(view["status"])
    for name, value in sorted(view["variables"].items()):
        say(f"  {name} = {_compact(value)}")
    if view["reason"] is not None:
        warn(one_line(view["reason"]))
    for incident in view["incidents"]:
        for line in incident_lines(incident):
            warn(line)


def _goes_on(view: Mapping[str, Any]) -> bool:
    return view["status"] == "RUNNING" and not view["incidents"]


def _warn_that_it_goes_on(instance_id: str, engine: Engine, *, is_alone: bool) -> None:
    if not is_alone:
        warn(f"still running; see: stellwerk show {instance_id}")
        return
    where, db = ("database", "postgresql://…") if engine.file is None else ("file", engine.file)
    warn(
        f"still running, and it waits as long as no engine runs on the {where}: workers, timers and messages need one "
        f"(stellwerk serve --db {db})"
    )


def _compact(value: object) -> str:
    from stellwerk.json_values import dumps

    return dumps(value).decode()


def instances(
    *,
    process: Annotated[str | None, Parameter(help="Only instances of this process.")] = None,
    version: Annotated[int | None, Parameter(help="With --process: only of this version of it.")] = None,
    status: Annotated[
        Literal["running", "completed", "failed", "cancelled"] | None,
        Parameter(help="Only these.", converter=any_case),
    ] = None,
    business_key: Annotated[str | None, Parameter(help="Only those with this business key.")] = None,
    incident: Annotated[
        bool | None,
        Parameter(negative="--no-incident", help="Only those with an open incident, or only those without."),
    ] = None,
    since: Annotated[
        str | None, Parameter(help="Started then or later: 2026-01-31T12:00:00Z, 2026-01-31, or so long ago: 2h, 3d.")
    ] = None,
    before: Annotated[str | None, Parameter(help="Started earlier than then, in the same forms.")] = None,
    limit: Annotated[int, Parameter(help="At most so many, up to 1000.")] = 50,
    after: After = None,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """List instances, the newest first.

    For example:

        stellwerk instances --status running --incident
        stellwerk instances --process order --version 3 --since 2h
        stellwerk instances --business-key A-17 --json
        stellwerk instances --before 2026-01-31 --limit 10 --db orders.db
    """
    query = {
        "status": None if status is None else status.upper(),
        **_of_definition(process, version),
        "business_key": business_key,
        "with_incident": incident,
        "started_from": instant("--since", since),
        "started_before": instant("--before", before),
        "limit": limit,
        "after": after,
    }
    with engine.open() as client:
        answer = client.get("/process-instances", query)
        page = answer["instances"]
        if not page and after is None and process is not None:
            warn_of_unknown_process(client, process, version)
    if answer["more"]:
        warn_of_more(page[-1]["instance_id"])
    print_json(page) if json else _print_instances(page)
    return 0


def _of_definition(process: str | None, version: int | None) -> dict[str, str | None]:
    if version is None:
        return {"process": process}
    if process is None:
        raise Mistake("--version: of which process? Give --process too")
    return {"definition_id": f"{process}:{version}"}


def _print_instances(page: list[dict[str, Any]]) -> None:
    rows = [
        (
            row["instance_id"],
            row["definition_id"],
            row["business_key"],
            _status(row),
            short_instant(row["started_at"])[:19],
        )
        for row in page
    ]
    columns = (
        Column("instance", "id"),
        "definition",
        "business key",
        "status",
        Column("started (UTC)", "instant"),
    )
    print_table("Instances", columns, rows)


def _status(row: Mapping[str, Any]) -> str:
    """``RUNNING, 1 incident``: what waits for somebody is not to be overlooked."""
    number = row["incidents"]
    return f"{row['status']}, {counted(number, 'incident')}" if number else str(row["status"])


def set_variables(instance: InstanceId, /, *, variables: Variables, engine: Engine = HERE) -> int:
    """Set variables of a running instance's process. The others keep their values.

    For example:

        stellwerk set-variables 0199f2a4-... --variables '{"amount": 12.5}'
    """
    given = read_object(variables)
    with engine.open() as client:
        instance_id = find_id(client, instance, INSTANCES)
        client.post(f"/process-instances/{segment(instance_id)}/variables", {"variables": given})
    say(f"set {', '.join(sorted(given)) or 'nothing'} in {instance_id}")
    return 0


def cancel(
    *ids: Annotated[str, Parameter(name="INSTANCE", help="Ids of instances, or their unique beginnings.")],
    reason: Annotated[str, Parameter(help="Goes into the history.")] = "cancelled by an operator",
    engine: Engine = HERE,
) -> int:
    """Cancel instances: their tasks are taken from the workers, nothing is compensated.

    One that cannot be cancelled keeps nobody from cancelling the others; exit code 1 in the end. Exit code 2 when none
    could be.

    For example:

        stellwerk cancel 0199f2a4-... --reason "ordered twice"
        stellwerk cancel 0199f2a4-... 0199f2a5-...
    """
    if not ids:
        raise Mistake("which instance? As in: stellwerk cancel 0199f2a4-...")
    mistakes: list[str] = []
    cancelled = 0
    with engine.open() as client:
        for given in ids:
            try:
                instance_id = find_id(client, given, INSTANCES)
                client.post(f"/process-instances/{segment(instance_id)}/cancel", {"reason": reason})
            except Mistake as mistake:
                mistakes.append(str(mistake))
            else:
                cancelled += 1
                say(f"cancelled {instance_id}")
    if mistakes:
        raise (CommandFailed if cancelled else Mistake)("\n".join(mistakes))
    return 0
