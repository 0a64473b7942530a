"""The command line as a user meets it: real processes against a real engine."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

MODEL = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <message id="m" name="paid"/>
  <process id="{key}" isExecutable="true">
    <startEvent id="s"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="step"/>
    {step}
    <sequenceFlow id="f2" sourceRef="step" targetRef="e"/>
    <endEvent id="e"/>
  </process>
</definitions>
"""
SERVICE = '<serviceTask id="step" name="Charge" stellwerk:topic="{key}"/>'
ONE_TRY = '<serviceTask id="step" stellwerk:topic="{key}" stellwerk:retries="1"/>'
USER = '<userTask id="step" name="Approve [now]"/>'
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

WORKER = """
from stellwerk.worker import BpmnError, Worker

worker = Worker("http://127.0.0.1:1")

@worker.task("{topic}")
def handle(payload, task):
    {body}
"""


@pytest.fixture
def deployed(stellwerk: Run, tmp_path: Path, engine: Any, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Deploy a process with one step under a name of the test's own; gives its key."""
    key = re.sub(r"\W", "-", request.node.name)

    def deploy(step: str) -> str:
        file = tmp_path / "model.bpmn"
        file.write_text(MODEL.format(key=key, step=step.format(key=key)))
        ended = stellwerk("deploy", "model.bpmn", "--url", engine.url)
        assert (ended.exit_code, ended.out, ended.err) == (0, f"deployed {key} version 1\n", "")
        return key

    return deploy


@pytest.fixture
def ask(stellwerk: Run, engine: Any) -> Run:
    """Run a command against the engine."""

    def run(*arguments: str) -> Any:
        return stellwerk(*arguments, "--url", engine.url)

    return run


# --- help ----------------------------------------------------------------------------------------------------------


def test_help_says_how_to_begin(stellwerk: Run) -> None:
    ended = stellwerk("--help")
    assert (ended.exit_code, ended.err) == (0, "")
    for piece in ("stellwerk demo", "stellwerk serve", "--wait", "Exit codes"):
        assert piece in ended.out
    assert stellwerk().out == ended.out


@pytest.mark.parametrize(
    "command",
    ["serve", "deploy", "start", "show", "worker", "message", "complete", "resolve", "cancel", "instances"],
)
def test_help_of_a_command_has_examples(stellwerk: Run, command: str) -> None:
    ended = stellwerk(command, "--help")
    assert ended.exit_code == 0
    assert f"    stellwerk {command}" in ended.out


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
        (["start", "p", "--url", "http://a:port"], "the port is no number"),
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
        ("this is no Python", "shop_worker.py, line 1"),
        ("worker = 7", "no Worker"),
    ],
)
def test_module_that_is_no_worker_is_one_clear_line(
    stellwerk_process: Run, tmp_path: Path, text: str, what: str
) -> None:
    (tmp_path / "shop_worker.py").write_text(text)
    ended = stellwerk_process("worker", "shop_worker.py")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert what in ended.err


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
    assert "Connection refused" in ended.err


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["start", "nothing"], "nothing"),
        (["show", "nothing"], "nothing"),
        (["show", "../definitions?a=b"], "no id"),
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


def test_findings_are_printed_as_compilers_do(ask: Run, tmp_path: Path) -> None:
    for name in ("one.bpmn", "two.bpmn"):
        text = MODEL.format(key="bad", step=SERVICE.format(key="bad"))
        (tmp_path / name).write_text(text.replace('targetRef="step"', 'targetRef="nowhere"'))
    (tmp_path / "three.bpmn").write_text("<this is no XML")
    ended = ask("deploy", "one.bpmn", "two.bpmn", "three.bpmn")
    assert (ended.exit_code, ended.out) == (2, "")
    lines = ended.err.splitlines()
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
    assert ended.out.splitlines()[1] == "RUNNING"


def test_variables_are_read_from_a_file(ask: Run, deployed: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"größe": "ä"}')
    ended = ask("start", deployed(NOTHING), "--variables", "@order.json", "--wait")
    assert ended.out.splitlines()[1:] == ["COMPLETED", '  größe = "ä"']


def test_user_task_is_found_and_completed(ask: Run, deployed: Callable[[str], str]) -> None:
    instance_id = ask("start", deployed(USER)).out.strip()
    tasks = json.loads(ask("user-tasks", "--json").out)
    (task,) = (task for task in tasks if task["instance_id"] == instance_id)
    assert "Approve [now]" in ask("user-tasks").out
    assert ask("complete", task["user_task_id"], "--variables", '{"approved": true}').exit_code == 0
    shown = json.loads(ask("show", instance_id, "--json").out)
    assert (shown["status"], shown["variables"]) == ("COMPLETED", {"approved": True})


def test_instance_is_cancelled_once(ask: Run, deployed: Callable[[str], str]) -> None:
    instance_id = ask("start", deployed(SERVICE)).out.strip()
    assert ask("cancel", instance_id, "--reason", "ordered twice").out == f"cancelled {instance_id}\n"
    assert "ordered twice" in ask("show", instance_id).out
    again = ask("cancel", instance_id)
    assert (again.exit_code, again.is_one_clear_line) == (2, True)


def test_message_is_published(ask: Run) -> None:
    ended = ask("message", "paid", "--key", "A-17", "--message-id", "m-17")
    assert (ended.exit_code, ended.out, ended.err) == (0, "m-17\n", "")


# --- workers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path: Path, engine: Any, start_process: Run) -> Run:
    """``stellwerk worker`` with one handler, against the engine."""

    def run(topic: str, body: str) -> Any:
        (tmp_path / "shop_worker.py").write_text(WORKER.format(topic=topic, body=body))
        return start_process("worker", "shop_worker:worker", "--url", engine.url)

    return run


def test_worker_of_a_module_does_the_work(ask: Run, deployed: Callable[[str], str], work: Run) -> None:
    key = deployed(SERVICE)
    worker = work(key, "return {'paid': payload['amount']}")
    ended = ask("start", key, "--variables", '{"amount": 7}', "--wait", "--timeout", "30")
    assert (ended.exit_code, ended.out.splitlines()[1:]) == (0, ["COMPLETED", "  amount = 7", "  paid = 7"])
    shown = ask("show", ended.out.split()[0])
    assert "complete" in shown.out
    assert worker.stop() == 0


def test_incident_is_exit_code_1_until_it_is_resolved(ask: Run, deployed: Callable[[str], str], work: Run) -> None:
    key = deployed(ONE_TRY)
    worker = work(key, "raise ValueError('no luck')")
    ended = ask("start", key, "--wait", "--timeout", "30")
    assert (ended.exit_code, ended.out.splitlines()[1:]) == (1, ["RUNNING"])
    assert "no luck" in ended.err
    assert worker.stop() == 0
    instance_id = ended.out.split()[0]
    assert "no luck" in ask("show", instance_id).out
    incidents = json.loads(ask("incidents", "--json").out)
    (incident,) = (row for row in incidents if row["instance_id"] == instance_id)
    assert incident["incident_id"] in ask("incidents").out
    assert ask("resolve", incident["incident_id"], "--retries", "2").exit_code == 0
    again = ask("resolve", incident["incident_id"])
    assert (again.exit_code, again.is_one_clear_line) == (2, True)
    assert json.loads(ask("show", instance_id, "--json").out)["tasks"][0]["retries_left"] == 2


def test_failed_instance_is_exit_code_1_and_says_why(ask: Run, deployed: Callable[[str], str], work: Run) -> None:
    key = deployed(COMPENSATED)
    worker = work(key, "if task.element_id == 'charge': raise BpmnError('NO_MONEY', 'the card is empty')")
    ended = ask("start", key, "--wait", "--timeout", "30")
    assert (ended.exit_code, ended.out.splitlines()[1:]) == (1, ["FAILED"])
    assert "NO_MONEY: the card is empty" in ended.err
    shown = ask("show", ended.out.split()[0]).out
    assert "NO_MONEY" in shown
    assert "release" in shown
    assert worker.stop() == 0
