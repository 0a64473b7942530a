"""One node's store on the simulated database: the port as `PostgresStore` offers it, over the simulated network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from simulations.world.batches import Batches
from simulations.world.hint_bus import Listener
from simulations.world.submitting import WHERE, Line, Submitter
from simulations.world.tables import DatabaseRows, at_once
from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.errors import Conflict, StoreUnavailable
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    ApiKeyRow,
    Changeset,
    Clock,
    Committed,
    DefinitionRow,
    DueTimer,
    Hint,
    HistoryStep,
    InboxRow,
    InstanceFilter,
    InstanceSummary,
    KeptMessage,
    Log,
    MatchedMessage,
    NodeReport,
    NodeRow,
    Operation,
    Outcome,
    ReadyScan,
    RefusedChangeset,
    StoredInstance,
    TaskQuery,
    TopicBacklog,
    UserTaskFilter,
)
from stellwerk.stores.postgres.outages import Answers, Asking

if TYPE_CHECKING:
    from simulations.world.database import Database

__all__ = ["SharedStore"]

T = TypeVar("T")

_Read = Callable[[DatabaseRows], Coroutine[Any, Any, T]]


class SharedStore:
    """`Store` of one node, for one start of it."""

    is_shared = True
    file: Path | None = None

    def __init__(
        self, database: Database, line: Line, host: str, name: str, node_id: str, clock: Clock, log: Log
    ) -> None:
        """:param name: of this store among all of the run, for draws.
        :param host: where the node runs."""
        self._database = database
        self._clock = clock
        self._node_id = node_id
        self._answers = Answers(clock, log, WHERE)
        self._submitter = Submitter(line, database.simulation, host, name, clock)
        self._batches = Batches(self._submitter, host, clock, log, database.settings.isolation)
        self._listener = Listener(host, name)
        self._is_open = False
        self._others_known = False

    def __repr__(self) -> str:
        return f"SharedStore({self._listener.name}, {'open' if self._is_open else 'closed'})"

    # --- open and close --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._submitter.write(_greet)
        self._is_open = True
        self._database.hints.join(self._listener)

    async def close(self) -> None:
        self._is_open = False
        self._database.hints.leave(self._listener)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreUnavailable(f"{WHERE} is not open")

    def trouble(self) -> str | None:
        return self._answers.trouble()

    async def _asked(self, coroutine: Coroutine[Any, Any, T], what: Asking = "write") -> T:
        try:
            self._check_open()
        except StoreUnavailable:
            coroutine.close()
            raise
        with self._answers.asking(what):
            return await coroutine

    async def _read(self, read: _Read[T]) -> T:
        async def work(database: Database) -> T:
            return at_once(read(database.rows))

        return await self._asked(self._submitter.read(work), "read")

    # --- writing ---------------------------------------------------------------------------------------------------

    async def lease_now(self) -> InstantMs:
        return await self._read(lambda rows: rows.lease_now())

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        return await self._asked(self._batches.transact(tuple(operations)))

    async def step_locked(
        self, instance_id: str, decide: Callable[[StoredInstance | None], Changeset | None]
    ) -> Committed | RefusedChangeset | None:
        return await self._asked(self._batches.step_locked(instance_id, decide))

    async def backup(self, target: Path, progress: Callable[[float], None]) -> None:
        raise Conflict("this engine keeps everything in a simulated database, which nobody backs up")

    # --- instances and definitions ---------------------------------------------------------------------------------

    async def load_instance(self, instance_id: str) -> StoredInstance | None:
        return await self._read(lambda rows: rows.load_instance(instance_id))

    async def history(self, instance_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[HistoryStep]:
        return await self._read(lambda rows: rows.history(instance_id, after=after, limit=limit))

    async def instance(self, instance_id: str) -> InstanceSummary | None:
        return await self._read(lambda rows: rows.instance(instance_id))

    async def instances(
        self, wanted: InstanceFilter = InstanceFilter(), *, limit: int = 100, after: str | None = None
    ) -> Sequence[InstanceSummary]:
        return await self._read(lambda rows: rows.instances(wanted, limit=limit, after=after))

    async def definition(self, definition_id: str) -> DefinitionRow | None:
        return await self._read(lambda rows: rows.definition(definition_id))

    async def latest_definition(self, key: str) -> DefinitionRow | None:
        return await self._read(lambda rows: rows.latest_definition(key))

    async def definitions(self) -> Sequence[DefinitionRow]:
        return await self._read(lambda rows: rows.definitions())

    async def disabled_processes(self) -> Sequence[str]:
        return await self._read(lambda rows: rows.disabled_processes())

    # --- tasks -----------------------------------------------------------------------------------------------------

    async def task(self, task_id: str) -> ExternalTask | None:
        return await self._read(lambda rows: rows.task(task_id))

    async def tasks(
        self, wanted: TaskQuery = TaskQuery(), *, limit: int = 1000, after: str | None = None
    ) -> Sequence[ExternalTask]:
        return await self._read(lambda rows: rows.tasks(wanted, limit=limit, after=after))

    async def count_tasks(self, wanted: TaskQuery = TaskQuery()) -> int:
        return await self._read(lambda rows: rows.count_tasks(wanted))

    async def topic_backlogs(self) -> Sequence[TopicBacklog]:
        return await self._read(lambda rows: rows.topic_backlogs())

    async def held_leases(self, worker_ids: Sequence[str]) -> Mapping[tuple[str, str], int]:
        return await self._read(lambda rows: rows.held_leases(worker_ids))

    async def attempts(self, task_id: str) -> Sequence[TaskAttempt]:
        return await self._read(lambda rows: rows.attempts(task_id))

    async def ready_tasks(self, topic: str, limit: int) -> ReadyScan:
        return await self._read(lambda rows: rows.ready_tasks(topic, limit))

    async def next_lock_expiry(self) -> tuple[InstantMs | None, InstantMs]:
        return await self._asked(self._batches.next_lock_expiry(), "read")

    async def draining_ready(self, limit: int) -> Sequence[tuple[str, str]]:
        return await self._read(lambda rows: rows.draining_ready(limit))

    async def standing_leases(self, leases: Sequence[tuple[str, int]]) -> Collection[tuple[str, int]]:
        return await self._read(lambda rows: rows.standing_leases(leases))

    # --- what waits ------------------------------------------------------------------------------------------------

    async def due_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        return await self._read(lambda rows: rows.due_timers(now_ms, limit))

    async def claim_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        async def claim(database: Database) -> tuple[Sequence[DueTimer], InstantMs | None]:
            return at_once(database.rows.claim_timers(now_ms, limit))

        return await self._asked(self._submitter.write(claim))

    async def matched_messages(self, now_ms: InstantMs, limit: int) -> Sequence[MatchedMessage]:
        return await self._read(lambda rows: rows.matched_messages(now_ms, limit))

    async def message(self, message_id: str) -> KeptMessage | None:
        return await self._read(lambda rows: rows.message(message_id))

    async def waiting_messages(
        self, now_ms: InstantMs, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[KeptMessage]:
        return await self._read(lambda rows: rows.waiting_messages(now_ms, limit=limit, after=after))

    async def awaited_names(self, limit: int) -> Sequence[str]:
        return await self._read(lambda rows: rows.awaited_names(limit))

    async def receivers(self, name: str, limit: int) -> Sequence[tuple[str, str]]:
        return await self._read(lambda rows: rows.receivers(name, limit))

    async def incident_counts(self, instance_ids: Sequence[str]) -> Mapping[str, int]:
        return await self._read(lambda rows: rows.incident_counts(instance_ids))

    async def incidents(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        return await self._read(lambda rows: rows.incidents(instance_id, limit=limit, after=after))

    async def user_tasks(
        self,
        instance_id: str | None = None,
        *,
        wanted: UserTaskFilter = UserTaskFilter(),
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[Mapping[str, object]]:
        return await self._read(lambda rows: rows.user_tasks(instance_id, wanted=wanted, limit=limit, after=after))

    async def incident(self, incident_id: str) -> Mapping[str, object] | None:
        return await self._read(lambda rows: rows.incident(incident_id))

    async def user_task(self, user_task_id: str) -> Mapping[str, object] | None:
        return await self._read(lambda rows: rows.user_task(user_task_id))

    async def inbox(self, limit: int) -> Sequence[InboxRow]:
        return await self._read(lambda rows: rows.inbox(limit))

    async def api_key(self, key_id: str) -> ApiKeyRow | None:
        return await self._read(lambda rows: rows.api_key(key_id))

    async def api_keys(self) -> Sequence[ApiKeyRow]:
        return await self._read(lambda rows: rows.api_keys())

    async def has_api_keys(self) -> bool:
        return await self._read(lambda rows: rows.has_api_keys())

    # --- beside other nodes ----------------------------------------------------------------------------------------

    def tell(self, hint: Hint) -> None:
        is_heard = self._others_known or self._database.simulation.now() < self._listener.heard_until
        if self._is_open and is_heard:
            self._database.hints.send(self._listener, hint)

    async def hints(self) -> Hint:
        self._check_open()
        return await self._listener.next()

    async def report_node(self, report: NodeReport) -> None:
        async def note(database: Database) -> bool:
            at_once(database.rows.report_node(report))
            return at_once(database.rows.others_known(self._node_id))

        self._others_known = await self._asked(self._submitter.write(note))

    async def nodes(self) -> Sequence[NodeRow]:
        return await self._read(lambda rows: rows.nodes())

    async def forget_node(self, node_id: str) -> None:
        async def forget(database: Database) -> None:
            at_once(database.rows.forget_node(node_id))

        await self._asked(self._submitter.write(forget))


async def _greet(database: Database) -> None:
    """The first word on a new connection."""
