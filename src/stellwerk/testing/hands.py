"""Completing external tasks by hand: a worker's session for one request, by the protocol's own rules."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio.testing

from stellwerk.actors.node import Node
from stellwerk.actors.session import WorkerSession
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.errors import Conflict, NotFound, StellwerkError
from stellwerk.json_values import JsonValue, canonical, dumps
from stellwerk.ports import LeaseTasks, TaskLease
from stellwerk.wire.messages import Ack, BpmnErrorReport, Complete, Fail, Hello, Nack, Release, WorkerMessage

__all__ = ["Hands"]

_WORKER_ID = "process-test"
_CLIENT = "stellwerk.testing"
_REF = 1


class Hands:
    """Takes one task at a time; what it took is never left behind locked."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._boot_id = node.ports.entropy.uuid()
        self._sessions = 0

    async def complete(self, task_id: str, variables: JsonValue) -> None:
        """:raises StellwerkError: the engine does not take it; Conflict: the task cannot be had."""
        result = _raw(variables)
        await self._ask(task_id, lambda fence: Complete(_REF, task_id, fence, result))

    async def throw_error(self, task_id: str, code: str, message: str | None, variables: JsonValue) -> None:
        result = _raw(variables)
        await self._ask(task_id, lambda fence: BpmnErrorReport(_REF, task_id, fence, code, message, variables=result))

    async def fail(self, task_id: str, message: str, retries: int | None, retry_after_ms: int | None) -> None:
        await self._ask(
            task_id,
            lambda fence: Fail(_REF, task_id, fence, message, retry_after_ms=retry_after_ms, retries=retries),
        )

    async def _ask(self, task_id: str, request: Callable[[int], WorkerMessage]) -> None:
        self._sessions += 1
        session = await self._node.open_session(Hello(_WORKER_ID, self._boot_id, self._sessions, _CLIENT))
        try:
            duration_ms = self._node.limits.lock_duration_ms_default
            outcome = await self._node.committer.submit(LeaseTasks((TaskLease(task_id, session.holder, duration_ms),)))
            assert isinstance(outcome, tuple)
            leased: ExternalTask | None = outcome[0]
            if leased is None:
                raise await self._refusal(task_id)
            answer = await _answer(session, request(leased.fence))
            if isinstance(answer, Nack):
                await _answer(session, Release(_REF, task_id, leased.fence, started=False))
                raise StellwerkError(answer.message, code=answer.code)
        finally:
            session.disconnected()

    async def _refusal(self, task_id: str) -> StellwerkError:
        task = await self._node.ports.store.task(task_id)
        if task is None:
            return NotFound(f"there is no task {task_id}")
        if task.state is TaskState.LOCKED:
            assert task.lease is not None
            return Conflict(f'worker {task.lease.holder.worker_id} works on "{task.element_id}" already')
        left_ms = task.available_at_ms - await self._node.ports.store.lease_now()
        if task.state is TaskState.READY and left_ms > 0:
            return Conflict(
                f'the next attempt at "{task.element_id}" is due in {left_ms / 1000:g} s: advance the time first'
            )
        return Conflict(f'the task at "{task.element_id}" is {task.state.value}')


async def _answer(session: WorkerSession, request: WorkerMessage) -> Ack | Nack:
    await session.handle([request])
    await trio.testing.wait_all_tasks_blocked()
    (answer,) = [message for message in await session.outgoing() or () if isinstance(message, Ack | Nack)]
    return answer


def _raw(value: JsonValue) -> msgspec.Raw:
    return msgspec.Raw(dumps(canonical(value, "$.variables")))
