"""Bodies of requests in memory: together they have a bound, and small requests are served all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from stellwerk.actors.node_config import NodeConfig
from stellwerk.app import MEMORY, AppConfig, ServedEngine, serve_engine
from stellwerk.limits import Limits
from stellwerk.server.http.bodies import Bodies
from stellwerk.system.logging import LogLevel

ROOM = 1024 * 1024
KIB = 1024


@pytest.fixture
async def engine() -> AsyncIterator[ServedEngine]:
    """With room for one MiB of bodies."""
    limits = Limits(bodies_bytes_max=ROOM)
    async with serve_engine(
        AppConfig(db=MEMORY, port=0, log_level=LogLevel.ERROR, node=NodeConfig(limits=limits))
    ) as running:
        yield running


async def send_part(client: Any, size: int, part: int, path: str = "/api/v1/process-definitions") -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {size}\r\n\r\n"
    await client.stream.send_all(head.encode() + b" " * part)
    await trio.testing.wait_all_tasks_blocked(0.05)  # the engine, which runs in this loop, has read it


async def test_who_would_fill_the_memory_is_told_to_come_again_and_small_requests_are_served(
    engine: ServedEngine, connect_to: Any
) -> None:
    async with connect_to(engine) as first, connect_to(engine) as second:
        await send_part(first, 3 * ROOM, ROOM - 100 * KIB)
        refused = await second.post("/process-definitions", b" " * (200 * KIB))
        assert refused.status == 503
        assert refused.body["code"] == "overloaded"
        assert refused.headers["retry-after"] == "1"
        assert (await second.post("/process-instances", {"process_def_id": "none"})).status == 404
        await first.stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (await second.post("/process-definitions", b" " * (200 * KIB))).status == 400


async def test_one_body_by_itself_may_be_longer(engine: ServedEngine, client: Any, order_model: str) -> None:
    """The largest files that can be deployed are longer than there is room here."""
    for _ in range(3):
        files = [{"name": "order.bpmn", "xml": order_model + " " * (2 * ROOM)}]
        assert (await client.post("/process-definitions", {"files": files})).status == 201


@pytest.mark.parametrize("dialect", ["/engine-rest/deployment/create", "/atlas_engine/api/v1/process_definitions"])
async def test_other_dialects_share_the_room_and_say_it_in_their_form(
    engine: ServedEngine, connect_to: Any, dialect: str
) -> None:
    async with connect_to(engine) as first:
        await send_part(first, 3 * ROOM, ROOM - 10 * KIB)
        async with connect_to(engine) as other:
            refused = await other.post(f"/{dialect}", b" " * (200 * KIB))
    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"


def test_what_was_counted_is_given_back_once() -> None:
    bodies = Bodies(ROOM)
    one, other = bodies.begin(), bodies.begin()
    for _ in range(10):
        assert one.add(80 * KIB)
    assert bodies.bytes_held == 800 * KIB
    assert other.add(16 * KIB)
    assert bodies.bytes_held == 800 * KIB, "the first bytes of each are free"
    assert not other.add(500 * KIB)
    assert bodies.bytes_held == 800 * KIB
    other.release()
    one.read()
    assert bodies.bytes_held == 800 * KIB, "it is being worked on"
    one.release()
    one.release()
    assert bodies.bytes_held == 0
    small = bodies.begin()
    assert small.add(40 * KIB)
    assert bodies.bytes_held == 40 * KIB
    small.read()
    assert bodies.bytes_held == 0, "its request may wait for minutes"
