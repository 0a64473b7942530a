"""What the reader makes of standard BPMN, and what it says about mistakes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stellwerk.model.expressions import Language
from stellwerk.model.process import (
    Activity,
    CallActivity,
    CompensationDefinition,
    ConditionalDefinition,
    Dialect,
    ErrorDefinition,
    EscalationDefinition,
    Event,
    EventPosition,
    Gateway,
    GatewayKind,
    LinkDefinition,
    MessageDefinition,
    Position,
    Process,
    Severity,
    SignalDefinition,
    SubProcess,
    SubProcessKind,
    Task,
    TaskKind,
    TerminateDefinition,
    TimerDefinition,
)
from stellwerk.model.reader import ReadResult, read_definitions

MakeProcess = Callable[..., Process]
Read = Callable[..., ReadResult]
ErrorsOf = Callable[..., list[str]]

_LINE = """
  <startEvent id="s"/>
  <sequenceFlow id="f1" sourceRef="s" targetRef="t"/>
  <task id="t" name="Do it"/>
  <sequenceFlow sourceRef="t" targetRef="e"/>
  <endEvent id="e"/>
"""
_INNER = '<subProcess id="u"><task id="t"/></subProcess>'


def _catch(definition: str) -> str:
    return f'<intermediateCatchEvent id="c">{definition}</intermediateCatchEvent>'


def _boundary(definition: str, attached_to: str) -> str:
    return f'<boundaryEvent id="b" attachedToRef="{attached_to}">{definition}</boundaryEvent>'


def _flow_with(condition: str) -> str:
    return f'<task id="t"/><sequenceFlow id="f" sourceRef="t" targetRef="t">{condition}</sequenceFlow>'


def test_nodes_and_flows_find_each_other_without_incoming_and_outgoing_children(process_with: MakeProcess) -> None:
    process = process_with(_LINE)
    assert list(process.nodes) == ["s", "t", "e"] == list(process.children)
    assert list(process.flows) == ["f1", "t->e#1"]
    task = process.nodes["t"]
    assert isinstance(task, Task)
    assert (task.kind, task.name, task.incoming, task.outgoing) == (TaskKind.UNDEFINED, "Do it", ("f1",), ("t->e#1",))
    assert process.flows["t->e#1"].position == Position(6, 3)
    assert (process.dialect, process.language) == (Dialect.PLAIN, Language.FEEL)


@pytest.mark.parametrize("prefix", ["bpmn", "bpmn2", "semantic", "x"])
def test_prefixes_do_not_matter(prefix: str) -> None:
    xml = f"""<{prefix}:definitions xmlns:{prefix}="http://www.omg.org/spec/BPMN/20100524/MODEL">
      <{prefix}:process id="p"><{prefix}:startEvent id="s"/></{prefix}:process></{prefix}:definitions>"""
    (process,) = read_definitions(xml.encode()).processes
    assert list(process.nodes) == ["s"]


def test_a_prefix_may_be_declared_below_the_root_and_twice() -> None:
    xml = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"><process id="p">
      <a:startEvent xmlns:a="http://www.omg.org/spec/BPMN/20100524/MODEL" id="s"/></process></definitions>"""
    (process,) = read_definitions(xml.encode()).processes
    assert list(process.nodes) == ["s"]


def test_flows_without_id_get_ids_that_nobody_has(process_with: MakeProcess) -> None:
    flow = '<sequenceFlow sourceRef="s" targetRef="t"/>'
    process = process_with(f'<startEvent id="s"/><task id="t"/>{flow}<task id="s->t#2"/>{flow}')
    assert list(process.flows) == ["s->t#1", "s->t#3"]


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_booleans_are_those_of_xml_schema(process_with: MakeProcess, text: str, expected: bool) -> None:
    process = process_with(f'<task id="t" isForCompensation="{text}"/><subProcess id="u" triggeredByEvent="{text}"/>')
    task, subprocess = process.nodes["t"], process.nodes["u"]
    assert isinstance(task, Activity)
    assert isinstance(subprocess, SubProcess)
    assert task.is_for_compensation is expected
    assert subprocess.kind is (SubProcessKind.EVENT if expected else SubProcessKind.EMBEDDED)


def test_subprocesses_hold_their_nodes(process_with: MakeProcess) -> None:
    process = process_with(
        '<subProcess id="a"><startEvent id="s"/><transaction id="b"><task id="t"/></transaction></subProcess>'
        '<adHocSubProcess id="c"/>'
    )
    assert process.children == ("a", "c")
    assert process.scope_children("a") == ("s", "b")
    assert process.scope_children("b") == ("t",)
    assert (process.nodes["t"].parent, process.nodes["a"].parent) == ("b", None)
    kinds = [node.kind for node in process.nodes.values() if isinstance(node, SubProcess)]
    assert kinds == [SubProcessKind.EMBEDDED, SubProcessKind.TRANSACTION, SubProcessKind.AD_HOC]


def test_conditions_and_default_flows_are_read_on_gateways_and_activities(process_with: MakeProcess) -> None:
    process = process_with(
        """
        <exclusiveGateway id="g" default="f2"/><task id="a" default="f4"/><task id="b"/>
        <sequenceFlow id="f1" sourceRef="g" targetRef="a">
          <conditionExpression>= x &gt; 1</conditionExpression></sequenceFlow>
        <sequenceFlow id="f2" sourceRef="g" targetRef="b"/>
        <sequenceFlow id="f3" sourceRef="a" targetRef="b">
          <conditionExpression><![CDATA[y < 2]]></conditionExpression></sequenceFlow>
        <sequenceFlow id="f4" sourceRef="a" targetRef="b"><conditionExpression/></sequenceFlow>
        """
    )
    gateway = process.nodes["g"]
    assert isinstance(gateway, Gateway)
    assert gateway.kind is GatewayKind.EXCLUSIVE
    assert (gateway.default_flow, process.nodes["a"].default_flow) == ("f2", "f4")
    conditions = {flow.id: flow.condition.source if flow.condition else None for flow in process.flows.values()}
    assert conditions == {"f1": "= x > 1", "f2": None, "f3": "y < 2", "f4": None}


def test_every_event_definition_is_read(process_with: MakeProcess) -> None:
    process = process_with(
        """
        <startEvent id="message"><messageEventDefinition messageRef="m"/></startEvent>
        <startEvent id="signal"><signalEventDefinition signalRef="sig"/></startEvent>
        <startEvent id="condition">
          <conditionalEventDefinition><condition>x = 1</condition></conditionalEventDefinition></startEvent>
        <intermediateCatchEvent id="link"><linkEventDefinition name="here"/></intermediateCatchEvent>
        <intermediateCatchEvent id="timer">
          <timerEventDefinition><timeDuration>PT5M</timeDuration></timerEventDefinition></intermediateCatchEvent>
        <endEvent id="error"><errorEventDefinition errorRef="err"/></endEvent>
        <endEvent id="escalation"><escalationEventDefinition escalationRef="esc"/></endEvent>
        <endEvent id="terminate"><terminateEventDefinition/></endEvent>
        <endEvent id="compensation"><compensateEventDefinition activityRef="t" waitForCompletion="false"/></endEvent>
        <endEvent id="reference"><eventDefinitionRef>shared</eventDefinitionRef></endEvent>
        <task id="t"/>
        """,
        roots="""
        <message id="m" name="Paid"/><signal id="sig" name="Alarm"/><error id="err" errorCode="E1"/>
        <escalation id="esc" escalationCode="X1"/><terminateEventDefinition id="shared"/>
        """,
    )
    events = {event.id: event.definition for event in process.nodes.values() if isinstance(event, Event)}
    assert isinstance(events["message"], MessageDefinition)
    assert events["message"].name.literal_value == "Paid"
    assert events["message"].correlation_key is None
    assert isinstance(events["signal"], SignalDefinition)
    assert events["signal"].name.literal_value == "Alarm"
    assert isinstance(events["condition"], ConditionalDefinition)
    assert events["link"] == LinkDefinition("here")
    assert isinstance(events["timer"], TimerDefinition)
    assert events["timer"].duration is not None
    assert events["timer"].duration.literal_value == "PT5M"
    assert isinstance(events["error"], ErrorDefinition)
    assert events["error"].code is not None
    assert events["error"].code.literal_value == "E1"
    assert isinstance(events["escalation"], EscalationDefinition)
    assert events["escalation"].code is not None
    assert events["escalation"].code.literal_value == "X1"
    assert events["terminate"] == TerminateDefinition() == events["reference"]
    assert events["compensation"] == CompensationDefinition("t", wait_for_completion=False)


def test_a_multiple_event_keeps_all_its_definitions(process_with: MakeProcess) -> None:
    process = process_with(
        '<intermediateCatchEvent id="c" parallelMultiple="true"><signalEventDefinition signalRef="a"/>'
        '<signalEventDefinition signalRef="b"/></intermediateCatchEvent>'
    )
    event = process.nodes["c"]
    assert isinstance(event, Event)
    assert (len(event.definitions), event.definition, event.parallel_multiple) == (2, None, True)


def test_boundary_events_are_attached(process_with: MakeProcess) -> None:
    process = process_with(
        """
        <task id="t"/>
        <boundaryEvent id="b1" attachedToRef="t" cancelActivity="false">
          <timerEventDefinition><timeDate>2026-01-31T12:00:00Z</timeDate></timerEventDefinition></boundaryEvent>
        <boundaryEvent id="b2" attachedToRef="t"><errorEventDefinition/></boundaryEvent>
        """
    )
    task, timer, error = process.nodes["t"], process.nodes["b1"], process.nodes["b2"]
    assert isinstance(task, Task)
    assert isinstance(timer, Event)
    assert isinstance(error, Event)
    assert task.boundary_events == ("b1", "b2")
    assert (timer.where, timer.attached_to, timer.interrupting) == (EventPosition.BOUNDARY, "t", False)
    assert error.interrupting
    assert error.definition == ErrorDefinition(None)


@pytest.mark.parametrize("ends", ['sourceRef="b" targetRef="undo"', 'sourceRef="undo" targetRef="b"'])
def test_a_compensation_handler_is_found_whichever_way_the_association_points(
    process_with: MakeProcess, ends: str
) -> None:
    process = process_with(
        f"""
        <serviceTask id="do"/><serviceTask id="undo"/>
        <boundaryEvent id="b" attachedToRef="do"><compensateEventDefinition/></boundaryEvent>
        <association id="a" {ends}/>
        <textAnnotation id="n"/><association id="a2" sourceRef="do" targetRef="n"/>
        """
    )
    do, undo = process.nodes["do"], process.nodes["undo"]
    assert isinstance(do, Activity)
    assert isinstance(undo, Activity)
    assert do.compensation_handler == "undo"
    assert undo.is_for_compensation


def test_references_may_be_qualified_names(process_with: MakeProcess) -> None:
    process = process_with(
        '<startEvent id="s"><messageEventDefinition messageRef="tns:m"/></startEvent>'
        '<sequenceFlow id="f" sourceRef="tns:s" targetRef="odd:id"/><task id="odd:id"/>'
        '<callActivity id="c" calledElement="tns:other"/>',
        'xmlns:tns="http://example.com/bpmn"',
        roots='<message id="m" name="Hello"/>',
    )
    start, call = process.nodes["s"], process.nodes["c"]
    assert isinstance(start, Event)
    assert isinstance(start.definition, MessageDefinition)
    assert start.definition.name.literal_value == "Hello"
    assert (process.flows["f"].source, process.flows["f"].target) == ("s", "odd:id")
    assert isinstance(call, CallActivity)
    assert call.called is not None
    assert call.called.literal_value == "other"
    assert call.pass_all_variables


def test_what_is_referred_to_but_not_declared_is_itself_the_name_or_code(process_with: MakeProcess) -> None:
    process = process_with(
        '<receiveTask id="r" messageRef="Paid"/><endEvent id="e"><errorEventDefinition errorRef="E9"/></endEvent>'
        '<endEvent id="x"><signalEventDefinition signalRef="Alarm"/></endEvent>'
    )
    receive, end, signal = process.nodes["r"], process.nodes["e"], process.nodes["x"]
    assert isinstance(receive, Task)
    assert receive.message is not None
    assert receive.message.name.literal_value == "Paid"
    assert isinstance(end, Event)
    assert isinstance(end.definition, ErrorDefinition)
    assert end.definition.code is not None
    assert end.definition.code.literal_value == "E9"
    assert isinstance(signal, Event)
    assert isinstance(signal.definition, SignalDefinition)
    assert signal.definition.name.literal_value == "Alarm"


def test_loops_are_read(process_with: MakeProcess) -> None:
    process = process_with(
        """
        <task id="a"><standardLoopCharacteristics testBefore="true" loopMaximum="3">
          <loopCondition>x &lt; 3</loopCondition></standardLoopCharacteristics></task>
        <task id="b"><multiInstanceLoopCharacteristics isSequential="true"><loopCardinality>5</loopCardinality>
          <completionCondition>done</completionCondition></multiInstanceLoopCharacteristics></task>
        <task id="c"><multiInstanceLoopCharacteristics><loopDataInputRef>orders</loopDataInputRef>
          <inputDataItem name="order"/></multiInstanceLoopCharacteristics></task>
        """
    )
    loops = [node.loop for node in process.nodes.values() if isinstance(node, Activity) and node.loop]
    standard, sequential, parallel = loops
    assert (standard.multi_instance, standard.test_before, standard.loop_maximum) == (False, True, 3)
    assert standard.completion_condition is not None
    assert (sequential.multi_instance, sequential.sequential) == (True, True)
    assert sequential.cardinality is not None
    assert sequential.cardinality.literal_value == 5
    assert (parallel.sequential, parallel.input_element) == (False, "order")
    assert parallel.input_collection is not None
    assert parallel.input_collection.source == "orders"


def test_performers_and_owners_of_the_standard_are_read(process_with: MakeProcess) -> None:
    resource = "<resourceAssignmentExpression><formalExpression>{}</formalExpression></resourceAssignmentExpression>"
    process = process_with(
        f'<userTask id="u"><humanPerformer>{resource.format("kermit")}</humanPerformer>'
        f"<potentialOwner>{resource.format('management')}</potentialOwner></userTask>"
    )
    task = process.nodes["u"]
    assert isinstance(task, Task)
    assert task.user is not None
    assert task.user.assignee is not None
    assert task.user.assignee.literal_value == "kermit"
    assert task.user.candidate_groups is not None
    assert task.user.candidate_groups.literal_value == "management"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([None], [True]),
        (["true", "false"], [True, False]),
        (["true", None], [True, False]),
        (["false", None], [False, True]),
        ([None, None], [True, True]),
        (["0"], [False]),
    ],
)
def test_which_processes_are_executable(read: Read, flags: list[str | None], expected: list[bool]) -> None:
    given = [f' isExecutable="{flag}"' if flag else "" for flag in flags]
    result = read("".join(f'<process id="p{number}"{flag}/>' for number, flag in enumerate(given)))
    assert [process.executable for process in result.processes] == expected


def test_mistakes_in_a_process_that_is_not_executable_are_warnings(read: Read) -> None:
    broken = '<sequenceFlow id="f" sourceRef="x" targetRef="y"/>'
    result = read(f'<process id="a" isExecutable="true"/><process id="b" isExecutable="false">{broken}</process>')
    assert not result.is_refused
    assert len(result.findings) == 2
    assert read(f'<process id="b" isExecutable="true">{broken}</process>').is_refused


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            '<sequenceFlow id="f" sourceRef="s" targetRef="t"/><task id="t"/>',
            'sequenceFlow "f": sourceRef "s" is no flow node here',
        ),
        ('<sequenceFlow id="f" sourceRef="t"/><task id="t"/>', 'sequenceFlow "f": targetRef is missing'),
        ('<task id="t"/><task id="t"/>', 'task "t": the id is taken by the task in line 2'),
        ("<task/>", 'task "p": an id is needed'),
        (f'<task id="{"x" * 201}"/>', "the id has 201 characters, at most 200 are allowed"),
        ('<task id="t" default="f"/>', 'task "t": the default flow "f" does not leave here'),
        (_boundary("<errorEventDefinition/>", "x"), 'boundaryEvent "b": attachedToRef "x" is no activity here'),
        ('<boundaryEvent id="b"><errorEventDefinition/></boundaryEvent>', '"attachedToRef" is missing'),
        ('<task id="t"/>' + _boundary("", "t"), "nothing can trigger it"),
        (_catch(""), "nothing can trigger it"),
        (
            f'{_INNER}<task id="v"/><sequenceFlow id="f" sourceRef="t" targetRef="v"/>',
            'sequenceFlow "f": a sequence flow cannot cross the border of a subprocess',
        ),
        (_INNER + _boundary("<errorEventDefinition/>", "t"), 'boundaryEvent "b": "t" stands in another subprocess'),
        (_catch("<messageEventDefinition/>"), 'messageEventDefinition "c": the event names no message'),
        (_catch("<signalEventDefinition/>"), "the event names no signal"),
        (_catch("<conditionalEventDefinition/>"), "the event has no condition"),
        (_catch("<linkEventDefinition/>"), "the link has no name"),
        (_catch("<timerEventDefinition/>"), "neither date, duration nor cycle"),
        (_catch("<eventDefinitionRef>x</eventDefinitionRef>"), 'no event definition has the id "x"'),
        ('<endEvent id="e"><errorEventDefinition/></endEvent>', "the error that is thrown has no code"),
        (
            '<endEvent id="e"><compensateEventDefinition activityRef="x"/></endEvent>',
            'endEvent "e": activityRef "x" is no activity here',
        ),
        (
            '<task id="t"/>' + _boundary("<compensateEventDefinition/>", "t"),
            'boundaryEvent "b": no association leads to a compensation handler',
        ),
        ('<callActivity id="c"/>', "the call activity names no process"),
        ('<wibbleTask id="w"/>', 'wibbleTask "w": an element that is unknown here'),
        (_flow_with("<conditionExpression>= 1 +</conditionExpression>"), 'conditionExpression "f": '),
        (
            _flow_with('<conditionExpression language="groovy">x</conditionExpression>'),
            'conditionExpression "f": the expression language "groovy" is not supported',
        ),
    ],
)
def test_a_mistake_is_an_error_that_names_the_element(errors_of: ErrorsOf, body: str, error: str) -> None:
    assert any(error in found for found in errors_of(body)), errors_of(body)


@pytest.mark.parametrize(
    ("time", "what"),
    [
        ("<timeDate>2026-02-30T00:00:00Z</timeDate>", "does not exist"),
        ("<timeDate>tomorrow</timeDate>", "is no ISO 8601 date"),
        ("<timeDuration>five minutes</timeDuration>", "is no ISO 8601 duration"),
        ("<timeCycle>R3/PT</timeCycle>", "without hours"),
        ("<timeCycle>Rx/PT5M</timeCycle>", "is no repetition"),
        ("<timeDate>2026-01-01</timeDate><timeDuration>PT1S</timeDuration>", "more than one time"),
    ],
)
def test_a_time_that_does_not_exist_is_found_at_deploy(errors_of: ErrorsOf, time: str, what: str) -> None:
    body = (
        f'<intermediateCatchEvent id="c"><timerEventDefinition>{time}</timerEventDefinition></intermediateCatchEvent>'
    )
    assert any(what in error for error in errors_of(body))


def test_all_findings_come_at_once_in_the_order_of_the_file(read: Read) -> None:
    result = read(
        '<process id="p">\n<task id="t" default="x"/>\n<sequenceFlow id="f" sourceRef="a" targetRef="b"/>\n'
        '<task id="t"/>\n<endEvent id="e"><errorEventDefinition/></endEvent>\n</process>'
    )
    assert [finding.position.line for finding in result.findings] == [3, 4, 4, 5, 6]
    assert all(finding.severity is Severity.ERROR for finding in result.findings)
    assert str(result.findings[0]) == 'line 3, column 1: task "t": the default flow "x" does not leave here'


def test_unknown_extensions_become_headers(process_with: MakeProcess) -> None:
    process = process_with(
        """<serviceTask id="t"><extensionElements>
          <x:note>call me</x:note><x:note>twice</x:note><x:limits low="1" high="2"><x:unit>EUR</x:unit></x:limits>
        </extensionElements></serviceTask>""",
        'xmlns:x="http://example.com/own"',
    )
    headers = process.nodes["t"].headers
    assert headers["note"] == "call me"
    assert headers["limits"] == '{"high":"2","low":"1","unit":[{"text":"EUR"}]}'
    assert "twice" in headers.values()


def test_an_element_of_another_namespace_in_a_process_is_a_warning(read: Read) -> None:
    result = read('<process id="p"><x:thing/></process>', 'xmlns:x="http://example.com/own"')
    (finding,) = result.findings
    assert finding.severity is Severity.WARNING
    assert "http://example.com/own" in finding.what


def test_in_plain_files_tasks_for_workers_have_their_id_as_topic(process_with: MakeProcess) -> None:
    names = ("serviceTask", "sendTask", "businessRuleTask", "scriptTask")
    process = process_with(
        "".join(f'<{name} id="{name}"/>' for name in names) + '<userTask id="u"/><manualTask id="m"/>'
    )
    topics = {
        task.id: task.work.topic.literal_value
        for task in process.nodes.values()
        if isinstance(task, Task) and task.work
    }
    assert topics == {name: name for name in names}


@pytest.mark.parametrize(
    ("attributes", "condition", "language"),
    [
        ("", "x > 1", Language.FEEL),
        ("", "=x > 1", Language.FEEL),
        ("", "${x > 1}", Language.JUEL),
        ("", "#{x > 1}", Language.JUEL),
        ('expressionLanguage="http://www.java.com/javaTypes"', "${x > 1}", Language.JUEL),
        ('expressionLanguage="https://www.omg.org/spec/DMN/20191111/FEEL/"', "x > 1", Language.FEEL),
        ('expressionLanguage="juel"', "${x}", Language.JUEL),
        ("", "token.current.x > 1", Language.PROCESSCUBE),
        ("", "1 === 2;", Language.PROCESSCUBE),
    ],
)
def test_the_language_is_decided_for_the_whole_file(
    read: Read, attributes: str, condition: str, language: Language
) -> None:
    condition = condition.replace(">", "&gt;")
    result = read(
        '<process id="p"><task id="t"/><sequenceFlow sourceRef="t" targetRef="t">'
        f"<conditionExpression>{condition}</conditionExpression></sequenceFlow></process>",
        attributes,
    )
    (process,) = result.processes
    assert process.language is language
    assert result.findings == ()
