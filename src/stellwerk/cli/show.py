"""``stellwerk show``: where an instance stands and how it came there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from stellwerk.cli.client import Client, segment
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.ids import INSTANCES, InstanceId, find_id
from stellwerk.cli.layout import wrapped
from stellwerk.cli.options import AsJson, flag
from stellwerk.cli.output import (
    LEASE_COLUMNS,
    Column,
    brief_instant,
    incident_lines,
    one_line,
    print_json,
    print_table,
    print_variables,
    say,
    say_wrapped,
    short_instant,
    span,
    user_task_lines,
    width,
)
from stellwerk.cli.shortening import short_ids

__all__ = ["show"]

_DETAILS_CHARS_MIN = 36
"""Of an event in the history, beside it."""
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
    say(f"  started       {short_instant(view['started_at'])} UTC")
    if view["ended_at"] is not None:
        say(f"  ended         {short_instant(view['ended_at'])} UTC")
    if view["reason"] is not None:
        say_wrapped(one_line(f"  because       {view['reason']}"), " " * 14)
    say("")


def _print_tokens(view: Mapping[str, Any]) -> None:
    rows = [
        (token["node_id"], token["token_id"], token["status"].lower(), _waits_text(view, token))
        for token in view["tokens"]
    ]
    columns = (
        "at",
        Column("token", "inner id"),
        Column("state", "whole"),
        Column("waits for", may_go_below=True),
    )
    print_table("Tokens", columns, rows)


def _waits_text(view: Mapping[str, Any], token: Mapping[str, Any]) -> str:
    """``user task; timer too-late, due 12:00:00``: what ends its stay, and what else may happen to it there."""
    return "; ".join(_wait_text(view, token, wait) for wait in token["waits"])


def _wait_text(view: Mapping[str, Any], token: Mapping[str, Any], wait: Mapping[str, Any]) -> str:
    kind: str = wait["kind"].replace("_", " ")
    # An event at the boundary has an id of its own.
    where = "" if wait["node_id"] == token["node_id"] else f" at {wait['node_id']}"
    match wait["kind"]:
        case "external_task":
            task = next((task for task in view["tasks"] if task["task_id"] == wait["wait_id"]), None)
            return kind if task is None else f"{kind}, topic {task['topic']}"
        case "incident":
            rows = view["incidents"]
            return f"{kind} {next((row['kind'] for row in rows if row['incident_id'] == wait['wait_id']), '')}".rstrip()
        case "message":
            return f'{kind} "{wait["name"]}"{where}' + (f", key {wait['key']}" if wait["key"] else "")
        case "timer":
            return f"{kind}{where}, due {brief_instant(wait['due_at'])}"
        case _:
            return kind + where


def _print_task(task: Mapping[str, Any]) -> None:
    """The task itself, then each of its leases in order."""
    retries = f"{task['retries_left']} of {task['retries']} retries left"
    title = f"Task {task['element_id']}: topic {task['topic']}, {task['state']}, {retries}"
    leases = [_attempt_row(attempt) for attempt in task["attempts"]]
    lease = task["lease"]
    if lease is not None and all(attempt["fence"] != lease["fence"] for attempt in task["attempts"]):
        leases.append(_lease_row(task, lease))
    if not leases:
        say_wrapped(f"{title}, no lease yet")
        if task["error_message"] is not None:
            say_wrapped(one_line(f"  {task['error_message']}"))
        say("")
        return
    print_table(title, LEASE_COLUMNS, leases)


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
    """Step by step: what a step has in common stands in its first line only."""
    history = view["history"]
    details = [one_line(_what(entry["payload"])) for entry in history]
    if width() is not None:
        details = short_ids(details)
    event_width = max((len(entry["event_type"]) for entry in history), default=0)
    version = None
    say("History" if history else "History: none")
    for entry, what in zip(history, details, strict=True):
        if entry["version"] != version:
            version = entry["version"]
            say(f"  step {version}, {short_instant(entry['occurred_at'])} UTC")
        _say_event(f"  {entry['sequence']:>5}  {entry['event_type']:<{event_width}}  ", what)
    say("")


def _say_event(head: str, what: str) -> None:
    """The details beside it, or below it where that would be too narrow."""
    room = width()
    if room is None or room - len(head) >= _DETAILS_CHARS_MIN:
        first, *others = wrapped(what, None if room is None else room - len(head))
        say(f"{head}{first}".rstrip())
        for line in others:
            say(f"{' ' * len(head)}{line}")
        return
    say(head.rstrip())
    say_wrapped(f"         {what}", "")


def _what(payload: Mapping[str, Any]) -> str:
    """What it is about first, ids last."""
    told = [(name, value) for name, value in payload.items() if value not in (None, [], {})]
    told.sort(key=lambda field: (field[0] != "node_id", field[0].endswith(("_id", "_token"))))
    return " ".join(f"{_label(name)}={_value_text(name, value)}" for name, value in told)


def _label(name: str) -> str:
    return name.removesuffix("_ms") if name.endswith("_at_ms") else name


def _value_text(name: str, value: object) -> str:
    from stellwerk.instants import to_rfc3339
    from stellwerk.json_values import dumps

    if name.endswith("_at_ms") and isinstance(value, int):
        return to_rfc3339(value)
    return value if isinstance(value, str) else dumps(value).decode()
