"""Messages over the HTTP API: what became of one, what is kept, and what is waited for."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
import trio

from stellwerk.app import ServedEngine

WAITING = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
    xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <message id="m" name="shipped"/>
  <process id="waiting" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="wait"/>
    <receiveTask id="wait" messageRef="m" stellwerk:correlationKey="=order"/>
    <sequenceFlow id="f2" sourceRef="wait" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>
"""


@pytest.fixture
async def waiting(deployed: Any, engine: ServedEngine) -> str:
    """An instance that waits for ``shipped`` with the key A-17."""
    await engine.node.deploy([("waiting.bpmn", WAITING.encode())])
    return str(await deployed.start("waiting", variables={"order": "A-17"}))


async def publish(client: Any, message_id: str, **body: object) -> None:
    reply = await client.post("/messages", {"name": "shipped", "message_id": message_id, **body})
    assert (reply.status, reply.body) == (201, {"message_id": message_id})


async def what_became_of(client: Any, message_id: str) -> Any:
    reply = await client.get(f"/messages/{quote(message_id, safe='')}")
    assert reply.status == 200
    return reply.body


async def test_message_says_what_became_of_it(deployed: Any, waiting: str) -> None:
    await publish(deployed, "m 1/2", key="A-18", ttl_ms=60_000)
    kept = await what_became_of(deployed, "m 1/2")
    assert (kept["message_id"], kept["name"], kept["key"], kept["status"]) == ("m 1/2", "shipped", "A-18", "waiting")
    assert kept["published_at"] < kept["expires_at"]
    assert kept["is_awaited"] is False
    await publish(deployed, "m-2", key="A-17")
    with trio.fail_after(5):
        while (await what_became_of(deployed, "m-2"))["status"] == "waiting":
            await trio.sleep(0.01)
    correlated = await what_became_of(deployed, "m-2")
    assert (correlated["status"], correlated["name"], correlated["key"]) == ("correlated", "shipped", "A-17")
    assert (await deployed.get(f"/process-instances/{waiting}")).body["status"] == "COMPLETED"
    assert await what_became_of(deployed, "nothing") == {
        "message_id": "nothing",
        "name": None,
        "key": None,
        "status": "expired-or-unknown",
        "published_at": None,
        "expires_at": None,
        "is_awaited": False,
        "instance_id": None,
    }
    assert (await deployed.get("/messages/m-2?x=1")).status == 400


async def test_messages_that_nothing_waits_for_are_listed_by_pages(deployed: Any, waiting: str) -> None:
    for message_id in ("c", "a", "b"):
        await publish(deployed, message_id, key="A-18")
    await publish(deployed, "taken", key="A-17")
    with trio.fail_after(5):
        while (await what_became_of(deployed, "taken"))["status"] == "waiting":
            await trio.sleep(0.01)

    async def page(query: str) -> tuple[list[str], bool]:
        body = (await deployed.get(f"/messages{query}")).body
        assert {row["status"] for row in body["messages"]} == {"waiting"}
        return [row["message_id"] for row in body["messages"]], body["more"]

    assert await page("") == (["a", "b", "c"], False)
    assert await page("?limit=2") == (["a", "b"], True)
    assert await page("?limit=2&after=b") == (["c"], False)
    assert (await deployed.get("/messages?limit=0")).status == 400


async def test_names_that_are_waited_for_are_listed(deployed: Any, waiting: str) -> None:
    """Those of start events too."""
    assert (await deployed.get("/awaited-messages")).body == {"names": ["paid", "shipped"], "more": False}
    await deployed.post(f"/process-instances/{waiting}/cancel", {})
    assert (await deployed.get("/awaited-messages")).body == {"names": ["paid"], "more": False}


async def test_a_message_for_one_instance(deployed: Any, waiting: str) -> None:
    other = await deployed.start("waiting", variables={"order": "A-17"})
    await publish(deployed, "m-1", instance_id=other)
    with trio.fail_after(5):
        while (await what_became_of(deployed, "m-1"))["status"] == "waiting":
            await trio.sleep(0.01)
    assert (await what_became_of(deployed, "m-1"))["instance_id"] == other
    assert (await deployed.get(f"/process-instances/{other}")).body["status"] == "COMPLETED"
    assert (await deployed.get(f"/process-instances/{waiting}")).body["status"] == "RUNNING"
    ended = await deployed.post("/messages", {"name": "shipped", "instance_id": other})
    assert (ended.status, ended.body["code"]) == (409, "ended")
    unknown = await deployed.post("/messages", {"name": "shipped", "instance_id": "nobody"})
    assert (unknown.status, unknown.body["code"]) == (404, "not_found")


# --- correlating -----------------------------------------------------------------------------------------------------


async def correlate(client: Any, headers: str = "", **body: object) -> Any:
    return await client.post("/messages/correlate", {"name": "shipped", **body}, headers)


async def test_correlating_says_whom_the_message_has_reached(deployed: Any, waiting: str) -> None:
    """Its business key is not the message's key."""
    others = [await deployed.start("waiting", variables={"order": f"B-{number}"}) for number in range(3)]
    reply = await correlate(deployed, key="A-17", variables={"parcels": 2})
    assert reply.status == 200, reply
    assert reply.body == {"message_id": reply.body["message_id"], "instance_id": waiting, "has_started": False}
    ended = (await deployed.get(f"/process-instances/{waiting}")).body
    assert (ended["status"], ended["variables"]["parcels"]) == ("COMPLETED", 2)
    assert (await what_became_of(deployed, reply.body["message_id"]))["status"] == "correlated"
    for instance_id in others:
        assert (await deployed.get(f"/process-instances/{instance_id}")).body["status"] == "RUNNING"


async def test_correlating_one_of_many_at_a_time_names_the_right_one(
    deployed: Any, waiting: str, connect_to: Any, engine: ServedEngine
) -> None:
    ids = {f"B-{number}": await deployed.start("waiting", variables={"order": f"B-{number}"}) for number in range(8)}

    async def ask(key: str) -> None:
        async with connect_to(engine) as client:
            reply = await correlate(client, key=key)
            assert (reply.status, reply.body["instance_id"]) == (200, ids[key])

    async with trio.open_nursery() as nursery:
        for key in ids:
            nursery.start_soon(ask, key)


async def test_correlating_starts_an_instance(deployed: Any) -> None:
    reply = await correlate(deployed, name="paid", key="k")
    assert (reply.status, reply.body["has_started"]) == (200, True)
    started = (await deployed.get(f"/process-instances/{reply.body['instance_id']}")).body
    assert (started["process"], started["business_key"]) == ("paid", "k")


async def test_correlating_for_one_instance_reaches_only_that(deployed: Any, waiting: str) -> None:
    other = await deployed.start("waiting", variables={"order": "A-17"})
    reply = await correlate(deployed, instance_id=other)
    assert (reply.status, reply.body["instance_id"]) == (200, other)
    assert (await deployed.get(f"/process-instances/{waiting}")).body["status"] == "RUNNING"
    ended = await correlate(deployed, instance_id=other)
    assert (ended.status, ended.body["code"]) == (409, "ended")
    unknown = await correlate(deployed, instance_id="nobody")
    assert (unknown.status, unknown.body["code"]) == (404, "not_found")


async def test_a_message_that_nothing_waits_for_is_refused_and_reaches_nobody_later(
    deployed: Any, waiting: str
) -> None:
    refused = await correlate(deployed, key="A-18", message_id="m-1")
    assert (refused.status, refused.body["code"]) == (404, "not_awaited")
    assert "ttl_ms" in refused.body["error"]
    late = await deployed.start("waiting", variables={"order": "A-18"})
    assert (await deployed.get("/messages")).body["messages"] == []
    assert (await what_became_of(deployed, "m-1"))["status"] == "expired-or-unknown"
    assert (await correlate(deployed, key="A-18", message_id="m-1")).status == 404, "the same message again"
    assert (await deployed.get(f"/process-instances/{late}")).body["status"] == "RUNNING"
    assert (await correlate(deployed, key="A-18")).body["instance_id"] == late


async def test_with_wait_ms_something_may_come_to_wait_for_it(
    deployed: Any, waiting: str, connect_to: Any, engine: ServedEngine
) -> None:
    started: list[str] = []

    async def start_later() -> None:
        async with connect_to(engine) as client:
            with trio.fail_after(5):
                while not (await client.get("/messages")).body["messages"]:
                    await trio.sleep(0.01)
            started.append(await client.start("waiting", variables={"order": "A-18"}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start_later)
        reply = await correlate(deployed, key="A-18", wait_ms=600_000)
    assert (reply.status, [reply.body["instance_id"]]) == (200, started)
    too_long = await correlate(deployed, wait_ms=600_001)
    assert (too_long.status, too_long.body["path"]) == (400, "$.wait_ms")


async def test_an_engine_that_stops_says_that_it_does_not_know_yet(
    deployed: Any, waiting: str, engine: ServedEngine
) -> None:
    async def drain_later() -> None:
        with trio.fail_after(5):
            while await engine.node.ports.store.message("m-1") is None:
                await trio.sleep(0.01)
        await engine.drain(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain_later)
        reply = await correlate(deployed, key="A-18", wait_ms=600_000, message_id="m-1")
    assert (reply.status, reply.body["code"]) == (503, "overloaded")
    assert "GET /api/v1/messages/m-1" in reply.body["error"]


async def test_the_same_correlation_again_is_no_second_message(deployed: Any, waiting: str) -> None:
    key = "Idempotency-Key: m-1\r\n"
    first = await correlate(deployed, key, key="A-17")
    other = await deployed.start("waiting", variables={"order": "A-17"})
    again = await correlate(deployed, key, key="A-17")
    assert (first.status, again.status, again.body["message_id"]) == (200, 200, "m-1")
    assert (await deployed.get(f"/process-instances/{other}")).body["status"] == "RUNNING"
    conflict = await correlate(deployed, key, key="A-18")
    assert (conflict.status, conflict.body["code"]) == (422, "idempotency_conflict")
    differs = await correlate(deployed, key, key="A-17", message_id="m-2")
    assert (differs.status, differs.body["path"]) == (400, "$.message_id")


async def test_a_message_that_was_published_before_to_be_kept_is_no_correlation(deployed: Any, waiting: str) -> None:
    """It may reach somebody in an hour: neither is that waited for, nor is the message refused."""
    await publish(deployed, "m-1", key="A-18")
    refused = await correlate(deployed, key="A-18", message_id="m-1")
    assert (refused.status, refused.body["code"]) == (409, "conflict")
    late = await deployed.start("waiting", variables={"order": "A-18"}, business_key="A-18")
    assert (await correlate(deployed, key="A-18", message_id="m-1")).body["instance_id"] == late


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [{"name": "alarm"}, {"signal": "alarm", "instance_id": "i", "payload": {}}, [1], b"no JSON", b""], ids=str
)
async def test_signals_answer_501_whatever_the_body_says(deployed: Any, body: object) -> None:
    reply = await deployed.post("/signals", body)
    assert (reply.status, reply.body["code"]) == (501, "not_implemented")
