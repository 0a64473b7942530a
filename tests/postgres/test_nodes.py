"""Which nodes a database knows: what `stellwerk nodes` shows, and whether there is anybody to tell hints to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
import attrs
import pytest

from stellwerk.ports import NodeReport, NodeRow, SessionReport, SubscriptionReport, TopicReport
from stellwerk.stores.postgres.bridge import Bridge
from stellwerk.stores.postgres.nodes import Nodes

T = TypeVar("T")
Use = Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]]

REPORT = NodeReport(
    node_id="node-a",
    name="host:4711 \0 “quoted”",
    url="http://host:8080",
    version="0.1.0",
    started_at_ms=1_767_225_600_000,
    is_draining=False,
    workers=3,
    leases=96,
    instances_live=1_000,
    commits=2**40,
    operations=2**50,
    store_ms=1.25,
    sessions=(
        SessionReport(
            worker_id="billing “one” \0",
            session_id="00000000-0000-4000-8000-000000000001",
            client="stellwerk-python/0.1.0",
            connected_at_ms=1_767_225_600_001,
            subscriptions=(SubscriptionReport("charge", 8, 3), SubscriptionReport("refund", 0, 1)),
        ),
        SessionReport(
            worker_id="puller",
            session_id="00000000-0000-4000-8000-000000000002",
            client="",
            connected_at_ms=1_767_225_600_002,
            subscriptions=(),
            polls=True,
        ),
    ),
    topics=(TopicReport("charge", 3, 5),),
)


@pytest.fixture
async def use(postgres_dsn: str) -> AsyncIterator[Use]:
    """Hands a connection to a coroutine of asyncio."""
    bridge = await Bridge.open()
    connection = await bridge.run(lambda: asyncpg.connect(postgres_dsn))

    async def run(work: Callable[[Any], Awaitable[T]]) -> T:
        async def on_loop() -> T:
            return await work(connection)

        return await bridge.run(on_loop)

    yield run
    await bridge.run(connection.close)
    await bridge.close()


async def report(use: Use, nodes: Nodes, node_id: str) -> list[str]:
    """→ which nodes are known then."""
    await use(lambda connection: nodes.report_node(connection, attrs.evolve(REPORT, node_id=node_id)))
    return [row.report.node_id for row in await use(nodes.nodes)]


async def age(use: Use, node_id: str, by_ms: int) -> None:
    statement = "UPDATE stellwerk.nodes SET seen_at_ms = seen_at_ms - $2 WHERE node_id = $1"
    await use(lambda connection: connection.execute(statement, node_id, by_ms))


async def test_a_report_comes_back_as_it_was(use: Use) -> None:
    nodes = Nodes()
    await report(use, nodes, "node-a")
    [row] = await use(nodes.nodes)
    assert row.report == REPORT
    assert 0 <= row.seen_ms_ago < 10_000


async def test_nodes_know_each_other_until_they_say_goodbye(use: Use) -> None:
    a, b = Nodes(), Nodes()
    assert await report(use, b, "node-b") == ["node-b"]
    assert not b.others_known()
    assert await report(use, a, "node-a") == ["node-a", "node-b"]
    assert a.others_known()
    await report(use, b, "node-b")
    assert b.others_known()
    await use(lambda connection: a.forget_node(connection, "node-a"))
    assert await report(use, b, "node-b") == ["node-b"]
    assert not b.others_known()


async def test_who_was_not_heard_of_for_a_minute_is_shown_but_does_not_count(use: Use) -> None:
    a, b = Nodes(), Nodes()
    await report(use, a, "node-a")
    await age(use, "node-a", 61_000)
    assert await report(use, b, "node-b") == ["node-a", "node-b"]
    assert not b.others_known()
    rows: list[NodeRow] = list(await use(b.nodes))
    assert rows[0].seen_ms_ago >= 61_000
    # It was only slow.
    await report(use, a, "node-a")
    await report(use, b, "node-b")
    assert b.others_known()


async def test_a_node_seen_in_the_future_was_seen_now(use: Use) -> None:
    """The database's clock was set back."""
    nodes = Nodes()
    await report(use, nodes, "node-a")
    await age(use, "node-a", -3_600_000)
    [row] = await use(nodes.nodes)
    assert row.seen_ms_ago == 0


@pytest.mark.parametrize(
    ("written", "workers"),
    [
        ({"workers": 7, "weather": {"is": "fine"}, "name": "newer", "sessions": [{"worker_id": "w", "mood": 1}]}, 7),
        ({"name": "older"}, 0),
        ({"workers": {"busy": 3, "idle": 4}}, 0),
        ("busy", 0),
    ],
    ids=["newer", "older", "of another shape", "no object"],
)
async def test_a_node_of_another_version_is_a_node(use: Use, written: object, workers: int) -> None:
    statement = "INSERT INTO stellwerk.nodes VALUES ('node-x', 5, stellwerk.now_ms(), $1)"
    await use(lambda connection: connection.execute(statement, json.dumps(written)))
    nodes = Nodes()
    assert await report(use, nodes, "node-a") == ["node-a", "node-x"]
    assert nodes.others_known()
    foreign = (await use(nodes.nodes))[1].report
    assert (foreign.started_at_ms, foreign.workers) == (5, workers)
    assert not foreign.tells_all_topics
    assert [session.worker_id for session in foreign.sessions] == (["w"] if workers else [])


async def test_figures_that_are_no_numbers_do_not_hide_a_node(use: Use) -> None:
    nodes = Nodes()
    await use(lambda connection: nodes.report_node(connection, attrs.evolve(REPORT, store_ms=float("nan"))))
    [row] = await use(nodes.nodes)
    assert row.report == attrs.evolve(REPORT, store_ms=0.0)
