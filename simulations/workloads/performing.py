"""Handlers that do what the workloads say, and note what they did: the only record of what happened outside the engine.

A run is noted when it begins, and its end when it ends; a run whose worker died has no end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

import trio

from simulations.plans.plan import InstanceSpec
from simulations.workloads.base import Behaviour, Call, Failed, Raised, Returned, Workload
from simulations.workloads.reading import HandlerRun, stamp_of
from stellwerk.json_values import JsonObject
from stellwerk.worker import BpmnError, Task, TaskFailure

__all__ = ["HandlerBroke", "Handlers"]


class HandlerBroke(Exception):
    """What a handler raises that fails in a plain way."""


class Handlers:
    """All handlers of a run, of whatever worker."""

    def __init__(
        self, workloads: Mapping[str, Workload], specs: Iterable[InstanceSpec], now: Callable[[], float]
    ) -> None:
        """`now`: true simulated seconds."""
        self._workloads = workloads
        self._specs = {spec.key: spec for spec in specs}
        self._now = now
        self._began: Counter[str] = Counter()
        self.runs: list[HandlerRun] = []
        """In the order in which they began."""

    def runs_of(self, instance_id: str) -> tuple[HandlerRun, ...]:
        return tuple(run for run in self.runs if run.instance_id == instance_id)

    def function(
        self,
        sleep: Callable[[float], Awaitable[None]],
        place: str = "",
        crash: Callable[[], Awaitable[None]] | None = None,
    ) -> Callable[[Task], Awaitable[JsonObject]]:
        """The handler of all topics of one worker process.

        `sleep`: on that worker's clock. `crash`: grants the wish to lose power, or returns and does not.
        """

        async def handle(task: Task) -> JsonObject:
            return await self._handle(task, sleep, place, crash)

        return handle

    async def _handle(
        self,
        task: Task,
        sleep: Callable[[float], Awaitable[None]],
        place: str,
        crash: Callable[[], Awaitable[None]] | None,
    ) -> JsonObject:
        spec = self._specs[task.business_key or ""]
        call = Call(task.element_id, task.attempt, self._began[task.id], task.variables)
        behaviour = self._workloads[spec.kind].behave(spec, call)
        run = self._begin(task, place)
        try:
            if behaviour.extend_seconds is not None:
                task.extend(behaviour.extend_seconds)
            await sleep(behaviour.seconds)
            if behaviour.crash and crash is not None:
                await crash()
        except trio.Cancelled:
            self._end(run, "cancelled", task.signal.reason or "")
            raise
        return self._outcome(task, run, behaviour)

    def _begin(self, task: Task, place: str) -> HandlerRun:
        self._began[task.id] += 1
        run = HandlerRun(
            task_id=task.id,
            instance_id=task.process_instance_id,
            element=task.element_id,
            fence=task.fence,
            attempt=task.attempt,
            worker_id=task.worker_id,
            place=place,
            saw=task.variables,
            began=self._now(),
        )
        self.runs.append(run)
        return run

    def _outcome(self, task: Task, run: HandlerRun, behaviour: Behaviour) -> JsonObject:
        match behaviour.then:
            case Returned(variables):
                self._end(run, "returned", "")
                return {**variables, task.element_id: stamp_of(run)}
            case Raised(code, variables):
                self._end(run, "raised", code)
                raise BpmnError(code, f"{task.element_id} says {code}", variables=variables)
            case Failed(message=message, is_plain=True):
                self._end(run, "failed", message)
                raise HandlerBroke(message)
            case Failed(message, retry_after, retries):
                run.gave_up = retries == 0
                self._end(run, "failed", message)
                raise TaskFailure(message, retry_after=retry_after, retries=retries)

    def _end(self, run: HandlerRun, end: str, says: str) -> None:
        run.end, run.says, run.ended = end, says, self._now()
