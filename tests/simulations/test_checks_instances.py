"""The checkers of instances, sagas, timers, messages and tokens: good histories pass, doctored ones are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from simulations.checks.commit_checks import CommitChecks
from simulations.checks.rehearsal import START_MS, Findings, Rehearsal, completing
from simulations.world.rows import RowChange, Transaction
from stellwerk.core import facts as f
from stellwerk.core.commands import (
    CompleteTask,
    CorrelateMessage,
    EndTaskInFailure,
    FailureKind,
    FireTimer,
    ThrowBpmnError,
)
from stellwerk.core.external_task import ExternalTask, OutcomeKind, TaskState
from stellwerk.core.history import decode_facts, encode_facts
from stellwerk.json_values import digest
from stellwerk.model.process import FailurePolicy
from stellwerk.ports import (
    Changeset,
    DropMessages,
    FailTask,
    InstanceSummary,
    MessageRow,
    PruneInstances,
    PublishMessage,
    TaskEnding,
)

Facts = tuple[f.Fact, ...]

HEAD = (
    '<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t"'
    ' xmlns:camunda="http://camunda.org/schema/1.0/bpmn"><message id="hello" name="hello"/>'
    '<process id="p" isExecutable="true">'
)


def task(name: str, *, undone: bool = False) -> str:
    handler = (
        f'<boundaryEvent id="{name}.b" attachedToRef="{name}"><compensateEventDefinition/></boundaryEvent>'
        f'<serviceTask id="undo.{name}" isForCompensation="true" camunda:type="external" camunda:topic="undo"/>'
        f'<association id="{name}.a" associationDirection="One" sourceRef="{name}.b" targetRef="undo.{name}"/>'
    )
    work = f'<serviceTask id="{name}" camunda:type="external" camunda:topic="work"/>'
    return work + (handler if undone else "")


def flows(*ways: str) -> str:
    pairs = [way.split(">") for way in ways]
    return "".join(
        f'<sequenceFlow id="{source}.{target}" sourceRef="{source}" targetRef="{target}"/>' for source, target in pairs
    )


def process(*parts: str) -> str:
    return f'{HEAD}<startEvent id="s"/><endEvent id="e"/>{"".join(parts)}</process></definitions>'


SEQUENCE = process(task("one"), task("two"), flows("s>one", "one>two", "two>e"))
SAGA = process(
    task("one", undone=True), task("two", undone=True), task("three"), flows("s>one", "one>two", "two>three", "three>e")
)
PARALLEL = process(
    '<parallelGateway id="split"/><parallelGateway id="join"/>',
    task("one"),
    task("two"),
    flows("s>split", "split>one", "split>two", "one>join", "two>join", "join>e"),
)
TIMED_ONE = task("one") + (
    '<boundaryEvent id="late" attachedToRef="one"><timerEventDefinition><timeDuration>PT5S</timeDuration>'
    "</timerEventDefinition></boundaryEvent>"
)
TIMER = process(TIMED_ONE, flows("s>one", "one>e", "late>e"))
MESSAGE = process(
    '<intermediateCatchEvent id="wait"><messageEventDefinition messageRef="hello"/></intermediateCatchEvent>',
    flows("s>wait", "wait>e"),
)


class Play:
    """An instance of a model."""

    def __init__(self, xml: str, policy: FailurePolicy = FailurePolicy.INCIDENT) -> None:
        self.findings = Findings()
        self.checks = CommitChecks(self.findings)
        self.rehearsal = Rehearsal(self.checks, policy=policy)
        self.definition_id = self.rehearsal.deploy(xml)
        self.rehearsal.start("i1", self.definition_id)

    def lease(self) -> ExternalTask:
        return self.rehearsal.lease(self.rehearsal.tasks("i1", TaskState.READY)[0])

    def throw(self, leased: ExternalTask) -> None:
        """A business error that nobody catches."""
        command = ThrowBpmnError(leased.task_id, leased.fence, "NO", None, None, {}, "d", "w1")
        ending = TaskEnding(leased.task_id, leased.fence, "FAILED", OutcomeKind.BPMN_ERROR, "d", worker_id="w1")
        self.rehearsal.step(command, "i1", ending)

    def publish(self, message_id: str, key: str = "") -> None:
        now_ms = self.rehearsal.now_ms
        self.rehearsal.transact(PublishMessage(MessageRow(message_id, "hello", key, b"{}", now_ms, now_ms + 60_000)))

    def correlate(self, message_id: str) -> None:
        (subscription_id,) = self.rehearsal.tables.subscriptions
        self.rehearsal.step(CorrelateMessage(subscription_id, message_id, {}), "i1")

    def doctored(self, change: Callable[[Transaction], Transaction], at: int = -1) -> set[str]:
        """The history with one transaction changed, up to that one."""
        findings = Findings()
        checks = CommitChecks(findings)
        end = len(self.rehearsal.transactions) + at
        for transaction in self.rehearsal.transactions[:end]:
            checks.committed(transaction)
        assert not findings.violations
        checks.committed(change(self.rehearsal.transactions[end]))
        return findings.invariants


def with_facts(transaction: Transaction, doctor: Callable[[Facts], Facts]) -> Transaction:
    """Other facts in the history and in the changeset."""
    changes = []
    for change in transaction.changes:
        if change.table == "history" and isinstance(change.after, tuple):
            version, at_ms, text = change.after
            change = attrs.evolve(change, after=(version, at_ms, encode_facts(doctor(decode_facts(text)))))
        changes.append(change)
    operations = [
        attrs.evolve(operation, facts=doctor(operation.facts)) if isinstance(operation, Changeset) else operation
        for operation in transaction.operations
    ]
    return attrs.evolve(transaction, changes=tuple(changes), operations=tuple(operations))


def with_instance(transaction: Transaction, **fields: Any) -> Transaction:
    changes = tuple(
        attrs.evolve(change, after=attrs.evolve(change.after, **fields))
        if isinstance(change.after, InstanceSummary)
        else change
        for change in transaction.changes
    )
    return attrs.evolve(transaction, changes=changes)


def without(transaction: Transaction, table: str) -> Transaction:
    return attrs.evolve(transaction, changes=tuple(change for change in transaction.changes if change.table != table))


def dropping(kind: type[f.Fact]) -> Callable[[Facts], Facts]:
    return lambda facts: tuple(fact for fact in facts if not isinstance(fact, kind))


def replacing(kind: type[f.Fact], **fields: Any) -> Callable[[Facts], Facts]:
    return lambda facts: tuple(attrs.evolve(fact, **fields) if isinstance(fact, kind) else fact for fact in facts)


# --- good histories ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("xml", [SEQUENCE, SAGA, PARALLEL])
def test_instances_that_run_to_their_end_break_nothing(xml: str) -> None:
    play = Play(xml)
    play.rehearsal.work_off("i1")
    assert play.rehearsal.tables.instances["i1"].status == "COMPLETED"
    play.rehearsal.pass_ms(1)
    play.rehearsal.transact(PruneInstances(play.rehearsal.now_ms, 1))
    assert not play.findings.violations


def test_a_saga_that_is_undone_breaks_nothing() -> None:
    play = Play(SAGA, FailurePolicy.COMPENSATE)
    play.rehearsal.complete(play.lease())
    play.rehearsal.complete(play.lease())
    play.throw(play.lease())
    play.rehearsal.work_off("i1")
    assert play.rehearsal.tables.instances["i1"].status == "FAILED"
    assert not play.findings.violations
    assert play.findings.happened["saga: activity compensated"] == 2


def test_timers_and_messages_in_time_break_nothing() -> None:
    late = Play(TIMER)
    late.lease()
    late.rehearsal.pass_ms(5_000)
    (timer_id,) = late.rehearsal.tables.timers
    late.rehearsal.step(FireTimer(timer_id), "i1")
    assert late.findings.happened["timer: boundary timer interrupted a leased task"]
    met = Play(MESSAGE)
    met.publish("m1")
    met.correlate("m1")
    met.rehearsal.pass_ms(60_000)
    met.rehearsal.transact(DropMessages(met.rehearsal.now_ms))
    for play in (late, met):
        assert not play.findings.violations


def test_a_snapshot_of_the_state_breaks_nothing() -> None:
    play = Play(SEQUENCE)
    leased = play.lease()
    command = CompleteTask(leased.task_id, leased.fence, {}, digest({}), "w1")
    changeset = play.rehearsal.changeset(command, "i1", completing(leased, {}), snapshot=True)
    play.rehearsal.transact(changeset)
    assert not play.findings.violations
    assert play.findings.happened["process: snapshot written"]

    def stale(last: Transaction) -> Transaction:
        changes = [
            attrs.evolve(change, after=(change.after[0], change.after[1].replace(b'"two"', b'"one"')))
            if change.table == "snapshots" and isinstance(change.after, tuple)
            else change
            for change in last.changes
        ]
        return attrs.evolve(last, changes=tuple(changes))

    assert play.doctored(stale) == {"C2"}


def test_steps_that_a_crash_undid_are_forgotten() -> None:
    play = Play(SAGA, FailurePolicy.COMPENSATE)
    play.rehearsal.complete(play.lease())
    play.rehearsal.complete(play.lease())
    play.throw(play.lease())
    play.rehearsal.work_off("i1")
    findings = Findings()
    checks = CommitChecks(findings)
    transactions = play.rehearsal.transactions
    for length in range(2, len(transactions)):
        # One step ahead, undone, and again under another number.
        for transaction in transactions[length - 2 : length]:
            checks.committed(attrs.evolve(transaction, number=100 * length + transaction.number))
        checks.undone(attrs.evolve(transactions[length - 1], number=100 * length + transactions[length - 1].number))
    checks.committed(attrs.evolve(transactions[-2], number=99_998))
    checks.committed(attrs.evolve(transactions[-1], number=99_999))
    # A fence that was given by a lost commit is the only thing that may not come again.
    assert findings.invariants <= {"L2"}
    assert checks.shadow.instances["i1"].status == "FAILED"


# --- versions and histories ----------------------------------------------------------------------------------------


def done_once(xml: str = SEQUENCE) -> Play:
    play = Play(xml)
    play.rehearsal.complete(play.lease())
    assert not play.findings.violations
    return play


def test_E1_a_version_is_left_out() -> None:
    assert "E1" in done_once().doctored(lambda last: with_instance(last, version=3))


def test_E2_a_step_that_was_decided_on_an_older_version() -> None:
    def stale(last: Transaction) -> Transaction:
        (step,) = last.operations
        assert isinstance(step, Changeset)
        return attrs.evolve(last, operations=(attrs.evolve(step, expected_version=0),))

    assert done_once().doctored(stale) == {"E2"}


def test_C2_a_step_is_missing_or_rewritten() -> None:
    play = done_once()
    assert play.doctored(lambda last: without(last, "history")) == {"E1", "C1"}

    def renumbered(last: Transaction) -> Transaction:
        changes = [
            attrs.evolve(change, after=(7, *change.after[1:]))
            if change.table == "history" and isinstance(change.after, tuple)
            else change
            for change in last.changes
        ]
        return attrs.evolve(last, changes=tuple(changes))

    assert "C2" in play.doctored(renumbered)
    step = play.rehearsal.tables.history["i1"][0]
    rewritten = RowChange("history", ("i1", 1), step, (1, 0, b"[]"))
    last = play.rehearsal.transactions[-1]
    play.checks.committed(attrs.evolve(last, number=last.number + 1, changes=(rewritten,)))
    assert "C2" in play.findings.invariants


def test_C2_an_activity_begins_twice() -> None:
    assert "C2" in done_once().doctored(lambda last: with_facts(last, _again))


def _again(facts: Facts) -> Facts:
    (started,) = [fact for fact in facts if isinstance(fact, f.ActivityStarted)]
    return (*facts, started)


def test_C2_the_row_says_another_status_than_the_history() -> None:
    assert "C2" in done_once().doctored(lambda last: with_instance(last, status="FAILED"))


def test_F3_an_instance_that_has_ended_goes_on() -> None:
    play = Play(SEQUENCE)
    play.rehearsal.work_off("i1")
    row = play.rehearsal.tables.instances["i1"]
    last = play.rehearsal.transactions[-1]
    revived = RowChange("instances", "i1", row, attrs.evolve(row, version=row.version + 1, status="RUNNING"))
    more = RowChange("history", ("i1", row.version + 1), None, (row.version + 1, 0, encode_facts((f.TokenEnded("t"),))))
    play.checks.committed(attrs.evolve(last, number=last.number + 1, changes=(revived,)))
    assert "F3" in play.findings.invariants
    play.findings.violations.clear()
    play.checks.committed(attrs.evolve(last, number=last.number + 2, changes=(more,)))
    assert "F3" in play.findings.invariants


def test_C3_an_instance_ends_and_leaves_a_task_behind() -> None:
    play = Play(PARALLEL)
    play.rehearsal.complete(play.lease())
    ended = lambda facts: (*facts, f.InstanceCompleted())  # noqa: E731
    assert "C3" in play.doctored(lambda last: with_facts(last, ended))


def test_C3_nothing_would_ever_wake_it() -> None:
    play = Play(PARALLEL)
    play.rehearsal.work_off("i1")

    def not_joined(last: Transaction) -> Transaction:
        def waiting(facts: Facts) -> Facts:
            place = next(
                place for place, fact in enumerate(facts) if isinstance(fact, f.TokenEntered) and fact.node_id == "join"
            )
            return facts[: place + 1]

        return with_instance(with_facts(last, waiting), status="RUNNING", ended_at_ms=None)

    assert play.doctored(not_joined) == {"C3"}


@pytest.mark.parametrize("table", ["timers", "tasks"])
def test_C1_a_row_is_missing_that_the_history_has(table: str) -> None:
    play = Play(TIMER)
    assert "C1" in play.doctored(lambda last: without(last, table))


def test_C1_a_row_is_left_that_the_history_has_closed() -> None:
    late = Play(TIMER)
    late.rehearsal.complete(late.lease())
    assert "C1" in late.doctored(lambda last: without(last, "timers"))


# --- tokens --------------------------------------------------------------------------------------------------------


def test_C1_a_token_is_doubled_at_a_step() -> None:
    def doubled(facts: Facts) -> Facts:
        (entered,) = [fact for fact in facts if isinstance(fact, f.TokenEntered)]
        return (*facts, attrs.evolve(entered, token_id="another"))

    assert "C1" in done_once().doctored(lambda last: with_facts(last, doubled))


def test_C1_a_token_takes_no_arrow() -> None:
    play = Play(SEQUENCE)
    play.rehearsal.complete(play.lease())
    elsewhere = replacing(f.TokenEntered, via="one.e")
    assert "C1" in play.doctored(lambda last: with_facts(last, elsewhere))
    jumped = replacing(f.TokenEntered, via=None)
    assert "C1" in play.doctored(lambda last: with_facts(last, jumped))


def test_C1_a_join_lets_a_token_through_alone() -> None:
    play = Play(PARALLEL)
    play.rehearsal.complete(play.lease())
    token_id = next(iter(play.rehearsal.state("i1").tokens))  # type: ignore[union-attr]
    alone = f.TokenEntered(token_id, "e", play.rehearsal.state("i1").root_scope_id, "join.e")  # type: ignore[union-attr]

    def passing(facts: Facts) -> Facts:
        moved = next(fact for fact in facts if isinstance(fact, f.TokenEntered))
        return (*facts, attrs.evolve(alone, token_id=moved.token_id))

    assert "C1" in play.doctored(lambda last: with_facts(last, passing))


def test_C1_a_split_leaves_out_a_branch() -> None:
    def one_branch(facts: Facts) -> Facts:
        (dropped,) = [fact.token_id for fact in facts if isinstance(fact, f.TokenEntered) and fact.from_token]
        gone = {fact.activity_id for fact in facts if isinstance(fact, f.ActivityStarted) and fact.token_id == dropped}
        return tuple(
            fact
            for fact in facts
            if getattr(fact, "token_id", None) != dropped and getattr(fact, "activity_id", None) not in gone
        )

    play = Play(PARALLEL)
    assert "C1" in play.doctored(lambda last: with_facts(last, one_branch))


def test_C1_a_fact_that_fits_nothing() -> None:
    assert "C1" in done_once().doctored(lambda last: with_facts(last, lambda facts: (f.TimerFired("?"), *facts)))


def test_C1_an_exclusive_gateway_gives_two_tokens() -> None:
    play = Play(process('<exclusiveGateway id="x"/>', task("one"), flows("s>x", "x>one", "one>e")))

    def doubled(facts: Facts) -> Facts:
        place, moved = next(
            (place, fact)
            for place, fact in enumerate(facts)
            if isinstance(fact, f.TokenEntered) and fact.via == "x.one"
        )
        split = attrs.evolve(moved, token_id="another", from_token=moved.token_id)
        return (*facts[:place], split, *facts[place:])

    assert "C1" in play.doctored(lambda last: with_facts(last, doubled))


def test_C1_a_boundary_event_leaves_the_token_of_its_activity_where_it_is() -> None:
    play = Play(TIMER)
    play.rehearsal.pass_ms(5_000)
    (timer_id,) = play.rehearsal.tables.timers
    play.rehearsal.step(FireTimer(timer_id), "i1")
    assert not play.findings.violations

    def beside(facts: Facts) -> Facts:
        (entered,) = [fact for fact in facts if isinstance(fact, f.TokenEntered) and fact.node_id == "late"]
        place = facts.index(entered)
        return (*facts[:place], attrs.evolve(entered, token_id="another", from_token=entered.token_id))

    assert "C1" in play.doctored(lambda last: with_facts(last, beside))


def test_C1_a_timer_stays_armed_at_an_activity_that_is_over() -> None:
    play = Play(process(task("two"), TIMED_ONE, flows("s>one", "one>two", "two>e", "late>e")))
    play.rehearsal.complete(play.lease())
    assert not play.findings.violations

    def armed(last: Transaction) -> Transaction:
        return without(with_facts(last, dropping(f.TimerDisarmed)), "timers")

    assert play.doctored(armed) == {"C1"}


def test_C1_a_scope_closes_over_its_tokens() -> None:
    inside = '<startEvent id="is"/>' + task("in") + '<endEvent id="ie"/>' + flows("is>in", "in>ie")
    play = Play(process(f'<subProcess id="sub">{inside}</subProcess>', flows("s>sub", "sub>e")))
    play.rehearsal.complete(play.lease())
    assert not play.findings.violations

    def kept(facts: Facts) -> Facts:
        ended = next(fact for fact in facts if isinstance(fact, f.TokenEnded))
        return tuple(fact for fact in facts if fact is not ended)

    assert "C1" in play.doctored(lambda last: with_facts(last, kept))


# --- sagas ---------------------------------------------------------------------------------------------------------


def undone() -> Play:
    play = Play(SAGA, FailurePolicy.COMPENSATE)
    play.rehearsal.complete(play.lease())
    play.rehearsal.complete(play.lease())
    play.throw(play.lease())
    assert not play.findings.violations
    return play


def test_S1_compensation_in_the_order_of_completion() -> None:
    def forwards(facts: Facts) -> Facts:
        return tuple(
            attrs.evolve(fact, activities=fact.activities[::-1]) if isinstance(fact, f.CompensationStarted) else fact
            for fact in facts
        )

    assert "S1" in undone().doctored(lambda last: with_facts(last, forwards))


def test_S1_an_activity_is_undone_twice_or_that_was_never_done() -> None:
    play = undone()

    def twice(facts: Facts) -> Facts:
        return tuple(
            attrs.evolve(fact, activities=(*fact.activities, fact.activities[-1]))
            if isinstance(fact, f.CompensationStarted)
            else fact
            for fact in facts
        )

    assert "S1" in play.doctored(lambda last: with_facts(last, twice))
    assert "S1" in play.doctored(lambda last: with_facts(last, replacing(f.CompensationStarted, activities=("?",))))


def test_S1_a_completed_activity_keeps_nothing_to_undo_it_with() -> None:
    play = Play(SAGA)
    play.rehearsal.complete(play.lease())
    forgotten = replacing(f.ActivityCompleted, compensation_variables=None)
    assert "S1" in play.doctored(lambda last: with_facts(last, forgotten))


def test_S1_the_wrong_handler_runs_or_two_at_once() -> None:
    play = undone()
    entered = replacing(f.TokenEntered, node_id="undo.one")
    assert "S1" in play.doctored(lambda last: with_facts(last, entered))

    def both(facts: Facts) -> Facts:
        (started,) = [fact for fact in facts if isinstance(fact, f.CompensationHandlerStarted)]
        place = facts.index(started)
        return (*facts[: place + 1], started, *facts[place + 1 :])

    assert "S1" in play.doctored(lambda last: with_facts(last, both))


def test_S1_an_instance_fails_and_leaves_out_a_handler() -> None:
    play = undone()
    play.rehearsal.work_off("i1")
    at = -3  # the first handler's completion

    def skipped(step: Transaction) -> Transaction:
        def ended(facts: Facts) -> Facts:
            (handler_ended,) = [fact for fact in facts if isinstance(fact, f.CompensationHandlerEnded)]
            begun = facts[: facts.index(handler_ended) + 1]
            return (*begun, f.CompensationEnded(handler_ended.compensation_id), f.InstanceFailed("NO", "no"))

        return with_facts(step, ended)

    assert "S1" in play.doctored(skipped, at)


def test_rule_15_compensation_begins_while_a_task_drains() -> None:
    xml = process(
        '<parallelGateway id="split"/><parallelGateway id="join"/>',
        task("one", undone=True),
        task("two", undone=True),
        task("three"),
        flows("s>split", "split>one", "split>two", "split>three", "one>join", "two>join", "three>join", "join>e"),
    )
    play = Play(xml, FailurePolicy.COMPENSATE)
    first, second, third = (play.lease() for _ in range(3))
    by_element = {leased.element_id: leased for leased in (first, second, third)}
    play.rehearsal.complete(by_element["one"])
    play.throw(by_element["three"])
    assert not play.findings.violations
    assert play.findings.happened["task: drained by its failing scope"]
    state = play.rehearsal.state("i1")
    assert state is not None
    (completed,) = state.completed

    def too_soon(facts: Facts) -> Facts:
        return (*facts, f.CompensationStarted("c", state.root_scope_id, (completed,)))

    assert "S1" in play.doctored(lambda last: with_facts(last, too_soon))

    def not_drained(facts: Facts) -> Facts:
        return tuple(f.TaskCancelled(fact.task_id) if isinstance(fact, f.TaskDraining) else fact for fact in facts)

    assert "S1" in play.doctored(lambda last: with_facts(last, not_drained))
    play.rehearsal.complete(play.rehearsal.tables.tasks[by_element["two"].task_id])
    play.rehearsal.work_off("i1")
    assert not play.findings.violations


def test_S2_compensation_while_the_failed_task_has_retries_left() -> None:
    play = Play(SAGA, FailurePolicy.COMPENSATE)
    play.rehearsal.complete(play.lease())
    leased = play.lease()
    task_id, fence = leased.task_id, leased.fence
    for _ in range(2):
        play.rehearsal.transact(FailTask(task_id, fence, "d", "broken", None, 0, None, "w1"))
        fence = play.lease().fence
    command = EndTaskInFailure(task_id, fence, FailureKind.RETRIES_EXHAUSTED, "broken", "d", worker_id="w1")
    ending = TaskEnding(task_id, fence, "FAILED", OutcomeKind.FAIL, "d", worker_id="w1")
    play.rehearsal.step(command, "i1", ending)
    assert play.findings.happened["saga: scope failed"]
    assert not play.findings.violations

    findings = Findings()
    checks = CommitChecks(findings)
    *before, released, last = play.rehearsal.transactions
    for transaction in before:
        checks.committed(transaction)
    checks.committed(_with_retries(released))
    findings.violations.clear()
    checks.committed(last)
    assert "S2" in findings.invariants


def _with_retries(transaction: Transaction) -> Transaction:
    changes = tuple(
        attrs.evolve(change, after=attrs.evolve(change.after, retries_left=2))
        if isinstance(change.after, ExternalTask)
        else change
        for change in transaction.changes
    )
    return attrs.evolve(transaction, changes=changes)


# --- timers and messages -------------------------------------------------------------------------------------------


def test_M2_a_timer_fires_before_it_is_due() -> None:
    play = Play(TIMER)
    play.rehearsal.pass_ms(4_999)
    (timer_id,) = play.rehearsal.tables.timers
    play.rehearsal.step(FireTimer(timer_id), "i1")
    assert play.findings.invariants == {"M2"}


def test_M2_another_nodes_clock_may_be_ahead() -> None:
    findings = Findings()
    checks = CommitChecks(findings, highest_wall_ms=lambda _node: 1_800_000_000_000)
    rehearsal = Rehearsal(checks)
    rehearsal.start("i1", rehearsal.deploy(TIMER))
    (timer_id,) = rehearsal.tables.timers
    rehearsal.step(FireTimer(timer_id), "i1")
    assert not findings.violations


def test_M2_the_clock_of_a_node_is_no_excuse_for_another_one() -> None:
    findings = Findings()
    checks = CommitChecks(findings, highest_wall_ms=lambda node: START_MS + (3_600_000 if node == "node-2" else 0))
    rehearsal = Rehearsal(checks)
    rehearsal.start("i1", rehearsal.deploy(TIMER))
    (timer_id,) = rehearsal.tables.timers
    rehearsal.step(FireTimer(timer_id), "i1", node="node-1")
    assert findings.invariants == {"M2"}


def test_M2_a_timer_fires_that_is_not_armed() -> None:
    play = Play(TIMER)
    play.rehearsal.complete(play.lease())
    assert "M2" in play.doctored(lambda last: with_facts(last, lambda facts: (f.TimerFired("?"), *facts)))


def met() -> Play:
    play = Play(MESSAGE)
    play.publish("m1")
    play.correlate("m1")
    assert not play.findings.violations
    return play


def test_M1_a_message_arrives_twice() -> None:
    play = Play(MESSAGE)
    play.rehearsal.start("i2", play.definition_id)
    play.publish("m1")
    first, second = play.rehearsal.tables.subscriptions.items()
    play.rehearsal.step(CorrelateMessage(first[0], "m1", {}), first[1].instance_id)
    changeset = play.rehearsal.changeset(CorrelateMessage(second[0], "m1", {}), second[1].instance_id)
    play.publish("m2")
    other = play.rehearsal.changeset(CorrelateMessage(second[0], "m2", {}), second[1].instance_id)
    play.rehearsal.transact(other)

    def same_message(last: Transaction) -> Transaction:
        again = with_facts(last, replacing(f.MessageCorrelated, message_id="m1"))
        return attrs.evolve(again, operations=(changeset,))

    assert "M1" in play.doctored(same_message)


def test_M1_a_message_that_is_not_there_or_not_meant() -> None:
    play = met()
    other = replacing(f.MessageCorrelated, message_id="m7")
    assert "M1" in play.doctored(lambda last: with_facts(last, other))

    def another_key(last: Transaction) -> Transaction:
        (row,) = (change.after for change in last.changes if change.table == "messages")
        assert row is not None
        changed = attrs.evolve(row, row=attrs.evolve(row.row, key="x"))  # type: ignore[misc, attr-defined]
        return attrs.evolve(last, changes=(attrs.evolve(last.changes[0], after=changed),))

    findings = Findings()
    checks = CommitChecks(findings)
    *before, published, correlated = play.rehearsal.transactions
    for transaction in (*before, another_key(published), correlated):
        checks.committed(transaction)
    assert "M1" in findings.invariants


def test_M1_a_message_arrives_and_stays_or_is_consumed_by_nobody() -> None:
    play = met()

    def not_consumed(last: Transaction) -> Transaction:
        (step,) = last.operations
        assert isinstance(step, Changeset)
        return attrs.evolve(last, operations=(attrs.evolve(step, messages_consumed=()),))

    assert play.doctored(not_consumed) == {"M1"}


def test_M1_a_message_is_dropped_before_its_time() -> None:
    play = Play(MESSAGE)
    play.publish("m1")
    play.rehearsal.cancel("i1")
    play.rehearsal.pass_ms(60_000)
    play.rehearsal.transact(DropMessages(play.rehearsal.now_ms))
    assert not play.findings.violations
    early = DropMessages(play.rehearsal.now_ms - 1)
    assert play.doctored(lambda last: attrs.evolve(last, operations=(early,))) == {"M1"}
    # By a node whose own clock is ahead of the store's.
    assert play.doctored(lambda last: attrs.evolve(last, now_ms=last.now_ms - 1)) == {"M1"}


def test_M1_a_message_is_dropped_that_was_waited_for_in_time() -> None:
    play = Play(MESSAGE)
    play.publish("m1")
    play.rehearsal.pass_ms(60_000)
    drop = DropMessages(play.rehearsal.now_ms)
    play.rehearsal.transact(drop)
    assert list(play.rehearsal.tables.messages) == ["m1"]
    assert not play.findings.violations
    play.rehearsal.transact(attrs.evolve(drop, given_up=("m1",)))
    assert play.findings.invariants == {"M1"}
