"""What the nodes of one database say of themselves (table ``nodes``), for operators.

All that runs takes from it who is connected to other nodes, and whether there is anybody to tell hints to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from stellwerk.ports import NodeReport, NodeRow, SessionReport, SubscriptionReport, TopicReport

__all__ = ["SEEN_MS_MAX", "Nodes"]

SEEN_MS_MAX = 60_000
"""Who was not heard of for so long does not count as alive."""
_ROWS_MAX = 1_000

_REPORT = """
INSERT INTO stellwerk.nodes (node_id, started_at_ms, seen_at_ms, report) VALUES ($1, $2, stellwerk.now_ms(), $3)
ON CONFLICT (node_id) DO UPDATE
SET started_at_ms = excluded.started_at_ms, seen_at_ms = excluded.seen_at_ms, report = excluded.report"""
_OTHERS = """
SELECT EXISTS (
    SELECT 1 FROM stellwerk.nodes, (SELECT stellwerk.now_ms() AS now_ms OFFSET 0) AS clock
    WHERE node_id <> $1 AND seen_at_ms >= now_ms - $2)"""
_NODES = """
SELECT node_id, started_at_ms, report, greatest(0, now_ms - seen_at_ms) AS seen_ms_ago
FROM stellwerk.nodes, (SELECT stellwerk.now_ms() AS now_ms OFFSET 0) AS clock
ORDER BY node_id LIMIT $1"""
_FORGET = "DELETE FROM stellwerk.nodes WHERE node_id = $1"


class Nodes:
    """The table, and what this node knows from it."""

    def __init__(self) -> None:
        self._others = False

    def others_known(self) -> bool:
        """Whether another node was alive when this one reported last."""
        return self._others

    async def report_node(self, connection: asyncpg.Connection, report: NodeReport) -> None:
        """Two statements; may be repeated, and need not be one transaction."""
        text = msgspec.json.encode(_Report.of(report)).decode()
        await connection.execute(_REPORT, report.node_id, report.started_at_ms, text)
        self._others = await connection.fetchval(_OTHERS, report.node_id, SEEN_MS_MAX)

    async def nodes(self, connection: asyncpg.Connection) -> Sequence[NodeRow]:
        """All that have not said goodbye, by id: also those that died within the last day."""
        return [_node_row(row) for row in await connection.fetch(_NODES, _ROWS_MAX)]

    async def forget_node(self, connection: asyncpg.Connection, node_id: str) -> None:
        await connection.execute(_FORGET, node_id)


class _Subscription(msgspec.Struct):
    topic: str = ""
    max_tasks: int = 0
    held: int = 0

    def report(self) -> SubscriptionReport:
        return SubscriptionReport(self.topic, self.max_tasks, self.held)


class _Session(msgspec.Struct):
    worker_id: str = ""
    session_id: str = ""
    client: str = ""
    connected_at_ms: int = 0
    subscriptions: list[_Subscription] = []
    polls: bool = False

    def report(self) -> SessionReport:
        return SessionReport(
            worker_id=self.worker_id,
            session_id=self.session_id,
            client=self.client,
            connected_at_ms=self.connected_at_ms,
            subscriptions=tuple([one.report() for one in self.subscriptions]),
            polls=self.polls,
        )


class _Topic(msgspec.Struct):
    topic: str = ""
    workers: int = 0
    free: int = 0

    def report(self) -> TopicReport:
        return TopicReport(self.topic, self.workers, self.free)


class _Report(msgspec.Struct, kw_only=True):
    """The column ``report``. Each field has a default, and unknown ones are skipped: nodes of other versions write it,
    too."""

    name: str = ""
    url: str | None = None
    version: str = ""
    is_draining: bool = False
    workers: int = 0
    leases: int = 0
    instances_live: int = 0
    commits: int = 0
    operations: int = 0
    store_ms: float | None = 0.0
    """None in JSON: it was no number."""
    sessions: list[_Session] = []
    topics: list[_Topic] = []
    tells_all_topics: bool = False

    @classmethod
    def of(cls, report: NodeReport) -> _Report:
        return cls(**{name: getattr(report, name) for name in cls.__struct_fields__})

    def report(self, node_id: str, started_at_ms: int) -> NodeReport:
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        values["store_ms"] = self.store_ms or 0.0
        values["sessions"] = tuple([session.report() for session in self.sessions])
        values["topics"] = tuple([topic.report() for topic in self.topics])
        return NodeReport(node_id=node_id, started_at_ms=started_at_ms, **values)


def _node_row(row: Any) -> NodeRow:
    try:
        report = msgspec.json.decode(row["report"], type=_Report)
    except msgspec.MsgspecError:
        report = _Report()  # a version that says it in another way is a node all the same
    return NodeRow(report=report.report(row["node_id"], row["started_at_ms"]), seen_ms_ago=row["seen_ms_ago"])
