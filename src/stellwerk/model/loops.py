"""Standard loop and multi-instance characteristics (BPMN 2.0, 13.3.6 and 13.3.7)."""

from __future__ import annotations

from stellwerk.model.expressions import Expression
from stellwerk.model.extensions import Reading
from stellwerk.model.process import LoopCharacteristics
from stellwerk.model.settings import whole_number
from stellwerk.model.vocabulary import (
    ZEEBE,
    bpmn_child,
    bpmn_children,
    extension_elements,
    is_true,
    text_of,
    vendor_attribute,
)
from stellwerk.model.xml import Element

__all__ = ["read_loop"]


def read_loop(activity: Element, reading: Reading) -> LoopCharacteristics | None:
    """The activity's loop, if it has one."""
    names = ("standardLoopCharacteristics", "multiInstanceLoopCharacteristics")
    loops = list(bpmn_children(activity, *names))
    if len(loops) > 1:
        reading.findings.error(loops[1], "an activity has one kind of loop only")
    if not loops:
        return None
    return _multi_instance(loops[0], reading) if loops[0].name == names[1] else _standard_loop(loops[0], reading)


def _standard_loop(loop: Element, reading: Reading) -> LoopCharacteristics:
    maximum = loop.get("loopMaximum")
    return LoopCharacteristics(
        multi_instance=False,
        sequential=True,
        position=loop.position,
        completion_condition=_condition(loop, "loopCondition", reading),
        test_before=is_true(loop.get("testBefore")),
        loop_maximum=None if maximum is None else whole_number(reading.findings, loop, "loopMaximum", maximum),
    )


def _multi_instance(loop: Element, reading: Reading) -> LoopCharacteristics:
    collection, element = _input(loop, reading)
    output_collection, output_element = _output(loop, reading)
    cardinality = bpmn_child(loop, "loopCardinality")
    cardinality_text = text_of(cardinality)
    return LoopCharacteristics(
        multi_instance=True,
        sequential=is_true(loop.get("isSequential")),
        position=loop.position,
        cardinality=reading.texts.count(loop, cardinality_text) if cardinality_text else None,
        input_collection=collection,
        input_element=element,
        output_collection=output_collection,
        output_element=output_element,
        completion_condition=_condition(loop, "completionCondition", reading),
    )


def _condition(loop: Element, name: str, reading: Reading) -> Expression | None:
    condition = bpmn_child(loop, name)
    text = text_of(condition)
    return reading.texts.condition(condition, text) if condition is not None and text else None


def _zeebe(loop: Element) -> Element | None:
    found = (e for e in extension_elements(loop) if e.namespace == ZEEBE and e.name == "loopCharacteristics")
    return next(found, None)


def _input(loop: Element, reading: Reading) -> tuple[Expression | None, str | None]:
    zeebe = _zeebe(loop)
    if zeebe is not None:
        text = zeebe.get("inputCollection")
        return reading.texts.optional_template(zeebe, text), zeebe.get("inputElement")
    collection = vendor_attribute(loop, "collection") or text_of(bpmn_child(loop, "loopDataInputRef"))
    element = vendor_attribute(loop, "elementVariable") or _data_item(loop, "inputDataItem")
    if collection is None:
        return None, element
    return reading.texts.variable(loop, _data_name(collection, reading)), element


def _output(loop: Element, reading: Reading) -> tuple[str | None, Expression | None]:
    zeebe = _zeebe(loop)
    if zeebe is not None:
        element = zeebe.get("outputElement")
        return zeebe.get("outputCollection"), reading.texts.optional_template(zeebe, element)
    collection = text_of(bpmn_child(loop, "loopDataOutputRef"))
    item = _data_item(loop, "outputDataItem")
    if collection is None or item is None:
        return collection, None
    return _data_name(collection, reading), reading.texts.variable(loop, item)


def _data_item(loop: Element, name: str) -> str | None:
    item = bpmn_child(loop, name)
    return (item.get("name") or item.get("id")) if item is not None else None


def _data_name(reference: str, reading: Reading) -> str:
    """A data input is known by its name, where it is declared; else the reference is the variable's name."""
    declared = reading.roots.find("data", reference)
    return (declared.get("name") or reference) if declared is not None else reference
