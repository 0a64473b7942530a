"""Push over real connections that break in the ways that users of such engines have reported.

Between worker and engine stands a proxy that can fall silent or hang up.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest
import trio
from websockets.exceptions import ConnectionClosed
from websockets.trio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from stellwerk.actors.node import NodeConfig
from stellwerk.app import MEMORY, AppConfig, ServedEngine, serve_engine
from stellwerk.limits import Limits
from stellwerk.system.logging import LogLevel
from stellwerk.worker import Task, Worker

HEARTBEAT_SECONDS = 0.25
"""The shortest that there is: a sixth of the lock."""
LOCK_SECONDS = 1.5
LONG_LOCK_SECONDS = 600.0
MODEL = b"""<?xml version="1.0"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="order" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="charge"/>
    <serviceTask id="charge" stellwerk:topic="charge"/>
    <sequenceFlow id="f2" sourceRef="charge" targetRef="e"/>
    <endEvent id="e"/>
  </process>
</definitions>
"""


@pytest.fixture
async def engine() -> AsyncIterator[ServedEngine]:
    config = AppConfig(
        db=MEMORY,
        port=0,
        node=NodeConfig(limits=Limits(delivery_timeout_ms=1_000)),
        log_level=LogLevel.ERROR,
    )
    async with serve_engine(config) as running:
        await running.node.deploy([("order.bpmn", MODEL)])
        yield running


def port_of(engine: ServedEngine) -> int:
    return int(engine.url.rpartition(":")[2])


@attrs.define
class Proxy:
    """Hands bytes on, both ways, until it is told otherwise."""

    engine_port: int
    port: int = 0
    scopes: list[trio.CancelScope] = attrs.field(factory=list)
    silent: set[int] = attrs.field(factory=set)
    """Connections, by number, whose bytes go nowhere."""
    to_engine: list[trio.SocketStream] = attrs.field(factory=list)
    is_down: bool = False
    """New connections are closed at once."""

    async def serve(self, task_status: trio.TaskStatus[Proxy]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            task_status.started(self)
            await trio.serve_listeners(self._connection, [listener], handler_nursery=nursery)

    async def _connection(self, worker: trio.SocketStream) -> None:
        if self.is_down:
            await worker.aclose()
            return
        number = len(self.scopes)
        with trio.CancelScope() as scope:
            self.scopes.append(scope)
            engine = await trio.open_tcp_stream("127.0.0.1", self.engine_port)
            self.to_engine.append(engine)
            async with engine, worker, trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, number, worker, engine, scope)
                nursery.start_soon(self._pump, number, engine, worker, scope)

    async def _pump(
        self, number: int, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        try:
            async for data in source:
                if number not in self.silent:
                    await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        if number not in self.silent:
            scope.cancel()

    def fall_silent(self) -> None:
        """All connections that there are, and no new ones."""
        self.is_down = True
        self.silent |= set(range(len(self.scopes)))

    def hang_up(self) -> None:
        for scope in self.scopes:
            scope.cancel()

    def reset(self) -> None:
        """Break the connections to the engine without a goodbye, and take no new ones."""
        self.is_down = True
        for stream in self.to_engine:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.socket.close()


@pytest.fixture
async def proxy(engine: ServedEngine, nursery: trio.Nursery) -> AsyncIterator[Proxy]:
    started: Proxy = await nursery.start(Proxy(port_of(engine)).serve)
    yield started
    nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


async def subscribed(engine: ServedEngine, workers: int) -> None:
    """So many sessions are open, and so many workers have room."""

    def are_there() -> bool:
        statistics: Any = engine.node.statistics()
        topic = statistics["topics"].get("charge", {"workers": 0})
        return (statistics["sessions"], topic["workers"]) == (workers, workers)

    await until(are_there)


@attrs.define
class Helper:
    """A worker of the SDK and what it did."""

    worker: Worker
    began: list[str] = attrs.field(factory=list)
    ended: list[str] = attrs.field(factory=list)
    gate: trio.Event = attrs.field(factory=trio.Event)
    most_at_once: int = 0

    @classmethod
    async def connected(
        cls, nursery: trio.Nursery, port: int, *, max_tasks: int, lock_duration: float, is_held_up: bool = False
    ) -> Helper:
        helper = cls(Worker(f"http://127.0.0.1:{port}"))
        if not is_held_up:
            helper.gate.set()
        helper.worker.task("charge", max_tasks=max_tasks, lock_duration=lock_duration)(helper.handle)
        await nursery.start(helper.worker.serve)
        await until(helper.worker.is_healthy)
        return helper

    async def handle(self, payload: object, task: Task) -> None:
        self.began.append(task.process_instance_id)
        self.most_at_once = max(self.most_at_once, len(self.began) - len(self.ended))
        try:
            await self.gate.wait()
        finally:
            self.ended.append(task.process_instance_id)


async def completed(engine: ServedEngine, instance_id: str) -> Any:
    """→ the task and its attempts before the last"""
    summary = await engine.node.wait_for_end(instance_id, timeout_seconds=20)
    assert summary.status == "COMPLETED"
    ((task, attempts),) = (await engine.node.view(instance_id)).tasks
    assert task.retries_left == task.retries, "nothing cost a retry"
    return task, attempts


async def start(engine: ServedEngine) -> str:
    return await engine.node.start_instance("order", {})


async def test_fault_18_connection_that_fell_silent_is_found_out_by_both_sides(
    engine: ServedEngine, proxy: Proxy, nursery: trio.Nursery
) -> None:
    """A proxy drops what both sides say and closes nothing: heartbeats are missed, deliveries not confirmed."""
    far = await Helper.connected(nursery, proxy.port, max_tasks=50, lock_duration=LOCK_SECONDS)
    near = await Helper.connected(nursery, port_of(engine), max_tasks=5, lock_duration=LONG_LOCK_SECONDS)
    await subscribed(engine, 2)
    proxy.fall_silent()
    lost = await start(engine)
    await completed(engine, lost)
    assert near.began == [lost]
    assert far.began == []
    later = await start(engine)
    _, attempts = await completed(engine, later)
    assert attempts == (), "the silent one is asked no more"
    await until(lambda: not far.worker.is_healthy())
    await subscribed(engine, 1)
    proxy.is_down = False
    await subscribed(engine, 2)
    again = await start(engine)
    await completed(engine, again)
    assert far.began == [again], "it has most room, and is trusted again"


async def test_fault_20_connection_that_breaks_leaves_the_lease_with_its_worker(
    engine: ServedEngine, proxy: Proxy, nursery: trio.Nursery
) -> None:
    """It comes back, its handler has gone on all the while, and nobody else was asked."""
    far = await Helper.connected(nursery, proxy.port, max_tasks=50, lock_duration=LONG_LOCK_SECONDS, is_held_up=True)
    near = await Helper.connected(nursery, port_of(engine), max_tasks=1, lock_duration=LONG_LOCK_SECONDS)
    await subscribed(engine, 2)
    instance_id = await start(engine)
    await until(lambda: far.began == [instance_id])
    for number in range(3):
        proxy.hang_up()
        await until(lambda number=number: len(proxy.scopes) == number + 2)  # type: ignore[misc]
        await until(far.worker.is_healthy)
    assert far.ended == []
    far.gate.set()
    task, attempts = await completed(engine, instance_id)
    assert (task.attempt, attempts) == (1, ())
    assert (far.began, near.began) == ([instance_id], [])


async def test_fault_22_task_pushed_into_a_dead_connection_goes_back_at_once(
    engine: ServedEngine, proxy: Proxy, nursery: trio.Nursery
) -> None:
    """Long before its lock ends: the connection was reset, and its worker is the first to be asked."""
    far = await Helper.connected(nursery, proxy.port, max_tasks=50, lock_duration=LONG_LOCK_SECONDS)
    near = await Helper.connected(nursery, port_of(engine), max_tasks=1, lock_duration=LONG_LOCK_SECONDS)
    await subscribed(engine, 2)
    proxy.reset()
    instances = [await start(engine) for _ in range(3)]
    for instance_id in instances:
        await completed(engine, instance_id)
    assert sorted(near.began) == sorted(instances)
    assert far.began == []


async def test_fault_31_worker_never_holds_more_than_it_has_room_for(
    engine: ServedEngine, nursery: trio.Nursery
) -> None:
    helper = await Helper.connected(nursery, port_of(engine), max_tasks=5, lock_duration=LONG_LOCK_SECONDS)
    helper.gate = trio.Event()
    instances = [await start(engine) for _ in range(40)]
    await until(lambda: len(helper.began) == 5)
    await trio.sleep(3 * HEARTBEAT_SECONDS)
    assert engine.node.statistics()["leases_held"] == 5
    assert len(helper.began) == 5
    helper.gate.set()
    for instance_id in instances:
        await completed(engine, instance_id)
    assert sorted(helper.began) == sorted(instances)
    assert helper.most_at_once == 5


HELLO = {"type": "hello", "worker_id": "w", "boot_id": "b", "session_no": 1, "client": "test"}


async def receive_type(connection: ClientConnection, name: str) -> dict[str, Any]:
    with trio.fail_after(10):
        while True:
            frame = json.loads(await connection.recv())
            for message in frame if isinstance(frame, list) else [frame]:
                if message["type"] == name:
                    return dict(message)


async def test_fault_68_end_of_the_superseded_connection_leaves_its_successor_alone(engine: ServedEngine) -> None:
    """The new one keeps the lease, counts its deliveries from one, and goes on when the old one closes."""

    def dial() -> Any:
        return connect(f"ws://127.0.0.1:{port_of(engine)}/workers", subprotocols=[Subprotocol("stellwerk.v1")])

    subscribe = {"type": "subscribe", "topic": "charge", "max_tasks": 5}
    async with dial() as newer:
        async with dial() as older:
            await older.send(json.dumps([HELLO, subscribe]))
            offers: list[Any] = []
            for number in range(1, 4):
                await start(engine)
                tasks = await receive_type(older, "tasks")
                assert tasks["delivery"] == number
                await older.send(json.dumps({"type": "received", "delivery": number}))
                offers += tasks["tasks"]
            task = offers[2]
            lease = {"task_id": task["task_id"], "fence": task["fence"]}
            await newer.send(json.dumps([HELLO | {"session_no": 2, "holding": [lease]}, subscribe]))
            welcome = await receive_type(newer, "welcome")
            assert [kept["task_id"] for kept in welcome["kept"]] == [task["task_id"]]
            assert (await receive_type(older, "error"))["code"] == "superseded"
            with trio.fail_after(10), pytest.raises(ConnectionClosed):
                await older.recv()
        # The two that it did not name come again.
        again: list[str] = []
        delivery = 0
        while len(again) < 2:
            tasks = await receive_type(newer, "tasks")
            delivery += 1
            assert tasks["delivery"] == delivery
            await newer.send(json.dumps({"type": "received", "delivery": delivery}))
            again += [offer["process_instance_id"] for offer in tasks["tasks"]]
        assert task["process_instance_id"] not in again
        await newer.send(json.dumps({"type": "complete", "ref": 1, **lease, "variables": {}}))
        assert (await receive_type(newer, "ack"))["ref"] == 1
        _, attempts = await completed(engine, task["process_instance_id"])
        assert attempts == ()
        assert engine.node.statistics()["sessions"] == 1
