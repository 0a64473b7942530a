"""``stellwerk show``: where an instance stands and how it came there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from stellwerk.cli.client import EngineClient, segment
from stellwerk.cli.options import URL_DEFAULT, AsJson, Url
from stellwerk.cli.output import print_json, print_table, reason_of_end, say, short_instant

__all__ = ["show"]


def show(
    instance: Annotated[str, Parameter(help="Id of the instance.")],
    /,
    *,
    history: Annotated[bool, Parameter(negative=(), help="Also every step that it took.")] = False,
    url: Url = URL_DEFAULT,
    json: AsJson = False,
) -> int:
    """Show an instance: its tokens, variables, and the life of each of its tasks.

    For example:

        stellwerk show 0199f2a4-...
        stellwerk show 0199f2a4-... --history
        stellwerk show 0199f2a4-... --json
    """
    view = EngineClient(url).get(f"/instances/{segment(instance)}")
    if json:
        print_json(view if history else {name: value for name, value in view.items() if name != "history"})
        return 0
    _say_summary(view)
    _print_tokens(view)
    _print_variables(view)
    _print_tasks(view)
    _print_waiting(view)
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
    reason = reason_of_end(view)
    if reason is not None:
        say(f"  because       {reason}")
    say("")


def _print_tokens(view: Mapping[str, Any]) -> None:
    rows = [(token["node_id"], token["token_id"], token["status"].lower()) for token in view["tokens"]]
    print_table("Tokens", ("at", "token", "state"), rows)


def _print_variables(view: Mapping[str, Any]) -> None:
    from stellwerk.json_values import dumps

    rows = [(name, dumps(value).decode()) for name, value in sorted(view["variables"].items())]
    print_table("Variables", ("name", "value"), rows)


def _print_tasks(view: Mapping[str, Any]) -> None:
    rows = [row for task in view["tasks"] for row in _task_rows(task)]
    print_table(
        "Tasks", ("element", "topic", "state", "retries left", "lease", "worker", "from (UTC)", "to (UTC)", "end"), rows
    )


def _task_rows(task: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """One row for the task itself, then one for each of its leases in order."""
    head = (task["element_id"], task["topic"], task["state"], f"{task['retries_left']} of {task['retries']}")
    leases = [_attempt_row(attempt) for attempt in task["attempts"]]
    lease = task["lease"]
    if lease is not None and all(attempt["fence"] != lease["fence"] for attempt in task["attempts"]):
        leases.append(_lease_row(task, lease))
    if not leases:
        return [(*head, "", "", short_instant(task["created_at"]), "", task["error_message"])]
    first, *others = leases
    return [(*head, *first), *(("", "", "", "", *other) for other in others)]


def _attempt_row(attempt: Mapping[str, Any]) -> tuple[object, ...]:
    end = attempt["end"] if attempt["message"] is None else f"{attempt['end']}: {attempt['message']}"
    times = (short_instant(attempt["since"]), short_instant(attempt["ended_at"]))
    return (attempt["fence"], attempt["worker_id"], *times, end)


def _lease_row(task: Mapping[str, Any], lease: Mapping[str, Any]) -> tuple[object, ...]:
    held = task["state"] == "LOCKED"
    end = "held until then" if held else task["outcome"] or task["state"].lower()
    until = lease["until"] if held else task["updated_at"]
    return (lease["fence"], lease["worker_id"], short_instant(lease["since"]), short_instant(until), end)


def _print_waiting(view: Mapping[str, Any]) -> None:
    if view["user_tasks"]:
        rows = [
            (task["user_task_id"], task["element_id"], task["name"], task["assignee"]) for task in view["user_tasks"]
        ]
        print_table("User tasks", ("user task", "element", "name", "assignee"), rows)
    if view["incidents"]:
        found = [(row["incident_id"], row["kind"], row["element_id"], row["message"]) for row in view["incidents"]]
        print_table("Incidents", ("incident", "kind", "element", "message"), found)


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
