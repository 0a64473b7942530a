"""``stellwerk show``: where an instance stands and how it came there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from stellwerk.cli.client import Client, segment
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.ids import INSTANCES, InstanceId, find_id
from stellwerk.cli.options import AsJson, flag
from stellwerk.cli.output import (
    incident_lines,
    print_json,
    print_table,
    print_variables,
    say,
    short_instant,
    span,
    user_task_lines,
)

__all__ = ["show"]

_LINES_MAX = 12
"""Of the last failure's details."""


def show(
    instance: InstanceId,
    /,
    *,
    history: Annotated[bool, flag(help="Also every step and every failure.")] = False,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """Show an instance: its tokens, variables, and the life of each of its tasks.

    How it came there: stellwerk trace. What it was like earlier: stellwerk replay.

    For example:

        stellwerk show 0199f2a4-...
        stellwerk show 0199f2a4-... --history
        stellwerk show 0199f2a4-... --json --db orders.db
    """
    with engine.open() as client:
        path = f"/process-instances/{segment(find_id(client, instance, INSTANCES))}"
        view = client.get(path)
        if history:
            view["history"] = list(_history(client, path))
    if json:
        print_json(view)
        return 0
    _say_summary(view)
    _print_tokens(view)
    print_variables(view["variables"])
    for task in view["tasks"]:
        _print_task(task)
    _say_failures(view, every=history)
    _say_waiting(view)
    if history:
        _print_history(view)
    return 0


def _history(client: Client, path: str) -> Iterator[Mapping[str, Any]]:
    for page in client.pages(f"{path}/history", "history", {}, "sequence"):
        yield from page


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
    return (attempt["fence"], attempt["worker_id"], *span(attempt["since"], attempt["ended_at"]), end)


def _lease_row(task: Mapping[str, Any], lease: Mapping[str, Any]) -> tuple[object, ...]:
    held = task["state"] == "LOCKED"
    outcome = "completed" if task["outcome"] == "complete" else task["outcome"]  # as `trace` says it
    end = "held until then" if held else outcome or task["state"].lower()
    until = lease["until"] if held else task["updated_at"]
    return (lease["fence"], lease["worker_id"], *span(lease["since"], until), end)


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
    rows = []
    version = None
    for entry in view["history"]:
        # What a step has in common stands in its first line only.
        is_new = entry["version"] != version
        version = entry["version"]
        step = (version, short_instant(entry["occurred_at"])) if is_new else ("", "")
        rows.append((entry["sequence"], *step, entry["event_type"], _what(entry["payload"])))
    print_table("History", ("no.", "step", "at (UTC)", "event", "what"), rows)


def _what(payload: Mapping[str, Any]) -> str:
    from stellwerk.json_values import dumps

    return " ".join(
        f"{name}={value if isinstance(value, str) else dumps(value).decode()}"
        for name, value in payload.items()
        if value not in (None, [], {})
    )
