"""One file has one language: what is written in another is told, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stellwerk.model.expressions import Language
from stellwerk.model.process import Dialect, Severity
from stellwerk.model.reader import ReadResult

Read = Callable[..., ReadResult]
ErrorsOf = Callable[..., list[str]]

CAMUNDA = 'xmlns:camunda="http://camunda.org/schema/1.0/bpmn"'
ZEEBE = 'xmlns:zeebe="http://camunda.org/schema/zeebe/1.0"'
STELLWERK = 'xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"'
OURS = '<serviceTask id="t" stellwerk:topic="x"/>'
FEEL_FILE = "a file with stellwerk: in it is written in FEEL"


def _flow(condition: str, number: int = 1) -> str:
    escaped = condition.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return (
        f'<sequenceFlow id="f{number}" sourceRef="t" targetRef="t">'
        f"<conditionExpression>{escaped}</conditionExpression></sequenceFlow>"
    )


def _process(body: str) -> str:
    return f'<process id="p" isExecutable="true">{body}</process>'


def _whats(result: ReadResult, severity: Severity) -> list[str]:
    return [finding.what for finding in result.findings if finding.severity is severity]


@pytest.mark.parametrize(
    ("condition", "advice"),
    [
        ("${n > 1}", 'write "=n > 1"'),
        ("#{ n > 1 }", 'write "=n > 1"'),
        ("${a == 'x' && b}", 'write "=a = "x" and b"'),
        ("${a ? b : c}", "write an expression like =n > 1"),
    ],
)
def test_a_condition_in_braces_leaves_a_file_of_ours_feel_and_says_what_to_write(
    read: Read, condition: str, advice: str
) -> None:
    result = read(_process(OURS + _flow(condition) + _flow("=m > 2", 2)), STELLWERK)
    (process,) = result.processes
    assert (process.dialect, process.language) == (Dialect.STELLWERK, Language.FEEL)
    (error,) = _whats(result, Severity.ERROR)
    assert f"is JUEL, and {FEEL_FILE}: " in error
    assert advice in error


@pytest.mark.parametrize(
    "node",
    [
        '<serviceTask id="n" stellwerk:topic="${kind}"/>',
        '<serviceTask id="n" stellwerk:topic="x" stellwerk:retries="${n}"/>',
        '<serviceTask id="n" stellwerk:topic="x" stellwerk:priority="#{n}"/>',
        '<serviceTask id="n" stellwerk:topic="x" stellwerk:payload="${n}"/>',
        '<userTask id="n" stellwerk:assignee="${owner}"/>',
        '<userTask id="n" stellwerk:due="in ${days} days"/>',
        '<receiveTask id="n" messageRef="m" stellwerk:correlationKey="${id}"/>',
        '<task id="n"><extensionElements><stellwerk:input source="${x}" target="y"/></extensionElements></task>',
        '<task id="n"><extensionElements><stellwerk:output source="a ${x}" target="y"/></extensionElements></task>',
        '<intermediateCatchEvent id="n"><timerEventDefinition><timeDuration>${d}</timeDuration>'
        "</timerEventDefinition></intermediateCatchEvent>",
        '<endEvent id="n"><errorEventDefinition errorRef="e"/></endEvent>',
    ],
)
@pytest.mark.parametrize("braced", [True, False])
def test_braces_are_an_error_wherever_an_expression_could_stand(read: Read, node: str, braced: bool) -> None:
    roots = '<message id="m" name="M"/><error id="e" errorCode="${code}"/>'
    if not braced:
        node, roots = (text.replace("${", "{").replace("#{", "{") for text in (node, roots))
    errors = _whats(read(_process(OURS + node) + roots, STELLWERK), Severity.ERROR)
    assert [" is JUEL, and " in error for error in errors if "JUEL" in error] == ([True] if braced else [])


def test_braces_inside_a_feel_text_or_a_header_are_no_mistake(read: Read) -> None:
    node = '<extensionElements><stellwerk:header key="a" value="${x}"/></extensionElements>'
    result = read(
        _process(f'<serviceTask id="t" stellwerk:topic="x" stellwerk:payload=\'="${{n}}"\'>{node}</serviceTask>'),
        STELLWERK,
    )
    assert result.findings == ()


def test_one_condition_of_processcube_leaves_a_file_of_ours_feel(read: Read) -> None:
    result = read(_process(OURS + _flow("token.current.x > 1")), STELLWERK)
    assert result.processes[0].language is Language.FEEL
    (warning,) = _whats(result, Severity.WARNING)
    assert '"token" is a variable\'s name here' in warning
    assert read(_process(OURS + _flow("x === 1")), STELLWERK).is_refused


def test_a_file_of_ours_that_says_juel_is_feel_and_told_so(read: Read) -> None:
    result = read(_process(OURS), f'{STELLWERK} expressionLanguage="juel"')
    assert result.processes[0].language is Language.FEEL
    assert _whats(result, Severity.WARNING) == [
        "the expressionLanguage is JUEL, but a file with stellwerk: in it is written in FEEL"
    ]


@pytest.mark.parametrize(
    ("conditions", "attributes", "what"),
    [
        (("${n > 1}", "=m > 2"), "", 'JUEL the language of this file: write "${m > 2}"'),
        (("=m > 2", "${n > 1}"), "", '"=m > 2" is FEEL'),
        (("=m > 2", "${n > 1}"), 'expressionLanguage="FEEL"', 'the expressionLanguage of the file is FEEL: write "=n'),
        (("token.current.m > 2", "${n > 1}"), "", "makes this a file of ProcessCube"),
        (("token.current.m > 2", "=n > 1"), "", "makes this a file of ProcessCube"),
    ],
)
def test_two_notations_in_one_plain_file_are_an_error(
    read: Read, conditions: tuple[str, str], attributes: str, what: str
) -> None:
    result = read(_process('<task id="t"/>' + _flow(conditions[0]) + _flow(conditions[1], 2)), attributes)
    (error,) = _whats(result, Severity.ERROR)
    assert what in error


def test_in_a_vendors_file_such_text_is_a_warning_and_an_error_where_only_an_expression_can_stand(
    errors_of: ErrorsOf, read: Read
) -> None:
    camunda = '<serviceTask id="t" camunda:type="external" camunda:topic="=x"/>'
    zeebe = (
        '<serviceTask id="t"><extensionElements><zeebe:taskDefinition type="${x}"/></extensionElements></serviceTask>'
    )
    for task, attributes in ((camunda, CAMUNDA), (zeebe, ZEEBE)):
        result = read(_process(task), attributes)
        assert not result.is_refused
        assert len(_whats(result, Severity.WARNING)) == 1
        assert read(_process(task + _flow("=x > 1" if task is camunda else "${x > 1}")), attributes).is_refused
    retries = zeebe.replace('type="${x}"', 'type="x" retries="${x}"')
    assert read(_process(retries), ZEEBE).is_refused, "no text can be a number"
    both = read(_process(camunda.replace("camunda:topic", "stellwerk:topic")), f"{CAMUNDA} {STELLWERK}")
    assert both.is_refused, "whoever adds our attributes to Camunda's file must learn that it stays JUEL"


# --- references ---


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (
            '<endEvent id="n"><errorEventDefinition errorRef="declind"/></endEvent>',
            'errorRef "declind" {}the error code',
        ),
        ('<receiveTask id="n" messageRef="x"/>', 'messageRef "x" {}the message\'s name'),
        (
            '<intermediateCatchEvent id="n"><messageEventDefinition messageRef="x"/></intermediateCatchEvent>',
            'messageRef "x" {}the message\'s name',
        ),
        ('<endEvent id="n"><signalEventDefinition signalRef="x"/></endEvent>', 'signalRef "x" {}the signal\'s name'),
        (
            '<endEvent id="n"><escalationEventDefinition escalationRef="x"/></endEvent>',
            'escalationRef "x" {}the escalation code',
        ),
    ],
)
def test_a_reference_that_leads_nowhere_is_a_warning(read: Read, body: str, what: str) -> None:
    result = read(_process(body))
    assert _whats(result, Severity.WARNING) == [what.format("is declared nowhere in this file: taken as ") + " itself"]
    assert not result.is_refused


def test_other_references_that_say_less_than_they_seem_to_are_warnings(read: Read) -> None:
    boundary = (
        '<task id="t"/><boundaryEvent id="b" attachedToRef="t"><errorEventDefinition errorRef="e"/></boundaryEvent>'
    )
    assert _whats(read(_process(boundary) + '<error id="e"/>'), Severity.WARNING) == [
        'the error "e" has no errorCode: every code is caught'
    ]
    assert 'operationRef "o" is declared nowhere in this file' in _whats(
        read(_process('<sendTask id="t" operationRef="o"/>')), Severity.WARNING
    )
    mapping = '<camunda:errorEventDefinition errorRef="declind" expression="${true}"/>'
    extensions = f"<extensionElements>{mapping}</extensionElements>"
    task = f'<serviceTask id="t" camunda:type="external" camunda:topic="x">{extensions}</serviceTask>'
    (warning,) = _whats(read(_process(task), CAMUNDA), Severity.WARNING)
    assert 'errorRef "declind" is declared nowhere' in warning


# --- namespaces ---


@pytest.mark.parametrize(
    ("attributes", "right"),
    [
        ('xmlns:stellwerk="https://stellwerk.dev/bpmn"', "https://stellwerk.dev/schema/1.0/bpmn"),
        ('xmlns:s="http://stellwerk.dev/schema/1.0/bpmn"', "https://stellwerk.dev/schema/1.0/bpmn"),
        ('xmlns:stellwerk="https://stelwerk.dev/schema/1.0/bpmn"', "https://stellwerk.dev/schema/1.0/bpmn"),
        ('xmlns:z="http://camunda.org/schema/zeebe/1.1"', "http://camunda.org/schema/zeebe/1.0"),
        ('xmlns:camunda="http://camunda.org/schema/1.0/bmpn"', "http://camunda.org/schema/1.0/bpmn"),
        ('xmlns:f="https://flowable.org/bpmn/"', "http://flowable.org/bpmn"),
    ],
)
def test_a_namespace_close_to_one_that_is_read_is_a_warning_with_the_right_one(
    read: Read, attributes: str, right: str
) -> None:
    (warning,) = _whats(read(_process('<task id="t"/>'), attributes), Severity.WARNING)
    assert warning.endswith(f'did you mean "{right}"?')


def test_namespaces_of_others_and_the_target_namespace_are_no_mistake(
    read: Read, file_with: Callable[..., bytes]
) -> None:
    others = 'xmlns:a="http://bpmn.io/schema/bpmn/biocolor/1.0" xmlns:tns="http://example.com/bpmn" '
    di = 'xmlns:bpmndi="http://www.omg.org/spec/BPMN/20100524/DI"'
    result = read(_process('<task id="t"/>') + '<bpmndi:BPMNDiagram id="d"/>', others + di)
    assert result.findings == ()


def test_another_bpmn_namespace_is_an_error_that_names_both(read: Read) -> None:
    wrong, right = "http://www.omg.org/spec/BPMN/20100524/MODL", "http://www.omg.org/spec/BPMN/20100524/MODEL"
    result = read(_process('<w:task id="t"/>'), f'xmlns:w="{wrong}"')
    assert f'the namespace is "{wrong}": BPMN has "{right}"' in _whats(result, Severity.ERROR)


# --- topics, keys ---


@pytest.mark.parametrize("attributes", ["", STELLWERK])
@pytest.mark.parametrize("name", ["serviceTask", "sendTask", "businessRuleTask", "scriptTask"])
def test_a_task_without_topic_is_told_that_its_id_is_the_topic(read: Read, attributes: str, name: str) -> None:
    result = read(_process(f'<{name} id="charge"/>'), attributes)
    assert _whats(result, Severity.WARNING) == ['no topic is given: workers get this under its id "charge"']
    assert not result.is_refused


def test_a_script_that_nobody_runs_is_told(read: Read) -> None:
    result = read(_process('<scriptTask id="t"><script>x = 1</script></scriptTask>'))
    assert _whats(result, Severity.WARNING)[0].endswith("the engine does not run the script")


@pytest.mark.parametrize(
    "node",
    [
        '<serviceTask id="n" camunda:class="com.example.Charge"/>',
        '<scriptTask id="n" scriptFormat="groovy"><script>1</script></scriptTask>',
        '<businessRuleTask id="n" camunda:decisionRef="d"/>',
        '<endEvent id="n"><messageEventDefinition camunda:class="com.example.Mail"/></endEvent>',
    ],
)
def test_what_workers_could_adopt_names_the_switch(errors_of: ErrorsOf, node: str) -> None:
    body = f'<startEvent id="s"/><sequenceFlow sourceRef="s" targetRef="n"/>{node}'
    (error,) = errors_of(body, CAMUNDA)
    assert "(stellwerk deploy --adopt-java)" in error
    assert errors_of(body, CAMUNDA, adopt_java=True) == []


@pytest.mark.parametrize("key", ["a b", " a", "a:1", "a/b", "a?", "a&#10;b", "a%20b", "a#1"])
def test_a_process_id_that_cannot_stand_in_an_address_is_an_error(read: Read, key: str) -> None:
    (error,) = _whats(read(f'<process id="{key}" isExecutable="true"/>'), Severity.ERROR)
    assert error.startswith("the id of a process has letters, digits, underscores, hyphens and dots only, not ")


@pytest.mark.parametrize("attributes", ["", 'id=""', 'id=" "'])
def test_a_process_without_id_is_an_error(read: Read, attributes: str) -> None:
    result = read(f'<process {attributes} isExecutable="true"/>')
    assert _whats(result, Severity.ERROR) == ["an id is needed"]
