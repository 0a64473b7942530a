"""``stellwerk show``: where an instance stands and how it came there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from stellwerk.cli.client import EngineClient, segment
from stellwerk.cli.ids import INSTANCES, InstanceId, find_id
from stellwerk.cli.options import URL_DEFAULT, AsJson, Url
from stellwerk.cli.output import (
    incident_lines,
    print_json,
    print_table,
    say,
    short_instant,
    user_task_lines,
)

__all__ = ["show"]

_LINES_MAX = 12
"""Of the last failure's details."""


def show(
    instance: InstanceId,
    /,
    *,
    history: Annotated[bool, Parameter(negative=(), help="Also every step and every failure.")] = False,
    url: Url = URL_DEFAULT,
    json: AsJson = False,
) -> int:
    """Show an instance: its tokens, variables, and the life of each of its tasks.

    For example:

        stellwerk show 0199f2a4-...
        stellwerk show 0199f2a4-... --history
        stellwerk show 0199f2a4-... --json
    """
    client = EngineClient(url)
    view = client.get(f"/instances/{segment(find_id(client, instance, INSTANCES))}", {"history": history})
    if json:
        print_json(view)
        return 0
    _say_summary(view)
    _print_tokens(view)
    _print_variables(view)
    for task in view["tasks"]:
        _print_task(task)
    _say_failures(view, every=history)
    _say_waiting(view)
    if history:
        _print_history(view)
    return 0


def _say_summary(view: Mapping[str, Any]) -> None:
    say(f"Instance {view['instance_id']}")
    say(f"  definition    {view['definition_id']}")
    if view["business_key"] is not None:
        say(f"  business key  {view['business_key']}")
    say(f"  status        {view['status']}")
    say(f"  started       {short_instant(view['started_at'])}")
    if view["ended_at"] is not None:
        say(f"  ended         {short_instant(view['ended_at'])}")
    if view["reason"] is not None:
        say(f"  because       {view['reason']}")
    say("")


def _print_tokens(view: Mapping[str, Any]) -> None:
    rows = [(token["node_id"], token["token_id"], token["status"].lower()) for token in view["tokens"]]
    print_table("Tokens", ("at", "token", "state"), rows)


def _print_variables(view: Mapping[str, Any]) -> None:
    from stellwerk.json_values import dumps

    rows = [(name, dumps(value).decode()) for name, value in sorted(view["variables"].items())]
    print_table("Variables", ("name", "value"), rows)


def _print_task(task: Mapping[str, Any]) -> None:
    """The task itself, then each of its leases in order."""
    retries = f"{task['retries_left']} of {task['retries']} retries left"
    title = f"Task {task['element_id']}: topic {task['topic']}, {task['state']}, {retries}"
    leases = [_attempt_row(attempt) for attempt in task["attempts"]]
    lease = task["lease"]
    if lease is not None and all(attempt["fence"] != lease["fence"] for attempt in task["attempts"]):
        leases.append(_lease_row(task, lease))
    if not leases:
        say(f"{title}, no lease yet")
        if task["error_message"] is not None:
            say(f"  {task['error_message']}")
        say("")
        return
    print_table(title, ("fence", "worker", "from (UTC)", "to", "end"), leases, whole=("fence", "from (UTC)", "to"))


def _attempt_row(attempt: Mapping[str, Any]) -> tuple[object, ...]:
    end = attempt["end"] if attempt["message"] is None else f"{attempt['end']}: {attempt['message']}"
    return (attempt["fence"], attempt["worker_id"], *_span(attempt["since"], attempt["ended_at"]), end)


def _lease_row(task: Mapping[str, Any], lease: Mapping[str, Any]) -> tuple[object, ...]:
    held = task["state"] == "LOCKED"
    end = "held until then" if held else task["outcome"] or task["state"].lower()
    until = lease["until"] if held else task["updated_at"]
    return (lease["fence"], lease["worker_id"], *_span(lease["since"], until), end)


def _span(since: str, until: str) -> tuple[str, str]:
    """Without the date of the end where it is the same."""
    start, end = short_instant(since), short_instant(until)
    return start, end.removeprefix(start[: len("2026-01-01 ")])


def _say_failures(view: Mapping[str, Any], *, every: bool) -> None:
    """What handlers reported beside the message: tracebacks, mostly."""
    failures = [
        (attempt["ended_at"], task["element_id"], attempt)
        for task in view["tasks"]
        for attempt in task["attempts"]
        if attempt["details"] is not None
    ]
    failures.sort(key=lambda failure: failure[0])
    for _, element_id, attempt in failures if every else failures[-1:]:
        say(f"{'Failure' if every else 'Last failure'} at {element_id}, fence {attempt['fence']}")
        lines = _detail_lines(attempt["details"])
        left_out = 0 if every else max(0, len(lines) - _LINES_MAX)
        if left_out:
            say(f"  … {left_out} lines more: --history")
        for line in lines[left_out:]:
            say(f"  {line}")
        say("")


def _detail_lines(details: object) -> list[str]:
    from stellwerk.json_values import dumps

    match details:
        case {"traceback": str(text)} | str(text):
            return text.rstrip().splitlines()
        case _:
            return [dumps(details).decode()]


def _say_waiting(view: Mapping[str, Any]) -> None:
    found = [*map(user_task_lines, view["user_tasks"]), *map(incident_lines, view["incidents"])]
    for lines in found:
        for line in lines:
            say(line)
        say("")


def _print_history(view: Mapping[str, Any]) -> None:
    rows = [
        (step["version"] if number == 0 else "", short_instant(step["at"]) if number == 0 else "", *_fact_cells(fact))
        for step in view["history"]
        for number, fact in enumerate(step["facts"])
    ]
    print_table("History", ("step", "at (UTC)", "fact", "what"), rows)


def _fact_cells(fact: Mapping[str, Any]) -> tuple[str, str]:
    from stellwerk.json_values import dumps

    details = [
        f"{name}={value if isinstance(value, str) else dumps(value).decode()}"
        for name, value in fact.items()
        if name != "fact" and value not in (None, [], {})
    ]
    return str(fact["fact"]), " ".join(details)
