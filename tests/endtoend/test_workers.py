"""Worker processes against an engine process: crashes, cancellations, restarts, and what workers report meanwhile.

All tests share one engine and one database file; each has topics of its own.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.trio.client import ClientConnection, connect
from websockets.typing import Subprotocol

README = Path(__file__).parents[2] / "README.md"
PAYLOAD_BYTES_MAX = 1024 * 1024
FOREVER = {"hold": "never"}
LATE_REQUESTS: list[dict[str, object]] = [
    {"type": "complete", "variables": {"by": "silent"}},
    {"type": "fail", "message": "late"},
    {"type": "fail", "message": "late", "retries": 0},
    {"type": "bpmn_error", "code": "LATE"},
    {"type": "extend", "lock_duration_ms": 1000},
    {"type": "release", "started": True},
]
DECLINED_BOUNDARY = """
  <boundaryEvent id="caught" attachedToRef="task-0">
    <errorEventDefinition errorRef="declined" stellwerk:codeVariable="code" stellwerk:messageVariable="message"/>
  </boundaryEvent>
  <endEvent id="refused"/> <sequenceFlow id="out" sourceRef="caught" targetRef="refused"/>"""
TIMER_BOUNDARY = """
  <boundaryEvent id="late" attachedToRef="task-0">
    <timerEventDefinition><timeDuration>PT1S</timeDuration></timerEventDefinition>
  </boundaryEvent>
  <endEvent id="gave-up"/> <sequenceFlow id="out" sourceRef="late" targetRef="gave-up"/>"""


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory, engine_process: Any) -> Iterator[Any]:
    process = engine_process(tmp_path_factory.mktemp("engine"))
    process.start()
    yield process
    process.end()


@pytest.fixture
def engine(shared_engine: Any) -> Any:
    """Started again if the test before left it dead."""
    if shared_engine.process.poll() is not None:
        shared_engine.start()
    return shared_engine


def view_of(engine: Any, instance_id: str) -> Any:
    return engine.request("GET", f"/api/v1/process-instances/{instance_id}?history=true")


def completed(engine: Any, instance_id: str) -> Any:
    view = engine.wait(instance_id)
    assert view["status"] == "COMPLETED", view["incidents"]
    return view


def nodes_entered(view: Any) -> list[str]:
    return [event["payload"]["node_id"] for event in view["history"] if event["event_type"] == "TokenEntered"]


def kinds(worker: Any) -> set[str]:
    return {line["kind"] for line in worker.reports("error")}


def operations(worker: Any) -> set[str]:
    return {line["operation"] for line in worker.reports("heartbeat")}


# --- workers that die, hang or stop -------------------------------------------------------------------------------


def test_L7_a_killed_workers_task_goes_to_another_one(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("killed")
    first = workers.start({"killed": [FOREVER]}, lock_duration=1.0)
    instance_id = engine.start_instance("killed")
    engine.until(lambda: first.ledger("begin"))
    first.kill()
    second = workers.start({"killed": [{"return": {"by": "second"}}]})
    view = completed(engine, instance_id)
    assert view["variables"] == {"by": "second"}
    [task] = view["tasks"]
    assert task["retries_left"] == task["retries"]
    assert [attempt["end"] for attempt in task["attempts"]] == ["expired"]
    [before], [after] = first.ledger("begin"), second.ledger("begin")
    assert before["task"] == after["task"]
    assert before["fence"] < after["fence"]


@pytest.mark.parametrize("mode", ["thread", "trio"])
def test_worker_that_wakes_after_its_lock_cannot_overwrite_the_result(engine: Any, workers: Any, mode: str) -> None:
    topic = f"zombie-{mode}"
    engine.deploy_tasks(topic)
    zombie = workers.start({topic: [{**FOREVER, "return": {"by": "zombie"}}]}, lock_duration=1.0, mode=mode)
    instance_id = engine.start_instance(topic)
    engine.until(lambda: zombie.ledger("begin"))
    zombie.send(signal.SIGSTOP)
    workers.start({topic: [{"return": {"by": "second"}}]})
    view = completed(engine, instance_id)
    zombie.send(signal.SIGCONT)
    engine.until(lambda: zombie.ledger("cancelled"))
    engine.until(lambda: "extendLock" in kinds(zombie))
    engine.until(zombie.is_healthy)
    assert zombie.stop() == 0
    assert view_of(engine, instance_id) == view
    assert view["variables"] == {"by": "second"}
    assert view["tasks"][0]["retries_left"] == view["tasks"][0]["retries"]


async def test_fault_43_late_requests_are_refused_by_their_fence(engine: Any, workers: Any) -> None:
    """A worker of another make loses its connection, and comes back when its lease is gone."""
    engine.deploy_tasks("stale")
    instance_id = engine.start_instance("stale")
    async with dial(engine) as connection:
        await connection.send(json.dumps([hello(1), {"type": "subscribe", "topic": "stale", "lock_duration_ms": 1000}]))
        tasks = await message_of(connection, "tasks")
        await connection.send(json.dumps({"type": "received", "delivery": tasks["delivery"]}))
    lease = {"task_id": tasks["tasks"][0]["task_id"], "fence": tasks["tasks"][0]["fence"]}
    workers.start({"stale": [{"return": {"by": "second"}}]})
    view = await trio.to_thread.run_sync(completed, engine, instance_id)
    async with dial(engine) as connection:
        await connection.send(json.dumps(hello(2)))
        for ref, late in enumerate(LATE_REQUESTS):
            await connection.send(json.dumps({**late, **lease, "ref": ref}))
            nack = await message_of(connection, "nack")
            assert (nack["ref"], nack["code"], nack["retryable"]) == (ref, "lease_lost", False)
        await connection.send(json.dumps({"type": "complete", "ref": 9, "task_id": "unknown", "fence": 1}))
        assert (await message_of(connection, "nack"))["code"] == "not_found"
    assert view_of(engine, instance_id) == view
    assert view["variables"] == {"by": "second"}


def dial(engine: Any) -> Any:
    return connect(f"ws://127.0.0.1:{engine.port}/workers", subprotocols=[Subprotocol("stellwerk.v1")])


def hello(session_no: int) -> dict[str, object]:
    return {"type": "hello", "worker_id": "other", "boot_id": "b", "session_no": session_no, "client": "other"}


async def message_of(connection: ClientConnection, name: str) -> dict[str, Any]:
    with trio.fail_after(30):
        while True:
            frame = json.loads(await connection.recv())
            for message in frame if isinstance(frame, list) else [frame]:
                if message["type"] == name:
                    return dict(message)


@pytest.mark.parametrize("mode", ["thread", "trio", "asyncio"])
def test_fault_76_SIGTERM_hands_unfinished_tasks_to_others_at_once(engine: Any, workers: Any, mode: str) -> None:
    pytest.importorskip("trio_asyncio" if mode == "asyncio" else "trio")
    topic = f"terminated-{mode}"
    engine.deploy_tasks(topic)
    first = workers.start({topic: [{**FOREVER, "gives_up": True}]}, lock_duration=600.0, grace=0.0, mode=mode)
    instances = [engine.start_instance(topic) for _ in range(3)]
    engine.until(lambda: len(first.ledger("begin")) == 3)
    second = workers.start_connected({topic: [{"return": {"by": "second"}}]})
    assert first.stop() == 0
    views = [completed(engine, instance_id) for instance_id in instances]
    told_at = {line["task"]: line["at"] for line in first.ledger("cancelled")}
    assert len(told_at) == 3
    for line in second.ledger("begin"):
        assert line["at"] - told_at[line["task"]] < 1.0
    for view in views:
        [task] = view["tasks"]
        assert view["variables"] == {"by": "second"}
        assert task["retries_left"] == task["retries"]
        assert [attempt["end"] for attempt in task["attempts"]] == ["released"]


def test_fault_76_SIGTERM_takes_the_result_of_a_handler_that_ends_when_told_to(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("in-time")
    first = workers.start({"in-time": [{**FOREVER, "return": {"by": "first"}}]}, lock_duration=600.0, grace=0.0)
    instance_id = engine.start_instance("in-time")
    engine.until(lambda: first.ledger("begin"))
    assert first.stop() == 0
    view = completed(engine, instance_id)
    assert view["variables"] == {"by": "first"}
    assert view["tasks"][0]["attempts"] == []


def test_fault_76_SIGTERM_does_not_wait_for_a_handler_that_never_looks(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("deaf")
    first = workers.start({"deaf": [{"seconds": 600}]}, lock_duration=600.0, grace=0.0)
    instance_id = engine.start_instance("deaf")
    engine.until(lambda: first.ledger("begin"))
    workers.start_connected({"deaf": [{"return": {"by": "second"}}]})
    assert first.stop() == 0
    view = completed(engine, instance_id)
    assert view["variables"] == {"by": "second"}
    assert view["tasks"][0]["retries_left"] == view["tasks"][0]["retries"]


def test_fault_1_a_dead_idle_worker_gets_no_work(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("dead")
    roomy = workers.start_connected({"dead": [FOREVER]}, max_tasks=100, lock_duration=600.0)
    workers.start_connected({"dead": [{"return": {}}]}, lock_duration=600.0)
    roomy.kill()
    for view in [completed(engine, engine.start_instance("dead")) for _ in range(3)]:
        assert view["tasks"][0]["retries_left"] == view["tasks"][0]["retries"]


def test_SIGTERM_lets_handlers_finish_within_the_grace(engine: Any, workers: Any, tmp_path: Path) -> None:
    engine.deploy_tasks("graceful")
    gate = tmp_path / "gate"
    worker = workers.start({"graceful": [{"hold": str(gate), "return": {"done": True}}]}, grace=60.0)
    instance_id = engine.start_instance("graceful")
    engine.until(lambda: worker.ledger("begin"))
    worker.send(signal.SIGTERM)
    # From now on it takes nothing more; only then may the handler end.
    engine.until(lambda: "signal" in worker.log())
    waiting = engine.start_instance("graceful")
    gate.touch()
    assert worker.process.wait(timeout=30) == 0
    assert completed(engine, instance_id)["variables"] == {"done": True}
    assert view_of(engine, waiting)["tasks"][0]["state"] == "READY"
    assert len(worker.ledger("begin")) == 1


def test_L2_single_try_task_of_a_killed_worker_waits_for_an_operator(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("single", 'stellwerk:singleTry="true"')
    first = workers.start({"single": [FOREVER]}, lock_duration=1.0)
    instance_id = engine.start_instance("single")
    engine.until(lambda: first.ledger("begin"))
    first.kill()
    second = workers.start_connected({"single": [{"return": {"by": "second"}}]})
    view = engine.wait(instance_id)
    [incident] = view["incidents"]
    assert view["status"] == "RUNNING"
    assert view["tasks"][0]["state"] == "EXPIRED"
    assert second.ledger() == []
    engine.request("POST", f"/api/v1/incidents/{incident['incident_id']}/resolve", {})
    assert completed(engine, instance_id)["variables"] == {"by": "second"}
    assert len(second.ledger("begin")) == 1


def test_fault_19_worker_that_stopped_reading_gets_no_new_work(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("stalled")
    stalled = workers.start_connected({"stalled": [{"return": {}}]}, max_tasks=1000, lock_duration=12.0)
    live = workers.start_connected({"stalled": [{"return": {}}]}, max_tasks=20, lock_duration=12.0)
    stalled.send(signal.SIGSTOP)
    # It has the most room, so it is chosen until the engine notices.
    probes: list[str] = []

    def noticed() -> bool:
        probes.append(engine.start_instance("stalled"))
        return bool(live.ledger("begin"))

    engine.until(noticed, seconds=10)
    later = [engine.start_instance("stalled") for _ in range(10)]
    for view in [completed(engine, instance_id) for instance_id in later]:
        assert view["tasks"][0]["attempts"] == []
    for view in [completed(engine, instance_id) for instance_id in probes]:
        [task] = view["tasks"]
        assert [attempt["end"] for attempt in task["attempts"]] in ([], ["released"])
        assert task["retries_left"] == task["retries"]
    assert stalled.ledger() == []
    stalled.send(signal.SIGCONT)
    live.kill()
    completed(engine, engine.start_instance("stalled"))  # it is trusted again


# --- cancellation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["thread", "trio", "asyncio"])
def test_fault_70_cancelled_instance_cancels_its_handler(engine: Any, workers: Any, mode: str) -> None:
    pytest.importorskip("trio_asyncio" if mode == "asyncio" else "trio")
    topic = f"revoked-{mode}"
    engine.deploy_tasks(topic)
    cases = [{"when": ["hold", True], **FOREVER, "return": {"late": True}}, {"return": {"next": True}}]
    worker = workers.start({topic: cases}, lock_duration=600.0, max_tasks=1, mode=mode)
    instance_id = engine.start_instance(topic, {"hold": True})
    engine.until(lambda: worker.ledger("begin"))
    engine.request("POST", f"/api/v1/process-instances/{instance_id}/cancel", {"reason": "not wanted"})
    engine.until(lambda: worker.ledger("cancelled"), seconds=5)
    # The place is free again, and the late result is nowhere.
    assert completed(engine, engine.start_instance(topic))["variables"] == {"next": True}
    view = view_of(engine, instance_id)
    assert view["status"] == "CANCELLED"
    assert view["variables"] == {"hold": True}
    assert view["tasks"][0]["state"] == "CANCELLED"
    assert worker.reports("error") == []


def test_fault_70_interrupting_timer_cancels_the_handler(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("timed", more=TIMER_BOUNDARY)
    worker = workers.start({"timed": [FOREVER]}, lock_duration=600.0, mode="trio")
    instance_id = engine.start_instance("timed")
    view = completed(engine, instance_id)
    assert nodes_entered(view)[-1] == "gave-up"
    engine.until(lambda: worker.ledger("cancelled"), seconds=5)
    assert worker.ledger("end") == []


# --- the SDK ------------------------------------------------------------------------------------------------------


def test_W3_the_readmes_worker(engine: Any, workers: Any) -> None:
    text = README.read_text("utf-8")
    model = next(block for block in re.findall(r"```xml\n(.*?)```", text, re.DOTALL) if "greeting" in block)
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if '"greet"' in block)
    assert len([line for line in code.splitlines() if line]) <= 10
    engine.deploy_xml("greeting.bpmn", model)
    worker = workers.run_module("greeter", code)
    view = completed(engine, engine.start_instance("greeting", {"name": "Ada"}))
    assert view["variables"]["greeting"].startswith("Hello, Ada! (attempt 1, fence ")
    assert worker.stop() == 0


TYPED_WORKER = """
import dataclasses, datetime, decimal, attrs
from stellwerk.worker import Worker
worker = Worker()
@attrs.frozen
class Receipt:
    total: decimal.Decimal
    due: datetime.date
@dataclasses.dataclass
class Order:
    prices: list[decimal.Decimal]
    ordered: datetime.date
@worker.task("typed")
async def bill(order: Order) -> Receipt:
    return Receipt(sum(order.prices), order.ordered + datetime.timedelta(days=14))
"""


def test_W3_typed_payload_and_result(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("typed", 'stellwerk:retries="1"')
    workers.run_module("typed", TYPED_WORKER)
    order = {"prices": ["0.10", "0.20"], "ordered": "2024-02-20"}
    view = completed(engine, engine.start_instance("typed", order))
    assert view["variables"] == {**order, "total": "0.30", "due": "2024-03-05"}
    view = engine.wait(engine.start_instance("typed", {**order, "ordered": 20}))
    assert "$.ordered" in view["incidents"][0]["message"]


def test_W11_several_topics_in_one_worker(engine: Any, workers: Any) -> None:
    topics = ("several-1", "several-2", "several-3")
    engine.deploy_tasks("several", topics=topics)
    worker = workers.start({topic: [{"return": {topic: True}}] for topic in topics}, mode="trio")
    view = completed(engine, engine.start_instance("several"))
    assert view["variables"] == dict.fromkeys(topics, True)
    assert [line["topic"] for line in worker.ledger("begin")] == list(topics)


def test_W2_handler_longer_than_its_lock_is_renewed_and_runs_once(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("long")
    workers_of_it = [workers.start({"long": [{"seconds": 3.2, "return": {}}]}, lock_duration=1.0) for _ in range(2)]
    view = completed(engine, engine.start_instance("long"))
    assert sum(len(worker.ledger("begin")) for worker in workers_of_it) == 1
    assert view["tasks"][0]["attempts"] == []
    [runner] = [worker for worker in workers_of_it if worker.ledger()]
    assert "extendLock" in operations(runner)
    assert runner.reports("error") == []


def test_W6_bpmn_error_goes_to_its_boundary_with_code_message_and_details(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("refusing", more=DECLINED_BOUNDARY)
    details = {"bank": "b-1", "codes": [51, 5]}
    workers.start({"refusing": [{"error": ["DECLINED", "no funds", details]}]})
    view = completed(engine, engine.start_instance("refusing"))
    assert nodes_entered(view)[-1] == "refused"
    assert view["variables"] == {"code": "DECLINED", "message": "no funds"}
    [task] = view["tasks"]
    [attempt] = task["attempts"]
    assert attempt["end"] == "bpmn_error"
    assert attempt["details"] == details
    assert task["retries_left"] == task["retries"]


def test_W7_W9_what_a_worker_calls_back(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("calling", 'stellwerk:retryBackoff="PT0S"', more=DECLINED_BOUNDARY)
    cases: list[dict[str, object]] = [
        {"when": ["case", "fails"], "fail": 1, "return": {}},
        {"when": ["case", "declines"], "error": ["DECLINED"]},
        {"when": ["case", "too large"], "return_chars": PAYLOAD_BYTES_MAX},
        {"return": {}},
    ]
    worker = workers.start({"calling": cases}, lock_duration=3.0)
    for case in ("fails", "declines", "fine"):
        completed(engine, engine.start_instance("calling", {"case": case}))
    view = engine.wait(engine.start_instance("calling", {"case": "too large"}))
    assert f"at most {PAYLOAD_BYTES_MAX}" in view["incidents"][0]["message"]
    assert kinds(worker) == {"processExternalTask", "finishExternalTask"}
    engine.until(
        lambda: operations(worker) == {"fetchAndLock", "processExternalTask", "finishExternalTask", "handleError"}
    )
    task_id = view["tasks"][0]["task_id"]
    assert {line["operation"] for line in worker.reports("heartbeat") if line["task"] == task_id} == {
        "processExternalTask",
        "handleError",
    }
    assert len([line for line in worker.reports("error") if line["task"] == task_id]) == 3


# --- the engine goes away -----------------------------------------------------------------------------------------


def test_fault_26_W8_worker_goes_on_after_the_engine_was_away(engine: Any, workers: Any, tmp_path: Path) -> None:
    engine.deploy_tasks("away")
    gate = tmp_path / "gate"
    cases = [{"when": ["hold", True], "hold": str(gate), "return": {"held": True}}, {"return": {}}]
    worker = workers.start_connected({"away": cases}, lock_duration=60.0)
    instance_id = engine.start_instance("away", {"hold": True})
    engine.until(lambda: worker.ledger("begin"))
    engine.kill()
    engine.until(lambda: not worker.is_healthy())
    # More than five refused connections: an engine that is away is no reason to give up.
    engine.until(lambda: len(worker.reports("error")) > 5)
    gate.touch()
    engine.until(lambda: worker.ledger("end"))  # the result waits for the engine
    engine.start()
    engine.until(worker.is_healthy)
    view = completed(engine, instance_id)
    assert view["variables"] == {"hold": True, "held": True}
    assert view["tasks"][0]["attempts"] == []
    completed(engine, engine.start_instance("away"))
    assert kinds(worker) == {"fetchAndLock"}
    assert all(line["critical"] == 0 for line in worker.reports("health"))
    assert len(worker.ledger("begin")) == 2


def test_rolling_restart_keeps_leases_and_runs_nothing_twice(engine: Any, workers: Any, tmp_path: Path) -> None:
    engine.deploy_tasks("rolling")
    gate = tmp_path / "gate"
    started = [
        workers.start_connected({"rolling": [{"hold": str(gate), "return": {}}]}, lock_duration=60.0, mode=mode)
        for mode in ("thread", "trio")
    ]
    instances = [engine.start_instance("rolling") for _ in range(10)]
    engine.until(lambda: sum(len(worker.ledger("begin")) for worker in started) == 10)
    before = time.monotonic()
    assert engine.stop() == 0
    assert time.monotonic() - before < 5.0
    engine.start()
    more = [engine.start_instance("rolling") for _ in range(3)]
    for worker in started:
        engine.until(worker.is_healthy)
        assert "the engine asks to connect elsewhere" in worker.log()
    gate.touch()
    views = [completed(engine, instance_id) for instance_id in instances + more]
    runs = {(line["task"], line["fence"]) for worker in started for line in worker.ledger("begin")}
    assert sum(len(worker.ledger("begin")) for worker in started) == 13
    assert runs == {(view["tasks"][0]["task_id"], view["tasks"][0]["fence"]) for view in views}
    assert all(view["tasks"][0]["attempts"] == [] for view in views)
    assert {kind for worker in started for kind in kinds(worker)} <= {"fetchAndLock"}


def test_results_are_taken_while_the_engine_drains(engine: Any, workers: Any, tmp_path: Path) -> None:
    engine.deploy_tasks("draining")
    gate = tmp_path / "gate"
    worker = workers.start({"draining": [{"hold": str(gate), "return": {"done": True}}]}, lock_duration=60.0)
    instance_id = engine.start_instance("draining")
    engine.until(lambda: worker.ledger("begin"))
    engine.process.send_signal(signal.SIGTERM)
    engine.until(lambda: "the engine asks to connect elsewhere" in worker.log())
    gate.touch()
    acknowledged = {"event": "heartbeat", "operation": "finishExternalTask", "task": worker.ledger()[0]["task"]}
    assert engine.process.wait(timeout=30) == 0
    engine.until(lambda: acknowledged in worker.reports("heartbeat"), seconds=1)
    engine.start()
    assert completed(engine, instance_id)["variables"] == {"done": True}
    assert len(worker.ledger("begin")) == 1


def test_worker_gives_up_by_itself_while_the_engine_hangs(engine: Any, workers: Any, tmp_path: Path) -> None:
    engine.deploy_tasks("hanging")
    gate = tmp_path / "gate"
    case = {"hold": str(gate), "return": {"done": True}}
    worker = workers.start_connected({"hanging": [case]}, lock_duration=2.0, mode="trio")
    instance_id = engine.start_instance("hanging")
    engine.until(lambda: worker.ledger("begin"))
    engine.process.send_signal(signal.SIGSTOP)
    try:
        engine.until(lambda: worker.ledger("cancelled") and not worker.is_healthy())
    finally:
        engine.process.send_signal(signal.SIGCONT)
    gate.touch()
    view = completed(engine, instance_id)
    assert [line["event"] for line in worker.ledger()] == ["begin", "cancelled", "begin", "end"]
    first, second = worker.ledger("begin")
    assert first["fence"] < second["fence"]
    assert view["tasks"][0]["retries_left"] == view["tasks"][0]["retries"]
    assert {"extendLock", "fetchAndLock"} == kinds(worker)


def test_second_engine_on_the_same_file_is_refused(engine: Any) -> None:
    command = [sys.executable, "-m", "stellwerk", "serve", "--db", str(engine.database), "--port", "0"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 2
    assert second.stdout == ""
    [line] = second.stderr.splitlines()
    assert f"is in use by another process (pid {engine.process.pid})" in line


# --- large payloads -----------------------------------------------------------------------------------------------


def payload_of(size: int, text: str = "x") -> dict[str, object]:
    """Variables that have exactly this many bytes of compact JSON."""
    empty = len(json.dumps({"text": "", "more": ""}, separators=(",", ":")))
    unit = len(json.dumps(text, ensure_ascii=False).encode()) - 2
    count, rest = divmod(size - empty, unit)
    return {"text": text * count, "more": "x" * rest}


@pytest.mark.parametrize("text", ["x", '"', "é", "\u2028", "\n"], ids=["plain", "quotes", "accents", "lines", "breaks"])
def test_fault_16_the_largest_payload_is_delivered_and_completed(engine: Any, workers: Any, text: str) -> None:
    engine.deploy_tasks("largest")
    too_large = payload_of(PAYLOAD_BYTES_MAX + 1, text)
    # Sent as Python sends it: every character beyond ASCII is an escape, which must not count.
    status, answer = engine.ask(
        "POST", "/api/v1/process-instances", {"process_def_id": "largest", "variables": too_large}
    )
    assert (status, answer["code"]) == (413, "too_large")
    assert f"at most {PAYLOAD_BYTES_MAX}" in answer["detail"]
    instance_id = engine.start_instance("largest", payload_of(PAYLOAD_BYTES_MAX, text))
    chars = PAYLOAD_BYTES_MAX - len('{"text":""}')
    worker = workers.start({"largest": [{"return_chars": chars}]})
    view = completed(engine, instance_id)
    assert len(view["variables"]["text"]) == chars
    assert view["tasks"][0]["attempts"] == []
    assert worker.reports("error") == []


@pytest.mark.parametrize("topic_count", [1, 6])
@pytest.mark.parametrize("worker_is_first", [True, False])
def test_fault_14_more_large_tasks_than_fit_the_connection(
    engine: Any, workers: Any, topic_count: int, worker_is_first: bool
) -> None:
    """24 MiB at once for a worker with room for all of them: they go in turns, and each runs once."""
    topics = [f"large-{topic_count}-{worker_is_first}-{number}" for number in range(topic_count)]
    for topic in topics:
        engine.deploy_tasks(topic)

    def start_worker() -> Any:
        return workers.start_connected({topic: [{"return": {"done": True}}] for topic in topics}, max_tasks=100)

    def start_instance(number: int) -> str:
        return str(engine.start_instance(topics[number % topic_count], payload_of(PAYLOAD_BYTES_MAX)))

    worker = start_worker() if worker_is_first else None
    with ThreadPoolExecutor(8) as clients:
        instances = list(clients.map(start_instance, range(24)))
    worker = worker or start_worker()
    for view in [completed(engine, instance_id) for instance_id in instances]:
        assert view["tasks"][0]["retries_left"] == view["tasks"][0]["retries"]
    assert len(worker.ledger("begin")) == len(instances)
    assert worker.reports("error") == []


def test_fault_17_task_that_fits_no_frame_is_an_incident_and_blocks_nobody(engine: Any, workers: Any) -> None:
    """Each result is small enough, all variables together are not."""
    topics = tuple(f"growing-{number}" for number in range(6))
    results = {topic: [{"return": {topic: "x" * 900_000}}] for topic in topics}
    engine.deploy_tasks("growing", topics=topics)
    engine.deploy_tasks("growing-4")
    workers.start(results)
    instance_id = engine.start_instance("growing")
    [incident] = engine.wait(instance_id)["incidents"]
    assert "a frame has at most" in incident["message"]
    completed(engine, engine.start_instance("growing-4"))
    engine.request("POST", f"/api/v1/incidents/{incident['incident_id']}/resolve", {})
    [again] = engine.wait(instance_id)["incidents"]
    assert again["incident_id"] != incident["incident_id"]
    assert again["message"] == incident["message"]


# --- sharing ------------------------------------------------------------------------------------------------------


def test_two_workers_share_200_tasks(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("shared")
    pair = [workers.start_connected({"shared": [{"seconds": 0.01, "return": {}}]}) for _ in range(2)]
    instances = [engine.start_instance("shared", {"n": n}) for n in range(200)]
    for instance_id in instances:
        completed(engine, instance_id)
    runs = Counter(line["instance"] for worker in pair for line in worker.ledger("begin"))
    assert runs == Counter(instances)
    assert all(len(worker.ledger("begin")) > 20 for worker in pair)


def test_fault_47_two_processes_with_one_worker_id(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("namesake")
    cases: list[dict[str, object]] = [{"when": ["hold", True], **FOREVER}, {"return": {}}]
    pair = [
        workers.start_connected({"namesake": cases}, worker_id="namesake", max_tasks=1, lock_duration=1.0)
        for _ in range(2)
    ]
    held = engine.start_instance("namesake", {"hold": True})
    engine.until(lambda: any(worker.ledger("begin") for worker in pair))
    [holder] = [worker for worker in pair if worker.ledger("begin")]
    for _ in range(5):
        completed(engine, engine.start_instance("namesake"))
    assert len(holder.ledger("begin")) == 1
    holder.kill()
    [other] = [worker for worker in pair if worker is not holder]
    engine.until(lambda: held in [line["instance"] for line in other.ledger("begin")])
    assert [attempt["end"] for attempt in view_of(engine, held)["tasks"][0]["attempts"]] == ["expired"]


def test_tasks_are_handed_out_by_priority_then_age(engine: Any, workers: Any) -> None:
    engine.deploy_tasks("urgent", 'stellwerk:priority="=urgency"')
    urgencies = [1, 5, 0, 5, 9, -1, 1]
    for number, urgency in enumerate(urgencies):
        engine.start_instance("urgent", {"urgency": urgency, "number": number})
    worker = workers.start({"urgent": [{"return": {}}]}, max_tasks=1)
    engine.until(lambda: len(worker.ledger("end")) == len(urgencies))
    order = [line["variables"]["number"] for line in worker.ledger("begin")]
    assert order == sorted(range(len(urgencies)), key=lambda number: (-urgencies[number], number))
