"""What stands beside the processes and is referred to: messages, errors, signals, escalations, definitions."""

from __future__ import annotations

from collections.abc import Container

from stellwerk.model.vocabulary import is_bpmn
from stellwerk.model.xml import Document, Element

__all__ = ["Roots"]

_DATA = frozenset(("dataInput", "dataOutput", "dataObject", "dataObjectReference", "property"))


class Roots:
    """The root elements of a file by kind and id; references may be QNames."""

    def __init__(self, document: Document) -> None:
        self._prefixes = document.prefixes
        self._by_kind: dict[str, dict[str, Element]] = {}
        for element in document.root.children:
            if is_bpmn(element):
                self._keep(element.name, element)
        for element in document.root.descendants():
            if element.name in _DATA and is_bpmn(element):
                self._keep("data", element)

    def _keep(self, kind: str, element: Element) -> None:
        element_id = element.get("id")
        if element_id:
            self._by_kind.setdefault(kind, {}).setdefault(element_id, element)

    def find(self, kind: str, reference: str) -> Element | None:
        """The root element named, as ``id`` or ``prefix:id``."""
        return self._by_kind.get(kind, {}).get(self.resolved(reference, self._by_kind.get(kind, {})))

    def resolved(self, reference: str, known: Container[str] = ()) -> str:
        """The id that a reference means: itself where it is known (ids with colons exist), else without its prefix."""
        reference = reference.strip()
        prefix, colon, local_name = reference.partition(":")
        if not colon or reference in known:
            return reference
        return local_name if prefix in self._prefixes or local_name in known else reference
