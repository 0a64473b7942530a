"""The simulated database: a host that takes requests from the network, does them in its own place, and answers.

It stands for PostgreSQL. What arrived is done whatever becomes of who asked; a commit is answered after the next sync,
and so is everything that saw it; a crash takes back what was not synced.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, TypeVar

import trio

from simulations.kernel.draws import between, chance
from simulations.kernel.scheduling import PLACE
from simulations.kernel.simulation import Simulation
from simulations.world.commits import CommitLog
from simulations.world.exchanges import (
    DATABASE,
    Batch,
    Carrier,
    ClockWasSet,
    DatabaseError,
    Exchange,
    Lost,
    Programs,
    Request,
    Unreachable,
)
from simulations.world.hint_bus import HintBus
from simulations.world.locks import RowLocks
from simulations.world.phases import Phases
from simulations.world.rows import CommitObserver
from simulations.world.shared_store import SharedStore
from simulations.world.submitting import WiredLine
from simulations.world.tables import DatabaseRows
from simulations.world.transactions import OpenTransactions
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import StellwerkError
from stellwerk.ports import Clock, HistoryStep, InstanceSummary
from stellwerk.values import frozen

__all__ = ["ISOLATIONS", "Database", "DatabaseSettings"]

T = TypeVar("T")

ISOLATIONS = ("serialisable", "read_committed")
"""All of a batch at one instant; or as `PostgresStore` does it: in several transactions of several statements."""

_ANSWER_SECONDS_MAX = 70.0
"""Longer than anybody waits: then a connection whose peer is silent is closed."""
_CRASH_WAIT_SECONDS = 0.5


@frozen(kw_only=True)
class DatabaseSettings:
    isolation: str = "serialisable"
    sync_seconds: float = 0.003
    """0: what is committed is safe."""
    statement_seconds: tuple[float, float] = (0.0002, 0.002)
    """At least and at most, for a statement of a transaction of several."""
    hint_loss: float = 0.0
    """The chance that a hint does not reach a node; that it comes twice; and how late it comes at most."""
    hint_doubling: float = 0.0
    hint_late_seconds: float = 0.0

    def __attrs_post_init__(self) -> None:
        if self.isolation not in ISOLATIONS:
            raise ValueError(f"isolation {self.isolation!r} is not known, only {', '.join(ISOLATIONS)}")


class Database:
    """For all nodes of a run. `start` it once the host `DATABASE` is there."""

    def __init__(
        self,
        simulation: Simulation,
        hosts: Programs,
        network: Carrier,
        clock: Clock,
        settings: DatabaseSettings | None = None,
    ) -> None:
        self.simulation = simulation
        self.settings = settings = settings or DatabaseSettings()
        self._hosts = hosts
        self._network = network
        self.rows = DatabaseRows(clock)
        self.clock_jumps = 0
        """How often its clock was set."""
        self.commits = CommitLog(simulation, self.rows, settings.sync_seconds)
        self.locks = RowLocks(simulation.now, simulation.properties.sometimes)
        self.transactions = OpenTransactions(self)
        self.phases = Phases(simulation.seed, simulation.properties)
        self.hints = HintBus(
            simulation, network, settings.hint_loss, settings.hint_doubling, settings.hint_late_seconds
        )
        self.is_up = False
        self._nursery: trio.Nursery | None = None
        self._place = DATABASE
        self._under_way: dict[int, Exchange[Any]] = {}
        self._waiting: list[Exchange[Any]] = []
        """For a nursery."""
        self._exchanges = self._crashes = 0
        self._committed = trio.Event()
        self._stores: Counter[str] = Counter()
        simulation.on_over.append(self.observers.clear)

    @property
    def observers(self) -> list[CommitObserver]:
        """Told of every commit, sync and crash, at its instant."""
        return self.commits.observers

    # --- its program -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._hosts.start(DATABASE, partial(self._run, 0.0))

    async def _run(self, down_seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery, self._place = nursery, PLACE.get() or DATABASE
            waiting, self._waiting = self._waiting, []
            for exchange in waiting:
                self._take(exchange)
            if down_seconds:
                await trio.sleep(down_seconds)
            self.is_up = True
            self.hints.is_reachable(nursery)
            await trio.sleep_forever()

    # --- requests --------------------------------------------------------------------------------------------------

    def begin(self, request: Request[T]) -> Exchange[T]:
        """Send it off. The answer comes, or an error, or nothing at all."""
        self._exchanges += 1
        exchange = Exchange(request, self._exchanges)
        self._under_way[exchange.number] = exchange
        if self._nursery is None:
            self._waiting.append(exchange)
        else:
            self._take(exchange)
        return exchange

    def _take(self, exchange: Exchange[Any]) -> None:
        assert self._nursery is not None
        # Whoever asks must not have the database's work done in his own place.
        before = PLACE.set(self._place)
        self._nursery.start_soon(self._serve, exchange, name=f"request of {exchange.request.source}")
        PLACE.reset(before)

    async def _serve(self, exchange: Exchange[Any]) -> None:
        sent_at = self.simulation.now()
        await self._network.carry(exchange.request.source, DATABASE)
        if self.simulation.now() < sent_at + _ANSWER_SECONDS_MAX:
            try:
                answer, error = await self.execute(exchange.request), None
            except (DatabaseError, StellwerkError) as problem:
                answer, error = None, problem
            await self._answer(exchange, answer, error)
        self._under_way.pop(exchange.number, None)

    async def _answer(self, exchange: Exchange[Any], answer: object, error: Exception | None) -> None:
        request, properties = exchange.request, self.simulation.properties
        properties.sometimes("database: did what nobody waits for any more", exchange.is_abandoned)
        if self.phases.loses_answer(request, self.simulation.now()):
            properties.sometimes("database: an answer was lost")
            properties.sometimes(
                "database: committed, and the answer was lost", request.kind == "write" and error is None
            )
            if self.phases.is_silent_loss(request):
                return
            error = Lost("the connection was lost")
        await self._network.carry(DATABASE, request.source)
        if error is None:
            exchange.answer(answer)
        else:
            exchange.fail(error)

    async def execute(self, request: Request[T]) -> T:
        """In the database's place; answered when it is safe."""
        now = self.simulation.now()
        if not self.is_up:
            raise Unreachable("it cannot be reached: connection refused")
        self.phases.refuse_if_so(request, now)
        seconds = self.phases.seconds(request, now)
        if seconds:
            await trio.sleep(seconds)
        answer = await request.work(self)
        durable_at = self.commits.durable_at()
        if durable_at > self.simulation.now():
            await trio.sleep_until(durable_at)
            self.commits.sync()
        return answer

    async def statement(self, *key: object) -> None:
        """Time passes between the statements of a transaction."""
        low, high = self.settings.statement_seconds
        if high:
            await trio.sleep(between(self.simulation.seed, low, high, "statement", *key))

    def look_at_clock(self, batch: Batch) -> None:
        """:raises ClockWasSet: the node has to look first."""
        if batch.jumps_seen != self.clock_jumps:
            raise ClockWasSet("the database's clock was set")

    def has_committed(self) -> None:
        self._committed.set()
        self._committed = trio.Event()

    # --- faults ----------------------------------------------------------------------------------------------------

    def crash(self, down_seconds: float) -> None:
        """All connections are lost, and all that was not synced. Now or, in half of all cases, right after the next
        commit (within half a second), since syncs are short."""
        self._crashes += 1
        if self._nursery is None or not chance(self.simulation.seed, 0.5, "crash at commit", self._crashes):
            self._crash(down_seconds)
            return
        before = PLACE.set("")
        self._nursery.start_soon(self._crash_at_next_commit, down_seconds)
        PLACE.reset(before)

    async def _crash_at_next_commit(self, down_seconds: float) -> None:
        with trio.move_on_after(_CRASH_WAIT_SECONDS):
            await self._committed.wait()
        self._crash(down_seconds)

    def _crash(self, down_seconds: float) -> None:
        self._hosts.stop(DATABASE)
        self.is_up, self._nursery = False, None
        properties = self.simulation.properties
        properties.sometimes("database: crashed")
        properties.sometimes("database: a commit was undone by a crash", self.commits.crash() > 0)
        self.locks.clear()
        self.transactions.clear()
        self.hints.are_lost()
        broken, self._under_way = list(self._under_way.values()), {}
        self._hosts.start(DATABASE, partial(self._run_again, broken, down_seconds))

    async def _run_again(self, broken: list[Exchange[Any]], down_seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            for exchange in broken:
                nursery.start_soon(self._reset, exchange)
            nursery.start_soon(self._run, down_seconds)

    async def _reset(self, exchange: Exchange[Any]) -> None:
        with trio.move_on_after(_ANSWER_SECONDS_MAX):
            await self._network.carry(DATABASE, exchange.request.source)
            exchange.fail(Lost("the connection was lost"))

    def read_only(self, seconds: float) -> None:
        self.phases.read_only_until = self.simulation.now() + seconds

    def unavailable(self, seconds: float) -> None:
        self.phases.unavailable_until = self.simulation.now() + seconds

    def slow(self, seconds_each: float, for_seconds: float) -> None:
        self.phases.slow_seconds, self.phases.slow_until = seconds_each, self.simulation.now() + for_seconds

    def refuse(self, chance: float, for_seconds: float) -> None:
        """Transactions are aborted."""
        self.phases.refuses_chance, self.phases.refuses_until = chance, self.simulation.now() + for_seconds

    def lose_answers(self, chance: float, for_seconds: float) -> None:
        self.phases.loses_chance, self.phases.loses_until = chance, self.simulation.now() + for_seconds

    def jump_clock(self, milliseconds: int) -> None:
        """Forward, as when another server takes over whose clock is ahead."""
        if milliseconds < 0:
            raise ValueError("the lease clock of the database never falls")
        self.rows.clock.jump(milliseconds)
        self.clock_jumps += 1
        self.simulation.properties.sometimes("database: the clock was set forward")

    def lose_hints(self, chance: float) -> None:
        """So likely is a hint lost now; 0: as the settings say."""
        self.hints.loss = chance or self.settings.hint_loss

    # --- for nodes, and for those who judge ------------------------------------------------------------------------

    def store_for(self, host_name: str, node_id: str, clock: Clock) -> SharedStore:
        """The store of one node, for one start of it."""
        self._stores[host_name] += 1
        name = f"{host_name}.{self._stores[host_name]}"
        log = TraceLog(self.simulation, host_name)
        return SharedStore(self, WiredLine(self), host_name, name, node_id, clock, log)

    @property
    def commit_count(self) -> int:
        return self.commits.count

    def lease_now_ms(self) -> int:
        return self.rows.now_ms()

    def all_tasks(self) -> list[ExternalTask]:
        return self.rows.all_tasks()

    def all_instances(self) -> list[InstanceSummary]:
        return self.rows.all_instances()

    def history(self, instance_id: str) -> list[HistoryStep]:
        return self.rows.all_steps(instance_id)


class TraceLog:
    """What a store logs, as events of the trace."""

    def __init__(self, simulation: Simulation, host: str) -> None:
        self._simulation = simulation
        self._host = host

    def debug(self, event: str, **values: object) -> None:
        """Not told."""

    info = debug

    def warning(self, event: str, **values: object) -> None:
        self._tell("warning", event)

    def error(self, event: str, **values: object) -> None:
        self._tell("error", event)

    exception = error

    def _tell(self, level: str, event: str) -> None:
        self._simulation.trace(PLACE.get() or self._host, "log", level=level, event=event)
