"""From the rows of a trace to everything that the page shows of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from simulations.kernel.trace import Row
from simulations.tools.page.arrows import arrows_of
from simulations.tools.page.bars import fault_bars, host_keyframes, state_bars
from simulations.tools.page.leases import lease_bars, steps_of, task_keyframes
from simulations.tools.page.shapes import Arrow, Bar, Keyframe, Lane, LeaseBar, Mark, Story
from simulations.tools.rows import changes_of, host_of, seconds_of, text_of, violation_row
from simulations.tools.sentences import sentence
from simulations.tools.slices import Slice

__all__ = ["story_of"]

_MARGIN = 0.08
"""Of the time that is shown, at both ends."""
_SECONDS_MIN = 0.05
_PROMISES_SHARE = 0.15
_ORDER = ("client", "operator", "database", "node", "worker", "storm")
_MARK_TONES = {"boot": "boot", "crash": "crash", "handler": "handler", "log": "log", "pause": "pause"}


def story_of(rows: Sequence[Row], part: Slice) -> Story:
    """:param rows: the whole trace; `part` is the slice of it that is to be shown."""
    start, end = _window(part)
    tasks = part.subject.tasks
    end = _with_promises(start, end, lease_bars(part.rows, tasks, end))
    upto = [row for row in rows if seconds_of(row) <= end]
    leases = lease_bars(part.rows, tasks, end)
    arrows = arrows_of(upto, part.rows, tasks)
    bars, states = fault_bars(upto, end), state_bars(upto, end)
    hosts = _hosts(part, arrows, leases, bars)
    shown = [bar for bar in (*bars, *states) if bar.lane in hosts and bar.end > start]
    frames = [
        *host_keyframes(hosts, bars, states, start),
        *task_keyframes(part.rows, tasks, leases, start),
        *_instance_keyframes(part, start),
    ]
    violation = violation_row(part.rows)
    return Story(
        start=start,
        end=end,
        lanes=_lanes(hosts, part),
        bars=tuple(shown),
        leases=tuple(leases),
        arrows=tuple(arrows),
        marks=tuple(_marks(part, hosts)),
        keyframes=tuple(sorted(frames, key=lambda frame: frame.at)),
        violated_at=seconds_of(violation) if violation else None,
        violation=sentence(violation) if violation else "",
    )


def _window(part: Slice) -> tuple[float, float]:
    """From a little before the first row of the subject's to a little after the last one."""
    if not part.rows:
        return 0.0, 1.0
    first, last = part.since_us / 1e6, seconds_of(part.rows[-1])
    margin = max(_SECONDS_MIN, (last - first) * _MARGIN)
    return max(0.0, first - margin), last + margin


def _with_promises(start: float, end: float, leases: Sequence[LeaseBar]) -> float:
    """Further, to the promised end of a lease, where that is not far."""
    ends = [bar.until for bar in leases if bar.until is not None]
    return max(end, min(max(ends, default=end) + _SECONDS_MIN, end + (end - start) * _PROMISES_SHARE))


def _hosts(part: Slice, arrows: Sequence[Arrow], leases: Sequence[LeaseBar], bars: Sequence[Bar]) -> tuple[str, ...]:
    """In the order of the lanes: who had a part in it."""
    names = {*part.hosts, *(bar.worker for bar in leases)}
    names.update(name for arrow in arrows for name in (arrow.start_lane, arrow.end_lane))
    names -= {*part.subject.ids, ""}
    if any(bar.lane == "database" for bar in bars):
        names.add("database")
    return tuple(sorted(names, key=_place_in_order))


def _place_in_order(name: str) -> tuple[int, str, int]:
    role = re.split(r"[-\d]", name, maxsplit=1)[0]
    number = re.search(r"\d+$", name)
    return _ORDER.index(role) if role in _ORDER else len(_ORDER), role, int(number[0]) if number else 0


def _lanes(hosts: Sequence[str], part: Slice) -> tuple[Lane, ...]:
    names = part.subject.names
    return (
        *(Lane(name, "host") for name in hosts),
        *(Lane(name, "instance", names.get(name, "")) for name in part.subject.instances),
        *(Lane(name, "task", names.get(name, "")) for name in part.subject.tasks),
    )


def _marks(part: Slice, hosts: Sequence[str]) -> Iterator[Mark]:
    for row in part.rows:
        host = host_of(row.place)
        if row.kind in _MARK_TONES and host in hosts:
            tone = _handler_tone(row) if row.kind == "handler" else _MARK_TONES[row.kind]
            yield Mark(host, seconds_of(row), tone, f"{seconds_of(row):.6f} s: {host} {sentence(row)}")
    for task in part.subject.tasks:
        for step in steps_of(part.rows, task):
            title = f"{step.at:.6f} s: {sentence(step.row, (task,))}"
            yield Mark(task, step.at, f"state {step.state or 'gone'}", title)
    yield from _instance_marks(part)


def _handler_tone(row: Row) -> str:
    return "handler" if text_of(row, "phase").startswith("begin") else "handled"


def _instance_marks(part: Slice) -> Iterator[Mark]:
    for row in part.rows:
        touched = {change.key for change in changes_of(row) if change.table != "tasks"}
        touched |= {change.instance for change in changes_of(row) if change.instance}
        for instance in part.subject.instances:
            if instance in touched:
                title = f"{seconds_of(row):.6f} s: {sentence(row, (instance,))}"
                yield Mark(instance, seconds_of(row), "step", title)


def _instance_keyframes(part: Slice, start: float) -> Iterator[Keyframe]:
    for instance in part.subject.instances:
        yield Keyframe(instance, start, "none", "not there yet")
        for row in part.rows:
            texts = [
                change.text for change in changes_of(row) if change.key == instance and change.table == "instances"
            ]
            if texts:
                yield Keyframe(instance, seconds_of(row), "up", texts[-1])
