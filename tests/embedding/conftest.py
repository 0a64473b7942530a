"""Processes to embed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

_DEFINITIONS = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL"
    xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn"
    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" targetNamespace="test">
  <message id="message.paid" name="paid"/>
  <process id="{key}" isExecutable="true">
    <startEvent id="start"/>
    {nodes}
    <endEvent id="end"/>
    {flows}
  </process>
</definitions>"""

_NODES = {
    "work": '<serviceTask id="work" stellwerk:topic="work" stellwerk:retries="3"/>',
    "paid": '<receiveTask id="paid" messageRef="message.paid"/>',
    "approve": '<userTask id="approve"/>',
    "three_days": "<intermediateCatchEvent id='three_days'><timerEventDefinition><timeDuration "
    "xsi:type='tFormalExpression'>P3D</timeDuration></timerEventDefinition></intermediateCatchEvent>",
}


def _process(*nodes: str, key: str = "order") -> tuple[str, bytes]:
    path = ["start", *nodes, "end"]
    flows = "".join(
        f'<sequenceFlow id="to_{target}" sourceRef="{source}" targetRef="{target}"/>'
        for source, target in pairwise(path)
    )
    text = _DEFINITIONS.format(key=key, nodes="".join(_NODES[node] for node in nodes), flows=flows)
    return f"{key}.bpmn", text.encode()


@pytest.fixture
def process() -> Callable[..., tuple[str, bytes]]:
    """A file with a process that goes through these nodes: ``work``, ``paid``, ``approve``, ``three_days``."""
    return _process
