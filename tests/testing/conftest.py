"""Small processes for tests of the test kit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest


def _bpmn(body: str, *paths: str, key: str = "p", attributes: str = "") -> bytes:
    numbered = [pair for path in paths for pair in pairwise(path.split())]
    flows = "".join(
        f'<sequenceFlow id="{source}-{target}" sourceRef="{source}" targetRef="{target}"/>'
        for source, target in numbered
    )
    return f"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"
      xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn" targetNamespace="t">
      <message id="paid" name="paid"/>
      <process id="{key}" isExecutable="true" {attributes}>{body}{flows}</process></definitions>""".encode()


@pytest.fixture
def bpmn() -> Callable[..., bytes]:
    """A process: its nodes, and flows along paths, named ``source-target``."""
    return _bpmn


@pytest.fixture
def one_task() -> bytes:
    """start → work (topic ``work``) → done."""
    body = '<startEvent id="start"/><serviceTask id="work" name="Do it" stellwerk:topic="work"/><endEvent id="done"/>'
    return _bpmn(body, "start work done")


@pytest.fixture
def fork() -> bytes:
    """start → fork → left and right (topics of these names) → join → done."""
    body = """<startEvent id="start"/><parallelGateway id="fork"/><serviceTask id="left" stellwerk:topic="left"/>
      <serviceTask id="right" stellwerk:topic="right"/><parallelGateway id="join"/><endEvent id="done"/>"""
    return _bpmn(body, "start fork left join done", "fork right join")


@pytest.fixture
def risky() -> bytes:
    """start → pay → paid, with a boundary event ``refused`` for the error REFUSED that leads to ``unpaid``."""
    body = """<startEvent id="start"/><serviceTask id="pay" stellwerk:topic="pay"/>
      <boundaryEvent id="refused" attachedToRef="pay"><errorEventDefinition errorRef="REFUSED"/></boundaryEvent>
      <endEvent id="paid"/><endEvent id="unpaid"/>"""
    return _bpmn(body, "start pay paid", "refused unpaid", attributes='stellwerk:failurePolicy="incident"')


@pytest.fixture
def saga() -> bytes:
    """start → reserve (undone by ``cancel``) → pay → done; each task has its id as topic."""
    body = """<startEvent id="start"/><serviceTask id="reserve" stellwerk:topic="reserve"/>
      <boundaryEvent id="undo" attachedToRef="reserve"><compensateEventDefinition/></boundaryEvent>
      <serviceTask id="cancel" isForCompensation="true" stellwerk:topic="cancel"/>
      <association id="a" sourceRef="undo" targetRef="cancel"/>
      <serviceTask id="pay" stellwerk:topic="pay"/><endEvent id="done"/>"""
    return _bpmn(body, "start reserve pay done")


@pytest.fixture
def many() -> bytes:
    """start → fork → three tokens at one task ``pick`` (topic ``pick``), each → picked."""
    body = """<startEvent id="start"/><parallelGateway id="fork"/><task id="a"/><task id="b"/><task id="c"/>
      <serviceTask id="pick" stellwerk:topic="pick"/><endEvent id="picked"/>"""
    return _bpmn(body, "start fork a pick picked", "fork b pick", "fork c pick")
