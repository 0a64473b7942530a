"""bpm-engine's worker SDK on ``/bpm-engine``: it can read every answer, whatever the orders carry (requirement I1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from stellwerk.app import ServedEngine

GOLDEN = Path(__file__).parents[1] / "golden/bpm_engine_sdk.json"

ORDERS: list[dict[str, object]] = [
    {},
    {"text": "12.50", "empty": "", "quoted": '"12"', "lines": "a\nb\t\\", "unicode": "Zoë 🚂 \u2028 ﷽"},
    {"amount": 12.5, "count": 3, "big": 12345678901234567890123, "negative": -0.001},
    {"paid": True, "cancelled": False, "nothing": None},
    {"customer": {"name": "Zoë", "tags": ["a", None, 1.5, {"deep": []}]}, "items": [], "none": {}},
    {"": "no name", "späte Lieferung": "✓", "a.b/c~d": 1},
]
TEXTS: list[dict[str, str]] = [
    {},
    {"text": "12.50", "empty": "", "quoted": '"12"', "lines": "a\nb\t\\", "unicode": "Zoë 🚂 \u2028 ﷽"},
    {"amount": "12.5", "count": "3", "big": "12345678901234567890123", "negative": "-0.001"},
    {"paid": "true", "cancelled": "false", "nothing": "null"},
    {"customer": '{"name":"Zoë","tags":["a",null,1.5,{"deep":[]}]}', "items": "[]", "none": "{}"},
    {"": "no name", "späte Lieferung": "✓", "a.b/c~d": "1"},
]


async def test_I1_requests_and_answers_are_those_of_the_sdk(sdk: Any, client: Any, placeholders: Any) -> None:
    """Bodies byte for byte as its structs are written. The tests below check the answers with its own decoder."""
    for step in json.loads(GOLDEN.read_text()):
        path, body = placeholders.fill_path(step["request"]), placeholders.fill_path(step["body"])
        answer = await client.post(path, body.encode())
        assert answer.status == step["status"], (step, answer)
        placeholders.meet(step["answer"], answer.body)


async def test_I1_a_batch_of_orders_with_numbers_objects_null_and_unicode_is_readable(sdk: Any, client: Any) -> None:
    """One value that is no text would make all of them unreadable, and wait for their locks."""
    ids = [await client.start(**order) for order in ORDERS]
    tasks = await sdk.fetch_and_lock("w-1", ["charge", "nothing-of-this"])
    assert [task.process_instance_id for task in tasks] == ids
    assert [task.variables for task in tasks] == TEXTS
    assert {task.task_type for task in tasks} == {"charge"}
    for task in tasks:
        await sdk.complete(task.task_id, "w-1", {"receipt": f"r-{task.task_id}"})
    for instance_id, order, task in zip(ids, ORDERS, tasks, strict=True):
        ended = await client.ended(instance_id)
        assert ended["status"] == "COMPLETED"
        # What the worker has not touched is what it was.
        assert ended["variables"] == {**order, "receipt": f"r-{task.task_id}"}


async def test_I1_a_payload_that_is_no_object_is_readable_too(sdk: Any, client: Any, engine: ServedEngine) -> None:
    model = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
        xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
      <process id="cube" isExecutable="true">
        <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="t"/>
        <serviceTask id="t" stellwerk:topic="cube" stellwerk:payload="=[1, &quot;a&quot;]"/>
        <sequenceFlow id="f2" sourceRef="t" targetRef="e"/><endEvent id="e"/>
      </process></definitions>"""
    await engine.node.deploy([("cube.bpmn", model.encode())])
    await client.start("cube")
    (task,) = await sdk.fetch_and_lock("w-1", ["cube"])
    assert task.variables == {"payload": '[1,"a"]'}


async def test_I1_what_a_worker_sends_stays_text(sdk: Any, client: Any) -> None:
    instance_id = await client.start(amount=12.5)
    (task,) = await sdk.fetch_and_lock("w-1", ["charge"])
    sent = {"total": "12.5", "ok": "true", "none": "null", "json": '{"a":1}', "name": "Zoë"}
    await sdk.complete(task.task_id, "w-1", sent)
    assert (await client.ended(instance_id))["variables"] == {"amount": 12.5, **sent}


async def test_I1_a_failure_is_tried_again_as_the_worker_says_or_as_the_model_does(sdk: Any, client: Any) -> None:
    instance_id = await client.start()
    for attempt in (1, 2, 3):
        (task,) = await sdk.fetch_and_lock("w-1", ["charge"])
        await sdk.fail(task.task_id, "w-1", f"attempt {attempt}", retry_after_ms=0)
        await sdk.fail(task.task_id, "w-1", f"attempt {attempt}", retry_after_ms=0)  # its answer was lost
    assert await sdk.fetch_and_lock("w-1", ["charge"]) == []
    (incident,) = (await client.ended(instance_id))["incidents"]
    assert incident["message"] == "attempt 3"
    other = await client.start()
    (task,) = await sdk.fetch_and_lock("w-1", ["charge"])
    await sdk.fail(task.task_id, "w-1", "later")
    assert await sdk.fetch_and_lock("w-1", ["charge"]) == []
    (kept,) = (await client.api.get(f"/process-instances/{other}")).body["tasks"]
    assert (kept["state"], kept["retries_left"], kept["error_message"]) == ("READY", 2, "later")


async def test_I1_a_lock_that_is_too_short_lasts_a_second_and_one_that_is_too_long_is_refused(
    sdk: Any, client: Any, refused: Any
) -> None:
    await client.start()
    error = await refused(sdk.fetch_and_lock("w-1", ["charge"], lock_duration_ms=10**9))
    assert error.status == 400
    assert "$.lock_duration_ms" in error.message
    (task,) = await sdk.fetch_and_lock("w-1", ["charge"], max_tasks=2**32 - 1, lock_duration_ms=0)
    (kept,) = (await client.api.get(f"/process-instances/{task.process_instance_id}")).body["tasks"]
    assert kept["lease"]["duration_ms"] == 1_000
    assert await sdk.fetch_and_lock("w-1", ["charge"], max_tasks=0) == []


async def test_I1_a_lease_that_is_over_is_a_409_with_its_reason(sdk: Any, client: Any, refused: Any) -> None:
    for _ in range(3):
        await client.start()
    done, cancelled, kept = await sdk.fetch_and_lock("w-1", ["charge"])
    await sdk.complete(done.task_id, "w-1", {"a": "1"})
    await sdk.complete(done.task_id, "w-1", {"a": "1"})  # its answer was lost
    assert (await client.post(f"/process-instances/{cancelled.process_instance_id}/cancel")).status == 200
    for task, worker_id, reason in (
        (done, "w-1", "already_finished"),
        (cancelled, "w-1", "cancelled"),
        (kept, "w-2", "not locked by this worker"),
    ):
        for request in (
            sdk.complete(task.task_id, worker_id, {"a": "2"}),
            sdk.fail(task.task_id, worker_id, "no"),
        ):
            error = await refused(request)
            assert error.status == 409
            assert reason in error.message
    await sdk.complete(kept.task_id, "w-1")


async def test_I1_a_request_that_is_wrong_is_answered_with_a_text(sdk: Any, client: Any, refused: Any) -> None:
    await client.start()
    (task,) = await sdk.fetch_and_lock("w-1", ["charge"])
    one = f"/external-tasks/{task.task_id}"
    fetch = "/external-tasks/fetch-and-lock"
    for status, request in (
        (404, sdk.complete("no-such-task", "w-1")),
        (404, sdk.fail("no-such-task", "w-1", "no")),
        (400, sdk.fetch_and_lock("w-1", [])),
        (400, sdk.fetch_and_lock("", ["charge"])),
        (400, sdk.ask(fetch, b"{")),
        (400, sdk.ask(fetch, [])),
        (400, sdk.ask(fetch, {"worker_id": "w-1"})),
        (400, sdk.ask(f"{one}/complete", {"worker_id": "w-1", "variables": ["a"]})),
        (400, sdk.ask(f"{one}/complete", {"worker_id": "w-1", "variables": {"a": "\0"}})),
        (400, sdk.ask(f"{one}/fail", {"worker_id": "w-1"})),
        (413, sdk.complete(task.task_id, "w-1", {"a": "x" * (1024 * 1024)})),
        (413, sdk.complete(task.task_id, "w-1", {"a": "x" * (4 * 1024 * 1024)})),
        (413, sdk.fail(task.task_id, "w-1", "x" * 100_000)),
        (501, sdk.ask("/external-tasks/x/y", {})),
    ):
        error = await refused(request)
        assert error.status == status, error
    await sdk.complete(task.task_id, "w-1")


async def test_I1_fields_that_are_not_known_are_ignored_as_there(sdk: Any, client: Any) -> None:
    await client.start()
    wanted = {"worker_id": "w-1", "task_types": ["charge"], "max_tasks": 1, "lock_duration_ms": 9_000, "tenant": "t"}
    (task,) = (await sdk.ask("/external-tasks/fetch-and-lock", wanted)).body
    assert set(task) == {"task_id", "token_id", "process_instance_id", "task_type", "variables"}
    await sdk.ask(f"/external-tasks/{task['task_id']}/complete", {"worker_id": "w-1", "tenant": "t", "fence": 1})


async def test_I1_a_later_sdk_keeps_its_lock(sdk: Any, client: Any, refused: Any) -> None:
    """0.2 has no ``extend_lock``, what is written after it has."""
    await client.start()
    (task,) = await sdk.fetch_and_lock("w-1", ["charge"], lock_duration_ms=1_000)
    path = f"/external-tasks/{task.task_id}/extend-lock"
    await sdk.ask(path, {"worker_id": "w-1", "extension_ms": 60_000})
    error = await refused(sdk.ask(path, {"worker_id": "w-2", "extension_ms": 60_000}))
    assert error.status == 409


async def test_I1_a_worker_that_polls_and_one_that_is_connected_get_their_tasks_from_one_queue(
    sdk: Any, client: Any, engine: ServedEngine, connect_worker: Any
) -> None:
    await client.start(n=1)
    (task,) = await sdk.fetch_and_lock("w-1", ["charge"])
    async with connect_worker(engine, "charge", worker_id="w-2") as worker:
        second = await client.start(n=2)
        assert (await worker.task())["process_instance_id"] == second
    await sdk.complete(task.task_id, "w-1")


async def test_the_native_api_keeps_its_types(sdk: Any, client: Any) -> None:
    await client.start(amount=12.5)
    wanted = {"worker_id": "w-1", "task_types": ["charge"], "max_tasks": 1, "lock_duration_ms": 9_000}
    (task,) = (await client.api.post("/external-tasks/fetch-and-lock", wanted)).body
    assert task["variables"] == {"amount": 12.5}


# --- who may ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def make_key(client: Any) -> Any:
    """``await make_key(scopes=[…])`` → the key. From the first one on a credential is needed."""
    admin = await client.api.post("/keys", {"name": "admin", "scopes": ["admin", "worker"]})
    bearer = f"Authorization: Bearer {admin.body['key']}\r\n"

    async def make(**rights: object) -> str:
        reply = await client.api.post("/keys", {"name": "some", **rights}, bearer)
        assert reply.status == 201, reply
        return str(reply.body["key"])

    return make


async def test_I1_a_worker_shows_its_key_as_the_password_of_its_url(
    sdk: Any, client: Any, make_key: Any, refused: Any, engine: ServedEngine, basic: Any
) -> None:
    """The SDK has no place for a credential, but its HTTP library sends the one of the URL."""
    await engine.node.start_instance("order", {})
    error = await refused(sdk.fetch_and_lock("w-1", ["charge"]))
    assert error.status == 401
    client.headers = basic(await make_key(scopes=["worker"], topics=["charge"], worker_ids=["w-*"]))
    (task,) = await sdk.fetch_and_lock("w-1", ["charge"])
    for request in (
        sdk.fetch_and_lock("w-1", ["stock"]),
        sdk.fetch_and_lock("x", ["charge"]),
        sdk.fetch_and_lock("x", ["charge"], max_tasks=0),
        sdk.complete(task.task_id, "x"),
    ):
        assert (await refused(request)).status == 403
    await sdk.complete(task.task_id, "w-1")
    client.headers = basic("sw_wrong_key")
    assert (await refused(sdk.complete(task.task_id, "w-1"))).status == 401


async def test_I1_a_worker_gets_tasks_of_its_processes_only(
    sdk: Any, client: Any, make_key: Any, engine: ServedEngine, basic: Any, refused: Any
) -> None:
    await engine.node.start_instance("order", {})
    client.headers = basic(await make_key(scopes=["worker"], processes=["paid"]))
    assert await sdk.fetch_and_lock("w-1", ["charge"]) == []
    client.headers = basic(await make_key(scopes=["worker"]))
    (task,) = await sdk.fetch_and_lock("w-1", ["charge"])
    client.headers = basic(await make_key(scopes=["worker"], processes=["paid"]))
    assert (await refused(sdk.complete(task.task_id, "w-1"))).status == 403


async def test_I1_a_worker_that_has_gone_before_its_answer_keeps_no_task(
    connect_sdk: Any, engine: ServedEngine
) -> None:
    """As everywhere: what could not be handed over is READY again, and no attempt was used."""
    gone, other = await connect_sdk(), await connect_sdk()
    await engine.node.start_instance("order", {"text": "x" * 900_000})
    body = b'{"worker_id":"gone","task_types":["charge"],"max_tasks":10,"lock_duration_ms":60000}'
    head = (
        f"POST /bpm-engine/api/v1/external-tasks/fetch-and-lock HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}"
    )
    await gone.client.api.stream.send_all(head.encode() + b"\r\n\r\n" + body)
    await gone.client.api.stream.aclose()
    with trio.fail_after(10):
        while not (tasks := await other.fetch_and_lock("other", ["charge"])):
            await trio.sleep(0.02)
    (task,) = tasks
    (kept,) = (await other.client.api.get(f"/process-instances/{task.process_instance_id}")).body["tasks"]
    assert (kept["retries_left"], kept["lease"]["worker_id"]) == (3, "other")
