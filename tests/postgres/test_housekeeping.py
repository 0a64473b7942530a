"""What is cleared away, and when: never what somebody may still ask about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from io import StringIO
from typing import Any

import pytest

from stellwerk.instants import InstantMs
from stellwerk.stores.postgres.bridge import Bridge
from stellwerk.stores.postgres.connections import Connections
from stellwerk.stores.postgres.dsn import PostgresConfig
from stellwerk.stores.postgres.housekeeping import Housekeeping
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.logging import open_log

MINUTE = 60.0


class SetClock:
    """`Clock`: monotonic time moves when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def wall_ms(self) -> InstantMs:
        return 0

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


class House:
    """A database, and nodes that keep it."""

    def __init__(self, bridge: Bridge, dsn: str, **settings: Any) -> None:
        self.bridge = bridge
        self.clock = SetClock()
        self.connections = Connections(PostgresConfig(dsn=dsn, **settings), "a", SystemEntropy().fraction)
        self.lines = StringIO()

    def keeper(self, **settings: float) -> Housekeeping:
        log = open_log(stream=self.lines)
        return Housekeeping(self.connections, clock=self.clock, entropy=SystemEntropy(), log=log, **settings)

    async def value(self, statement: str, *arguments: object) -> Any:
        async def fetch(connection: Any) -> Any:
            return await connection.fetchval(statement, *arguments)

        return await self.bridge.run(lambda: self.connections.write(fetch))

    async def add_batches(self, count: int, minutes_ago: float) -> None:
        await self.value(
            "INSERT INTO stellwerk.batches (batch_id, now_ms) "
            "SELECT gen_random_uuid(), stellwerk.now_ms() - $2 + number FROM generate_series(1, $1::int) AS number",
            count,
            int(minutes_ago * MINUTE * 1000),
        )

    async def batches(self) -> int:
        count: int = await self.value("SELECT count(*) FROM stellwerk.batches")
        return count

    async def tidy(self, keeper: Housekeeping) -> None:
        await self.bridge.run(keeper.tidy)

    async def tidy_for(self, keeper: Housekeeping, minutes: int) -> None:
        """A round a minute; the database's clock runs by itself."""
        for _ in range(minutes):
            self.clock.seconds += MINUTE
            await self.tidy(keeper)


@pytest.fixture
async def house(postgres_dsn: str) -> AsyncIterator[House]:
    bridge = await Bridge.open()
    house = House(bridge, postgres_dsn)
    yield house
    await bridge.run(house.connections.close)
    await bridge.close()


async def test_old_rows_of_batches_go_after_ten_minutes_in_small_steps(house: House) -> None:
    await house.add_batches(1_201, minutes_ago=11)
    await house.add_batches(3, minutes_ago=9)
    keeper = house.keeper()
    await house.tidy(keeper)
    await house.tidy_for(keeper, 9)
    assert await house.batches() == 1_204
    await house.tidy_for(keeper, 1)
    assert await house.batches() == 3
    assert keeper.batches_deleted == 1_201


async def test_rule_3_a_clock_set_forward_deletes_no_batch_that_may_be_in_doubt(house: House) -> None:
    """To the database's new clock, everything is an hour old."""
    keeper = house.keeper()
    await house.tidy(keeper)
    await house.tidy_for(keeper, 8)
    await house.add_batches(5, minutes_ago=0)
    hour = "EXTRACT(epoch FROM clock_timestamp()) + 3600"
    await house.value(
        "CREATE OR REPLACE FUNCTION stellwerk.now_ms() RETURNS bigint LANGUAGE sql VOLATILE "
        f"AS $$ SELECT floor(({hour}) * 1000)::bigint $$"
    )
    await house.tidy_for(keeper, 10)
    assert await house.batches() == 5
    await house.tidy_for(keeper, 1)
    assert await house.batches() == 0


async def test_rule_3_time_in_which_the_database_was_away_does_not_count(house: House) -> None:
    """Who is in doubt could not ask either."""
    keeper = house.keeper()
    await house.add_batches(5, minutes_ago=30)
    await house.tidy(keeper)
    await house.tidy_for(keeper, 9)

    await house.value("ALTER TABLE stellwerk.nodes RENAME TO away")
    await house.bridge.run(keeper.round)
    await house.bridge.run(keeper.round)
    await house.value("ALTER TABLE stellwerk.away RENAME TO nodes")
    await house.tidy_for(keeper, 10)
    assert await house.batches() == 5
    await house.tidy_for(keeper, 1)
    assert await house.batches() == 0
    assert house.lines.getvalue().count("housekeeping failed") == 1


async def test_rows_that_another_node_is_deleting_are_left_to_it(house: House) -> None:
    await house.add_batches(10, minutes_ago=20)
    keeper = house.keeper()
    await house.tidy(keeper)
    house.clock.seconds += 11 * MINUTE

    async def while_others_hold_half() -> int:
        other = await house.connections.listen()
        try:
            async with other.transaction():
                await other.fetch("SELECT FROM stellwerk.batches ORDER BY now_ms LIMIT 5 FOR UPDATE")
                async with asyncio.timeout(5):
                    await keeper.tidy()
                left: int = await other.fetchval("SELECT count(*) FROM stellwerk.batches")
                return left
        finally:
            await other.close()

    assert await house.bridge.run(while_others_hold_half) == 5


async def test_nodes_go_when_nobody_saw_them_for_a_day(house: House) -> None:
    day_ms = 86_400_000
    for name, ago_ms in (("dead", day_ms + 60_000), ("away", day_ms - 60_000), ("here", 0)):
        await house.value("INSERT INTO stellwerk.nodes VALUES ($1, 0, stellwerk.now_ms() - $2, '{}')", name, ago_ms)
    await house.tidy(house.keeper())
    assert await house.value("SELECT array_agg(node_id ORDER BY node_id) FROM stellwerk.nodes") == ["away", "here"]


async def test_housekeeping_works_through_a_pooler(postgres_dsn: str, pooled_dsn: str) -> None:
    bridge = await Bridge.open()
    house = House(bridge, pooled_dsn, is_pooled=True, listen_dsn=postgres_dsn)
    try:
        await house.add_batches(3, minutes_ago=11)
        keeper = house.keeper()
        await house.tidy(keeper)
        await house.tidy_for(keeper, 10)
        assert await house.batches() == 0
    finally:
        await bridge.run(house.connections.close)
        await bridge.close()


async def test_it_runs_until_it_is_stopped(house: House) -> None:
    await house.value("INSERT INTO stellwerk.nodes VALUES ('dead', 0, 0, '{}')")
    keeper = house.keeper(round_seconds=0.01)

    async def body() -> None:
        keeper.start()
        async with asyncio.timeout(10):
            while await house.connections.read(lambda c: c.fetchval("SELECT count(*) FROM stellwerk.nodes")):
                await asyncio.sleep(0.01)
        await keeper.stop()
        await keeper.stop()

    await house.bridge.run(body)
