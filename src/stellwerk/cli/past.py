"""``stellwerk trace`` and ``replay``: what happened in an instance, and how it stood after each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from stellwerk.cli.client import segment
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.ids import INSTANCES, InstanceId, find_id
from stellwerk.cli.options import AsJson
from stellwerk.cli.output import (
    LEASE_COLUMNS,
    SPAN_COLUMNS,
    Column,
    print_json,
    print_table,
    say,
    say_wrapped,
    short_instant,
    span,
    wait_text,
)
from stellwerk.cli.state import print_state

__all__ = ["replay", "trace"]


def trace(instance: InstanceId, /, *, engine: Engine = HERE, json: AsJson = False) -> int:
    """Tell an instance's whole life: where each token was, and who held each task under which fence.

    By token: each node that it was at, from when to when, and what it waited for there. By task: every lease ever
    given, with the worker, the fence, and how it ended (failures and expired locks too).

    For example:

        stellwerk trace 0199f2a4-...
        stellwerk trace 0199f2a4-... --json --db orders.db
    """
    with engine.open() as client:
        answer = client.get(f"/process-instances/{segment(find_id(client, instance, INSTANCES))}/trace")
    if json:
        print_json(answer)
        return 0
    say(f"Instance {answer['instance_id']}")
    say("")
    for token in answer["tokens"]:
        _print_token(token)
    for task in answer["tasks"]:
        _print_task(task)
    return 0


def _print_token(token: Mapping[str, Any]) -> None:
    origin = token["origin"] if token["parent_id"] is None else f"{token['origin']} of {token['parent_id']}"
    into = "" if token["merged_into"] is None else f", merged into {token['merged_into']}"
    rows = [row for stay in token["stays"] for row in _stay_rows(stay)]
    columns = ("at", Column("step", "whole"), *SPAN_COLUMNS, Column("end", may_go_below=True))
    print_table(f"Token {token['token_id']} ({origin}{into})", columns, rows)


def _stay_rows(stay: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """The stay itself, then what was waited for meanwhile."""
    entered, left = stay["entered"], stay["left"]
    yield (
        stay["node_id"],
        entered["version"],
        *span(entered["at"], None if left is None else left["at"]),
        stay["end"] or "is there",
    )
    for wait in stay["waits"]:
        until = None if wait["until"] is None else wait["until"]["at"]
        what = wait_text(wait)
        end = wait["end"] or "open"
        where = "" if wait["node_id"] == stay["node_id"] else f" {wait['node_id']}"
        label = f"  {wait['kind'].replace('_', ' ')}{where}"
        yield label, wait["since"]["version"], *span(wait["since"]["at"], until), f"{end}: {what}" if what else end


def _print_task(task: Mapping[str, Any]) -> None:
    retries = f"{task['retries_left']} of {task['retries']} retries left"
    expiries = f", {task['lock_expiries']} expired locks" if task["lock_expiries"] else ""
    title = f"Task {task['element_id']} {task['task_id']}: topic {task['topic']}, {task['state']}, {retries}{expiries}"
    rows = [
        (lease["fence"], lease["worker_id"], *span(lease["since"], _end_of(lease)), _lease_end(lease))
        for lease in task["leases"]
    ]
    if rows:
        print_table(title, LEASE_COLUMNS, rows)
    else:
        say_wrapped(f"{title}, no lease yet")
        say("")
    for moment in task["requeued"]:
        say(f"  offered again in step {moment['version']}, {short_instant(moment['at'])} UTC")
    if task["requeued"]:
        say("")


def _end_of(lease: Mapping[str, Any]) -> str | None:
    until: str | None = lease["until"] or lease["locked_until"]
    return until


def _lease_end(lease: Mapping[str, Any]) -> str:
    end = "held until then" if lease["end"] == "held" else lease["end"]
    return end if lease["message"] is None else f"{end}: {lease['message']}"


def replay(
    instance: InstanceId,
    /,
    *,
    at: Annotated[int | None, Parameter(help="After this step of its history; the newest without it.")] = None,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """Show how an instance stood after a step: its history is folded from the beginning up to there.

    Tokens, scopes with their variables, and what was open. The steps stand in stellwerk show INSTANCE --history.

    For example:

        stellwerk replay 0199f2a4-... --at 3
        stellwerk replay 0199f2a4-... --json
    """
    with engine.open() as client:
        path = f"/process-instances/{segment(find_id(client, instance, INSTANCES))}/state"
        answer = client.get(path, {"at": at})
    if json:
        print_json(answer)
        return 0
    state = answer["state"]
    say_wrapped(f"Instance {state['instance_id']} after step {answer['version']} ({short_instant(answer['at'])} UTC)")
    say(f"  definition    {state['definition_id']}")
    if state["business_key"] is not None:
        say(f"  business key  {state['business_key']}")
    say(f"  status        {state['status']}")
    say("")
    print_state(state)
    return 0
