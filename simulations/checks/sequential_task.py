"""An external task as its workers may see it: the smallest model that says which answers can follow each other.

Nothing of the engine's states is in it. Locks may run out and be given to somebody at any moment; what was
acknowledged stays; and a completion is the end.
"""

from __future__ import annotations

import attrs

from stellwerk.values import frozen

__all__ = ["FINALS", "UNKNOWN", "Call", "SequentialTask", "followers"]

FINALS = ("complete", "fail", "bpmn_error")
UNKNOWN = "unknown"
"""No answer, or one that does not tell: it had its effect once, or none."""


@frozen(kw_only=True)
class Call:
    """A request and its answer, or a lease that arrived (``grant``)."""

    kind: str
    """``grant``, ``complete``, ``fail``, ``bpmn_error``, ``release`` or ``extend``."""
    fence: int
    began: float
    """True seconds. A grant may have happened at any time before it arrived."""
    ended: float
    """Infinite without an answer."""
    answer: str = "ok"
    """``ok``, a code of a refusal, or ``unknown``."""
    said: str = ""
    """Digest of the request, with its kind."""
    place: str = ""


@frozen
class SequentialTask:
    fence: int = 0
    is_live: bool = False
    said: tuple[tuple[int, str], ...] = ()
    """How workers ended their leases: (fence, digest)."""
    over: str | None = None

    def recorded(self, fence: int) -> str | None:
        return next((said for of, said in self.said if of == fence), None)


def followers(task: SequentialTask, call: Call) -> tuple[SequentialTask, ...]:
    """What the task may be after the call; empty: that answer is impossible here."""
    if call.kind == "grant":
        is_possible = task.over is None and call.fence > task.fence
        return (attrs.evolve(task, fence=call.fence, is_live=True),) if is_possible else ()
    if call.answer in ("ok", UNKNOWN):
        return _granted(task, call)
    return _refused(task, call)


def _granted(task: SequentialTask, call: Call) -> tuple[SequentialTask, ...]:
    recorded = task.recorded(call.fence)
    is_holder = call.fence == task.fence and task.is_live and task.over is None and recorded is None
    if call.kind == "extend":
        return (task,) if is_holder else ()
    if call.kind == "release":
        # A single-try task that was begun stays leased until its lock runs out.
        return (attrs.evolve(task, is_live=False), task) if is_holder else ()
    if recorded == call.said or (call.kind == "fail" and any(said == call.said for _, said in task.said)):
        return (task,)
    if not is_holder:
        return ()
    over = "completed" if call.kind == "complete" else None
    return (attrs.evolve(task, is_live=False, said=(*task.said, (call.fence, call.said)), over=over),)


def _refused(task: SequentialTask, call: Call) -> tuple[SequentialTask, ...]:
    recorded = task.recorded(call.fence)
    match call.answer:
        case "lease_lost":
            if recorded is not None or call.fence > task.fence:
                return ()
            return (attrs.evolve(task, is_live=False),) if call.fence == task.fence else (task,)
        case "already_finished":
            return (task,) if recorded not in (None, call.said) else ()
        case "cancelled":
            is_possible = recorded is None and task.over in (None, "cancelled")
            return (attrs.evolve(task, is_live=False, over="cancelled"),) if is_possible else ()
        case _:
            return (task,)
