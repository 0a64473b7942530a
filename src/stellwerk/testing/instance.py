"""One process instance in a test: what a worker, a person or a clock would do to it, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from stellwerk.json_values import canonical_object
from stellwerk.testing.assertions import InstanceAssertions
from stellwerk.testing.hands import Hands
from stellwerk.testing.recording import InstanceRecord
from stellwerk.testing.work import OpenTask, OpenUserTask, described, known_element, open_tasks, open_user_tasks

if TYPE_CHECKING:
    from stellwerk.testing.process_test import ProcessTest

__all__ = ["StartedInstance"]

Work = TypeVar("Work", OpenTask, OpenUserTask)
Variables = Mapping[str, object] | None


class StartedInstance(InstanceAssertions):
    """Made by `ProcessTest`. Everything that is awaited returns when nothing moves any more without time passing."""

    def __init__(self, record: InstanceRecord, test: ProcessTest, hands: Hands) -> None:
        self.record = record
        self._test = test
        self._hands = hands

    @property
    def id(self) -> str:
        return self.record.instance_id

    @property
    def definition_id(self) -> str:
        """``key:version``."""
        return self.record.row.definition_id

    @property
    def business_key(self) -> str | None:
        return self.record.state.business_key

    def __repr__(self) -> str:
        return f"<StartedInstance {self.id} of {self.definition_id}: {self.status}>"

    # --- external tasks --------------------------------------------------------------------------------------------

    def tasks(self, element_id: str | None = None) -> list[OpenTask]:
        """The open external tasks (of one element), oldest first."""
        return _of_element(open_tasks(self.record), element_id)

    async def complete(self, task: str | OpenTask, variables: Variables = None) -> None:
        """Do what a worker does that completes the task with these result variables.

        ``task``: the element's id, where one task is open there; of several, one of `tasks`.

        :raises AssertionError: no such task is open; it says what is.
        :raises StellwerkError: the engine does not take the result.
        """
        await self._hands.complete(self._task(task).task_id, dict(variables or {}))
        await self._test.settle()

    async def complete_all(self, element_id: str, variables: Variables | Callable[[OpenTask], Variables] = None) -> int:
        """Complete every task that is open there now, oldest first; ``variables`` may be made from the task. → how many

        :raises AssertionError: none is open.
        """
        found = self.tasks(element_id)
        if not found:
            raise self._not_open("external task", element_id)
        for task in found:
            await self.complete(task, variables(task) if callable(variables) else variables)
        return len(found)

    async def throw_error(
        self, task: str | OpenTask, code: str, message: str | None = None, variables: Variables = None
    ) -> None:
        """Do what a worker does that reports a BPMN error. See `complete`."""
        await self._hands.throw_error(self._task(task).task_id, code, message, dict(variables or {}))
        await self._test.settle()

    async def fail(
        self,
        task: str | OpenTask,
        message: str = "failed by the test",
        *,
        retries: int | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        """Do what a worker does whose attempt fails for a technical reason. See `complete`.

        ``retries``: so many attempts are left, 0 for none; None: one less than before. ``retry_after``: the next one
        comes so much later; None: as the model or the engine says. The task is offered again when that time has passed.
        """
        after_ms = None if retry_after is None else retry_after // timedelta(milliseconds=1)
        await self._hands.fail(self._task(task).task_id, message, retries, after_ms)
        await self._test.settle()

    def _task(self, task: str | OpenTask) -> OpenTask:
        if isinstance(task, str):
            return self._only("external task", task, self.tasks(task))
        return task

    # --- user tasks, incidents, the instance itself ----------------------------------------------------------------

    def user_tasks(self, element_id: str | None = None) -> list[OpenUserTask]:
        """The open user tasks (of one element), oldest first."""
        return _of_element(open_user_tasks(self.record), element_id)

    async def complete_user_task(self, task: str | OpenUserTask, variables: Variables = None) -> None:
        """Do what a person does who completes the user task. ``task`` as in `complete`.

        :raises AssertionError: no such user task is open; it says what is.
        """
        found = self._only("user task", task, self.user_tasks(task)) if isinstance(task, str) else task
        await self._test.engine.complete_user_task(found.user_task_id, dict(variables or {}))
        await self._test.settle()

    async def resolve_incident(self, element_id: str, *, retries: int | None = None) -> None:
        """Try again at an element at which an incident is open; a task gets so many attempts (None: as its model says).

        :raises AssertionError: there is none.
        """
        for incident in self.record.state.incidents.values():
            if incident.node_id == element_id:
                await self._test.engine.resolve_incident(incident.id, retries=retries)
                await self._test.settle()
                return
        raise self._not_open("incident", element_id)

    async def set_variables(self, variables: Mapping[str, object]) -> None:
        await self._test.engine.set_variables(self.id, canonical_object(dict(variables), "$.variables"))
        await self._test.settle()

    async def cancel(self, reason: str = "cancelled by the test") -> None:
        await self._test.engine.cancel(self.id, reason)
        await self._test.settle()

    # --- time ------------------------------------------------------------------------------------------------------

    async def advance_to_next_timer(self) -> list[str]:
        """Move the clock exactly to this instance's next timer; other things that come due before happen too.

        → the ids of the elements whose timers fired in this instance.

        :raises AssertionError: no timer is armed.
        """
        due = [timer.due_at_ms for timer in self.record.state.timers.values()]
        if not due:
            raise AssertionError(f"no timer is armed\n{described(self.record)}")
        before = len(self.record.timers_fired)
        await self._test.advance_to_ms(min(due))
        return self.record.timers_fired[before:]

    async def advance_to_end(self, *, within: timedelta = timedelta(days=366)) -> None:
        """Let the time pass from one thing that comes due to the next until the instance has ended.

        :raises AssertionError: it cannot end by itself, or not within that time.
        """
        await self._test.advance_until(lambda: self.record.state.ended, within, lambda: described(self.record))

    # --- finding the one that is meant -----------------------------------------------------------------------------

    def _only(self, kind: str, element_id: str, found: Sequence[Work]) -> Work:
        if not found:
            raise self._not_open(kind, element_id)
        if len(found) > 1:
            listed = "\n".join(f"  {task}" for task in found)
            raise AssertionError(
                f'{len(found)} {kind}s are open at "{element_id}": hand in the one that is meant, '
                f"or complete them all\n{listed}"
            )
        return found[0]

    def _not_open(self, kind: str, element_id: str) -> AssertionError:
        problem = known_element(self.record, element_id) or f'no {kind} is open at "{element_id}"'
        return AssertionError(f"{problem}\n{described(self.record)}")


def _of_element(found: Sequence[Work], element_id: str | None) -> list[Work]:
    return [work for work in found if element_id is None or work.element_id == element_id]
