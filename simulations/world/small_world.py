"""A few hosts and a network without anything on them, to try out parts of the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from simulations.kernel.simulation import Simulation
from simulations.world.hosts import HostClock, Hosts
from simulations.world.network import Network, NetworkSettings
from simulations.world.streams import SimulatedStream

__all__ = ["STEADY", "SmallWorld", "hears_nothing_for", "read_all", "takes"]

STEADY = NetworkSettings(latency=(0.001, 0.001), slow=0.0)
"""Every piece takes a millisecond."""


class SmallWorld:
    hosts: Hosts
    """While it runs."""

    def __init__(self, *names: str, settings: NetworkSettings = STEADY, seed: int = 1) -> None:
        """:param names: of its hosts."""
        self.simulation = Simulation(seed, keep_trace=True)
        self.network = Network(self.simulation, settings)
        self._names = names
        self._error: Exception | None = None

    @property
    def hits(self) -> set[str]:
        """Names of the sometimes-properties that happened."""
        return set(self.simulation.properties.hits)

    @property
    def violations(self) -> list[str]:
        return [violation.invariant for violation in self.simulation.properties.violations]

    def kinds(self, place: str) -> list[str]:
        """Of what happened at a place, in order."""
        return [row.kind for row in self.simulation.trace.rows if row.place == place]

    def run(self, body: Callable[[SmallWorld], Awaitable[None]], *, violations: Sequence[str] = ()) -> SmallWorld:
        """Run `body` outside every host, and then end the simulation. What it raises is raised here.

        :param violations: that must come; others fail an assertion.
        """

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                self.hosts = Hosts(self.simulation, self.network, nursery)
                for name in self._names:
                    self.hosts.add(name, HostClock(self.simulation))
                await self._run(body)

        self.simulation.run(main)
        if self._error is not None:
            raise self._error
        assert self.violations == list(violations), self.simulation.properties.violations
        return self

    async def _run(self, body: Callable[[SmallWorld], Awaitable[None]]) -> None:
        try:
            await body(self)
        except Exception as error:  # noqa: BLE001 - raised again when the simulation is down
            self._error = error
        self.simulation.abort()  # which alone ends what was killed

    async def pair(self, client: str, server: str) -> tuple[SimulatedStream, SimulatedStream]:
        """→ both ends of a new connection."""
        listener = self.network.listen(server, 8000 + self.network.figures.connections)
        ours = await self.network.dial(client, server, listener.port)
        theirs = await listener.accept()
        await listener.aclose()
        return ours, theirs


async def read_all(stream: SimulatedStream) -> bytes:
    """Until the end of the data."""
    received = b""
    while data := await stream.receive_some():
        received += data
    return received


async def hears_nothing_for(stream: SimulatedStream, seconds: float) -> bool:
    with trio.move_on_after(seconds):
        await stream.receive_some()
        return False
    return True


@contextmanager
def takes(seconds: float) -> Iterator[None]:
    """Asserts that so much simulated time passes."""
    began = trio.current_time()
    yield
    passed = trio.current_time() - began
    assert abs(passed - seconds) < 1e-5, f"it took {passed:.6f} s, not {seconds:.6f} s"
