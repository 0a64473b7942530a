"""Each deliberate bug changes what the engine does: small experiments, once as it should be and once with the bug."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import attrs
import msgspec
import pytest

from simulations.mutants.registry import MUTANTS
from stellwerk.actors.leases import deadline_of
from stellwerk.actors.mailbox import Reply
from stellwerk.actors.steps import Envelope, messages_of
from stellwerk.core import commands as c
from stellwerk.core.changes import RowChanges
from stellwerk.core.decide import Context, decide
from stellwerk.core.effects import row_changes
from stellwerk.core.external_task import ExternalTask, OutcomeKind
from stellwerk.core.facts import Fact, TokenEntered
from stellwerk.core.instance import InstanceState
from stellwerk.errors import StellwerkError
from stellwerk.ids import FreshIds
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy
from stellwerk.model.reader import read_definitions
from stellwerk.ports import (
    CheckRepeat,
    LeaseAnswer,
    LeaseTasks,
    ReleaseLease,
    ReleaseLeases,
    RenewLease,
    RenewLeases,
    Resumed,
    ResumeSession,
    TaskEnding,
    TaskLease,
)
from stellwerk.stores.memory import MemoryStore
from stellwerk.testing.store_contract.world import ContractBase, ManualClock, StoreWorld, holder
from stellwerk.wire.messages import Complete, TaskOffer
from stellwerk.worker.leases import LeaseTable

# --- in a store ----------------------------------------------------------------------------------------------------


class _Contract(ContractBase):
    def make_store(self, clock: ManualClock) -> MemoryStore:
        return MemoryStore(clock)


OTHER = holder("other", "other boot")


async def _completion(world: StoreWorld, task: ExternalTask, fence: int, worker_id: str = "worker") -> str:
    ending = TaskEnding(task.task_id, fence, "COMPLETED", OutcomeKind.COMPLETE, "digest", worker_id=worker_id)
    (outcome,) = await world.transact(world.changeset(task.instance_id, endings=(ending,)))
    return type(outcome).__name__


async def _release(world: StoreWorld, task: ExternalTask, session_id: str | None = None, started: bool = False) -> str:
    wish = ReleaseLease(task.task_id, task.fence, session_id, started)
    (answer,) = await world.do(ReleaseLeases((wish,)), tuple)
    assert isinstance(answer, LeaseAnswer)
    return answer.kind.value


async def completion_by_another(world: StoreWorld) -> object:
    task = await world.leased_task()
    return await _completion(world, task, task.fence - 1, "other")


async def completion_for_an_earlier_lease(world: StoreWorld) -> object:
    first = await world.leased_task()
    await _release(world, first)
    return await _completion(world, await world.lease(first.task_id), first.fence)


async def completion_after_the_end(world: StoreWorld) -> object:
    task = await world.leased_task()
    world.clock.advance(31_000)
    return await _completion(world, task, task.fence)


async def completion_of_a_lost_lease_moves(world: StoreWorld) -> object:
    task = await world.leased_task()
    return await _completion(world, task, task.fence - 1)


async def renewing_a_cancelled_task(world: StoreWorld) -> object:
    task = await world.leased_task()
    await world.step(task.instance_id, RowChanges(cancelled_tasks=(task.task_id,)))
    return (await _renewal(world, task)).kind.value


async def cancelling_a_leased_task(world: StoreWorld) -> object:
    task = await world.leased_task()
    await world.step(task.instance_id, RowChanges(cancelled_tasks=(task.task_id,)))
    return await world.state(task.task_id)


async def completing_a_cancelled_task(world: StoreWorld) -> object:
    task = await world.leased_task()
    await world.step(task.instance_id, RowChanges(cancelled_tasks=(task.task_id,)))
    check = CheckRepeat(task.task_id, task.fence, OutcomeKind.COMPLETE, "digest")
    return (await world.do(check, LeaseAnswer)).kind.value


async def fence_grows(world: StoreWorld) -> object:
    first = await world.leased_task()
    await _release(world, first)
    return (await world.lease(first.task_id)).fence > first.fence


async def leasing_a_leased_task(world: StoreWorld) -> object:
    task = await world.leased_task()
    (answers,) = await world.transact(LeaseTasks((TaskLease(task.task_id, OTHER, 30_000),)))
    return answers == (None,)


async def _renewal(world: StoreWorld, task: ExternalTask) -> LeaseAnswer:
    wish = RenewLease(task.task_id, task.fence, holder().session_id)
    (answer,) = await world.do(RenewLeases((wish,)), tuple)
    assert isinstance(answer, LeaseAnswer)
    return answer


async def renewing_after_the_end(world: StoreWorld) -> object:
    task = await world.leased_task()
    world.clock.advance(31_000)
    return (await _renewal(world, task)).kind.value


async def release_by_an_old_session(world: StoreWorld) -> object:
    task = await world.leased_task()
    await world.do(ResumeSession(holder(session_no=2), ((task.task_id, task.fence),)), Resumed)
    return await _release(world, task, holder(session_no=1).session_id)


async def hello_beside_a_twin(world: StoreWorld) -> object:
    await world.leased_task(by=holder(boot_id="twin"))
    resumed = await world.do(ResumeSession(holder(session_no=2), ()), Resumed)
    return len(resumed.released)


async def step_on_an_old_version(world: StoreWorld) -> object:
    instance_id = await world.instance_with()
    old = attrs.evolve(world.changeset(instance_id), expected_version=1)
    await world.step(instance_id)
    return type((await world.transact(old))[0]).__name__


async def failure_twice(world: StoreWorld) -> object:
    task = await world.leased_task()
    await world.fail(task)
    return (await world.fail(task)).kind.value


async def failure_again_after_the_next_lease(world: StoreWorld) -> object:
    task = await world.leased_task()
    await world.fail(task, retry_after_ms=0)
    await world.lease(task.task_id)
    return (await world.fail(task)).kind.value


async def failures_that_are_borne(world: StoreWorld) -> object:
    task_id, count = await world.ready_task(retries=3), 0
    while (await world.fail(await world.lease(task_id), retry_after_ms=0)).kind.value == "done":
        count += 1
    return count


async def retries_after_an_expiry(world: StoreWorld) -> object:
    task = await world.leased_task()
    world.clock.advance(31_000)
    await world.expire()
    return (await world.task(task.task_id)).retries_left


async def retries_after_a_release(world: StoreWorld) -> object:
    task = await world.leased_task()
    await _release(world, task, started=True)
    return (await world.task(task.task_id)).retries_left


async def wait_after_a_failure(world: StoreWorld) -> object:
    task = await world.leased_task()
    failed = (await world.fail(task, retry_after_ms=2_000)).task
    assert failed is not None
    return failed.available_at_ms - failed.updated_at_ms


async def expiry_of_a_single_try(world: StoreWorld) -> object:
    await world.leased_task(single_try=True)
    world.clock.advance(31_000)
    return len((await world.expire()).failing)


async def tenth_expiry(world: StoreWorld) -> object:
    task_id = await world.ready_task(lock_expiries_max=2)
    for _ in range(2):
        await world.lease(task_id)
        world.clock.advance(31_000)
        await world.expire()
    return await world.state(task_id)


STORE: Mapping[str, tuple[Callable[[StoreWorld], Awaitable[object]], object]] = {
    "completion-by-anybody": (completion_by_another, "RefusedChangeset"),
    "completion-without-fence": (completion_for_an_earlier_lease, "RefusedChangeset"),
    "completion-after-expiry": (completion_after_the_end, "RefusedChangeset"),
    "half-a-changeset": (completion_of_a_lost_lease_moves, "RefusedChangeset"),
    "cancelled-lease-goes-on": (renewing_a_cancelled_task, "cancelled"),
    "boundary-event-does-not-cancel": (cancelling_a_leased_task, "CANCELLED"),
    "cancelled-task-completed": (completing_a_cancelled_task, "cancelled"),
    "fence-not-raised": (fence_grows, True),
    "lease-not-conditional": (leasing_a_leased_task, True),
    "renewal-revives-expired-lock": (renewing_after_the_end, "lease_lost"),
    "kept-lease-not-moved": (release_by_an_old_session, "lease_lost"),
    "hello-steals-from-twin": (hello_beside_a_twin, 0),
    "version-not-guarded": (step_on_an_old_version, "RefusedChangeset"),
    "failure-not-idempotent": (failure_twice, "repeated"),
    "only-last-attempt-remembered": (failure_again_after_the_next_lease, "repeated"),
    "one-retry-too-many": (failures_that_are_borne, 2),
    "first-failure-compensates": (failures_that_are_borne, 2),
    "expiry-costs-retry": (retries_after_an_expiry, 3),
    "resume-costs-retry": (retries_after_a_release, 3),
    "no-back-off": (wait_after_a_failure, 2_000),
    "single-try-tried-again": (expiry_of_a_single_try, 1),
    "expiries-not-limited": (tenth_expiry, "LOCKED"),
}
"""Mutant → what is done, and what comes of it without the bug."""


@pytest.mark.parametrize("name", sorted(STORE))
async def test_a_store_with_the_bug_does_something_else(name: str) -> None:
    experiment, expected = STORE[name]
    async with _Contract().open_world() as world:
        assert await experiment(world) == expected
    with MUTANTS[name].apply():
        async with _Contract().open_world() as world:
            assert await experiment(world) != expected


# --- in an instance ------------------------------------------------------------------------------------------------

_HEAD = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"
  xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"><message id="m" name="m"/><process id="p"
  isExecutable="true" stellwerk:failurePolicy="compensate">"""


def _flows(*paths: str) -> str:
    pairs = [pair for path in paths for pair in zip(path.split(), path.split()[1:], strict=False)]
    return "".join(f'<sequenceFlow id="{a}-{b}" sourceRef="{a}" targetRef="{b}"/>' for a, b in pairs)


def _tasks(*names: str) -> str:
    return "".join(f'<serviceTask id="{name}" stellwerk:topic="{name}"/>' for name in names)


def _undo(*names: str) -> str:
    return "".join(
        f'<serviceTask id="no_{name}" isForCompensation="true" stellwerk:topic="no_{name}"/>'
        f'<boundaryEvent id="{name}.undo" attachedToRef="{name}"><compensateEventDefinition/></boundaryEvent>'
        f'<association id="{name}.way" associationDirection="One" sourceRef="{name}.undo" targetRef="no_{name}"/>'
        for name in names
    )


_ENDS = '<startEvent id="s"/><endEvent id="e"/>'
_PARALLEL = '<parallelGateway id="split"/><parallelGateway id="join"/>'
_TIMER = "<timerEventDefinition><timeDuration>PT5S</timeDuration></timerEventDefinition>"

FORK = _ENDS + _PARALLEL + _tasks("a", "b") + _flows("s split a join e", "split b join")
TWO_ENDS = (
    _ENDS + '<endEvent id="e2"/><parallelGateway id="split"/>' + _tasks("a", "b") + _flows("s split a e", "split b e2")
)
BOUNDARY = (
    _ENDS
    + '<endEvent id="late"/>'
    + _tasks("a", "b")
    + f'<boundaryEvent id="t" attachedToRef="a">{_TIMER}</boundaryEvent>'
    + _flows("s a e", "t b late")
)
RACE = (
    _ENDS
    + '<eventBasedGateway id="first"/>'
    + f'<intermediateCatchEvent id="t">{_TIMER}</intermediateCatchEvent>'
    + '<intermediateCatchEvent id="r"><messageEventDefinition messageRef="m"/></intermediateCatchEvent>'
    + _tasks("a", "b")
    + _flows("s first t a e", "first r b e")
)
SAGA = _ENDS + _tasks("a", "b", "c") + _undo("a", "b") + _flows("s a b c e")
WIDE_SAGA = (
    _ENDS
    + _PARALLEL
    + _tasks("a", "b", "c")
    + _undo("a", "b")
    + _flows("s split a join e", "split b join", "split c join")
)


class _Instance:
    """One instance, decided on step by step as its actor does."""

    def __init__(self, body: str) -> None:
        (self._process,) = read_definitions(f"{_HEAD}{body}</process></definitions>".encode()).processes
        self.state: InstanceState | None = None
        self.facts: list[Fact] = []
        self.changes = RowChanges()
        self._steps = 0
        self.do(c.StartInstance("i", "p:1", {}))

    def do(self, command: c.Command) -> None:
        self._steps += 1
        ids = FreshIds(1_000_000, self._steps * 1_000_000)
        context = Context(self._process, "p:1", 1_000_000, ids, FailurePolicy.COMPENSATE, Limits())
        decision = decide(self.state, command, context)
        self.state = decision.state
        self.facts += decision.facts
        self.changes = row_changes(decision.facts, decision.state)

    @property
    def live(self) -> InstanceState:
        assert self.state is not None
        return self.state

    @property
    def open(self) -> list[str]:
        return sorted(self.live.activities[task.activity_id].node_id for task in self.live.tasks.values())

    def complete(self, *elements: str) -> None:
        for element in elements:
            self.do(c.CompleteTask(self._task(element), 1, {element: True}, "digest"))

    def fail(self, element: str) -> None:
        self.do(c.EndTaskInFailure(self._task(element), 1, c.FailureKind.RETRIES_EXHAUSTED, "it broke"))

    def fire(self) -> None:
        self.do(c.FireTimer(next(iter(self.live.timers))))

    def message(self) -> None:
        self.do(c.CorrelateMessage(next(iter(self.live.subscriptions)), "m1", {}))

    def _task(self, element: str) -> str:
        state = self.live
        return next(key for key, task in state.tasks.items() if state.activities[task.activity_id].node_id == element)

    @property
    def waits(self) -> int:
        return len(self.live.timers) + len(self.live.subscriptions)


def tasks_after_a_split() -> object:
    return _Instance(FORK).open


def ends_reached_after_one_branch() -> object:
    run = _Instance(FORK)
    run.complete("a")
    return sum(isinstance(fact, TokenEntered) and fact.node_id == "e" for fact in run.facts)


def status_after_both_branches() -> object:
    run = _Instance(FORK)
    run.complete("a", "b")
    return run.live.status.value


def result_of_the_first_branch() -> object:
    run = _Instance(FORK)
    run.complete("a")
    return dict(run.live.variables)


def status_with_another_token_left() -> object:
    run = _Instance(TWO_ENDS)
    run.complete("a")
    return run.live.status.value


def tokens_after_an_interruption() -> object:
    run = _Instance(BOUNDARY)
    run.fire()
    return len(run.live.tokens)


def waits_after_a_completion() -> object:
    run = _Instance(BOUNDARY)
    run.complete("a")
    return run.waits


def waits_after_a_race() -> object:
    run = _Instance(RACE)
    run.message()
    return run.waits


def timer_rows_after_firing() -> object:
    run = _Instance(BOUNDARY)
    run.fire()
    return len(run.changes.timers_disarmed)


def cancelling_what_has_ended() -> object:
    run = _Instance(FORK)
    run.complete("a", "b")
    try:
        run.do(c.CancelInstance("too late"))
    except StellwerkError as refusal:
        return refusal.code
    return run.live.status.value


def handlers_of_a_failing_saga() -> object:
    run = _Instance(SAGA)
    run.complete("a", "b")
    run.fail("c")
    seen: list[tuple[str, ...]] = []
    while run.open and len(seen) < 5:
        seen.append(tuple(run.open))
        run.complete(run.open[0])
    return seen


def what_runs_while_a_task_drains() -> object:
    run = _Instance(WIDE_SAGA)
    run.complete("a")
    run.fail("c")
    return run.open


def what_is_undone_after_draining() -> object:
    run = _Instance(WIDE_SAGA)
    run.fail("c")
    run.complete("a", "b")
    return run.open


CORE: Mapping[str, tuple[Callable[[], object], object]] = {
    "token-doubled-at-split": (tasks_after_a_split, ["a", "b"]),
    "join-fires-early": (ends_reached_after_one_branch, 0),
    "join-counts-tokens": (status_after_both_branches, "COMPLETED"),
    "result-of-branch-lost": (result_of_the_first_branch, {"a": True}),
    "ends-with-tokens-left": (status_with_another_token_left, "RUNNING"),
    "interrupted-token-left-behind": (tokens_after_an_interruption, 1),
    "completed-activity-keeps-boundary": (waits_after_a_completion, 0),
    "loser-of-race-stays-armed": (waits_after_a_race, 0),
    "timer-row-stays": (timer_rows_after_firing, 1),
    "ended-instance-cancelled": (cancelling_what_has_ended, "ended"),
    "compensation-forwards": (handlers_of_a_failing_saga, [("no_b",), ("no_a",)]),
    "last-handler-skipped": (handlers_of_a_failing_saga, [("no_b",), ("no_a",)]),
    "handlers-side-by-side": (handlers_of_a_failing_saga, [("no_b",), ("no_a",)]),
    "compensation-before-draining": (what_runs_while_a_task_drains, ["b"]),
    "leased-sibling-not-drained": (what_runs_while_a_task_drains, ["b"]),
    "drained-task-not-compensated": (what_is_undone_after_draining, ["no_b"]),
}


@pytest.mark.parametrize("name", sorted(CORE))
def test_an_instance_with_the_bug_goes_another_way(name: str) -> None:
    experiment, expected = CORE[name]
    assert experiment() == expected
    with MUTANTS[name].apply():
        assert _result_of(experiment) != expected


def _result_of(experiment: Callable[[], object]) -> object:
    """Some bugs end in a failed assertion a little later: that is another behaviour, too."""
    try:
        return experiment()
    except (KeyError, AssertionError, StellwerkError) as error:
        return error


# --- between messages ----------------------------------------------------------------------------------------------


def _offer(fence: int = 1) -> TaskOffer:
    return TaskOffer(
        task_id="t",
        fence=fence,
        topic="topic",
        token_id="token",
        process_instance_id="i",
        process_definition_id="p:1",
        business_key=None,
        element_id="a",
        attempt=1,
        retries_left=3,
        priority=0,
        created_at="2026-01-01T00:00:00Z",
        lock_remaining_ms=1_000,
        lock_expires_at="2026-01-01T00:00:01Z",
        variables=msgspec.Raw(b"{}"),
        headers=msgspec.Raw(b"{}"),
        single_try=False,
    )


def report_with_a_result_under_way() -> object:
    table = LeaseTable()
    lease = table.accept(_offer(), 1_000)
    assert lease is not None
    table.finish(lease, Complete(1, "t", 1))
    return len(table.holding())


def messages_of_a_correlation() -> object:
    return messages_of([Envelope(c.CorrelateMessage("s", "m1", {}), Reply())])


async def trust_in_a_kept_lease() -> float:
    async with _Contract().open_world() as world:
        task = await world.leased_task()
        world.clock.advance(20_000)
        resumed = await world.do(ResumeSession(holder(session_no=2), ((task.task_id, task.fence),)), Resumed)
        return deadline_of(resumed.kept[0], 0.0)


PIECES: Mapping[str, tuple[Callable[[], object], object]] = {
    "report-leaves-out-finals": (report_with_a_result_under_way, 1),
    "message-not-consumed": (messages_of_a_correlation, ["m1"]),
}


@pytest.mark.parametrize("name", sorted(PIECES))
def test_a_piece_with_the_bug_answers_otherwise(name: str) -> None:
    experiment, expected = PIECES[name]
    assert experiment() == expected
    with MUTANTS[name].apply():
        assert experiment() != expected


async def test_a_kept_lease_is_told_for_longer_than_it_lasts() -> None:
    assert await trust_in_a_kept_lease() <= 10.0
    with MUTANTS["kept-lease-told-whole"].apply():
        assert await trust_in_a_kept_lease() > 29.0


def test_the_experiments_are_about_mutants_that_there_are() -> None:
    assert not {*STORE, *CORE, *PIECES} - set(MUTANTS)
