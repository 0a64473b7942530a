"""The simulated network is as strict as TCP, and what befalls it is what befalls networks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

from simulations.kernel.simulation import Simulation
from simulations.world.network import Network, NetworkSettings
from simulations.world.pipes import WINDOW_BYTES
from simulations.world.small_world import STEADY, SmallWorld, read_all, takes
from simulations.world.streams import SimulatedStream

SERVER = "node-1"
CLIENT = "worker-1"
MS = 0.001


def two_hosts(settings: NetworkSettings = STEADY, *, seed: int = 1) -> SmallWorld:
    return SmallWorld(SERVER, CLIENT, settings=settings, seed=seed)


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
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        for number in range(200):
            await ours.send_all(b"%d " % number)
            await trio.sleep(MS)
        await ours.send_eof()
        assert (await read_all(theirs)).split() == [b"%d" % number for number in range(200)]

    assert "network: a piece was late" in two_hosts(NetworkSettings(slow=0.3)).run(body).hits


def test_a_reader_wakes_up_just_when_data_arrive() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_all, b"x")
            with takes(1 * MS):
                assert await theirs.receive_some() == b"x"
        steps = world.simulation.scheduler.steps
        async with trio.open_nursery() as nursery:
            nursery.start_soon(theirs.receive_some)
            await ours.send_all(b"y")
        assert world.simulation.scheduler.steps - steps <= 5

    two_hosts().run(body)


def test_a_sender_waits_for_a_reader_that_is_slow() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
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

    assert "network: a sender waited for its reader" in two_hosts().run(body).hits


def test_data_may_arrive_in_pieces_but_complete() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        sent = bytes(range(200))
        await ours.send_all(sent)
        received = [await theirs.receive_some()]
        while sum(map(len, received)) < len(sent):
            received.append(await theirs.receive_some())
        assert len(received) > 1
        assert b"".join(received) == sent

    assert "network: data arrived in pieces" in two_hosts(NetworkSettings(fragment=1.0)).run(body).hits


def test_who_closes_with_something_unread_resets_the_connection() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        await ours.send_all(b"question")
        await theirs.send_all(b"answer")
        await trio.sleep(2 * MS)
        await theirs.aclose()
        assert await ours.receive_some() == b"answer"
        with takes(1 * MS), pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.receive_some()
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.send_all(b"more")

    two_hosts().run(body)


def test_who_sends_to_a_closed_peer_learns_of_it_a_round_trip_later() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        await theirs.aclose()
        await trio.sleep(1)
        await ours.send_all(b"x")
        await trio.sleep(1.9 * MS)
        await ours.send_all(b"y")
        await trio.sleep(0.2 * MS)
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.send_all(b"z")

    two_hosts().run(body)


def test_a_reset_does_not_overtake_the_data_before_it() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        await ours.send_all(b"unread")
        await trio.sleep(2 * MS)
        world.network.slow(CLIENT, SERVER, 1)
        await theirs.send_all(b"late")
        world.network.unslow()
        await theirs.aclose()
        await trio.sleep(0.5)
        await ours.send_all(b"nothing is known of the reset")
        with takes(0.501):
            assert await ours.receive_some() == b"late"
        with takes(0), pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.receive_some()

    two_hosts().run(body)


def test_who_waits_for_room_learns_that_the_peer_closed() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        await ours.send_all(bytes(WINDOW_BYTES))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(theirs.aclose)
            with takes(2 * MS), pytest.raises(trio.BrokenResourceError, match="reset"):
                await ours.send_all(b"x")

    two_hosts().run(body)


# --- dialling ---------------------------------------------------------------------------------------------------------


def test_a_dial_is_refused_where_nobody_listens() -> None:
    async def body(world: SmallWorld) -> None:
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

    world = two_hosts().run(body)
    assert [row.kind for row in world.simulation.trace.rows] == ["refused"] * 3 + ["dial"]
    assert "network: a dial was refused" in world.hits


@pytest.mark.parametrize("there", [True, False], ids=["there", "back"])
def test_a_dial_over_a_cut_times_out_and_one_that_is_patient_comes_through(there: bool) -> None:
    async def body(world: SmallWorld) -> None:
        listener = world.network.listen(SERVER)
        world.network.cut(*((CLIENT, SERVER) if there else (SERVER, CLIENT)), both=False)
        with takes(3), pytest.raises(TimeoutError, match="node-1:80 did not answer within 3 s"):
            await world.network.dial(CLIENT, SERVER, timeout=3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.network.dial, CLIENT, SERVER)
            await trio.sleep(5)
            world.network.heal()
            await listener.accept()

    assert {"network: a dial timed out", "network: a link was cut one way"} <= two_hosts().run(body).hits


def test_a_dial_to_a_host_without_power_times_out_and_to_a_stopped_one_is_refused() -> None:
    async def program() -> None:
        world.network.listen(SERVER)
        await trio.sleep_forever()

    async def body(world: SmallWorld) -> None:
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

    world = two_hosts()
    world.run(body)


def test_a_dial_that_is_patient_reaches_a_host_that_gets_power_again() -> None:
    async def program() -> None:
        world.network.listen(SERVER)
        await trio.sleep_forever()

    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, program)
        world.hosts.power_cut(SERVER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.network.dial, CLIENT, SERVER)
            await trio.sleep(5)
            world.hosts.start(SERVER, program)
            with takes(2 * MS):
                while not world.network.open_connections():
                    await trio.sleep(MS)

    world = two_hosts()
    world.run(body)


def test_beyond_the_backlog_a_dial_waits() -> None:
    async def body(world: SmallWorld) -> None:
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

    two_hosts().run(body)


# --- the whole --------------------------------------------------------------------------------------------------------


def test_what_happens_on_one_link_shifts_nothing_on_another() -> None:
    def times(others: int) -> list[float]:
        arrivals: list[float] = []

        async def body(world: SmallWorld) -> None:
            ours, theirs = await world.pair(CLIENT, SERVER)
            world.network.listen("node-2")
            streams = [await world.network.dial(f"worker-{number}", "node-2") for number in range(2, 2 + others)]
            await trio.sleep(10 - trio.current_time())
            for _ in range(50):
                for stream in streams:
                    await stream.send_all(b"y")
                await ours.send_all(b"x")
                await theirs.receive_some()
                arrivals.append(trio.current_time())

        two_hosts(NetworkSettings(slow=0.3)).run(body)
        return arrivals

    assert times(others=0) == times(others=5)


def test_the_end_of_a_simulation_lets_nobody_wait_not_even_a_shielded_task() -> None:
    ended: list[str] = []

    async def wait(name: str, function: Callable[[], Awaitable[object]]) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError), trio.CancelScope(shield=True):
            await function()
        ended.append(name)

    async def main() -> None:
        ours, _ = await world.pair(CLIENT, SERVER)
        full, _ = await world.pair(CLIENT, SERVER)
        await full.send_all(bytes(WINDOW_BYTES))
        listener = world.network.listen(SERVER)
        world.network.cut(CLIENT, SERVER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "receive", ours.receive_some)
            nursery.start_soon(wait, "send", lambda: full.send_all(b"x"))
            nursery.start_soon(wait, "accept", listener.accept)
            nursery.start_soon(wait, "dial", lambda: world.network.dial(CLIENT, SERVER))
            nursery.start_soon(wait, "carry", lambda: world.network.carry(CLIENT, SERVER))
            await trio.sleep(1)
            world.simulation.abort()
            ended.append("abort")

    world = two_hosts()
    world.simulation.run(main)
    assert ended[0] == "abort"
    assert sorted(ended[1:]) == ["accept", "carry", "dial", "receive", "send"]
    assert world.simulation.now() < 2
