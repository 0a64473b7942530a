"""The store does a commit and its answer is lost: leases of which nobody knows come back at once, not when they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from stellwerk.core.external_task import AttemptEnd, TaskState
from stellwerk.errors import StoreUnavailable
from stellwerk.ports import Changeset, LeaseTasks, Operation, Outcome, RenewLeases
from stellwerk.wire.messages import Subscribe

SINGLE = 'stellwerk:singleTry="true"'


def leases(operation: Operation) -> bool:
    return isinstance(operation, LeaseTasks) or (isinstance(operation, Changeset) and bool(operation.birth_leases))


def renews(operation: Operation) -> bool:
    return isinstance(operation, RenewLeases)


@pytest.fixture
def lose_answers(monkeypatch: pytest.MonkeyPatch, world: Any) -> Callable[..., list[int]]:
    """The answers to the next `times` commits with such an operation are lost; the commits are done, or not."""

    def lose(of: Callable[[Operation], bool], times: int = 1, *, done: bool = True) -> list[int]:
        transact = world.store.transact
        lost: list[int] = []

        async def lossy(operations: Sequence[Operation]) -> Sequence[Outcome]:
            is_lost = len(lost) < times and any(map(of, operations))
            outcomes: Sequence[Outcome] = await transact(operations) if done or not is_lost else ()
            if is_lost:
                lost.append(len(operations))
                raise StoreUnavailable("the answer was lost")
            return outcomes

        monkeypatch.setattr(world.store, "transact", lossy)
        return lost

    return lose


@pytest.mark.parametrize("attributes", ["", SINGLE], ids=["retries", "single try"])
@pytest.mark.parametrize("at_birth", [False, True])
async def test_rule_10_a_lease_whose_commit_was_not_answered_is_given_back_and_handed_out(
    autojump_clock: object, world: Any, one_task: Any, lose_answers: Any, attributes: str, at_birth: bool
) -> None:
    await world.deploy(one_task(attributes))
    if at_birth:
        peer = await world.connect("work", max_tasks=1)
        await trio.sleep(0.1)
        lost = lose_answers(leases)
        with pytest.raises(StoreUnavailable):
            await world.start()
    else:
        await world.start()
        lost = lose_answers(leases)
        peer = await world.connect("other")
        await peer.say(Subscribe("work", max_tasks=1))
    began = trio.current_time()
    offer = await peer.task()
    assert len(lost) == 1
    assert trio.current_time() - began < 5
    (task,) = await world.node.tasks()
    attempts = await world.store.attempts(task.task_id)
    assert [attempt.end for attempt in attempts] == [AttemptEnd.RELEASED]
    assert (task.state, task.fence, task.lock_expiries) == (TaskState.LOCKED, offer.fence, 0)
    assert len(world.node.doubts) == 0


async def test_rule_10_a_store_that_fails_once_more_while_it_is_asked_is_asked_again(
    autojump_clock: object, world: Any, one_task: Any, lose_answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.deploy(one_task(SINGLE))
    await world.start()
    read = world.store.task
    failures = 0

    async def fail_once(task_id: str) -> Any:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise StoreUnavailable("it is gone again")
        return await read(task_id)

    monkeypatch.setattr(world.store, "task", fail_once)
    lose_answers(leases)
    peer = await world.connect("work", max_tasks=1)
    with trio.fail_after(10):
        offer = await peer.task()
    assert (failures, len(world.node.doubts)) == (2, 0)
    assert offer.attempt == 2


async def test_rule_10_a_lease_that_was_given_after_all_is_in_doubt_no_more(
    autojump_clock: object, world: Any, one_task: Any, lose_answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be given back as if nobody knew of it, once its worker has let it go."""
    await world.deploy(one_task(SINGLE))
    await world.start()

    async def gone(task_id: str) -> Any:
        raise StoreUnavailable("nothing can be read")

    monkeypatch.setattr(world.store, "task", gone)
    lose_answers(leases, done=False)
    peer = await world.connect("work", max_tasks=1)
    assert (await peer.task()).attempt == 1
    assert len(world.node.doubts) == 0


async def test_rule_10_a_lease_that_was_not_committed_is_no_trouble(
    autojump_clock: object, world: Any, one_task: Any, lose_answers: Any
) -> None:
    await world.deploy(one_task(""))
    await world.start()
    lose_answers(leases, times=3, done=False)
    peer = await world.connect("work", max_tasks=1)
    await peer.task()
    (task,) = await world.node.tasks()
    assert await world.store.attempts(task.task_id) == []
    await trio.sleep(5)
    assert len(world.node.doubts) == 0


@pytest.mark.parametrize("done", [True, False])
async def test_rule_18_a_renewal_that_was_not_answered_is_tried_again_in_time(
    autojump_clock: object, world: Any, one_task: Any, lose_answers: Any, done: bool
) -> None:
    await world.deploy(one_task(""))
    await world.start()
    peer = await world.connect("work", max_tasks=1, lock_duration_ms=10_000)
    offer = await peer.task()
    lost = lose_answers(renews, times=4, done=done)
    await trio.sleep(60)
    assert len(lost) == 4
    (task,) = await world.node.tasks()
    assert (task.state, task.fence, task.lock_expiries) == (TaskState.LOCKED, offer.fence, 0)
