"""What an operator sets on external tasks that are open: how many attempts are left, and in which order they go out."""

from __future__ import annotations

from collections.abc import Mapping

from stellwerk.actors.bounds import check_priority, check_retries
from stellwerk.actors.committer import Committer
from stellwerk.actors.instance import Envelope
from stellwerk.actors.instances import Instances
from stellwerk.actors.mailbox import Reply
from stellwerk.actors.topics import Topics
from stellwerk.core.commands import Command, GiveUpTask, ResolveIncident
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.errors import Conflict, NotFound
from stellwerk.ports import Hint, LeaseAnswer, LeaseAnswerKind, Ports, SetTaskPriority, SetTaskRetries

__all__ = ["NodeTaskSettings"]

_INCIDENTS_AT_ONCE = 1_000


class NodeTaskSettings:
    """A part of `Node`."""

    ports: Ports
    committer: Committer
    live_topics: Topics
    _instances: Instances

    async def set_task_retries(self, task_id: str, retries: int) -> None:
        """So many attempts are left from now on. Where the task has failed and its incident is open, that one is
        resolved, with so many attempts.

        :param retries: 1 to `RETRIES_MAX`.
        :raises NotFound: there is no such task; Conflict: it has ended.
        """
        check_retries(retries)
        answer = await self._set(SetTaskRetries(task_id, retries))
        if answer.kind is LeaseAnswerKind.DONE:
            return
        incident = None if answer.task is None else await self._incident_of(answer.task)
        if incident is None:
            raise _refused(task_id, answer)
        await self._resolve(incident, retries)

    async def give_up_task(self, task_id: str, message: str) -> None:
        """No attempts are left: the task ends with an incident, whatever the failure policy. Whoever has it loses it
        and is told; resolving the incident offers it again. One that waits for that already stays as it is.

        :raises NotFound: there is no such task; Conflict: it has ended.
        """
        task = await self.ports.store.task(task_id)
        if task is None:
            raise NotFound(f"there is no task {task_id}")
        if task.state in (TaskState.READY, TaskState.LOCKED):
            await self._ask(task.instance_id, GiveUpTask(task_id, message))
        elif not await self.has_incident(task):
            raise Conflict(f"the task {task_id} has ended: it is {task.state.value}")

    async def has_incident(self, task: ExternalTask) -> bool:
        """Whether one is open because of it."""
        return await self._incident_of(task) is not None

    async def set_task_priority(self, task_id: str, priority: int) -> None:
        """The task is handed out before those of a lower priority, if it is leased already from its next attempt on.

        :param priority: an integer of 32 bits.
        :raises NotFound: there is no such task; Conflict: it has ended.
        """
        check_priority(priority)
        answer = await self._set(SetTaskPriority(task_id, priority))
        if answer.kind is not LeaseAnswerKind.DONE or answer.task is None:
            raise _refused(task_id, answer)
        if answer.task.state is TaskState.READY:
            self._reordered(answer.task)

    def _reordered(self, task: ExternalTask) -> None:
        self.live_topics.reordered(task)
        self.live_topics.scan_soon([task.topic])
        if self.ports.store.is_shared:
            self.ports.store.tell(Hint(topics=(task.topic,)))

    async def _set(self, operation: SetTaskRetries | SetTaskPriority) -> LeaseAnswer:
        answer = await self.committer.submit(operation)
        assert isinstance(answer, LeaseAnswer)
        return answer

    async def _incident_of(self, task: ExternalTask) -> Mapping[str, object] | None:
        """The open one."""
        after: str | None = None
        while True:
            rows = await self.ports.store.incidents(task.instance_id, limit=_INCIDENTS_AT_ONCE, after=after)
            found = next((row for row in rows if row["task_id"] == task.task_id), None)
            if found is not None or len(rows) < _INCIDENTS_AT_ONCE:
                return found
            after = str(rows[-1]["incident_id"])

    async def _resolve(self, row: Mapping[str, object], retries: int | None) -> None:
        """Try again from where the incident stands, with so many attempts; None: as many as the model says."""
        attempts = await self._retries_of(row) if retries is None else retries
        await self._ask(str(row["instance_id"]), ResolveIncident(str(row["incident_id"]), attempts))

    async def _retries_of(self, row: Mapping[str, object]) -> int:
        """What the model says for the incident's task. Where there is none, the number does not matter."""
        task = None if row["task_id"] is None else await self.ports.store.task(str(row["task_id"]))
        return 1 if task is None else task.retries

    async def _ask(self, instance_id: str, command: Command) -> None:
        reply: Reply[LeaseAnswerKind] = Reply()
        await self._instances.post(instance_id, Envelope(command, reply))
        await reply.wait()


def _refused(task_id: str, answer: LeaseAnswer) -> NotFound | Conflict:
    if answer.task is None:
        return NotFound(f"there is no task {task_id}")
    return Conflict(f"the task {task_id} has ended: it is {answer.task.state.value}")
