"""What befalls the simulated network is what befalls networks: cuts, resets, silence, hosts that die."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from simulations.world.hosts import Hosts
from simulations.world.network import Network, NetworkSettings
from simulations.world.pipes import WINDOW_BYTES
from simulations.world.small_world import STEADY, SmallWorld, hears_nothing_for, read_all, takes
from simulations.world.streams import SimulatedStream

SERVER = "node-1"
CLIENT = "worker-1"
MS = 0.001


def two_hosts(settings: NetworkSettings = STEADY, *, seed: int = 1) -> SmallWorld:
    return SmallWorld(SERVER, CLIENT, settings=settings, seed=seed)


# --- cuts -------------------------------------------------------------------------------------------------------------


def test_a_cut_holds_data_back_and_healing_delivers_them_in_order() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        await ours.send_all(b"arrived ")
        await trio.sleep(2 * MS)
        await ours.send_all(b"under way ")
        world.network.cut(CLIENT, SERVER)
        assert world.network.is_cut(SERVER, CLIENT)
        await ours.send_all(b"sent into the cut ")
        assert await theirs.receive_some() == b"arrived "
        assert await hears_nothing_for(theirs, 30)
        world.network.heal(SERVER, CLIENT)
        await ours.send_all(b"after it")
        await ours.send_eof()
        with takes(1 * MS):
            assert await read_all(theirs) == b"under way sent into the cut after it"

    assert "network: what a cut held back arrived after it was healed" in two_hosts().run(body).hits


def test_order_is_kept_over_many_cuts() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)

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

    two_hosts(NetworkSettings(slow=0.1, fragment=0.5)).run(body)


def test_a_link_that_is_cut_one_way_carries_data_the_other_way_up_to_a_window() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        world.network.cut(SERVER, CLIENT, both=False)
        await theirs.send_all(b"held back")
        sent = bytes(range(256)) * 400

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_all, sent)
            received = b""
            while len(received) < WINDOW_BYTES:
                received += await theirs.receive_some()
            assert await hears_nothing_for(theirs, 5), "no acknowledgement makes room for more"
            assert await hears_nothing_for(ours, 5)
            world.network.heal()
            while len(received) < len(sent):
                received += await theirs.receive_some()
        assert received == sent
        assert await ours.receive_some() == b"held back"

    two_hosts().run(body)


def test_healing_one_host_leaves_other_links_cut() -> None:
    async def body(world: SmallWorld) -> None:
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

    two_hosts().run(body)


def test_a_slow_link_is_slow_both_ways_until_it_is_not() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        world.network.slow(SERVER, CLIENT, 0.5)
        for sender, reader in ((ours, theirs), (theirs, ours)):
            await sender.send_all(b"x")
            with takes(0.501):
                await reader.receive_some()
        world.network.unslow(SERVER, CLIENT)
        await ours.send_all(b"x")
        with takes(1 * MS):
            await theirs.receive_some()

    two_hosts().run(body)


# --- resets and silence -----------------------------------------------------------------------------------------------


def test_a_reset_breaks_both_ends_and_what_was_under_way_is_lost() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        other, _ = await world.pair(CLIENT, SERVER)
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
        again, _ = await world.pair(CLIENT, SERVER)
        await again.send_all(b"new connections are no part of it")

    world = two_hosts().run(body)
    assert sum(row.kind == "reset" for row in world.simulation.trace.rows) == 3


def test_a_reset_wakes_up_who_waits() -> None:
    async def wait(stream: SimulatedStream) -> None:
        with takes(1), pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()

    async def send(stream: SimulatedStream) -> None:
        with takes(1), pytest.raises(trio.BrokenResourceError):
            await stream.send_all(bytes(2 * WINDOW_BYTES))

    async def body(world: SmallWorld) -> None:
        ours, _ = await world.pair(CLIENT, SERVER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, ours)
            nursery.start_soon(send, ours)
            await trio.sleep(1)
            world.network.reset_host(SERVER)

    two_hosts().run(body)


def test_a_connection_that_was_forgotten_between_stays_and_carries_nothing() -> None:
    async def body(world: SmallWorld) -> None:
        ours, theirs = await world.pair(CLIENT, SERVER)
        await theirs.send_all(b"under way")
        world.network.silence(CLIENT, SERVER)
        await ours.send_all(bytes(WINDOW_BYTES))
        assert await hears_nothing_for(theirs, 600)
        assert await hears_nothing_for(ours, 600)
        with trio.move_on_after(600) as patience:
            await ours.send_all(b"no room")
        assert patience.cancelled_caught
        await ours.aclose()
        assert await hears_nothing_for(theirs, 600)
        new, accepted = await world.pair(CLIENT, SERVER)
        await new.send_all(b"others pass")
        assert await accepted.receive_some() == b"others pass"

    hits = two_hosts().run(body).hits
    assert {"network: a connection became half-open", "network: something was sent into a half-open connection"} <= hits


# --- hosts ------------------------------------------------------------------------------------------------------------


def test_the_peer_of_a_host_without_power_hears_nothing() -> None:
    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, theirs = await world.pair(CLIENT, SERVER)
        await theirs.send_all(b"last words")
        world.hosts.power_cut(SERVER)
        with takes(1 * MS):
            assert await ours.receive_some() == b"last words"
        assert await hears_nothing_for(ours, 600)
        await ours.send_all(b"into the dark")
        assert await hears_nothing_for(ours, 600)
        assert world.network.open_connections() == 1
        await ours.aclose()
        assert world.network.open_connections() == 0

    assert "network: the peer of a connection lost power" in two_hosts().run(body).hits


def test_a_cut_keeps_what_a_host_said_before_its_power_was_cut() -> None:
    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, theirs = await world.pair(CLIENT, SERVER)
        world.network.cut(SERVER, CLIENT)
        await theirs.send_all(b"never sent again")
        world.hosts.power_cut(SERVER)
        world.network.heal()
        assert await hears_nothing_for(ours, 600)

    two_hosts().run(body)


def test_what_was_under_way_from_a_dead_host_does_not_survive_a_cut() -> None:
    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, theirs = await world.pair(CLIENT, SERVER)
        await theirs.send_all(b"never sent again")
        world.hosts.power_cut(SERVER)
        world.network.cut(SERVER, CLIENT)
        world.network.heal()
        assert await hears_nothing_for(ours, 600)

    two_hosts().run(body)


def test_a_restarted_host_refuses_old_connections_over_a_cut_too() -> None:
    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, _ = await world.pair(CLIENT, SERVER)
        world.hosts.power_cut(SERVER)
        world.hosts.start(SERVER, trio.sleep_forever)
        await ours.send_all(b"are you there?")
        world.network.cut(SERVER, CLIENT, both=False)
        assert await hears_nothing_for(ours, 60)
        world.network.heal()
        with takes(1 * MS), pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.receive_some()

    two_hosts().run(body)


def test_a_restarted_host_resets_old_connections_when_something_is_sent() -> None:
    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, _ = await world.pair(CLIENT, SERVER)
        world.hosts.power_cut(SERVER)
        await trio.sleep(5)
        world.hosts.start(SERVER, trio.sleep_forever)
        assert await hears_nothing_for(ours, 60)
        await ours.send_all(b"are you there?")
        with takes(2 * MS), pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.receive_some()

    two_hosts().run(body)


def test_what_a_dead_host_did_not_acknowledge_is_sent_again_and_then_refused() -> None:
    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, _ = await world.pair(CLIENT, SERVER)
        world.hosts.power_cut(SERVER)
        await ours.send_all(b"into the dark")
        await trio.sleep(5)
        world.hosts.start(SERVER, trio.sleep_forever)
        began = trio.current_time()
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await ours.receive_some()
        assert 2 * MS <= trio.current_time() - began <= 5 + 2 * MS

    assert "network: a restarted host refused what was sent again" in two_hosts().run(body).hits


@pytest.mark.parametrize("unread", [False, True])
def test_the_kernel_of_a_killed_program_closes_its_connections(unread: bool) -> None:
    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        ours, theirs = await world.pair(CLIENT, SERVER)
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

    two_hosts().run(body)


def test_a_program_that_returns_leaves_no_connection_open() -> None:
    async def program() -> None:
        async with trio.open_nursery() as nursery:
            listener = world.network.listen(SERVER)
            nursery.start_soon(world.network.dial, SERVER, SERVER)
            await listener.accept()

    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, program)
        await world.hosts.ended(SERVER)
        assert world.network.open_connections() == 0
        world.network.listen(SERVER)

    world = two_hosts()
    world.run(body)


# --- single messages --------------------------------------------------------------------------------------------------


def test_a_message_waits_while_the_way_is_cut_also_when_it_was_under_way() -> None:
    async def body(world: SmallWorld) -> None:
        network = world.network
        with takes(1 * MS):
            await network.carry(CLIENT, "database")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cut_and_heal, network, 0.5 * MS, 4)
            with takes(4 + 1.5 * MS):
                await network.carry(CLIENT, "database")
        network.cut(CLIENT, "database")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cut_and_heal, network, 0, 4)
            with takes(4 + 1 * MS):
                await network.carry(CLIENT, "database")

    two_hosts().run(body)


@pytest.mark.parametrize("kill", [Hosts.power_cut, Hosts.stop])
def test_a_message_to_a_host_that_died_is_not_carried_to_its_next_incarnation(
    kill: Callable[[Hosts, str], None],
) -> None:
    arrived: list[str] = []

    async def carry(world: SmallWorld, what: str) -> None:
        await world.network.carry(CLIENT, SERVER)
        arrived.append(what)

    async def body(world: SmallWorld) -> None:
        world.hosts.start(SERVER, trio.sleep_forever)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry, world, "under way when it died")
            await trio.sleep(0.5 * MS)
            kill(world.hosts, SERVER)
            nursery.start_soon(carry, world, "while it was dead")
            await trio.sleep(5)
            world.hosts.start(SERVER, trio.sleep_forever)
            await carry(world, "after its start")
            await trio.sleep(600)
            nursery.cancel_scope.cancel()

    two_hosts().run(body)
    assert arrived == ["after its start"]


async def _cut_and_heal(network: Network, after_seconds: float, seconds: float) -> None:
    await trio.sleep(after_seconds)
    network.cut(CLIENT, "database")
    await trio.sleep(seconds)
    network.heal()
