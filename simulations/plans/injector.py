"""The one task that does what the plan's faults want, in the order of time."""

from __future__ import annotations

from collections import Counter

import attrs
import trio

from simulations.kernel.simulation import Simulation
from simulations.plans.deeds import Step
from simulations.plans.faults import steps_of
from simulations.plans.plan import Fault, Plan
from simulations.plans.stage import Stage

__all__ = ["Injector", "PlannedStep", "planned_steps"]

_PLACE = "injector"


@attrs.frozen
class PlannedStep:
    at: float
    """Seconds since the start of the run, whole microseconds."""
    fault: Fault
    step: Step


def planned_steps(plan: Plan) -> list[PlannedStep]:
    """All that happens in the safety phase, in order of time; at one instant, in the order of the faults' keys. What
    would come later is left to `Injector.heal`."""
    steps = [
        PlannedStep(round(fault.at + step.after, 6), fault, step)
        for fault in plan.faults
        for step in steps_of(fault, plan)
    ]
    in_time = [planned for planned in steps if planned.at <= plan.options.chaos_seconds]
    return sorted(in_time, key=lambda planned: (planned.at, planned.fault.key))


class Injector:
    """Which faults there are changes nothing about the tasks of a run: one sleeps from step to step."""

    def __init__(self, simulation: Simulation, stage: Stage) -> None:
        self._simulation = simulation
        self._stage = stage
        self.began: Counter[str] = Counter()
        """Faults by kind that really befell something: a crash of a host that is down already does not count."""

    async def run(self) -> None:
        """Until the safety phase is over. Then `heal` is due."""
        for planned in planned_steps(self._stage.plan):
            await self._sleep_until(planned.at)
            self._do(planned)
        await self._sleep_until(self._stage.plan.options.chaos_seconds)

    def heal(self) -> None:
        """The quiet phase begins: no cut, no slow link, the database well, all hosts up and thawed but those that stay
        dead, no crash planned."""
        self._simulation.trace(_PLACE, "fault", phase="heal", dead=list(self._stage.plan.options.stays_dead))
        self._stage.heal()

    async def _sleep_until(self, at: float) -> None:
        """Also when it is now: everything else at this instant has its turn in a schedule that the seed decides."""
        await trio.sleep(max(0.0, at - self._simulation.now()))

    def _do(self, planned: PlannedStep) -> None:
        fault, step = planned.fault, planned.step
        self._simulation.trace(
            _PLACE,
            "fault",
            phase=step.phase,
            key=fault.key,
            fault=fault.kind,
            host=fault.host,
            other=fault.other,
            seconds=fault.seconds,
            amount=fault.amount,
        )
        changed = step.deed(self._stage, fault)
        if step.phase == "begin" and changed:
            self.began[fault.kind] += 1
