"""Giving back leases that were taken for somebody who did not get them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from stellwerk.actors.requests import RequestServices
from stellwerk.core.external_task import ExternalTask
from stellwerk.errors import StoreUnavailable
from stellwerk.ports import LeaseAnswerKind, Outcome, ReleaseLease, ReleaseLeases

__all__ = ["Undelivered", "give_back"]

_AGAIN_SECONDS = 0.5


@attrs.frozen
class Undelivered:
    """A lease of which nobody has read anything."""

    task: ExternalTask
    """As it was leased."""
    deadline: float
    """Monotonic seconds: then it has run out in any case."""


def give_back(services: RequestServices, leases: Sequence[Undelivered]) -> None:
    """In the background, without using a retry. While the store does not answer it is tried again, until the leases
    have run out; and so they do if the node stops first."""
    if not leases:
        return
    services.leases.under_way += len(leases)
    try:
        services.spawn(_give_back, services, leases)
    except StoreUnavailable:
        services.leases.under_way -= len(leases)


async def _give_back(services: RequestServices, leases: Sequence[Undelivered]) -> None:
    try:
        answers = await _submit(services, leases)
    finally:
        services.leases.under_way -= len(leases)
    assert isinstance(answers, tuple)
    for lease, answer in zip(leases, answers, strict=True):
        services.leases.remove(lease.task.task_id, lease.task.fence)
        if answer.kind is LeaseAnswerKind.DONE and answer.task is not None:
            services.returned(answer.task)


async def _submit(services: RequestServices, leases: Sequence[Undelivered]) -> Outcome:
    clock = services.ports.clock
    until = max(lease.deadline for lease in leases)
    while True:
        try:
            return await services.committer.submit(ReleaseLeases(tuple(_release(lease.task) for lease in leases)))
        except StoreUnavailable:
            if clock.monotonic() >= until:
                raise
        await clock.sleep(_AGAIN_SECONDS)


def _release(task: ExternalTask) -> ReleaseLease:
    assert task.lease is not None
    return ReleaseLease(task.task_id, task.fence, task.lease.holder.session_id, started=False)
