"""Our own contestants in the benchmark ``core``, from the pure core up to an embedded engine with its worker."""

from __future__ import annotations

import sys
from importlib.metadata import version

import attrs
import trio
from tests.benchmarks.models import TOPIC, chain
from tests.benchmarks.peers.contest import Contest, Stopwatch, compete
from tests.benchmarks.sampling import Sampler

from stellwerk.app import Engine, open_engine
from stellwerk.core.changes import NewTask, RowChanges
from stellwerk.core.commands import Command, CompleteTask, StartInstance
from stellwerk.core.decide import Context, Decision, decide
from stellwerk.core.effects import row_changes
from stellwerk.core.external_task import ExternalTask, Holder, OutcomeKind, TaskState
from stellwerk.core.instance import InstanceState, InstanceStatus
from stellwerk.core.lease import End, LeaseAnswerKind, TakeLease, apply_lease_command
from stellwerk.ids import FreshIds
from stellwerk.json_values import JsonObject, loads
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy, Process
from stellwerk.model.reader import read_definitions
from stellwerk.ports import BirthLease, Changeset, Committed, NewInstance, TaskEnding
from stellwerk.stores.memory import MemoryStore
from stellwerk.system.clock import SystemClock
from stellwerk.system.entropy import SystemEntropy
from stellwerk.worker import Worker

__all__: list[str] = []

_DEFINITION = "chain:1"
_HOLDER = Holder("benchmark", "boot", 1, "session")
_LEASE_MS = 30_000
_DIGEST = "0" * 64
_LIMITS = Limits()
_STARTS_AT_ONCE = 100
_TASKS = 3


class _SampledStopwatch(Stopwatch):
    def __enter__(self) -> None:
        self._sampler = Sampler()
        self._sampler.start()
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.more = {"profile": self._sampler.stop()}


@attrs.define(eq=False)
class _Instance:
    """One instance as the node runs it: each command is decided on the kept state under a context of its own."""

    process: Process
    clock: SystemClock
    ids: FreshIds
    id: str
    state: InstanceState | None = None
    version: int = 0

    def decide(self, command: Command) -> Decision:
        now_ms = self.clock.wall_ms()
        context = Context(
            definition=self.process,
            definition_id=_DEFINITION,
            now_ms=now_ms,
            ids=self.ids.at(now_ms),
            failure_policy=FailurePolicy.INCIDENT,
            limits=_LIMITS,
        )
        return decide(self.state, command, context)

    def changes(self, decision: Decision) -> RowChanges:
        changes = row_changes(decision.facts, decision.state)
        self.state = decision.state
        self.version += 1
        return changes

    def start(self, number: int) -> Decision:
        return self.decide(StartInstance(self.id, _DEFINITION, {"order": number}))

    @property
    def has_completed(self) -> bool:
        return self.state is not None and self.state.status is InstanceStatus.COMPLETED


# --- the pure core ---------------------------------------------------------------------------------------------------


class _Ours(Contest):
    def __init__(self) -> None:
        self.process = read_definitions(chain().encode(), limits=_LIMITS).processes[0]
        self.clock = SystemClock()
        self.ids = FreshIds(self.clock.wall_ms(), SystemEntropy().integer(74))

    def instance(self) -> _Instance:
        return _Instance(self.process, self.clock, self.ids, self.ids.next())

    def handle(self, variables: JsonObject) -> JsonObject:
        """What a worker would do."""
        self.handled += 1
        return {}


class _Decisions(_Ours):
    """Decisions on a kept state, each task completed by a command of its own: what the peers do in memory."""

    def run(self, instances: int, stopwatch: Stopwatch) -> int:
        with stopwatch:
            return sum(self._run_one(number) for number in range(instances))

    def _run_one(self, number: int) -> bool:
        instance = self.instance()
        instance.state = instance.start(number).state
        while instance.state.tasks:
            task_id = next(iter(instance.state.tasks))
            instance.state = instance.decide(CompleteTask(task_id, 1, self.handle({}), _DIGEST)).state
        return instance.has_completed


class _PureCore(_Ours):
    """Decisions, the row changes that follow, and the lease machine on the task's row; nothing is stored."""

    def run(self, instances: int, stopwatch: Stopwatch) -> int:
        with stopwatch:
            return sum(self._run_one(number) for number in range(instances))

    def _run_one(self, number: int) -> bool:
        instance = self.instance()
        changes = instance.changes(instance.start(number))
        while changes.new_tasks:
            task = self._leased(instance, changes.new_tasks[0])
            result = self.handle(_variables(task.variables))
            decision = instance.decide(CompleteTask(task.task_id, task.fence, result, _DIGEST))
            self._guard(task)
            changes = instance.changes(decision)
        return instance.has_completed

    def _leased(self, instance: _Instance, new: NewTask) -> ExternalTask:
        now_ms = self.clock.wall_ms()
        task = _row(instance.id, new, now_ms)
        leased, _, answer = apply_lease_command(task, TakeLease(_HOLDER, _LEASE_MS), now_ms)
        assert answer is LeaseAnswerKind.DONE
        return leased

    def _guard(self, task: ExternalTask) -> None:
        """As the store does: only a live lease under this fence completes."""
        end = End(
            fence=task.fence,
            outcome=OutcomeKind.COMPLETE,
            final_state=TaskState.COMPLETED,
            request_digest=_DIGEST,
        )
        _, _, answer = apply_lease_command(task, end, self.clock.wall_ms())
        assert answer is LeaseAnswerKind.DONE


def _variables(text: bytes) -> JsonObject:
    variables = loads(text)
    assert isinstance(variables, dict)
    return variables


def _row(instance_id: str, new: NewTask, now_ms: int) -> ExternalTask:
    return ExternalTask(
        task_id=new.task_id,
        instance_id=instance_id,
        token_id=new.token_id,
        activity_id=new.activity_id,
        element_id=new.element_id,
        definition_id=_DEFINITION,
        business_key=None,
        topic=new.topic,
        priority=new.priority,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        available_at_ms=now_ms,
        state=TaskState.READY,
        retries_left=new.retries,
        retries=new.retries,
        retry_backoffs_ms=new.retry_backoffs_ms,
        attempt=0,
        lock_expiries=0,
        lock_expiries_max=new.lock_expiries_max,
        single_try=new.single_try,
        lock_duration_ms=new.lock_duration_ms,
        draining=False,
        fence=0,
        lease=None,
        outcome=None,
        error_message=None,
        variables=new.variables,
        headers=new.headers,
    )


# --- with a store ----------------------------------------------------------------------------------------------------


class _CoreAndStore(_Ours):
    """The same, and each step is a changeset in the memory store; tasks are leased as they are created."""

    def run(self, instances: int, stopwatch: Stopwatch) -> int:
        return trio.run(self._run_all, instances, stopwatch)

    async def _run_all(self, instances: int, stopwatch: Stopwatch) -> int:
        store = MemoryStore(self.clock)
        await store.open()
        ended = 0
        with stopwatch:
            for number in range(instances):
                ended += await self._run_one(store, number)
        return ended

    async def _run_one(self, store: MemoryStore, number: int) -> bool:
        instance = self.instance()
        task = await self._step(store, instance, instance.start(number), ())
        while task is not None:
            result = self.handle(_variables(task.variables))
            decision = instance.decide(CompleteTask(task.task_id, task.fence, result, _DIGEST))
            ending = TaskEnding(task.task_id, task.fence, "COMPLETED", OutcomeKind.COMPLETE, _DIGEST)
            task = await self._step(store, instance, decision, (ending,))
        return instance.has_completed

    async def _step(
        self, store: MemoryStore, instance: _Instance, decision: Decision, endings: tuple[TaskEnding, ...]
    ) -> ExternalTask | None:
        """→ the task that the step created, leased."""
        expected = instance.version
        changes = instance.changes(decision)
        changeset = Changeset(
            instance_id=instance.id,
            expected_version=expected,
            at_ms=self.clock.wall_ms(),
            facts=decision.facts,
            changes=changes,
            new_instance=NewInstance(_DEFINITION, "chain", None) if expected == 0 else None,
            endings=endings,
            birth_leases=tuple(BirthLease(new.task_id, _HOLDER, _LEASE_MS) for new in changes.new_tasks),
        )
        (outcome,) = await store.transact([changeset])
        assert isinstance(outcome, Committed), outcome
        return outcome.born_leased[0] if outcome.born_leased else None


# --- the whole engine ------------------------------------------------------------------------------------------------


class _Embedded(_Ours):
    """`open_engine` in memory with one worker in the same process: everything but the socket."""

    def run(self, instances: int, stopwatch: Stopwatch) -> int:
        return trio.run(self._run, instances, stopwatch)

    async def _run(self, instances: int, stopwatch: Stopwatch) -> int:
        async with open_engine() as engine:
            await engine.deploy(("chain.bpmn", chain().encode()))
            worker = engine.worker(max_tasks=_STARTS_AT_ONCE)
            finished = self._prepare(worker, instances * _TASKS)
            await engine.start_worker(worker)
            with stopwatch:
                ids = await self._start_all(engine, instances)
                await finished.wait()
            ended = [await engine.wait_for_end(instance_id, timeout_seconds=0) for instance_id in ids]
            return sum(each.status == "COMPLETED" for each in ended)

    def _prepare(self, worker: Worker, tasks: int) -> trio.Event:
        """→ set when so many completions were acknowledged, which is when they are durable."""
        finished = trio.Event()
        acknowledged = 0

        @worker.task(TOPIC)
        async def handle(variables: JsonObject) -> JsonObject:
            return self.handle(variables)

        @worker.on_heartbeat
        def heard(operation: str, _task_id: str | None) -> None:
            nonlocal acknowledged
            if operation == "finishExternalTask":
                acknowledged += 1
                if acknowledged == tasks:
                    finished.set()

        return finished

    async def _start_all(self, engine: Engine, instances: int) -> list[str]:
        left = iter(range(instances))
        started = []

        async def start_some() -> None:
            for number in left:
                started.append(await engine.start("chain", {"order": number}))

        async with trio.open_nursery() as nursery:
            for _ in range(_STARTS_AT_ONCE):
                nursery.start_soon(start_some)
        return started


_CONTESTANTS: dict[str, type[_Ours]] = {
    "decisions": _Decisions,
    "core": _PureCore,
    "core-and-store": _CoreAndStore,
    "embedded": _Embedded,
}


def main() -> None:
    """Arguments: which contestant, and ``--sampled`` to say in each answer where processor time went."""
    stopwatch = _SampledStopwatch if "--sampled" in sys.argv else Stopwatch
    compete(version("stellwerk"), _CONTESTANTS[sys.argv[1]], stopwatch)


if __name__ == "__main__":
    main()
