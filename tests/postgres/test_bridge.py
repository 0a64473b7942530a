"""asyncio inside a trio run: results, errors, cancellation and the end of it."""

from __future__ import annotations

import asyncio

import pytest
import trio

from stellwerk.errors import StoreUnavailable
from stellwerk.stores.postgres.bridge import Bridge


async def test_results_and_errors_come_over() -> None:
    bridge = await Bridge.open()

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("as it was")

    assert await bridge.run(answer) == 42
    with pytest.raises(LookupError, match="as it was"):
        await bridge.run(fail)
    await bridge.close()


async def test_many_tasks_use_it_at_once_from_nurseries_that_it_does_not_know() -> None:
    bridge = await Bridge.open()
    meeting = []

    async def meet() -> None:
        meeting.append(asyncio.current_task())
        while len(meeting) < 10:
            await asyncio.sleep(0)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(bridge.run, meet)
    assert len(set(meeting)) == 10
    await bridge.close()


async def test_cancelling_who_waits_cancels_the_work() -> None:
    bridge = await Bridge.open()
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with trio.move_on_after(0.05) as scope:
        await bridge.run(wait)
    assert scope.cancelled_caught
    assert ended == [True]
    await bridge.close()


async def test_it_outlives_the_scope_that_opened_it() -> None:
    async with trio.open_nursery() as nursery:
        bridge = await Bridge.open()
        nursery.cancel_scope.cancel()
    assert await bridge.run(lambda: asyncio.sleep(0, "there")) == "there"
    await bridge.close()


async def test_what_nobody_waits_for_does_not_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    bridge = await Bridge.open()

    async def fail_in_the_background() -> None:
        def fail() -> None:
            raise LookupError("nobody waits for this")

        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0.01)

    await bridge.run(fail_in_the_background)
    assert await bridge.run(lambda: asyncio.sleep(0, "still there")) == "still there"
    await bridge.close()
    assert "nobody waits for this" in capsys.readouterr().out


async def test_closing_ends_what_runs_and_what_comes_later() -> None:
    bridge = await Bridge.open()
    errors = []

    async def wait() -> None:
        try:
            await bridge.run(lambda: asyncio.sleep(60))
        except StoreUnavailable as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await bridge.close()
    assert len(errors) == 1
    await bridge.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await bridge.run(lambda: asyncio.sleep(0))


def test_a_run_that_forgets_to_close_it_ends_all_the_same() -> None:
    async def main() -> str:
        bridge = await Bridge.open()
        return await bridge.run(lambda: asyncio.sleep(0, "done"))

    assert trio.run(main) == "done"
