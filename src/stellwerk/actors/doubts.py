"""Leases in doubt: the store gave no answer, so they may stand in the rows although nobody here knows of them.

Their worker would never hear of such a task, and while it stays connected nobody else would get it before its lock runs
out. So they are looked up once the store answers again, and given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from stellwerk.actors.committer import Committer
from stellwerk.actors.leases import LeaseBook, Subscription
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.ports import LeaseAnswer, LeaseAnswerKind, Ports, ReleaseLease, ReleaseLeases

__all__ = ["LeaseDoubts"]

_DOUBTS_MAX = 10_000
"""Beyond, a lease waits for the end of its lock."""
_RETRY_SECONDS = 1.0


class LeaseDoubts:
    def __init__(
        self, ports: Ports, committer: Committer, leases: LeaseBook, returned: Callable[[ExternalTask], None]
    ) -> None:
        """:param returned: told of a task that is READY again."""
        self._ports = ports
        self._committer = committer
        self._leases = leases
        self._returned = returned
        self._in_doubt: dict[str, Subscription] = {}
        """By task."""
        self._asked = trio.Event()

    def __len__(self) -> int:
        return len(self._in_doubt)

    def add(self, task_ids: Iterable[str], subscription: Subscription) -> None:
        for task_id in task_ids:
            if len(self._in_doubt) < _DOUBTS_MAX:
                self._in_doubt[task_id] = subscription
        self._asked.set()

    def forget(self, task_ids: Iterable[str]) -> None:
        """They were leased after all, and that was answered: who holds them now is known."""
        for task_id in task_ids:
            self._in_doubt.pop(task_id, None)

    async def run(self) -> None:
        """For ever. What cannot be asked now is asked again."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            try:
                for task_id, subscription in list(self._in_doubt.items()):
                    if task_id in subscription.reserved or task_id not in self._in_doubt:
                        continue  # it is being leased again, which will tell or has told
                    await self._settle(task_id, subscription)
            finally:
                # Also where the store failed once more: what is left must be asked about after the restart.
                if self._in_doubt:
                    self._asked.set()
            if self._in_doubt:
                await self._ports.clock.sleep(_RETRY_SECONDS)

    async def _settle(self, task_id: str, subscription: Subscription) -> None:
        task = await self._ports.store.task(task_id)
        if self._in_doubt.get(task_id) is not subscription:
            return  # meanwhile it was leased again: who holds it is known, or was
        if task is not None and self._is_forgotten(task, subscription):
            session_id = subscription.link.holder.session_id
            release = ReleaseLease(task_id, task.fence, session_id, started=False)
            answers = await self._committer.submit(ReleaseLeases((release,)))
            assert isinstance(answers, tuple)
            self._released(answers[0])
        self._in_doubt.pop(task_id, None)

    def _is_forgotten(self, task: ExternalTask, subscription: Subscription) -> bool:
        if task.state is not TaskState.LOCKED or task.lease is None or task.task_id in subscription.reserved:
            return False
        if task.lease.holder.session_id != subscription.link.holder.session_id:
            return False
        return self._leases.get(task.task_id) is None and not self._leases.is_finished(task.task_id, task.fence)

    def _released(self, answer: LeaseAnswer) -> None:
        if answer.kind is LeaseAnswerKind.DONE and answer.task is not None:
            self._ports.log.info("a lease that nobody knew was given back", task=answer.task.task_id)
            self._returned(answer.task)
