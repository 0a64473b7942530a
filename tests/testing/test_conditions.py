"""Which way money goes: a condition that cannot be decided stops the token, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import attrs
import pytest

from stellwerk.json_values import JsonObject
from stellwerk.testing import ProcessTest

_FLOWS = """<sequenceFlow id="s-price" sourceRef="start" targetRef="price"/>
  <sequenceFlow id="to-large" sourceRef="price" targetRef="large"/>
  <sequenceFlow id="approval" sourceRef="large" targetRef="approve">
    <conditionExpression>{}</conditionExpression></sequenceFlow>
  <sequenceFlow id="direct" sourceRef="large" targetRef="pay"/>"""
_NODES = """<startEvent id="start"/><serviceTask id="price" stellwerk:topic="price"/>
  <exclusiveGateway id="large" default="direct"/><endEvent id="approve"/><endEvent id="pay"/>"""


def _order(bpmn: Callable[..., bytes], condition: str) -> tuple[str, bytes]:
    attributes = 'stellwerk:failurePolicy="incident"'
    return "order.bpmn", bpmn(_NODES + _FLOWS.format(condition.replace(">", "&gt;")), attributes=attributes)


@attrs.frozen
class Priced:
    total: Decimal


@pytest.mark.parametrize("total", [Decimal("210.0"), Decimal("100.01")])
async def test_a_decimal_result_is_no_number_and_the_incident_tells_how_to_compare_it(
    process_test: ProcessTest, bpmn: Callable[..., bytes], total: Decimal
) -> None:
    @process_test.task("price")
    def price() -> Priced:
        return Priced(total)

    await process_test.deploy(_order(bpmn, "total > 100"))
    order = await process_test.start("p")
    order.assert_variables(total=str(total))
    order.assert_not_visited("approve", "pay")
    order.assert_incident_at("large", kind="model_fault", message=f'total is a text ("{total}")')
    order.assert_incident_at("large", message="write number(total)")

    await process_test.deploy(_order(bpmn, "number(total) > 100"))
    order = await process_test.start("p")
    order.assert_ended()
    order.assert_visited("approve")


@pytest.mark.parametrize(
    ("result", "reason"),
    [({}, "total is not set"), ({"total": None}, "total is null"), ({"Total": 210}, "total is not set")],
)
async def test_a_total_that_is_not_there_does_not_take_the_default_flow(
    process_test: ProcessTest, bpmn: Callable[..., bytes], result: JsonObject, reason: str
) -> None:
    await process_test.deploy(_order(bpmn, "total > 100"))
    order = await process_test.start("p")
    await order.complete("price", result)
    order.assert_incident_at("large", message=f"must give true or false, not null: {reason}")
    order.assert_not_visited("approve", "pay")

    await order.set_variables({"total": 210})
    await order.resolve_incident("large")
    order.assert_ended()
    order.assert_visited("approve")


_CAMUNDA = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"
    xmlns:camunda="http://camunda.org/schema/1.0/bpmn" targetNamespace="t">
  <error id="refused" errorCode="REFUSED"/>
  <process id="p" isExecutable="true">
    <startEvent id="start"/><sequenceFlow id="f1" sourceRef="start" targetRef="pay"/>
    <serviceTask id="pay" camunda:type="external" camunda:topic="pay"><extensionElements>
      <camunda:errorEventDefinition errorRef="refused" expression="${answer.refused}"/>
    </extensionElements></serviceTask>
    <sequenceFlow id="f2" sourceRef="pay" targetRef="paid"/><endEvent id="paid"/>
    <boundaryEvent id="caught" attachedToRef="pay"><errorEventDefinition errorRef="refused"/></boundaryEvent>
    <sequenceFlow id="f3" sourceRef="caught" targetRef="unpaid"/><endEvent id="unpaid"/>
  </process></definitions>"""


@pytest.mark.parametrize(
    ("answer", "end"),
    [({}, "paid"), ({"refused": None}, "paid"), ({"refused": False}, "paid"), ({"refused": True}, "unpaid")],
)
async def test_an_error_mapping_that_gives_null_does_not_apply(
    process_test: ProcessTest, answer: JsonObject, end: str
) -> None:
    await process_test.deploy(("pay.bpmn", _CAMUNDA.encode()))
    instance = await process_test.start("p")
    await instance.complete("pay", {"answer": answer})
    instance.assert_ended()
    instance.assert_visited(end)
