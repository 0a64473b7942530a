"""The clock and the randomness of the machine."""

from __future__ import annotations

import uuid

import trio.testing

from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy


async def test_sleeping_follows_virtual_time(autojump_clock: trio.testing.MockClock) -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(3_600)
    assert clock.monotonic() - before == 3_600


async def test_wall_time_is_in_milliseconds_since_1970() -> None:
    assert SystemClock().wall_ms() > 1_700_000_000_000


def test_randomness_keeps_to_its_bounds() -> None:
    entropy = SystemEntropy()
    assert all(0 <= entropy.integer(3) < 8 for _ in range(100))
    assert all(0 <= entropy.fraction() < 1 for _ in range(100))
    assert {entropy.integer(1) for _ in range(100)} == {0, 1}


def test_uuids_are_of_version_7_and_differ() -> None:
    ids = [uuid.UUID(SystemEntropy().uuid()) for _ in range(100)]
    assert len(set(ids)) == 100
    assert {each.version for each in ids} == {7}
