"""Plays a record of expected behaviour on a node: people, workers and the clock do what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import pytest
import trio

from stellwerk.actors.views import state_of
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.core.facts import TokenEntered
from stellwerk.core.instance import InstanceState
from stellwerk.core.replay import replay
from stellwerk.core.trace import LeaseEnd, Trace, trace
from stellwerk.errors import CallerError
from stellwerk.model.iso8601 import add, parse_duration
from stellwerk.model.process import FailurePolicy, Process, Task
from stellwerk.ports import HistoryStep, TaskQuery
from stellwerk.wire.messages import BpmnErrorReport, Complete, Fail, Nack, Subscribe, TaskOffer, Tasks

if TYPE_CHECKING:
    from tests.actors.conftest import Peer, World

Step = Mapping[str, Any]

_WITH_KEY = ("A-feel-implicit-fork-messages", "A-feel-event-gateway")
"""The peer ignores the correlation key ``=key`` that these models name; here it must have a value."""
_EVERYTHING = "everything"
"""The worker that does what no worker of the record has."""
_MOMENT = 0.05
"""Seconds of virtual time."""


_SLEPT_MS_MAX = 30_000
"""Over more than that the wall clock jumps: hours of polls and heartbeats take their time even in virtual time."""


@attrs.define(eq=False)
class Player:
    world: World
    process: Process
    record: Mapping[str, Any]
    instance_id: str | None = None
    refused: CallerError | None = None
    workers: dict[str, Peer] = attrs.field(factory=dict)
    fetched: list[TaskOffer] = attrs.field(factory=list)
    """What came at the last fetch."""

    async def settle(self) -> None:
        """Everything that can happen without the clock happens."""
        await trio.sleep(_MOMENT)

    async def play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if "do" in step:
                await getattr(self, step["do"])(step)
                await self.settle()
                await self.do_bound_tasks()
            elif "expect" in step:
                await self.expect(step["expect"])
            else:
                await self.each_once(step["expect_eventually_each_once"])
        await self.check_history()

    # --- what is done ---

    async def start(self, step: Step) -> None:
        variables = dict(step.get("variables", {}))
        if self.record.get("id") in _WITH_KEY:
            variables = {"key": "k", **variables}
        try:
            self.instance_id = await self.world.node.start_instance(
                self.process.key, variables, start_event_id=step.get("start_event")
            )
        except CallerError as refusal:
            self.refused = refusal

    async def message(self, step: Step) -> None:
        """A message for whoever waits for it, or that starts an instance."""
        waiting = [] if self.instance_id is None else list((await self.state()).subscriptions.values())
        key = next((item.key for item in waiting if item.name == step["name"]), "")
        await self.world.node.publish_message(step["name"], key, step.get("variables", {}))
        await self.settle()
        if self.instance_id is None:
            (summary,) = await self.world.node.instances()
            self.instance_id = summary.instance_id

    async def advance(self, step: Step) -> None:
        now_ms = self.world.clock.wall_ms()
        wait_ms = add(now_ms, parse_duration(step["by"])) - now_ms
        jump_ms = max(0, wait_ms - _SLEPT_MS_MAX)
        self.world.clock.set_by_ms += jump_ms
        await trio.sleep((wait_ms - jump_ms) / 1000)

    async def fetch(self, step: Step) -> None:
        """A worker makes room for so many, takes what comes, and breaks the connection: its lock will run out."""
        worker = await self.worker(step["worker"])
        room, lock_ms = len(worker.holding) + step["max"], add(0, parse_duration(step["lock"]))
        worker.messages.clear()
        await worker.say(Subscribe(step["topic"], max_tasks=room, lock_duration_ms=lock_ms))
        await self.settle()
        frames = [message for message in worker.messages if isinstance(message, Tasks)]
        self.fetched = [offer for frame in frames for offer in frame.tasks]
        worker.drop()

    async def complete(self, step: Step) -> None:
        node_id, variables = step["node"], step.get("variables")
        state = await self.state()
        user_tasks = [task_id for task_id, owner in state.user_tasks.items() if _node(state, owner) == node_id]
        receiving = [item for item in state.subscriptions.values() if item.node_id == node_id]
        if user_tasks:
            await self.world.node.complete_user_task(user_tasks[step.get("instance", 0)], variables or {})
        elif receiving:
            await self.world.node.publish_message(receiving[0].name, receiving[0].key, variables or {})
        else:
            worker, task_id, fence = await self.holder(step)
            result = msgspec.Raw(msgspec.json.encode(variables or {}))
            await self.report(worker, Complete(worker.ref(), task_id, fence, result), step)

    async def fail(self, step: Step) -> None:
        worker, task_id, fence = await self.holder(step)
        wait_ms = add(0, parse_duration(step["retry_after"])) if "retry_after" in step else None
        message = Fail(worker.ref(), task_id, fence, step["error"], retry_after_ms=wait_ms, retries=step["retries"])
        await self.report(worker, message, step)

    async def bpmn_error(self, step: Step) -> None:
        worker, task_id, fence = await self.holder(step)
        variables = msgspec.Raw(msgspec.json.encode(step.get("variables", {})))
        message = BpmnErrorReport(worker.ref(), task_id, fence, step["code"], step.get("message"), variables=variables)
        await self.report(worker, message, step)

    async def set_retries(self, step: Step) -> None:
        (incident,) = [item for item in await self.incidents() if item["element_id"] == step["node"]]
        await self.world.node.resolve_incident(str(incident["incident_id"]), step["retries"])

    async def report(self, worker: Peer, message: Any, step: Step) -> None:
        await worker.say(message)
        answer = await worker.next(object, lambda answer: getattr(answer, "ref", None) == message.ref)
        worker.holding.pop(message.task_id, None)
        assert isinstance(answer, Nack) == bool(step.get("refused")), answer

    async def do_bound_tasks(self) -> None:
        """Do what the record binds service and script tasks to."""
        for _ in range(1000):
            todo = [node_id for node_id in await self.open() if node_id in self.record.get("bindings", {})]
            if not todo:
                return
            assert self.record.get("bindings", {})[todo[0]] in ("no-op", "counted"), self.record.get("bindings", {})
            await self.complete({"node": todo[0]})
            await self.settle()

    async def each_once(self, node_ids: Sequence[str]) -> None:
        done: Counter[str] = Counter()
        while opened := await self.open():
            await self.complete({"node": opened[0]})
            await self.settle()
            done[opened[0]] += 1
        assert done == Counter(node_ids)

    # --- workers ---

    async def worker(self, name: str) -> Peer:
        """Connected, for the first time or again, with the leases that it knows of."""
        if name not in self.workers:
            self.workers[name] = await self.world.connect(worker_id=name)
        worker = self.workers[name]
        assert worker.session is not None
        if worker.session.closed:
            await worker.connect()
        return worker

    async def holder(self, step: Step) -> tuple[Peer, str, int]:
        """The worker that the step names, else who has the task of the node, else one that takes everything.

        With the task's id and fence: who names another's task knows even that.
        """
        tasks = [task for task in await self.tasks() if task.element_id == step["node"]]
        if "refused" not in step:
            tasks = [task for task in tasks if task.state in (TaskState.READY, TaskState.LOCKED)]
        task = tasks[step.get("instance", 0)]
        for name, worker in self.workers.items():
            if step.get("worker", name) == name and task.task_id in worker.holding:
                return await self.worker(name), task.task_id, worker.offers[task.task_id].fence
        if "worker" in step:
            return await self.worker(step["worker"]), task.task_id, task.fence
        worker = await self.worker(_EVERYTHING)
        await worker.say(Subscribe(task.topic, max_tasks=1000))
        await worker.next(Tasks, lambda frame: any(offer.task_id == task.task_id for offer in frame.tasks))
        return worker, task.task_id, worker.offers[task.task_id].fence

    # --- what is there ---

    async def state(self) -> InstanceState:
        return replay(await self.steps())

    async def steps(self) -> Sequence[HistoryStep]:
        assert self.instance_id is not None, self.refused
        return await self.world.store.history(self.instance_id)

    async def tasks(self) -> Sequence[ExternalTask]:
        return await self.world.store.tasks(TaskQuery(instance_id=self.instance_id))

    async def incidents(self) -> Sequence[Mapping[str, object]]:
        return await self.world.node.incidents(self.instance_id)

    async def open(self) -> list[str]:
        """Element ids of open external tasks, user tasks and receive tasks, sorted."""
        if self.instance_id is None:
            return []
        state = await self.state()
        working = [_node(state, task.activity_id) for task in state.tasks.values() if not task.failed]
        people = [_node(state, activity_id) for activity_id in state.user_tasks.values()]
        receiving = [item.node_id for item in state.subscriptions.values() if self.is_task(item.node_id)]
        return sorted(working + people + receiving)

    def is_task(self, node_id: str) -> bool:
        return isinstance(self.process.nodes[node_id], Task)

    async def entered(self) -> Counter[str]:
        """How often each node was entered."""
        facts = [fact for step in await self.steps() for fact in step.facts]
        return Counter(fact.node_id for fact in facts if isinstance(fact, TokenEntered))

    # --- what is expected ---

    async def expect(self, expected: Step) -> None:
        for name, value in expected.items():
            await getattr(self, f"expect_{name}")(value, expected)

    async def expect_open(self, node_ids: Sequence[str], expected: Step) -> None:
        assert await self.open() == sorted(node_ids)

    async def expect_not_open(self, node_ids: Sequence[str], expected: Step) -> None:
        assert not set(node_ids) & set(await self.open())

    async def expect_state(self, wanted: str, expected: Step) -> None:
        """An instance that stands still with an incident has failed, as the records see it."""
        if wanted == "not-started":
            assert self.refused is not None
            assert not await self.world.node.instances()
            return
        status = (await self.state()).status.value
        if wanted == "failed":
            assert status == "FAILED" or await self.incidents()
        else:
            assert status == wanted.upper()

    async def expect_waiting(self, node_ids: Sequence[str], expected: Step) -> None:
        state = await self.state()
        waiting = [timer.node_id for timer in state.timers.values()]
        waiting += [item.node_id for item in state.subscriptions.values() if not self.is_task(item.node_id)]
        assert sorted(waiting) == sorted(node_ids)

    async def expect_timers(self, number: int, expected: Step) -> None:
        assert len((await self.state()).timers) == number

    async def expect_variables(self, variables: Step, expected: Step) -> None:
        found = (await self.state()).variables
        assert {name: found.get(name) for name in variables} == variables

    async def expect_local_variables(self, variables: Step, expected: Step) -> None:
        """What the one open task sees."""
        state = await self.state()
        (activity,) = state.activities.values()
        found = state.visible_variables(activity.inner_scope_id or activity.scope_id)
        assert {name: found.get(name) for name in variables} == variables

    async def expect_visited(self, node_ids: Sequence[str], expected: Step) -> None:
        assert set(node_ids) <= set(await self.entered())

    async def expect_not_visited(self, node_ids: Sequence[str], expected: Step) -> None:
        assert not set(node_ids) & set(await self.entered())

    async def expect_fetched(self, node_ids: Sequence[str], expected: Step) -> None:
        assert sorted(offer.element_id for offer in self.fetched) == sorted(node_ids)

    async def expect_retries(self, number: int, expected: Step) -> None:
        assert [offer.retries_left for offer in self.fetched] == [number]

    async def expect_priority(self, number: int, expected: Step) -> None:
        assert [offer.priority for offer in self.fetched] == [number]

    async def expect_incidents(self, node_ids: Sequence[str], expected: Step) -> None:
        assert sorted(str(incident["element_id"]) for incident in await self.incidents()) == sorted(node_ids)

    async def expect_cancelled_leases(self, node_ids: Sequence[str], expected: Step) -> None:
        told = await self.trace()
        revoked = [task.element_id for task in told.tasks for lease in task.leases if lease.end is LeaseEnd.REVOKED]
        assert sorted(revoked) == sorted(node_ids)

    async def expect_topic(self, topic: str, expected: Step) -> None:
        assert {task.topic for task in await self.tasks()} == {topic}

    async def expect_error_at(self, node_id: str, expected: Step) -> None:
        assert [incident["element_id"] for incident in await self.incidents()] == [node_id]

    async def expect_error_like(self, pattern: str, expected: Step) -> None:
        """The words and numbers are the peers' own: here it must do that something is said."""
        messages = [incident["message"] for incident in await self.incidents()]
        assert messages
        assert all(messages)

    expect_error_code = expect_error_like

    async def expect_note(self, text: str, expected: Step) -> None:
        """For people."""

    async def trace(self) -> Trace:
        rows = [(task, await self.world.store.attempts(task.task_id)) for task in await self.tasks()]
        assert self.instance_id is not None
        return trace(self.instance_id, await self.steps(), rows)

    async def check_history(self) -> None:
        """Whatever happened: the history gives what recovery would give, and the trace agrees with it."""
        if self.instance_id is None:
            return
        stored = await self.world.store.load_instance(self.instance_id)
        state = await self.state()
        assert stored is not None
        assert state == state_of(stored)
        told = await self.trace()
        here = {token.token_id: token.stays[-1].node_id for token in told.tokens if token.stays[-1].left is None}
        assert here == {token.id: token.node_id for token in state.tokens.values()}
        for task in told.tasks:
            ends = [lease.until_ms for lease in task.leases[:-1]]
            assert None not in ends, "only the last lease can be held"
            assert [lease.fence for lease in task.leases] == sorted({lease.fence for lease in task.leases})


def _node(state: InstanceState, activity_id: str) -> str:
    return state.activities[activity_id].node_id


@pytest.fixture
def player(start_node: Callable[..., Awaitable[World]]) -> Callable[..., Awaitable[Player]]:
    """``await player(nursery, files, record)``: the files are deployed on a node of their own, the process that the
    record names (or else the first one) is played."""

    async def make(
        nursery: trio.Nursery, files: Sequence[tuple[str, bytes]], record: Mapping[str, Any] | None = None
    ) -> Player:
        world = await start_node(nursery)
        node, wanted = world.node, record or {}
        deployment = await node.deploy(files, failure_policy=FailurePolicy.INCIDENT, adopt_java=True)
        deployed = await node.definition_cache.latest(wanted.get("process", deployment.definitions[0].key))
        return Player(world, deployed.process, wanted)

    return make
