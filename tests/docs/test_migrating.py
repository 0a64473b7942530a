"""What the page for people from other engines claims about their models is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stellwerk.model.checks import check_executable
from stellwerk.model.process import FailurePolicy, Process, Severity, Task
from stellwerk.model.reader import read_definitions
from stellwerk.testing import ProcessTest
from stellwerk.worker import BpmnError, TaskFailure, Worker

PAGE = (Path(__file__).parents[2] / "docs/migrating.md").read_text(encoding="utf-8")

MODEL = """<?xml version="1.0"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" targetNamespace="t" {namespace}>
  <process id="p" isExecutable="true">
    <startEvent id="s"/><sequenceFlow id="f1" sourceRef="s" targetRef="step"/>
    {step}
    <sequenceFlow id="f2" sourceRef="step" targetRef="e"/><endEvent id="e"/>
  </process>
</definitions>"""
CAMUNDA = 'xmlns:camunda="http://camunda.org/schema/1.0/bpmn"'
ZEEBE = 'xmlns:zeebe="http://camunda.org/schema/zeebe/1.0"'
OWN = 'xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"'
C7_STEP = '<serviceTask id="step" camunda:type="external" camunda:topic="t">{}</serviceTask>'
ZEEBE_STEP = (
    '<serviceTask id="step"><extensionElements><zeebe:taskDefinition type="t" {}/>{}</extensionElements></serviceTask>'
)


def model(namespace: str, step: str) -> bytes:
    return MODEL.format(namespace=namespace, step=step).encode()


def process(namespace: str, step: str, *, adopt_java: bool = False) -> Process:
    result = read_definitions(model(namespace, step), adopt_java=adopt_java)
    assert [finding for finding in result.findings if finding.severity is Severity.ERROR] == []
    [found] = result.processes
    assert check_executable(found) == ()
    return found


def work(found: Process) -> Any:
    step = found.nodes["step"]
    assert isinstance(step, Task)
    return step.work


@pytest.mark.parametrize(
    ("namespace", "step", "policy"),
    [
        (CAMUNDA, C7_STEP.format(""), FailurePolicy.INCIDENT),
        (ZEEBE, ZEEBE_STEP.format("", ""), FailurePolicy.INCIDENT),
        (OWN, '<serviceTask id="step" stellwerk:topic="t"/>', FailurePolicy.COMPENSATE),
        ("", '<serviceTask id="step"/>', FailurePolicy.COMPENSATE),
    ],
)
def test_files_of_other_engines_get_incidents(namespace: str, step: str, policy: FailurePolicy) -> None:
    assert process(namespace, step).effective_failure_policy() is policy


@pytest.mark.parametrize(
    ("cycle", "retries", "backoffs"), [("R5/PT5M", 5, (300_000,)), ("PT1M,PT10M", 3, (60_000, 600_000))]
)
def test_the_retry_time_cycle_is_read_for_external_tasks(cycle: str, retries: int, backoffs: tuple[int, ...]) -> None:
    element = f"<camunda:failedJobRetryTimeCycle>{cycle}</camunda:failedJobRetryTimeCycle>"
    found = process(CAMUNDA, C7_STEP.format(f"<extensionElements>{element}</extensionElements>"))
    assert f"`{cycle}`" in PAGE
    assert (work(found).retries.literal_value, work(found).retry_backoffs_ms) == (retries, backoffs)


@pytest.mark.parametrize("java", ['camunda:class="shop.Charge"', 'camunda:delegateExpression="${charge}"'])
def test_java_is_refused_or_becomes_work(java: str) -> None:
    step = f'<serviceTask id="step" {java}/>'
    refused = read_definitions(model(CAMUNDA, step))
    findings = [*refused.findings, *(finding for found in refused.processes for finding in check_executable(found))]
    assert any(finding.severity is Severity.ERROR for finding in findings)
    assert work(process(CAMUNDA, step, adopt_java=True)) is not None


async def test_an_uncaught_error_is_an_incident_and_costs_no_retry(process_test: ProcessTest) -> None:
    await process_test.deploy(("p.bpmn", model(CAMUNDA, C7_STEP.format(""))))
    instance = await process_test.start("p")
    await instance.throw_error("step", "NOBODY_CATCHES_IT")
    instance.assert_incident_at("step")
    instance.assert_running()


async def test_input_mappings_add_and_outputs_restrict(process_test: ProcessTest) -> None:
    mapping = (
        '<zeebe:ioMapping><zeebe:input source="=a + 1" target="b"/>'
        '<zeebe:output source="=found" target="kept"/></zeebe:ioMapping>'
    )
    await process_test.deploy(("p.bpmn", model(ZEEBE, ZEEBE_STEP.format("", mapping))))
    instance = await process_test.start("p", {"a": 1})
    [task] = instance.tasks("step")
    assert task.variables == {"a": 1, "b": 2}
    await instance.complete("step", {"found": 3, "other": 4})
    assert instance.variables == {"a": 1, "kept": 3}


async def test_a_message_that_nobody_waits_for_is_kept(process_test: ProcessTest) -> None:
    step = '<receiveTask id="step" messageRef="m"/>'
    xml = model(CAMUNDA, step).replace(b"<process", b'<message id="m" name="paid"/><process')
    await process_test.deploy(("p.bpmn", xml))
    assert not await process_test.publish("paid", "A-1")
    instance = await process_test.start("p", business_key="A-1")
    instance.assert_ended()


def test_the_worker_of_the_page_is_one() -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)
    assert isinstance(names["worker"], Worker)
    assert names["charge"]({"amount": 3, "card": "1"}) == {"receipt": "receipt over 3"}
    with pytest.raises(BpmnError):
        names["charge"]({"amount": -1, "card": "1"})
    with pytest.raises(TaskFailure):
        names["charge"]({"amount": 1, "card": "busy"})


@pytest.mark.parametrize(
    "step",
    [
        '<callActivity id="step" calledElement="x"/>',
        '<serviceTask id="step"><multiInstanceLoopCharacteristics><loopCardinality>2</loopCardinality>'
        "</multiInstanceLoopCharacteristics></serviceTask>",
        '<inclusiveGateway id="step"/>',
        '<transaction id="step"/>',
        '<intermediateCatchEvent id="step"><signalEventDefinition signalRef="x"/></intermediateCatchEvent>',
        '<intermediateCatchEvent id="step"><timerEventDefinition><timeCycle>R3/PT1M</timeCycle>'
        "</timerEventDefinition></intermediateCatchEvent>",
    ],
)
def test_what_is_not_there_yet_is_refused(step: str) -> None:
    result = read_definitions(model("", step))
    findings = [*result.findings, *(finding for found in result.processes for finding in check_executable(found))]
    assert any(finding.severity is Severity.ERROR for finding in findings)
