"""The demo's audit passes a right ledger and names the order in every wrong one."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from stellwerk.cli.demo.audit import EndedInstance, audit, count_repeated_runs
from stellwerk.cli.demo.ledger import EventKind, LedgerEvent
from stellwerk.cli.demo.orders import CHARGE, REFUND, RELEASE, RESERVE, SHIP, Fate, PlannedOrder, make_orders

NAME = "order-0001"


def planned(fate: Fate) -> PlannedOrder:
    [only] = make_orders(1, seed=1)
    return attrs.evolve(only, fate=fate)


def run(topic: str, start: int, *, fence: int = 1, worker: str = "worker-1") -> list[LedgerEvent]:
    """A handler run that does its work and ends, at `start` and the two instants after it."""
    kinds = (EventKind.BEGIN, EventKind.DONE, EventKind.END)
    return [event(kind, topic, start + step, fence=fence, worker=worker) for step, kind in enumerate(kinds)]


def event(kind: EventKind, topic: str, at: int, *, fence: int = 1, worker: str = "worker-1") -> LedgerEvent:
    return LedgerEvent(
        at_ns=at, worker=worker, kind=kind, topic=topic, order=NAME, task_id=f"task-{topic}", fence=fence, attempt=1
    )


def right_events(fate: Fate) -> list[LedgerEvent]:
    return [line for step, topic in enumerate(fate.trail) for line in run(topic, step * 10)]


def findings(
    fate: Fate,
    events: Sequence[LedgerEvent],
    *,
    status: str | None = None,
    starts: int = 1,
    outside: set[str] | None = None,
) -> list[str]:
    instances = [EndedInstance(f"instance-{number}", NAME, status or fate.status) for number in range(starts)]
    keys = {f"{NAME}.{topic}" for topic in fate.trail} if outside is None else outside
    return audit([planned(fate)], instances, sorted(events, key=lambda line: line.at_ns), keys)


@pytest.mark.parametrize("fate", list(Fate))
def test_a_right_ledger_has_no_findings(fate: Fate) -> None:
    assert findings(fate, right_events(fate)) == []


def test_an_order_shipped_twice_is_found() -> None:
    events = right_events(Fate.SHIPPED) + run(SHIP, 40, fence=2, worker="worker-2")
    assert findings(Fate.SHIPPED, events) == [f"{NAME}: ship was done 2 times, by worker-1, worker-2"]


def test_an_order_that_was_never_shipped_is_found() -> None:
    events = run(RESERVE, 0) + run(CHARGE, 10)
    assert any("done was reserve-stock → charge-card where" in line for line in findings(Fate.SHIPPED, events))


def test_an_order_without_any_work_is_found() -> None:
    assert any(f"{NAME}: shipped: done was nothing" in line for line in findings(Fate.SHIPPED, []))


def test_compensation_in_the_wrong_order_is_found() -> None:
    events = run(RESERVE, 0) + run(CHARGE, 10) + run(RELEASE, 20) + run(REFUND, 30)
    [trail, sequence] = findings(Fate.ADDRESS_UNKNOWN, events)
    assert "→ release-stock → refund-card where" in trail
    assert sequence == f"{NAME}: release-stock began before refund-card was done"


def test_handlers_that_overlap_although_one_follows_the_other_are_found() -> None:
    events = [*run(RESERVE, 0), *run(CHARGE, 10), *run(REFUND, 20), event(EventKind.BEGIN, RELEASE, 20)]
    events += [event(EventKind.DONE, RELEASE, 25), event(EventKind.END, RELEASE, 26)]
    assert findings(Fate.CARRIER_LATE, events) == [f"{NAME}: release-stock began before refund-card was done"]


def test_a_compensation_that_was_forgotten_is_found() -> None:
    events = run(RESERVE, 0) + run(CHARGE, 10) + run(REFUND, 20)
    assert any("done was" in line for line in findings(Fate.CARRIER_BROKEN, events))


def test_an_order_both_shipped_and_compensated_is_found() -> None:
    events = [*right_events(Fate.SHIPPED), *run(REFUND, 40), *run(RELEASE, 50)]
    assert any("ship → refund-card → release-stock where" in line for line in findings(Fate.SHIPPED, events))


def test_a_refund_of_a_card_that_was_never_charged_is_found() -> None:
    events = run(RESERVE, 0) + run(REFUND, 10) + run(RELEASE, 20)
    assert findings(Fate.CARD_DECLINED, events)


def test_one_lease_run_twice_is_found() -> None:
    events = [*right_events(Fate.SHIPPED), event(EventKind.BEGIN, SHIP, 40)]
    assert findings(Fate.SHIPPED, events) == [f"{NAME}: ship: fence 1 of task task-ship was run twice"]


def test_a_finished_step_leased_again_is_found() -> None:
    events = [*right_events(Fate.SHIPPED), event(EventKind.BEGIN, CHARGE, 24, fence=2)]
    [line] = findings(Fate.SHIPPED, events)
    assert line == f"{NAME}: charge-card was leased again (fence 2) although ship had begun"


def test_one_piece_of_work_given_out_as_two_tasks_is_found() -> None:
    second = [attrs.evolve(event(EventKind.BEGIN, SHIP, 40), task_id="task-other")]
    assert any("as 2 tasks" in line for line in findings(Fate.SHIPPED, right_events(Fate.SHIPPED) + second))


@pytest.mark.parametrize("starts", [0, 2])
def test_an_order_lost_or_started_twice_is_found(starts: int) -> None:
    lines = findings(Fate.SHIPPED, right_events(Fate.SHIPPED), starts=starts)
    assert lines == [f"{NAME}: started {starts} times"]


def test_an_instance_in_the_wrong_status_is_found() -> None:
    [line] = findings(Fate.SHIPPED, right_events(Fate.SHIPPED), status="FAILED")
    assert line == f"{NAME}: instance instance-0 is FAILED where COMPLETED (shipped) was due"


def test_work_that_is_missing_or_not_due_outside_is_found() -> None:
    keys = {f"{NAME}.{RESERVE}", f"{NAME}.{CHARGE}", f"{NAME}.{REFUND}"}
    lines = findings(Fate.SHIPPED, right_events(Fate.SHIPPED), outside=keys)
    assert lines == [f"{NAME}: ship is missing outside", f"{NAME}: refund-card was not due outside"]


def test_work_for_an_order_that_nobody_gave_is_found() -> None:
    stranger = [attrs.evolve(line, order="order-9999") for line in run(SHIP, 50)]
    lines = findings(Fate.SHIPPED, right_events(Fate.SHIPPED) + stranger)
    assert lines == ["order-9999: nobody ordered this"]


def test_a_run_repeated_after_a_crash_is_counted_and_no_finding() -> None:
    crashed = [event(EventKind.BEGIN, CHARGE, 5), event(EventKind.DONE, CHARGE, 6)]
    repeated = [
        event(EventKind.BEGIN, CHARGE, 10, fence=2, worker="worker-2"),
        event(EventKind.FOUND, CHARGE, 11, fence=2, worker="worker-2"),
        event(EventKind.END, CHARGE, 12, fence=2, worker="worker-2"),
    ]
    events = [*run(RESERVE, 0), *crashed, *repeated, *run(SHIP, 20)]
    assert findings(Fate.SHIPPED, events) == []
    assert count_repeated_runs(events) == 1


def test_work_done_by_a_worker_that_died_before_it_could_say_so_is_no_finding() -> None:
    repeated = [
        event(EventKind.BEGIN, CHARGE, 10, fence=2),
        event(EventKind.FOUND, CHARGE, 11, fence=2),
        event(EventKind.END, CHARGE, 12, fence=2),
    ]
    events = [*run(RESERVE, 0), event(EventKind.BEGIN, CHARGE, 5), *repeated, *run(SHIP, 20)]
    assert findings(Fate.SHIPPED, events) == []
