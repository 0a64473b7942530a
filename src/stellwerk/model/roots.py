"""What stands beside the processes and is referred to: messages, errors, signals, escalations, definitions."""

from __future__ import annotations

from collections.abc import Container

from stellwerk.model.vocabulary import bpmn_children, is_bpmn
from stellwerk.model.xml import Document, Element

__all__ = ["Roots"]

_DATA = frozenset(("dataInput", "dataOutput", "dataObject", "dataObjectReference", "property"))


class Roots:
    """The root elements of a file by kind and id; references may be QNames."""

    def __init__(self, document: Document) -> None:
        self._prefixes = document.prefixes
        self._by_kind: dict[str, dict[str, Element]] = {}
        self._associations: dict[str, list[Element]] = {}
        self._sizes: dict[Element, int] = {}
        self._referred = 0
        for element in document.root.children:
            if is_bpmn(element):
                self._keep(element.name, element)
                if element.name == "collaboration":
                    self._keep_associations(element)
        for element in document.root.descendants():
            if element.name in _DATA and is_bpmn(element):
                self._keep("data", element)

    def _keep(self, kind: str, element: Element) -> None:
        element_id = element.get("id")
        if element_id:
            self._by_kind.setdefault(kind, {}).setdefault(element_id, element)

    def _keep_associations(self, collaboration: Element) -> None:
        for association in bpmn_children(collaboration, "association"):
            ends = (association.get("sourceRef") or "", association.get("targetRef") or "")
            for name in {name for end in ends for name in (end.strip(), end.strip().partition(":")[2]) if name}:
                self._associations.setdefault(name, []).append(association)

    def associations_at(self, node_id: str) -> list[Element]:
        """The associations of collaborations that may lead to or from a node."""
        return self._associations.get(node_id, [])

    def take(self, element: Element, elements_max: int) -> bool:
        """Whether a root element may be read once more, for another one that refers to it.

        As with XML's entities, a small file could otherwise mean a very large one.
        """
        if element not in self._sizes:
            self._sizes[element] = sum(1 for _ in element.descendants())
        self._referred += self._sizes[element]
        return self._referred <= elements_max

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
