"""Credentials that end while a worker is connected, over real sockets. Deadlines: tests/actors/test_credentials.py."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from websockets.exceptions import ConnectionClosed
from websockets.trio.client import ClientConnection, connect
from websockets.typing import Subprotocol

SECONDS = 15.0


class Session:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._waiting: list[dict[str, Any]] = []

    async def say(self, **message: object) -> None:
        await self._connection.send(json.dumps(message))

    async def next(self, kind: str) -> dict[str, Any]:
        with trio.fail_after(SECONDS):
            while True:
                for message in self._waiting:
                    if message["type"] == kind:
                        self._waiting.remove(message)
                        return message
                frame = json.loads(await self._connection.recv())
                self._waiting += frame if isinstance(frame, list) else [frame]

    async def task(self) -> dict[str, Any]:
        offer = await self.next("tasks")
        await self.say(type="received", delivery=offer["delivery"])
        (task,) = offer["tasks"]
        return dict(task)

    async def closed(self) -> None:
        with pytest.raises(ConnectionClosed):
            await self.next("nothing that is ever said")


@asynccontextmanager
async def worker(client: Any, credential: str, *, max_tasks: int = 1) -> AsyncIterator[Session]:
    url = client.engine.url.replace("http", "ws") + "/workers"
    async with connect(url, subprotocols=[Subprotocol("stellwerk.v1")]) as connection:
        session = Session(connection)
        hello = {"type": "hello", "worker_id": "w", "boot_id": "b", "session_no": 1, "client": "test/1"}
        await session.say(**hello, token=credential)
        await session.next("welcome")
        await session.say(type="subscribe", topic="payment", max_tasks=max_tasks)
        yield session


async def state_of(client: Any, instance_id: str) -> str:
    (task,) = [task for task in await client.engine.node.tasks() if task.instance_id == instance_id]
    return str(task.state.value)


async def test_fault_145_a_token_that_runs_out_gets_no_work_until_a_fresh_one_comes_on_the_same_socket(
    serve: Any, make_issuer: Any
) -> None:
    issuer = make_issuer(int(time.time()))

    def token(seconds: int) -> str:
        return str(issuer.token(exp=int(time.time()) + seconds, scope="worker"))

    async with serve(jwt=issuer.config()) as client:
        node = client.engine.node
        async with worker(client, token(3), max_tasks=2) as session:
            first = await node.start_instance("order", {})
            held = await session.task()
            asked = await session.next("reauthenticate")
            assert asked["within_ms"] <= 3_000
            await trio.sleep(asked["within_ms"] / 1000 + 0.5)
            second = await node.start_instance("order", {})
            # What it holds it may still hand in; the place that this makes is for nobody.
            await session.say(type="complete", ref=1, task_id=held["task_id"], fence=held["fence"])
            assert (await session.next("ack"))["ref"] == 1
            assert (await node.wait_for_end(first, timeout_seconds=5)).status == "COMPLETED"
            assert await state_of(client, second) == "READY"
            await session.say(type="authenticate", token=token(600))
            assert (await session.task())["process_instance_id"] == second


async def test_fault_145_a_key_that_is_revoked_ends_the_connection_and_leaves_the_lease(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        key = await client.make_key(by=admin, scopes=["worker"])
        async with worker(client, key) as session:
            instance_id = await client.engine.node.start_instance("order", {})
            await session.task()
            began = trio.current_time()
            assert (await client.ask("DELETE", f"/keys/{key.split('_')[1]}", credential=admin)).status == 200
            error = await session.next("error")
            assert (error["code"], error["message"]) == ("unauthenticated", "the API key was revoked")
            await session.closed()
            assert trio.current_time() - began < 7
            assert await state_of(client, instance_id) == "LOCKED"
