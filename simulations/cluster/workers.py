"""A host that runs a worker: the product's own SDK, with the workloads' handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import trio

from simulations.cluster.logs import WorkerLog
from simulations.cluster.surroundings import Surroundings
from simulations.kernel.draws import chance
from simulations.world.hosts import Host
from stellwerk.json_values import JsonObject
from stellwerk.worker import BpmnError, ErrorKind, Task, Worker, WorkerGaveUp
from stellwerk.worker.system import Endpoint

__all__ = ["WorkerProgram"]

_URL = "http://engine"
"""Of the load balancer: the nodes are behind it."""
_DIAL_SECONDS = 1.0
_RECONNECT_SECONDS_MAX = 1.5
_RESTART_SECONDS = 1.0
_GRACE_SECONDS = 1.0
_NO_TOKEN = 0.1
"""How often the place that issues tokens does not answer."""


class NoToken(Exception):
    """The place that issues tokens does not answer."""


class WorkerProgram:
    """What runs on one host, from one start of the host to the next."""

    def __init__(
        self,
        surroundings: Surroundings,
        host: Host,
        topics: Sequence[str],
        wish_crash: Callable[[], Awaitable[None]],
    ) -> None:
        """:param wish_crash: asked for by a handler that would like to die now; returns if it may not."""
        self._surroundings = surroundings
        self._host = host
        self._topics = topics
        self._wish_crash = wish_crash
        self._balancer = surroundings.balancer()
        self._dials = count(1)
        self._tokens = count(1)
        self._leaves = False
        self.worker: Worker | None = None
        """The one that runs here now. Of a host that lost its power: the last one."""

    def leave(self) -> None:
        """Give back what is unfinished, and end."""
        self._leaves = True
        if self.worker is not None:
            self.worker.stop(grace=_GRACE_SECONDS)

    async def run(self) -> None:
        """Until `leave` is done. A worker that gives up is started again."""
        self._leaves = False
        place = self._host.place
        starts = count(1)
        while not self._leaves:
            self.worker = self._made(place, next(starts))
            self._surroundings.trace(place, "ready", worker=self.worker.worker_id)
            try:
                await self.worker.serve()
            except WorkerGaveUp as error:
                self._surroundings.trace(place, "log", level="error", event="gave up", reason=error.message)
                self._surroundings.simulation.properties.sometimes("worker gave up and was started again")
                await trio.sleep(_RESTART_SECONDS)

    def _made(self, place: str, start: int) -> Worker:
        around = self._surroundings
        options = around.plan.options
        worker = Worker(
            _URL,
            worker_id=around.plan.worker_id(self._host.name),
            max_tasks=options.worker_tasks,
            lock_duration=options.lock_ms / 1000,
            token=self._token if options.token_seconds > 0 else None,
            reconnect_seconds_max=_RECONNECT_SECONDS_MAX,
            logger=WorkerLog(around.simulation, place),
            dial=self._dial,
            clock=self._host.clock,
            entropy=around.entropy_of(place, start),
        )
        worker.on_error(self._on_error)
        handle = around.handlers.function(self._host.clock.sleep, place, self._wish_crash)
        for topic in self._topics:
            worker.task(topic)(self._observed(place, handle))
        return worker

    def _on_error(self, kind: ErrorKind, error: Exception, task: Task | None) -> None:
        """The SDK calls unexpected what neither a fault of the world nor a handler explains."""
        is_expected = kind is not ErrorKind.UNEXPECTED_LOOP_ERROR
        self._surroundings.simulation.properties.always(
            "P0", is_expected, lambda: f"{self._host.place}: {error!r} ({'no task' if task is None else task.id})"
        )

    # --- the world -------------------------------------------------------------------------------------------------

    async def _dial(self, endpoint: Endpoint) -> trio.abc.Stream:
        """:raises OSError: of the last node that was tried."""
        around = self._surroundings
        failure = OSError(f"behind {endpoint.host} there is no node")
        for node in self._balancer.order("worker", self._host.place, next(self._dials)):
            try:
                return await around.network.dial(self._host.name, node, timeout=_DIAL_SECONDS)
            except OSError as error:
                failure = error
                self._balancer.failed(node)
        raise failure

    async def _token(self) -> str:
        """One that ends after a while, which the engine does not look at (yet)."""
        simulation = self._surroundings.simulation
        number = next(self._tokens)
        if chance(simulation.seed, _NO_TOKEN, "token", self._host.place, number):
            simulation.properties.sometimes("worker got no token")
            raise NoToken("nobody issues tokens now")
        ends = simulation.now() + self._surroundings.plan.options.token_seconds
        return f"{self._host.place}/{number}/{ends:.6f}"

    # --- handlers --------------------------------------------------------------------------------------------------

    def _observed(
        self, place: str, handle: Callable[[Task], Awaitable[JsonObject]]
    ) -> Callable[[Task], Awaitable[JsonObject]]:
        around = self._surroundings

        async def observed(task: Task) -> JsonObject:
            outcome = "failed"
            for observer in around.worker_observers:
                observer.handler_began(place, task)
            try:
                result = await handle(task)
                outcome = "completed"
                return result
            except BpmnError:
                outcome = "bpmn_error"
                raise
            except trio.Cancelled:
                outcome = "aborted"
                raise
            finally:
                if not around.simulation.is_over:
                    for observer in around.worker_observers:
                        observer.handler_ended(place, task, outcome)

        return observed
