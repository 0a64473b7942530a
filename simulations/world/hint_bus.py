"""Hints between the nodes of the simulated database, as over LISTEN and NOTIFY: each may be lost, late or doubled."""

from __future__ import annotations

import attrs
import trio

from simulations.kernel.draws import between, chance
from simulations.kernel.scheduling import PLACE
from simulations.kernel.simulation import Simulation
from simulations.world.exchanges import DATABASE, Carrier
from stellwerk.ports import Hint
from stellwerk.stores.postgres.notice_payloads import GatheredHints

__all__ = ["HintBus", "Listener"]

_RETRY_SECONDS = (0.05, 5.0)
"""How long a node takes to listen again, at least and at most."""
_HEARD_SECONDS = 60.0
_SILENT_SECONDS_MAX = 60.0
"""Then a connection whose peer is silent is closed."""


@attrs.define(eq=False)
class Listener:
    """A node's connection that does nothing but listen and send."""

    host: str
    name: str
    """Of the node's store among all of the run."""
    outgoing: GatheredHints = attrs.field(factory=GatheredHints)
    is_sending: bool = False
    sent: int = 0
    incoming: GatheredHints = attrs.field(factory=GatheredHints)
    has_heard: trio.Event = attrs.field(factory=trio.Event)
    heard_until: float = float("-inf")
    is_deaf: bool = False

    def hear(self, hint: Hint) -> None:
        self.incoming.add(hint)
        if self.incoming:
            self.has_heard.set()

    async def next(self) -> Hint:
        await self.has_heard.wait()
        self.has_heard = trio.Event()
        return self.incoming.take()


class HintBus:
    def __init__(
        self, simulation: Simulation, network: Carrier, loss: float, doubling: float, late_seconds: float
    ) -> None:
        self._simulation = simulation
        self._network = network
        self.loss = loss
        self.doubling = doubling
        self.late_seconds = late_seconds
        self._all_lost_until = 0.0
        self._listeners: dict[str, Listener] = {}
        self._nursery: trio.Nursery | None = None
        self._place = DATABASE

    def lose_all(self, seconds: float) -> None:
        """No hint arrives."""
        self._all_lost_until = self._simulation.now() + seconds

    # --- connections -----------------------------------------------------------------------------------------------

    def join(self, listener: Listener) -> None:
        """Its host has no other: those before it died with their programs."""
        for before in [other for other in self._listeners.values() if other.host == listener.host]:
            self.leave(before)
        self._listeners[listener.name] = listener

    def leave(self, listener: Listener) -> None:
        self._listeners.pop(listener.name, None)

    def is_reachable(self, nursery: trio.Nursery) -> None:
        """In the database's place."""
        self._nursery, self._place = nursery, PLACE.get()
        for listener in self._listeners.values():
            if listener.is_deaf:
                nursery.start_soon(self._listen_again, listener)

    def are_lost(self) -> None:
        """All connections."""
        self._nursery = None
        for listener in self._listeners.values():
            listener.is_deaf, listener.is_sending = True, False

    async def _listen_again(self, listener: Listener) -> None:
        now_us = round(self._simulation.now() * 1e6)
        await trio.sleep(between(self._simulation.seed, *_RETRY_SECONDS, "listens", listener.name, now_us))
        with trio.move_on_after(_SILENT_SECONDS_MAX) as silence:
            await self._network.carry(DATABASE, listener.host)
        if silence.cancelled_caught:
            return
        listener.is_deaf = False
        self._simulation.properties.sometimes("hints: a node listens again, and looks at everything")
        listener.hear(Hint(missed=True))
        if listener.outgoing:
            self.send(listener, Hint())

    # --- hints -----------------------------------------------------------------------------------------------------

    def send(self, listener: Listener, hint: Hint) -> None:
        """To all others, soon and perhaps. What comes until it is on its way goes with it."""
        listener.outgoing.add(hint)
        if listener.is_sending or listener.is_deaf or self._nursery is None:
            return
        listener.is_sending = True
        self._start(self._send, listener)

    async def _send(self, listener: Listener) -> None:
        await self._network.carry(listener.host, DATABASE)
        listener.is_sending = False
        listener.sent += 1
        hint = listener.outgoing.take()
        self._simulation.trace(DATABASE, "told", by=listener.host, hint=_text(hint))
        for other in list(self._listeners.values()):
            if other is not listener:
                self._pass_on(hint, other, (listener.name, listener.sent, other.name))

    def _pass_on(self, hint: Hint, to: Listener, key: tuple[object, ...]) -> None:
        simulation, seed = self._simulation, self._simulation.seed
        is_lost = simulation.now() < self._all_lost_until or chance(seed, self.loss, "hint lost", *key)
        if to.is_deaf or is_lost:
            simulation.properties.sometimes("hints: lost")
            return
        self._start(self._deliver, hint, to, key)
        if chance(seed, self.doubling, "hint doubled", *key):
            simulation.properties.sometimes("hints: doubled")
            self._start(self._deliver, hint, to, (*key, "again"))

    async def _deliver(self, hint: Hint, to: Listener, key: tuple[object, ...]) -> None:
        seconds = between(self._simulation.seed, 0, self.late_seconds, "hint late", *key) if self.late_seconds else 0
        if seconds:
            await trio.sleep(seconds)
        with trio.move_on_after(_SILENT_SECONDS_MAX):
            await self._network.carry(DATABASE, to.host)
            self._arrive(hint, to)

    def _arrive(self, hint: Hint, to: Listener) -> None:
        if to.name in self._listeners and not to.is_deaf:
            to.heard_until = self._simulation.now() + _HEARD_SECONDS
            to.hear(hint)

    def _start(self, function: object, *arguments: object) -> None:
        assert self._nursery is not None
        before = PLACE.set(self._place)
        self._nursery.start_soon(function, *arguments)  # type: ignore[arg-type]
        PLACE.reset(before)


def _text(hint: Hint) -> list[str]:
    """What it is about, for the trace."""
    told = [*hint.topics, *hint.process_keys, *(revoked.task_id for revoked in hint.revoked), *hint.instances]
    told += ["messages"] if hint.messages else []
    return told + (["missed"] if hint.missed else [])
