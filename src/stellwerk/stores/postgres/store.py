"""The store on PostgreSQL, for any number of nodes: the face that trio sees. Each call is one hop over the bridge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import asyncpg

from stellwerk.core.external_task import ExternalTask, TaskAttempt
from stellwerk.errors import Conflict
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    ApiKeyRow,
    Changeset,
    Clock,
    Committed,
    DefinitionRow,
    DueTimer,
    Entropy,
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
from stellwerk.stores.postgres import api_keys, listing, messages, reads, task_listing
from stellwerk.stores.postgres.bridge import Bridge
from stellwerk.stores.postgres.database import PostgresDatabase
from stellwerk.stores.postgres.dsn import PostgresConfig, parse_dsn
from stellwerk.stores.postgres.outages import Answers, Asking, OutageLog

__all__ = ["AsyncioBridge", "DictatedClock", "PostgresStore"]

T = TypeVar("T")
P = ParamSpec("P")


class DictatedClock(Protocol):
    """Instead of the database's clock, for tests that set the time."""

    def open(self) -> None: ...

    def now_ms(self) -> InstantMs: ...

    def close(self) -> None: ...


class AsyncioBridge(Protocol):
    """Runs asyncio's coroutines for a task of trio (`Bridge`)."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T: ...

    async def close(self) -> None: ...


class PostgresStore:
    """`Store` on the database that `config` names; every node has its own."""

    is_shared = True
    file: Path | None = None

    def __init__(
        self,
        config: PostgresConfig,
        *,
        clock: Clock,
        entropy: Entropy,
        log: Log,
        node_id: str,
        node_name: str = "",
        lease_clock: DictatedClock | None = None,
        open_bridge: Callable[[], Awaitable[AsyncioBridge]] = Bridge.open,
    ) -> None:
        """:param node_name: for people, who look into ``pg_stat_activity``; none: `node_id`."""
        self._answers = Answers(clock, log, str(parse_dsn(config.dsn)))
        self.log: Log = OutageLog(log, self._answers)
        """For all that works on the store: that the database is away is told once, by the store."""
        self._new_database = partial(
            PostgresDatabase,
            config,
            clock=clock,
            entropy=entropy,
            log=self.log,
            is_away=self._answers.is_away,
            node_id=node_id,
            node_name=node_name or node_id,
        )
        self._database = self._new_database()
        self._lease_clock = lease_clock
        self._open_bridge = open_bridge
        self._bridge: AsyncioBridge | None = None

    def __repr__(self) -> str:
        return f"PostgresStore({self._database}, {'closed' if self._bridge is None else 'open'})"

    # --- open and close --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        bridge = await self._open_bridge()
        self._database = self._new_database()  # connections and locks belong to one loop
        try:
            await bridge.run(self._database.open)
        except BaseException:
            await bridge.close()
            raise
        self._bridge = bridge
        if self._lease_clock is not None:
            self._lease_clock.open()

    async def close(self) -> None:
        if self._lease_clock is not None:
            self._lease_clock.close()
        bridge, self._bridge = self._bridge, None
        if bridge is None:
            return
        try:
            await bridge.run(self._database.close)
        finally:
            await bridge.close()

    @property
    def _now_ms(self) -> InstantMs | None:
        """None: the database's own clock."""
        return None if self._lease_clock is None else self._lease_clock.now_ms()

    async def _run(self, work: Callable[[], Coroutine[Any, Any, T]], asking: Asking = "write") -> T:
        """:raises StoreUnavailable: the store is not open, or the database does not answer."""
        bridge = self._open_one()
        with self._answers.asking(asking):
            return await bridge.run(work)

    def _open_one(self) -> AsyncioBridge:
        if self._bridge is None:
            raise self._database.is_not_open()
        return self._bridge

    def trouble(self) -> str | None:
        return self._answers.trouble()

    async def _read(
        self,
        read: Callable[Concatenate[asyncpg.Connection, P], Coroutine[Any, Any, T]],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        async def ask(connection: asyncpg.Connection) -> T:
            return await read(connection, *arguments, **named)

        return await self._run(partial(self._database.read, ask), "read")

    # --- writing ---------------------------------------------------------------------------------------------------

    async def lease_now(self) -> InstantMs:
        dictated = self._now_ms
        return await self._read(reads.lease_now) if dictated is None else dictated

    async def transact(self, operations: Sequence[Operation]) -> Sequence[Outcome]:
        return await self._run(partial(self._database.transact, tuple(operations), self._now_ms))

    async def step_locked(
        self, instance_id: str, decide: Callable[[StoredInstance | None], Changeset | None]
    ) -> Committed | RefusedChangeset | None:
        return await self._run(partial(self._database.step_locked, instance_id, decide, self._now_ms))

    async def backup(self, target: Path, progress: Callable[[float], None]) -> None:
        raise Conflict("this engine keeps everything in PostgreSQL: use pg_dump, or the backups of your database")

    # --- instances and definitions ---------------------------------------------------------------------------------

    async def load_instance(self, instance_id: str) -> StoredInstance | None:
        return await self._read(reads.load_instance, instance_id)

    async def history(self, instance_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[HistoryStep]:
        return await self._read(reads.history, instance_id, after=after, limit=limit)

    async def instance(self, instance_id: str) -> InstanceSummary | None:
        return await self._read(reads.instance, instance_id)

    async def instances(
        self, wanted: InstanceFilter = InstanceFilter(), *, limit: int = 100, after: str | None = None
    ) -> Sequence[InstanceSummary]:
        return await self._read(listing.instances, wanted, limit, after)

    async def definition(self, definition_id: str) -> DefinitionRow | None:
        return await self._read(reads.definition, definition_id)

    async def latest_definition(self, key: str) -> DefinitionRow | None:
        return await self._read(reads.latest_definition, key)

    async def definitions(self) -> Sequence[DefinitionRow]:
        return await self._read(reads.definitions)

    async def disabled_processes(self) -> Sequence[str]:
        return await self._read(reads.disabled_processes)

    # --- tasks -----------------------------------------------------------------------------------------------------

    async def task(self, task_id: str) -> ExternalTask | None:
        return await self._read(reads.task, task_id)

    async def tasks(
        self, wanted: TaskQuery = TaskQuery(), *, limit: int = 1000, after: str | None = None
    ) -> Sequence[ExternalTask]:
        return await self._read(task_listing.tasks, wanted, self._now_ms, limit, after)

    async def count_tasks(self, wanted: TaskQuery = TaskQuery()) -> int:
        return await self._read(task_listing.count_tasks, wanted, self._now_ms)

    async def topic_backlogs(self) -> Sequence[TopicBacklog]:
        return await self._read(listing.topic_backlogs, self._now_ms)

    async def held_leases(self, worker_ids: Sequence[str]) -> Mapping[tuple[str, str], int]:
        return await self._read(task_listing.held_leases, worker_ids, self._now_ms)

    async def attempts(self, task_id: str) -> Sequence[TaskAttempt]:
        return await self._read(reads.attempts, task_id)

    async def ready_tasks(self, topic: str, limit: int) -> ReadyScan:
        return await self._read(reads.ready_tasks, topic, limit, self._now_ms)

    async def next_lock_expiry(self) -> tuple[InstantMs | None, InstantMs]:
        return await self._run(partial(self._database.next_lock_expiry, self._now_ms), "read")

    async def draining_ready(self, limit: int) -> Sequence[tuple[str, str]]:
        return await self._read(reads.draining_ready, limit)

    async def standing_leases(self, leases: Sequence[tuple[str, int]]) -> Collection[tuple[str, int]]:
        return await self._read(reads.standing_leases, leases)

    # --- what waits ------------------------------------------------------------------------------------------------

    async def due_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        return await self._read(reads.due_timers, now_ms, limit)

    async def claim_timers(self, now_ms: InstantMs, limit: int) -> tuple[Sequence[DueTimer], InstantMs | None]:
        dictated_ms = self._now_ms

        async def claim(connection: asyncpg.Connection) -> tuple[Sequence[DueTimer], InstantMs | None]:
            return await reads.claim_timers(connection, now_ms, limit, dictated_ms)

        return await self._run(partial(self._database.write, claim))

    async def matched_messages(self, now_ms: InstantMs, limit: int) -> Sequence[MatchedMessage]:
        return await self._read(messages.matched_messages, now_ms, limit)

    async def message(self, message_id: str) -> KeptMessage | None:
        return await self._read(messages.message, message_id)

    async def waiting_messages(
        self, now_ms: InstantMs, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[KeptMessage]:
        return await self._read(messages.waiting_messages, now_ms, limit, after)

    async def awaited_names(self, limit: int) -> Sequence[str]:
        return await self._read(messages.awaited_names, limit)

    async def receivers(self, name: str, limit: int) -> Sequence[tuple[str, str]]:
        return await self._read(messages.receivers, name, limit)

    async def incident_counts(self, instance_ids: Sequence[str]) -> Mapping[str, int]:
        return await self._read(listing.incident_counts, instance_ids)

    async def incidents(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        return await self._read(reads.incidents, instance_id, limit, after)

    async def user_tasks(
        self,
        instance_id: str | None = None,
        *,
        wanted: UserTaskFilter = UserTaskFilter(),
        limit: int = 1000,
        after: str | None = None,
    ) -> Sequence[Mapping[str, object]]:
        return await self._read(reads.user_tasks, instance_id, limit, after, wanted)

    async def incident(self, incident_id: str) -> Mapping[str, object] | None:
        return await self._read(reads.incident, incident_id)

    async def user_task(self, user_task_id: str) -> Mapping[str, object] | None:
        return await self._read(reads.user_task, user_task_id)

    async def inbox(self, limit: int) -> Sequence[InboxRow]:
        return await self._read(reads.inbox, limit)

    async def api_key(self, key_id: str) -> ApiKeyRow | None:
        return await self._read(api_keys.api_key, key_id)

    async def api_keys(self) -> Sequence[ApiKeyRow]:
        return await self._read(api_keys.api_keys)

    async def has_api_keys(self) -> bool:
        return await self._read(api_keys.has_api_keys)

    @property
    def clock_jumps(self) -> int:
        """How often the database's clock was set since this node started."""
        watch = self._database.clock_watch
        return watch.jumps_forward + watch.jumps_backward

    # --- beside other nodes ----------------------------------------------------------------------------------------

    def tell(self, hint: Hint) -> None:
        if self._bridge is not None:
            self._database.tell(hint)

    async def hints(self) -> Hint:
        # Others tell something, or not: the database owes no answer.
        return await self._open_one().run(self._database.hints)

    async def report_node(self, report: NodeReport) -> None:
        await self._run(partial(self._database.report_node, report))

    async def nodes(self) -> Sequence[NodeRow]:
        return await self._run(self._database.known_nodes, "read")

    async def forget_node(self, node_id: str) -> None:
        await self._run(partial(self._database.forget_node, node_id))
