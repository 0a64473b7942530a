"""The same start or message sent again, by the ``Idempotency-Key`` header or a field of the body, over the HTTP API."""

from __future__ import annotations

from typing import Any

import pytest

START = {"process_def_id": "order", "variables": {"amount": 1}, "business_key": "k"}


def key(text: str) -> str:
    return f"Idempotency-Key: {text}\r\n"


async def test_the_same_start_again_gives_the_same_instance(deployed: Any) -> None:
    first = await deployed.post("/process-instances", START, key("a-1"))
    again = [
        await deployed.post("/process-instances", START, key('"a-1"')),
        await deployed.post("/process-instances", {**START, "request_id": "a-1"}),
        await deployed.post("/process-instances", {**START, "request_id": "a-1"}, key("a-1")),
    ]
    assert [reply.status for reply in (first, *again)] == [201] * 4
    assert {reply.body["instance_id"] for reply in again} == {first.body["instance_id"]}
    other = await deployed.post("/process-instances", START, key("a-2"))
    assert other.body["instance_id"] != first.body["instance_id"]
    assert len((await deployed.get("/process-instances")).body["instances"]) == 2


@pytest.mark.parametrize("change", [{"variables": {"amount": 2}}, {"variables": {}}, {"business_key": "other"}])
async def test_the_key_of_another_start_is_refused(deployed: Any, change: dict[str, object]) -> None:
    assert (await deployed.post("/process-instances", START, key("a"))).status == 201
    refused = await deployed.post("/process-instances", {**START, **change}, key("a"))
    assert (refused.status, refused.body["code"]) == (422, "idempotency_conflict")
    assert len((await deployed.get("/process-instances")).body["instances"]) == 1


async def test_the_same_message_again_is_no_second_one(deployed: Any) -> None:
    body = {"name": "any", "key": "k", "variables": {"a": 1}}
    for headers in (key("m-1"), key('"m-1"')):
        reply = await deployed.post("/messages", body, headers)
        assert (reply.status, reply.body) == (201, {"message_id": "m-1"})
    assert [row["message_id"] for row in (await deployed.get("/messages")).body["messages"]] == ["m-1"]
    for change in ({"name": "other"}, {"key": "other"}):
        refused = await deployed.post("/messages", {**body, **change}, key("m-1"))
        assert (refused.status, refused.body["code"]) == (422, "idempotency_conflict")


@pytest.mark.parametrize(("path", "field"), [("/process-instances", "request_id"), ("/messages", "message_id")])
async def test_header_and_body_must_say_the_same(deployed: Any, path: str, field: str) -> None:
    body = {**(START if path == "/process-instances" else {"name": "any"}), field: "one"}
    for headers in (key("two"), key("one") + key("two")):
        refused = await deployed.post(path, body, headers)
        assert (refused.status, refused.body["code"]) == (400, "invalid")
        assert refused.body["path"] == f"$.{field}"
    for headers in (key(""), key('""')):
        assert (await deployed.post(path, body, headers)).status == 400
    too_long = await deployed.post(path, {**body, field: None}, key("k" * 256))
    assert (too_long.status, too_long.body["code"]) == (413, "too_large")
    assert (await deployed.get("/process-instances")).body["instances"] == []
    assert (await deployed.get("/messages")).body["messages"] == []
