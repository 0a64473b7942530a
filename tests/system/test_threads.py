"""The runners for what blocks."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from stellwerk.system.threads import InlineRunner, OneThread


async def test_jobs_run_in_one_other_thread_in_their_order() -> None:
    runner = OneThread("test")
    order: list[int] = []

    async def job(number: int) -> None:
        await runner.run_sync(lambda: order.append(number))

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(job, number)
    assert sorted(order) == list(range(50))
    names = {await runner.run_sync(lambda: threading.current_thread().name) for _ in range(3)}
    assert names == {"test"}
    runner.close()


async def test_what_a_job_raises_reaches_the_caller() -> None:
    runner = OneThread("test")
    with pytest.raises(ZeroDivisionError):
        await runner.run_sync(lambda: 1 // 0)
    assert await runner.run_sync(lambda: "still there") == "still there"
    runner.close()


async def test_a_cancelled_caller_waits_for_the_end_of_its_job() -> None:
    runner = OneThread("test")
    may_end, done = threading.Event(), []

    def job() -> str:
        may_end.wait(10)
        done.append("done")
        return "result"

    results: list[str] = []
    scope = trio.CancelScope()

    async def wait_for_the_job() -> None:
        with scope:
            results.append(await runner.run_sync(job))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_the_job)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert results == []
        may_end.set()
    assert (results, done) == (["result"], ["done"])
    runner.close()


async def test_a_caller_that_is_cancelled_before_starts_nothing() -> None:
    runner, ran = OneThread("test"), []
    with trio.CancelScope() as scope:
        scope.cancel()
        await runner.run_sync(lambda: ran.append(1))
    assert ran == []
    runner.close()


async def test_closing_joins_the_thread_and_refuses_what_comes_later() -> None:
    runner = OneThread("to be closed")
    await runner.run_sync(lambda: None)
    runner.close()
    assert "to be closed" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(trio.ClosedResourceError):
        await runner.run_sync(lambda: None)
    runner.close()


async def test_the_inline_runner_stays_in_the_callers_thread() -> None:
    assert await InlineRunner().run_sync(threading.current_thread) is threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        await InlineRunner().run_sync(lambda: 1 // 0)
