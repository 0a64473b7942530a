"""Hosts: machines with clocks of their own, on which programs start, stand still, and die."""

from __future__ import annotations

import math
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import PurePath

import trio

from simulations.kernel.draws import integer
from simulations.kernel.limits import true_seconds
from simulations.kernel.scheduling import PLACE
from simulations.kernel.seal import EPOCH_MS
from simulations.kernel.simulation import Simulation
from simulations.world.network import Network
from stellwerk.instants import InstantMs

__all__ = ["Host", "HostClock", "Hosts"]

_FRAMES_MAX = 6
_UPTIME_SECONDS_MAX = 100 * 24 * 3600
_REST_MS = 1e-6
"""What sums of floats may lack: who sleeps until a millisecond does not wake up before it."""


class HostClock:
    """The clock of one host: `stellwerk.ports.Clock` and the worker's. Its wall time is off and jumps; its monotonic
    time only runs too fast or too slow. Neither stands still when the host does."""

    def __init__(self, simulation: Simulation, *, offset_ms: int = 0, rate: float = 1.0) -> None:
        """:param offset_ms: of the wall time at the start. rate: its seconds in a true second.

        :raises ValueError: a rate that is not above 0.
        """
        if not rate > 0:
            raise ValueError(f"a clock's rate must be above 0, not {rate}")
        self._now = simulation.now
        self.offset_ms = offset_ms
        self.rate = rate
        self.uptime_seconds = 0
        """What the monotonic time showed at the start of the simulation."""
        self._highest_before_ms: InstantMs = EPOCH_MS + offset_ms

    def __repr__(self) -> str:
        return f"HostClock(offset_ms={self.offset_ms}, rate={self.rate})"

    def wall_ms(self) -> InstantMs:
        return EPOCH_MS + self.offset_ms + math.floor(self._now() * self.rate * 1000 + _REST_MS)

    def monotonic(self) -> float:
        return self.uptime_seconds + self._now() * self.rate

    async def sleep(self, seconds: float) -> None:
        """Of this clock, and up to a microsecond longer: who sleeps until an instant finds that it has come."""
        await trio.sleep(true_seconds(max(0.0, seconds), self.rate))

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forwards or backwards."""
        self._highest_before_ms = self.highest_wall_ms()
        self.offset_ms += milliseconds

    def highest_wall_ms(self) -> InstantMs:
        """The latest instant that the wall clock has shown."""
        return max(self._highest_before_ms, self.wall_ms())

    def true_time_of(self, monotonic: float) -> float:
        """True seconds since the start of the simulation when this clock's monotonic time shows that."""
        return (monotonic - self.uptime_seconds) / self.rate


class Host:
    def __init__(self, name: str, clock: HostClock) -> None:
        self.name = name
        self.clock = clock
        self.incarnation = 0
        """How often it was started."""
        self.is_up = False
        """Its program runs, or stands still."""
        self.is_frozen = False
        self.ended = trio.Event()
        """The program of the present incarnation returned. Not set when it was killed."""
        self.stopped = trio.Event()
        """The present incarnation is no more, however it ended."""

    def __repr__(self) -> str:
        return f"<Host {self.place} {'frozen' if self.is_frozen else 'up' if self.is_up else 'down'}>"

    @property
    def place(self) -> str:
        return f"{self.name}#{self.incarnation}"


class Hosts:
    def __init__(self, simulation: Simulation, network: Network, nursery: trio.Nursery) -> None:
        """:param nursery: where the programs run. Those that were killed end only with the simulation (`abort`)."""
        self._simulation = simulation
        self._network = network
        self._nursery = nursery
        self._hosts: dict[str, Host] = {}

    def __getitem__(self, name: str) -> Host:
        """:raises KeyError: no host has this name."""
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        """In the order in which they were added."""
        return iter(self._hosts.values())

    def __contains__(self, name: object) -> bool:
        return name in self._hosts

    def add(self, name: str, clock: HostClock) -> Host:
        """A machine that runs no program yet. Its monotonic time has a start of its own, so that nobody can compare
        that of two machines.

        :raises ValueError: there is one of this name.
        """
        if name in self._hosts:
            raise ValueError(f"there is a host {name} already")
        clock.uptime_seconds = integer(self._simulation.seed, _UPTIME_SECONDS_MAX, "uptime", name)
        self._simulation.clock.rates[name] = clock.rate
        host = self._hosts[name] = Host(name, clock)
        return host

    def start(self, name: str, program: Callable[[], Awaitable[None]]) -> None:
        """Start the next incarnation. What `program` raises is a violation of P0; when it returns, the host is down.

        :raises ValueError: the host is up.
        """
        host = self[name]
        if host.is_up:
            raise ValueError(f"{host.place} is up already")
        host.incarnation += 1
        host.is_up = True
        host.is_frozen = False
        host.ended, host.stopped = trio.Event(), trio.Event()
        self._network.appear(name)
        self._simulation.trace(host.place, "boot")
        self._run_in_place(host, program)

    def _run_in_place(self, host: Host, program: Callable[[], Awaitable[None]]) -> None:
        token = PLACE.set(host.place)
        try:
            self._nursery.start_soon(self._run, host, host.incarnation, program, name=f"program of {host.name}")
        finally:
            PLACE.reset(token)

    async def _run(self, host: Host, incarnation: int, program: Callable[[], Awaitable[None]]) -> None:
        try:
            await program()
        except* Exception as group:  # noqa: BLE001 - whatever it is, it is judged
            # While a run is taken down, properties no longer judge: what breaks then was broken by that.
            self._simulation.properties.always("P0", False, f"{host.place} broke: {_described(group)}")
        if host.incarnation == incarnation and not self._simulation.is_over:
            self._program_returned(host)

    def _program_returned(self, host: Host) -> None:
        self._simulation.trace(host.place, "exit")
        self._network.close_host(host.name)
        host.ended.set()
        self._is_down(host)

    def power_cut(self, name: str) -> None:
        """The machine is off: no `finally` runs, and peers hear nothing. Does nothing to one that is down."""
        if self._kill(name, "power cut"):
            self._network.vanish(name)

    def stop(self, name: str) -> None:
        """SIGKILL: no `finally` runs, but the kernel closes its connections. Does nothing to one that is down."""
        if self._kill(name, "killed"):
            self._network.close_host(name)

    def _kill(self, name: str, how: str) -> bool:
        host = self[name]
        if not host.is_up:
            return False
        self._simulation.trace(host.place, "crash", how=how)
        self._simulation.scheduler.kill(host.place)
        self._is_down(host)
        return True

    @staticmethod
    def _is_down(host: Host) -> None:
        host.is_up = host.is_frozen = False
        host.stopped.set()

    def freeze(self, name: str) -> None:
        """SIGSTOP: no task makes a step, while its kernel goes on taking what comes. Only one that is up."""
        host = self[name]
        if host.is_up and not host.is_frozen:
            host.is_frozen = True
            self._simulation.trace(host.place, "freeze")
            self._simulation.scheduler.freeze(host.place)

    def thaw(self, name: str) -> None:
        """SIGCONT. Does nothing to a host that is not frozen."""
        host = self[name]
        if host.is_frozen:
            host.is_frozen = False
            self._simulation.trace(host.place, "thaw")
            self._simulation.scheduler.thaw(host.place)

    async def ended(self, name: str) -> None:
        """Wait until the program of the present incarnation has returned; for ever when it is killed."""
        await self[name].ended.wait()

    async def stopped(self, name: str) -> None:
        """Wait until the present incarnation is no more, however it ended."""
        await self[name].stopped.wait()


def _described(error: BaseException) -> str:
    """The first exception that is no group, and where it was raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_MAX:]
    where = " < ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return f"{type(error).__name__}: {error} ({where})"
