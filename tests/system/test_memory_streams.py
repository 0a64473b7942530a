"""Connections within the process behave like sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
import trio
import trio.testing

from stellwerk.system.memory_streams import BUFFER_BYTES_MAX, MemoryListener, memory_stream_pair

Pair: TypeAlias = tuple[trio.abc.HalfCloseableStream, trio.abc.HalfCloseableStream]
MakePair: TypeAlias = Callable[[], Awaitable[Pair]]


async def memory_pair() -> Pair:
    return memory_stream_pair()


async def clogged_memory_pair() -> Pair:
    ours, theirs = memory_stream_pair(100)
    await ours.send_all(bytes(100))
    await theirs.send_all(bytes(100))
    return ours, theirs


async def socket_pair() -> Pair:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    ours = await trio.testing.open_stream_to_socket_listener(listener)
    theirs = await listener.accept()
    await listener.aclose()
    return ours, theirs


async def test_they_are_streams_by_trios_own_tests() -> None:
    await trio.testing.check_half_closeable_stream(memory_pair, clogged_memory_pair)


async def test_a_writer_waits_for_a_reader_that_is_slow() -> None:
    ours, theirs = memory_stream_pair()
    sent = bytes(range(251)) * (4 * BUFFER_BYTES_MAX // 251)
    is_sent = trio.Event()

    async def send() -> None:
        await ours.send_all(sent)
        is_sent.set()
        await ours.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        received = b""
        while len(received) < len(sent) - BUFFER_BYTES_MAX:
            await trio.testing.wait_all_tasks_blocked()
            assert not is_sent.is_set()
            received += await theirs.receive_some()
        while data := await theirs.receive_some():
            received += data
    assert received == sent


@pytest.mark.parametrize("make_pair", [memory_pair, socket_pair])
async def test_after_the_end_of_the_data_the_other_direction_goes_on(make_pair: MakePair) -> None:
    ours, theirs = await make_pair()
    async with ours, theirs:
        await ours.send_all(b"question")
        await ours.send_eof()
        assert await theirs.receive_some() == b"question"
        assert await theirs.receive_some() == b""
        with pytest.raises(trio.ClosedResourceError):
            await ours.send_all(b"more")
        await theirs.send_all(b"answer")
        assert await ours.receive_some() == b"answer"


@pytest.mark.parametrize("make_pair", [memory_pair, socket_pair])
async def test_what_was_sent_before_the_close_arrives(make_pair: MakePair) -> None:
    ours, theirs = await make_pair()
    async with theirs:
        await ours.send_all(b"last words")
        await ours.aclose()
        assert await theirs.receive_some(4) == b"last"
        assert await theirs.receive_some() == b" words"
        assert await theirs.receive_some() == b""


@pytest.mark.parametrize("make_pair", [memory_pair, socket_pair])
async def test_closing_with_data_unread_resets_the_connection(make_pair: MakePair) -> None:
    ours, theirs = await make_pair()
    async with theirs:
        await theirs.send_all(b"never read")
        if isinstance(ours, trio.SocketStream):
            await trio.lowlevel.wait_readable(ours.socket)
        await trio.aclose_forcefully(ours)
        with pytest.raises(trio.BrokenResourceError):
            await theirs.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await theirs.send_all(b"hello?")


@pytest.mark.parametrize("make_pair", [memory_pair, socket_pair])
async def test_who_waits_on_a_stream_hears_that_it_was_closed_here(make_pair: MakePair) -> None:
    ours, theirs = await make_pair()
    heard: list[str] = []

    async def receive() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_some()
        heard.append("receiver")

    async def send() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.send_all(bytes(64 * 1024 * 1024))
        heard.append("sender")

    async with theirs, trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        await trio.aclose_forcefully(ours)
    assert sorted(heard) == ["receiver", "sender"]


async def test_a_writer_that_waits_hears_that_the_reader_is_gone() -> None:
    ours, theirs = await clogged_memory_pair()

    async def send() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(b"more")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        await theirs.aclose()


async def test_a_listener_accepts_what_connects() -> None:
    listener = MemoryListener()
    async with listener:
        client = await listener.connect()
        server = await listener.accept()
        await client.send_all(b"hello")
        assert await server.receive_some() == b"hello"


async def test_a_closed_listener_refuses_like_a_port_without_one() -> None:
    listener = MemoryListener()
    waits_to_be_accepted = await listener.connect()
    await listener.aclose()
    with pytest.raises(ConnectionRefusedError):
        await listener.connect()
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()
    assert await waits_to_be_accepted.receive_some() == b""
    await listener.aclose()


async def test_who_waits_for_room_to_connect_when_the_listener_closes_is_not_left_waiting() -> None:
    listener = MemoryListener()
    ended: list[bytes | str] = []

    async def connect() -> None:
        try:
            stream = await listener.connect()
        except ConnectionRefusedError:
            ended.append("refused")
        else:
            ended.append(await stream.receive_some())

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(connect)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
        await listener.aclose()
    assert len(ended) == 200
    assert set(ended) <= {b"", "refused"}
