"""The state of an instance as tables: tokens, scopes with their variables, and what is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stellwerk.cli.layout import Kind
from stellwerk.cli.output import Column, print_table, print_variables, short_instant

__all__ = ["print_state"]


_TAKEN_BY_COMMANDS = ("Open user tasks", "Incidents")


def print_state(state: Mapping[str, Any]) -> None:
    """:param state: as ``GET /process-instances/{id}/state`` gives it."""
    tokens = [
        (token["node_id"], token["id"], _scope_name(state, token["scope_id"]), token["status"].lower())
        for token in _all(state, "tokens")
    ]
    print_table("Tokens", ("at", Column("token", "inner id"), "scope", Column("state", "whole")), tokens)
    for scope in _all(state, "scopes"):
        title = f"Variables of {_scope_name(state, scope['id'])}"
        print_variables(scope["variables"], title)
    for title, rows in _open_things(state):
        if rows:
            kind: Kind = "id" if title in _TAKEN_BY_COMMANDS else "inner id"
            print_table(title, ("at", Column("id", kind), Column("what", may_go_below=True)), rows)


def _all(state: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    return list(state[name].values())


def _scope_name(state: Mapping[str, Any], scope_id: str) -> str:
    """The process itself, or the subprocess or activity whose scope it is."""
    if scope_id == state["root_scope_id"]:
        return "the process"
    scope = state["scopes"].get(scope_id)
    node_id = None if scope is None else scope["node_id"]
    return f"scope {scope_id}" if node_id is None else f"{node_id} (scope {scope_id})"


def _open_things(state: Mapping[str, Any]) -> Sequence[tuple[str, Sequence[Sequence[object]]]]:
    tasks = [
        (_node_of(state, task["activity_id"]), task_id, _task_state(task)) for task_id, task in state["tasks"].items()
    ]
    user_tasks = [(_node_of(state, activity_id), id_, "") for id_, activity_id in state["user_tasks"].items()]
    timers = [(timer["node_id"], timer["id"], f"due {_instant(timer['due_at_ms'])}") for timer in _all(state, "timers")]
    messages = [(wait["node_id"], wait["id"], _message(wait)) for wait in _all(state, "subscriptions")]
    incidents = [(incident["node_id"], incident["id"], incident["kind"]) for incident in _all(state, "incidents")]
    compensations = [(_thrower(state, run), run["id"], _pending(run)) for run in _all(state, "compensations")]
    return [
        ("Open external tasks", tasks),
        ("Open user tasks", user_tasks),
        ("Timers", timers),
        ("Awaited messages", messages),
        ("Incidents", incidents),
        ("Compensations", compensations),
    ]


def _node_of(state: Mapping[str, Any], activity_id: str) -> str:
    activity = state["activities"].get(activity_id)
    return "" if activity is None else str(activity["node_id"])


def _task_state(task: Mapping[str, Any]) -> str:
    return "failed, an incident waits" if task["failed"] else "ends with its scope" if task["draining"] else "open"


def _message(wait: Mapping[str, Any]) -> str:
    return f"{wait['name']}, key {wait['key']}" if wait["key"] else str(wait["name"])


def _thrower(state: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    token = state["tokens"].get(run["thrower_id"] or "")
    return "" if token is None else str(token["node_id"])


def _pending(run: Mapping[str, Any]) -> str:
    return f"to be undone: {', '.join(activity['node_id'] for activity in run['pending'])}"


def _instant(milliseconds: int) -> str:
    from stellwerk.instants import to_rfc3339

    return f"{short_instant(to_rfc3339(milliseconds))} UTC"
