"""Figures for Prometheus, and the list of nodes, over HTTP."""

from __future__ import annotations

from typing import Any

import attrs
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from stellwerk.app import ServedEngine, open_engine
from stellwerk.server.http.figures import figures_of
from stellwerk.server.http.metrics import Metrics

ANY_TOPIC = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="any" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="work"/>
    <serviceTask id="work" stellwerk:topic="=topic"/>
    <sequenceFlow id="f2" sourceRef="work" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""


@attrs.frozen
class Scraped:
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]

    def of(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for known, labels in self.samples if known == name]


def read(text: str) -> Scraped:
    return Scraped(
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


async def scrape(client: Any) -> Scraped:
    reply = await client.get("//metrics")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return read(reply.body)


async def test_commits_are_counted_with_sizes_and_durations(deployed: Any, engine: ServedEngine) -> None:
    for _ in range(3):
        await deployed.start("order")
    scraped = await scrape(deployed)
    (labels,) = scraped.of("stellwerk_commits_total")
    commits = scraped.value("stellwerk_commits_total", **labels)
    operations = scraped.value("stellwerk_operations_total", **labels)
    assert 4 <= commits <= operations
    assert scraped.value("stellwerk_commit_operations_count", **labels) == commits
    assert scraped.value("stellwerk_commit_operations_sum", **labels) == operations
    assert scraped.value("stellwerk_commit_operations_bucket", le="+Inf", **labels) == commits
    assert scraped.value("stellwerk_store_seconds_count", **labels) == commits
    assert scraped.value("stellwerk_instances_live", **labels) == 3
    assert scraped.value("stellwerk_failed_transactions_total", **labels) == 0
    version = engine.node.config.identity.version
    assert scraped.value("stellwerk_node_info", version=version, **labels) == 1


async def test_backlog_tells_what_waits_and_who_is_missing(
    deployed: Any, engine: ServedEngine, connect_worker: Any
) -> None:
    for _ in range(3):
        await deployed.start("order")
    scraped = await scrape(deployed)
    assert scraped.value("stellwerk_tasks", topic="charge", state="ready") == 3
    assert scraped.value("stellwerk_tasks", topic="charge", state="locked") == 0
    assert 0 <= scraped.value("stellwerk_oldest_ready_seconds", topic="charge") < 10
    assert scraped.value("stellwerk_topic_unattended", topic="charge") == 1
    assert scraped.value("stellwerk_topics_unattended") == 1
    assert scraped.value("stellwerk_timer_lag_seconds") == 0
    async with connect_worker(engine, "charge") as worker:
        await worker.task()
        scraped = read((await Metrics(engine.node).text()).decode())
    assert scraped.value("stellwerk_tasks", topic="charge", state="ready") == 2
    assert scraped.value("stellwerk_tasks", topic="charge", state="locked") == 1
    assert scraped.value("stellwerk_topics_unattended") == 0


async def test_scrapes_within_a_second_ask_the_database_once(mock_clock: MockClock, order_model: str) -> None:
    async with open_engine() as engine:
        await engine.deploy(("order.bpmn", order_model.encode()))
        metrics = Metrics(engine.node)

        async def ready() -> float:
            return read((await metrics.text()).decode()).value("stellwerk_tasks", topic="charge", state="ready")

        await engine.start("order")
        assert await ready() == 1
        await engine.start("order")
        assert await ready() == 1
        mock_clock.jump(1.0)
        assert await ready() == 2


async def test_topics_beyond_the_bound_are_counted_but_not_named(deployed: Any, engine: ServedEngine) -> None:
    await engine.node.deploy([("any.bpmn", ANY_TOPIC.encode())])
    for number, topic in enumerate(["rare", "usual", "usual", "busy", "busy", "busy"]):
        await deployed.start("any", variables={"topic": topic, "number": number})
    scraped = read((await Metrics(engine.node, topics_max=2).text()).decode())
    assert {labels["topic"] for labels in scraped.of("stellwerk_tasks")} == {"usual", "busy"}
    assert scraped.value("stellwerk_topics_left_out") == 1
    assert scraped.value("stellwerk_topics_unattended") == 3


async def test_database_that_is_away_takes_only_its_own_figures_with_it(file_engine: ServedEngine) -> None:
    await file_engine.node.ports.store.close()
    scraped = read((await Metrics(file_engine.node).text()).decode())
    assert scraped.value("stellwerk_store_up") == 0
    assert len(scraped.of("stellwerk_commits_total")) == 1
    await file_engine.node.ports.store.open()


async def test_figures_of_several_nodes_stand_side_by_side(engine: ServedEngine) -> None:
    other = figures_of(engine.node)
    other.node, other.commits = "there:7", 17
    scraped = read((await Metrics(engine.node).text([other])).decode())
    assert len(scraped.of("stellwerk_commits_total")) == 2
    assert scraped.value("stellwerk_commits_total", node="there:7") == 17


async def test_an_engine_of_its_own_is_one_node(client: Any, engine: ServedEngine) -> None:
    (row,) = (await client.get("/nodes")).body["nodes"]
    assert (row["url"], row["version"]) == (engine.url, engine.node.config.identity.version)
    assert row["name"].rpartition(":")[2].isdigit()
    assert (row["is_draining"], row["workers"], row["leases"], row["seen_ms_ago"]) == (False, 0, 0, 0)
    assert {"node_id", "started_at", "commits_per_second", "operations_per_commit", "store_ms"} <= row.keys()
