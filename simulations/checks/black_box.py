"""What workers and clients were told, judged without a look into the engine (D1, A1, A2, H2, I1, I2,
L8).

Each task's history of requests and answers must be one that a task could have when one request after the other is
done (`sequential_task`). With a `CommitChecks` beside it, each acknowledgement is also compared with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs

from simulations.checks.linearisation import Verdict, linearisable
from simulations.checks.promises import Promise, Promises
from simulations.checks.reports import Reports
from simulations.checks.sequential_task import FINALS, UNKNOWN, Call
from stellwerk.core.external_task import OutcomeKind
from stellwerk.json_values import JsonValue, canonical, digest, loads
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
    Release,
    Revoked,
    Subscribe,
    TaskOffer,
    Tasks,
    Welcome,
    WorkerMessage,
)
from stellwerk.worker.task import Task

__all__ = ["BlackBox", "request_digest"]

_CONCLUSIVE = ("lease_lost", "already_finished", "cancelled", "not_found")
_INCONCLUSIVE = ("unavailable", "internal")
"""It may have been done for all that; whoever says so asks to repeat it."""
_FOUND_FAULT = ("invalid", "too_large", "unknown_type", "internal")
_REPEATED_SECONDS = 1.0
_KINDS = {Complete: "complete", Fail: "fail", BpmnErrorReport: "bpmn_error", Release: "release", Extend: "extend"}
_Request = Complete | Fail | BpmnErrorReport | Release | Extend


@attrs.define(eq=False)
class _Open:
    task_id: str
    call: Call
    is_answered: bool = False


@attrs.define
class _Worker:
    """One process."""

    boot_id: str = ""
    """Empty until its first hello."""
    topics: dict[str, None] = attrs.field(factory=dict)
    requests: dict[int, _Open] = attrs.field(factory=dict)
    sessions: int = 0
    said: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """Lease → how often its final request was sent."""
    unanswered: dict[tuple[str, int], int] = attrs.field(factory=dict)
    """Lease → the session in which its final request was sent, as long as nobody has answered that."""
    welcomed: float = math.inf
    """When its present session began."""
    is_careful: bool = False
    """An engine found fault with what it sent: it tells its results one at a time."""


class BlackBox:
    """A `WorkerObserver`."""

    def __init__(self, reports: Reports, now: Callable[[], float], promises: Promises | None = None) -> None:
        """``now``: true seconds. ``promises``: of the commit checkers, where there are some."""
        self._reports = reports
        self._now = now
        self._promises = promises
        self._workers: dict[str, _Worker] = {}
        self._calls: dict[str, list[_Open]] = {}
        self._offers: dict[tuple[str, int], str] = {}
        """Lease → the process that got it."""

    def _worker(self, place: str) -> _Worker:
        return self._workers.setdefault(place, _Worker())

    def _fail(self, invariant: str, place: str, what: str) -> None:
        self._reports.always(invariant, False, f"{place} {what}")

    # --- WorkerObserver --------------------------------------------------------------------------------------------

    def sent(self, place: str, message: WorkerMessage) -> None:
        match message:
            case Hello():
                self._greeted(place, message)
            case Subscribe():
                self._worker(place).topics[message.topic] = None
            case Complete() | Fail() | BpmnErrorReport() | Release() | Extend():
                self._asked(place, message)
            case Holding():
                self._check_repeated(place, message.leases)
            case _:
                pass

    def received(self, place: str, message: EngineMessage) -> None:
        match message:
            case Tasks():
                for offer in message.tasks:
                    self._offered(place, offer)
            case Ack():
                self._answered(place, message.ref, "ok")
            case Nack():
                self._answered(place, message.ref, message.code)
            case Revoked():
                for notice in message.leases:
                    self._reports.sometimes(f"worker: lease revoked, {notice.reason}")
            case Welcome():
                self._worker(place).welcomed = self._now()
                self._reports.sometimes("worker: hello kept its leases", bool(message.kept))
            case ProtocolErrorMessage():
                self._worker(place).is_careful |= message.code in _FOUND_FAULT
            case Goaway():
                self._reports.sometimes("session: sent away by a node that drains")
            case _:
                pass

    def believes(self, place: str, task_id: str, fence: int, until: float) -> None:
        """See `simulations.checks.beliefs`."""

    def let_go(self, place: str, task_id: str, fence: int) -> None:
        """See `simulations.checks.beliefs`."""

    def handler_began(self, place: str, task: Task) -> None:
        self._reports.sometimes("worker: handler began a task for a second time", task.attempt > 1)
        if self._promises is not None:
            self._promises.began(place, task.id, task.fence)

    def handler_ended(self, place: str, task: Task, outcome: str) -> None:
        self._reports.sometimes(f"worker: handler {outcome}")

    # --- sessions --------------------------------------------------------------------------------------------------

    def _greeted(self, place: str, hello: Hello) -> None:
        worker = self._worker(place)
        if worker.boot_id not in ("", hello.boot_id):  # the one before gave up
            worker = self._workers[place] = _Worker()
        worker.boot_id = hello.boot_id
        worker.sessions += 1
        worker.welcomed = math.inf
        self._reports.sometimes("session: reconnected", worker.sessions > 1)
        self._reports.sometimes("session: reconnected with leases", worker.sessions > 1 and bool(hello.holding))

    # --- offers ----------------------------------------------------------------------------------------------------

    def _offered(self, place: str, offer: TaskOffer) -> None:
        key = (offer.task_id, offer.fence)
        holder = self._offers.get(key)
        if holder is None:
            self._offers[key] = place
            call = Call(kind="grant", fence=offer.fence, began=-math.inf, ended=self._now(), place=place)
            self._calls.setdefault(offer.task_id, []).append(_Open(offer.task_id, call, is_answered=True))
        elif holder != place:
            self._fail("L1", place, f"got lease {offer.fence} of task {offer.task_id}, which {holder} had got")
        else:
            self._reports.sometimes("worker: one lease delivered twice")
        if offer.topic not in self._worker(place).topics:
            self._fail("L8", place, f"got a task of topic {offer.topic}, to which it never subscribed")

    # --- requests --------------------------------------------------------------------------------------------------

    def _asked(self, place: str, request: _Request) -> None:
        worker = self._worker(place)
        kind = _KINDS[type(request)]
        call = Call(
            kind=kind,
            fence=request.fence,
            began=self._now(),
            ended=math.inf,
            answer=UNKNOWN,
            said="" if kind not in FINALS else f"{kind} {request_digest(request)}",
            place=place,
        )
        found = _Open(request.task_id, call)
        if request.ref in worker.requests:
            self._fail("A2", place, f"used reference {request.ref} for two requests")
        worker.requests[request.ref] = found
        self._calls.setdefault(request.task_id, []).append(found)
        self._note_repeats(worker, request, kind)

    def _note_repeats(self, worker: _Worker, request: _Request, kind: str) -> None:
        if kind not in FINALS:
            return
        key = (request.task_id, request.fence)
        worker.said[key] = worker.said.get(key, 0) + 1
        worker.unanswered[key] = worker.sessions
        self._reports.sometimes(f"worker: {kind} sent again", worker.said[key] > 1)

    def _check_repeated(self, place: str, held: Sequence[LeaseRef]) -> None:
        """What it goes on reporting is renewed for ever, so it must also tell what became of it."""
        worker = self._worker(place)
        if worker.is_careful or self._now() < worker.welcomed + _REPEATED_SECONDS:
            return
        for lease in held:
            session = worker.unanswered.get((lease.task_id, lease.fence))
            if session is not None and session < worker.sessions:
                self._fail("H2", place, f"has not repeated its result of task {lease.task_id}, lease {lease.fence}")

    def _answered(self, place: str, ref: int, answer: str) -> None:
        worker = self._worker(place)
        found = worker.requests.get(ref)
        if found is None:
            self._fail("A2", place, f"got the answer {answer} to request {ref}, which it never made")
            return
        if found.is_answered:
            self._fail("A2", place, f"got a second answer ({answer}) to request {ref}: {found.call}")
            return
        found.is_answered = True
        worker.unanswered.pop((found.task_id, found.call.fence), None)
        self._reports.sometimes(f"worker: answered {answer}")
        if answer in _INCONCLUSIVE:
            return
        if answer != "ok" and answer not in _CONCLUSIVE:
            # Refused for what it is: it changed nothing, and says nothing about the lease.
            self._calls[found.task_id].remove(found)
            return
        found.call = attrs.evolve(found.call, ended=self._now(), answer=answer)
        if found.call.kind not in FINALS:
            return
        if answer == "ok":
            self._acknowledged(place, worker, found)
        elif self._promises is not None:
            self._promises.denied(_promise(place, found), answer)

    def _acknowledged(self, place: str, worker: _Worker, found: _Open) -> None:
        call = found.call
        sent = worker.said.get((found.task_id, call.fence), 0)
        self._reports.sometimes(f"worker: {call.kind} acknowledged only when repeated", sent > 1)
        if self._promises is not None:
            self._promises.given(_promise(place, found))

    # --- at the end ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Judge the history of each task."""
        if self._promises is not None:
            unheard = any(key not in self._offers for key in self._promises.leases_given_back())
            self._reports.sometimes("lease: never reached its worker", unheard)
        for task_id in sorted(self._calls):
            calls = [found.call for found in self._calls[task_id]]
            verdict = linearisable(calls)
            self._reports.sometimes("checks: a history was too long to be judged", verdict is Verdict.UNDECIDED)
            if verdict is Verdict.IMPOSSIBLE:
                self._reports.always("I1", False, f"no task could answer so: task {task_id}: {shown(calls)}")


def _promise(place: str, found: _Open) -> Promise:
    call = found.call
    return Promise(found.task_id, call.fence, OutcomeKind(call.kind), call.said.partition(" ")[2], place)


def shown(calls: list[Call]) -> str:
    ordered = sorted(calls, key=lambda call: call.began if call.kind != "grant" else call.ended)
    return "; ".join(_one(call) for call in ordered)


def _one(call: Call) -> str:
    if call.kind == "grant":
        return f"{call.ended:.3f} {call.place} got lease {call.fence}"
    end = "" if math.isinf(call.ended) else f" at {call.ended:.3f}"
    return f"{call.began:.3f} {call.place} {call.said or call.kind} ({call.fence}) → {call.answer}{end}"


def request_digest(request: Complete | Fail | BpmnErrorReport | Release | Extend) -> str:
    """Of its canonical form, as the engine is to record it (consistency.md 12)."""
    match request:
        case Complete():
            return digest(_value(request.variables))
        case Fail():
            details = _value(request.details)
            return digest([canonical(request.message), details, request.retry_after_ms, request.retries])
        case BpmnErrorReport():
            details, variables = _value(request.details), _value(request.variables)
            return digest([canonical(request.code), canonical(request.message), details, variables])
        case _:
            return ""


def _value(text: object) -> JsonValue:
    return loads(bytes(text))  # type: ignore[call-overload]
