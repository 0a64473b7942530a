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
