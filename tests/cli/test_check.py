"""``stellwerk check``: what would run of a file, without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SERVICE = '<serviceTask id="step" name="Charge" stellwerk:topic="charge-card" stellwerk:retries="5"/>'
USER = '<userTask id="step" stellwerk:assignee="ada" stellwerk:form="approve-1"/>'
TIMER = """
<intermediateCatchEvent id="step">
  <timerEventDefinition><timeDuration>P3D</timeDuration></timerEventDefinition>
</intermediateCatchEvent>
"""
MESSAGE = '<receiveTask id="step" messageRef="m"/>'
BAD = '<serviceTask id="step" stellwerk:topic="charge-card" stellwerk:lockDuration="soon"/>'
JAVA = """
<serviceTask id="step" camunda:class="com.example.Charge" xmlns:camunda="http://camunda.org/schema/1.0/bpmn"/>
"""


@pytest.mark.parametrize(
    "step, line",
    [
        (SERVICE, "external task  step  topic charge-card, retries 5"),
        ('<serviceTask id="step" stellwerk:topic="ship"/>', "external task  step  topic ship, retries 3 (default)"),
        (USER, "user task      step  assignee ada, form approve-1"),
        (TIMER, "timer          step  intermediateCatchEvent, duration P3D"),
        (MESSAGE, "message        step  message paid"),
    ],
)
def test_what_waits_outside_the_engine_is_listed(stellwerk: Run, model: Run, step: str, line: str) -> None:
    model(step, key="order")
    ended = stellwerk("check", "model.bpmn")
    assert (ended.exit_code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "model.bpmn: runs"
    assert lines[1].startswith("  process order (stellwerk; ") or lines[1].startswith("  process order (plain; ")
    assert lines[2].strip() == line
    assert "1 of 1 file can run" in lines


def test_what_cannot_run_is_named_by_file_line_and_column(stellwerk: Run, model: Run) -> None:
    model(BAD, "bad.bpmn", "bad")
    model(SERVICE, "good.bpmn", "good")
    ended = stellwerk("check", "bad.bpmn", "good.bpmn")
    assert (ended.exit_code, ended.err) == (1, "")
    assert 'bad.bpmn:8:5: serviceTask "step": "soon" is no ISO 8601 duration like PT15M\n' in ended.out
    assert "good.bpmn: runs\n" in ended.out
    assert "\n1 of 2 files can run\n2 processes, 2 external tasks, 0 user tasks, 0 timers, 0 messages\n" in ended.out
    assert ended.out.endswith(
        "\ntopics: charge-card\ncannot run: serviceTask: … is no ISO 8601 duration like PT15M 1\n"
    )


def test_check_refuses_exactly_what_deploy_refuses(ask: Run, stellwerk: Run, model: Run) -> None:
    for name, step in (("one.bpmn", BAD), ("two.bpmn", JAVA)):
        model(step, name, name[:3])
    checked = stellwerk("check", "one.bpmn", "two.bpmn")
    refused = ask("deploy", "one.bpmn", "two.bpmn")
    assert (checked.exit_code, refused.exit_code) == (1, 1)
    found = [line for line in checked.out.splitlines() if line.startswith(("one.bpmn:8:", "two.bpmn:9:"))]
    assert len(found) == 2
    assert refused.err.splitlines() == [*found, "stellwerk: nothing was deployed"]


def test_java_can_be_adopted(stellwerk: Run, model: Run) -> None:
    model(JAVA, key="order")
    assert stellwerk("check", "model.bpmn").exit_code == 1
    adopted = stellwerk("check", "model.bpmn", "--adopt-java")
    assert (adopted.exit_code, "topic com.example.Charge" in adopted.out) == (0, True)


def test_every_file_of_a_directory_is_checked(stellwerk: Run, model: Run, tmp_path: Path) -> None:
    (tmp_path / "models" / "deep").mkdir(parents=True)
    model(SERVICE, "models/one.bpmn", "one")
    model(SERVICE, "models/deep/two.bpmn20.xml", "two")
    model(SERVICE, "models/three.txt", "three")
    ended = stellwerk("check", "--dir", "models")
    assert ended.exit_code == 0
    assert [line for line in ended.out.splitlines() if line.endswith(": runs")] == [
        "deep/two.bpmn20.xml: runs",
        "one.bpmn: runs",
    ]


def test_file_that_cannot_be_read_does_not_keep_others_from_being_checked(
    stellwerk: Run, model: Run, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    model(SERVICE, "models/good.bpmn", "good")
    (tmp_path / "models" / "gone.bpmn").symlink_to("nowhere")
    ended = stellwerk("check", "--dir", "models")
    assert (ended.exit_code, ended.err) == (1, "")
    assert "gone.bpmn: cannot run\ngone.bpmn:1:1: file: No such file or directory\n" in ended.out
    assert "good.bpmn: runs\n" in ended.out
    assert ended.out.endswith("\ncannot run: file: No such file or directory 1\n")
    assert "\n1 of 2 files can run\n" in ended.out


def test_what_cannot_run_is_counted_by_reason(stellwerk: Run, model: Run) -> None:
    for number in range(2):
        model('<callActivity id="step" calledElement="x"/>', f"call{number}.bpmn", f"call{number}")
    signal = '<intermediateCatchEvent id="step"><signalEventDefinition id="x"/></intermediateCatchEvent>'
    model(signal, "signal.bpmn", "signal")
    arguments = ("check", "call0.bpmn", "call1.bpmn", "signal.bpmn")
    assert "\ncannot run: callActivity 2, " in stellwerk(*arguments).out
    reasons = json.loads(stellwerk(*arguments, "--json").out)["total"]["reasons"]
    assert (reasons["callActivity"], reasons["signal event"]) == (2, 1)


@pytest.mark.parametrize(
    "element_id, is_generated",
    [
        ("Activity_0x1y2z3", True),
        ("ServiceTask_1", True),
        ("sid-12345678-ABCD-4321-ABCD-1234567890AB", True),
        ("_25", True),
        ("charge-card", False),
        ("Activity_Ship", False),
        ("chargeCard", False),
    ],
)
def test_topic_that_is_only_an_id_is_marked(
    stellwerk: Run, tmp_path: Path, element_id: str, is_generated: bool
) -> None:
    (tmp_path / "plain.bpmn").write_text(
        '<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t">'
        '<process id="p" isExecutable="true"><startEvent id="s"/><sequenceFlow id="f" sourceRef="s"'
        f' targetRef="{element_id}"/><serviceTask id="{element_id}"/></process></definitions>'
    )
    ended = stellwerk("check", "plain.bpmn")
    assert ended.exit_code == 0, ended
    assert (f"topic {element_id} (only the element's id), retries" in ended.out) == is_generated
    last = f"topics that are only ids of elements: {element_id}" if is_generated else f"topics: {element_id}"
    assert ended.out.splitlines()[-1] == last


def test_family_of_camunda_7_is_named(stellwerk: Run, model: Run) -> None:
    model(JAVA, key="order")
    ended = stellwerk("check", "model.bpmn", "--adopt-java")
    assert "process order (Camunda 7 family: Camunda, Activiti, Flowable, Operaton; " in ended.out


def test_two_files_with_one_process_are_told_apart(stellwerk: Run, model: Run) -> None:
    model(SERVICE, "one.bpmn", "order")
    model(SERVICE, "two.bpmn", "order")
    ended = stellwerk("check", "one.bpmn", "two.bpmn")
    assert ended.exit_code == 0
    assert 'two.bpmn:5:1: warning: process "order": one.bpmn has a process with this key too' in ended.out
    assert "warning" not in stellwerk("check", "one.bpmn", "one.bpmn").out, "one file is one file, however often named"


def test_check_as_json(stellwerk: Run, model: Run) -> None:
    model(SERVICE, "good.bpmn", "order")
    model(BAD, "bad.bpmn", "bad")
    ended = stellwerk("check", "good.bpmn", "bad.bpmn", "--json")
    assert ended.exit_code == 1
    answer = json.loads(ended.out)
    good, bad = answer["files"]
    assert (good["file"], good["runs"], good["findings"]) == ("good.bpmn", True, [])
    (process,) = good["processes"]
    assert (process["key"], process["dialect"], process["failure_policy"]) == ("order", "stellwerk", "compensate")
    assert process["external_tasks"] == [
        {
            "element_id": "step",
            "element": "serviceTask",
            "name": "Charge",
            "line": 8,
            "topic": "charge-card",
            "retries": 5,
        }
    ]
    assert (bad["runs"], bad["findings"][0]["line"]) == (False, 8)
    assert answer["total"] == {
        "files": 2,
        "running_files": 1,
        "processes": 2,
        "external_tasks": 2,
        "user_tasks": 0,
        "timers": 0,
        "messages": 0,
        "topics": ["charge-card"],
        "generated_topics": [],
        "errors": 1,
        "warnings": 0,
        "reasons": {"serviceTask: … is no ISO 8601 duration like PT15M": 1},
    }


def test_file_beyond_the_limit_is_a_finding(stellwerk: Run, ask: Run, tmp_path: Path) -> None:
    with (tmp_path / "large.bpmn").open("wb") as file:
        file.truncate(10 * 1024 * 1024 + 1)
    ended = stellwerk("check", "large.bpmn")
    assert ended.exit_code == 1
    assert "large.bpmn:1:1: definitions: 10485761 bytes, at most 10485760 are allowed\n" in ended.out
    refused = ask("deploy", "large.bpmn")
    assert refused.exit_code == 1
    assert "large.bpmn: 10485761 bytes, at most 10485760 are allowed; nothing was deployed" in refused.err


@pytest.mark.parametrize(
    "arguments, what",
    [
        ([], "which file?"),
        (["nothing.bpmn"], "nothing.bpmn: No such file"),
        (["--dir", "nowhere"], "nowhere: is no directory"),
        (["."], ".: is a directory; to check what is in it: stellwerk check --dir ."),
        (["--dir", "."], "no BPMN files in it"),
    ],
)
def test_wrong_use_of_check_is_one_clear_line(stellwerk: Run, arguments: list[str], what: str) -> None:
    ended = stellwerk("check", *arguments)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert what in ended.err


def test_check_of_public_files_ends(stellwerk: Run) -> None:
    directory = Path(__file__).parents[2] / "../shared/data/bpmn/setA"
    if not directory.is_dir():
        pytest.skip("the public BPMN files are not here")
    ended = stellwerk("check", "--dir", str(directory), "--json")
    answer = json.loads(ended.out)
    assert ended.exit_code == 1
    assert answer["total"]["files"] == len(answer["files"]) > 50
    assert 0 < answer["total"]["running_files"] < len(answer["files"])
    assert all(file["runs"] or file["findings"] for file in answer["files"])
