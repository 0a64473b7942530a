"""A worker process that does not let go: it works beyond the end of its leases, and hands in what it has all the same.

Run as ``python stubborn_worker.py LEDGER SEED LOCK_SECONDS TASKS_MAX URL URL…``; SIGTERM ends it. It speaks the
protocol by itself, because the library would drop such work before it is handed in. It renews no lease. Each result is
handed in at once, at the last moment, or too late, and on whatever connection there is then, until it is answered; a
process that was stopped (SIGSTOP) goes on in the same way.

The ledger is that of roaming_worker.py, and has a line (``refused``: task, fence, code) for each final refusal.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import attrs
import msgspec
import trio
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, open_websocket_url

from stellwerk.wire.codec import decode_engine_frame, encode_frame
from stellwerk.wire.messages import (
    SUBPROTOCOL,
    WORKERS_PATH,
    Ack,
    Complete,
    Hello,
    Nack,
    Received,
    Subscribe,
    TaskOffer,
    Tasks,
    Welcome,
)

TOPICS = ("first", "second", "third")
FRAME_BYTES_MAX = 4 * 1024 * 1024
SIGN_OF_LIFE_SECONDS = 0.2
AGAIN_SECONDS = 0.1
PATIENCE_SECONDS = 1.0
LAST_MOMENT_SECONDS = 0.012
LATE_SECONDS_MAX = 0.6


@attrs.define
class Stubborn:
    ledger: TextIO
    random: random.Random
    lock_ms: int
    tasks_max: int
    name: str
    nursery: trio.Nursery
    connection: WebSocketConnection | None = None
    deliveries: int = 0
    refs: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    open: dict[int, Complete] = attrs.field(factory=dict)
    """What was handed in and is not answered."""

    async def run(self, urls: Iterable[str]) -> None:
        for session_no, url in enumerate(itertools.cycle(urls), start=1):
            try:
                await self.connect(url, session_no)
            except* (HandshakeError, ConnectionClosed, OSError, trio.TooSlowError):
                pass
            self.connection = None
            await trio.sleep(AGAIN_SECONDS)

    async def connect(self, url: str, session_no: int) -> None:
        address = url.replace("http:", "ws:") + WORKERS_PATH
        async with open_websocket_url(
            address,
            subprotocols=[SUBPROTOCOL],
            connect_timeout=PATIENCE_SECONDS,
            disconnect_timeout=AGAIN_SECONDS,
        ) as connection:
            self.note("connected", url=url)
            await self.converse(connection, session_no)

    async def converse(self, connection: WebSocketConnection, session_no: int) -> None:
        self.deliveries = 0
        subscriptions = [Subscribe(topic, max_tasks=self.tasks_max, lock_duration_ms=self.lock_ms) for topic in TOPICS]
        hello = Hello(self.name, self.name, session_no, "stubborn/1")  # holding nothing: it says so, and acts otherwise
        await connection.send_message(encode_frame([hello]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.live, connection)
            while True:
                for message in decode_engine_frame(await connection.get_message(), FRAME_BYTES_MAX):
                    if isinstance(message, Welcome):
                        self.connection = connection
                        await connection.send_message(encode_frame([*subscriptions, *self.open.values()]))
                    await self.hear(message)

    async def live(self, connection: WebSocketConnection) -> None:
        """It is heard; a report of what it holds would renew its leases."""
        while True:
            await trio.sleep(SIGN_OF_LIFE_SECONDS)
            with trio.fail_after(PATIENCE_SECONDS):
                await connection.send_message(encode_frame([Received(self.deliveries)]))
                await connection.ping()

    async def hear(self, message: Any) -> None:
        match message:
            case Tasks(delivery, offers):
                self.deliveries = delivery
                await self.say(Received(delivery))
                for offer in offers:
                    self.nursery.start_soon(self.work, offer)
            case Ack(ref) if ref in self.open:
                request = self.open.pop(ref)
                self.note("acknowledged", task=request.task_id, fence=request.fence)
            case Nack(ref, code, retryable=False) if ref in self.open:
                request = self.open.pop(ref)
                self.note("refused", task=request.task_id, fence=request.fence, code=code)
            case Nack(ref) if ref in self.open:
                self.nursery.start_soon(self.again, ref)

    async def work(self, offer: TaskOffer) -> None:
        left = offer.lock_remaining_ms / 1000
        at_once = self.random.uniform(0, 0.06)
        last_moment = left + self.random.uniform(-LAST_MOMENT_SECONDS, LAST_MOMENT_SECONDS)
        late = left + self.random.uniform(0, LATE_SECONDS_MAX)
        await trio.sleep(self.random.choice([at_once, last_moment, late]))
        value = self.random.getrandbits(48)
        variables = msgspec.Raw(json.dumps({offer.topic: value}).encode())
        request = Complete(next(self.refs), offer.task_id, offer.fence, variables)
        self.open[request.ref] = request
        own = {"task": offer.task_id, "fence": offer.fence, "instance": offer.process_instance_id}
        self.note("done", **own, topic=offer.topic, value=value)
        await self.say(request)

    async def again(self, ref: int) -> None:
        await trio.sleep(AGAIN_SECONDS)
        if ref in self.open:
            await self.say(self.open[ref])

    async def say(self, message: Received | Complete) -> None:
        """Without a connection: the next one begins with what is open."""
        if self.connection is not None:
            try:
                await self.connection.send_message(encode_frame([message]))
            except ConnectionClosed:
                self.connection = None

    def note(self, event: str, **values: object) -> None:
        self.ledger.write(json.dumps({"event": event, **values}) + "\n")


async def main() -> None:
    ledger_file, seed, lock_seconds, tasks_max, *urls = sys.argv[1:]
    with Path(ledger_file).open("a", buffering=1) as ledger, trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            lock_ms = round(float(lock_seconds) * 1000)
            worker = Stubborn(ledger, random.Random(int(seed)), lock_ms, int(tasks_max), f"stubborn-{seed}", nursery)
            first = int(seed) % len(urls)
            nursery.start_soon(worker.run, [*urls[first:], *urls[:first]])
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break


if __name__ == "__main__":
    trio.run(main)
