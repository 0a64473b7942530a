"""Names of BPMN and of the vendors' namespaces, and how XML Schema writes simple values."""

from __future__ import annotations

from collections.abc import Iterator

from stellwerk.model.xml import Element

__all__ = [
    "BPMN",
    "BPMN_LIKE",
    "CAMUNDA_LIKE",
    "MODELER",
    "STELLWERK",
    "ZEEBE",
    "bpmn_child",
    "bpmn_children",
    "extension_elements",
    "is_bpmn",
    "is_true",
    "text_of",
    "vendor_attribute",
]

STELLWERK = "https://stellwerk.dev/schema/1.0/bpmn"
ZEEBE = "http://camunda.org/schema/zeebe/1.0"
MODELER = "http://camunda.org/schema/modeler/1.0"
CAMUNDA_LIKE = (
    "http://camunda.org/schema/1.0/bpmn",
    "http://operaton.org/schema/1.0/bpmn",
    "http://flowable.org/bpmn",
    "http://activiti.org/bpmn",
    "http://activiti.com/modeler",
    "http://activiti.com/bpmn",
)

BPMN = "http://www.omg.org/spec/BPMN/20100524/MODEL"
BPMN_LIKE = (
    BPMN,
    # A draft's namespace, still in some files, and elements that somebody forgot to qualify.
    "http://schema.omg.org/spec/BPMN/2.0",
    "",
)


def is_bpmn(element: Element) -> bool:
    return element.namespace in BPMN_LIKE


def bpmn_children(element: Element, *names: str) -> Iterator[Element]:
    """The direct children that are BPMN elements with one of these local names."""
    return (child for child in element.children if child.name in names and is_bpmn(child))


def bpmn_child(element: Element, name: str) -> Element | None:
    return next(bpmn_children(element, name), None)


def extension_elements(element: Element) -> list[Element]:
    """What stands in the element's ``extensionElements``."""
    return [extension for holder in bpmn_children(element, "extensionElements") for extension in holder.children]


def is_true(text: str | None, default: bool = False) -> bool:
    """An xsd:boolean: ``true``, ``false``, ``1``, ``0``; `default` where the attribute is missing."""
    return default if text is None else text.strip() in ("true", "1", "True", "TRUE")


def text_of(element: Element | None) -> str | None:
    """The trimmed text, None where there is none."""
    return (element.text.strip() or None) if element is not None else None


def vendor_attribute(element: Element, name: str) -> str | None:
    """An attribute in any of the namespaces of Camunda 7 and its relatives."""
    return next((value for ns in CAMUNDA_LIKE if (value := element.get(name, ns)) is not None), None)
