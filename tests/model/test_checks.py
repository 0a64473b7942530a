"""What can be deployed now, and what is refused by element id and line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stellwerk.model.checks import check_executable
from stellwerk.model.process import Position, Process, Severity
from stellwerk.model.reader import ReadResult

MakeProcess = Callable[..., Process]
Read = Callable[..., ReadResult]
ErrorsOf = Callable[..., list[str]]

CAMUNDA = 'xmlns:camunda="http://camunda.org/schema/1.0/bpmn"'
ZEEBE = 'xmlns:zeebe="http://camunda.org/schema/zeebe/1.0"'
START = '<startEvent id="s"/><sequenceFlow sourceRef="s" targetRef="n"/>'
TIMER = "<timerEventDefinition><timeDuration>PT5M</timeDuration></timerEventDefinition>"
CYCLE = "<timerEventDefinition><timeCycle>R3/PT1M</timeCycle></timerEventDefinition>"
CONDITION = "<conditionalEventDefinition><condition>x</condition></conditionalEventDefinition>"
MESSAGE = '<messageEventDefinition messageRef="m"/>'
ERROR = '<errorEventDefinition errorRef="E"/>'
TERMINATE = "<terminateEventDefinition/>"
COMPENSATION = "<compensateEventDefinition/>"
HANDLER = '<task id="h" isForCompensation="true"/><association id="a" sourceRef="b" targetRef="h"/>'


GATEWAY = '<eventBasedGateway id="n"/>'
LINK = '<linkEventDefinition name="x"/>'
LINK_CATCH = f'<intermediateCatchEvent id="c">{LINK}</intermediateCatchEvent>'


def _catch(definition: str, node_id: str = "n") -> str:
    return f'<intermediateCatchEvent id="{node_id}">{definition}</intermediateCatchEvent>'


def _throw(definition: str, node_id: str = "n") -> str:
    return f'<intermediateThrowEvent id="{node_id}">{definition}</intermediateThrowEvent>'


def _behind(*nodes: str) -> str:
    """The nodes, and a sequence flow to each from ``n``."""
    ids = [node.split('id="')[1].split('"')[0] for node in nodes]
    return "".join(nodes) + "".join(f'<sequenceFlow sourceRef="n" targetRef="{node_id}"/>' for node_id in ids)


def _boundary(definition: str) -> str:
    return f'<boundaryEvent id="b" attachedToRef="n">{definition}</boundaryEvent>'


@pytest.mark.parametrize(
    "node",
    [
        *(f'<{name} id="n"/>' for name in ("serviceTask", "sendTask", "businessRuleTask", "scriptTask", "userTask")),
        *(f'<{name} id="n"/>' for name in ("manualTask", "task", "exclusiveGateway", "parallelGateway", "endEvent")),
        '<receiveTask id="n" messageRef="m"/>',
        '<intermediateThrowEvent id="n"/>',
        '<intermediateThrowEvent id="n"><compensateEventDefinition/></intermediateThrowEvent>',
        _catch(TIMER),
        _catch("<timerEventDefinition><timeDate>2026-01-01</timeDate></timerEventDefinition>"),
        _catch(MESSAGE),
        *(f'<endEvent id="n">{definition}</endEvent>' for definition in (ERROR, TERMINATE, COMPENSATION)),
        '<subProcess id="n"><startEvent id="i"/></subProcess>',
        *('<task id="n"/>' + _boundary(definition) for definition in (TIMER, ERROR, MESSAGE)),
        f'<task id="n"/><boundaryEvent id="b" attachedToRef="n" cancelActivity="false">{TIMER}</boundaryEvent>',
        f'<task id="n"/>{HANDLER}{_boundary(COMPENSATION)}',
        '<task id="n"/>' + _boundary(CYCLE),
        '<task id="n"/>' + _boundary(CYCLE.replace("R3/PT1M", "R/2026-01-01T00:00:00Z/P1D")),
        GATEWAY + _behind(_catch(TIMER, "c"), '<receiveTask id="r" messageRef="m"/>'),
        _throw(LINK) + LINK_CATCH,
    ],
)
def test_what_the_core_runs_passes_without_a_finding(process_with: MakeProcess, node: str) -> None:
    assert check_executable(process_with(START + node)) == ()


@pytest.mark.parametrize(
    ("node", "error"),
    [
        ('<inclusiveGateway id="n"/>', 'inclusiveGateway "n": cannot run yet'),
        ('<complexGateway id="n"/>', 'complexGateway "n": cannot run yet'),
        (
            '<eventBasedGateway id="n"/>',
            'eventBasedGateway "n": nothing stands behind the gateway that it could wait for',
        ),
        (
            f'<eventBasedGateway id="n" instantiate="true"/>{_behind(_catch(TIMER, "c"))}',
            'eventBasedGateway "n": an event-based gateway that starts the process cannot run yet',
        ),
        (
            GATEWAY + _behind(_catch(TIMER, "c"), '<task id="t"/>'),
            'task "t": only events to wait for and receive tasks can stand behind "n"',
        ),
        (
            f'<eventBasedGateway id="n"/>{_behind(LINK_CATCH)}<intermediateThrowEvent id="l">{LINK}'
            "</intermediateThrowEvent>",
            'intermediateCatchEvent "c": no sequence flow can lead to the catch event of a link',
        ),
        (
            '<eventBasedGateway id="n"/>'
            + _behind('<receiveTask id="r" messageRef="m"/>')
            + f'<boundaryEvent id="b" attachedToRef="r">{TIMER}</boundaryEvent>',
            'receiveTask "r": with "n" before it, it cannot have boundary events',
        ),
        ('<callActivity id="n" calledElement="q"/>', 'callActivity "n": cannot run yet'),
        ('<transaction id="n"><startEvent id="i"/></transaction>', 'transaction "n": cannot run yet'),
        ('<adHocSubProcess id="n"/>', 'adHocSubProcess "n": cannot run yet'),
        (
            '<task id="n"/><subProcess id="u" triggeredByEvent="true"><startEvent id="i"/></subProcess>',
            'subProcess "u": cannot run yet',
        ),
        (
            '<task id="n"><multiInstanceLoopCharacteristics/></task>',
            'multiInstanceLoopCharacteristics "n": cannot run yet',
        ),
        ('<task id="n"><standardLoopCharacteristics/></task>', 'standardLoopCharacteristics "n": cannot run yet'),
        (
            _catch(CYCLE),
            'intermediateCatchEvent "n": a timer cycle cannot run yet anywhere but at a boundary event',
        ),
        (
            '<task id="n"/>' + _boundary(CYCLE.replace("R3/PT1M", "0 0 * * * *")),
            'boundaryEvent "b": "0 0 * * * *" is no cycle like R3/PT10M',
        ),
        ('<task id="n"/>' + _boundary(CYCLE.replace("R3", "R0")), 'boundaryEvent "b": "R0/PT1M" repeats never'),
        (
            '<intermediateCatchEvent id="n"><signalEventDefinition signalRef="x"/></intermediateCatchEvent>',
            "an event of kind signal cannot run yet",
        ),
        (
            _catch(CONDITION),
            "an event of kind conditional cannot run yet",
        ),
        (
            _throw(LINK),
            'intermediateThrowEvent "n": no catch event of the link "x" is in the same scope',
        ),
        (
            f'{_throw(LINK)}<subProcess id="u"><startEvent id="i"/><sequenceFlow sourceRef="i" targetRef="y"/>'
            f'{_throw(LINK, "y")}{LINK_CATCH}</subProcess><task id="t"/>'
            '<sequenceFlow sourceRef="t" targetRef="u"/>',
            'intermediateThrowEvent "n": no catch event of the link "x" is in the same scope',
        ),
        (
            _throw(LINK) + LINK_CATCH + LINK_CATCH.replace('"c"', '"d"'),
            'intermediateCatchEvent "d": the link "x" leads to "c" already',
        ),
        (
            _throw(LINK) + LINK_CATCH + '<task id="t"/><sequenceFlow sourceRef="n" targetRef="t"/>',
            'intermediateThrowEvent "n": no sequence flow can leave a link: it goes on at the catch event of that name',
        ),
        (
            _throw(LINK) + LINK_CATCH + '<task id="t"/><sequenceFlow sourceRef="t" targetRef="c"/>',
            'intermediateCatchEvent "c": no sequence flow can lead to the catch event of a link',
        ),
        (
            '<intermediateThrowEvent id="n"><escalationEventDefinition escalationRef="x"/></intermediateThrowEvent>',
            "an event of kind escalation cannot run yet",
        ),
        ('<endEvent id="n"><cancelEventDefinition/></endEvent>', "an event of kind cancel cannot run yet"),
        (
            '<endEvent id="n"><messageEventDefinition messageRef="m"/></endEvent>',
            'endEvent "n": throwing a message cannot run yet, unless a topic gives it to workers',
        ),
        (
            '<endEvent id="n"><terminateEventDefinition/><compensateEventDefinition/></endEvent>',
            'endEvent "n": a multiple event cannot run yet',
        ),
        (f'<task id="n"/><startEvent id="s2">{TIMER}</startEvent>', "an event of kind timer cannot run yet"),
        (
            '<subProcess id="n"><startEvent id="i"/><startEvent id="j"/></subProcess>',
            'startEvent "j": "i" is a none start event here already',
        ),
        (
            '<receiveTask id="n"/>',
            'receiveTask "n": the receive task names no message: nothing could ever complete it',
        ),
        (
            '<intermediateThrowEvent id="n"><messageEventDefinition messageRef="m"/></intermediateThrowEvent>',
            'intermediateThrowEvent "n": throwing a message cannot run yet, unless a topic gives it to workers',
        ),
        ('<subProcess id="n"/>', 'subProcess "n": no start event'),
        ('<subProcess id="n"><task id="i"/></subProcess>', 'subProcess "n": no start event'),
        (
            '<subProcess id="n"><startEvent id="i"><messageEventDefinition messageRef="m"/></startEvent></subProcess>',
            'startEvent "i": the start event of an embedded subprocess has no event definition',
        ),
        (
            '<task id="n"/><sequenceFlow sourceRef="n" targetRef="s"/>',
            'startEvent "s": no sequence flow can lead here',
        ),
        (
            '<endEvent id="n"/><task id="t"/><sequenceFlow sourceRef="n" targetRef="t"/>',
            'endEvent "n": no sequence flow can leave an end event',
        ),
        (
            '<task id="n" isForCompensation="true"/>',
            'task "n": a compensation handler has no sequence flows',
        ),
        (
            f'<task id="n"/>{HANDLER}{_boundary(COMPENSATION)}'
            '<task id="t"/><sequenceFlow sourceRef="b" targetRef="t"/>',
            'boundaryEvent "b": an association leads from here to the handler, not a sequence flow',
        ),
    ],
)
def test_what_the_core_cannot_run_is_refused_by_element_id(errors_of: ErrorsOf, node: str, error: str) -> None:
    found = errors_of(START + node)
    assert len(found) == 1, found
    assert error in found[0]


def test_a_finding_has_the_line_of_the_element(read: Read) -> None:
    (process,) = read(f'<process id="p">{START}\n  <inclusiveGateway id="n"/></process>').processes
    (finding,) = check_executable(process)
    assert finding.position == Position(3, 3)
    assert str(finding) == 'line 3, column 3: inclusiveGateway "n": cannot run yet'


def test_a_process_without_start_event_is_refused(errors_of: ErrorsOf) -> None:
    assert errors_of('<task id="t"/>') == ['process "p": no start event']


def test_several_message_starts_and_one_none_start_are_possible(errors_of: ErrorsOf) -> None:
    message = '<startEvent id="{0}"><messageEventDefinition messageRef="{0}"/></startEvent>'
    assert errors_of('<startEvent id="s"/>' + message.format("m1") + message.format("m2")) == []


def test_a_message_event_that_workers_do_can_run(errors_of: ErrorsOf) -> None:
    event = (
        '<endEvent id="n"><extensionElements><zeebe:taskDefinition type="emit"/></extensionElements>'
        "<messageEventDefinition/></endEvent>"
    )
    assert errors_of(START + event, ZEEBE) == []


@pytest.mark.parametrize(
    ("attributes", "node", "what"),
    [
        (CAMUNDA, '<serviceTask id="n"/>', "no topic says which workers do this"),
        (ZEEBE, '<sendTask id="n"/>', "no topic says which workers do this"),
        (CAMUNDA, '<businessRuleTask id="n" camunda:decisionRef="d"/>', 'the decision "d" cannot run yet'),
        (
            ZEEBE,
            '<scriptTask id="n"><extensionElements><zeebe:script expression="=1"/></extensionElements></scriptTask>',
            "a script in feel cannot run inside the engine",
        ),
        (
            CAMUNDA,
            '<scriptTask id="n" scriptFormat="groovy"><script>1</script></scriptTask>',
            "a script in groovy cannot run inside the engine",
        ),
    ],
)
def test_a_task_that_no_worker_can_get_is_refused(errors_of: ErrorsOf, attributes: str, node: str, what: str) -> None:
    (error,) = errors_of(START + node, attributes)
    assert what in error


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (
            '<exclusiveGateway id="n" default="d"/><task id="t"/><sequenceFlow id="d" sourceRef="n" targetRef="t"/>'
            '<sequenceFlow id="f" sourceRef="n" targetRef="t"/>',
            'sequenceFlow "f": leaves an exclusive gateway without a condition',
        ),
        (
            '<parallelGateway id="n"/><task id="t"/><sequenceFlow id="f" sourceRef="n" targetRef="t">'
            "<conditionExpression>x</conditionExpression></sequenceFlow>",
            'sequenceFlow "f": the condition is not looked at behind a parallel gateway',
        ),
        (
            f'<eventBasedGateway id="n"/>{_catch(TIMER, "c")}<sequenceFlow id="f" sourceRef="n" targetRef="c">'
            "<conditionExpression>x</conditionExpression></sequenceFlow>",
            'sequenceFlow "f": the condition is not looked at behind an event-based gateway',
        ),
        (
            f'<task id="n"/>{LINK_CATCH}',
            'intermediateCatchEvent "c": no throw event of the link "x" is in the same scope: it is never reached',
        ),
        (
            '<task id="n"/><startEvent id="s2"/>',
            'startEvent "s2": "s" is a none start event here already: a start has to name one of them',
        ),
        ('<task id="n"/><task id="t"/>', 'task "t": no sequence flow leads here'),
        (
            '<task id="n"/><task id="t" isForCompensation="true"/>',
            'task "t": no compensation boundary event leads to this handler',
        ),
    ],
)
def test_what_looks_like_a_slip_is_a_warning(process_with: MakeProcess, body: str, what: str) -> None:
    (finding,) = check_executable(process_with(START + body))
    assert finding.severity is Severity.WARNING
    assert what in str(finding)


LONG = ".".join(["a"] * 51)
OWN = 'xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"'


@pytest.mark.parametrize(
    ("attributes", "mapping"),
    [
        (OWN, f'<stellwerk:input source="=x" target="{LONG}"/>'),
        (OWN, f'<stellwerk:output source="=x" target="{LONG}"/>'),
        (ZEEBE, f'<zeebe:ioMapping><zeebe:input source="=x" target="{LONG}"/></zeebe:ioMapping>'),
        (ZEEBE, f'<zeebe:ioMapping><zeebe:output source="=x" target="{LONG}"/></zeebe:ioMapping>'),
        (CAMUNDA, f'<camunda:inputOutput><camunda:inputParameter name="{LONG}"/></camunda:inputOutput>'),
        (CAMUNDA, f'<camunda:out source="x" target="{LONG}"/>'),
    ],
)
def test_a_mapping_leads_into_50_levels_at_most(errors_of: ErrorsOf, attributes: str, mapping: str) -> None:
    for node in ("task", "endEvent"):
        xml = f'{START}<{node} id="n"><extensionElements>{mapping}</extensionElements></{node}>'
        assert errors_of(xml, attributes) == [f'{node} "n": a mapping\'s target has 51 parts, at most 50 are allowed']
        assert errors_of(xml.replace(LONG, LONG[2:]), attributes) == []


def test_input_mappings_behind_an_event_based_gateway_are_told(read: Read) -> None:
    mapping = '<stellwerk:input source="=x" target="y"/>'
    task = f'<receiveTask id="r" messageRef="m"><extensionElements>{mapping}</extensionElements></receiveTask>'
    (process,) = read(f'<process id="p">{START}<eventBasedGateway id="n"/>{_behind(task)}</process>', OWN).processes
    (finding,) = check_executable(process)
    assert str(finding).endswith('receiveTask "r": its input mappings are not looked at: "n" has waited in its place')
    assert finding.severity is Severity.WARNING
