"""All workloads by name."""

from __future__ import annotations

from simulations.workloads.base import Workload
from simulations.workloads.boundaries import BOUNDARY_TIMER, REMINDERS, WITHDRAWAL
from simulations.workloads.changes import CANCELLED, REDEPLOYED
from simulations.workloads.failures import ERRORS, POISON, RETRIES, SINGLE_TRY, SINGLE_TRY_CAUGHT
from simulations.workloads.messages import MESSAGE_RACE, MESSAGE_START, MESSAGES, USER_TASK
from simulations.workloads.parallels import PARALLEL, WIDE
from simulations.workloads.sagas import SAGA, SAGA_PARALLEL, SAGA_THROWN
from simulations.workloads.sequences import SEQUENCE, SLOW, STORM

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        SEQUENCE,
        SAGA,
        PARALLEL,
        WIDE,
        BOUNDARY_TIMER,
        RETRIES,
        MESSAGE_RACE,
        CANCELLED,
        SINGLE_TRY,
        POISON,
        SLOW,
        STORM,
        MESSAGES,
        MESSAGE_START,
        WITHDRAWAL,
        SAGA_PARALLEL,
        SAGA_THROWN,
        REMINDERS,
        SINGLE_TRY_CAUGHT,
        ERRORS,
        USER_TASK,
        REDEPLOYED,
    )
}
