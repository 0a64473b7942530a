"""Incidents over the HTTP API: finding them, and trying many again at once."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.app import ServedEngine

FAILING = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
    xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="{key}" isExecutable="true" stellwerk:failurePolicy="incident">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="work"/>
    <serviceTask id="work" stellwerk:topic="{topic}" stellwerk:retries="{retries}"/>
    <sequenceFlow id="f2" sourceRef="work" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""


@pytest.fixture
async def failed(deployed: Any, engine: ServedEngine, connect_worker: Any) -> dict[str, str]:
    """One incident each, by process: ``left`` and ``right`` at tasks, ``stuck`` at a gateway. No worker is there."""
    found: dict[str, str] = {}
    for key in ("left", "right"):
        model = FAILING.format(key=key, topic=f"{key}-work", retries=1)
        await engine.node.deploy([("failing.bpmn", model.encode())])
        instance_id = await deployed.start(key)
        async with connect_worker(engine, f"{key}-work") as worker:
            offer = await worker.task()
            await worker.say(type="fail", ref=1, task_id=offer["task_id"], fence=offer["fence"], message="no")
            await worker.next("ack")
        await deployed.has_incident(instance_id)
        found[key] = await incident_of(deployed, instance_id)
    stuck = await deployed.start("stuck")
    await deployed.has_incident(stuck)
    found["stuck"] = await incident_of(deployed, stuck)
    return found


async def incident_of(client: Any, instance_id: str) -> str:
    (row,) = (await client.get(f"/incidents?instance_id={instance_id}")).body["incidents"]
    return str(row["incident_id"])


async def open_incidents(client: Any, query: str = "") -> set[str]:
    return {row["incident_id"] for row in (await client.get(f"/incidents{query}")).body["incidents"]}


async def test_incidents_are_found_by_process_and_kind(deployed: Any, failed: dict[str, str]) -> None:
    cases = {
        "": {"left", "right", "stuck"},
        "?process=left": {"left"},
        "?kind=retries_exhausted": {"left", "right"},
        "?kind=model_fault": {"stuck"},
        "?kind=model_fault&process=left": set(),
        "?process=nothing": set(),
    }
    for query, keys in cases.items():
        assert await open_incidents(deployed, query) == {failed[key] for key in keys}, query
    first, second = sorted((failed["left"], failed["right"]))
    page = (await deployed.get("/incidents?kind=retries_exhausted&limit=1")).body
    assert ([row["incident_id"] for row in page["incidents"]], page["more"]) == ([first], True)
    page = (await deployed.get(f"/incidents?kind=retries_exhausted&limit=1&after={first}")).body
    assert ([row["incident_id"] for row in page["incidents"]], page["more"]) == ([second], False)


async def test_fault_87_retry_says_requeued_and_names_topics_without_a_worker(
    deployed: Any, engine: ServedEngine, connect_worker: Any, failed: dict[str, str]
) -> None:
    """Not "solved": nothing has been tried yet, and here nobody is there who could."""
    async with connect_worker(engine, "right-work") as worker:
        with trio.fail_after(5):
            while not (await deployed.get("/workers")).body["workers"][0]["topics"]:
                await trio.sleep(0.01)
        reply = await deployed.post("/incidents/retry", {"kind": "retries_exhausted", "retries": 2})
        assert reply.status == 200
        assert reply.body == {
            "requeued": sorted((failed["left"], failed["right"])),
            "refused": [],
            "unattended_topics": ["left-work"],
            "last": max(failed["left"], failed["right"]),
            "more": False,
        }
        offer = await worker.task()
        assert (offer["retries_left"], offer["topic"]) == (2, "right-work")
    assert await open_incidents(deployed) == {failed["stuck"]}
    (waiting,) = [row for row in (await deployed.get("/topics")).body["topics"] if row["topic"] == "left-work"]
    assert (waiting["ready"], waiting["is_unattended"]) == (1, True)


@pytest.mark.parametrize(
    "wanted, keys",
    [
        ({"process": "left"}, {"left"}),
        ({"element_id": "work"}, {"left", "right"}),
        ({"element_id": "c"}, {"stuck"}),
        ({"topic": "right-work"}, {"right"}),
        ({"kind": "model_fault"}, {"stuck"}),
        ({"process": "left", "topic": "right-work"}, set()),
        ({"all": True}, {"left", "right", "stuck"}),
        ({"all": True, "process": "right"}, {"right"}),
        ({"opened_before": "2001-01-01T00:00:00Z"}, set()),
        ({"opened_before": "9001-01-01T00:00:00Z"}, {"left", "right", "stuck"}),
        ({"incident_ids": []}, set()),
    ],
)
async def test_retry_takes_what_fulfils_every_condition(
    deployed: Any, failed: dict[str, str], wanted: dict[str, object], keys: set[str]
) -> None:
    reply = await deployed.post("/incidents/retry", wanted)
    assert reply.body["requeued"] == sorted(failed[key] for key in keys)
    assert (reply.body["refused"], reply.body["more"]) == ([], False)
    still_open = {failed[key] for key in {"left", "right"} - keys}
    assert await open_incidents(deployed, "?kind=retries_exhausted") == still_open


async def test_retry_takes_the_named_ones_that_are_still_open(deployed: Any, failed: dict[str, str]) -> None:
    await deployed.post(f"/incidents/{failed['left']}/resolve", {})
    body = {"incident_ids": [failed["left"], "unknown", failed["right"], failed["right"]]}
    reply = await deployed.post("/incidents/retry", body)
    assert (reply.body["requeued"], reply.body["refused"]) == ([failed["right"]], [])
    assert (await deployed.post(f"/incidents/{failed['right']}/resolve", {})).status == 404


async def test_incident_that_opens_again_is_another_one(deployed: Any, failed: dict[str, str]) -> None:
    """Nothing was repaired: re-queued all the same, and the new incident says so."""
    reply = await deployed.post("/incidents/retry", {"kind": "model_fault"})
    assert reply.body["requeued"] == [failed["stuck"]]
    (again,) = await open_incidents(deployed, "?kind=model_fault")
    assert again > failed["stuck"]
    body = {"kind": "model_fault", "after": reply.body["last"], "opened_before": "2001-01-01T00:00:00Z"}
    assert (await deployed.post("/incidents/retry", body)).body["requeued"] == []


async def test_many_incidents_are_retried_in_portions(deployed: Any, engine: ServedEngine) -> None:
    """Each is tried once, although each opens again at once."""
    instances: list[str] = []

    async def start() -> None:
        instances.append(await engine.node.start_instance("stuck", {}))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(start)
    for instance_id in instances:
        await engine.node.wait_for_end(instance_id, timeout_seconds=5, or_incident=True)
    before = await open_incidents(deployed, "?limit=1000")
    assert len(before) == 100
    latest = max(row["opened_at"] for row in (await deployed.get("/incidents?limit=1000")).body["incidents"])
    await trio.sleep(0.002)
    requeued: list[str] = []
    after, rounds, more = None, 0, True
    while more:
        body = {"limit": 40, "opened_before": latest[:-1] + "1Z", **({"after": after} if after else {})}
        answer = (await deployed.post("/incidents/retry", body)).body
        requeued += answer["requeued"]
        after, more, rounds = answer["last"], answer["more"], rounds + 1
    assert rounds == 3
    assert sorted(requeued) == sorted(before)
    assert len(set(requeued)) == 100
    assert before.isdisjoint(await open_incidents(deployed, "?limit=1000"))


@pytest.mark.parametrize(
    "path, body, attempts",
    [
        ("/incidents/{}/resolve", {}, 4),
        ("/incidents/{}/resolve", {"retries": 2}, 2),
        ("/incidents/retry", {"process": "many"}, 4),
        ("/incidents/retry", {"process": "many", "retries": 1}, 1),
    ],
)
async def test_resolving_gives_as_many_attempts_as_the_model_says(
    deployed: Any, engine: ServedEngine, connect_worker: Any, path: str, body: dict[str, object], attempts: int
) -> None:
    model = FAILING.format(key="many", topic="many-work", retries=4)
    await engine.node.deploy([("failing.bpmn", model.encode())])
    instance_id = await deployed.start("many")
    async with connect_worker(engine, "many-work") as worker:
        offer = await worker.task()
        failure = {"task_id": offer["task_id"], "fence": offer["fence"], "message": "no", "retries": 0}
        await worker.say(type="fail", ref=1, **failure)
        await worker.next("ack")
    await deployed.has_incident(instance_id)
    incident_id = await incident_of(deployed, instance_id)
    assert (await deployed.post(path.format(incident_id), body)).status == 200
    (task,) = (await deployed.get("/external-tasks?topic=many-work")).body["tasks"]
    assert (task["state"], task["retries_left"], task["retries"]) == ("READY", attempts, 4)


async def test_instances_say_how_many_incidents_are_open(deployed: Any, failed: dict[str, str]) -> None:
    await deployed.start("order")
    rows = (await deployed.get("/process-instances")).body["instances"]
    assert {row["process"]: row["incidents"] for row in rows} == {"left": 1, "right": 1, "stuck": 1, "order": 0}
    (left,) = (row for row in rows if row["process"] == "left")
    waited = (await deployed.get(f"/process-instances/{left['instance_id']}/wait?timeout_ms=0")).body
    assert waited == left
    await deployed.post(f"/incidents/{failed['left']}/resolve", {})
    (left,) = (await deployed.get("/process-instances?process=left")).body["instances"]
    assert left["incidents"] == 0
