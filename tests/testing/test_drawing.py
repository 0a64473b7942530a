"""Processes are drawn as their authors placed them, or laid out; what was visited can be told from what was not."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from stellwerk.errors import InvalidInput
from stellwerk.model.reader import read_definitions
from stellwerk.testing import Visits, draw_process

DATA = Path(__file__).parents[2] / "../shared/data/bpmn"
SVG = "{http://www.w3.org/2000/svg}"

Bpmn = Callable[..., bytes]
Box = tuple[float, float, float, float]

_DIAGRAM = """
<bpmndi:BPMNDiagram xmlns:bpmndi="http://www.omg.org/spec/BPMN/20100524/DI"
    xmlns:dc="http://www.omg.org/spec/DD/20100524/DC" xmlns:di="http://www.omg.org/spec/DD/20100524/DI">
  <bpmndi:BPMNPlane bpmnElement="p">{}</bpmndi:BPMNPlane></bpmndi:BPMNDiagram></definitions>"""
_SHAPE = """<bpmndi:BPMNShape bpmnElement="{}"><dc:Bounds x="{}" y="{}" width="{}" height="{}"/></bpmndi:BPMNShape>"""
_EDGE = (
    """<bpmndi:BPMNEdge bpmnElement="{}"><di:waypoint x="{}" y="{}"/><di:waypoint x="{}" y="{}"/></bpmndi:BPMNEdge>"""
)


def _with_diagram(xml: bytes, *shapes: str) -> bytes:
    return xml.replace(b"</definitions>", _DIAGRAM.format("".join(shapes)).encode())


def _elements(svg: str) -> dict[str, ET.Element]:
    return {
        group.attrib["data-element"]: group for group in ET.fromstring(svg).iter() if "data-element" in group.attrib
    }


def _box(group: ET.Element) -> Box:
    """Left, top, right, bottom of a node's own shape."""
    for shape in group:
        if shape.tag == f"{SVG}rect":
            x, y, width, height = (float(shape.attrib[name]) for name in ("x", "y", "width", "height"))
            return x, y, x + width, y + height
        if shape.tag == f"{SVG}circle":
            x, y, radius = (float(shape.attrib[name]) for name in ("cx", "cy", "r"))
            return x - radius, y - radius, x + radius, y + radius
        if shape.tag == f"{SVG}polygon":
            points = _points(shape)
            return (
                min(x for x, _ in points),
                min(y for _, y in points),
                max(x for x, _ in points),
                max(y for _, y in points),
            )
    raise AssertionError("a node has a shape")


def _points(shape: ET.Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in shape.attrib["points"].split())
    return [(float(x), float(y)) for x, y in pairs]


def _line(group: ET.Element) -> list[tuple[float, float]]:
    [line] = [shape for shape in group if shape.attrib.get("class") == "flow" and len(_points(shape)) >= 2][:1]
    return _points(line)


def _view(svg: str) -> Box:
    x, y, width, height = (float(number) for number in ET.fromstring(svg).attrib["viewBox"].split())
    return x, y, x + width, y + height


def _overlap(first: Box, second: Box) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def test_a_diagram_is_drawn_as_it_is_in_the_file(one_task: bytes) -> None:
    xml = _with_diagram(
        one_task,
        _SHAPE.format("start", 100, 140, 36, 36),
        _SHAPE.format("work", 200, 118, 100, 80),
        _SHAPE.format("done", 400, 340, 36, 36),
        _EDGE.format("start-work", 136, 158, 200, 158),
        _EDGE.format("work-done", 300, 158, 400, 358),
    )
    found = _elements(draw_process(xml))
    left, top, *_ = _box(found["start"])
    for node_id, box in {"work": (100, -22, 200, 58), "done": (300, 200, 336, 236)}.items():
        assert _box(found[node_id]) == pytest.approx([left + box[0], top + box[1], left + box[2], top + box[3]])
    assert _line(found["work-done"]) == [(left + 200, top + 18), (left + 300, top + 218)]


def test_what_was_visited_is_told_apart_and_counted(one_task: bytes) -> None:
    svg = draw_process(one_task, visits=Visits(nodes={"start": 2, "work": 1}, flows={"start-work": 1}))
    classes = {element_id: group.attrib["class"] for element_id, group in _elements(svg).items()}
    assert classes == {
        "start": "node visited",
        "work": "node visited",
        "done": "node missed",
        "start-work": "visited",
        "work-done": "missed",
    }
    titles = {element_id: group.findtext(f"{SVG}title") for element_id, group in _elements(svg).items()}
    assert titles["start"] == "start: visited 2 times"
    assert titles["work"] == "Do it (work): visited once"
    assert titles["done"] == "done: not visited"
    assert "2 of 3 flow nodes and 1 of 2 sequence flows visited" in svg
    assert "visited" not in draw_process(one_task).partition("</style>")[2]


def test_without_a_diagram_nodes_stand_side_by_side_along_the_flows(bpmn: Bpmn) -> None:
    body = """<endEvent id="done"/><parallelGateway id="join"/><userTask id="repair"/>
      <startEvent id="start"/><serviceTask id="left" stellwerk:topic="t"/><parallelGateway id="fork"/>
      <subProcess id="sub"><startEvent id="in"/><task id="inner"/><endEvent id="out"/>
        <sequenceFlow id="i1" sourceRef="in" targetRef="inner"/>
        <sequenceFlow id="i2" sourceRef="inner" targetRef="out"/>
      </subProcess><boundaryEvent id="broken" attachedToRef="sub"><errorEventDefinition/></boundaryEvent>
      """
    xml = bpmn(body, "start fork left join done", "fork sub join", "broken repair fork", "fork join")
    svg = draw_process(xml)
    [process] = read_definitions(xml).processes
    found = _elements(svg)
    boxes = {node_id: _box(found[node_id]) for node_id in process.nodes}
    for first, second in combinations([node_id for node_id in boxes if node_id != "broken"], 2):
        is_inside = process.nodes[first].parent == second or process.nodes[second].parent == first
        assert _overlap(boxes[first], boxes[second]) == is_inside, (first, second)
    assert _overlap(boxes["broken"], boxes["sub"])
    assert [boxes[node_id][0] for node_id in ("start", "fork", "sub", "join", "done")] == sorted(
        boxes[node_id][0] for node_id in ("start", "fork", "sub", "join", "done")
    )
    for flow in process.flows.values():
        line = _line(found[flow.id])
        assert _touches(boxes[flow.source], line[0]), flow.id
        assert _touches(boxes[flow.target], line[-1]), flow.id
        for node_id, box in boxes.items():
            if node_id not in (flow.source, flow.target, process.nodes[flow.source].parent, "broken"):
                assert not any(_crosses(box, start, end) for start, end in _legs(line)), (flow.id, node_id)


def _touches(box: Box, point: tuple[float, float]) -> bool:
    return box[0] - 0.2 <= point[0] <= box[2] + 0.2 and box[1] - 0.2 <= point[1] <= box[3] + 0.2


def _legs(line: list[tuple[float, float]]) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    yield from pairwise(line)


def _crosses(box: Box, start: tuple[float, float], end: tuple[float, float]) -> bool:
    """Lines of the layout are upright or level."""
    leg = min(start[0], end[0]), min(start[1], end[1]), max(start[0], end[0]), max(start[1], end[1])
    return _overlap((box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1), (leg[0], leg[1], leg[2] + 0.1, leg[3] + 0.1))


def test_nodes_that_the_diagram_leaves_out_are_drawn_below_it(one_task: bytes) -> None:
    xml = _with_diagram(one_task, _SHAPE.format("start", 0, 0, 36, 36), _SHAPE.format("work", 100, 0, 100, 80))
    svg = draw_process(xml)
    found = _elements(svg)
    assert _box(found["done"])[1] > _box(found["work"])[3]
    assert "not in the file's diagram".replace("'", "&#39;") in svg
    assert _line(found["start-work"])[0][0] == _box(found["start"])[2], "a flow without a line gets a straight one"


def test_boundary_events_are_drawn_over_their_activities(bpmn: Bpmn) -> None:
    event = '<boundaryEvent id="broken" attachedToRef="work"><errorEventDefinition/></boundaryEvent>'
    xml = bpmn(f'{event}<task id="work"/><task id="next"/>')
    shapes = (_SHAPE.format("broken", 50, 60, 36, 36), _SHAPE.format("work", 0, 0, 100, 80))
    assert list(_elements(draw_process(xml))) == ["work", "next", "broken"]
    assert list(_elements(draw_process(_with_diagram(xml, *shapes)))) == ["work", "broken", "next"]


def test_a_diagram_may_write_ids_with_a_prefix(bpmn: Bpmn) -> None:
    body = '<task id="work"/><task id="own:work"/>'
    shapes = (_SHAPE.format("x:work", 0, 0, 100, 80), _SHAPE.format("own:work", 300, 0, 100, 80))
    found = _elements(draw_process(_with_diagram(bpmn(body), *shapes)))
    assert _box(found["own:work"])[0] - _box(found["work"])[0] == 300


@pytest.mark.parametrize("text", ["a < b & \"c\" > 'd'", "</text><script>alert(1)</script>", "größer 𝄞", "x" * 300])
def test_names_stay_text(bpmn: Bpmn, text: str) -> None:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    body = f'<startEvent id="start" name="{escaped}"/><task id="work" name="{escaped}"/>'
    root = ET.fromstring(draw_process(bpmn(body, "start work")))
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "title", "style", "g", "text", "tspan", "rect", "circle", "polygon", "polyline", "path"),
    }
    shown = "".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))
    assert text.replace(" ", "")[:20] in shown.replace(" ", "")


@pytest.mark.parametrize(
    "coordinate", ["nan", "inf", "1e999", "-1e300", "", "left", "12px"], ids=lambda text: text or "empty"
)
def test_coordinates_that_are_none_do_not_break_the_picture(one_task: bytes, coordinate: str) -> None:
    xml = _with_diagram(
        one_task,
        _SHAPE.format("start", 0, 0, 36, 36),
        _SHAPE.format("work", coordinate, 0, 100, 80),
        _EDGE.format("start-work", coordinate, 0, 1, 1),
    )
    svg = draw_process(xml)
    assert {"start", "work", "done", "start-work"} <= set(_elements(svg))
    numbers = re.findall(r'="(-?[\d.]+|nan|inf)"', svg)
    assert all(abs(float(number)) < 10_000 for number in numbers)


def test_a_long_process_needs_no_recursion(bpmn: Bpmn) -> None:
    nodes = "".join(f'<task id="t{number}"/>' for number in range(1_500))
    svg = draw_process(bpmn(nodes, " ".join(f"t{number}" for number in range(1_500)), "t1499 t0"))
    assert len(_elements(svg)) == 3_000


def test_one_process_must_be_meant(one_task: bytes) -> None:
    two = one_task.replace(b"</definitions>", b'<process id="q"><task id="t"/></process></definitions>')
    assert list(_elements(draw_process(two, "q"))) == ["t"]
    with pytest.raises(InvalidInput, match="name one of the file's processes: p, q"):
        draw_process(two)
    with pytest.raises(InvalidInput, match='the file has no process "r", but p, q'):
        draw_process(two, "r")
    with pytest.raises(InvalidInput, match=r"the file has no process that can be drawn: line 1.* not well-formed"):
        draw_process(b"nonsense")


def _public_files() -> list[Path]:
    kinds = (".bpmn", ".bpmn2", ".xml")
    return sorted(path for path in DATA.glob("set*/*") if path.suffix in kinds)


@pytest.mark.skipif(not _public_files(), reason="no public models beside the checkout")
def test_every_public_process_that_can_be_read_is_drawn_whole() -> None:
    drawn = 0
    for path in _public_files():
        xml = path.read_bytes()
        for process in read_definitions(xml).processes:
            visits = Visits(nodes=dict.fromkeys(list(process.nodes)[::2], 1))
            svg = draw_process(xml, process.key, visits=visits)
            found, view = _elements(svg), _view(svg)
            assert {*process.nodes, *process.flows} <= set(found), path.name
            for node_id in process.nodes:
                left, top, right, bottom = _box(found[node_id])
                assert view[0] <= left < right <= view[2], (path.name, node_id)
                assert view[1] <= top < bottom <= view[3], (path.name, node_id)
            drawn += 1
    assert drawn > 150
