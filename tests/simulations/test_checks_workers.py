"""The checkers of what workers and clients see: answers, acknowledgements, beliefs, and the end of a run."""

from __future__ import annotations

import math
from typing import cast

import attrs
import msgspec
import pytest

from simulations.checks.beliefs import Beliefs
from simulations.checks.black_box import BlackBox, request_digest
from simulations.checks.clients import ClientChecks
from simulations.checks.commit_checks import CommitChecks
from simulations.checks.drift import Drift
from simulations.checks.final_checks import final_checks, unfinished
from simulations.checks.linearisation import Verdict, linearisable
from simulations.checks.rehearsal import START_MS, Findings, Rehearsal, holder
from simulations.checks.sequential_task import Call
from simulations.cluster.calls import ClientCall
from simulations.cluster.http_client import Answer
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.core.history import decode_facts
from stellwerk.json_values import JsonValue, digest
from stellwerk.ports import (
    ExpireLocks,
    FailTask,
    HistoryStep,
    InstanceSummary,
    LeaseTasks,
    MessageRow,
    PublishMessage,
    ReleaseLease,
    ReleaseLeases,
    TaskLease,
)
from stellwerk.wire.messages import (
    Ack,
    BpmnErrorReport,
    Complete,
    Extend,
    Fail,
    Goodbye,
    Hello,
    Holding,
    LeaseRef,
    Nack,
    Release,
    Revoked,
    RevokedLeaseNotice,
    SessionLimits,
    Subscribe,
    TaskOffer,
    Tasks,
    Welcome,
)
from stellwerk.wire.session import CLOCK_DRIFT_MAX
from stellwerk.worker.task import CancelSignal, Task

HEAD = (
    '<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"'
    ' xmlns:camunda="http://camunda.org/schema/1.0/bpmn"><message id="hello" name="hello"/>'
)
ONE_TASK = f"""{HEAD}<process id="one" isExecutable="true">
<startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="work"/>
<serviceTask id="work" camunda:type="external" camunda:topic="work"/>
<sequenceFlow id="f2" sourceRef="work" targetRef="e"/><endEvent id="e"/></process></definitions>"""
SINGLE_TRY = ONE_TASK.replace(
    'topic="work"/>',
    'topic="work" xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn" stellwerk:singleTry="true"/>',
)
WAITS = f"""{HEAD}<process id="waits" isExecutable="true"><startEvent id="s"/><sequenceFlow id="f1" sourceRef="s"
 targetRef="wait"/><intermediateCatchEvent id="wait"><messageEventDefinition messageRef="hello"/>
</intermediateCatchEvent><sequenceFlow id="f2" sourceRef="wait" targetRef="e"/><endEvent id="e"/></process>
</definitions>"""


# --- the sequential model ------------------------------------------------------------------------------------------


def grant(fence: int, at: float) -> Call:
    return Call(kind="grant", fence=fence, began=-math.inf, ended=at)


def said(kind: str, fence: int, began: float, ended: float, answer: str = "ok", what: str = "x") -> Call:
    return Call(kind=kind, fence=fence, began=began, ended=ended, answer=answer, said=f"{kind} {what}")


def lost(kind: str, fence: int, began: float, what: str = "x") -> Call:
    return said(kind, fence, began, math.inf, "unknown", what)


@pytest.mark.parametrize(
    "calls",
    [
        [grant(1, 1), said("complete", 1, 2, 3)],
        # The first answer was lost, the repetition gets the same one.
        [grant(1, 1), lost("complete", 1, 2), said("complete", 1, 4, 5)],
        # Two completions at once, by two workers; the older lease has run out.
        [grant(1, 1), grant(2, 5), said("complete", 1, 4, 9, "lease_lost"), said("complete", 2, 6, 8)],
        # It failed, was leased again and completed; then the failure is repeated (rule 12).
        [grant(1, 1), said("fail", 1, 2, 3), grant(2, 4), said("complete", 2, 5, 6), said("fail", 1, 7, 8)],
        [grant(1, 1), said("bpmn_error", 1, 2, 3), said("complete", 1, 4, 5, "already_finished")],
        [grant(1, 1), said("extend", 1, 2, 3), said("complete", 1, 4, 5, "cancelled")],
        [grant(1, 1), said("release", 1, 2, 3), said("complete", 1, 4, 5, "lease_lost")],
        # A single-try task that was begun stays leased.
        [grant(1, 1), said("release", 1, 2, 3), said("fail", 1, 4, 5)],
        # What nobody answered happened late, between two others.
        [grant(1, 1), lost("fail", 1, 2), grant(2, 9), said("complete", 2, 10, 11)],
        [],
    ],
)
def test_answers_that_a_task_can_give(calls: list[Call]) -> None:
    assert linearisable(calls) is Verdict.POSSIBLE


@pytest.mark.parametrize(
    "calls",
    [
        # A1: two leases completed.
        [grant(1, 1), said("complete", 1, 2, 3), grant(2, 4), said("complete", 2, 5, 6)],
        # I1: a repetition is refused after the answer.
        [grant(1, 1), said("complete", 1, 2, 3), said("complete", 1, 4, 5, "lease_lost")],
        # Only the last failed lease was remembered.
        [
            grant(1, 1),
            said("fail", 1, 2, 3, what="a"),
            grant(2, 4),
            said("fail", 2, 5, 6, what="b"),
            said("fail", 1, 7, 8, "lease_lost", what="a"),
        ],
        # Two different ends of one lease.
        [grant(1, 1), said("complete", 1, 2, 3), said("fail", 1, 4, 5)],
        # A lost lease ends the task after all.
        [grant(1, 1), said("fail", 1, 2, 3, "lease_lost"), said("complete", 1, 4, 5)],
        # A stale one ends it.
        [grant(1, 1), grant(2, 2), said("extend", 2, 3, 4), said("complete", 1, 5, 6)],
        # Offered again after its completion.
        [grant(1, 1), said("complete", 1, 2, 3), grant(2, 4), said("extend", 2, 5, 6)],
        # Cancelled is for good.
        [grant(1, 1), said("fail", 1, 2, 3, "cancelled"), grant(2, 4), said("complete", 2, 5, 6)],
        # Nobody finished it.
        [grant(1, 1), said("complete", 1, 2, 3, "already_finished")],
    ],
)
def test_I1_answers_that_no_task_can_give(calls: list[Call]) -> None:
    assert linearisable(calls) is Verdict.IMPOSSIBLE


def test_a_history_with_too_many_orders_is_left_undecided() -> None:
    storm = [grant(fence, 100 + fence) for fence in range(1, 6)]
    storm += [lost("fail", fence, 0, what=str(fence)) for fence in range(1, 6)]
    storm.append(said("complete", 3, 200, 201))
    storm.append(said("complete", 5, 200, 201, what="y"))
    assert linearisable(storm, steps_max=50) is Verdict.UNDECIDED
    assert linearisable(storm) is Verdict.IMPOSSIBLE


# --- the black box -------------------------------------------------------------------------------------------------


def offer_of(task: ExternalTask, topic: str) -> TaskOffer:
    return TaskOffer(
        task_id=task.task_id,
        fence=task.fence,
        topic=topic,
        token_id=task.token_id,
        process_instance_id=task.instance_id,
        process_definition_id=task.definition_id,
        business_key=None,
        element_id=task.element_id,
        attempt=task.attempt,
        retries_left=task.retries_left,
        priority=0,
        created_at="",
        lock_remaining_ms=1_000,
        lock_expires_at="",
        variables=msgspec.Raw(b"{}"),
        headers=msgspec.Raw(b"{}"),
    )


class Play:
    """Workers that talk about one task, whose rows are written by the engine's rules."""

    def __init__(self, model: str = ONE_TASK) -> None:
        self.findings = Findings()
        self.checks = CommitChecks(self.findings)
        self.rehearsal = Rehearsal(self.checks)
        self.rehearsal.start("i1", self.rehearsal.deploy(model))
        self.box = BlackBox(self.findings, self.now, self.checks.promises)
        self.ref = 0
        self.sessions = 0
        for place in ("w1#1", "w2#1"):
            self.box.sent(place, Subscribe("work"))

    def now(self) -> float:
        return (self.rehearsal.now_ms - START_MS) / 1000

    @property
    def task(self) -> ExternalTask:
        (task,) = self.rehearsal.tasks("i1", *TaskState)
        return task

    def offer(self, place: str = "w1#1", topic: str = "work") -> ExternalTask:
        """Lease it, and let the worker get it."""
        self.rehearsal.pass_ms(10)
        leased = self.rehearsal.lease(self.task, place.partition("#")[0], 1_000)
        self.deliver(leased, place, topic)
        return leased

    def deliver(self, task: ExternalTask, place: str, topic: str = "work") -> None:
        self.box.received(place, Tasks(1, (offer_of(task, topic),)))

    def begin_session(self, place: str = "w1#1", boot_id: str = "b") -> None:
        self.sessions += 1
        self.box.sent(place, Hello(place, boot_id, self.sessions, "test"))
        limits = SessionLimits(
            frame_bytes_max=1, payload_bytes_max=1, max_tasks_max=1, lock_duration_ms_min=1, lock_duration_ms_max=1
        )
        self.box.received(place, Welcome("s", 0.0, 250, limits))

    def complete(self, task: ExternalTask, place: str = "w1#1", result: bytes = b"{}") -> int:
        self.rehearsal.pass_ms(10)
        self.ref += 1
        self.box.sent(place, Complete(self.ref, task.task_id, task.fence, msgspec.Raw(result)))
        return self.ref

    def answer(self, ref: int, place: str = "w1#1", code: str = "ok") -> None:
        self.rehearsal.pass_ms(10)
        self.box.received(place, Ack(ref) if code == "ok" else Nack(ref, code, ""))


def test_work_that_is_done_as_told_breaks_nothing() -> None:
    play = Play()
    first = play.offer()
    play.rehearsal.pass_ms(1_000)
    play.rehearsal.transact(ExpireLocks(10))
    second = play.offer("w2#1")
    play.answer(play.complete(first), code="lease_lost")
    unanswered = play.complete(second, "w2#1")
    play.rehearsal.complete(second)
    again = play.complete(second, "w2#1")
    play.answer(again, "w2#1")
    play.box.finish()
    assert not play.findings.violations
    assert play.findings.happened["worker: complete acknowledged only when repeated"]
    assert unanswered != again


def test_D1_acknowledged_before_or_without_its_commit() -> None:
    play = Play()
    play.answer(play.complete(play.offer()))
    assert "D1" in play.findings.invariants


def test_D1_acknowledged_with_another_result_than_the_one_that_was_kept() -> None:
    play = Play()
    task = play.offer()
    ref = play.complete(task, result=b'{"a":1}')
    play.rehearsal.complete(task, {"a": 2})
    play.answer(ref)
    assert "D1" in play.findings.invariants


def test_D1_acknowledged_before_it_was_safe() -> None:
    play = Play()
    task = play.offer()
    ref = play.complete(task)
    play.rehearsal.observers = []
    play.rehearsal.complete(task)
    commit = play.rehearsal.transactions[-1]
    play.checks.committed(commit)
    play.answer(ref)
    assert play.findings.invariants == {"D1"}
    play.findings.violations.clear()
    play.checks.undone(commit)
    assert play.findings.invariants == {"D1"}


def test_A1_two_leases_are_acknowledged_as_completed() -> None:
    play = Play()
    first = play.offer()
    ref = play.complete(first)
    play.rehearsal.complete(first)
    play.answer(ref)
    newer = attrs.evolve(first, fence=first.fence + 7)
    play.deliver(newer, "w2#1")
    play.answer(play.complete(newer, "w2#1"), "w2#1")
    assert "A1" in play.findings.invariants
    play.box.finish()
    assert "I1" in play.findings.invariants


def test_A2_an_answer_to_nothing_or_a_second_one() -> None:
    play = Play()
    play.answer(99)
    assert play.findings.invariants == {"A2"}
    play.findings.violations.clear()
    ref = play.complete(play.offer())
    play.answer(ref, code="lease_lost")
    play.answer(ref, code="lease_lost")
    assert play.findings.invariants == {"A2"}


def test_A2_a_worker_uses_a_reference_twice() -> None:
    play = Play()
    play.begin_session()
    task = play.offer()
    play.complete(task)
    play.ref = 0
    play.begin_session("w1#1", boot_id="of the worker that was started after that one gave up")
    play.complete(task)
    assert not play.findings.violations, "it counts anew"
    play.ref = 0
    play.complete(task)
    assert play.findings.invariants == {"A2"}


def test_L1_one_lease_is_handed_to_two_workers() -> None:
    play = Play()
    task = play.offer()
    play.deliver(task, "w1#1")
    assert not play.findings.violations
    play.deliver(task, "w2#1")
    assert play.findings.invariants == {"L1"}


def test_L8_a_task_of_a_topic_that_was_not_subscribed_to() -> None:
    play = Play()
    play.offer(topic="secrets")
    assert play.findings.invariants == {"L8"}


def test_refusals_that_do_not_tell_count_as_no_answer() -> None:
    play = Play()
    task = play.offer()
    play.answer(play.complete(task), code="unavailable")
    play.answer(play.complete(task, result=b"[]"), code="too_large")
    ref = play.complete(task)
    play.rehearsal.complete(task)
    play.answer(ref)
    play.box.finish()
    assert not play.findings.violations


@pytest.mark.parametrize("repeats", [True, False])
def test_H2_a_result_is_told_again_in_the_next_session(repeats: bool) -> None:
    play = Play()
    play.begin_session()
    task = play.offer()
    play.complete(task)
    play.begin_session()
    if repeats:
        play.complete(task)
    play.rehearsal.pass_ms(1_100)
    play.box.sent("w1#1", Holding((LeaseRef(task.task_id, task.fence),)))
    assert play.findings.invariants == (set() if repeats else {"H2"})


def test_I1_what_was_done_is_refused_when_it_is_repeated() -> None:
    play = Play()
    task = play.offer()
    ref = play.complete(task)
    play.rehearsal.complete(task)
    play.answer(ref, code="lease_lost")
    assert play.findings.invariants == {"I1"}


def test_I1_a_failure_of_an_earlier_lease_is_forgotten() -> None:
    play = Play()
    first = play.offer()
    failure = Fail(7, first.task_id, first.fence, "m", retry_after_ms=0)
    play.box.sent("w1#1", failure)
    told = FailTask(first.task_id, first.fence, request_digest(failure), "m", retry_after_ms=0)
    play.rehearsal.transact(told)
    play.offer("w2#1")
    play.answer(7, code="lease_lost")
    assert play.findings.invariants == {"I1"}


def test_I3_a_lease_that_stands_is_refused() -> None:
    play = Play()
    play.checks.promises.lease_now_ms = lambda: play.rehearsal.now_ms
    task = play.offer()
    play.answer(play.complete(task), code="lease_lost")
    assert play.findings.invariants == {"I3"}


def test_I3_a_lease_that_ran_out_may_be_refused_before_anybody_has_swept_it() -> None:
    play = Play()
    play.checks.promises.lease_now_ms = lambda: play.rehearsal.now_ms
    ref = play.complete(play.offer())
    play.rehearsal.pass_ms(1_000)
    play.answer(ref, code="lease_lost")
    assert not play.findings.violations


@pytest.mark.parametrize("began_before", [True, False])
def test_L7_a_single_try_is_taken_back_although_its_handler_begins(began_before: bool) -> None:
    play = Play(SINGLE_TRY)
    task = play.offer()
    if began_before:
        play.checks.promises.began("w1#1", task.task_id, task.fence)
        assert not play.findings.violations
    play.rehearsal.transact(ReleaseLeases((ReleaseLease(task.task_id, task.fence, None, started=False),)))
    if not began_before:
        assert not play.findings.violations
        play.checks.promises.began("w1#1", task.task_id, task.fence)
    assert play.findings.invariants == {"L7"}


def test_a_request_is_known_by_the_digest_that_the_engine_records() -> None:
    raw = msgspec.Raw
    assert request_digest(Complete(1, "t", 1, raw(b'{"b":1,"a":2}'))) == digest({"a": 2, "b": 1})
    assert request_digest(Fail(1, "t", 1, "m", retries=2)) == digest(["m", None, None, 2])
    assert request_digest(BpmnErrorReport(1, "t", 1, "C")) == digest(["C", None, None, {}])
    assert request_digest(Release(1, "t", 1, True)) == request_digest(Extend(1, "t", 1, 5)) == ""


# --- clients -------------------------------------------------------------------------------------------------------


def called(path: str, body: dict[str, JsonValue]) -> ClientCall:
    return ClientCall(place="client#1", key="k", number=1, target="node-1", method="POST", path=path, body=body)


def test_clients_get_one_instance_for_one_request_and_it_is_there() -> None:
    play = Play()
    clients = ClientChecks(play.findings, play.checks.shadow)
    start = called("/api/v1/process-instances", {"request_id": "r1"})
    clients.asked(start)
    clients.unanswered(start, True)
    clients.answered(start, Answer(201, {"instance_id": "i1"}))
    clients.answered(start, Answer(503, None))
    clients.finish()
    assert not play.findings.violations
    clients.answered(start, Answer(201, {"instance_id": "i2"}))
    assert play.findings.invariants == {"I1", "D1"}


def test_D1_a_message_or_a_cancellation_that_was_acknowledged_is_not_there() -> None:
    play = Play()
    clients = ClientChecks(play.findings, play.checks.shadow)
    clients.answered(called("/api/v1/messages", {"message_id": "m1"}), Answer(201, {}))
    assert play.findings.invariants == {"D1"}
    play.findings.violations.clear()
    cancelling = called("/api/v1/process-instances/i1/cancel", {})
    clients.answered(cancelling, Answer(200, {}))
    assert play.findings.invariants == {"D1"}
    play.findings.violations.clear()
    play.rehearsal.cancel("i1")
    clients.answered(cancelling, Answer(200, {}))
    assert not play.findings.violations


# --- beliefs -------------------------------------------------------------------------------------------------------


def task_of(task: ExternalTask) -> Task:
    """As its handler gets it."""
    return Task(offer_of(task, "work"), "w1", CancelSignal(), lambda: 1.0, lambda _seconds: None)


class Believers:
    def __init__(self, drift: Drift | None = None) -> None:
        self.play = Play()
        self.findings = Findings()
        self.alive = {"w1#1", "w2#1"}
        self.beliefs = Beliefs(self.findings, self.play.now, drift=drift, is_running=self.alive.__contains__)
        for transaction in self.play.rehearsal.transactions:
            self.beliefs.committed(transaction)
        self.play.rehearsal.observers.append(self.beliefs)

    def believe(self, place: str, seconds: float, task: ExternalTask) -> None:
        self.beliefs.believes(place, task.task_id, task.fence, self.play.now() + seconds)

    def expire(self, task: ExternalTask) -> None:
        """In the rows, and no sooner than its end."""
        assert task.lease is not None
        rehearsal = self.play.rehearsal
        rehearsal.pass_ms(max(0, task.lease.until_ms - rehearsal.now_ms))
        rehearsal.transact(ExpireLocks(10))


def test_workers_that_trust_their_leases_no_longer_than_they_last_break_nothing() -> None:
    group = Believers()
    first = group.play.offer()
    group.believe("w1#1", 0.95, first)
    group.expire(first)
    second = group.play.offer("w2#1")
    group.believe("w2#1", 0.95, second)
    group.beliefs.let_go("w2#1", second.task_id, second.fence)
    assert not group.findings.violations


def test_K1_a_worker_believes_longer_than_the_store_gave_it() -> None:
    group = Believers()
    first = group.play.offer()
    group.believe("w1#1", 1.0, first)
    assert not group.findings.violations
    group.believe("w1#1", 1.001, first)
    assert group.findings.invariants == {"K1"}


def test_a_lease_that_was_given_just_before_the_clock_jumped_was_given() -> None:
    """The transaction read the clock, then the clock was set forward, then it was committed."""
    group = Believers()
    rehearsal = group.play.rehearsal
    rehearsal.observers.remove(group.beliefs)
    first = group.play.offer()
    leasing = rehearsal.transactions[-1]
    group.beliefs.committed(attrs.evolve(leasing, clock_ms=leasing.now_ms + 60_000))
    group.believe("w1#1", 0.9, first)
    assert not group.findings.violations


def test_K1_allows_what_clocks_that_drift_beyond_the_bound_may_spoil_and_no_more() -> None:
    """The node counts 1 s as 1.019 s of the worker's slow clock's, and that for the time since it heard of it, too."""
    group = Believers(Drift({"w1": 0.98}, ["node-1"], "database"))
    first = group.play.offer()
    group.beliefs.sent("w1#1", Hello("w1", "b", 1, "test"))
    group.believe("w1#1", 1.019, first)
    assert not group.findings.violations
    group.believe("w1#1", 1.021, first)
    assert group.findings.invariants == {"K1"}


def test_clocks_within_the_bound_excuse_nothing() -> None:
    half = CLOCK_DRIFT_MAX / 2
    drift = Drift({"w1": 1 - half, "node-1": 1 + half, "database": 1 - half}, ["node-1"], "database")
    assert drift.excess("w1#3", 1_000.0, 1_000.0) < 1e-3


def test_the_worst_clock_of_the_nodes_counts() -> None:
    drift = Drift({"w1": 0.99, "node-2": 1.01, "database": 1.0}, ["node-1", "node-2"], "database")
    assert drift.excess("w1#1", 10.0, 5.0) == pytest.approx(10 * (0.999 * 1.01 / 0.99 - 1))
    assert Drift({"database": 1.02}, ["node-1"], "database").excess("w1#1", 0.0, 5.0) == pytest.approx(5 * 0.01898)
    assert Drift({"database": 0.5}, ["node-1"], "database").true_length(2.0) == 4.0


def test_K2_a_handler_begins_on_a_lease_that_is_over_or_was_never_believed_in() -> None:
    group = Believers()
    first, rehearsal = group.play.offer(), group.play.rehearsal
    group.believe("w1#1", 0.9, first)
    group.beliefs.handler_began("w1#1", task_of(first))
    assert not group.findings.violations
    group.beliefs.handler_began("w2#1", task_of(first))
    assert group.findings.invariants == {"K2"}
    group.findings.violations.clear()
    rehearsal.pass_ms(901)
    group.beliefs.handler_began("w1#1", task_of(first))
    assert group.findings.invariants == {"K2"}


def test_K1_a_worker_goes_on_with_a_lease_that_was_revoked() -> None:
    group = Believers()
    first, rehearsal = group.play.offer(), group.play.rehearsal
    group.believe("w1#1", 0.9, first)
    notice = RevokedLeaseNotice(first.task_id, first.fence, "cancelled")
    group.beliefs.received("w1#1", Revoked((notice,)))
    rehearsal.pass_ms(1)
    group.beliefs.sent("w1#1", Goodbye())
    assert group.findings.invariants == {"K1"}
    group.findings.violations.clear()
    group.beliefs.received("w1#1", Revoked((notice,)))
    group.beliefs.let_go("w1#1", first.task_id, first.fence)
    rehearsal.pass_ms(1)
    group.beliefs.sent("w1#1", Goodbye())
    assert not group.findings.violations


def test_K1_a_worker_goes_on_beyond_its_own_deadline() -> None:
    group = Believers()
    first, rehearsal = group.play.offer(), group.play.rehearsal
    group.believe("w1#1", 0.9, first)
    report = Holding((LeaseRef(first.task_id, first.fence),))
    rehearsal.pass_ms(1_200)
    group.beliefs.sent("w1#1", report)
    assert not group.findings.violations, "it may just have stood still"
    rehearsal.pass_ms(1)
    group.beliefs.sent("w1#1", report)
    assert group.findings.invariants == {"K1"}


def test_H1_a_worker_leaves_a_lease_out_of_its_report() -> None:
    group = Believers()
    first = group.play.offer()
    group.believe("w1#1", 0.9, first)
    group.beliefs.sent("w1#1", Holding((LeaseRef(first.task_id, first.fence),)))
    group.beliefs.sent("w2#1", Holding(()))
    assert not group.findings.violations
    group.beliefs.sent("w1#1", Hello("w1", "b", 2, "test"))
    assert group.findings.invariants == {"H1"}


def test_a_worker_that_is_started_after_one_that_gave_up_has_nothing_of_what_that_one_held() -> None:
    group = Believers()
    group.beliefs.sent("w1#1", Hello("w1", "b", 1, "test"))
    first, rehearsal = group.play.offer(), group.play.rehearsal
    group.believe("w1#1", 0.9, first)
    rehearsal.pass_ms(100)
    group.beliefs.sent("w1#1", Hello("w1", "another", 1, "test"))
    assert not group.findings.violations
    group.beliefs.handler_began("w1#1", task_of(first))
    assert group.findings.invariants == {"K2"}, "nor may it begin with that"


def overlapping(group: Believers) -> None:
    """The first belief, in a second lease that the store took back before its end."""
    first = group.play.offer()
    group.believe("w1#1", 0.99, first)
    rehearsal = group.play.rehearsal
    leased = rehearsal.transactions[-1]
    assert first.lease is not None
    # Expired by a clock that is not the store's: half a second early.
    early = attrs.evolve(first, lease=attrs.evolve(first.lease, until_ms=rehearsal.now_ms))
    rehearsal.tables._swap(first, early)
    rehearsal.transact(ExpireLocks(10))
    assert leased.changes
    group.believe("w2#1", 0.9, group.play.offer("w2#1"))


def test_L6_two_workers_believe_in_a_task_at_the_same_time() -> None:
    group = Believers()
    overlapping(group)
    assert group.findings.invariants == {"L6"}


def test_L6_the_dead_and_those_who_let_go_believe_nothing() -> None:
    group = Believers()
    group.alive.discard("w1#1")
    overlapping(group)
    assert not group.findings.violations


def test_L6_a_lease_that_was_released_early_is_no_overlap() -> None:
    group = Believers()
    first = group.play.offer()
    group.believe("w1#1", 0.99, first)
    group.play.rehearsal.transact(ReleaseLeases((ReleaseLease(first.task_id, first.fence, None, False),)))
    group.believe("w2#1", 0.9, group.play.offer("w2#1"))
    assert not group.findings.violations
    assert group.findings.happened["worker: believed in a lease that was freed early"]


def test_L6_an_expiry_that_a_crash_undid_does_not_count() -> None:
    group = Believers()
    first = group.play.offer()
    group.believe("w1#1", 0.99, first)
    group.expire(first)
    expired = group.play.rehearsal.transactions[-1]
    group.beliefs.undone(expired)
    assert not group.beliefs._expired


# --- the end of a run ----------------------------------------------------------------------------------------------


class Rows:
    """The database as it is in the end."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.tables = rehearsal.tables

    def all_tasks(self) -> list[ExternalTask]:
        return list(self.tables.tasks.values())

    def all_instances(self) -> list[InstanceSummary]:
        return list(self.tables.instances.values())

    def history(self, instance_id: str) -> list[HistoryStep]:
        steps = self.tables.history[instance_id]
        return [HistoryStep(version, at_ms, decode_facts(text)) for version, at_ms, text in steps]


def found_in_the_end(play: Play) -> set[str]:
    now_ms = play.rehearsal.now_ms
    final_checks(play.checks, Rows(play.rehearsal), play.findings, now_ms=now_ms, wall_ms=now_ms, patience_ms=1_000)
    return play.findings.invariants


def test_a_run_that_ended_well_leaves_nothing() -> None:
    play = Play()
    task = play.offer()
    play.rehearsal.transact(FailTask(task.task_id, task.fence, "d", "broken", None, 0))
    play.rehearsal.work_off("i1")
    play.rehearsal.start("i2", task.definition_id)
    play.rehearsal.lease(play.rehearsal.tasks("i2")[0])
    assert found_in_the_end(play) == set()
    assert unfinished(play.rehearsal.tables.instances.values(), {}) == ["i2"]
    assert unfinished(play.rehearsal.tables.instances.values(), {"i2": 1}) == []


def test_L7_a_lock_that_nobody_sweeps() -> None:
    play = Play()
    play.offer()
    play.rehearsal.pass_ms(2_001)
    assert found_in_the_end(play) == {"L7"}


@pytest.mark.parametrize("elapsed_ms", [0, 3_600_000])
def test_M1_a_message_and_who_waits_for_it_missed_each_other(elapsed_ms: int) -> None:
    play = Play()
    play.rehearsal.start("i2", play.rehearsal.deploy(WAITS))
    now_ms = play.rehearsal.now_ms
    play.rehearsal.transact(PublishMessage(MessageRow("m1", "hello", "", b"{}", now_ms, now_ms + 1_000)))
    play.rehearsal.pass_ms(elapsed_ms)
    assert found_in_the_end(play) == {"M1"}


def test_a_message_that_nobody_waited_for_in_time_may_be_left() -> None:
    play = Play()
    definition_id, now_ms = play.rehearsal.deploy(WAITS), play.rehearsal.now_ms
    play.rehearsal.transact(PublishMessage(MessageRow("m1", "hello", "", b"{}", now_ms, now_ms + 1_000)))
    play.rehearsal.pass_ms(1_000)
    play.rehearsal.start("i2", definition_id)
    assert found_in_the_end(play) == set()


def test_W1_a_row_changed_without_a_commit() -> None:
    play = Play()
    task = play.task
    play.rehearsal.tables._swap(task, attrs.evolve(task, state=TaskState.CANCELLED))
    assert found_in_the_end(play) == {"W1"}


def test_C2_the_history_of_the_database_is_another() -> None:
    play = Play()
    play.rehearsal.complete(play.offer())
    play.rehearsal.tables.history["i1"].pop()
    assert found_in_the_end(play) == {"C2"}


def test_I1_a_lease_that_no_attempt_tells_of() -> None:
    play = Play()
    leased = play.rehearsal.transact(LeaseTasks((TaskLease(play.task.task_id, holder("w1"), 1_000),)))
    assert leased
    (row,) = cast("list[tuple[ExternalTask]]", leased)[0]
    play.rehearsal.observers = []
    play.rehearsal.transact(ReleaseLeases((ReleaseLease(row.task_id, row.fence, None, False),)))
    released = play.rehearsal.transactions[-1]
    silent = tuple(change for change in released.changes if change.table != "attempts")
    play.checks.committed(attrs.evolve(released, changes=silent))
    play.findings.violations.clear()
    assert found_in_the_end(play) == {"I1"}
