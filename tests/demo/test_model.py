"""The demo's BPMN file can be run as it is, and looks right in a modeler."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from importlib.resources import files

from stellwerk.cli.demo.orders import TOPICS
from stellwerk.cli.demo.run import MODEL
from stellwerk.model.checks import check_executable
from stellwerk.model.process import Activity, Dialect, FailurePolicy, Process, Task
from stellwerk.model.reader import read_definitions

XML = files("stellwerk.cli.demo").joinpath(MODEL).read_bytes()
DIAGRAM = "{http://www.omg.org/spec/BPMN/20100524/DI}"
BPMN = "{http://www.omg.org/spec/BPMN/20100524/MODEL}"


def process() -> Process:
    result = read_definitions(XML)
    assert result.findings == ()
    [only] = result.processes
    return only


def test_the_model_has_no_findings() -> None:
    assert check_executable(process()) == ()
    assert process().dialect is Dialect.STELLWERK
    assert process().effective_failure_policy() is FailurePolicy.COMPENSATE


def test_every_topic_of_the_workers_is_in_the_model_and_the_other_way_round() -> None:
    tasks = [node for node in process().nodes.values() if isinstance(node, Task)]
    assert {task.work.topic.source for task in tasks if task.work} == set(TOPICS)


def test_stock_and_card_have_their_compensation_and_shipping_has_none() -> None:
    activities = {node.id: node for node in process().nodes.values() if isinstance(node, Activity)}
    assert activities["reserve-stock"].compensation_handler == "release-stock"
    assert activities["charge-card"].compensation_handler == "refund-card"
    assert activities["ship"].compensation_handler is None


def test_everything_in_the_process_is_drawn() -> None:
    root = ElementTree.fromstring(XML)
    drawn = {element.get("bpmnElement") for element in root.iter() if element.tag.startswith(DIAGRAM)}
    [model] = root.iter(f"{BPMN}process")
    due = {element.get("id") for element in model if element.tag != f"{BPMN}documentation"}
    assert due <= drawn
    assert drawn - due == {None, "order-saga"}
