"""``stellwerk tasks``, ``topics``, ``workers`` and ``nodes``: the work, who takes it, and who hands it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from stellwerk.cli.client import Client
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.ids import INSTANCES, find_id
from stellwerk.cli.lists import ROWS_DEFAULT
from stellwerk.cli.options import After, AsJson, Limit, OfInstance, any_case
from stellwerk.cli.output import (
    Column,
    brief_instant,
    print_json,
    print_table,
    short_instant,
    warn,
    warn_of_more,
    width,
)
from stellwerk.cli.times import age, duration_text
from stellwerk.cli.unknown import warn_of_unknown_topic

__all__ = ["has_live_node", "nodes", "tasks", "topics", "warn_of_unattended", "workers"]

_SILENT_MS = 15_000
"""A node reports every 5 s."""
_GONE_MS = 60_000
_WIDE_COLUMNS = 140
"""There is room for all that is known of a node; and in a pipe or file."""

_TOPIC_FIGURES = ("ready", "backing off", "locked", "oldest", "workers", "free")
_State = Literal["ready", "locked", "completed", "failed", "expired", "cancelled"]


def tasks(
    *,
    instance: OfInstance = None,
    topic: Annotated[str | None, Parameter(help="Only those of this topic.")] = None,
    state: Annotated[_State | None, Parameter(help="Only those in this state.", converter=any_case)] = None,
    worker_id: Annotated[str | None, Parameter(help="Only those that this worker has locked.")] = None,
    limit: Limit = ROWS_DEFAULT,
    after: After = None,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """List external tasks, the oldest first: where each stands, and who has it.

    For example:

        stellwerk tasks --topic charge-card --state ready
        stellwerk tasks --instance 0199f2a4-... --json
        stellwerk tasks --worker-id billing-1
    """
    with engine.open() as client:
        query = {
            "instance_id": None if instance is None else find_id(client, instance, INSTANCES),
            "topic": topic,
            "state": None if state is None else state.upper(),
            "worker_id": worker_id,
            "limit": limit,
            "after": after,
        }
        answer = client.get("/external-tasks", query)
        rows = answer["tasks"]
        if not rows and after is None and topic is not None:
            warn_of_unknown_topic(client, topic)
    if answer["more"]:
        warn_of_more(rows[-1]["task_id"])
    if json:
        print_json(rows)
        return 0
    columns = (
        Column("task", "id"),
        "element",
        "topic",
        Column("state", "whole"),
        Column("retries", "whole"),
        Column("what", may_go_below=True),
    )
    cells = [
        (
            row["task_id"],
            row["element_id"],
            row["topic"],
            row["state"],
            f"{row['retries_left']}/{row['retries']}",
            _what(row),
        )
        for row in rows
    ]
    print_table("External tasks", columns, cells)
    return 0


def _what(row: Mapping[str, Any]) -> str:
    lease = row["lease"]
    if row["state"] == "LOCKED" and lease is not None:
        return f"{lease['worker_id']}, fence {lease['fence']}, until {brief_instant(lease['until'])}"
    if row["state"] == "READY":
        failed = f"after: {row['error_message']}" if row["error_message"] else ""
        return f"since {brief_instant(row['available_at'])} {failed}".rstrip()
    return row["error_message"] or ""


def topics(*, engine: Engine = HERE, json: AsJson = False) -> int:
    """List topics: what waits, how long, and who is connected for it.

    "NO WORKER" marks READY work that nobody is connected for: it waits until somebody is. (With --db on a file
    nobody ever is.)

    For example:

        stellwerk topics
        stellwerk topics --json | jq '.[] | select(.is_unattended) | .topic'
    """
    with engine.open() as client:
        rows = client.get("/topics")["topics"]
    if json:
        print_json(rows)
        return 0
    columns = (Column("topic"), *(Column(name, "whole") for name in _TOPIC_FIGURES), Column("", "whole"))
    cells = [
        (
            row["topic"],
            row["ready"],
            row["backing_off"],
            row["locked"],
            age(row["oldest_ready_at"]),
            row["workers"],
            row["free"],
            "NO WORKER" if row["is_unattended"] else "",
        )
        for row in rows
    ]
    print_table("Topics", columns, cells)
    return 0


def has_live_node(client: Client) -> bool:
    """Whether anything happens in the database that is asked for by itself."""
    return any(row["seen_ms_ago"] <= _SILENT_MS for row in client.get("/nodes")["nodes"])


def warn_of_unattended(unattended: list[str]) -> None:
    if unattended:
        warn(f"READY work without a connected worker: {', '.join(unattended)}")


def workers(*, engine: Engine = HERE, json: AsJson = False) -> int:
    """List the workers that are connected now, to whichever node, and how much of each topic they hold.

    Where there are several nodes, "held" is as old as the last report of the worker's node: a few seconds at most. Of
    a worker that polls it is all that it has locked, whichever node it asked; "most" is for how many it asked last.

    For example:

        stellwerk workers
    """
    with engine.open() as client:
        rows = client.get("/workers")["workers"]
        has_nodes = not json and len(client.get("/nodes")["nodes"]) > 1
    if json:
        print_json(rows)
        return 0
    columns: list[str | Column] = [
        Column("worker", "worker"),
        *([Column("node", "worker")] if has_nodes else []),
        "client",
        Column("connected (UTC)", "instant"),
        "topics (held/most)",
    ]
    cells = [
        (
            row["worker_id"],
            *([row["node"]] if has_nodes else []),
            row["client"],
            short_instant(row["connected_at"])[:19],
            ", ".join(f"{topic['topic']} {topic['held']}/{topic['max_tasks']}" for topic in row["topics"]),
        )
        for row in rows
    ]
    print_table("Workers", columns, cells)
    return 0


def nodes(*, engine: Engine = HERE, json: AsJson = False) -> int:
    """List the engine's nodes: one on a file, any number on PostgreSQL, whichever of them is asked.

    "seen" is how long ago it reported, which it does every 5 seconds, "up" how long it runs; "commits/s" is since its
    start. A node that has not been heard of for 15 seconds is SILENT: dead, or cut off from the database. After a
    minute it is GONE, and after a day it is not shown any more. In a terminal of 140 columns there are also its URL and
    version, how many operations one commit took on average, and how long the last one took ("store").

    For example:

        stellwerk nodes
        stellwerk nodes --db postgresql://stellwerk@db.example/orders
    """
    with engine.open() as client:
        rows = client.get("/nodes")["nodes"]
    if json:
        print_json(rows)
        return 0
    figures = ("seen", "up", "workers", "leases", "instances", "commits/s", "state")
    columns: list[str | Column] = ["node", *(Column(name, "whole") for name in figures)]
    cells = [_node_cells(row) for row in rows]
    if (width() or _WIDE_COLUMNS) >= _WIDE_COLUMNS:
        columns += [Column("operations", "whole"), Column("store", "whole"), "version", "url"]
        cells = [(*brief, *_further_cells(row)) for brief, row in zip(cells, rows, strict=True)]
    print_table("Nodes", columns, cells)
    return 0


def _node_cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        row["name"],
        duration_text(row["seen_ms_ago"]),
        age(row["started_at"]),
        row["workers"],
        row["leases"],
        row["instances_live"],
        row["commits_per_second"],
        _node_state(row),
    )


def _further_cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (row["operations_per_commit"], f"{row['store_ms']:g} ms", row["version"], row["url"] or "")


def _node_state(row: Mapping[str, Any]) -> str:
    if row["seen_ms_ago"] > _GONE_MS:
        return "GONE"
    if row["seen_ms_ago"] > _SILENT_MS:
        return "SILENT"
    return "draining" if row["is_draining"] else "up"
