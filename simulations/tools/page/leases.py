"""The lives of the tasks in question: who held them, from when until when, and how long that was promised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from simulations.kernel.trace import Row
from simulations.tools.page.shapes import Keyframe, LeaseBar
from simulations.tools.rows import Change, changes_of, number_of, seconds_of, text_of
from simulations.tools.sentences import fence_text
from stellwerk.values import frozen

__all__ = ["Step", "lease_bars", "steps_of", "task_keyframes"]


@frozen
class Step:
    """A commit that changed the row of a task."""

    at: float
    row: Row
    change: Change
    is_undone: bool

    @property
    def node(self) -> str:
        return text_of(self.row, "node")

    @property
    def state(self) -> str:
        """What the row says from here on."""
        return self.change.before if self.is_undone else self.change.after


def steps_of(rows: Sequence[Row], task: str) -> list[Step]:
    """:param rows: of a slice: one that undoes a commit tells its changes."""
    return [
        Step(seconds_of(row), row, change, row.kind == "undone")
        for row in rows
        for change in (reversed(changes_of(row)) if row.kind == "undone" else changes_of(row))
        if change.table == "tasks" and change.key == task
    ]


def lease_bars(rows: Sequence[Row], tasks: Sequence[str], end: float) -> list[LeaseBar]:
    """One bar for each grant. A renewal moves the promised end and does not begin a new one."""
    return [bar for task in tasks for bar in _bars_of(rows, task, end)]


def _bars_of(rows: Sequence[Row], task: str, end: float) -> Iterator[LeaseBar]:
    begun: Step | None = None
    until: float | None = None
    for step in steps_of(rows, task):
        if begun is not None and _continues(begun, step):
            until = _promised(step) or until
            continue
        if begun is not None:
            yield _bar(begun, step.at, until or _believed(rows, begun), step.state or "gone")
        begun = step if step.state == "LOCKED" and step.change.fence is not None and not step.is_undone else None
        until = _promised(step) if begun else None
    if begun is not None:
        yield _bar(begun, end, until or _believed(rows, begun), "")


def _continues(begun: Step, step: Step) -> bool:
    return step.state == "LOCKED" and step.change.fence == begun.change.fence and not step.is_undone


def _promised(step: Step) -> float | None:
    """In seconds of the simulation: the database's clock is known at the commit."""
    until, now = step.change.until_ms, number_of(step.row, "now_ms")
    return None if until is None or now is None else step.at + (until - now) / 1000


def _believed(rows: Sequence[Row], begun: Step) -> float | None:
    """What the worker took the end to be at last, where the commits do not tell it."""
    told = [
        number_of(row, "until")
        for row in rows
        if row.kind == "lease"
        and text_of(row, "task") == begun.change.key
        and text_of(row, "fence") == str(begun.change.fence)
    ]
    return next((until for until in reversed(told) if until is not None), None)


def _bar(begun: Step, end: float, until: float | None, ending: str) -> LeaseBar:
    change = begun.change
    assert change.fence is not None
    promise = "" if until is None else f", promised until {until:.3f} s"
    how = f"then {ending}" if ending else "still held"
    title = f"{change.worker} holds {change.key} with fence {change.fence} from {begun.at:.3f} s{promise}; "
    title += f"{how} at {end:.3f} s"
    return LeaseBar(change.key, change.worker, change.fence, begun.at, end, until, ending, title)


def task_keyframes(rows: Sequence[Row], tasks: Sequence[str], bars: Sequence[LeaseBar], start: float) -> list[Keyframe]:
    frames = []
    for task in tasks:
        steps = steps_of(rows, task)
        ends = {bar.start: bar.until for bar in bars if bar.task == task}
        frames.append(Keyframe(task, start, "none", _before_all(steps)))
        frames += [_keyframe(task, step, _end_at(ends, step.at)) for step in steps]
    return _last_at_each_instant(frames)


def _before_all(steps: Sequence[Step]) -> str:
    return (steps[0].change.before if steps else "") or "not there yet"


def _end_at(ends: dict[float, float | None], at: float) -> float | None:
    return next((until for since, until in sorted(ends.items(), reverse=True) if since <= at), None)


def _keyframe(task: str, step: Step, until: float | None) -> Keyframe:
    change = step.change
    if step.state == "LOCKED" and change.fence is not None:
        text = f"LOCKED by {change.worker}, fence {fence_text(change.fence)}"
        return Keyframe(task, step.at, "LOCKED", text, until)
    return Keyframe(task, step.at, step.state or "none", step.state or "gone")


def _last_at_each_instant(frames: list[Keyframe]) -> list[Keyframe]:
    kept = [one for one, after in pairwise(frames) if (one.lane, one.at) != (after.lane, after.at)]
    return [*kept, *frames[-1:]]
