"""The polls of a node: requests for tasks that wait, each a link to the dispatchers of its topics until it is answered.

A poll is registered before the dispatchers look for it, and stays so while it waits: whatever makes a task READY wakes
it as it wakes a worker that is connected, and both are served from one queue in one order.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from stellwerk.actors.bounds import check_lock_duration, check_task_id, check_topic, check_variable_names, shortened
from stellwerk.actors.doubts import LeaseDoubts
from stellwerk.actors.leases import Subscription
from stellwerk.actors.mailbox import Reply
from stellwerk.actors.node_config import NodeConfig
from stellwerk.actors.poll_links import PollLink
from stellwerk.actors.polls import Poll, PolledTasks, PollTopic
from stellwerk.actors.pullers import Pullers
from stellwerk.actors.requests import RequestServices
from stellwerk.actors.returns import Undelivered, give_back
from stellwerk.actors.topics import Topics
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.errors import Conflict, InvalidInput, NotFound, Overloaded, StellwerkError
from stellwerk.json_values import canonical
from stellwerk.limits import Limits
from stellwerk.ports import LeaseTasks, Outcome, TaskLease

__all__ = ["Polling", "PollingServices", "check_worker_id"]


class PollingServices(RequestServices, Protocol):
    """What polls need of their node."""

    config: NodeConfig
    doubts: LeaseDoubts
    live_topics: Topics
    draining: bool


class Polling:
    def __init__(self, services: PollingServices) -> None:
        self._services = services
        self._limits = services.limits
        self._parked: dict[str, PollLink] = {}
        self.pullers = Pullers(services.ports.clock, services.limits)

    def __len__(self) -> int:
        """Polls that wait."""
        return len(self._parked)

    async def fetch_and_lock(self, poll: Poll) -> PolledTasks:
        """Lock READY tasks for a worker, and wait for the first if there are none.

        Whoever is cancelled while it waits gets nothing: what was or is being locked for it goes back at once.

        :raises Overloaded: too many wait already, or the node is about to stop; StoreUnavailable: nothing was locked.
        """
        self._check_serving()
        self._check_poll(poll)
        if len(self._parked) >= self._limits.polls_max:
            raise Overloaded(f"{len(self._parked)} requests for tasks wait already")
        poll = attrs.evolve(poll, client=shortened(poll.client, self._limits.id_chars_max))
        link = PollLink(poll, self._services.ports.entropy.uuid(), self._services)
        self._park(link)
        try:
            link.subscribe()
            await link.wait()
            return self._polled(link)
        finally:
            link.unsubscribe()
            link.abandon()
            self._unpark(link)

    async def lock_task(self, task_id: str, worker_id: str, duration_ms: int) -> PolledTasks:
        """Lock this one task. :raises NotFound: there is none; Conflict: it is not READY."""
        self._check_serving()
        check_worker_id(worker_id, self._limits)
        check_lock_duration(duration_ms, self._limits)
        check_task_id(task_id, self._limits)
        canonical(task_id, "$.task_id")
        task = await self._services.ports.store.task(task_id)
        if task is None:
            raise NotFound(f"there is no task {task_id}")
        if task.state is not TaskState.READY:
            raise Conflict(f"the task is {task.state.value}, not READY")
        poll = Poll(
            worker_id=worker_id, topics=(PollTopic(topic=task.topic, lock_duration_ms=duration_ms),), max_tasks=1
        )
        link = PollLink(poll, self._services.ports.entropy.uuid(), self._services)
        try:
            await self._lock(link, task)
            return self._polled(link)
        finally:
            link.abandon()

    async def _lock(self, link: PollLink, task: ExternalTask) -> None:
        subscription = link.subscription
        began = self._services.ports.clock.monotonic()
        duration_ms = task.lock_duration_ms or subscription.lock_duration_ms
        answer: Reply[Outcome] = Reply()

        def answered(reply: Reply[Outcome]) -> None:
            # Also where nobody waits for it any more: what is leased is always known to somebody.
            subscription.end_reservation(task.task_id)
            try:
                self._locked(reply.result(), subscription, began)
            except StellwerkError as error:
                self._services.doubts.add([task.task_id], subscription)
                answer.fail(error)
            else:
                answer.set(None)

        subscription.reserve(task.task_id, len(task.variables))
        try:
            await self._services.committer.post(
                LeaseTasks((TaskLease(task.task_id, link.holder, duration_ms),)), answered
            )
        except BaseException:  # it was not asked
            subscription.end_reservation(task.task_id)
            raise
        await answer.wait()
        if not link.has_tasks:
            raise Conflict("somebody else has locked the task, or it waits for its next attempt")

    def _locked(self, outcome: Outcome, subscription: Subscription, began: float) -> None:
        assert isinstance(outcome, tuple)
        (task,) = outcome
        if task is not None:
            self._services.dispatcher(task.topic).born(task, subscription, began)

    def _polled(self, link: PollLink) -> PolledTasks:
        leases = link.take()

        def give_them_back() -> None:
            give_back(self._services, [Undelivered(task, held.deadline) for held, task in leases])
            leases.clear()

        return PolledTasks(
            tasks=[task for _, task in leases],
            deadlines=[held.deadline for held, _ in leases],
            give_back=give_them_back,
        )

    def _park(self, link: PollLink) -> None:
        self._parked[link.holder.session_id] = link
        if self.pullers.came(link):
            self._services.connections_changed()

    def _unpark(self, link: PollLink) -> None:
        del self._parked[link.holder.session_id]
        self.pullers.went(link)
        self._services.live_topics.end_surplus()

    def end_all(self) -> None:
        """With what they have: the node drains."""
        for link in list(self._parked.values()):
            link.end()

    def _check_serving(self) -> None:
        if self._services.config.is_offline:
            raise Conflict("this node is offline: it gives no work to workers")
        if self._services.draining:
            raise Overloaded("this node is about to stop and gives no more work to workers")

    def _check_poll(self, poll: Poll) -> None:
        check_worker_id(poll.worker_id, self._limits)
        if not 1 <= poll.max_tasks <= self._limits.worker_max_tasks_max:
            raise InvalidInput(f"max_tasks is 1 to {self._limits.worker_max_tasks_max} @ $.max_tasks")
        if not poll.topics:
            raise InvalidInput("at least one topic is expected @ $.topics")
        topics_max = self._limits.request_topics_max
        if len(poll.topics) > topics_max:
            raise InvalidInput(
                f"{len(poll.topics)} topics, at most {topics_max} are possible in one request @ $.topics"
            )
        for topic in poll.topics:
            self._check_poll_topic(topic)

    def _check_poll_topic(self, topic: PollTopic) -> None:
        check_topic(topic.topic, self._limits)
        canonical(topic.topic, "$.topic")
        check_lock_duration(topic.lock_duration_ms, self._limits)
        check_variable_names(topic.variables or (), self._limits)


def check_worker_id(worker_id: str, limits: Limits) -> None:
    """:raises InvalidInput: it is empty, too long, or no text that every store can keep."""
    if not worker_id or len(worker_id) > limits.id_chars_max:
        raise InvalidInput(f"1 to {limits.id_chars_max} characters are expected @ $.worker_id")
    canonical(worker_id, "$.worker_id")
