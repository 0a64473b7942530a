"""Time stands still until a test moves it, and then everything happens at its own instant."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stellwerk.errors import Conflict
from stellwerk.testing import ProcessTest, StartedInstance, open_process_test, run_in_virtual_time

Bpmn = Callable[..., bytes]

_CYCLE = """<startEvent id="start"/><serviceTask id="work" stellwerk:topic="work"/><endEvent id="done"/>
  <boundaryEvent id="tick" attachedToRef="work" cancelActivity="false">
    <timerEventDefinition><timeCycle>{}</timeCycle></timerEventDefinition></boundaryEvent><endEvent id="ticked"/>"""


async def _start_ticking(test: ProcessTest, bpmn: Bpmn, cycle: str) -> StartedInstance:
    await test.deploy(("cycle.bpmn", bpmn(_CYCLE.format(cycle), "start work done", "tick ticked")))
    return await test.start("p")


def _pause(duration: str, node_id: str = "pause") -> str:
    timer = f"<timerEventDefinition><timeDuration>{duration}</timeDuration></timerEventDefinition>"
    return f'<intermediateCatchEvent id="{node_id}">{timer}</intermediateCatchEvent>'


async def test_time_stands_still_by_itself(process_test: ProcessTest, bpmn: Bpmn) -> None:
    body = f'<startEvent id="start"/>{_pause("PT1S")}<endEvent id="done"/>'
    await process_test.deploy(("pause.bpmn", bpmn(body, "start pause done")))
    before = process_test.now
    instance = await process_test.start("p")
    await process_test.settle()
    assert process_test.now == before
    instance.assert_waiting_at("pause")


@pytest.mark.parametrize("duration", ["PT0.001S", "PT0.3S", "PT1S", "PT59.999S", "PT7H", "P1D", "P3Y6M4DT12H30M5S"])
async def test_the_clock_moves_exactly_to_the_next_timer(process_test: ProcessTest, bpmn: Bpmn, duration: str) -> None:
    body = f'<startEvent id="start"/>{_pause("PT0.7S", "before")}{_pause(duration)}<endEvent id="done"/>'
    await process_test.deploy(("pause.bpmn", bpmn(body, "start before pause done")))
    instance = await process_test.start("p")
    assert await process_test.advance_to_next_timer() == ["before"]
    [timer] = instance.timers
    assert timer.element_id == "pause"
    assert await instance.advance_to_next_timer() == ["pause"]
    assert process_test.now == timer.due_at
    instance.assert_ended()


async def test_timers_fire_in_order_at_their_own_instants(process_test: ProcessTest, bpmn: Bpmn) -> None:
    instance = await _start_ticking(process_test, bpmn, "R50/PT0.777S")
    await process_test.advance(hours=1)
    history = await process_test.engine.instance(instance.id, with_history=True)
    assert history.steps is not None
    started_ms, *fired_ms = (step.at_ms for step in history.steps)
    assert [at_ms - started_ms for at_ms in fired_ms] == [777 * number for number in range(1, 51)]
    assert instance.visited.count("tick") == 50


async def test_many_odd_spans_add_up_exactly(process_test: ProcessTest, bpmn: Bpmn) -> None:
    instance = await _start_ticking(process_test, bpmn, "R/PT0.333S")
    started_at = process_test.now
    for number in range(1, 101):
        assert await instance.advance_to_next_timer() == ["tick"]
        assert process_test.now - started_at == timedelta(milliseconds=333 * number)


async def test_what_starts_while_time_passes_is_not_skipped(process_test: ProcessTest, bpmn: Bpmn) -> None:
    pauses = "".join(_pause("PT1H", f"pause{number}") for number in range(5))
    path = "start pause0 pause1 pause2 pause3 pause4 done"
    await process_test.deploy(("long.bpmn", bpmn(f'<startEvent id="start"/>{pauses}<endEvent id="done"/>', path)))
    instance = await process_test.start("p")
    await process_test.advance(timedelta(hours=4, minutes=59))
    instance.assert_waiting_at("pause4")
    await process_test.advance_to(process_test.now + timedelta(minutes=1))
    instance.assert_path(*path.split())


async def test_advancing_to_the_end(process_test: ProcessTest, bpmn: Bpmn) -> None:
    body = f'<startEvent id="start"/>{_pause("P30D")}<userTask id="approve"/><endEvent id="done"/>'
    await process_test.deploy(("pause.bpmn", bpmn(body, "start pause approve done")))
    instance = await process_test.start("p")
    with pytest.raises(AssertionError, match=r"not within 10 days(.|\n)*timer of \"pause\" due at 2026-01-31T00:00"):
        await instance.advance_to_end(within=timedelta(days=10))
    with pytest.raises(AssertionError, match=r'nothing moves, however much time passes(.|\n)*user task at "approve"'):
        await instance.advance_to_end()
    await instance.complete_user_task("approve")
    await instance.advance_to_end()
    instance.assert_ended()


async def test_without_a_timer_there_is_no_next_one(process_test: ProcessTest, one_task: bytes) -> None:
    with pytest.raises(AssertionError, match="no timer is armed\nno instance was started"):
        await process_test.advance_to_next_timer()
    await process_test.deploy(("one.bpmn", one_task))
    instance = await process_test.start("p")
    for advance in (process_test.advance_to_next_timer, instance.advance_to_next_timer):
        with pytest.raises(AssertionError, match=r'no timer is armed(.|\n)*external task at "work"'):
            await advance()


async def test_time_does_not_run_backwards(process_test: ProcessTest) -> None:
    with pytest.raises(ValueError, match="time does not run backwards"):
        await process_test.advance(seconds=-1)
    with pytest.raises(ValueError, match="time does not run backwards: it is 2026-01-01T00:00:00"):
        await process_test.advance_to(datetime(2025, 12, 31, tzinfo=UTC))
    with pytest.raises(ValueError, match="has no time zone"):
        await process_test.advance_to(datetime(2027, 1, 1))  # noqa: DTZ001


async def test_a_message_that_nobody_took_is_gone_after_its_time_to_live(process_test: ProcessTest, bpmn: Bpmn) -> None:
    body = f'<startEvent id="start"/>{_pause("PT2H")}<receiveTask id="wait" messageRef="paid"/><endEvent id="done"/>'
    await process_test.deploy(("late.bpmn", bpmn(body, "start pause wait done")))
    instance = await process_test.start("p", business_key="k")
    assert not await process_test.publish("paid", "k", ttl_ms=3_600_000)
    await process_test.advance(hours=3)
    instance.assert_waiting_at("wait")


def test_a_clock_that_cannot_be_moved_is_refused() -> None:
    async def main() -> None:
        async with open_process_test():
            raise AssertionError("never reached")

    with pytest.raises(Conflict, match=r"use the pytest fixture process_test, stellwerk\.testing\.run_in_virtual_time"):
        trio.run(main)


def test_without_pytest_a_program_runs_in_virtual_time(one_task: bytes) -> None:
    async def main(key: str) -> tuple[str, ...]:
        async with open_process_test() as test:
            await test.deploy(("one.bpmn", one_task))
            instance = await test.start(key)
            await instance.complete("work")
            return instance.visited

    assert run_in_virtual_time(main, "p") == ("start", "work", "done")


async def test_a_clock_that_jumps_by_itself_does_no_harm(
    process_test: ProcessTest, bpmn: Bpmn, autojump_clock: trio.testing.MockClock
) -> None:
    instance = await _start_ticking(process_test, bpmn, "R/PT1H")
    await trio.sleep(10)
    assert await process_test.advance_to_next_timer() == ["tick"]
    await instance.complete("work")
    instance.assert_ended()


# --- handlers that sleep, and waits between attempts ----------------------------------------------------------------


def _slow_and_repeated(bpmn: Bpmn, backoff_ms: int) -> tuple[str, bytes]:
    repeated = f'stellwerk:retries="2" stellwerk:retryBackoff="PT{backoff_ms / 1000:f}S"'
    body = f"""<startEvent id="start"/><serviceTask id="slow" stellwerk:topic="slow"/>
      <serviceTask id="send" stellwerk:topic="send" {repeated}/><endEvent id="sent"/>"""
    return "slow.bpmn", bpmn(body, "start slow send sent")


async def _send_again(bpmn: Bpmn, sleeps: list[float], backoff_ms: int) -> list[float]:
    """→ the instants of the attempts, in seconds on trio's clock."""
    attempts: list[float] = []
    async with open_process_test() as test:

        @test.task("slow")
        async def slow(payload: object) -> None:
            for seconds in sleeps:
                await trio.sleep(seconds)

        @test.task("send")
        def send(payload: object) -> None:
            attempts.append(trio.current_time())
            if len(attempts) == 1:
                raise RuntimeError("not yet")

        await test.deploy(_slow_and_repeated(bpmn, backoff_ms))
        instance = await test.start("p")
        await instance.advance_to_end(within=timedelta(days=1))
        instance.assert_ended()
    return attempts


def test_a_back_off_after_a_handler_that_slept_passes_to_the_millisecond(bpmn: Bpmn) -> None:
    """0.1 and 0.2 seconds are more than 0.3, as floats."""
    first, second = run_in_virtual_time(_send_again, bpmn, [0.1], 200)
    assert (round(first, 3), round(second, 3)) == (0.1, 0.3)


@given(st.lists(st.integers(1, 3_000), max_size=3), st.integers(1, 5_000))
@example([100], 200)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sleeps_and_back_offs_of_any_milliseconds_add_up_exactly(
    bpmn: Bpmn, sleeps_ms: list[int], backoff_ms: int
) -> None:
    attempts = run_in_virtual_time(_send_again, bpmn, [sleep / 1000 for sleep in sleeps_ms], backoff_ms)
    assert [round(at * 1000) for at in attempts] == [sum(sleeps_ms), sum(sleeps_ms) + backoff_ms]


@given(st.lists(st.floats(0, 2), max_size=4), st.integers(1, 2_000))
@example([0.0005], 200)
@example([0.000101, 0.1], 100)
@example([0.0004999], 1)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_back_off_ends_however_odd_the_sleep_before_it(bpmn: Bpmn, sleeps: list[float], backoff_ms: int) -> None:
    first, second = run_in_virtual_time(_send_again, bpmn, sleeps, backoff_ms)
    assert sum(sleeps) - 1e-6 <= first <= sum(sleeps) + 0.0011 * (1 + len(sleeps))
    assert abs(second - first - backoff_ms / 1000) < 0.002


async def test_what_really_never_moves_is_still_told(process_test: ProcessTest, one_task: bytes) -> None:
    @process_test.task("other")
    async def other(payload: object) -> None:
        raise AssertionError("never called")

    await process_test.deploy(("one.bpmn", one_task))
    instance = await process_test.start("p")
    with pytest.raises(AssertionError, match="nothing moves, however much time passes"):
        await instance.advance_to_end()
