"""The demo's orders follow from their seed, its ledgers survive a kill, and its world outside does nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from stellwerk.cli.demo.ledger import EventKind, Ledger, Outside, open_runs, read_ledgers
from stellwerk.cli.demo.orders import CHARGE, RESERVE, Fate, make_orders


def test_the_same_seed_gives_the_same_orders() -> None:
    assert make_orders(200, seed=7) == make_orders(200, seed=7)
    assert make_orders(200, seed=7) != make_orders(200, seed=8)


def test_two_hundred_orders_have_every_fate_and_both_kinds_of_technical_failure() -> None:
    plan = make_orders(200, seed=1)
    assert {planned.fate for planned in plan} == set(Fate)
    assert any(planned.order.failures_before for planned in plan if planned.fate is not Fate.CARRIER_BROKEN)
    assert any(planned.order.failures_after for planned in plan)
    assert any(planned.order.seconds for planned in plan if planned.fate is Fate.SHIPPED)
    assert len({planned.order.order for planned in plan}) == 200


@pytest.mark.parametrize("seed", range(20))
def test_no_failure_of_a_healthy_order_outlasts_its_retries(seed: int) -> None:
    for planned in make_orders(100, seed):
        counts = {**planned.order.failures_before, **planned.order.failures_after}
        if planned.fate is not Fate.CARRIER_BROKEN:
            assert all(count < 3 for count in counts.values())


def test_ledgers_of_all_workers_are_read_in_order_of_time(tmp_path: Path) -> None:
    one, two = Ledger(tmp_path, "worker-1"), Ledger(tmp_path, "worker-2")
    one.write(EventKind.BEGIN, topic=RESERVE, order="order-0001", task_id="t1", fence=4, attempt=1)
    two.write(EventKind.BEGIN, topic=CHARGE, order="order-0002", task_id="t2", fence=5, attempt=1)
    one.write(EventKind.END, topic=RESERVE, order="order-0001", task_id="t1", fence=4, attempt=1)
    one.close()
    two.close()
    events = read_ledgers(tmp_path)
    assert [(event.worker, event.kind) for event in events] == [
        ("worker-1", EventKind.BEGIN),
        ("worker-2", EventKind.BEGIN),
        ("worker-1", EventKind.END),
    ]
    assert open_runs(events, "worker-1") == set()
    assert open_runs(events, "worker-2") == {("t2", 5)}


def test_a_line_cut_off_by_a_kill_is_skipped(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "worker-1")
    ledger.write(EventKind.BEGIN, topic=RESERVE, order="order-0001", task_id="t1", fence=1, attempt=1)
    ledger.close()
    with (tmp_path / "worker-1.jsonl").open("ab") as file:
        file.write(b'{"at_ns": 12, "work')
    assert [event.kind for event in read_ledgers(tmp_path)] == [EventKind.BEGIN]


def test_the_world_outside_does_nothing_twice(tmp_path: Path) -> None:
    outside = Outside(tmp_path)
    assert outside.do_once("order-0001.ship", "worker-1")
    assert not outside.do_once("order-0001.ship", "worker-2")
    assert outside.keys() == {"order-0001.ship"}
    assert (tmp_path / "order-0001.ship").read_text() == "worker-1"
