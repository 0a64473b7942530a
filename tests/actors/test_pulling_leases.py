"""What workers that fetch say of their leases: who may, what a repeat gets, and what is refused with which reason."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stellwerk.core.external_task import AttemptEnd, TaskState
from stellwerk.errors import Conflict, InvalidInput, LimitExceeded, NotFound, PeerError, StellwerkError
from stellwerk.wire.messages import Revoked

SINGLE = 'stellwerk:singleTry="true"'
CATCHES = """<startEvent id="s"/><serviceTask id="work" stellwerk:topic="work"/><endEvent id="e"/>
  <boundaryEvent id="b" attachedToRef="work"><errorEventDefinition errorRef="no_money"/></boundaryEvent>
  <endEvent id="refused"/>
  <sequenceFlow id="f1" sourceRef="s" targetRef="work"/><sequenceFlow id="f2" sourceRef="work" targetRef="e"/>
  <sequenceFlow id="f3" sourceRef="b" targetRef="refused"/>"""


@pytest.fixture
def fetch_one(world: Any, one_task: Any, poll: Any) -> Any:
    """Start an instance and fetch its task."""

    async def fetch(worker_id: str = "w", attributes: str = "", body: str | None = None, **options: Any) -> Any:
        if not await world.node.definitions():
            await world.deploy(body or one_task(attributes))
        await world.start()
        (task,) = (await poll(world, "work", worker_id=worker_id, **options)).tasks
        return task

    return fetch


async def code_of(request: Any) -> str:
    with pytest.raises(PeerError) as refused:
        await request
    return refused.value.code


async def row(world: Any, task: Any) -> Any:
    return await world.store.task(task.task_id)


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_fence", [True, False])
async def test_a_result_reaches_the_instance_and_a_repeat_gets_the_same_answer(
    autojump_clock: object, world: Any, fetch_one: Any, with_fence: bool
) -> None:
    task = await fetch_one()
    fence = task.fence if with_fence else None
    await world.node.complete_task(task.task_id, "w", {"paid": True}, fence=fence)
    await world.node.complete_task(task.task_id, "w", {"paid": True}, fence=fence)
    assert await code_of(world.node.complete_task(task.task_id, "w", {"paid": 1}, fence=fence)) == "already_finished"
    outcome = await world.node.outcome(task.instance_id)
    assert (outcome.summary.status, outcome.variables) == ("COMPLETED", {"paid": True})
    assert world.node.session_statistics.completed == 1
    assert world.node.session_statistics.repeated == 1


@pytest.mark.parametrize("result", [None, 0, "", False, [], [1], "done", 1.5])
async def test_a_result_that_is_no_object_completes_as_well(
    autojump_clock: object, world: Any, fetch_one: Any, result: object
) -> None:
    task = await fetch_one()
    await world.node.complete_task(task.task_id, "w", result)
    variables = (await world.node.outcome(task.instance_id)).variables
    assert variables == ({} if result is None else {"result": result})


async def test_a_business_error_is_caught_by_the_model(autojump_clock: object, world: Any, fetch_one: Any) -> None:
    task = await fetch_one(body=CATCHES)
    for _ in range(2):
        await world.node.bpmn_error(
            task.task_id, "w", "no_money", message="empty", details=["x"], variables={"left": 0}, fence=task.fence
        )
    outcome = await world.node.outcome(task.instance_id)
    assert outcome.summary.status == "COMPLETED"
    assert outcome.variables is not None
    assert outcome.variables["left"] == 0
    assert (await row(world, task)).retries_left == task.retries


async def test_the_engine_counts_failures_unless_the_worker_says_how_many_are_left(
    autojump_clock: object, world: Any, fetch_one: Any, poll: Any
) -> None:
    task = await fetch_one()
    await world.node.fail_task(task.task_id, "w", "down", details={"at": 1}, retry_after_ms=0, fence=task.fence)
    (again,) = (await poll(world, "work")).tasks
    assert (again.retries_left, again.attempt, again.error_message) == (2, 2, "down")
    await world.node.fail_task(again.task_id, "w", "down again", retries=0)
    (incident,) = await world.node.incidents()
    assert incident["kind"] == "retries_exhausted"
    attempts = await world.store.attempts(task.task_id)
    assert [(attempt.end, attempt.message) for attempt in attempts] == [
        (AttemptEnd.FAILED, "down"),
        (AttemptEnd.FAILED, "down again"),
    ]


async def test_an_extension_counts_from_now(autojump_clock: object, world: Any, fetch_one: Any) -> None:
    task = await fetch_one(lock_duration_ms=10_000)
    for _ in range(5):
        await trio.sleep(8)
        extended = await world.node.extend_task(task.task_id, "w", 10_000)
        assert extended.lease.until_ms == world.clock.wall_ms() + 10_000
    await world.node.complete_task(task.task_id, "w", None, fence=task.fence)
    assert (await row(world, task)).attempt == 1


async def test_fault_152_a_worker_may_extend_every_second(autojump_clock: object, world: Any, fetch_one: Any) -> None:
    task = await fetch_one(lock_duration_ms=6_000)
    for _ in range(60):
        await trio.sleep(1)
        await world.node.extend_task(task.task_id, "w", 6_000)
    await world.node.complete_task(task.task_id, "w", None)


# --- what is refused -----------------------------------------------------------------------------------------------


ASKS: dict[str, Any] = {
    "complete": lambda node, task_id, worker, fence: node.complete_task(task_id, worker, {"late": 1}, fence=fence),
    "fail": lambda node, task_id, worker, fence: node.fail_task(task_id, worker, "late", fence=fence),
    "last fail": lambda node, task_id, worker, fence: node.fail_task(task_id, worker, "late", retries=0, fence=fence),
    "bpmn_error": lambda node, task_id, worker, fence: node.bpmn_error(task_id, worker, "late", fence=fence),
    "extend": lambda node, task_id, worker, fence: node.extend_task(task_id, worker, 30_000, fence=fence),
    "unlock": lambda node, task_id, worker, fence: node.unlock_task(task_id, worker, fence=fence),
}


@pytest.fixture(params=ASKS)
def ask(request: pytest.FixtureRequest) -> Any:
    return ASKS[request.param]


async def test_fault_43_an_unknown_task_is_something_else_than_a_lost_lease(
    autojump_clock: object, world: Any, fetch_one: Any, ask: Any
) -> None:
    task = await fetch_one()
    with pytest.raises(NotFound):
        await ask(world.node, "no such task", "w", None)
    await world.node.complete_task(task.task_id, "w", None)
    assert await code_of(ask(world.node, task.task_id, "w", task.fence)) == "already_finished"
    other = await fetch_one()
    await world.node.cancel_instance(other.instance_id, "not needed")
    assert await code_of(ask(world.node, other.task_id, "w", other.fence)) == "cancelled"
    assert await code_of(ask(world.node, other.task_id, "w", None)) == "cancelled"
    assert await code_of(ask(world.node, other.task_id, "stranger", None)) == "cancelled"


async def test_fault_44_and_47_an_old_fence_is_refused_and_changes_nothing_also_under_the_same_worker_id(
    autojump_clock: object, world: Any, fetch_one: Any, poll: Any, ask: Any
) -> None:
    old = await fetch_one(lock_duration_ms=1_000)
    await trio.sleep(1.1)
    (new,) = (await poll(world, "work", worker_id="w")).tasks
    before = await row(world, new)
    assert await code_of(ask(world.node, old.task_id, "w", old.fence)) == "lease_lost"
    assert await row(world, new) == before


async def test_fault_46_a_lock_that_ran_out_is_lost_also_where_nobody_has_the_task_since(
    autojump_clock: object, world: Any, fetch_one: Any, ask: Any
) -> None:
    task = await fetch_one(lock_duration_ms=1_000)
    await trio.sleep(1.1)
    for fence in (task.fence, None):
        assert await code_of(ask(world.node, task.task_id, "w", fence)) == "lease_lost"
    assert (await row(world, task)).state is TaskState.READY


async def test_fault_46_after_the_last_failure_a_task_cannot_be_completed(
    autojump_clock: object, world: Any, fetch_one: Any
) -> None:
    task = await fetch_one()
    await world.node.fail_task(task.task_id, "w", "no", retries=0)
    assert await code_of(world.node.complete_task(task.task_id, "w", {})) == "already_finished"
    assert len(await world.node.incidents()) == 1


async def test_another_workers_lease_is_refused_with_its_fence_and_without(
    autojump_clock: object, world: Any, fetch_one: Any, ask: Any
) -> None:
    task = await fetch_one(worker_id="owner")
    before = await row(world, task)
    for fence in (task.fence, None):
        assert await code_of(ask(world.node, task.task_id, "thief", fence)) == "lease_lost"
    assert await row(world, task) == before


async def test_what_no_lease_was_given_for_is_refused(
    autojump_clock: object, world: Any, one_task: Any, ask: Any
) -> None:
    await world.deploy(one_task())
    await world.start()
    (task,) = await world.node.tasks()
    assert await code_of(ask(world.node, task.task_id, "w", None)) == "lease_lost"
    assert await code_of(ask(world.node, task.task_id, "w", 7)) == "lease_lost"
    with pytest.raises(InvalidInput, match=r"@ \$\.fence"):
        await ask(world.node, task.task_id, "w", 2**63)
    with pytest.raises(InvalidInput, match=r"@ \$\.worker_id"):
        await ask(world.node, task.task_id, "", None)


async def test_values_that_cannot_be_kept_are_refused_and_the_lease_stands(
    autojump_clock: object, world: Any, fetch_one: Any
) -> None:
    task = await fetch_one()
    node, task_id = world.node, task.task_id
    for request, kind in (
        (node.complete_task(task_id, "w", {"a": "\0"}), InvalidInput),
        (node.complete_task(task_id, "w", {"a": "\ud800"}), InvalidInput),
        (node.complete_task(task_id, "w", {"a": float("nan")}), InvalidInput),
        (node.complete_task(task_id, "w", {"a": "x" * 1_100_000}), LimitExceeded),
        (node.fail_task(task_id, "w", "\0"), InvalidInput),
        (node.fail_task(task_id, "w", "x" * 70_000), LimitExceeded),
        (node.fail_task(task_id, "w", "no", retries=-1), InvalidInput),
        (node.fail_task(task_id, "w", "no", retry_after_ms=-1), InvalidInput),
        (node.bpmn_error(task_id, "w", ""), InvalidInput),
        (node.bpmn_error(task_id, "w", "c" * 300), LimitExceeded),
        (node.extend_task(task_id, "w", 999), InvalidInput),
        (node.extend_task("t" * 300, "w", 5_000), InvalidInput),
    ):
        with pytest.raises(StellwerkError) as refused:
            await request
        assert type(refused.value) is kind
    await node.complete_task(task_id, "w", None)


# --- which lease is meant (consistency.md 12 and 13) ----------------------------------------------------------------


async def test_rule_12_a_failure_that_is_repeated_after_a_later_attempt_gets_its_old_answer(
    autojump_clock: object, world: Any, fetch_one: Any, poll: Any
) -> None:
    first = await fetch_one(worker_id="a")
    await world.node.fail_task(first.task_id, "a", "down", retry_after_ms=0, fence=first.fence)
    (second,) = (await poll(world, "work", worker_id="b")).tasks
    before = await row(world, second)
    await world.node.fail_task(first.task_id, "a", "down", retry_after_ms=0, fence=first.fence)
    await world.node.fail_task(first.task_id, "a", "down", retry_after_ms=0)  # without the fence just so
    different = world.node.fail_task(first.task_id, "a", "something else", retry_after_ms=0)
    assert await code_of(different) == "already_finished"
    assert await row(world, second) == before
    await world.node.complete_task(second.task_id, "b", None)
    await world.node.fail_task(first.task_id, "a", "down", retry_after_ms=0)


async def test_rule_13_a_failure_that_is_repeated_without_a_live_lease_costs_no_retry(
    autojump_clock: object, world: Any, fetch_one: Any
) -> None:
    task = await fetch_one()
    for _ in range(3):
        await world.node.fail_task(task.task_id, "w", "down", retry_after_ms=60_000)
    assert (await row(world, task)).retries_left == task.retries - 1
    assert world.node.session_statistics.failed == 1


async def test_rule_13_the_last_holder_gets_the_same_success_also_after_the_last_failure(
    autojump_clock: object, world: Any, fetch_one: Any
) -> None:
    task = await fetch_one()
    for _ in range(3):
        await world.node.fail_task(task.task_id, "w", "down", retries=0)
    assert len(await world.node.incidents()) == 1


# --- unlocking -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("worker_id", ["w", None], ids=["worker", "operator"])
async def test_a_task_that_is_unlocked_is_ready_at_once_and_no_retry_is_used(
    autojump_clock: object, world: Any, fetch_one: Any, poll: Any, worker_id: str | None
) -> None:
    task = await fetch_one()
    await world.node.unlock_task(task.task_id, worker_id)
    assert await code_of(world.node.unlock_task(task.task_id, worker_id)) == "lease_lost"
    (again,) = (await poll(world, "work")).tasks
    assert (again.retries_left, again.lock_expiries) == (task.retries, 0)
    assert await code_of(world.node.complete_task(task.task_id, "w", None, fence=task.fence)) == "lease_lost"


@pytest.mark.parametrize("worker_id", ["w", None], ids=["worker", "operator"])
async def test_rule_14_a_single_try_that_may_have_been_begun_stays_locked(
    autojump_clock: object, world: Any, fetch_one: Any, worker_id: str | None
) -> None:
    task = await fetch_one(attributes=SINGLE)
    with pytest.raises(Conflict, match="only once"):
        await world.node.unlock_task(task.task_id, worker_id)
    assert (await row(world, task)).state is TaskState.LOCKED
    await world.node.unlock_task(task.task_id, worker_id, started=False)
    assert (await row(world, task)).state is TaskState.READY


async def test_an_operator_may_unlock_what_a_connected_worker_holds_and_that_one_is_told(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    await world.start()
    peer = await world.connect("work", max_tasks=1)
    offer = await peer.task()
    await world.node.unlock_task(offer.task_id, None)
    (notice,) = (await peer.next(Revoked)).leases
    assert (notice.task_id, notice.fence, notice.reason) == (offer.task_id, offer.fence, "lost")
    again = await peer.task()
    assert again.fence > offer.fence


# --- beside the push protocol ----------------------------------------------------------------------------------------


async def test_a_connected_worker_may_say_over_http_what_became_of_its_task(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=1, lock_duration_ms=3_000, worker_id="both")
    await world.start()
    await world.start()
    offer = await peer.task()
    await world.node.extend_task(offer.task_id, "both", 60_000, fence=offer.fence)
    await world.node.complete_task(offer.task_id, "both", None, fence=offer.fence)
    del peer.holding[offer.task_id]
    following = await peer.task()
    assert following.task_id != offer.task_id
    await trio.sleep(10)
    assert not [message for message in peer.messages if isinstance(message, Revoked)]


async def test_P2_the_same_result_is_the_same_request_whichever_way_it_comes(
    autojump_clock: object, world: Any, one_task: Any
) -> None:
    """A worker that loses its connection may repeat over HTTP, and the other way round."""
    await world.deploy(one_task())
    peer = await world.connect("work", max_tasks=1, worker_id="both")
    await world.start()
    offer = await peer.task()
    assert type(await peer.complete(offer, paid=True)).__name__ == "Ack"
    await world.node.complete_task(offer.task_id, "both", {"paid": True}, fence=offer.fence)
    await world.start()
    offer = await peer.task()
    await world.node.complete_task(offer.task_id, "both", {"paid": True})
    assert type(await peer.complete(offer, paid=True)).__name__ == "Ack"
