"""Messages as arrows between lanes.

The trace tells what a worker sent and got, and what a node committed. An arrow joins the two: a request goes to the
commit that it caused, its answer comes from there; a grant comes from the commit that gave the lease. What has no
other end was lost on the way, or its sender never knew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulations.kernel.trace import Row
from simulations.tools.page.leases import Step, steps_of
from simulations.tools.page.shapes import Arrow, ArrowTone
from simulations.tools.rows import host_of, leases_in, seconds_of, text_of
from simulations.tools.sentences import sentence

__all__ = ["arrows_of"]

_FLIGHT_SECONDS = 0.003
"""Of a message whose other end the trace does not tell."""
_ENDINGS = ("Complete", "Fail", "BpmnErrorReport", "Extend", "Release")
_ANSWERS: dict[str, ArrowTone] = {
    "Tasks": "grant",
    "Renewed": "grant",
    "Ack": "answer",
    "Nack": "refusal",
    "Revoked": "refusal",
    "Welcome": "answer",
}
"""What a worker gets; other messages (and its heartbeats) would be too many arrows."""


def arrows_of(all_rows: Sequence[Row], rows: Sequence[Row], tasks: Sequence[str]) -> list[Arrow]:
    """:param all_rows: of the whole trace: where a worker is connected to does not stand in the slice.
    :param rows: of the slice."""
    return _Arrows(all_rows, rows, tasks).all()


class _Arrows:
    def __init__(self, all_rows: Sequence[Row], rows: Sequence[Row], tasks: Sequence[str]) -> None:
        self._dials = [row for row in all_rows if row.kind == "dial"]
        self._rows = rows
        self._steps = [step for task in tasks for step in steps_of(rows, task)]
        self._requests = {(row.place, text_of(row, "ref")): row for row in rows if row.kind == "sent"}
        self._calls = {_call(row): row for row in rows if row.kind == "request"}

    def all(self) -> list[Arrow]:
        arrows = [arrow for row in self._rows for arrow in self._of(row)]
        arrows += [*self._lost_grants(), *self._commits()]
        return sorted(arrows, key=lambda arrow: (arrow.start, arrow.end))

    def _of(self, row: Row) -> Iterator[Arrow]:
        match row.kind:
            case "sent" if text_of(row, "type") in _ENDINGS:
                yield from self._sent(row)
            case "got" if text_of(row, "type") in _ANSWERS:
                yield from self._got(row)
            case "request":
                yield _to(row, text_of(row, "to"), None)
            case "answer" if (call := self._calls.get(_call(row))) is not None:
                tone: ArrowTone = "lost" if text_of(row, "lost") else "answer"
                yield _from(row, text_of(call, "to"), None, tone)
            case _:
                pass

    # --- workers ---------------------------------------------------------------------------------------------------

    def _sent(self, row: Row) -> Iterator[Arrow]:
        step = self._caused_by(row)
        node = step.node if step else self._peer(row)
        if node:
            yield _to(row, node, step)

    def _got(self, row: Row) -> Iterator[Arrow]:
        tone = _ANSWERS[text_of(row, "type")]
        step = self._grant(row) if tone == "grant" else self._answered(row) if tone == "answer" else None
        node = step.node if step else self._peer(row)
        if node:
            yield _from(row, node, step, tone)

    def _caused_by(self, row: Row) -> Step | None:
        """The commit that a request led to: the next one of this task, unless that is another lease's."""
        task, fence = text_of(row, "task"), text_of(row, "fence")
        later = (step for step in self._steps if step.change.key == task and step.at >= seconds_of(row))
        step = next(later, None)
        is_its_own = step is not None and not step.is_undone and str(step.change.fence) == fence
        return step if is_its_own else None

    def _grant(self, row: Row) -> Step | None:
        """The newest commit that gave or renewed one of the leases that the message speaks of."""
        leases, at = leases_in(row), seconds_of(row)
        return next((step for step in reversed(self._steps) if step.at <= at and _grant_of(step) in leases), None)

    def _answered(self, row: Row) -> Step | None:
        """The commit between the request and this answer to it."""
        request = self._requests.get((row.place, text_of(row, "ref")))
        step = self._caused_by(request) if request is not None and text_of(row, "ref") else None
        return step if step is not None and step.at <= seconds_of(row) else None

    def _peer(self, row: Row) -> str:
        """The node that the worker is connected to; empty where the trace does not tell."""
        own = (dial for dial in reversed(self._dials) if dial.us <= row.us and _is_of_host(dial, row))
        dial = next(own, None)
        return text_of(dial, "target") if dial is not None else ""

    def _lost_grants(self) -> Iterator[Arrow]:
        """Leases that their workers never heard of."""
        heard = {lease for row in self._rows if row.kind in ("got", "lease", "handler") for lease in leases_in(row)}
        told: set[tuple[str, str]] = set()
        for step in self._steps if heard else ():
            grant = _grant_of(step)
            if grant is None or grant in heard or grant in told:
                continue
            told.add(grant)
            title = f"{step.change.worker} never got {grant[0]} with fence {grant[1]}"
            yield Arrow(step.node, step.at, step.change.worker, step.at + _FLIGHT_SECONDS, "lost", "lost", title)

    def _commits(self) -> Iterator[Arrow]:
        """From the node to the task: who changed it."""
        for step in self._steps:
            if step.node:
                title = f"{step.at:.6f} s: {sentence(step.row, (step.change.key,))}"
                yield Arrow(step.node, step.at, step.change.key, step.at, "commit", "", title)


def _grant_of(step: Step) -> tuple[str, str] | None:
    if step.state != "LOCKED" or step.is_undone or step.change.fence is None:
        return None
    return step.change.key, str(step.change.fence)


def _is_of_host(dial: Row, row: Row) -> bool:
    """The network writes the host's incarnation where it can."""
    return host_of(dial.place) == host_of(row.place)


def _call(row: Row) -> tuple[str, str, str]:
    return row.place, text_of(row, "key"), text_of(row, "number")


def _label(row: Row) -> str:
    match row.kind:
        case "request":
            return text_of(row, "method")
        case "answer":
            return "no answer" if text_of(row, "lost") else text_of(row, "status")
        case _:
            return f"{text_of(row, 'type')} {text_of(row, 'code')}".rstrip()


def _to(row: Row, node: str, step: Step | None) -> Arrow:
    at, host = seconds_of(row), host_of(row.place)
    end = step.at if step else at + _FLIGHT_SECONDS
    return Arrow(host, at, node, end, "request", _label(row), f"{at:.6f} s: {host} {sentence(row)}")


def _from(row: Row, node: str, step: Step | None, tone: ArrowTone) -> Arrow:
    at, host = seconds_of(row), host_of(row.place)
    start = step.at if step else at - _FLIGHT_SECONDS
    return Arrow(node, start, host, at, tone, _label(row), f"{at:.6f} s: {host} {sentence(row)}")
