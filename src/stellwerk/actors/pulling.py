"""Workers that fetch their tasks instead of being sent them: the pulling half of a node.

Between its polls the engine knows of such a worker only what its leases say, and that it was there lately.
"""

from __future__ import annotations

from stellwerk.actors.polling import Polling, check_worker_id
from stellwerk.actors.polls import Poll, PolledTasks
from stellwerk.actors.pull_requests import PullRequests
from stellwerk.core.external_task import ExternalTask
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.limits import Limits

__all__ = ["NodePulling"]


class NodePulling:
    """A part of `Node`.

    All requests about a lease raise `NotFound` where there is no such task, and `PeerError` for everything for which
    the worker shall let go of it, with code ``lease_lost``, ``already_finished`` or ``cancelled``. The same request
    again gets the same answer. ``fence`` None: the lease that the worker must mean, see `pull_requests`.
    """

    limits: Limits
    polling: Polling
    _pull_requests: PullRequests

    async def fetch_and_lock(self, poll: Poll) -> PolledTasks:
        """Lock READY tasks for a worker, and wait for the first if there are none.

        Whoever is cancelled while it waits gets nothing: what was or is being locked for it goes back at once.

        :raises Overloaded: too many wait already, or the node is about to stop; StoreUnavailable: nothing was locked.
        """
        return await self.polling.fetch_and_lock(poll)

    async def lock_task(self, task_id: str, worker_id: str, duration_ms: int) -> PolledTasks:
        """Lock this one task. :raises NotFound: there is none; Conflict: it is not READY."""
        return await self.polling.lock_task(task_id, worker_id, duration_ms)

    async def complete_task(
        self, task_id: str, worker_id: str, variables: JsonValue, *, fence: int | None = None
    ) -> None:
        """The task is done. ``variables``: an object is merged as the model says, None is nothing, anything else
        becomes the variable ``result``."""
        check_worker_id(worker_id, self.limits)
        await self._pull_requests.complete(task_id, worker_id, variables, fence)

    async def fail_task(
        self,
        task_id: str,
        worker_id: str,
        message: str,
        *,
        details: JsonValue = None,
        retry_after_ms: int | None = None,
        retries: int | None = None,
        fence: int | None = None,
    ) -> None:
        """A technical failure. ``retries``: attempts that are left; None: the engine counts."""
        check_worker_id(worker_id, self.limits)
        await self._pull_requests.fail(
            task_id, worker_id, fence, message=message, details=details, retry_after_ms=retry_after_ms, retries=retries
        )

    async def bpmn_error(
        self,
        task_id: str,
        worker_id: str,
        code: str,
        *,
        message: str | None = None,
        details: JsonValue = None,
        variables: JsonObject | None = None,
        fence: int | None = None,
    ) -> None:
        """A business error, for the model to catch."""
        check_worker_id(worker_id, self.limits)
        await self._pull_requests.bpmn_error(
            task_id, worker_id, fence, code=code, message=message, details=details, variables=variables or {}
        )

    async def extend_task(
        self, task_id: str, worker_id: str, duration_ms: int, *, fence: int | None = None
    ) -> ExternalTask:
        """The lock lasts so long from now. Gives the row."""
        check_worker_id(worker_id, self.limits)
        task = await self._pull_requests.extend(task_id, worker_id, duration_ms, fence)
        self.polling.pullers.heard(worker_id, task.topic)
        return task

    async def unlock_task(
        self, task_id: str, worker_id: str | None, *, fence: int | None = None, started: bool = True
    ) -> None:
        """Give the task back, without using a retry. ``worker_id`` None: an operator ends anybody's lease.

        :raises Conflict: it may be tried only once and was ``started``: it stays locked until its time is up.
        """
        if worker_id is not None:
            check_worker_id(worker_id, self.limits)
        await self._pull_requests.unlock(task_id, worker_id, fence, started=started)
