"""Scopes, input and output mappings, results, and what ProcessCube's tokens carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stellwerk.core import commands as c

if TYPE_CHECKING:
    from tests.core.conftest import Machine

    Make = Callable[..., Machine]

CAMUNDA = """
<process id="process" isExecutable="true">
  <startEvent id="s"/><sequenceFlow id="f0" sourceRef="s" targetRef="a"/>
  <serviceTask id="a" camunda:type="external" camunda:topic="A">
    <extensionElements><camunda:inputOutput>
      <camunda:inputParameter name="amount">${order.total}</camunda:inputParameter>
      <camunda:inputParameter name="currency">EUR</camunda:inputParameter>
      <camunda:outputParameter name="receipt">${number}</camunda:outputParameter>
    </camunda:inputOutput></extensionElements>
  </serviceTask>
  <sequenceFlow id="f1" sourceRef="a" targetRef="e"/><endEvent id="e"/>
</process>"""


def _created(run: Machine, topic: str) -> object:
    return [getattr(fact, "variables", None) for fact in run.facts if getattr(fact, "topic", None) == topic][-1]


def test_inputs_are_local_and_only_mapped_outputs_leave(machine: Make) -> None:
    run = machine(CAMUNDA)
    run.start({"order": {"total": 12}})
    assert _created(run, "A") == {"order": {"total": 12}, "amount": 12, "currency": "EUR"}
    run.complete("a", {"number": "R-1", "noise": True})
    assert run.status == "COMPLETED"
    assert run.variables == {"order": {"total": 12}, "receipt": "R-1"}


def test_an_input_that_cannot_be_evaluated_is_an_incident_before_the_task_exists(machine: Make) -> None:
    run = machine(CAMUNDA)
    run.start()
    assert run.incidents == [("model_fault", "a")]
    assert not run.open
    run.do(c.SetVariables({"order": {"total": 3}}))
    run.resolve()
    assert run.open == ["a"]


def test_a_completion_is_kept_when_its_output_mapping_fails(machine: Make) -> None:
    run = machine(CAMUNDA)
    run.start({"order": {"total": 12}})
    decision = run.complete("a", {"wrong": 1})
    assert [ending.final_state for ending in decision.endings] == ["COMPLETED"]
    assert run.incidents == [("model_fault", "a")]
    run.do(c.SetVariables({"number": "R-2"}))
    run.resolve()
    assert run.status == "COMPLETED"
    assert run.variables["receipt"] == "R-2"


ZEEBE = """
<process id="process" isExecutable="true">
  <startEvent id="s"><extensionElements><zeebe:ioMapping>
    <zeebe:output source="=1" target="round"/></zeebe:ioMapping></extensionElements></startEvent>
  <sequenceFlow id="f0" sourceRef="s" targetRef="a"/>
  <serviceTask id="a"><extensionElements><zeebe:taskDefinition type="work" retries="5"/>
    <zeebe:ioMapping><zeebe:output source="=round + 1" target="round"/>
      <zeebe:output source="=answer" target="found.in.a"/></zeebe:ioMapping></extensionElements></serviceTask>
  <sequenceFlow id="f1" sourceRef="a" targetRef="g"/>
  <exclusiveGateway id="g" default="f3"/>
  <sequenceFlow id="f2" sourceRef="g" targetRef="a"><conditionExpression>=round &lt; 4</conditionExpression>
  </sequenceFlow>
  <sequenceFlow id="f3" sourceRef="g" targetRef="e"/>
  <endEvent id="e"><extensionElements><zeebe:ioMapping>
    <zeebe:output source="=round * 10" target="end"/></zeebe:ioMapping></extensionElements></endEvent>
</process>"""


def test_zeebe_mappings_on_events_and_dotted_targets(machine: Make) -> None:
    run = machine(ZEEBE)
    run.start({"found": {"kept": True}})
    assert _created(run, "work") == {"found": {"kept": True}, "round": 1}
    for answer in ("x", "y", "z"):
        run.complete("a", {"answer": answer})
    assert run.status == "COMPLETED"
    assert run.variables == {"found": {"kept": True, "in": {"a": "z"}}, "round": 4, "end": 40}


def test_a_variable_is_set_where_it_is_found_going_outwards(machine: Make) -> None:
    run = machine(
        """
        <process id="process" isExecutable="true">
          <startEvent id="s"/><sequenceFlow id="f0" sourceRef="s" targetRef="p"/>
          <subProcess id="p">
            <extensionElements><camunda:inputOutput>
              <camunda:inputParameter name="inside">${1}</camunda:inputParameter>
              <camunda:outputParameter name="seen">${inside}</camunda:outputParameter>
            </camunda:inputOutput></extensionElements>
            <serviceTask id="a" camunda:type="external" camunda:topic="A"/>
          </subProcess>
          <sequenceFlow id="f1" sourceRef="p" targetRef="e"/><endEvent id="e"/>
        </process>"""
    )
    run.start({"outside": 0})
    run.complete("a", {"inside": 2, "outside": 3, "new": 4})
    assert run.variables == {"outside": 3, "new": 4, "seen": 2}


PROCESSCUBE = """
<process id="process" isExecutable="true">
  <startEvent id="s"/><sequenceFlow id="f0" sourceRef="s" targetRef="a"/>
  <serviceTask id="a" camunda:type="external" camunda:topic="A"/>
  <sequenceFlow id="f1" sourceRef="a" targetRef="g"/>
  <exclusiveGateway id="g"/>
  <sequenceFlow id="f2" sourceRef="g" targetRef="b"><conditionExpression>token.current.n === 1</conditionExpression>
  </sequenceFlow>
  <sequenceFlow id="f3" sourceRef="g" targetRef="m"><conditionExpression>token.history.a.n &gt; 1</conditionExpression>
  </sequenceFlow>
  <serviceTask id="b" camunda:type="external" camunda:topic="B"><extensionElements><camunda:properties>
    <camunda:property name="payload" value="{first: token.history.a.n}"/>
    <camunda:property name="engine.isSingleTry" value="true"/></camunda:properties></extensionElements></serviceTask>
  <sequenceFlow id="f4" sourceRef="b" targetRef="m"/>
  <manualTask id="m"/><sequenceFlow id="f5" sourceRef="m" targetRef="e"/><endEvent id="e"/>
</process>"""


def test_processcube_tokens_carry_the_last_result(machine: Make) -> None:
    run = machine(PROCESSCUBE)
    run.start({"begin": 1})
    assert _created(run, "A") == {"begin": 1}
    run.complete("a", {"n": 1})
    assert _created(run, "B") == {"first": 1}
    run.complete("b", 17)
    (token,) = run.live.tokens.values()
    assert token.payload == 17
    assert run.live.results == {"s": {"begin": 1}, "a": {"n": 1}, "b": 17}
    assert run.user_tasks == ["m"], "manual tasks wait in this dialect"
    run.finish("m", {"ok": True})
    assert run.status == "COMPLETED"
