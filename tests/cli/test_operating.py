"""Looking at a running engine and operating it: lists, bulk retries, the past, pruning, backups."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SERVICE = '<serviceTask id="step" stellwerk:topic="{key}"/>'
ONE_TRY = '<serviceTask id="step" stellwerk:topic="{key}" stellwerk:retries="1"/>'
TWO_TRIES = '<serviceTask id="step" stellwerk:topic="{key}" stellwerk:retries="2" stellwerk:retryBackoff="PT0S"/>'
RECEIVE = """<receiveTask id="step" messageRef="m" stellwerk:correlationKey="=order"/>"""
STUCK = """
<subProcess id="step">
  <startEvent id="i"/><sequenceFlow id="i1" sourceRef="i" targetRef="choice"/>
  <exclusiveGateway id="choice"/>
  <sequenceFlow id="i2" sourceRef="choice" targetRef="j"><conditionExpression>=amount &gt; 0</conditionExpression>
  </sequenceFlow>
  <endEvent id="j"/>
</subProcess>
"""
NOTHING = '<exclusiveGateway id="step"/>'
USER = '<userTask id="step"/>'


# --- lists -----------------------------------------------------------------------------------------------------------


def test_instances_are_found_by_what_they_are(ask: Run, deployed: Run, model: Run) -> None:
    key = deployed(NOTHING)
    assert ask("deploy", model(SERVICE)).exit_code == 0
    ended = ask("start", key, "--version", "1", "--business-key", f"{key}-A").out.strip()
    running = ask("start", key, "--business-key", f"{key}-B").out.strip()

    def found(*filters: str) -> list[str]:
        answer = ask("instances", "--json", *filters)
        assert (answer.exit_code, answer.err) == (0, ""), answer
        return [row["instance_id"] for row in json.loads(answer.out)]

    of_process = ("--process", key)
    assert found(*of_process) == [running, ended]
    assert found(*of_process, "--version", "2") == [running]
    assert found(*of_process, "--status", "completed") == [ended]
    assert found("--business-key", f"{key}-B") == [running]
    assert found(*of_process, "--since", "1h") == [running, ended]
    assert found(*of_process, "--since", "1h", "--before", "30min") == []
    assert found(*of_process, "--before", "2020-01-31") == []
    assert found(*of_process, "--since", "2020-01-31T12:00:00+02:00") == [running, ended]
    assert found(*of_process, "--no-incident") == [running, ended]
    assert found(*of_process, "--incident") == []


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["instances", "--since", "soon"], "--since soon: a time like 2026-01-31T12:00:00Z"),
        (["instances", "--before", "2026-02-30"], "--before 2026-02-30: a time like"),
        (["instances", "--version", "1"], "--version: of which process?"),
        (["instances", "--status", "happy"], "happy"),
        (
            ["prune", "--older-than", "30"],
            "--older-than 30: a number with its unit is expected: 90s, 15min, 12h, 30d or 4w",
        ),
        (
            ["prune", "--older-than", "1m"],
            "--older-than 1m: m could be minutes or months; write 1min, or days like 30d",
        ),
        (["instances", "--since", "15m"], "--since 15m: m could be minutes or months; write 15min"),
        (["prune", "--older-than", "6000w"], "--older-than 6000w: at most 100 years"),
        (["prune"], "--older-than"),
        (["retry"], "which incidents?"),
        (["cancel"], "which instance?"),
        (["tasks", "--state", "lost"], "lost"),
        (["backup", "nowhere/copy.db"], "nowhere/copy.db: No such file or directory"),
        (["backup", "."], "is a directory"),
        (["replay", "x", "--at", "soon"], "soon"),
    ],
)
def test_mistake_is_one_clear_line_and_exit_code_2(ask: Run, arguments: list[str], what: str) -> None:
    ended = ask(*arguments)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert what in ended.err


def test_states_may_be_written_as_they_are_shown(ask: Run, deployed: Run) -> None:
    key = deployed(SERVICE)
    instance_id = ask("start", key).out.strip()
    for status in ("RUNNING", "Running", "running"):
        (row,) = json.loads(ask("instances", "--process", key, "--status", status, "--json").out)
        assert row["instance_id"] == instance_id
    (task,) = json.loads(ask("tasks", "--topic", key, "--state", "READY", "--json").out)
    assert task["instance_id"] == instance_id


def test_instance_with_an_incident_is_marked_in_the_list(ask: Run, deployed: Run) -> None:
    key = deployed(STUCK)
    ask("start", key)
    ask("start", key, "--variables", '{"amount": 1}')
    stuck, ended = reversed(json.loads(ask("instances", "--process", key, "--json").out))
    assert ((stuck["status"], stuck["incidents"]), (ended["status"], ended["incidents"])) == (
        ("RUNNING", 1),
        ("COMPLETED", 0),
    )
    shown = ask("instances", "--process", key).out
    assert shown.count("RUNNING, 1 incident") == 1
    assert "COMPLETED, " not in shown


@pytest.mark.parametrize(
    "arguments, note",
    [
        (["instances", "--process", "{like}"], 'no process "{like}" is deployed; like it: {key}'),
        (["instances", "--process", "{key}", "--version", "7"], 'process "{key}" has no version 7; its versions: 1'),
        (["incidents", "--process", "{like}"], 'no process "{like}" is deployed; like it: {key}'),
        (
            ["incidents", "--kind", "retry_exhausted"],
            'no incident is of a kind "retry_exhausted"; like it: retries_exh',
        ),
        (["incidents", "--kind", "foo"], 'no incident is of a kind "foo"; there are: retries_exhausted, bpmn_error, '),
        (["retry", "--process", "{like}"], 'no process "{like}" is deployed; like it: {key}'),
        (
            ["retry", "--topic", "{like}"],
            'no topic "{like}" is known (nothing waits on it, nobody is connected for it,',
        ),
        (["tasks", "--topic", "{like}"], "no model names it); like it: {key}"),
    ],
)
def test_filter_that_names_what_is_unknown_says_so(ask: Run, deployed: Run, arguments: list[str], note: str) -> None:
    """An empty list alone looks like good news."""
    key = deployed(SERVICE)
    names = {"key": key, "like": f"{key}x"}
    ended = ask(*(argument.format(**names) for argument in arguments))
    assert ended.exit_code == 0, ended
    assert note.format(**names) in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["instances", "--process", "{key}"],
        ["incidents", "--process", "{key}", "--kind", "Bpmn-Error"],
        ["retry", "--topic", "{key}"],
        ["tasks", "--topic", "{key}"],
    ],
)
def test_filter_that_names_what_is_there_is_silently_empty(ask: Run, deployed: Run, arguments: list[str]) -> None:
    key = deployed(SERVICE)
    ended = ask(*(argument.format(key=key) for argument in arguments))
    assert (ended.exit_code, ended.err) == (0, "")


# --- messages --------------------------------------------------------------------------------------------------------


def test_message_says_whether_it_has_reached_somebody(ask: Run, deployed: Run) -> None:
    key = deployed(RECEIVE)
    instance_id = ask("start", key, "--variables", json.dumps({"order": key})).out.strip()
    other = ask("message", "paid", "--key", f"{key}x", "--ttl-seconds", "60", "--message-id", f"{key}-1")
    assert other.out == f"published {key}-1: nothing waits for it yet, kept up to 1 min\n"
    assert other.err == f"\"paid\" is waited for, but not with the key '{key}x'\n"
    typo = ask("message", "payed", "--key", key, "--message-id", f"{key}/2")
    assert (typo.exit_code, typo.out) == (0, f"published {key}/2: nothing waits for it yet, kept up to 1 h\n")
    assert typo.err == 'nothing waits for "payed"; what is waited for and like it: paid\n'
    waiting = {row["message_id"]: row for row in json.loads(ask("messages", "--json").out)}
    assert (waiting[f"{key}-1"]["name"], waiting[f"{key}-1"]["key"]) == ("paid", f"{key}x")
    assert waiting[f"{key}/2"]["status"] == "waiting"
    assert "payed" in ask("messages").out

    right = ask("message", "paid", "--key", key, "--message-id", f"{key}-3")
    assert (right.out, right.err) == (f"published {key}-3: correlated\n", "")
    assert json.loads(ask("show", instance_id, "--json").out)["status"] == "COMPLETED"
    again = ask("message", "paid", "--key", key, "--message-id", f"{key}-3", "--json")
    assert json.loads(again.out) == {"message_id": f"{key}-3", "status": "correlated"}
    assert f"{key}-3" not in ask("messages", "--json").out


def test_ready_work_without_a_worker_is_marked(ask: Run, deployed: Run, work: Run) -> None:
    key = deployed(SERVICE)
    instance_id = ask("start", key).out.strip()

    def topic() -> Any:
        (found,) = (row for row in json.loads(ask("topics", "--json").out) if row["topic"] == key)
        return found

    unattended = topic()
    assert (unattended["ready"], unattended["workers"], unattended["is_unattended"]) == (1, 0, True)
    line = next(line for line in ask("topics").out.splitlines() if line.startswith(key))
    assert re.fullmatch(rf"{key} +1 +0 +0 +\d+ s +0 +0 +NO WORKER", line.rstrip())
    worker = work(key, "import time; time.sleep(1.5)")
    wait_until(lambda: topic()["locked"] == 1)
    attended = topic()
    assert (attended["ready"], attended["workers"], attended["is_unattended"]) == (0, 1, False)
    (row,) = (row for row in json.loads(ask("workers", "--json").out) if row["topics"][0]["topic"] == key)
    assert row["topics"][0]["held"] == 1
    table = ask("workers").out
    assert row["worker_id"] in table
    assert "node" not in table.splitlines()[1].split(), "there is only one"
    (task,) = json.loads(ask("tasks", "--topic", key, "--state", "locked", "--json").out)
    assert (task["instance_id"], task["lease"]["worker_id"]) == (instance_id, row["worker_id"])
    assert f"{row['worker_id']}, fence " in ask("tasks", "--instance", instance_id).out
    worker.stop()


def test_leases_of_a_worker_that_polls_are_found_by_its_name(ask: Run, deployed: Run, engine: Any) -> None:
    key = deployed(SERVICE)
    ids = [ask("start", key).out.strip() for _ in range(3)]
    connection = http.client.HTTPConnection(engine.url.removeprefix("http://"), timeout=20)
    body = {"worker_id": f"poller of {key}", "task_types": [key], "max_tasks": 2}
    connection.request("POST", "/api/v1/external-tasks/fetch-and-lock", json.dumps(body))
    fetched = {task["task_id"] for task in json.loads(connection.getresponse().read())}
    connection.close()
    assert len(fetched) == 2
    rows = json.loads(ask("tasks", "--worker-id", f"poller of {key}", "--json").out)
    assert {row["task_id"] for row in rows} == fetched
    assert {row["instance_id"] for row in rows} < {*ids}
    assert json.loads(ask("tasks", "--worker-id", "nobody", "--json").out) == []
    (row,) = (row for row in json.loads(ask("workers", "--json").out) if row["worker_id"] == f"poller of {key}")
    assert row["topics"] == [{"topic": key, "max_tasks": 2, "held": 2}]
    assert f"{key} 2/2" in re.sub(r"\s+", " ", ask("workers").out)


def wait_until(condition: Callable[[], bool]) -> None:
    """Each look takes a request: this does not spin."""
    for _ in range(2_000):
        if condition():
            return
    raise AssertionError("it never came to that")


def test_several_instances_are_cancelled_and_those_that_cannot_are_named(ask: Run, deployed: Run) -> None:
    key = deployed(SERVICE)
    first, second = (ask("start", key).out.strip() for _ in range(2))
    ended = ask("cancel", first, "nothing", second, "--reason", "ordered twice")
    assert (ended.exit_code, ended.out) == (1, f"cancelled {first}\ncancelled {second}\n")
    assert ended.err == "stellwerk: there is no instance nothing\n"
    assert ask("cancel", first, "nothing").exit_code == 2, "none of them could be"


# --- bulk retries ----------------------------------------------------------------------------------------------------


def test_fault_87_many_incidents_are_requeued_which_is_not_solved(ask: Run, deployed: Run, work: Run) -> None:
    key = deployed(ONE_TRY)
    worker = work(key, "raise ValueError('the bank is closed')")
    instance_ids = [ask("start", key, "--wait", "--timeout", "30").out.split()[0] for _ in range(3)]
    assert worker.stop() == 0
    assert all(id_ in ask("incidents", "--process", key).out for id_ in instance_ids)
    (first, *others) = json.loads(ask("incidents", "--process", key, "--json").out)
    assert json.loads(ask("incidents", "--process", key, "--kind", "no_such_kind", "--json").out) == []

    named = ask("retry", first["incident_id"])
    assert (named.exit_code, named.out) == (0, "re-queued 1 incident\n")
    assert named.err == f"READY work without a connected worker: {key}\n"
    gone = ask("retry", first["incident_id"])
    assert (gone.exit_code, gone.out) == (2, "re-queued 0 incidents\n")
    assert gone.err == f"stellwerk: there is no open incident {first['incident_id']} that fits\n"

    by_model = ask("resolve", others.pop()["incident_id"])
    assert by_model.exit_code == 0
    as_json = json.loads(ask("retry", "--topic", key, "--retries", "2", "--json").out)
    assert sorted(as_json["requeued"]) == sorted(row["incident_id"] for row in others)
    assert (as_json["refused"], as_json["unattended_topics"]) == ([], [key])
    tasks = json.loads(ask("tasks", "--topic", key, "--json").out)
    assert sorted((task["state"], task["retries_left"]) for task in tasks) == [("READY", 1), ("READY", 1), ("READY", 2)]


# --- the past --------------------------------------------------------------------------------------------------------


def test_P3_trace_tells_who_held_a_task_under_which_fence(ask: Run, deployed: Run, work: Run) -> None:
    key = deployed(TWO_TRIES)
    worker = work(key, "if task.attempt == 1: raise ValueError('the bank is closed')")
    instance_id = ask("start", key, "--wait", "--timeout", "30").out.split()[0]
    assert worker.stop() == 0
    told = json.loads(ask("trace", instance_id, "--json").out)
    (task,) = told["tasks"]
    first, second = task["leases"]
    assert (first["end"], second["end"]) == ("failed", "completed")
    assert first["message"].endswith("the bank is closed")
    assert first["fence"] < second["fence"]
    assert first["since"] <= first["until"] <= second["since"] <= second["until"]
    (token,) = told["tokens"]
    assert [stay["node_id"] for stay in token["stays"]] == ["s", "step", "e"]
    shown = ask("trace", instance_id).out
    assert re.search(
        rf"^Task step {task['task_id']}: topic {key}, COMPLETED, 1 of 2 retries left$", shown, re.MULTILINE
    )
    assert re.search(rf"^{first['fence']} +.*failed: .*the bank is closed", shown, re.MULTILINE)
    assert re.search(rf"^{second['fence']} +.*completed", shown, re.MULTILINE)
    assert f"Token {token['token_id']} (start)" in shown


def test_P3_replay_shows_the_state_after_each_step(ask: Run, deployed: Run) -> None:
    instance_id = ask("start", deployed(USER), "--variables", '{"amount": 1}').out.strip()
    ask("set-variables", instance_id, "--variables", '{"amount": 2}')
    (task,) = json.loads(ask("user-tasks", "--instance", instance_id, "--json").out)
    ask("complete", task["user_task_id"])

    def state(*at: str) -> Any:
        return json.loads(ask("replay", instance_id, *at, "--json").out)

    last = state()
    assert (last["state"]["status"], last["state"]["tokens"]) == ("COMPLETED", {})
    first = state("--at", "1")
    root = first["state"]["root_scope_id"]
    assert (first["version"], first["state"]["status"]) == (1, "RUNNING")
    assert first["state"]["scopes"][root]["variables"] == {"amount": 1}
    assert state("--at", "2")["state"]["scopes"][root]["variables"] == {"amount": 2}
    shown = ask("replay", instance_id, "--at", "1").out
    assert f"Instance {instance_id} after step 1 (" in shown
    for piece in ("Variables of the process\n", "Open user tasks\n", f"step   {task['user_task_id']}", "RUNNING"):
        assert piece in shown
    beyond = ask("replay", instance_id, "--at", str(last["version"] + 1))
    assert (beyond.exit_code, beyond.is_one_clear_line) == (2, True)
    assert f"the instance has steps 1 to {last['version']}" in beyond.err


def test_P3_history_is_numbered_without_gaps(ask: Run, deployed: Run) -> None:
    instance_id = ask("start", deployed(NOTHING)).out.strip()
    history = json.loads(ask("show", instance_id, "--history", "--json").out)["history"]
    assert [entry["sequence"] for entry in history] == list(range(1, len(history) + 1))
    assert (history[0]["event_type"], history[-1]["event_type"]) == ("InstanceStarted", "InstanceCompleted")
    shown = ask("show", instance_id, "--history").out
    assert "InstanceStarted" in shown
    assert "InstanceCompleted" in shown


# --- pruning and backups ---------------------------------------------------------------------------------------------


@pytest.fixture
def file_engine(start_engine: Run, tmp_path: Path) -> Any:
    """An engine of the test's own, on a file."""
    (tmp_path / "data").mkdir()
    return start_engine("--db", str(tmp_path / "data" / "orders.db"))


def test_backup_of_a_running_engine_can_be_used(file_engine: Any, stellwerk: Run, model: Run, tmp_path: Path) -> None:
    at = ("--url", file_engine.url)
    assert stellwerk("deploy", model(USER, key="order"), *at).exit_code == 0
    instance_id = stellwerk("start", "order", *at).out.strip()
    copied = stellwerk("backup", "copy.db", *at)
    assert (copied.exit_code, copied.err) == (0, "")
    assert re.fullmatch(r"copied \d+\.\d MiB to copy\.db in \d+\.\d s\n", copied.out)
    later = stellwerk("start", "order", *at).out.strip()
    again = stellwerk("backup", "copy.db", *at)
    assert (again.exit_code, again.err) == (2, "stellwerk: copy.db: is there already; --force replaces it\n")

    listed = json.loads(stellwerk("instances", "--json", "--db", "copy.db").out)
    assert [row["instance_id"] for row in listed] == [instance_id]
    assert stellwerk("backup", "copy.db", "--force", *at).exit_code == 0
    listed = json.loads(stellwerk("instances", "--json", "--db", "copy.db").out)
    assert [row["instance_id"] for row in listed] == [later, instance_id]
    assert sorted(os.listdir(tmp_path)) == ["copy.db", "data", "model.bpmn", "serve.log"]
    with sqlite3.connect(tmp_path / "copy.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    assert not [name for name in os.listdir(tmp_path / "data") if "backup" in name], (
        "nothing is left beside the database"
    )


def test_engine_without_a_file_has_no_backup(ask: Run, tmp_path: Path) -> None:
    ended = ask("backup", "copy.db")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True)
    assert os.listdir(tmp_path) == []


def test_backup_does_not_replace_what_lies_beside_a_log(ask: Run, tmp_path: Path) -> None:
    (tmp_path / "copy.db-wal").write_bytes(b"of another database")
    ended = ask("backup", "copy.db")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True)
    assert "copy.db-wal: belongs to another database of that name" in ended.err


def test_prune_deletes_what_ended_long_ago(file_engine: Any, stellwerk: Run, model: Run) -> None:
    at = ("--url", file_engine.url)
    stellwerk("deploy", model(USER, key="order"), *at)
    running, ended = (stellwerk("start", "order", *at).out.strip() for _ in range(2))
    stellwerk("cancel", ended, *at)
    assert stellwerk("prune", "--older-than", "1h", *at).out == "deleted 0 instances\n"
    assert stellwerk("prune", "--older-than", "0s", "--dry-run", *at).out == "would delete 1 instance\n"
    assert stellwerk("prune", "--older-than", "0s", *at).out == "deleted 1 instance\n"
    assert stellwerk("show", ended, *at).exit_code == 2
    assert [row["instance_id"] for row in json.loads(stellwerk("instances", "--json", *at).out)] == [running]


@pytest.fixture
def breaking_server() -> Iterator[str]:
    """Promises 1000 bytes and hangs up after 10."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"SQLite for")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_backup_that_breaks_off_leaves_nothing(stellwerk: Run, breaking_server: str, tmp_path: Path) -> None:
    ended = stellwerk("backup", "copy.db", "--url", breaking_server)
    assert (ended.exit_code, ended.is_one_clear_line) == (3, True), ended
    assert "10 of 1000 bytes" in ended.err
    (tmp_path / "copy.db").write_bytes(b"the copy of yesterday")
    assert stellwerk("backup", "copy.db", "--force", "--url", breaking_server).exit_code == 3
    assert (os.listdir(tmp_path), (tmp_path / "copy.db").read_bytes()) == (["copy.db"], b"the copy of yesterday")


@pytest.fixture
def busy_server() -> Iterator[tuple[str, list[int]]]:
    """Takes 50 ms to prune a slice, three times; and the ages that it was asked to prune."""
    asked: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["older_than_ms"])
            threading.Event().wait(0.05)
            answer = json.dumps({"instances": 1, "more": len(asked) < 3}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_prune_leaves_alone_what_ends_while_it_works(stellwerk: Run, busy_server: tuple[str, list[int]]) -> None:
    url, asked = busy_server
    assert stellwerk("prune", "--older-than", "1s", "--url", url).out == "deleted 3 instances\n"
    first, second, third = asked
    assert first >= 1000
    assert (second - first >= 50, third - second >= 50) == (True, True), "or on a busy engine it would never end"
