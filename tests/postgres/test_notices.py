"""Hints between two nodes over LISTEN and NOTIFY, and what becomes of them when connections break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from io import StringIO
from typing import Any, Protocol
from urllib.parse import urlsplit

import asyncpg
import pytest
import trio

from stellwerk.ports import Hint, RevokedHint
from stellwerk.stores.postgres.bridge import Bridge
from stellwerk.stores.postgres.connections import Connections
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.notices import CHANNEL, Notices
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.logging import open_log
from stellwerk.testing.databases import PostgresAccess

SECONDS_MAX = 20


class Network(Protocol):
    """The fixture between the test and its server."""

    def dsn(self, dsn: str) -> str: ...

    def cut(self) -> None: ...

    def stall(self) -> None: ...

    def heal(self) -> None: ...


class NodeOfNotices:
    """As much of a node as it takes to tell and to hear."""

    def __init__(
        self, name: str, dsn: str, others: bool = True, *, keepalive_seconds: float = 0.2, **settings: Any
    ) -> None:
        self.name = name
        self.others = others
        self.lines = StringIO()
        entropy = SystemEntropy()
        self.connections = Connections(PostgresConfig(dsn=dsn, **settings), name, entropy.fraction)
        self.notices = Notices(
            self.connections,
            sender=name,
            others_known=lambda: self.others,
            clock=SystemClock(),
            entropy=entropy,
            log=open_log(stream=self.lines),
            keepalive_seconds=keepalive_seconds,
            answer_seconds_max=0.5,
        )

    async def hears(self) -> Hint:
        async with asyncio.timeout(SECONDS_MAX):
            return await self.notices.next()

    async def hears_of(self, topic: str) -> list[Hint]:
        """All hints up to the one that names the topic."""
        hints = [await self.hears()]
        while topic not in hints[-1].topics:
            hints.append(await self.hears())
        return hints


@asynccontextmanager
async def node(name: str, dsn: str, others: bool = True, **settings: Any) -> AsyncIterator[NodeOfNotices]:
    made = NodeOfNotices(name, dsn, others, **settings)
    await made.notices.start()
    try:
        yield made
    finally:
        await made.notices.stop()
        await made.connections.close()


@asynccontextmanager
async def nodes(dsn: str, *names: str, **settings: Any) -> AsyncIterator[list[NodeOfNotices]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(node(name, dsn, **settings)) for name in names]


@asynccontextmanager
async def administrator(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not is_so():
            await asyncio.sleep(0.005)


Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], Awaitable[None]]


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """On a loop of asyncio, as in the store."""
    bridge = await Bridge.open()
    yield bridge.run
    await bridge.close()


async def test_what_a_node_tells_the_others_hear_and_it_does_not(postgres_dsn: str, run: Run) -> None:
    told = Hint(
        topics=("orders", "Prüfung"),
        timer_due_at_ms=5,
        messages=True,
        process_keys=("order",),
        revoked=(RevokedHint("session", "task", 7, "cancelled"),),
        instances=("i-1",),
    )

    async def body() -> None:
        async with nodes(postgres_dsn, "a", "b", "c") as (a, b, c):
            a.notices.tell(told)
            assert await b.hears() == told
            assert await c.hears() == told
            b.notices.tell(Hint(topics=("from b",)))
            assert await a.hears() == Hint(topics=("from b",))
            assert a.notices.received == 1

    await run(body)


async def test_hints_are_told_from_tasks_of_trio(postgres_dsn: str) -> None:
    bridge = await Bridge.open()
    try:
        stack = AsyncExitStack()
        a, b = await bridge.run(partial(stack.enter_async_context, nodes(postgres_dsn, "a", "b")))
        with trio.fail_after(SECONDS_MAX):
            a.notices.tell(Hint(topics=("orders",)))
            assert await bridge.run(b.notices.next) == Hint(topics=("orders",))
        await bridge.run(stack.aclose)
        a.notices.tell(Hint(topics=("orders",)))  # nothing, and no error
    finally:
        await bridge.close()


async def test_rule_20_what_is_told_while_one_is_sent_goes_together(postgres_dsn: str, run: Run) -> None:
    async def body() -> None:
        async with nodes(postgres_dsn, "a", "b") as (a, b):
            for number in range(500):
                a.notices.tell(Hint(topics=(f"topic-{number}",)))
                if number == 0:
                    await eventually(lambda: a.notices.sent == 1)
            await b.hears_of("topic-499")
            assert a.notices.sent <= 3

    await run(body)


async def test_more_than_a_payload_holds_arrives_all_the_same(postgres_dsn: str, run: Run) -> None:
    instances = tuple(f"instance-{number:050}" for number in range(500))

    async def body() -> None:
        async with nodes(postgres_dsn, "a", "b") as (a, b):
            a.notices.tell(Hint(instances=instances, topics=("last",)))
            heard: list[str] = []
            while len(heard) < len(instances):
                heard += (await b.hears()).instances
            assert tuple(heard) == instances

    await run(body)


async def test_memory_is_bounded_while_nothing_can_be_sent(postgres_dsn: str, run: Run) -> None:
    async def body() -> None:
        async with nodes(postgres_dsn, "a", "b") as (a, b):
            for number in range(20_000):
                a.notices.tell(Hint(instances=(f"instance-{number}",)))
            heard = await b.hears()
            assert heard.missed
            assert len(heard.instances) < 2_000

    await run(body)


async def test_nothing_is_sent_while_no_other_node_is_known(postgres_dsn: str, run: Run) -> None:
    async def body() -> None:
        async with node("a", postgres_dsn, others=False) as a, node("b", postgres_dsn) as b:
            a.notices.tell(Hint(topics=("unheard",)))
            b.notices.tell(Hint(topics=("from b",)))
            assert await a.hears() == Hint(topics=("from b",))
            assert a.notices.sent == 0
            # Whoever was heard is there.
            a.notices.tell(Hint(topics=("from a",)))
            assert await b.hears() == Hint(topics=("from a",))

    await run(body)


async def test_what_is_no_hint_of_ours_is_ignored_with_one_line(postgres_dsn: str, run: Run) -> None:
    async def body() -> None:
        async with nodes(postgres_dsn, "a", "b") as (a, b), administrator(postgres_dsn) as connection:
            for payload in ("", "hello", '{"sender":5}', '{"topics":["x"]}'):
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, payload)
            newer = {"sender": "newer", "topics": ["from newer"], "weather": "fine"}
            await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, json.dumps(newer))
            assert await b.hears() == Hint(topics=("from newer",))
            a.notices.tell(Hint(topics=("from a",)))
            await b.hears_of("from a")
            assert b.notices.ignored == 4
            assert b.lines.getvalue().count("hint not understood") == 1

    await run(body)


async def test_rule_18_a_connection_that_was_terminated_is_made_anew_and_says_missed(
    postgres_dsn: str, run: Run
) -> None:
    async def body() -> None:
        async with nodes(postgres_dsn, "a", "b") as (a, b), administrator(postgres_dsn) as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            assert (await b.hears()).missed
            await eventually(lambda: a.notices.is_listening)
            a.notices.tell(Hint(topics=("after",)))
            heard = await b.hears_of("after")
            assert not heard[-1].instances
            assert b.notices.losses == 1
            assert b.lines.getvalue() == "", "it was replaced at once: nobody has to know"

    await run(body)


async def test_a_node_that_cannot_be_reached_at_the_start_listens_later(
    postgres_server: PostgresAccess, postgres_dsn: str, run: Run
) -> None:
    name = urlsplit(postgres_dsn).path.lstrip("/")

    async def body() -> None:
        async with administrator(postgres_server.dsn("postgres")) as connection:
            await connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            async with node("b", postgres_dsn, connect_seconds_max=0.2) as b:
                assert not b.notices.is_listening
                await connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
                assert await b.hears() == Hint(missed=True)
                assert b.notices.is_listening

    await run(body)


async def test_a_half_open_connection_is_found_out_and_made_anew(
    breakable_dsn: str, network: Network, run: Run
) -> None:
    """The network between forgets it: nothing arrives, and no error does."""

    async def body() -> None:
        async with node("a", breakable_dsn) as a, node("b", network.dsn(breakable_dsn), connect_seconds_max=0.5) as b:
            network.stall()
            a.notices.tell(Hint(topics=("into the void",)))
            await eventually(lambda: b.notices.losses > 0)
            assert not b.notices.is_listening
            network.heal()
            assert (await b.hears()).missed
            a.notices.tell(Hint(topics=("after",)))
            await b.hears_of("after")

    await run(body)


async def test_what_could_not_be_sent_is_kept_until_it_can(breakable_dsn: str, network: Network, run: Run) -> None:
    """And whether what was on its way has arrived nobody knows: it is told as ``missed``."""

    async def body() -> None:
        async with node("a", network.dsn(breakable_dsn), connect_seconds_max=0.1) as a, node("b", breakable_dsn) as b:
            network.stall()
            a.notices.tell(Hint(topics=("on its way",)))
            await eventually(lambda: not a.notices.is_listening)
            network.cut()
            a.notices.tell(Hint(topics=("kept",)))
            await eventually(lambda: "no hints from other nodes" in a.lines.getvalue())
            assert a.notices.sent == 0
            network.heal()
            (*_, heard) = await b.hears_of("kept")
            assert heard.missed
            assert (await a.hears()).missed
            await eventually(lambda: "hears other nodes again" in a.lines.getvalue())
            assert a.lines.getvalue().count("no hints from other nodes") == 1

    await run(body)


async def test_memory_is_bounded_while_there_is_no_connection(breakable_dsn: str, network: Network, run: Run) -> None:
    async def body() -> None:
        async with node("a", network.dsn(breakable_dsn), connect_seconds_max=0.1) as a, node("b", breakable_dsn) as b:
            network.cut()
            await eventually(lambda: not a.notices.is_listening)
            for number in range(20_000):
                a.notices.tell(Hint(instances=(f"instance-{number}",)))
            network.heal()
            heard = await b.hears()
            assert heard.missed
            assert len(heard.instances) < 2_000

    await run(body)


async def test_rule_20_no_function_trigger_or_rule_of_the_schema_notifies(postgres_dsn: str, run: Run) -> None:
    async def body() -> None:
        async with administrator(postgres_dsn) as connection:
            bodies = await connection.fetch(_FUNCTIONS)
            assert {row["name"] for row in bodies} >= {"commit_3", "now_ms"}
            assert [row["name"] for row in bodies if "notify" in row["body"].lower()] == []
            assert await connection.fetchval(_TRIGGERS_AND_RULES) == 0

    await run(body)


_FUNCTIONS = """
SELECT proname AS name, prosrc AS body FROM pg_proc WHERE pronamespace = 'stellwerk'::regnamespace"""
_TRIGGERS_AND_RULES = """
SELECT (SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
        WHERE relnamespace = 'stellwerk'::regnamespace AND NOT tgisinternal)
     + (SELECT count(*) FROM pg_rules WHERE schemaname = 'stellwerk')"""


async def test_rule_20_hints_are_sent_over_the_connection_that_listens(postgres_dsn: str, run: Run) -> None:
    """And over no other: each backend shows what it did last."""

    async def body() -> None:
        async with (
            nodes(postgres_dsn, "a", "b", keepalive_seconds=60) as (a, b),
            administrator(postgres_dsn) as connection,
        ):
            for own in (a, b):
                await own.connections.read(lambda reading: reading.execute("SELECT 'reads'"))
                await own.connections.write(lambda writing: writing.execute("SELECT 'writes'"))
            listening = {row["pid"] for row in await connection.fetch(_LAST, "LISTEN%")}
            assert len(listening) == 2
            for number in range(20):
                a.notices.tell(Hint(topics=(f"a-{number}",)))
                b.notices.tell(Hint(topics=(f"b-{number}",)))
                await b.hears_of(f"a-{number}")
                await a.hears_of(f"b-{number}")
            assert {row["pid"] for row in await connection.fetch(_LAST, "%notify%")} == listening
            assert len(await connection.fetch(_LAST, "SELECT '%s'")) == 4

    await run(body)


_LAST = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'stellwerk %' AND query ILIKE $1"""


async def test_rule_20_commits_do_not_wait_for_hints(breakable_dsn: str, network: Network, run: Run) -> None:
    """Even where no hint gets through at all."""

    async def body() -> None:
        async with (
            node("a", breakable_dsn, listen_dsn=network.dsn(breakable_dsn), connect_seconds_max=0.1) as a,
            node("b", breakable_dsn) as b,
            administrator(breakable_dsn) as connection,
        ):
            await connection.execute("CREATE TABLE commits (number int)")
            network.stall()
            async with asyncio.timeout(SECONDS_MAX):
                for number in range(50):
                    a.notices.tell(Hint(topics=(f"a-{number}",)))
                    await a.connections.write(_insert)
                    assert await a.connections.read(_count) == number + 1
            assert (a.notices.sent, b.notices.received) == (0, 0)
            network.heal()
            await b.hears_of("a-49")

    await run(body)


async def _insert(connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO commits VALUES (1)")


async def _count(connection: asyncpg.Connection) -> object:
    return await connection.fetchval("SELECT count(*) FROM commits")


async def test_a_node_behind_a_pooler_tells_and_listens_past_it(postgres_dsn: str, pooled_dsn: str, run: Run) -> None:
    async def body() -> None:
        async with (
            node("a", pooled_dsn, is_pooled=True, listen_dsn=postgres_dsn) as a,
            node("b", pooled_dsn, is_pooled=True, listen_dsn=postgres_dsn) as b,
        ):
            for number in range(5):
                a.notices.tell(Hint(topics=(f"a-{number}",)))
                assert await b.hears() == Hint(topics=(f"a-{number}",))
                b.notices.tell(Hint(topics=(f"b-{number}",)))
                assert await a.hears() == Hint(topics=(f"b-{number}",))

    await run(body)


async def test_notices_can_be_started_again_on_another_loop(postgres_dsn: str) -> None:
    a, b = NodeOfNotices("a", postgres_dsn), NodeOfNotices("b", postgres_dsn)
    for topic in ("first", "second"):
        bridge = await Bridge.open()
        for one in (a, b):
            await bridge.run(one.notices.start)
        a.notices.tell(Hint(topics=(topic,)))
        assert await bridge.run(b.hears) == Hint(topics=(topic,))
        for one in (a, b):
            await bridge.run(one.notices.stop)
            await bridge.run(one.connections.close)
            one.connections = one.notices._connections = NodeOfNotices(one.name, postgres_dsn).connections
        await bridge.close()


async def test_after_stop_no_connection_is_left(postgres_dsn: str, run: Run) -> None:
    async def body() -> None:
        async with nodes(postgres_dsn, "a", "b") as (a, b):
            a.notices.tell(Hint(topics=("orders",)))
            await b.hears()
        await a.notices.stop()
        async with administrator(postgres_dsn) as connection:
            count = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            async with asyncio.timeout(SECONDS_MAX):
                while await connection.fetchval(count):
                    await asyncio.sleep(0.01)

    await run(body)
