"""Fetching tasks over the native HTTP API, over real connections that also break; and what is said of their leases."""

from __future__ import annotations

import gc
import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from starlette.applications import Starlette

from stellwerk.actors.polls import Poll, PolledTasks
from stellwerk.app import ServedEngine
from stellwerk.core.external_task import AttemptEnd, TaskState
from stellwerk.server.http.api import Api
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.limits import HttpLimits
from stellwerk.system.entropy import SystemEntropy
from stellwerk.wire.pull import WAITED_HEADER, decode_tasks

FETCH = "/external-tasks/fetch-and-lock"
GOLDEN = Path(__file__).with_name("golden")


# --- golden requests -------------------------------------------------------------------------------------------------


async def test_I1_requests_and_answers_of_the_native_api_are_those_of_the_golden_file(
    deployed: Any, placeholders: Any
) -> None:
    """Names and shapes are the contract with workers of other languages, which cannot all be run here. (The worker SDK
    that the names are from has its own golden file, in bpm_engine/.)"""
    known = placeholders
    for step in json.loads((GOLDEN / "external_tasks.json").read_text()):
        method, path = known.fill_path(step["request"]).split(" ")
        reply = await deployed.send(method, path, known.fill(step["body"]))
        assert reply.status == step["status"], (step, reply)
        known.meet(step["answer"], reply.body)


# --- one worker ------------------------------------------------------------------------------------------------------


@pytest.fixture
def fetch(deployed: Any) -> Callable[..., Any]:
    async def post(**options: Any) -> Any:
        reply = await deployed.post(FETCH, {"worker_id": "w", "task_types": ["charge"], **options})
        assert reply.status == 200, reply
        return reply.body

    return post


async def test_fault_7_and_11_a_poll_is_answered_at_once_or_when_there_is_a_task_or_when_time_is_up(
    deployed: Any, engine: ServedEngine, fetch: Any, nursery: trio.Nursery
) -> None:
    began = trio.current_time()
    assert await fetch() == []
    assert trio.current_time() - began < 0.5
    assert await fetch(wait_ms=300) == []
    assert 0.3 <= trio.current_time() - began < 1.5

    async def start_later() -> None:
        await trio.sleep(0.3)
        await engine.node.start_instance("order", {})

    nursery.start_soon(start_later)
    began = trio.current_time()
    assert len(await fetch(wait_ms=10_000)) == 1
    assert trio.current_time() - began < 1.5


async def test_the_answer_says_how_long_the_lock_lasts_from_then_and_for_how_long_the_engine_had_the_request(
    deployed: Any, engine: ServedEngine, nursery: trio.Nursery
) -> None:
    async def start_later() -> None:
        await trio.sleep(0.25)
        await engine.node.start_instance("order", {"n": 1})

    nursery.start_soon(start_later)
    body = {"worker_id": "w", "task_types": ["charge"], "wait_ms": 5_000, "lock_duration_ms": 20_000}
    reply = await deployed.post(FETCH, body)
    assert 200 <= int(reply.headers[WAITED_HEADER]) < 5_000
    (task,) = decode_tasks(json.dumps(reply.body).encode())
    assert 15_000 < task.lock_remaining_ms < 20_000
    assert task.as_offer().fence == reply.body[0]["fence"]


async def test_fault_151_every_lease_that_a_worker_must_let_go_of_is_a_409_and_only_an_unknown_task_a_404(
    deployed: Any, fetch: Any
) -> None:
    for _ in range(2):
        await deployed.start()
    done, cancelled = await fetch()
    one = {"worker_id": "w"}
    assert (await deployed.post(f"/external-tasks/{done['task_id']}/complete", one)).status == 200
    assert (await deployed.post(f"/process-instances/{cancelled['process_instance_id']}/cancel", {})).status == 200
    for task, code in ((done, "already_finished"), (cancelled, "cancelled")):
        for verb, more in (
            ("complete", {"variables": {"x": 1}}),
            ("fail", {"error": "x"}),
            ("bpmn-error", {"code": "x"}),
            ("extend-lock", {"extension_ms": 5_000}),
            ("unlock", {}),
        ):
            reply = await deployed.post(f"/external-tasks/{task['task_id']}/{verb}", {**one, **more})
            assert (reply.status, reply.body["code"]) == (409, code), verb
            assert reply.body["error"] == reply.body["detail"]
            unknown = await deployed.post(f"/external-tasks/unknown/{verb}", {**one, **more})
            assert unknown.status == 404


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (FETCH, {"task_types": ["charge"]}, "$.worker_id"),
        (FETCH, {"worker_id": "w", "task_types": []}, "$.task_types"),
        (FETCH, {"worker_id": "w", "task_types": [""]}, "$.task_types"),
        (FETCH, {"worker_id": "w", "task_types": "charge"}, "$.task_types"),
        (FETCH, {"worker_id": "w", "task_types": ["a\0"]}, "$.task_types[0]"),
        (FETCH, {"worker_id": "w", "task_types": ["charge"], "wait_ms": 600_001}, "$.wait_ms"),
        (FETCH, {"worker_id": "w", "task_types": ["charge"], "wait_ms": -1}, "$.wait_ms"),
        (FETCH, {"worker_id": "w", "task_types": ["charge"], "max_tasks": 10_001}, "$.max_tasks"),
        (FETCH, {"worker_id": "w", "task_types": ["charge"], "lock_duration_ms": 1}, "$.lock_duration_ms"),
        (FETCH, {"worker_id": "w", "task_types": ["charge"], "filter": "("}, "$.filter"),
        (FETCH, {"worker_id": "w", "task_types": ["charge"], "topics": []}, "$"),
        ("/external-tasks/t/fail", {"worker_id": "w", "error": 1}, "$.error"),
        ("/external-tasks/t/fail", {"worker_id": "", "error": "x"}, "$.worker_id"),
        ("/external-tasks/t/priority", {"priority": 2**31}, "$.priority"),
        ("/external-tasks/t/priority", {"priority": 1.5}, "$.priority"),
        ("/external-tasks/t/retries", {"retries": 0}, "$.retries"),
    ],
)
async def test_a_request_that_is_wrong_is_answered_with_what_and_where(
    deployed: Any, path: str, body: object, place: str
) -> None:
    reply = await deployed.post(path, body)
    assert (reply.status, reply.body["code"], reply.body.get("path")) == (400, "invalid", place), reply


async def test_places_are_named_as_the_request_has_them(deployed: Any, fetch: Any) -> None:
    await deployed.start()
    (task,) = await fetch()
    path = f"/external-tasks/{task['task_id']}"
    reply = await deployed.post(f"{path}/extend-lock", {"worker_id": "w", "extension_ms": 1})
    assert (reply.status, reply.body["path"]) == (400, "$.extension_ms")
    reply = await deployed.post(f"{path}/fail", {"worker_id": "w", "error": "x" * 65_600})
    assert (reply.status, reply.body["path"]) == (413, "$.error")


async def test_fault_16_what_was_accepted_can_be_fetched_extended_and_completed_at_its_largest(
    deployed: Any, fetch: Any
) -> None:
    text = "é" * 520_000
    await deployed.start(variables={"text": text})
    (task,) = await fetch()
    assert task["variables"] == {"text": text}
    path = f"/external-tasks/{task['task_id']}"
    extended = await deployed.post(f"{path}/extend-lock", {"worker_id": "w", "extension_ms": 120_000})
    assert extended.status == 200
    assert 100_000 < extended.body["lock_remaining_ms"] <= 120_000
    reply = await deployed.post(f"{path}/complete", {"worker_id": "w", "variables": {"t": text}})
    assert reply.status == 200


async def test_workers_that_poll_are_listed(deployed: Any, fetch: Any) -> None:
    await fetch(worker_id="puller", task_types=["charge", "stock"])
    (worker,) = (await deployed.get("/workers")).body["workers"]
    assert worker["worker_id"] == "puller"
    assert [topic["topic"] for topic in worker["topics"]] == ["charge", "stock"]
    await deployed.start()
    (topic,) = [one for one in (await deployed.get("/topics")).body["topics"] if one["topic"] == "charge"]
    assert (topic["workers"], topic["is_unattended"]) == (1, False)


# --- clients that leave ----------------------------------------------------------------------------------------------


def fetch_request(**options: Any) -> bytes:
    body = json.dumps({"worker_id": "dead", "task_types": ["charge"], "wait_ms": 60_000, **options}).encode()
    return b"POST /api/v1%s HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%s" % (FETCH.encode(), len(body), body)


async def reset(stream: trio.SocketStream) -> None:
    """No farewell: the peer's side gets an RST."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


async def close(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def half_close(stream: trio.SocketStream) -> None:
    await stream.send_eof()


async def polls(engine: ServedEngine, number: int) -> None:
    """Wait until so many polls wait."""
    with trio.fail_after(10):
        while len(engine.node.polling) != number:
            await trio.sleep(0.005)


@pytest.mark.parametrize("leave", [reset, close, half_close])
async def test_fault_1_a_killed_client_gets_nothing_and_a_second_worker_gets_the_task_at_once(
    engine: ServedEngine, deployed: Any, connect_to: Any, fetch: Any, leave: Any
) -> None:
    async with connect_to(engine) as dead:
        await dead.stream.send_all(fetch_request())
        await polls(engine, 1)
        await leave(dead.stream)
        await polls(engine, 0)
        await deployed.start()
        (task,) = await fetch(wait_ms=5_000)
        assert task["attempt"] == 1


async def test_fault_1_a_client_that_leaves_as_its_task_comes_gets_nothing(
    engine: ServedEngine, deployed: Any, connect_to: Any, fetch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same turn of the loop: its socket has to be looked at once more before the answer is written."""
    fetch_and_lock = engine.node.fetch_and_lock
    for _ in range(20):
        async with connect_to(engine) as dead:

            async def lose_client(poll: Poll, dead: Any = dead) -> PolledTasks:
                polled = await fetch_and_lock(poll)
                dead.stream.socket.close()
                return polled

            with monkeypatch.context() as patched:
                patched.setattr(engine.node, "fetch_and_lock", lose_client)
                await dead.stream.send_all(fetch_request())
                await polls(engine, 1)
                await engine.node.start_instance("order", {})
                await polls(engine, 0)
        (task,) = await fetch(wait_ms=5_000)
        attempts = await engine.node.ports.store.attempts(task["task_id"])
        assert [attempt.end for attempt in attempts] == [AttemptEnd.RELEASED]
        assert task["retries"] == 3
        assert (await deployed.post(f"/external-tasks/{task['task_id']}/complete", {"worker_id": "w"})).status == 200


async def test_fault_2_leases_whose_answer_cannot_be_written_go_back_at_once(
    engine: ServedEngine, deployed: Any, start_server: Any, fetch: Any
) -> None:
    """The client is there and does not read."""
    log = engine.node.ports.log
    application: Starlette = Api(engine.node, entropy=SystemEntropy(), log=log, draining=Draining()).application()
    impatient = await start_server(application, limits=HttpLimits(write_seconds_max=0.2))
    for number in range(3):
        await deployed.start(variables={"number": number, "text": "x" * 900_000})
    stalled = await impatient.connect()
    stalled.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await stalled.send(fetch_request(wait_ms=0, lock_duration_ms=600_000))
    with trio.fail_after(10):
        while {task.state for task in await engine.node.tasks()} != {TaskState.LOCKED}:
            await trio.sleep(0.01)
        while {task.state for task in await engine.node.tasks()} != {TaskState.READY}:
            await trio.sleep(0.01)
    assert len(await fetch()) == 3
    assert engine.node.leases.under_way == 0


async def test_fault_2_leases_of_a_request_that_fails_after_its_poll_go_back_at_once(
    engine: ServedEngine, deployed: Any, fetch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await deployed.start()
    with monkeypatch.context() as patched:
        patched.setattr("stellwerk.server.http.views.pulled_task_view", None)
        reply = await deployed.post(FETCH, {"worker_id": "w", "task_types": ["charge"]})
        assert reply.status == 500
    (task,) = await fetch(wait_ms=5_000)
    assert (task["attempt"], task["retries"]) == (2, 3)


async def kill_clients(engine: ServedEngine, clients: int) -> None:
    """Each asks for tasks, and goes at once or a little later, in one way or another."""

    async def client(number: int) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", int(engine.url.rpartition(":")[2]))
        await stream.send_all(fetch_request(worker_id=f"w-{number % 20}", lock_duration_ms=1_000))
        for _ in range(number % 9):
            await trio.sleep(0)
        await (reset if number % 2 else close)(stream)

    for begin in range(0, clients, 50):
        async with trio.open_nursery() as nursery:
            for number in range(begin, begin + 50):
                nursery.start_soon(client, number)
    await polls(engine, 0)


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


async def test_a_thousand_connect_and_kill_cycles_leave_no_memory_behind(engine: ServedEngine) -> None:
    await kill_clients(engine, 200)
    before = objects()
    await kill_clients(engine, 1_000)
    with trio.fail_after(10):
        while objects() - before >= 500:  # some connections have not seen their end yet; a poll is dozens of them
            await trio.sleep(0.1)


async def test_connect_and_kill_cycles_leave_no_task_behind(engine: ServedEngine, deployed: Any, fetch: Any) -> None:
    """A client that goes after the operating system has the answer, and before it reads it, is the one case in which a
    lock has to run out: nobody can tell it from one that read it."""
    for _ in range(10):
        await deployed.start()
    await kill_clients(engine, 300)
    node = engine.node
    with trio.fail_after(10):
        while node.leases.under_way or {task.state for task in await node.tasks()} != {TaskState.READY}:
            await trio.sleep(0.01)
    assert (len(node.leases), len(node.doubts)) == (0, 0)
    tasks = await fetch(max_tasks=100)
    assert len(tasks) == 10
    assert {task["retries"] for task in tasks} == {3}


async def test_a_poll_that_waits_is_answered_when_the_server_drains(
    engine: ServedEngine, deployed: Any, connect_to: Any
) -> None:
    async with connect_to(engine) as waiting:
        await waiting.stream.send_all(fetch_request())
        await polls(engine, 1)
        engine.node.polling.end_all()
        reply = await waiting.reply()
        assert (reply.status, reply.body) == (200, [])
