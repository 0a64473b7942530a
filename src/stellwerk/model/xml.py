"""XML as a tree of elements that know their line and column, read with the standard library's expat.

Hostile files are refused: any DOCTYPE (so there are no entities, internal or external), too many bytes or elements,
too deep nesting. Namespaces are resolved: prefixes do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.parsers import expat

from stellwerk.limits import Limits
from stellwerk.model.process import Position
from stellwerk.model.xml_text import XmlRefused, decoded

__all__ = ["Document", "Element", "XmlRefused", "parse_xml"]

# It cannot stand in an XML document, so it parts every namespace from its local name.
_SEPARATOR = "\x1f"


class Element:
    """An element with what stands in it. ``text`` joins the character data directly inside."""

    __slots__ = ("attributes", "children", "name", "namespace", "parent", "position", "text")

    def __init__(self, namespace: str, name: str, attributes: dict[tuple[str, str], str], position: Position) -> None:
        self.namespace = namespace
        self.name = name
        self.attributes = attributes
        """By (namespace, local name); the namespace is empty for attributes without prefix."""
        self.position = position
        self.parent: Element | None = None
        self.children: list[Element] = []
        self.text = ""

    def __repr__(self) -> str:
        return f"<{self.name} line {self.position.line}>"

    def get(self, name: str, namespace: str = "") -> str | None:
        """An attribute's value."""
        return self.attributes.get((namespace, name))

    @property
    def nearest_id(self) -> str | None:
        """The element's own id, or that of the nearest element around it that has one: by that people find it."""
        element: Element | None = self
        while element is not None:
            if element_id := element.get("id"):
                return element_id
            element = element.parent
        return None

    def descendants(self) -> Iterator[Element]:
        """The element itself and all elements inside, in document order."""
        pending = [self]
        while pending:
            element = pending.pop()
            yield element
            pending.extend(reversed(element.children))


class Document:
    """A parsed file: its root, and which namespaces it declares anywhere under which prefixes."""

    __slots__ = ("declarations", "namespaces", "prefixes", "root")

    def __init__(self, root: Element, declarations: frozenset[tuple[str, str]]) -> None:
        self.root = root
        self.declarations = declarations
        """Pairs of prefix (empty for the default namespace) and namespace."""
        self.namespaces = frozenset(namespace for _, namespace in declarations)
        self.prefixes = frozenset(prefix for prefix, _ in declarations if prefix)


def parse_xml(xml: bytes, limits: Limits) -> Document:
    """Parse a whole file.

    :raises XmlRefused: with the line and column where it stops to be acceptable.
    """
    if len(xml) > limits.definition_bytes_max:
        raise XmlRefused(Position(1, 1), f"{len(xml)} bytes, at most {limits.definition_bytes_max} are allowed")
    return _TreeBuilder(limits).build(decoded(xml))


class _TreeBuilder:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: list[Element] = []
        self._texts: list[list[str]] = []
        self._root: Element | None = None
        self._elements = 0
        self._declarations: set[tuple[str, str]] = set()
        self._parser = expat.ParserCreate("utf-8", _SEPARATOR)
        self._parser.buffer_text = True
        self._parser.ordered_attributes = True
        self._parser.StartDoctypeDeclHandler = self._on_doctype
        self._parser.StartNamespaceDeclHandler = self._on_namespace
        self._parser.StartElementHandler = self._on_start
        self._parser.EndElementHandler = self._on_end
        self._parser.CharacterDataHandler = self._on_text

    def build(self, text: str) -> Document:
        try:
            self._parser.Parse(text.encode(), True)
        except expat.ExpatError as error:
            position = Position(error.lineno, error.offset + 1)
            raise XmlRefused(position, f"not well-formed XML: {expat.ErrorString(error.code)}") from None
        assert self._root is not None, "expat found a root"
        return Document(self._root, frozenset(self._declarations))

    def _position(self) -> Position:
        return Position(self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1)

    def _on_doctype(self, name: str, system_id: str | None, public_id: str | None, has_internal_subset: bool) -> None:
        raise XmlRefused(self._position(), "a DOCTYPE is not allowed")

    def _on_namespace(self, prefix: str | None, uri: str | None) -> None:
        self._declarations.add((prefix or "", uri or ""))

    def _on_start(self, name: str, flat_attributes: list[str]) -> None:
        self._elements += 1
        if self._elements > self._limits.definition_elements_max:
            raise XmlRefused(self._position(), f"more than {self._limits.definition_elements_max} elements")
        if len(self._open) >= self._limits.definition_depth_max:
            raise XmlRefused(self._position(), f"nested deeper than {self._limits.definition_depth_max} elements")
        names, values = flat_attributes[::2], flat_attributes[1::2]
        attributes = {_split(name): value for name, value in zip(names, values, strict=True)}
        element = Element(*_split(name), attributes, self._position())
        if self._open:
            element.parent = self._open[-1]
            element.parent.children.append(element)
        else:
            self._root = element
        self._open.append(element)
        self._texts.append([])

    def _on_end(self, name: str) -> None:
        self._open.pop().text = "".join(self._texts.pop())

    def _on_text(self, text: str) -> None:
        self._texts[-1].append(text)


def _split(name: str) -> tuple[str, str]:
    namespace, _, local_name = name.rpartition(_SEPARATOR)
    return namespace, local_name
