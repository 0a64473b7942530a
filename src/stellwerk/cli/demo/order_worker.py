"""One worker process of the demo: ``python -m stellwerk.cli.demo.order_worker URL DIRECTORY NAME``.

Its handlers look like a real worker's: each call to the world outside carries the order's number as idempotency key,
and business errors are told apart from technical ones. Around that they keep the ledger.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from stellwerk.cli.demo.ledger import EventKind, Ledger, Outside
from stellwerk.cli.demo.orders import CHARGE, REFUND, RELEASE, RESERVE, SHIP, Order
from stellwerk.worker import BpmnError, Operation, Task, Worker

__all__ = ["OrderDesk", "main", "make_worker"]

MAX_TASKS = 4
LOCK_SECONDS = 2.0
"""Short, so that the tasks of a killed worker come back quickly."""
WORK_SECONDS = 0.03
"""How long an ordinary piece of work takes."""
GRACE_SECONDS = 1.0
"""On SIGTERM running handlers have so long."""
LOOK_SECONDS = 0.05
"""How often a slow handler in a thread looks whether it still holds its lease."""


class LeaseGone(Exception):
    """The handler noticed that its lease was revoked, and gives up."""


class OrderDesk:
    """Does the pieces of work, and writes down what it does."""

    def __init__(self, directory: Path, name: str) -> None:
        self._name = name
        self._ledger = Ledger(directory / "ledgers", name)
        self._outside = Outside(directory / "outside")
        self._mishaps = Outside(directory / "mishaps")

    def reserve_stock(self, order: Order, task: Task) -> dict[str, str]:
        return self._work_in_thread(RESERVE, order, task, {"reservation": f"reservation of {order.order}"})

    def charge_card(self, order: Order, task: Task) -> dict[str, str]:
        return self._work_in_thread(CHARGE, order, task, {"receipt": f"receipt of {order.order}"})

    def refund_card(self, order: Order, task: Task) -> dict[str, str]:
        return self._work_in_thread(REFUND, order, task, {})

    def release_stock(self, order: Order, task: Task) -> dict[str, str]:
        return self._work_in_thread(RELEASE, order, task, {})

    async def ship(self, order: Order, task: Task) -> dict[str, str]:
        with self._run(SHIP, order, task):
            await trio.sleep(order.seconds.get(SHIP, WORK_SECONDS))
            if order.address == "unknown":
                raise BpmnError("ADDRESS_UNKNOWN", f"nobody knows the address of {order.order}")
            self._do(SHIP, order, task)
            return {"parcel": f"parcel of {order.order}"}

    def write_renewal(self, task_id: str) -> None:
        self._ledger.write(EventKind.RENEWED, task_id=task_id)

    def _work_in_thread(self, topic: str, order: Order, task: Task, result: dict[str, str]) -> dict[str, str]:
        with self._run(topic, order, task):
            _take_time(order.seconds.get(topic, WORK_SECONDS), task)
            if topic == CHARGE and order.card == "declined":
                raise BpmnError("CARD_DECLINED", f"the bank declines the card of {order.order}")
            self._do(topic, order, task)
            return result

    @contextmanager
    def _run(self, topic: str, order: Order, task: Task) -> Iterator[None]:
        """Frame of a handler run in the ledger."""
        self._write(EventKind.BEGIN, topic, order, task)
        try:
            yield
        except BpmnError:
            self._write(EventKind.BUSINESS_ERROR, topic, order, task)
            raise
        except (LeaseGone, trio.Cancelled):
            self._write(EventKind.ABORTED, topic, order, task)
            raise
        except Exception:
            self._write(EventKind.TECHNICAL_ERROR, topic, order, task)
            raise
        self._write(EventKind.END, topic, order, task)

    def _do(self, topic: str, order: Order, task: Task) -> None:
        """The effect in the world outside, with the technical failures that the order is to meet."""
        self._fail_up_to("before", topic, order, order.failures_before.get(topic, 0))
        first = self._outside.do_once(f"{order.order}.{topic}", self._name)
        self._write(EventKind.DONE if first else EventKind.FOUND, topic, order, task)
        self._fail_up_to("after", topic, order, order.failures_after.get(topic, 0))

    def _fail_up_to(self, when: str, topic: str, order: Order, times: int) -> None:
        for number in range(times):
            if self._mishaps.do_once(f"{order.order}.{topic}.{when}-{number}", self._name):
                raise ConnectionError(f"{topic} of {order.order}: the line broke {when} the work (no. {number + 1})")

    def _write(self, kind: EventKind, topic: str, order: Order, task: Task) -> None:
        self._ledger.write(
            kind, topic=topic, order=order.order, task_id=task.id, fence=task.fence, attempt=task.attempt
        )


def _take_time(seconds: float, task: Task) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, LOOK_SECONDS))
        if task.cancelled:
            raise LeaseGone(f"task {task.id}")


def make_worker(url: str, directory: Path, name: str) -> Worker:
    worker = Worker(url, worker_id=name, lock_duration=LOCK_SECONDS)
    desk = OrderDesk(directory, name)
    handlers = {
        RESERVE: desk.reserve_stock,
        CHARGE: desk.charge_card,
        SHIP: desk.ship,
        REFUND: desk.refund_card,
        RELEASE: desk.release_stock,
    }
    for topic, handler in handlers.items():
        worker.task(topic, max_tasks=MAX_TASKS)(handler)

    @worker.on_heartbeat
    def note_renewal(operation: Operation, task_id: str | None) -> None:
        if operation is Operation.EXTEND_LOCK and task_id is not None:
            desk.write_renewal(task_id)

    return worker


def main() -> None:
    url, directory, name = sys.argv[1:]
    make_worker(url, Path(directory), name).run(grace=GRACE_SECONDS)


if __name__ == "__main__":
    main()
