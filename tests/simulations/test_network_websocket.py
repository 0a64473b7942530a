"""Real WebSockets over the simulated network, and what they make of its faults; the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import pytest
import trio
import trio.testing
from trio_websocket import (
    ConnectionClosed,
    WebSocketConnection,
    WebSocketRequest,
    WebSocketServer,
    wrap_client_stream,
)

from simulations.world.network import NetworkSettings
from simulations.world.small_world import STEADY, SmallWorld

SERVER = "node-1"
CLIENT = "worker-1"
MS = 0.001


def two_hosts(settings: NetworkSettings = STEADY, *, seed: int = 1) -> SmallWorld:
    return SmallWorld(SERVER, CLIENT, settings=settings, seed=seed)


# --- under a real WebSocket -------------------------------------------------------------------------------------------


class Echo:
    """A WebSocket server and a client, each on a host of its own."""

    def __init__(self, world: SmallWorld) -> None:
        self._world = world
        self.answers: list[tuple[str, float]] = []
        self.broken_at: float | None = None

    async def serve(self) -> None:
        async def echo(request: WebSocketRequest) -> None:
            connection = await request.accept()
            try:
                while True:
                    question = cast(str, await connection.get_message())
                    await connection.send_message(question + "!")
            except ConnectionClosed:
                pass

        listener = cast("trio.SocketListener", self._world.network.listen(SERVER))  # any listener will do
        await WebSocketServer(echo, [listener]).run()

    async def ask(self, count: int, pause_seconds: float) -> None:
        stream = await self._world.network.dial(CLIENT, SERVER)
        try:
            async with trio.open_nursery() as nursery:
                connection = await wrap_client_stream(nursery, cast("trio.SocketStream", stream), SERVER, "/")
                for number in range(count):
                    await self._ask(connection, str(number))
                    await trio.sleep(pause_seconds)
                await connection.aclose()
        except* (ConnectionClosed, trio.BrokenResourceError):
            self.broken_at = trio.current_time()
        finally:
            await trio.aclose_forcefully(stream)

    async def _ask(self, connection: WebSocketConnection, question: str) -> None:
        await connection.send_message(question)
        answer = cast(str, await connection.get_message())
        self.answers.append((answer, trio.current_time()))

    def start(self, *, count: int = 10, pause_seconds: float = 0.1) -> None:
        async def ask() -> None:
            await self.ask(count, pause_seconds)

        self._world.hosts.start(SERVER, self.serve)
        self._world.hosts.start(CLIENT, ask)

    @property
    def pauses(self) -> list[float]:
        times = [time for _, time in self.answers]
        return [later - earlier for earlier, later in pairwise(times)]


EXPECTED = [f"{number}!" for number in range(10)]


def test_a_real_websocket_runs_over_it() -> None:
    async def body(world: SmallWorld) -> None:
        echo = Echo(world)
        echo.start()
        await world.hosts.ended(CLIENT)
        assert [answer for answer, _ in echo.answers] == EXPECTED
        await trio.sleep(1)
        assert world.network.open_connections() == 0

    two_hosts(NetworkSettings(fragment=0.5)).run(body)


def test_a_frozen_server_answers_when_it_goes_on_what_came_meanwhile() -> None:
    async def body(world: SmallWorld) -> None:
        echo = Echo(world)
        echo.start()
        await trio.sleep(0.35)
        world.hosts.freeze(SERVER)
        await world.network.dial(CLIENT, SERVER)  # its kernel takes connections meanwhile
        await trio.sleep(20)
        assert len(echo.answers) == 4
        world.hosts.thaw(SERVER)
        await world.hosts.ended(CLIENT)
        assert [answer for answer, _ in echo.answers] == EXPECTED
        assert max(echo.pauses) == pytest.approx(20, abs=0.2)

    two_hosts().run(body)


def test_a_cut_delays_a_websocket_and_breaks_nothing() -> None:
    async def body(world: SmallWorld) -> None:
        echo = Echo(world)
        echo.start()
        await trio.sleep(0.35)
        world.network.cut(SERVER, CLIENT)
        await trio.sleep(20)
        world.network.heal()
        await world.hosts.ended(CLIENT)
        assert [answer for answer, _ in echo.answers] == EXPECTED

    two_hosts().run(body)


@pytest.mark.parametrize("fault", ["reset", "stop"])
def test_a_websocket_hears_of_a_reset_and_of_a_killed_server(fault: str) -> None:
    async def body(world: SmallWorld) -> None:
        echo = Echo(world)
        echo.start(count=1_000)
        await trio.sleep(1)
        if fault == "reset":
            world.network.reset(CLIENT, SERVER)
        else:
            world.hosts.stop(SERVER)
        await world.hosts.ended(CLIENT)
        assert echo.broken_at == pytest.approx(1, abs=0.2)

    two_hosts().run(body)


# --- determinism ------------------------------------------------------------------------------------------------------


async def _stormy(world: SmallWorld) -> None:
    echo = Echo(world)
    echo.start(count=40, pause_seconds=0.05)
    network, hosts = world.network, world.hosts
    faults: list[Callable[[], None]] = [
        lambda: hosts.freeze(SERVER),
        lambda: hosts.thaw(SERVER),
        lambda: network.cut(CLIENT, SERVER, both=False),
        network.heal,
        lambda: network.slow(CLIENT, SERVER, 0.1),
        network.unslow,
        lambda: hosts.power_cut(SERVER),
        lambda: hosts.start(SERVER, echo.serve),
    ]
    for fault in faults:
        await trio.sleep(0.3)
        fault()
    await hosts.ended(CLIENT)
    assert echo.broken_at is not None


def _fingerprint(seed: int) -> tuple[object, ...]:
    world = two_hosts(NetworkSettings(fragment=0.3), seed=seed).run(_stormy)
    simulation = world.simulation
    return simulation.trace.digest(), simulation.scheduler.digest(), world.network.figures, simulation.properties.hits


def test_two_runs_of_one_seed_are_the_same_to_the_byte_and_another_seed_is_another_run() -> None:
    first, again, other = _fingerprint(1), _fingerprint(1), _fingerprint(2)
    assert first == again
    assert all(one != another for one, another in zip(first[:3], other[:3], strict=True))
