"""What workers say, hear, believe and do, as rows of the trace."""

from __future__ import annotations

from simulations.kernel.simulation import Simulation
from stellwerk.wire.messages import (
    Ack,
    BpmnErrorReport,
    Complete,
    EngineMessage,
    Extend,
    Fail,
    Goaway,
    Hello,
    Holding,
    LeaseRef,
    Nack,
    ProtocolErrorMessage,
    Received,
    Release,
    Renewed,
    Revoked,
    Subscribe,
    Tasks,
    Welcome,
    WorkerMessage,
)
from stellwerk.worker.task import Task

__all__ = ["WorkerTrace"]


class WorkerTrace:
    """A `WorkerObserver`."""

    def __init__(self, simulation: Simulation) -> None:
        self._trace = simulation.trace

    def sent(self, place: str, message: WorkerMessage) -> None:
        """Without heartbeats of workers that have nothing: they would be half of all rows."""
        if isinstance(message, Holding) and not message.leases:
            return
        self._trace(place, "sent", type=type(message).__name__, **_said(message))

    def received(self, place: str, message: EngineMessage) -> None:
        self._trace(place, "got", type=type(message).__name__, **_heard(message))

    def believes(self, place: str, task_id: str, fence: int, until: float) -> None:
        self._trace(place, "lease", task=task_id, fence=fence, until=round(until, 6))

    def let_go(self, place: str, task_id: str, fence: int) -> None:
        self._trace(place, "lease", task=task_id, fence=fence, until=None)

    def handler_began(self, place: str, task: Task) -> None:
        self._trace(
            place,
            "handler",
            phase="begin",
            task=task.id,
            fence=task.fence,
            topic=task.topic,
            element=task.element_id,
            instance=task.process_instance_id,
            attempt=task.attempt,
        )

    def handler_ended(self, place: str, task: Task, outcome: str) -> None:
        self._trace(place, "handler", phase="end", task=task.id, fence=task.fence, outcome=outcome)


def _said(message: WorkerMessage) -> dict[str, object]:
    match message:
        case Complete(ref, task_id, fence) | Fail(ref, task_id, fence) | BpmnErrorReport(ref, task_id, fence):
            return {"ref": ref, "task": task_id, "fence": fence}
        case Extend(ref, task_id, fence) | Release(ref, task_id, fence):
            return {"ref": ref, "task": task_id, "fence": fence}
        case Hello():
            return {"session": message.session_no, "holding": _pairs(message.holding)}
        case Holding(leases):
            return {"leases": _pairs(leases)}
        case Received(delivery):
            return {"delivery": delivery}
        case Subscribe(topic, max_tasks):
            return {"topic": topic, "max_tasks": max_tasks}
        case _:
            return {}


def _heard(message: EngineMessage) -> dict[str, object]:
    match message:
        case Tasks(delivery, offers):
            return {"delivery": delivery, "tasks": [[offer.task_id, offer.fence] for offer in offers]}
        case Renewed(leases):
            return {"leases": [[lease.task_id, lease.fence, lease.lock_remaining_ms] for lease in leases]}
        case Revoked(notices):
            return {"leases": [[notice.task_id, notice.fence, notice.reason] for notice in notices]}
        case Welcome():
            return {
                "session": message.session,
                "kept": [[lease.task_id, lease.fence] for lease in message.kept],
                "lost": [[lease.task_id, lease.fence, lease.reason] for lease in message.lost],
            }
        case Ack(ref):
            return {"ref": ref}
        case Nack(ref, code):
            return {"ref": ref, "code": code}
        case Goaway(reason) | ProtocolErrorMessage(_, reason):
            return {"reason": reason}
        case _:
            return {}


def _pairs(leases: tuple[LeaseRef, ...]) -> list[list[object]]:
    return [[lease.task_id, lease.fence] for lease in leases]
