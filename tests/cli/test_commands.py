"""The command line as a user meets it: real processes against a real engine."""

from __future__ import annotations

import http.server
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SERVICE = '<serviceTask id="step" name="Charge" stellwerk:topic="{key}"/>'
ONE_TRY = '<serviceTask id="step" stellwerk:topic="{key}" stellwerk:retries="1"/>'
USER = (
    '<userTask id="step" name="Approve [now]" stellwerk:assignee="ada" stellwerk:candidateGroups="boss,bank" '
    'stellwerk:form="approve-1" stellwerk:due="2030-01-01T00:00:00Z"/>'
)
CHOICE = """
    <subProcess id="step">
      <startEvent id="i"/>
      <sequenceFlow id="i1" sourceRef="i" targetRef="choice"/>
      <exclusiveGateway id="choice"/>
      <sequenceFlow id="i2" sourceRef="choice" targetRef="j">
        <conditionExpression>=amount &gt; 0</conditionExpression>
      </sequenceFlow>
      <endEvent id="j"/>
    </subProcess>
"""
"""An incident until there is an amount."""
NOTHING = '<exclusiveGateway id="step"/>'

COMPENSATED = """
    <serviceTask id="step" stellwerk:topic="{key}"/>
    <boundaryEvent id="reserved" attachedToRef="step"><compensateEventDefinition/></boundaryEvent>
    <serviceTask id="release" stellwerk:topic="{key}" isForCompensation="true"/>
    <association id="a" associationDirection="One" sourceRef="reserved" targetRef="release"/>
    <sequenceFlow id="f0" sourceRef="step" targetRef="charge"/>
    <serviceTask id="charge" stellwerk:topic="{key}"/>
    <sequenceFlow id="f3" sourceRef="charge" targetRef="e0"/>
    <endEvent id="e0"/>
"""

# --- help ----------------------------------------------------------------------------------------------------------


def test_help_says_how_to_begin(stellwerk: Run) -> None:
    ended = stellwerk("--help")
    assert (ended.exit_code, ended.err) == (0, "")
    for piece in ("stellwerk demo", "stellwerk serve", "--wait", "Exit codes"):
        assert piece in ended.out
    assert stellwerk().out == ended.out


@pytest.mark.parametrize(
    "command",
    [
        *(
            "serve",
            "worker",
            "check",
            "deploy",
            "definitions",
            "start",
            "instances",
            "show",
            "trace",
            "replay",
            "tasks",
        ),
        *("user-tasks", "incidents", "topics", "workers", "message", "complete", "resolve", "retry", "set-variables"),
        *("cancel", "prune", "backup"),
    ],
)
def test_help_of_a_command_has_examples(stellwerk: Run, command: str) -> None:
    ended = stellwerk(command, "--help")
    assert ended.exit_code == 0
    assert f" {command} " in stellwerk("--help").out
    assert f"    stellwerk {command}" in ended.out


def test_help_is_wrapped_for_the_terminal_only(stellwerk: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert "workers are told to finish, then the engine stops within 5 seconds;" in stellwerk("serve", "--help").out


def test_version(stellwerk: Run) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", stellwerk("--version").out)


# --- wrong use -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["dance"], "dance"),
        (["start"], "PROCESS"),
        (["start", "p", "--colour", "red"], "--colour"),
        (["start", "p", "--variables", "{"], "--variables: not JSON"),
        (["start", "p", "--variables", "[]"], "--variables: an object is expected"),
        (["start", "p", "--variables", "@nothing.json"], "nothing.json: No such file"),
        (["start", "p", "--url", "nonsense"], "http://127.0.0.1:10560"),
        (
            ["start", "p", "--url", "http://a:port"],
            "the engine's URL must look like http://127.0.0.1:10560, not 'http://a:port'",
        ),
        (["start", "p", "--timeout", "soon"], "soon"),
        (["deploy"], "which file?"),
        (["deploy", "nothing.bpmn"], "nothing.bpmn: No such file"),
        (["deploy", "."], "Is a directory"),
        (["serve", "--port", "70000"], "ports are 0 to 65535"),
        (["serve", "--db", "nowhere/engine.db"], "there is no directory"),
        (["serve", "--db", "."], "is a directory"),
        (["serve", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["serve", "--failure-policy", "hope"], "hope"),
        (["worker", "nothing:worker"], "nothing"),
        (["worker", "json:dumps"], "json:dumps"),
        (["demo", "--orders", "0"], "--orders"),
        (["demo", "--workers", "999"], "--workers"),
    ],
)
def test_mistake_is_one_clear_line_and_exit_code_2(stellwerk: Run, arguments: list[str], what: str) -> None:
    ended = stellwerk(*arguments)
    assert ended.exit_code == 2, ended
    assert ended.is_one_clear_line, ended
    assert what in ended.err


@pytest.mark.parametrize(
    "text, what",
    [
        ("\n1 / 0\n", "shop_worker.py:2: ZeroDivisionError: division by zero"),
        ("this is no Python", "shop_worker.py:1: SyntaxError: invalid syntax"),
        ("worker = 7", "no Worker"),
        ("import json\njson.loads('{')", "shop_worker.py:2: JSONDecodeError: "),
        ("raise SystemExit(5)", "shop_worker.py:1: SystemExit: 5"),
        ("import shop_helper", "shop_worker.py:1: ModuleNotFoundError: No module named 'shop_helper'"),
        (
            "from stellwerk.worker import Worker\nworker = Worker()\nworker.task('a', 1, 2)",
            "shop_worker.py:3: TypeError: ",
        ),
        (
            "from stellwerk.worker import Worker\nworker = Worker()\nworker.task('a', lock_duration=0.1)(print)",
            "shop_worker.py:3: topic 'a': lock_duration must be 1 to 86400 seconds, not 0.1",
        ),
    ],
)
def test_module_that_is_no_worker_is_one_clear_line(
    stellwerk_process: Run, tmp_path: Path, text: str, what: str
) -> None:
    (tmp_path / "shop_worker.py").write_text(text)
    ended = stellwerk_process("worker", "shop_worker.py")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert ended.err.startswith(what) or "no Worker" in what
    assert what in ended.err


def test_module_that_fails_shows_its_traceback_when_debugging(stellwerk_process: Run, tmp_path: Path) -> None:
    (tmp_path / "shop_worker.py").write_text("1 / 0\n")
    ended = stellwerk_process("worker", "shop_worker", STELLWERK_DEBUG="1")
    assert ended.exit_code == 2
    assert "Traceback" in ended.err
    assert ended.err.splitlines()[-1] == "shop_worker.py:1: ZeroDivisionError: division by zero"


def test_engine_is_found_through_the_environment(stellwerk_process: Run, engine: Any) -> None:
    ended = stellwerk_process("user-tasks", "--json", STELLWERK_URL=engine.url)
    assert (ended.exit_code, ended.err) == (0, "")
    assert stellwerk_process("instances", STELLWERK_URL="nonsense").exit_code == 2


def test_reader_of_the_output_may_leave(engine: Any) -> None:
    command = [sys.executable, "-m", "stellwerk", "instances", "--url", engine.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_no_engine_is_exit_code_3(stellwerk: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    ended = stellwerk("instances", "--url", f"http://127.0.0.1:{port}")
    assert (ended.exit_code, ended.is_one_clear_line) == (3, True)
    assert "Connection refused; start one with `stellwerk serve`, or name another with --url" in ended.err
    assert "--db" not in ended.err


def test_database_of_the_environment_is_hinted_at_where_no_engine_answers(
    stellwerk: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELLWERK_DB", "postgresql://u:s3cr3t@db/orders")
    ended = stellwerk("definitions", "--url", "http://127.0.0.1:1")
    assert (ended.exit_code, ended.is_one_clear_line) == (3, True)
    assert '--db "$STELLWERK_DB"' in ended.err
    assert "s3cr3t" not in ended.err


def test_engine_that_hangs_up_may_still_be_starting(stellwerk: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            listening.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        ended = stellwerk("definitions", "--url", f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()
    assert (ended.exit_code, ended.is_one_clear_line) == (3, True)
    assert "it may still be starting" in ended.err


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["start", "nothing"], "nothing"),
        (["show", "nothing"], "nothing"),
        (["show", "../process-definitions?a=b"], "no id"),
        (["cancel", "nothing"], "nothing"),
        (["complete", "nothing"], "nothing"),
        (["resolve", "nothing"], "nothing"),
        (["instances", "--limit", "0"], "limit"),
    ],
)
def test_unknown_thing_is_one_clear_line_and_exit_code_2(ask: Run, arguments: list[str], what: str) -> None:
    ended = ask(*arguments)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert what in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        *([command, "\udcff"] for command in ("start", "show", "cancel", "complete", "resolve", "message")),
        ["show", "0199f2a4\udcff"],
        ["instances", "--process", "\udcff"],
        ["cancel", "nothing", "--reason", "a\udcffb"],
    ],
)
def test_bytes_that_are_no_text_are_one_clear_line(ask: Run, arguments: list[str]) -> None:
    ended = ask(*arguments)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert "not UTF-8 text: " in ended.err


@pytest.mark.parametrize("url", ["http://[::1", "http://a..b", "http://localhost:1/ä", "http://localhost:1/a b", ""])
def test_url_that_is_none_is_one_clear_line(stellwerk: Run, url: str) -> None:
    ended = stellwerk("instances", "--url", url)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert ended.err.endswith(f"must look like http://127.0.0.1:10560, not {url!r}\n")


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["start", "order", "--wait", "--timeout", "nan"], "--timeout nan: seconds are a number from 0 on"),
        (["start", "order", "--wait", "--timeout", "-1"], "--timeout -1.0: seconds"),
        (["message", "paid", "--ttl-seconds", "nan"], "--ttl-seconds nan: seconds"),
        (["message", "paid", "--ttl-seconds", "inf"], "--ttl-seconds inf: seconds"),
        (["start", "order", "--variables", "@/dev/zero"], "/dev/zero: longer than 16 MiB"),
        (["deploy", "/dev/zero"], "/dev/zero: longer than 64 MiB"),
    ],
)
def test_value_without_end_is_one_clear_line(stellwerk: Run, arguments: list[str], what: str) -> None:
    ended = stellwerk(*arguments)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert what in ended.err


def test_what_nobody_foresaw_is_one_clear_line(stellwerk: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here: something that speaks JSON, but is no engine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            command = ("definitions", "--url", f"http://127.0.0.1:{server.server_port}")
            ended = stellwerk(*command)
            monkeypatch.setenv("STELLWERK_DEBUG", "1")
            debugged = stellwerk(*command)
        finally:
            server.shutdown()
            thread.join()
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert ended.err == "stellwerk: KeyError: 'definitions'; set STELLWERK_DEBUG=1 for the traceback\n"
    assert debugged.exit_code == 2
    assert debugged.err.startswith("Traceback")
    assert debugged.err.endswith("\nstellwerk: KeyError: 'definitions'\n")


def test_file_with_a_name_of_any_bytes_is_deployed(ask: Run, tmp_path: Path, model: Callable[..., str]) -> None:
    model(NOTHING, "w\udcffeird.bpmn", "weird")
    ended = ask("deploy", "w\udcffeird.bpmn")
    assert (ended.exit_code, ended.out, ended.err) == (0, "deployed weird version 1\n", "")
    (tmp_path / "w\udcffeird.bpmn").write_text("<this is no XML")
    assert ask("deploy", "w\udcffeird.bpmn").err.startswith("w\\xffeird.bpmn:1:")


def test_findings_are_printed_as_compilers_do(ask: Run, tmp_path: Path, model: Callable[..., str]) -> None:
    for name in ("one.bpmn", "two.bpmn"):
        text = (tmp_path / model(SERVICE, name, "bad")).read_text()
        (tmp_path / name).write_text(text.replace('targetRef="step"', 'targetRef="nowhere"'))
    (tmp_path / "three.bpmn").write_text("<this is no XML")
    ended = ask("deploy", "one.bpmn", "two.bpmn", "three.bpmn")
    assert (ended.exit_code, ended.out) == (1, "")
    *lines, last = ended.err.splitlines()
    assert last == "stellwerk: nothing was deployed"
    assert all(re.match(r"(one|two|three)\.bpmn:\d+:\d+: ", line) for line in lines), lines
    assert any(line.startswith("one.bpmn:7:5: ") and '"f1"' in line for line in lines), lines
    assert {line.partition(":")[0] for line in lines} == {"one.bpmn", "two.bpmn", "three.bpmn"}


# --- a process from file to end ------------------------------------------------------------------------------------


def test_start_prints_the_id_and_show_shows_it(ask: Run, deployed: Callable[[str], str]) -> None:
    key = deployed(SERVICE)
    started = ask("start", key, "--variables", '{"amount": 12.5, "who": "[bold]me"}', "--business-key", "A-17")
    assert (started.exit_code, started.err) == (0, "")
    instance_id = started.out.strip()
    shown = ask("show", instance_id, "--history")
    assert (shown.exit_code, shown.err) == (0, "")
    for piece in (instance_id, f"{key}:1", "A-17", "RUNNING", "12.5", "[bold]me", "READY", "3 of 3", "TaskCreated"):
        assert piece in shown.out, shown.out
    as_json = json.loads(ask("show", instance_id, "--json").out)
    assert (as_json["status"], as_json["tasks"][0]["state"]) == ("RUNNING", "READY")
    assert "history" not in as_json
    assert json.loads(ask("show", instance_id, "--json", "--history").out)["history"]
    listed = json.loads(ask("instances", "--process", key, "--status", "running", "--json").out)
    assert [row["instance_id"] for row in listed] == [instance_id]
    assert instance_id in ask("instances", "--process", key).out


def test_start_with_wait_ends_with_the_instance(ask: Run, deployed: Callable[[str], str]) -> None:
    key = deployed(NOTHING)
    ended = ask("start", key, "--variables", '{"a": [1, {"b": null}]}', "--wait")
    assert (ended.exit_code, ended.err) == (0, "")
    assert ended.out.splitlines()[1:] == ["COMPLETED", '  a = [1,{"b":null}]']
    as_json = json.loads(ask("start", key, "--wait", "--json").out)
    assert (as_json["status"], as_json["variables"], as_json["incidents"]) == ("COMPLETED", {}, [])


def test_wait_that_is_over_too_soon_is_exit_code_1(ask: Run, deployed: Callable[[str], str]) -> None:
    ended = ask("start", deployed(SERVICE), "--wait", "--timeout", "0.2")
    assert ended.exit_code == 1
    instance_id, status = ended.out.splitlines()
    assert status == "RUNNING"
    assert ended.err == f"still running; see: stellwerk show {instance_id}\n"


def test_who_waits_hears_that_no_worker_is_there(ask: Run, deployed: Callable[[str], str]) -> None:
    ended = ask("start", deployed(SERVICE), "--wait", "--timeout", "4")
    assert ended.exit_code == 1
    waiting, still = ended.err.splitlines()
    assert waiting.startswith("waiting for a worker: none is connected for topic ")
    assert still.startswith("still running")


def test_variables_are_read_from_a_file(ask: Run, deployed: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"größe": "ä"}')
    ended = ask("start", deployed(NOTHING), "--variables", "@order.json", "--wait")
    assert ended.out.splitlines()[1:] == ["COMPLETED", '  größe = "ä"']


def test_unknown_process_is_answered_with_those_that_there_are(ask: Run, deployed: Callable[[str], str]) -> None:
    key = deployed(NOTHING)
    assert f"deployed: {key}" in ask("start", key[:-1]).err
    assert "its versions: 1" in ask("start", key, "--version", "9").err
    assert key in ask("definitions").out
    assert [row["version"] for row in json.loads(ask("definitions", "--json").out) if row["key"] == key] == [1]


def test_beginning_of_an_id_is_enough(ask: Run, deployed: Callable[[str], str]) -> None:
    key = deployed(SERVICE)
    ids = [ask("start", key).out.strip() for _ in range(2)]
    assert f"Instance {ids[0]}" in ask("show", ids[0][:-1]).out
    ambiguous = ask("show", ids[0][:6])
    assert (ambiguous.exit_code, ambiguous.is_one_clear_line) == (2, True)
    assert "is the beginning of" in ambiguous.err
    assert ask("cancel", ids[0][:-1]).out == f"cancelled {ids[0]}\n"
    assert ask("cancel", ids[1][:5]).exit_code == 2


def test_show_fits_the_terminal(
    ask: Run, deployed: Callable[[str], str], work: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = deployed(SERVICE)
    worker = work(key, "return {}")
    instance_id = ask("start", key, "--wait", "--timeout", "30").out.split()[0]
    assert worker.stop() == 0
    monkeypatch.setenv("COLUMNS", "80")
    shown = ask("show", instance_id, "--history").out
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"^fence +worker +from \(UTC\) +to +end", shown, re.MULTILINE)


def test_variables_are_set_by_hand(ask: Run, deployed: Callable[[str], str]) -> None:
    instance_id = ask("start", deployed(SERVICE), "--variables", '{"a": 1}').out.strip()
    set_ = ask("set-variables", instance_id, "--variables", '{"b": [2]}')
    assert (set_.exit_code, set_.out, set_.err) == (0, f"set b in {instance_id}\n", "")
    assert json.loads(ask("show", instance_id, "--json").out)["variables"] == {"a": 1, "b": [2]}
    ask("cancel", instance_id)
    refused = ask("set-variables", instance_id, "--variables", "{}")
    assert (refused.exit_code, refused.is_one_clear_line) == (2, True)


def test_incident_is_repaired_with_variables(ask: Run, deployed: Callable[[str], str], engine: Any) -> None:
    key = deployed(CHOICE)
    ended = ask("start", key, "--wait", "--timeout", "30")
    assert ended.exit_code == 1
    incident_id = ended.err.split()[1]
    log = engine.log.read_text()
    assert f"level=info event=deployed definitions={key}:1" in log
    assert f'level=warning event="incident opened" incident={incident_id} instance={ended.out.split()[0]}' in log
    assert f"resolve with: stellwerk resolve {incident_id}" in ended.err
    assert f"resolve with: stellwerk resolve {incident_id}" in ask("incidents").out
    resolved = ask("resolve", incident_id[:-1], "--variables", '{"amount": 12}')
    assert (resolved.exit_code, resolved.out, resolved.err) == (0, f"resolved {incident_id}\n", "")
    shown = json.loads(ask("show", ended.out.split()[0], "--json").out)
    assert (shown["status"], shown["variables"]) == ("COMPLETED", {"amount": 12})
    gone = ask("resolve", incident_id, "--variables", "{}")
    assert (gone.exit_code, gone.is_one_clear_line) == (2, True)


def test_user_task_is_found_and_completed(ask: Run, deployed: Callable[[str], str]) -> None:
    instance_id = ask("start", deployed(USER)).out.strip()
    tasks = json.loads(ask("user-tasks", "--json").out)
    (task,) = (task for task in tasks if task["instance_id"] == instance_id)
    shown = ask("user-tasks").out
    for piece in (
        f"user task {task['user_task_id']}: Approve [now] (step)",
        "ada",
        "boss, bank",
        "approve-1",
        "2030-01",
    ):
        assert piece in shown
    assert ask("complete", task["user_task_id"][:-1], "--variables", '{"approved": true}').exit_code == 0
    shown = json.loads(ask("show", instance_id, "--json").out)
    assert (shown["status"], shown["variables"]) == ("COMPLETED", {"approved": True})


def test_lists_say_when_there_are_more(ask: Run, deployed: Callable[[str], str]) -> None:
    key = deployed(USER)
    for _ in range(3):
        ask("start", key)
    everything = [row["user_task_id"] for row in json.loads(ask("user-tasks", "--json").out)]
    seen: list[str] = []
    while True:
        after = ("--after", seen[-1]) if seen else ()
        page = ask("user-tasks", "--json", "--limit", "1", *after)
        seen += [row["user_task_id"] for row in json.loads(page.out)]
        if not page.err:
            break
        assert page.err == f"there are more; see them with --after {seen[-1]}\n"
    assert len(seen) >= 3
    assert seen == everything
    assert ask("instances", "--limit", "1").err.startswith("there are more; see them with --after ")
    assert ask("incidents").err == ""
    assert ask("incidents", "--limit", "1001").exit_code == 2


def test_instance_is_cancelled_once(ask: Run, deployed: Callable[[str], str]) -> None:
    instance_id = ask("start", deployed(SERVICE)).out.strip()
    assert ask("cancel", instance_id, "--reason", "ordered twice").out == f"cancelled {instance_id}\n"
    assert "ordered twice" in ask("show", instance_id).out
    again = ask("cancel", instance_id)
    assert (again.exit_code, again.is_one_clear_line) == (2, True)


def test_message_is_published(ask: Run) -> None:
    ended = ask("message", "paid", "--key", "A-17", "--message-id", "m-17")
    assert (ended.exit_code, ended.err) == (0, "")
    assert ended.out == "published m-17: nothing waits for it yet, kept up to 1 h\n"
    short = ask("message", "paid", "--message-id", "m-18", "--ttl-seconds", "90", "--variables", "{}")
    assert short.out == "published m-18: nothing waits for it yet, kept up to 90 s\n"
    assert json.loads(ask("message", "paid", "--key", "A-17", "--message-id", "m-17", "--json").out) == {
        "message_id": "m-17",
        "status": "waiting",
    }


# --- workers -------------------------------------------------------------------------------------------------------


def test_worker_of_a_module_does_the_work(ask: Run, deployed: Callable[[str], str], work: Run) -> None:
    key = deployed(SERVICE)
    worker = work(key, "return {'paid': payload['amount']}")
    ended = ask("start", key, "--variables", '{"amount": 7}', "--wait", "--timeout", "30")
    assert (ended.exit_code, ended.out.splitlines()[1:]) == (0, ["COMPLETED", "  amount = 7", "  paid = 7"])
    shown = ask("show", ended.out.split()[0])
    assert "complete" in shown.out
    assert worker.stop() == 0


def test_incident_is_exit_code_1_until_it_is_resolved(
    ask: Run, deployed: Callable[[str], str], work: Run, engine: Any
) -> None:
    key = deployed(ONE_TRY)
    worker = work(key, "raise ValueError('no luck')")
    ended = ask("start", key, "--wait", "--timeout", "30")
    assert (ended.exit_code, ended.out.splitlines()[1:]) == (1, ["RUNNING"])
    assert "no luck" in ended.err
    assert worker.stop() == 0
    instance_id = ended.out.split()[0]
    shown = ask("show", instance_id).out
    assert re.search(r"Last failure at step, fence \d+\n  Traceback .*\n(  .*\n)+  ValueError: no luck\n", shown)
    assert "shop_worker.py" in shown
    assert "stellwerk/worker" not in shown, "what the SDK does on the way is of no use to anybody"
    log = worker.log.read_text()
    assert re.search(rf"INFO connected to ws://127\.0\.0\.1:{engine.port}/workers, topics: {key}\n", log)
    assert re.search(r"ERROR handler failed: no luck.*\nTraceback .*\n(  .*\n)+ValueError: no luck\n", log)
    assert log.endswith("INFO stopped\n")
    incidents = json.loads(ask("incidents", "--json").out)
    (incident,) = (row for row in incidents if row["instance_id"] == instance_id)
    assert incident["incident_id"] in ask("incidents").out
    resolved = ask("resolve", incident["incident_id"], "--retries", "2", "--variables", '{"amount": 3}')
    assert (resolved.exit_code, resolved.out) == (0, f"resolved {incident['incident_id']}\n")
    again = ask("resolve", incident["incident_id"])
    assert (again.exit_code, again.is_one_clear_line) == (2, True)
    (task,) = json.loads(ask("show", instance_id, "--json").out)["tasks"]
    assert (task["retries_left"], task["variables"]) == (2, {"amount": 3})


def test_failed_instance_is_exit_code_1_and_says_why(
    ask: Run, deployed: Callable[[str], str], work: Run, engine: Any
) -> None:
    key = deployed(COMPENSATED)
    worker = work(key, "if task.element_id == 'charge': raise BpmnError('NO_MONEY', 'the card is empty')")
    ended = ask("start", key, "--wait", "--timeout", "30")
    assert (ended.exit_code, ended.out.splitlines()[1:]) == (1, ["FAILED"])
    assert "NO_MONEY: the card is empty" in ended.err
    log = engine.log.read_text()
    assert f'level=warning event="instance failed" instance={ended.out.split()[0]} definition={key}:1' in log
    assert re.search(rf'level=info event="worker subscribed" worker=\S+ topics={key}\n', log)
    shown = ask("show", ended.out.split()[0]).out
    assert "NO_MONEY" in shown
    assert "release" in shown
    assert worker.stop() == 0
