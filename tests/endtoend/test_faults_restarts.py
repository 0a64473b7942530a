"""Workers that come and go in the middle of their work, and workers beside each other on one file."""

from __future__ import annotations

from collections import Counter
from typing import Any

LOCK_SECONDS = 600.0
"""Much longer than a test may take: whatever waited for a lock to run out would not be done in time."""
TASKS = 100
RESTARTS = 3


def test_fault_5_a_worker_that_is_restarted_under_load_loses_no_task(engine: Any, workers: Any) -> None:
    """Each time it is stopped with its slots full, a part of them in handlers that do not end by themselves."""
    engine.deploy_tasks("stream")
    instances = [engine.start_instance("stream", {"slow": number % 4 == 0}) for number in range(TASKS)]
    started = []
    for number in range(RESTARTS):
        cases = [{"when": ["slow", True], "hold": "never", "gives_up": True}, {"return": {"by": number}}]
        worker = workers.start({"stream": cases}, lock_duration=LOCK_SECONDS, max_tasks=8, grace=0.0)
        started.append(worker)
        engine.until(lambda worker=worker: len(worker.ledger("begin")) - len(worker.ledger("end")) >= 8)
        assert worker.stop() == 0
    last = workers.start({"stream": [{"return": {"by": "last"}}]}, lock_duration=LOCK_SECONDS)
    views = [engine.wait(instance_id) for instance_id in instances]
    assert Counter(view["status"] for view in views) == {"COMPLETED": TASKS}
    ends = Counter(attempt["end"] for view in views for attempt in view["tasks"][0]["attempts"])
    assert set(ends) == {"released"}
    assert ends["released"] >= RESTARTS
    assert all(view["tasks"][0]["retries_left"] == view["tasks"][0]["retries"] for view in views)
    finished = Counter(line["task"] for worker in (*started, last) for line in worker.ledger("end"))
    assert len(finished) == TASKS


def test_fault_41_two_workers_on_a_file_work_at_the_same_time(engine: Any, workers: Any) -> None:
    """Each has room for one task. Neither ends before the other one has begun."""
    engine.deploy_tasks("parallel")
    instances = [engine.start_instance("parallel") for _ in range(2)]
    cases = [{"hold": "go-on", "return": {}}]
    both = [workers.start({"parallel": cases}, max_tasks=1, worker_id=f"worker-{number}") for number in range(2)]
    engine.until(lambda: all(len(worker.ledger("begin")) == 1 for worker in both))
    assert engine.dsn is None, "this is about SQLite"
    assert [worker.ledger("end") for worker in both] == [[], []]
    (workers.folder / "go-on").touch()
    assert {engine.wait(instance_id)["status"] for instance_id in instances} == {"COMPLETED"}
    assert {line["task"] for worker in both for line in worker.ledger("end")} == {
        line["task"] for worker in both for line in worker.ledger("begin")
    }
