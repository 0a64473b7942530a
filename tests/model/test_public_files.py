"""Public BPMN files, whole and damaged: each is read, or refused with findings that name element and line."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stellwerk.model.checks import check_executable
from stellwerk.model.process import Activity, Event, EventPosition, Finding, Process, Severity, SubProcess, Task
from stellwerk.model.reader import ReadResult, read_definitions

_MUTANTS = 2_000
_SMALL_FILE_BYTES = 20_000

_NOT_XML = {
    "nayra__BpmnWithHtmlEntities.bpmn",
    "camunda-bpm-platform__one.bpmn",
    "go-bpmn__signal-throw-definition.bpmn",
    "jbpm__BPMN2-TravelBookingExample.bpmn2",
    "jbpm__BPMN2-XXE-Process.bpmn2",
}
_MUST_DEPLOY = {
    "code__InternetThings-Final.bpmn",
    "operaton__order-fulfillment.bpmn",
    "camunda-external-task-client-python3__bpmn_error_example.bpmn",
    "quarkus-zeebe__parameters.bpmn",
    "zeebe-process-test__looping-servicetask.bpmn",
    "ProcessCube.App.SDK__ExternalTaskTest.bpmn",
    "node-red-contrib-processcube__External-Task-HandleErrorCode.bpmn",
}


def _findings(result: ReadResult) -> list[Finding]:
    checked = [finding for process in result.processes for finding in check_executable(process)]
    return [*result.findings, *checked]


def _is_deployable(result: ReadResult) -> bool:
    executable = [process for process in result.processes if process.executable]
    findings = [*result.findings, *(finding for process in executable for finding in check_executable(process))]
    return bool(executable) and all(finding.severity is not Severity.ERROR for finding in findings)


def _assert_findings_name_their_place(findings: list[Finding], xml: bytes) -> None:
    # Each CR and each LF ends a line at most; UTF-16 has zeros between them.
    lines = xml.count(b"\n") + xml.count(b"\r") + 1
    for finding in findings:
        assert 1 <= finding.position.line <= lines, finding
        assert finding.position.column >= 1, finding
        assert finding.element, finding
        assert finding.what, finding
        assert str(finding).startswith("line ")


def _assert_consistent(process: Process) -> None:
    nodes, flows = process.nodes, process.flows
    for flow in flows.values():
        assert flow.id in nodes[flow.source].outgoing
        assert flow.id in nodes[flow.target].incoming
        assert nodes[flow.source].parent == nodes[flow.target].parent
    for node in nodes.values():
        assert node.id in process.scope_children(node.parent)
        assert all(flows[flow_id].source == node.id for flow_id in node.outgoing)
        assert all(flows[flow_id].target == node.id for flow_id in node.incoming)
        assert node.default_flow is None or node.default_flow in node.outgoing
        if isinstance(node, SubProcess):
            assert all(nodes[child].parent == node.id for child in node.children)
        if isinstance(node, Activity):
            _assert_consistent_activity(node, process)
    assert hash(process) == hash(process)


def _assert_consistent_activity(activity: Activity, process: Process) -> None:
    for event_id in activity.boundary_events:
        event = process.nodes[event_id]
        assert isinstance(event, Event)
        assert (event.where, event.attached_to) == (EventPosition.BOUNDARY, activity.id)
    if activity.compensation_handler is not None:
        handler = process.nodes[activity.compensation_handler]
        assert isinstance(handler, Activity)
        assert handler.is_for_compensation


def _check(xml: bytes) -> ReadResult:
    result = read_definitions(xml)
    _assert_findings_name_their_place(_findings(result), xml)
    for process in result.processes:
        _assert_consistent(process)
    return result


def test_reader_on_public_files(public_files: list[Path]) -> None:
    results = {path.name: _check(path.read_bytes()) for path in public_files}
    assert len(results) >= 170
    without_processes = {name for name, result in results.items() if not result.processes}
    assert without_processes == {*_NOT_XML, "bpmn-moddle__bad-encoding.bpmn", "code__decision-flow.bpmn"}
    assert all(results[name].is_refused for name in without_processes)
    refused = {name for name, result in results.items() if result.is_refused}
    assert len(refused) <= 30
    deployable = {name for name, result in results.items() if _is_deployable(result)}
    assert deployable >= _MUST_DEPLOY
    assert len(deployable) >= 60


@pytest.mark.parametrize("adopt_java", [False, True])
def test_reading_twice_gives_equal_results(public_files: list[Path], adopt_java: bool) -> None:
    for path in public_files[::5]:
        xml = path.read_bytes()
        first = read_definitions(xml, adopt_java=adopt_java)
        assert read_definitions(xml, adopt_java=adopt_java) == first


def test_the_compensation_of_a_public_file_is_wired(public_files: list[Path]) -> None:
    (path,) = (path for path in public_files if path.name == "code__InternetThings-Final.bpmn")
    (process,) = read_definitions(path.read_bytes()).processes
    tweet, answer = process.nodes["Task_08qm3po"], process.nodes["Task_1wjvt1y"]
    assert isinstance(tweet, Task)
    assert isinstance(answer, Task)
    assert tweet.compensation_handler == "Task_01t6qxo"
    assert answer.boundary_events == ("BoundaryEvent_07mgt9g",)


# --- damaged copies ---

_ATTRIBUTE = re.compile(rb'\s[\w:.-]+\s*=\s*"[^"]*"')
_REFERENCE = re.compile(rb'(Ref|default|id|name)="([^"]*)"')
_ELEMENT = re.compile(rb"<[\w:]+[^<>]*/>")
_TEXT = re.compile(rb">[^<>\s][^<>]*<")
_NOISE = (b"<", b">", b'"', b"&", b"${", b"=", b"]]>", b"\x00", b"\xff", b"\r", "ü".encode(), b"&#0;", b"1" * 400)


def _replace_one(
    pattern: re.Pattern[bytes], xml: bytes, chance: random.Random, make: Callable[[bytes], bytes]
) -> bytes:
    matches = list(pattern.finditer(xml))
    if not matches:
        return xml
    match = chance.choice(matches)
    return xml[: match.start()] + make(match.group()) + xml[match.end() :]


def _drop_attribute(xml: bytes, chance: random.Random) -> bytes:
    return _replace_one(_ATTRIBUTE, xml, chance, lambda _: b"")


def _break_reference(xml: bytes, chance: random.Random) -> bytes:
    others = [match[2] for match in _REFERENCE.finditer(xml)] or [b""]
    other = chance.choice([*others, b"", b"nowhere", b"a:b:c", b" "])
    return _replace_one(_REFERENCE, xml, chance, lambda old: old.split(b"=")[0] + b'="' + other + b'"')


def _flip_byte(xml: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(xml))
    return xml[:place] + bytes([xml[place] ^ (1 << chance.randrange(8))]) + xml[place + 1 :]


def _drop_element(xml: bytes, chance: random.Random) -> bytes:
    return _replace_one(_ELEMENT, xml, chance, lambda _: b"")


def _double_element(xml: bytes, chance: random.Random) -> bytes:
    return _replace_one(_ELEMENT, xml, chance, lambda element: element + element)


def _spoil_text(xml: bytes, chance: random.Random) -> bytes:
    noise = chance.choice((b"${", b"= (", b"PT", b"R/", b"2026-02-30", b"token.current[", b"-1", b"'", b"[[[["))
    return _replace_one(_TEXT, xml, chance, lambda _: b">" + noise + b"<")


def _insert_noise(xml: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(xml))
    return xml[:place] + chance.choice(_NOISE) + xml[place:]


def _cut(xml: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(xml))
    return xml[:start] + xml[start + chance.randrange(200) :]


def _rename_elements(xml: bytes, chance: random.Random) -> bytes:
    names = (b"userTask", b"startEvent", b"boundaryEvent", b"subProcess", b"sequenceFlow", b"receiveTask", b"endEvent")
    return xml.replace(chance.choice(names), chance.choice(names))


def _recode(xml: bytes, chance: random.Random) -> bytes:
    encoding = chance.choice(("utf-16", "utf-16-le", "utf-32", "latin-1", "utf-8-sig"))
    return xml.decode("latin-1").encode(encoding)


_MUTATIONS = (
    *(_drop_attribute, _break_reference, _break_reference, _flip_byte, _drop_element, _double_element),
    *(_spoil_text, _insert_noise, _cut, _rename_elements, _recode),
)


def test_mutated_files(public_files: list[Path]) -> None:
    chance = random.Random(20_260_101)
    originals = [xml for path in public_files if 0 < len(xml := path.read_bytes()) <= _SMALL_FILE_BYTES]
    refused = 0
    for number in range(_MUTANTS):
        xml = originals[number % len(originals)]
        for mutate in chance.choices(_MUTATIONS, k=chance.randint(1, 3)):
            xml = mutate(xml, chance) or b"<"
        refused += _check(xml).is_refused
    assert _MUTANTS // 4 < refused < _MUTANTS, "some damage shows, some is harmless"
