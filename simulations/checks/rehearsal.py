"""Commits by the engine's own rules, one after the other, without an engine: good histories for tests to doctor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from simulations.world.rows import CommitObserver, Transaction
from simulations.world.tables import NotingTables
from stellwerk.core.commands import CancelInstance, Command, CompleteTask, CorrelateMessage, StartInstance
from stellwerk.core.decide import Context, decide
from stellwerk.core.effects import row_changes
from stellwerk.core.evolve import fold
from stellwerk.core.external_task import ExternalTask, Holder, OutcomeKind, TaskState
from stellwerk.core.history import decode_facts, encode_state
from stellwerk.core.instance import InstanceState
from stellwerk.ids import FreshIds
from stellwerk.json_values import JsonObject, digest
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy, Process
from stellwerk.model.reader import read_definitions
from stellwerk.ports import (
    Changeset,
    DefinitionRow,
    DeployDefinitions,
    LeaseTasks,
    NewInstance,
    Operation,
    Outcome,
    TaskEnding,
    TaskLease,
)
from stellwerk.stores.operations import apply_operation

__all__ = ["START_MS", "Findings", "Rehearsal", "completing", "holder"]

START_MS = 1_700_000_000_000


class Rehearsal:
    """All clocks show `now_ms`, which only `pass_ms` moves."""

    def __init__(self, *observers: CommitObserver, policy: FailurePolicy = FailurePolicy.INCIDENT) -> None:
        self.observers = list(observers)
        self.policy = policy
        self.tables = NotingTables()
        self.now_ms = START_MS
        self.transactions: list[Transaction] = []
        self._processes: dict[str, Process] = {}
        self._ids = FreshIds(START_MS, 0)
        self._numbers = count(1)

    def pass_ms(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    def transact(self, *operations: Operation, node: str = "node-1", is_synced: bool = True) -> list[Outcome]:
        self.tables.begin(None, None)
        outcomes: list[Outcome] = []
        for place, operation in enumerate(operations):
            self.tables.operation = place
            outcomes.append(apply_operation(self.tables, operation, self.now_ms))
        _, changes = self.tables.take()
        us = (self.now_ms - START_MS) * 1000
        number = next(self._numbers)
        transaction = Transaction(number, self.now_ms, us, node, operations, tuple(outcomes), changes)
        self.transactions.append(transaction)
        for observer in self.observers:
            observer.committed(transaction)
            if is_synced:
                observer.synced(number)
        return outcomes

    # --- instances -------------------------------------------------------------------------------------------------

    def deploy(self, xml: str) -> str:
        """→ the definition's id. The file has one process."""
        (process,) = read_definitions(xml.encode(), limits=Limits()).processes
        row = DefinitionRow(process.key, process.name, digest(xml), xml.encode(), self.now_ms)
        self.transact(DeployDefinitions((row,)))
        version = len(self.tables.definitions[process.key])
        self._processes[f"{process.key}:{version}"] = process
        return f"{process.key}:{version}"

    def start(self, instance_id: str, definition_id: str, variables: JsonObject | None = None) -> Outcome:
        return self.step(StartInstance(instance_id, definition_id, variables or {}), instance_id)

    def state(self, instance_id: str) -> InstanceState | None:
        steps = self.tables.history.get(instance_id)
        return None if steps is None else fold(None, (fact for step in steps for fact in decode_facts(step[2])))

    def changeset(self, command: Command, instance_id: str, *endings: TaskEnding, snapshot: bool = False) -> Changeset:
        """What the command comes to now."""
        before = self.state(instance_id)
        definition_id = command.definition_id if isinstance(command, StartInstance) else ""
        definition_id = definition_id if before is None else before.definition_id
        context = Context(
            definition=self._processes[definition_id],
            definition_id=definition_id,
            now_ms=self.now_ms,
            ids=self._ids.at(self.now_ms),
            failure_policy=self.policy,
            limits=Limits(),
        )
        decision = decide(before, command, context)
        row = self.tables.instances.get(instance_id)
        new = NewInstance(definition_id, definition_id.rpartition(":")[0], None) if row is None else None
        messages = [command.message_id] if isinstance(command, CorrelateMessage) else []
        return Changeset(
            instance_id=instance_id,
            expected_version=0 if row is None else row.version,
            at_ms=self.now_ms,
            facts=decision.facts,
            changes=row_changes(decision.facts, decision.state),
            new_instance=new,
            endings=endings,
            messages_consumed=tuple(messages),
            snapshot=encode_state(decision.state) if snapshot else None,
        )

    def step(self, command: Command, instance_id: str, *endings: TaskEnding, node: str = "node-1") -> Outcome:
        (outcome,) = self.transact(self.changeset(command, instance_id, *endings), node=node)
        return outcome

    def cancel(self, instance_id: str) -> Outcome:
        return self.step(CancelInstance("no longer wanted"), instance_id)

    # --- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, instance_id: str, *states: TaskState) -> Sequence[ExternalTask]:
        tasks = (self.tables.tasks[task_id] for task_id in self.tables.tasks_of.get(instance_id, ()))
        return [task for task in tasks if task.state in (states or (TaskState.READY, TaskState.LOCKED))]

    def lease(
        self, task: ExternalTask, worker: str = "w1", duration_ms: int = 10_000, node: str = "node-1"
    ) -> ExternalTask:
        self.transact(LeaseTasks((TaskLease(task.task_id, holder(worker), duration_ms),)), node=node)
        return self.tables.tasks[task.task_id]

    def complete(self, task: ExternalTask, variables: JsonObject | None = None, node: str = "node-1") -> Outcome:
        """By the holder, as the row was when `task` was read."""
        assert task.lease is not None
        result = variables or {}
        worker_id = task.lease.holder.worker_id
        command = CompleteTask(task.task_id, task.fence, result, digest(result), worker_id)
        return self.step(command, task.instance_id, completing(task, result), node=node)

    def work_off(self, instance_id: str, worker: str = "w1") -> None:
        """Lease and complete whatever is offered, until nothing is."""
        while tasks := self.tasks(instance_id):
            self.pass_ms(10)
            self.complete(self.lease(tasks[0], worker))


def holder(worker: str, session_no: int = 1) -> Holder:
    return Holder(worker, f"boot-of-{worker}", session_no, f"session-{session_no}-of-{worker}")


def completing(task: ExternalTask, result: JsonObject) -> TaskEnding:
    """The lease guard of a completion by the holder."""
    worker_id = None if task.lease is None else task.lease.holder.worker_id
    return TaskEnding(task.task_id, task.fence, "COMPLETED", OutcomeKind.COMPLETE, digest(result), worker_id=worker_id)


class Findings:
    """`Reports` that go on after a violation."""

    def __init__(self) -> None:
        self.violations: list[tuple[str, str]] = []
        self.happened: Counter[str] = Counter()

    def sometimes(self, name: str, happened: bool = True) -> None:
        if happened:
            self.happened[name] += 1

    def always(self, invariant: str, holds: bool, message: str | Callable[[], str]) -> None:
        if not holds:
            self.violations.append((invariant, message if isinstance(message, str) else message()))

    @property
    def invariants(self) -> set[str]:
        return {invariant for invariant, _ in self.violations}
