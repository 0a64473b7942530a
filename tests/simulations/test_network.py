"""The simulated network is as strict as TCP, and what befalls it is what befalls networks."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

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

from simulations.kernel.simulation import Simulation
from simulations.world.hosts import HostClock, Hosts
from simulations.world.network import Network, NetworkSettings
from simulations.world.pipes import WINDOW_BYTES
from simulations.world.streams import SimulatedStream

SERVER = "node-1"
CLIENT = "worker-1"
STEADY = NetworkSettings(latency=(0.001, 0.001), slow=0.0)
"""Every piece takes a millisecond."""
MS = 0.001


class World:
    """A simulation with a server and a client. A violation fails the test."""

    def __init__(self, settings: NetworkSettings = STEADY, *, seed: int = 1) -> None:
        self.simulation = Simulation(seed, keep_trace=True)
        self.network = Network(self.simulation, settings)
        self.hosts: Hosts
        self._error: BaseException | None = None

    @property
    def hits(self) -> set[str]:
        return {name.removeprefix("network: ") for name in self.simulation.properties.hits}

    def run(self, body: Callable[[World], Awaitable[None]]) -> World:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                self.hosts = Hosts(self.simulation, self.network, nursery)
                for name in (SERVER, CLIENT):
                    self.hosts.add(name, HostClock(self.simulation))
                try:
                    await body(self)
                except Exception as error:
                    self._error = error
                self.simulation.abort()  # which alone ends what was killed

        self.simulation.run(main)
        if self._error is not None:
            raise self._error
        assert self.simulation.properties.violations == []
        return self

    async def pair(self) -> tuple[SimulatedStream, SimulatedStream]:
        """→ the client's end and the server's, of a connection between hosts without programs."""
        listener = self.network.listen(SERVER, 8000 + self.network.figures.connections)
        client = await self.network.dial(CLIENT, SERVER, listener.port)
        server = await listener.accept()
        await listener.aclose()
        return client, server


async def read_all(stream: SimulatedStream) -> bytes:
    received = b""
    while data := await stream.receive_some():
        received += data
    return received


@contextmanager
def takes(seconds: float) -> Iterator[None]:
    began = trio.current_time()
    yield
    assert trio.current_time() - began == pytest.approx(seconds, abs=1e-5)


async def has_nothing_for(stream: SimulatedStream, seconds: float) -> bool:
    with trio.move_on_after(seconds):
        await stream.receive_some()
        return False
    return True


# --- a stream ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [NetworkSettings(latency=(0.0, 0.0), slow=0.0), NetworkSettings(slow=0.2, fragment=0.5)],
    ids=["at once", "late and in pieces"],
)
def test_it_is_a_stream_by_trios_own_tests(settings: NetworkSettings) -> None:
    async def main() -> None:
        network = Network(Simulation(1), settings)
        listener = network.listen(SERVER)

        async def pair() -> tuple[SimulatedStream, SimulatedStream]:
            return await network.dial(CLIENT, SERVER), await listener.accept()

        async def clogged_pair() -> tuple[SimulatedStream, SimulatedStream]:
            ours, theirs = await pair()
            await ours.send_all(bytes(WINDOW_BYTES))
            await theirs.send_all(bytes(WINDOW_BYTES))
            return ours, theirs

        await trio.testing.check_half_closeable_stream(pair, clogged_pair)
        assert network.open_connections() == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_data_take_the_latency_of_their_link_and_keep_their_order() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        for number in range(200):
            await ours.send_all(b"%d " % number)
            await trio.sleep(MS)
        await ours.send_eof()
        assert (await read_all(theirs)).split() == [b"%d" % number for number in range(200)]

    assert "a piece was late" in World(NetworkSettings(slow=0.3)).run(body).hits


def test_a_reader_wakes_up_just_when_data_arrive() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_all, b"x")
            with takes(1 * MS):
                assert await theirs.receive_some() == b"x"
        steps = world.simulation.scheduler.steps
        async with trio.open_nursery() as nursery:
            nursery.start_soon(theirs.receive_some)
            await ours.send_all(b"y")
        assert world.simulation.scheduler.steps - steps <= 5

    World().run(body)


def test_a_sender_waits_for_a_reader_that_is_slow() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        sent = bytes(range(251)) * 1000
        progress: list[float] = []

        async def send() -> None:
            await ours.send_all(sent)
            progress.append(trio.current_time())
            await ours.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            received = b""
            while len(received) + WINDOW_BYTES < len(sent):
                await trio.sleep(1)
                assert not progress
                received += await theirs.receive_some(10_000)
            await trio.sleep(1)
            assert progress
            assert received + await read_all(theirs) == sent

    assert "a sender waited for its reader" in World().run(body).hits


def test_data_may_arrive_in_pieces_but_complete() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        sent = bytes(range(200))
        await ours.send_all(sent)
        received = [await theirs.receive_some()]
        while sum(map(len, received)) < len(sent):
            received.append(await theirs.receive_some())
        assert len(received) > 1
        assert b"".join(received) == sent

    assert "data arrived in pieces" in World(NetworkSettings(fragment=1.0)).run(body).hits


def test_who_closes_with_something_unread_resets_the_connection() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        await ours.send_all(b"question")
        await theirs.send_all(b"answer")
        await trio.sleep(2 * MS)
        await theirs.aclose()
        assert await ours.receive_some() == b"answer"
        with takes(1 * MS), pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.receive_some()
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.send_all(b"more")

    World().run(body)


def test_who_sends_to_a_closed_peer_learns_of_it_a_round_trip_later() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        await theirs.aclose()
        await trio.sleep(1)
        await ours.send_all(b"x")
        await trio.sleep(1.9 * MS)
        await ours.send_all(b"y")
        await trio.sleep(0.2 * MS)
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.send_all(b"z")

    World().run(body)


def test_who_waits_for_room_learns_that_the_peer_closed() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        await ours.send_all(bytes(WINDOW_BYTES))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(theirs.aclose)
            with takes(2 * MS), pytest.raises(trio.BrokenResourceError, match="reset"):
                await ours.send_all(b"x")

    World().run(body)


# --- dialling ---------------------------------------------------------------------------------------------------------


def test_a_dial_is_refused_where_nobody_listens() -> None:
    async def body(world: World) -> None:
        with takes(2 * MS), pytest.raises(ConnectionRefusedError, match="node-1:80 refused"):
            await world.network.dial(CLIENT, SERVER)
        listener = world.network.listen(SERVER)
        with pytest.raises(OSError, match="node-1:80 already"):
            world.network.listen(SERVER)
        await listener.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()
        with pytest.raises(ConnectionRefusedError):
            await world.network.dial(CLIENT, SERVER)
        world.network.listen(SERVER)
        world.network.refuse(SERVER, True)
        with pytest.raises(ConnectionRefusedError):
            await world.network.dial(CLIENT, SERVER)
        world.network.refuse(SERVER, False)
        await world.network.dial(CLIENT, SERVER)

    world = World().run(body)
    assert [row.kind for row in world.simulation.trace.rows] == ["refused"] * 3 + ["dial"]
    assert "a dial was refused" in world.hits


@pytest.mark.parametrize("there", [True, False], ids=["there", "back"])
def test_a_dial_over_a_cut_times_out_and_one_that_is_patient_comes_through(there: bool) -> None:
    async def body(world: World) -> None:
        listener = world.network.listen(SERVER)
        world.network.cut(*((CLIENT, SERVER) if there else (SERVER, CLIENT)), both=False)
        with takes(3), pytest.raises(TimeoutError, match="node-1:80 did not answer within 3 s"):
            await world.network.dial(CLIENT, SERVER, timeout=3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.network.dial, CLIENT, SERVER)
            await trio.sleep(5)
            world.network.heal()
            await listener.accept()

    assert {"a dial timed out", "a link was cut one way"} <= World().run(body).hits


def test_a_dial_to_a_host_without_power_times_out_and_to_a_stopped_one_is_refused() -> None:
    async def program() -> None:
        world.network.listen(SERVER)
        await trio.sleep_forever()

    async def body(world: World) -> None:
        world.hosts.start(SERVER, program)
        await trio.sleep(0)
        await world.network.dial(CLIENT, SERVER)
        world.hosts.power_cut(SERVER)
        with takes(10), pytest.raises(TimeoutError):
            await world.network.dial(CLIENT, SERVER)
        world.hosts.start(SERVER, program)
        await world.network.dial(CLIENT, SERVER)
        world.hosts.stop(SERVER)
        with takes(2 * MS), pytest.raises(ConnectionRefusedError):
            await world.network.dial(CLIENT, SERVER)

    world = World()
    world.run(body)


def test_beyond_the_backlog_a_dial_waits() -> None:
    async def body(world: World) -> None:
        listener = world.network.listen(SERVER)
        for _ in range(128):
            await world.network.dial(CLIENT, SERVER)
        with pytest.raises(TimeoutError):
            await world.network.dial(CLIENT, SERVER, timeout=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.network.dial, CLIENT, SERVER)
            await trio.sleep(1)
            assert world.network.figures.connections == 128
            await listener.accept()
        assert world.network.figures.connections == 129

    World().run(body)


# --- cuts -------------------------------------------------------------------------------------------------------------


def test_a_cut_holds_data_back_and_healing_delivers_them_in_order() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        await ours.send_all(b"arrived ")
        await trio.sleep(2 * MS)
        await ours.send_all(b"under way ")
        world.network.cut(CLIENT, SERVER)
        assert world.network.is_cut(SERVER, CLIENT)
        await ours.send_all(b"sent into the cut ")
        assert await theirs.receive_some() == b"arrived "
        assert await has_nothing_for(theirs, 30)
        world.network.heal(SERVER, CLIENT)
        await ours.send_all(b"after it")
        await ours.send_eof()
        with takes(1 * MS):
            assert await read_all(theirs) == b"under way sent into the cut after it"

    assert "what a cut held back arrived after it was healed" in World().run(body).hits


def test_order_is_kept_over_many_cuts() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()

        async def send() -> None:
            for number in range(300):
                await ours.send_all(b"%d " % number)
                await trio.sleep(MS)
            await ours.send_eof()

        async def disturb() -> None:
            for _ in range(10):
                await trio.sleep(0.02)
                world.network.cut(CLIENT, SERVER, both=False)
                await trio.sleep(0.011)
                world.network.heal()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            nursery.start_soon(disturb)
            received = await read_all(theirs)
        assert received.split() == [b"%d" % number for number in range(300)]

    World(NetworkSettings(slow=0.1, fragment=0.5)).run(body)


def test_a_link_that_is_cut_one_way_carries_data_the_other_way_up_to_a_window() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        world.network.cut(SERVER, CLIENT, both=False)
        await theirs.send_all(b"held back")
        sent = bytes(range(256)) * 400

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_all, sent)
            received = b""
            while len(received) < WINDOW_BYTES:
                received += await theirs.receive_some()
            assert await has_nothing_for(theirs, 5), "no acknowledgement makes room for more"
            assert await has_nothing_for(ours, 5)
            world.network.heal()
            while len(received) < len(sent):
                received += await theirs.receive_some()
        assert received == sent
        assert await ours.receive_some() == b"held back"

    World().run(body)


def test_healing_one_host_leaves_other_links_cut() -> None:
    async def body(world: World) -> None:
        network = world.network
        network.cut("node-1", "node-2")
        network.cut("node-2", "database")
        network.cut("node-1", "worker-1", both=False)
        network.heal("node-1")
        assert not network.is_cut("node-1", "node-2")
        assert not network.is_cut("node-1", "worker-1")
        assert network.is_cut("node-2", "database")
        network.heal()
        assert not network.is_cut("database", "node-2")

    World().run(body)


def test_a_slow_link_is_slow_both_ways_until_it_is_not() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        world.network.slow(SERVER, CLIENT, 0.5)
        for sender, reader in ((ours, theirs), (theirs, ours)):
            await sender.send_all(b"x")
            with takes(0.501):
                await reader.receive_some()
        world.network.unslow(SERVER, CLIENT)
        await ours.send_all(b"x")
        with takes(1 * MS):
            await theirs.receive_some()

    World().run(body)


# --- resets and silence -----------------------------------------------------------------------------------------------


def test_a_reset_breaks_both_ends_and_what_was_under_way_is_lost() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        other, _ = await world.pair()
        await ours.send_all(b"arrived")
        await trio.sleep(2 * MS)
        await ours.send_all(b"lost")
        world.network.reset(SERVER, CLIENT)
        assert await theirs.receive_some() == b"arrived"
        for end in (ours, theirs, other):
            with pytest.raises(trio.BrokenResourceError, match="reset"):
                await end.receive_some()
            with pytest.raises(trio.BrokenResourceError, match="reset"):
                await end.send_all(b"x")
        again, _ = await world.pair()
        await again.send_all(b"new connections are no part of it")

    world = World().run(body)
    assert sum(row.kind == "reset" for row in world.simulation.trace.rows) == 3


def test_a_reset_wakes_up_who_waits() -> None:
    async def wait(stream: SimulatedStream) -> None:
        with takes(1), pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()

    async def send(stream: SimulatedStream) -> None:
        with takes(1), pytest.raises(trio.BrokenResourceError):
            await stream.send_all(bytes(2 * WINDOW_BYTES))

    async def body(world: World) -> None:
        ours, _ = await world.pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, ours)
            nursery.start_soon(send, ours)
            await trio.sleep(1)
            world.network.reset_host(SERVER)

    World().run(body)


def test_a_connection_that_was_forgotten_between_stays_and_carries_nothing() -> None:
    async def body(world: World) -> None:
        ours, theirs = await world.pair()
        await theirs.send_all(b"under way")
        world.network.silence(CLIENT, SERVER)
        await ours.send_all(bytes(WINDOW_BYTES))
        assert await has_nothing_for(theirs, 600)
        assert await has_nothing_for(ours, 600)
        with trio.move_on_after(600) as patience:
            await ours.send_all(b"no room")
        assert patience.cancelled_caught
        await ours.aclose()
        assert await has_nothing_for(theirs, 600)
        new, accepted = await world.pair()
        await new.send_all(b"others pass")
        assert await accepted.receive_some() == b"others pass"

    hits = World().run(body).hits
    assert {"a connection became half-open", "something was sent into a half-open connection"} <= hits


# --- hosts ------------------------------------------------------------------------------------------------------------


def test_the_peer_of_a_host_without_power_hears_nothing() -> None:
    async def body(world: World) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, theirs = await world.pair()
        await theirs.send_all(b"last words")
        world.hosts.power_cut(SERVER)
        with takes(1 * MS):
            assert await ours.receive_some() == b"last words"
        assert await has_nothing_for(ours, 600)
        await ours.send_all(b"into the dark")
        assert await has_nothing_for(ours, 600)
        assert world.network.open_connections() == 1
        await ours.aclose()
        assert world.network.open_connections() == 0

    assert "the peer of a connection lost power" in World().run(body).hits


def test_a_cut_keeps_what_a_host_said_before_its_power_was_cut() -> None:
    async def body(world: World) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, theirs = await world.pair()
        world.network.cut(SERVER, CLIENT)
        await theirs.send_all(b"never sent again")
        world.hosts.power_cut(SERVER)
        world.network.heal()
        assert await has_nothing_for(ours, 600)

    World().run(body)


def test_a_restarted_host_resets_old_connections_when_something_is_sent() -> None:
    async def body(world: World) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, _ = await world.pair()
        world.hosts.power_cut(SERVER)
        await trio.sleep(5)
        world.hosts.start(SERVER, trio.sleep_forever)
        assert await has_nothing_for(ours, 60)
        await ours.send_all(b"are you there?")
        with takes(2 * MS), pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.receive_some()

    World().run(body)


def test_what_a_dead_host_did_not_acknowledge_is_sent_again_and_then_refused() -> None:
    async def body(world: World) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, _ = await world.pair()
        world.hosts.power_cut(SERVER)
        await ours.send_all(b"into the dark")
        await trio.sleep(5)
        world.hosts.start(SERVER, trio.sleep_forever)
        began = trio.current_time()
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.receive_some()
        assert 2 * MS <= trio.current_time() - began <= 5 + 2 * MS

    assert "a restarted host refused what was sent again" in World().run(body).hits


@pytest.mark.parametrize("unread", [False, True])
def test_the_kernel_of_a_killed_program_closes_its_connections(unread: bool) -> None:
    async def body(world: World) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, theirs = await world.pair()
        await theirs.send_all(b"last words")
        if unread:
            await ours.send_all(b"unread")
            await trio.sleep(2 * MS)
        world.hosts.stop(SERVER)
        assert await ours.receive_some() == b"last words"
        if unread:
            with pytest.raises(trio.BrokenResourceError, match="reset"):
                await ours.receive_some()
        else:
            assert await ours.receive_some() == b""
            await ours.send_all(b"x")
            await trio.sleep(3 * MS)
            with pytest.raises(trio.BrokenResourceError, match="reset"):
                await ours.send_all(b"y")

    World().run(body)


def test_a_program_that_returns_leaves_no_connection_open() -> None:
    async def program() -> None:
        async with trio.open_nursery() as nursery:
            listener = world.network.listen(SERVER)
            nursery.start_soon(world.network.dial, SERVER, SERVER)
            await listener.accept()

    async def body(world: World) -> None:
        world.hosts.start(SERVER, program)
        await world.hosts.ended(SERVER)
        assert world.network.open_connections() == 0
        world.network.listen(SERVER)

    world = World()
    world.run(body)


# --- single messages --------------------------------------------------------------------------------------------------


def test_a_message_is_carried_late_by_a_cut_and_never_to_the_dead() -> None:
    async def body(world: World) -> None:
        network = world.network
        with takes(1 * MS):
            await network.carry(CLIENT, "database")
        network.cut(CLIENT, "database")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_heal_after, network, 4)
            with takes(4 + 1 * MS):
                await network.carry(CLIENT, "database")
        world.hosts.start(SERVER, trio.sleep_forever)
        for kill in (world.hosts.power_cut, world.hosts.stop):
            with trio.move_on_after(60) as patience:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(network.carry, CLIENT, SERVER)
                    await trio.sleep(0.5 * MS)
                    kill(SERVER)
                    nursery.start_soon(network.carry, CLIENT, SERVER)
                    await trio.sleep(5)
                    world.hosts.start(SERVER, trio.sleep_forever)
                    with takes(1 * MS):
                        await network.carry(CLIENT, SERVER)
            assert patience.cancelled_caught

    World().run(body)


async def _heal_after(network: Network, seconds: float) -> None:
    await trio.sleep(seconds)
    network.heal()


# --- under a real WebSocket -------------------------------------------------------------------------------------------


class Echo:
    """A WebSocket server and a client, each on a host of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.answers: list[tuple[str, float]] = []

    async def serve(self) -> None:
        async def echo(request: WebSocketRequest) -> None:
            connection = await request.accept()
            try:
                while True:
                    await connection.send_message(f"{await connection.get_message()}!")
            except ConnectionClosed:
                pass

        await WebSocketServer(echo, [self._world.network.listen(SERVER)]).run()

    async def ask(self, count: int, pause_seconds: float) -> None:
        stream = await self._world.network.dial(CLIENT, SERVER)
        try:
            async with trio.open_nursery() as nursery:
                connection = await wrap_client_stream(nursery, stream, SERVER, "/")
                for number in range(count):
                    await self._ask(connection, str(number))
                    await trio.sleep(pause_seconds)
                await connection.aclose()
        finally:
            await trio.aclose_forcefully(stream)

    async def _ask(self, connection: WebSocketConnection, question: str) -> None:
        await connection.send_message(question)
        self.answers.append((await connection.get_message(), trio.current_time()))

    def start(self, *, count: int = 10, pause_seconds: float = 0.1) -> None:
        async def ask() -> None:
            await self.ask(count, pause_seconds)

        self._world.hosts.start(SERVER, self.serve)
        self._world.hosts.start(CLIENT, ask)

    @property
    def pauses(self) -> list[float]:
        times = [time for _, time in self.answers]
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]


EXPECTED = [f"{number}!" for number in range(10)]


def test_a_real_websocket_runs_over_it() -> None:
    async def body(world: World) -> None:
        echo = Echo(world)
        echo.start()
        await world.hosts.ended(CLIENT)
        assert [answer for answer, _ in echo.answers] == EXPECTED
        await trio.sleep(1)
        assert world.network.open_connections() == 0

    World(NetworkSettings(fragment=0.5)).run(body)


def test_a_frozen_server_answers_when_it_goes_on_what_came_meanwhile() -> None:
    async def body(world: World) -> None:
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

    World().run(body)


def test_a_cut_delays_a_websocket_and_breaks_nothing() -> None:
    async def body(world: World) -> None:
        echo = Echo(world)
        echo.start()
        await trio.sleep(0.35)
        world.network.cut(SERVER, CLIENT)
        await trio.sleep(20)
        world.network.heal()
        await world.hosts.ended(CLIENT)
        assert [answer for answer, _ in echo.answers] == EXPECTED

    World().run(body)


@pytest.mark.parametrize("fault", ["reset", "stop"])
def test_a_websocket_hears_of_a_reset_and_of_a_killed_server(fault: str) -> None:
    broken: list[float] = []

    async def body(world: World) -> None:
        echo = Echo(world)

        async def ask() -> None:
            try:
                await echo.ask(math.inf, 0.1)  # type: ignore[arg-type]
            except* (ConnectionClosed, trio.BrokenResourceError):
                broken.append(trio.current_time())

        world.hosts.start(SERVER, echo.serve)
        world.hosts.start(CLIENT, ask)
        await trio.sleep(1)
        if fault == "reset":
            world.network.reset(CLIENT, SERVER)
        else:
            world.hosts.stop(SERVER)
        await world.hosts.ended(CLIENT)

    World().run(body)
    assert broken == [pytest.approx(1, abs=0.2)]
