"""A host that runs an engine node: the product's own composition of node, API and server on simulated ports."""

from __future__ import annotations

from itertools import count

import attrs
import trio

from simulations.cluster.logs import EngineLog
from simulations.cluster.pauses import PausePoints
from simulations.cluster.surroundings import Surroundings
from simulations.kernel.draws import chance
from simulations.plans.plan import Plan
from simulations.world.hosts import Host
from stellwerk.actors.node_config import NodeConfig, NodeIdentity
from stellwerk.app import ServedEngine, serve_node
from stellwerk.errors import StoreUnavailable
from stellwerk.limits import Limits
from stellwerk.ports import Ports
from stellwerk.system.threads import InlineRunner

__all__ = ["NodeProgram"]

_RESTART_SECONDS = 0.5
"""A supervisor waits so long before it starts a node again that could not open its database."""
_WORKERS_SECONDS = 3.0
_CLIENTS_SECONDS = 2.0
_HANDS_OVER = 0.5
"""How often a node that is to leave hands over, as one of a fleet, instead of draining."""


class NodeProgram:
    """What runs on one host, from one start of the host to the next."""

    def __init__(self, surroundings: Surroundings, host: Host, pauses: PausePoints) -> None:
        self._surroundings = surroundings
        self._host = host
        self._pauses = pauses
        self._told_to_leave = trio.Event()
        self.served: ServedEngine | None = None
        """The node that runs here now. Of a host that lost its power: the last one."""

    def leave(self) -> None:
        """Drain or hand over, and end."""
        self._told_to_leave.set()

    async def run(self) -> None:
        """Until `leave` is done. A node that cannot open its database is started again and again."""
        self.served = None
        self._told_to_leave = trio.Event()
        place = self._host.place
        for attempt in count(1):
            try:
                await self._serve(place, attempt)
                return
            except StoreUnavailable as error:
                self._surroundings.trace(place, "log", level="error", event="not started", reason=error.message)
                self._surroundings.simulation.properties.sometimes("node could not open its database")
            with trio.move_on_after(_RESTART_SECONDS):
                await self._told_to_leave.wait()
                return

    async def _serve(self, place: str, attempt: int) -> None:
        """:raises StoreUnavailable: the store cannot be opened."""
        config, ports = self._process(place, attempt)
        listener = self._surroundings.network.listen(self._host.name)
        try:
            async with serve_node(ports, config, [listener], url=config.identity.url) as self.served:
                self._surroundings.trace(place, "ready", node=config.identity.node_id)
                await self._told_to_leave.wait()
                await self._take_leave(place, self.served)
        finally:
            self.served = None
            await trio.aclose_forcefully(listener)

    def _process(self, place: str, attempt: int) -> tuple[NodeConfig, Ports]:
        """A process of its own each time: another node id, nothing remembered."""
        around, host = self._surroundings, self._host
        entropy = around.entropy_of(place, attempt)
        node_id = entropy.uuid()
        options = around.plan.options
        config = NodeConfig(
            limits=_limits(around.plan),
            lock_expiries_max=options.lock_expiries_max,
            identity=NodeIdentity(node_id=node_id, name=place, url=f"http://{host.name}", version="simulated"),
        )
        ports = Ports(
            clock=host.clock,
            entropy=entropy,
            store=around.stores.store_for(host.name, node_id, host.clock),
            background=InlineRunner(),
            log=EngineLog(around.simulation, place),
            pause_point=self._pauses.of(host.name, place),
        )
        return config, ports

    async def _take_leave(self, place: str, served: ServedEngine) -> None:
        hands_over = chance(self._surroundings.simulation.seed, _HANDS_OVER, "hand over", place)
        self._surroundings.trace(place, "leave", how="hand over" if hands_over else "drain")
        if hands_over:
            await served.hand_over(workers_seconds=_WORKERS_SECONDS, clients_seconds=_CLIENTS_SECONDS)
        else:
            await served.drain(_WORKERS_SECONDS)


def _limits(plan: Plan) -> Limits:
    """Messages live for so long by a clock that no fault of the plan sets."""
    limits = Limits(**plan.options.limits)
    return attrs.evolve(limits, message_ttl_ms_default=limits.message_ttl_ms_default + plan.file_clock_jumps_ms)
