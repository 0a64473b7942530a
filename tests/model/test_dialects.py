"""Each vendor's extensions, and our own, become the same model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions import Bindings, Expression, Language, evaluate
from stellwerk.model.process import (
    CallActivity,
    Dialect,
    ErrorDefinition,
    Event,
    ExternalWork,
    FailurePolicy,
    FlowNode,
    MessageDefinition,
    Process,
    Severity,
    Task,
    UserWork,
)
from stellwerk.model.reader import ReadResult

MakeProcess = Callable[..., Process]
Read = Callable[..., ReadResult]
ErrorsOf = Callable[..., list[str]]

CAMUNDA = 'xmlns:camunda="http://camunda.org/schema/1.0/bpmn"'
ZEEBE = 'xmlns:zeebe="http://camunda.org/schema/zeebe/1.0"'
STELLWERK = 'xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"'
PROCESSCUBE = f'{CAMUNDA} exporter="5Minds Studio"'


def _task(process: Process, node_id: str = "t") -> Task:
    task = process.nodes[node_id]
    assert isinstance(task, Task)
    return task


def _work(process: Process, node_id: str = "t") -> ExternalWork:
    work = _task(process, node_id).work
    assert work is not None
    return work


def _value(expression: Expression | None) -> JsonValue:
    assert expression is not None
    assert expression.is_literal, expression
    return expression.literal_value


def _mapped(node: FlowNode) -> list[tuple[str, str]]:
    return [(mapping.target, mapping.source.source) for mapping in (*node.inputs, *node.outputs)]


def _extended(tag: str, attributes: str, extensions: str) -> str:
    return f'<{tag} id="t" {attributes}><extensionElements>{extensions}</extensionElements></{tag}>'


# --- which dialect ---


@pytest.mark.parametrize(
    ("attributes", "extension", "dialect"),
    [
        ("", "", Dialect.PLAIN),
        (CAMUNDA, "", Dialect.CAMUNDA),
        (ZEEBE, "", Dialect.ZEEBE),
        (STELLWERK, "", Dialect.STELLWERK),
        ('xmlns:flowable="http://flowable.org/bpmn"', "", Dialect.CAMUNDA),
        ('xmlns:activiti="http://activiti.org/bpmn"', "", Dialect.CAMUNDA),
        ('xmlns:o="http://operaton.org/schema/1.0/bpmn"', "<o:properties/>", Dialect.CAMUNDA),
        (f"{CAMUNDA} {ZEEBE}", "<camunda:properties/>", Dialect.CAMUNDA),
        (f"{CAMUNDA} {ZEEBE}", "<camunda:properties/><zeebe:properties/>", Dialect.ZEEBE),
        (f"{CAMUNDA} {STELLWERK}", '<stellwerk:header key="a"/>', Dialect.STELLWERK),
        (f"{ZEEBE} {STELLWERK}", '<stellwerk:header key="a"/><zeebe:properties/>', Dialect.ZEEBE),
        (PROCESSCUBE, "", Dialect.PROCESSCUBE),
        ('exporter="BPMN Studio"', "", Dialect.PROCESSCUBE),
        (
            CAMUNDA,
            '<camunda:properties><camunda:property name="engine.isSingleTry" value="true"/></camunda:properties>',
            Dialect.PROCESSCUBE,
        ),
    ],
)
def test_the_dialect_is_known_by_what_the_file_uses(
    process_with: MakeProcess, attributes: str, extension: str, dialect: Dialect
) -> None:
    assert process_with(_extended("serviceTask", "", extension), attributes).dialect is dialect


# --- Camunda 7 and relatives ---


@pytest.mark.parametrize(
    ("namespace", "kind"),
    [
        ("http://camunda.org/schema/1.0/bpmn", "external"),
        ("http://operaton.org/schema/1.0/bpmn", "external"),
        ("http://flowable.org/bpmn", "external-worker"),
    ],
)
def test_camunda_and_its_relatives_name_a_topic(process_with: MakeProcess, namespace: str, kind: str) -> None:
    process = process_with(f'<serviceTask id="t" c:type="{kind}" c:topic="charge"/>', f'xmlns:c="{namespace}"')
    assert _value(_work(process).topic) == "charge"
    assert process.language is Language.JUEL


def test_camunda_priorities_come_from_the_task_or_the_process(read: Read) -> None:
    result = read(
        '<process id="p" camunda:taskPriority="5" camunda:versionTag="v7">'
        '<serviceTask id="a" camunda:type="external" camunda:topic="x"/>'
        '<serviceTask id="b" camunda:type="external" camunda:topic="x" camunda:taskPriority="9"/>'
        '<serviceTask id="c" camunda:type="external" camunda:topic="${to}" camunda:taskPriority="${p}"/></process>',
        CAMUNDA,
    )
    (process,) = result.processes
    assert process.version_tag == "v7"
    assert [_value(_work(process, node).priority) for node in "ab"] == [5, 9]
    work = _work(process, "c")
    bindings = Bindings({"p": 3, "to": "there"})
    assert work.priority is not None
    assert (evaluate(work.priority, bindings), evaluate(work.topic, bindings)) == (3, "there")


def test_camunda_inputs_and_outputs_may_be_text_expressions_lists_and_maps(process_with: MakeProcess) -> None:
    process = process_with(
        _extended(
            "serviceTask",
            'camunda:type="external" camunda:topic="x"',
            """<camunda:inputOutput>
            <camunda:inputParameter name="nothing"/>
            <camunda:inputParameter name="text">a b</camunda:inputParameter>
            <camunda:inputParameter name="sum">${1 + x}</camunda:inputParameter>
            <camunda:inputParameter name="list"><camunda:list><camunda:value>a</camunda:value>
              <camunda:value>${x}</camunda:value></camunda:list></camunda:inputParameter>
            <camunda:inputParameter name="map"><camunda:map><camunda:entry key="k">v</camunda:entry>
              <camunda:entry key="n"><camunda:list><camunda:value>1</camunda:value></camunda:list></camunda:entry>
            </camunda:map></camunda:inputParameter>
            <camunda:outputParameter name="out">${result}</camunda:outputParameter></camunda:inputOutput>""",
        ),
        CAMUNDA,
    )
    node = process.nodes["t"]
    values = {mapping.target: evaluate(mapping.source, Bindings({"x": 2})) for mapping in node.inputs}
    assert values == {"nothing": None, "text": "a b", "sum": 3, "list": ["a", 2], "map": {"k": "v", "n": ["1"]}}
    assert [mapping.target for mapping in node.outputs] == ["out"]


def test_a_script_in_a_camunda_mapping_is_an_error(errors_of: ErrorsOf) -> None:
    script = '<camunda:script scriptFormat="groovy">1 + 1</camunda:script>'
    parameter = (
        f'<camunda:inputOutput><camunda:inputParameter name="a">{script}</camunda:inputParameter></camunda:inputOutput>'
    )
    assert 'script "t": a script in a mapping cannot run' in errors_of(_extended("userTask", "", parameter), CAMUNDA)


@pytest.mark.parametrize(
    ("cycle", "retries", "backoffs"),
    [
        ("R5/PT5M", 5, (300_000,)),
        ("R1/PT0S", 1, (0,)),
        ("PT1S,PT1M,PT1H", 4, (1_000, 60_000, 3_600_000)),
    ],
)
def test_camunda_retry_cycles_become_retries_and_backoffs(
    process_with: MakeProcess, cycle: str, retries: int, backoffs: tuple[int, ...]
) -> None:
    extension = f"<camunda:failedJobRetryTimeCycle>{cycle}</camunda:failedJobRetryTimeCycle>"
    work = _work(
        process_with(_extended("serviceTask", 'camunda:type="external" camunda:topic="x"', extension), CAMUNDA)
    )
    assert (_value(work.retries), work.retry_backoffs_ms) == (retries, backoffs)


def test_camunda_properties_and_fields_become_headers(process_with: MakeProcess) -> None:
    extensions = (
        '<camunda:properties><camunda:property name="a" value="1"/></camunda:properties>'
        '<camunda:field name="b" stringValue="2"/>'
        '<camunda:field name="c"><camunda:expression>${x}</camunda:expression></camunda:field>'
    )
    process = process_with(_extended("serviceTask", 'camunda:type="external" camunda:topic="x"', extensions), CAMUNDA)
    assert process.nodes["t"].headers == {"a": "1", "b": "2", "c": "${x}"}


def test_camunda_error_definitions_of_an_external_task_and_error_variables(process_with: MakeProcess) -> None:
    extension = """<camunda:errorEventDefinition errorRef="e" expression="${status == 'bad'}"/>"""
    process = process_with(
        _extended("serviceTask", 'camunda:type="external" camunda:topic="x"', extension)
        + '<boundaryEvent id="b" attachedToRef="t">'
        '<errorEventDefinition errorRef="e" camunda:errorCodeVariable="code" camunda:errorMessageVariable="text"/>'
        "</boundaryEvent>",
        CAMUNDA,
        roots='<error id="e" errorCode="BAD" camunda:errorMessage="it was bad"/>',
    )
    ((condition, code),) = _work(process).error_mappings
    assert code == "BAD"
    assert evaluate(condition, Bindings({"status": "bad"})) is True
    boundary = process.nodes["b"]
    assert isinstance(boundary, Event)
    definition = boundary.definition
    assert isinstance(definition, ErrorDefinition)
    assert (definition.code_variable, definition.message_variable, definition.message) == ("code", "text", "it was bad")


def test_camunda_user_tasks_say_who_and_with_which_form(process_with: MakeProcess) -> None:
    process = process_with(
        '<userTask id="t" camunda:assignee="${owner}" camunda:candidateUsers="a,b" camunda:candidateGroups="g" '
        'camunda:formKey="form" camunda:dueDate="2026-01-01"/><userTask id="u" camunda:formRef="other"/>',
        CAMUNDA,
    )
    user = _task(process).user
    assert user is not None
    assert user.assignee is not None
    assert evaluate(user.assignee, Bindings({"owner": "kermit"})) == "kermit"
    assert [_value(text) for text in (user.candidate_users, user.candidate_groups, user.due)] == [
        "a,b",
        "g",
        "2026-01-01",
    ]
    assert user.form == "form"
    assert _task(process, "u").user == UserWork(form="other")


def test_camunda_call_activities_pass_what_they_say(process_with: MakeProcess) -> None:
    process = process_with(
        '<callActivity id="a" calledElement="${which}" camunda:calledElementVersion="3"><extensionElements>'
        '<camunda:in source="x" target="y"/><camunda:in sourceExpression="${x + 1}" target="z"/>'
        '<camunda:out source="r" target="result"/></extensionElements></callActivity>'
        '<callActivity id="b" calledElement="q"><extensionElements><camunda:in variables="all"/></extensionElements>'
        "</callActivity>",
        CAMUNDA,
    )
    first, second = process.nodes["a"], process.nodes["b"]
    assert isinstance(first, CallActivity)
    assert isinstance(second, CallActivity)
    assert (first.pass_all_variables, second.pass_all_variables, first.called_version) == (False, True, "3")
    assert [mapping.target for mapping in (*first.inputs, *first.outputs)] == ["y", "z", "result"]


@pytest.mark.parametrize(
    ("task", "topic"),
    [
        ('<serviceTask id="t" camunda:class="com.example.Charge"/>', "com.example.Charge"),
        ('<serviceTask id="t" camunda:delegateExpression="${chargeCard}"/>', "chargeCard"),
        ('<serviceTask id="t" camunda:delegateExpression="${beans.find(1)}"/>', "t"),
        ('<sendTask id="t" camunda:expression="${mailer.send(x)}"/>', "t"),
        ('<serviceTask id="t" camunda:type="mail"/>', "t"),
        ('<scriptTask id="t" scriptFormat="groovy"><script>x = 1</script></scriptTask>', "t"),
        (
            '<serviceTask id="t"><extensionElements><camunda:connector><camunda:connectorId>http</camunda:connectorId>'
            "</camunda:connector></extensionElements></serviceTask>",
            "t",
        ),
    ],
)
def test_what_runs_inside_java_is_refused_unless_workers_adopt_it(
    process_with: MakeProcess, errors_of: ErrorsOf, task: str, topic: str
) -> None:
    start = '<startEvent id="s"/><sequenceFlow sourceRef="s" targetRef="t"/>'
    (error,) = errors_of(start + task, CAMUNDA)
    assert 'Task "t": ' in error
    assert "cannot run inside the engine" in error
    assert errors_of(start + task, CAMUNDA, adopt_java=True) == []
    assert _value(_work(process_with(task, CAMUNDA, adopt_java=True)).topic) == topic


def test_listeners_are_warnings(read: Read) -> None:
    listener = '<camunda:executionListener event="start" class="com.example.Audit"/>'
    result = read(f'<process id="p">{_extended("userTask", "", listener)}</process>', CAMUNDA)
    (finding,) = result.findings
    assert (finding.severity, finding.element, finding.element_id) == (Severity.WARNING, "executionListener", "t")


def test_flowable_parameters_are_mappings(process_with: MakeProcess) -> None:
    process = process_with(
        _extended(
            "serviceTask",
            'flowable:type="external-worker" flowable:topic="x"',
            '<flowable:externalWorkerInParameter sourceExpression="${a + b}" target="sum"/>'
            '<flowable:externalWorkerOutParameter source="r" target="result"/>',
        ),
        'xmlns:flowable="http://flowable.org/bpmn"',
    )
    assert _mapped(process.nodes["t"]) == [("sum", "${a + b}"), ("result", "r")]


def test_a_camunda_message_event_may_be_an_external_task(process_with: MakeProcess) -> None:
    process = process_with(
        '<endEvent id="e"><messageEventDefinition camunda:type="external" camunda:topic="mail"/></endEvent>', CAMUNDA
    )
    event = process.nodes["e"]
    assert isinstance(event, Event)
    assert event.work is not None
    assert _value(event.work.topic) == "mail"


def test_a_camunda_condition_without_braces_is_an_error(errors_of: ErrorsOf) -> None:
    flow = (
        '<sequenceFlow id="f" sourceRef="t" targetRef="t"><conditionExpression>x</conditionExpression></sequenceFlow>'
    )
    assert any("is no expression like ${…}" in error for error in errors_of(f'<task id="t"/>{flow}', CAMUNDA))


def test_camunda_multi_instance_names_its_collection(process_with: MakeProcess) -> None:
    process = process_with(
        '<userTask id="t"><multiInstanceLoopCharacteristics camunda:collection="orders" '
        'camunda:elementVariable="order"/></userTask>',
        CAMUNDA,
    )
    loop = _task(process).loop
    assert loop is not None
    assert loop.input_collection is not None
    assert evaluate(loop.input_collection, Bindings({"orders": [1]})) == [1]
    assert loop.input_element == "order"


# --- Zeebe ---


def test_zeebe_tasks(process_with: MakeProcess) -> None:
    process = process_with(
        _extended(
            "serviceTask",
            "",
            """<zeebe:taskDefinition type="charge" retries="5"/>
            <zeebe:ioMapping><zeebe:input source="=order.id" target="id"/><zeebe:input source="fixed" target="f"/>
              <zeebe:output source="=r" target="a.b"/></zeebe:ioMapping>
            <zeebe:taskHeaders><zeebe:header key="h" value="1"/></zeebe:taskHeaders>
            <zeebe:properties><zeebe:property name="n" value="2"/></zeebe:properties>""",
        ),
        ZEEBE,
    )
    work = _work(process)
    assert (_value(work.topic), _value(work.retries)) == ("charge", 5)
    assert _mapped(process.nodes["t"]) == [("id", "=order.id"), ("f", "fixed"), ("a.b", "=r")]
    assert process.nodes["t"].headers == {"h": "1", "n": "2"}
    assert process.language is Language.FEEL


def test_zeebe_topics_and_retries_may_be_expressions(process_with: MakeProcess) -> None:
    process = process_with(_extended("serviceTask", "", '<zeebe:taskDefinition type="=kind" retries="=n"/>'), ZEEBE)
    work = _work(process)
    bindings = Bindings({"kind": "charge", "n": 2})
    assert work.retries is not None
    assert (evaluate(work.topic, bindings), evaluate(work.retries, bindings)) == ("charge", 2)


def test_zeebe_messages_have_their_correlation_key_at_the_message(process_with: MakeProcess) -> None:
    process = process_with(
        '<intermediateCatchEvent id="c"><messageEventDefinition messageRef="m"/></intermediateCatchEvent>'
        '<receiveTask id="t" messageRef="m"/>',
        ZEEBE,
        roots='<message id="m" name="=kind + &quot;-paid&quot;"><extensionElements>'
        '<zeebe:subscription correlationKey="=orderId"/></extensionElements></message>',
    )
    event = process.nodes["c"]
    assert isinstance(event, Event)
    assert isinstance(event.definition, MessageDefinition)
    for message in (event.definition, _task(process).message):
        assert message is not None
        assert evaluate(message.name, Bindings({"kind": "order"})) == "order-paid"
        assert message.correlation_key is not None
        assert evaluate(message.correlation_key, Bindings({"orderId": "o-1"})) == "o-1"


def test_zeebe_user_tasks_calls_scripts_decisions_and_loops(process_with: MakeProcess) -> None:
    process = process_with(
        """<userTask id="u"><extensionElements>
          <zeebe:assignmentDefinition assignee="=who" candidateGroups="a,b"/><zeebe:formDefinition formId="form"/>
          <zeebe:taskSchedule dueDate="2026-01-01T00:00:00Z"/><zeebe:userTask/></extensionElements></userTask>
        <callActivity id="c"><extensionElements>
          <zeebe:calledElement processId="other" propagateAllParentVariables="false"/>
          </extensionElements></callActivity>
        <scriptTask id="s"><extensionElements>
          <zeebe:script expression="=1 + 1" resultVariable="two"/></extensionElements></scriptTask>
        <businessRuleTask id="d"><extensionElements>
          <zeebe:calledDecision decisionId="discount" resultVariable="r"/></extensionElements></businessRuleTask>
        <task id="l"><multiInstanceLoopCharacteristics isSequential="true"><extensionElements>
          <zeebe:loopCharacteristics inputCollection="=items" inputElement="item" outputCollection="results"
            outputElement="=r"/></extensionElements></multiInstanceLoopCharacteristics></task>""",
        ZEEBE,
    )
    user = _task(process, "u").user
    assert user is not None
    assert (user.form, _value(user.candidate_groups), _value(user.due)) == ("form", "a,b", "2026-01-01T00:00:00Z")
    call, loop = process.nodes["c"], _task(process, "l").loop
    assert isinstance(call, CallActivity)
    assert (_value(call.called), call.pass_all_variables) == ("other", False)
    script, decision = _task(process, "s"), _task(process, "d")
    assert script.script is not None
    assert (script.script.text, script.script.result_variable, script.work) == ("=1 + 1", "two", None)
    assert (decision.decision, decision.result_variable) == ("discount", "r")
    assert loop is not None
    assert (loop.input_element, loop.output_collection) == ("item", "results")


def test_a_zeebe_message_event_is_done_by_workers(process_with: MakeProcess) -> None:
    process = process_with(
        '<intermediateThrowEvent id="t"><extensionElements><zeebe:taskDefinition type="emit"/></extensionElements>'
        "<messageEventDefinition/></intermediateThrowEvent>",
        ZEEBE,
    )
    event = process.nodes["t"]
    assert isinstance(event, Event)
    assert event.work is not None
    assert _value(event.work.topic) == "emit"


def test_zeebe_mistakes_are_errors(errors_of: ErrorsOf) -> None:
    assert any(
        "has no type" in error for error in errors_of(_extended("serviceTask", "", "<zeebe:taskDefinition/>"), ZEEBE)
    )
    retries = '<zeebe:taskDefinition type="x" retries="many"/>'
    assert any(
        "a whole number from 1 to 2147483647 is expected" in error
        for error in errors_of(_extended("serviceTask", "", retries), ZEEBE)
    )
    mapping = '<zeebe:ioMapping><zeebe:input source="=1 +" target=""/></zeebe:ioMapping>'
    errors = errors_of(_extended("userTask", "", mapping), ZEEBE)
    assert any("no target" in error for error in errors)
    assert any("character" in error for error in errors)
    assert any("names no message" in error for error in errors_of('<receiveTask id="t"/>', ZEEBE))


# --- ProcessCube ---


def test_processcube_tasks(process_with: MakeProcess) -> None:
    properties = (
        '<camunda:properties><camunda:property name="engine.isSingleTry" value="true"/>'
        '<camunda:property name="payload" value="{ amount: token.current.amount }"/>'
        '<camunda:property name="engine.customCorrelationId" value="x"/></camunda:properties>'
    )
    process = process_with(
        _extended("serviceTask", 'camunda:type="external" camunda:topic="charge"', properties), PROCESSCUBE
    )
    work = _work(process)
    assert (_value(work.topic), work.single_try) == ("charge", True)
    assert work.payload is not None
    assert work.payload.language is Language.PROCESSCUBE
    assert process.nodes["t"].headers == {"engine.customCorrelationId": "x"}


def test_processcube_topics_may_be_expressions_and_manual_tasks_wait(process_with: MakeProcess) -> None:
    process = process_with(
        '<serviceTask id="t" camunda:type="external" camunda:topic="token.current.topic"/>'
        '<manualTask id="m"/><task id="u"/><userTask id="v"/>',
        PROCESSCUBE,
    )
    assert not _work(process).topic.is_literal
    assert [_task(process, node).waits for node in "muv"] == [True, True, False]
    assert not _task(process_with('<manualTask id="m"/>'), "m").waits


# --- our own ---


def test_our_own_attributes_and_elements(read: Read) -> None:
    result = read(
        '<process id="p" stellwerk:failurePolicy="incident" stellwerk:versionTag="2">'
        '<serviceTask id="t" stellwerk:topic="charge" stellwerk:retries="5" stellwerk:retryBackoff="PT1S, PT1M" '
        'stellwerk:priority="7" stellwerk:singleTry="true" stellwerk:lockDuration="PT1M" stellwerk:lockExpiriesMax="2">'
        '<extensionElements><stellwerk:header key="a" value="1"/><stellwerk:input target="x" source="=y"/>'
        '<stellwerk:output target="z" source="=r"/></extensionElements></serviceTask>'
        '<userTask id="u" stellwerk:assignee="=owner" stellwerk:candidateUsers="a" stellwerk:candidateGroups="g" '
        'stellwerk:form="f" stellwerk:due="2026-01-01"/>'
        '<receiveTask id="r" messageRef="Paid" stellwerk:correlationKey="=id"/></process><message id="Paid"/>',
        STELLWERK,
    )
    assert result.findings == ()
    (process,) = result.processes
    work, node = _work(process), process.nodes["t"]
    assert (process.failure_policy, process.version_tag) == (FailurePolicy.INCIDENT, "2")
    assert [_value(expression) for expression in (work.topic, work.retries, work.priority)] == ["charge", 5, 7]
    assert (work.retry_backoffs_ms, work.single_try) == ((1_000, 60_000), True)
    assert (work.lock_duration_ms, work.lock_expiries_max) == (60_000, 2)
    assert node.headers == {"a": "1"}
    assert _mapped(node) == [("x", "=y"), ("z", "=r")]
    user, message = _task(process, "u").user, _task(process, "r").message
    assert user is not None
    assert (user.form, _value(user.candidate_users), _value(user.candidate_groups)) == ("f", "a", "g")
    assert message is not None
    assert message.correlation_key is not None
    assert evaluate(message.correlation_key, Bindings({"id": 4})) == 4


def test_our_own_attributes_win_in_files_of_other_dialects(process_with: MakeProcess) -> None:
    process = process_with(
        '<serviceTask id="t" camunda:class="com.example.X" stellwerk:topic="mine"/>'
        '<serviceTask id="u" camunda:type="external" camunda:topic="theirs" stellwerk:topic="mine"/>',
        f"{CAMUNDA} {STELLWERK}",
    )
    assert process.dialect is Dialect.CAMUNDA
    assert [_value(_work(process, node).topic) for node in "tu"] == ["mine", "mine"]


@pytest.mark.parametrize("attributes", ['messageRef="m"', 'messageRef="m" stellwerk:correlationKey="=b"'])
def test_the_correlation_key_nearest_to_the_event_counts(process_with: MakeProcess, attributes: str) -> None:
    process = process_with(
        f'<intermediateCatchEvent id="c"><messageEventDefinition {attributes}/></intermediateCatchEvent>',
        STELLWERK,
        roots='<message id="m" name="Paid" stellwerk:correlationKey="=a"/>',
    )
    event = process.nodes["c"]
    assert isinstance(event, Event)
    assert isinstance(event.definition, MessageDefinition)
    assert event.definition.correlation_key is not None
    assert event.definition.correlation_key.source == ("=b" if "correlationKey" in attributes else "=a")


@pytest.mark.parametrize(
    ("attributes", "what"),
    [
        ('stellwerk:topik="x"', "the attribute stellwerk:topik is unknown"),
        ('stellwerk:retries="-"', "a whole number from 1 to 2147483647 is expected"),
        ('stellwerk:retries="0"', "a whole number from 1 to 2147483647 is expected"),
        ('stellwerk:retries="=0"', "a whole number from 1 to 2147483647 is expected"),
        ('stellwerk:retries="2147483648"', "a whole number from 1 to 2147483647 is expected"),
        ('stellwerk:priority="-2147483648"', "a whole number from -2147483647 to 2147483647 is expected"),
        ('stellwerk:topic="=true"', "the topic is no text"),
        ('stellwerk:singleTry="yes"', 'singleTry is true or false, not "yes"'),
        ('stellwerk:retryBackoff="PT1S,P99999D"', "is more than ten years"),
        ('stellwerk:retries="-1"', "a whole number from 1 to 2147483647 is expected"),
        (f'stellwerk:topic="{"x" * 201}"', "a topic has 1 to 200 characters, not 201"),
        ('stellwerk:topic=""', "a topic has 1 to 200 characters, not 0"),
        ('stellwerk:retryBackoff="PT1S;PT2S"', "is no ISO 8601 duration"),
        ('stellwerk:retryBackoff="P1M"', "only days, hours, minutes and seconds"),
        ('stellwerk:lockDuration="PT0.5S"', "lockDuration must lie between 1000 and 86400000 ms"),
        ('stellwerk:lockExpiriesMax="x"', "lockExpiriesMax must be a whole number"),
    ],
)
def test_a_mistake_in_our_own_attributes_is_an_error(errors_of: ErrorsOf, attributes: str, what: str) -> None:
    assert any(what in error for error in errors_of(f'<serviceTask id="t" {attributes}/>', STELLWERK))


def test_an_unknown_element_or_policy_of_our_own_is_an_error(read: Read) -> None:
    result = read(
        '<process id="p" stellwerk:failurePolicy="ignore"><task id="t"><extensionElements><stellwerk:hedaer/>'
        '<stellwerk:input source="=x"/></extensionElements></task></process>',
        STELLWERK,
    )
    assert [finding.what for finding in result.findings if finding.severity is Severity.ERROR] == [
        'the failure policy is incident or compensate, not "ignore"',
        "stellwerk:hedaer is unknown",
        'the attribute "target" is missing',
    ]
