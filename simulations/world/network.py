"""The network between the hosts: connections, and what befalls them and the links below."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterator
from itertools import count

import attrs
import trio

from simulations.kernel.scheduling import PLACE
from simulations.kernel.simulation import Simulation
from simulations.world.pipes import Attachment, Link, Pipe
from simulations.world.streams import Connection, SimulatedListener, SimulatedStream
from stellwerk.values import frozen

__all__ = ["Network", "NetworkFigures", "NetworkSettings"]


@frozen
class NetworkSettings:
    latency: tuple[float, float] = (0.0005, 0.005)
    """Seconds in one direction."""
    slow: float = 0.02
    """Chance of a heavy tail on top: 0.05 to 0.45 s."""
    fragment: float = 0.0
    """Chance that what is sent at once arrives in pieces."""


@attrs.define
class NetworkFigures:
    connections: int = 0
    """All that there ever were."""
    sends: int = 0
    bytes: int = 0
    crc32: int = 0
    """Of all bytes in the order in which they were sent: two runs of one seed have the same."""


class Network:
    """Hosts are known by their names. What is not connected to anything here is up and reachable."""

    def __init__(self, simulation: Simulation, settings: NetworkSettings | None = None) -> None:
        self._simulation = simulation
        self._settings = settings or NetworkSettings()
        self._note = simulation.properties.sometimes
        self._attachments: dict[str, Attachment] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._connections: dict[int, Connection] = {}
        self._numbers = count(1)
        self._never = trio.lowlevel.ParkingLot()
        self.is_over = False
        self.figures = NetworkFigures()
        simulation.on_over.append(self._end)

    # --- what hosts do ---------------------------------------------------------------------------------------------

    def listen(self, host: str, port: int = 80) -> SimulatedListener:
        """It is closed when the host's program ends or its power is cut.

        :raises OSError: somebody listens there already.
        """
        before = self._listeners.get((host, port))
        if before is not None and not before.is_closed:
            raise OSError(errno.EADDRINUSE, f"somebody listens on {host}:{port} already")
        listener = self._listeners[host, port] = SimulatedListener(host, port, self)
        return listener

    async def dial(self, source: str, target: str, port: int = 80, *, timeout: float = 10.0) -> SimulatedStream:
        """:raises ConnectionRefusedError: nobody listens there, or a fault refuses.
        TimeoutError: the way is cut or the host has no power, for `timeout` seconds. Both are OSErrors.
        """
        with trio.move_on_after(timeout):
            return await self._connect(self._link(source, target), self._link(target, source), port)
        self._note("network: a dial timed out")
        self._simulation.trace(_place(source), "refused", target=target, port=port, reason="timed out")
        raise TimeoutError(errno.ETIMEDOUT, f"{target}:{port} did not answer within {timeout:g} s")

    async def _connect(self, there: Link, back: Link, port: int) -> SimulatedStream:
        await self._travel(there)
        listener = self._listener(there.target, port)
        if listener is not None:
            await listener.wait_for_room()
        await self._travel(back)
        if listener is None or listener.is_closed or self.is_over:
            raise self._refused(there, port)
        connection = Connection(next(self._numbers), there, back, self)
        self._connections[connection.number] = connection
        self.figures.connections += 1
        listener.offer(connection.server)
        source, target = there.source.name, there.target.name
        self._simulation.trace(_place(source), "dial", target=target, port=port, connection=connection.number)
        return connection.client

    def _listener(self, host: Attachment, port: int) -> SimulatedListener | None:
        listener = self._listeners.get((host.name, port))
        return None if listener is None or listener.is_closed or host.refuses else listener

    def _refused(self, link: Link, port: int) -> OSError:
        target = link.target.name
        self._note("network: a dial was refused")
        self._simulation.trace(_place(link.source.name), "refused", target=target, port=port, reason="refused")
        return ConnectionRefusedError(errno.ECONNREFUSED, f"{target}:{port} refused the connection")

    async def carry(self, source: str, target: str) -> None:
        """One message, one way: returns when it has arrived. It waits while the way is cut, and for ever when the
        target is dead or dies meanwhile, so the caller needs a limit of time."""
        link = self._link(source, target)
        starts = link.target.starts
        if not link.target.is_stopped:
            await self._travel(link)
        while not self.is_over and (link.target.is_stopped or link.target.starts != starts):
            await self._never.park()

    async def _travel(self, link: Link) -> None:
        while not self.is_over:
            while not link.is_open and not self.is_over:
                await link.changed.park()
            await trio.sleep(link.latency())
            if link.is_open:
                return

    # --- what befalls links and connections ------------------------------------------------------------------------

    def cut(self, a: str, b: str, *, both: bool = True) -> None:
        """Nothing passes from `a` to `b`, nor back when it cuts `both`. Connections stay; what they carry waits."""
        for link in self._directions(a, b) if both else (self._link(a, b),):
            if not link.is_cut:
                link.is_cut = True
                for pipe in self._pipes_on(link):
                    pipe.hold()
        if self.is_cut(a, b) != self.is_cut(b, a):
            self._note("network: a link was cut one way")

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Both directions between two hosts; every link of one (only `a`); every link there is (neither)."""
        for link in self._links_between(a, b):
            if link.is_cut:
                link.is_cut = False
                link.changed.unpark_all()
                for pipe in self._pipes_on(link):
                    pipe.release()

    def is_cut(self, a: str, b: str) -> bool:
        """Whether nothing passes from `a` to `b`."""
        return self._link(a, b).is_cut

    def slow(self, a: str, b: str, seconds: float) -> None:
        """Everything takes so much longer, in both directions."""
        for link in self._directions(a, b):
            link.extra_seconds = seconds

    def unslow(self, a: str | None = None, b: str | None = None) -> None:
        """As `heal`."""
        for link in self._links_between(a, b):
            link.extra_seconds = 0.0

    def silence(self, a: str, b: str) -> None:
        """Whatever is between the hosts forgets their connections: they stay, and carry nothing any more."""
        for connection in self._between(a, b):
            self._note("network: a connection became half-open")
            for pipe in connection.pipes:
                pipe.lose()

    def reset(self, a: str, b: str) -> None:
        """Both ends of every connection between the hosts get RST, at once."""
        self._break_off(self._between(a, b))

    def reset_host(self, host: str) -> None:
        """As `reset`, for every connection of a host."""
        self._break_off(self._of_host(host))

    def _break_off(self, connections: list[Connection]) -> None:
        for connection in connections:
            self._note("network: a connection was reset by a fault")
            for pipe in connection.pipes:
                pipe.break_off()

    def refuse(self, host: str, refuses: bool) -> None:
        """Whether new connections to this host are refused. Those that there are go on."""
        self._attachment(host).refuses = refuses

    # --- what befalls hosts ----------------------------------------------------------------------------------------

    def appear(self, host: str) -> None:
        """It starts. If its power was cut, it refuses what it gets on connections that it no longer knows."""
        attachment = self._attachment(host)
        silent_seconds = trio.current_time() - attachment.dark_since if attachment.is_dark else 0.0
        attachment.starts += 1
        attachment.is_dark = attachment.is_stopped = False
        for connection in self._of_host(host):
            for pipe in connection.pipes_to(host):
                pipe.find_reader_restarted(silent_seconds)
        for link in self._links_between(host, None):
            link.changed.unpark_all()

    def vanish(self, host: str) -> None:
        """Its power is cut: no FIN, no RST. Peers hear nothing any more."""
        attachment = self._attachment(host)
        attachment.is_dark = attachment.is_stopped = True
        attachment.dark_since = trio.current_time()
        for connection in self._of_host(host):
            self._note("network: the peer of a connection lost power")
            for end in connection.ends_on(host):
                end.lose_power()
        for listener in self._drop_listeners(host):
            listener.lose_power()

    def close_host(self, host: str) -> None:
        """Its program ended, however: the kernel closes its connections (RST where something is unread) and refuses
        new ones."""
        self._attachment(host).is_stopped = True
        for listener in self._drop_listeners(host):
            listener.close()
        for connection in self._of_host(host):
            for end in connection.ends_on(host):
                end.close()

    def _drop_listeners(self, host: str) -> list[SimulatedListener]:
        return [self._listeners.pop(key) for key in list(self._listeners) if key[0] == host]

    # --- figures ---------------------------------------------------------------------------------------------------

    def open_connections(self, host: str | None = None) -> int:
        """How many there are of which at least one end is in use (on this host)."""
        if host is None:
            return len(self._connections)
        return sum(not end.is_over for each in self._connections.values() for end in each.ends_on(host))

    # --- what connections tell -------------------------------------------------------------------------------------

    def carried(self, data: bytes) -> None:
        self.figures.sends += 1
        self.figures.bytes += len(data)
        self.figures.crc32 = zlib.crc32(data, self.figures.crc32)

    def found_reset(self, connection: Connection, stream: SimulatedStream) -> None:
        self._note("network: a host found its connection reset")
        self._simulation.trace(_place(stream.host), "reset", peer=stream.peer, connection=connection.number)

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)

    # --- looking things up -----------------------------------------------------------------------------------------

    def _attachment(self, host: str) -> Attachment:
        return self._attachments.setdefault(host, Attachment(host))

    def _link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(
                self._attachment(source),
                self._attachment(target),
                latency=self._settings.latency,
                slow=self._settings.slow,
                fragment=self._settings.fragment,
                draws=self._simulation.draws,
                note=self._note,
            )
        return link

    def _directions(self, a: str, b: str) -> tuple[Link, Link]:
        return self._link(a, b), self._link(b, a)

    def _links_between(self, a: str | None, b: str | None) -> list[Link]:
        if a is not None and b is not None:
            return list(self._directions(a, b))
        return [link for ends, link in self._links.items() if a is None or a in ends]

    def _pipes_on(self, link: Link) -> Iterator[Pipe]:
        for connection in list(self._connections.values()):
            for pipe in connection.pipes:
                if pipe.link is link:
                    yield pipe

    def _between(self, a: str, b: str) -> list[Connection]:
        return [connection for connection in self._connections.values() if connection.is_between(a, b)]

    def _of_host(self, host: str) -> list[Connection]:
        return [connection for connection in self._connections.values() if connection.ends_on(host)]

    def _end(self) -> None:
        """The simulation is over: nobody waits here any more."""
        self.is_over = True
        for connection in self._connections.values():
            connection.wake_all()
        for listener in self._listeners.values():
            listener.wake_all()
        for lot in (self._never, *(link.changed for link in self._links.values())):
            lot.unpark_all()


def _place(host: str) -> str:
    """Where the task that does it runs; the host's name when it is none of a host's own."""
    return PLACE.get() or host
