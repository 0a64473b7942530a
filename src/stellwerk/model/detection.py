"""Which dialect and which expression language a file is written in. Decided once, for the whole file."""

from __future__ import annotations

import re

from stellwerk.model.expressions import Language
from stellwerk.model.notation import Notation
from stellwerk.model.process import Dialect
from stellwerk.model.vocabulary import CAMUNDA_LIKE, MODELER, STELLWERK, ZEEBE
from stellwerk.model.xml import Document, Element

__all__ = ["declared_language", "dialect_of", "notation_of"]

_PROCESSCUBE_EXPORTERS = ("5minds", "bpmn studio", "processcube")
# What only a condition in JavaScript's manner has, before or instead of a mark for another language.
_JAVASCRIPT = re.compile(r"(?!\s*([$#]\{|=))(?s:.*)(\btoken\.(current|history)\b|[!=]==)")
_FORMAL_EXPRESSIONS = frozenset(
    (
        "conditionExpression",
        "formalExpression",
        "condition",
        "timeDate",
        "timeDuration",
        "timeCycle",
        "loopCardinality",
        "completionCondition",
        "loopCondition",
    )
)


def dialect_of(document: Document) -> Dialect:
    """From the namespaces that are used, the exporting tool, and else from the namespaces that are declared.

    A file with ``stellwerk:`` in it and no vendor's extensions is ours, whatever its expressions look like.
    """
    used = _used_namespaces(document.root)
    if ZEEBE in used:
        return Dialect.ZEEBE
    if STELLWERK in used and not used.intersection(CAMUNDA_LIKE):
        return Dialect.STELLWERK
    if _names_processcube(document.root):
        return Dialect.PROCESSCUBE
    declared = _dialect_by_declaration(document)
    if declared is not Dialect.STELLWERK and _first_written_in_javascript(document.root) is not None:
        return Dialect.PROCESSCUBE
    return Dialect.CAMUNDA if used.intersection(CAMUNDA_LIKE) else declared


def _dialect_by_declaration(document: Document) -> Dialect:
    platform = document.root.get("executionPlatform", MODELER) or ""
    if ZEEBE in document.namespaces or platform == "Camunda Cloud":
        return Dialect.ZEEBE
    if document.namespaces.intersection(CAMUNDA_LIKE) or platform == "Camunda Platform":
        return Dialect.CAMUNDA
    return Dialect.STELLWERK if STELLWERK in document.namespaces else Dialect.PLAIN


def _used_namespaces(root: Element) -> set[str]:
    used: set[str] = set()
    for element in root.descendants():
        used.add(element.namespace)
        used.update(namespace for namespace, _ in element.attributes)
    return used


def _names_processcube(root: Element) -> bool:
    exporter = (root.get("exporter") or "").lower()
    if any(name in exporter for name in _PROCESSCUBE_EXPORTERS):
        return True
    return any(_is_engine_property(element) for element in root.descendants())


def _is_engine_property(element: Element) -> bool:
    is_property = element.name == "property" and element.namespace in CAMUNDA_LIKE
    return is_property and (element.get("name") or "").startswith("engine.")


def _first_written_in_javascript(root: Element) -> Element | None:
    conditions = (element for element in root.descendants() if element.name == "conditionExpression")
    return next((condition for condition in conditions if _JAVASCRIPT.match(condition.text)), None)


def notation_of(document: Document, dialect: Dialect) -> Notation:
    """The dialect's language; plain files say it in ``expressionLanguage`` or show it in their expressions."""
    root = document.root
    used = _used_namespaces(root)
    strict = STELLWERK in used
    match dialect:
        case Dialect.CAMUNDA:
            return Notation(Language.JUEL, "a file with the extensions of Camunda 7 is written in JUEL", strict)
        case Dialect.ZEEBE:
            return Notation(Language.FEEL, "a file with zeebe: in it is written in FEEL", strict)
        case Dialect.PROCESSCUBE:
            return _notation_of_processcube(root, strict or not used.intersection(CAMUNDA_LIKE))
        case Dialect.STELLWERK:
            return Notation(Language.FEEL, "a file with stellwerk: in it is written in FEEL", True)
        case Dialect.PLAIN:
            return _notation_of_plain(root)


def _notation_of_processcube(root: Element, strict: bool) -> Notation:
    witness = None if _names_processcube(root) else _first_written_in_javascript(root)
    if witness is None:
        return Notation(Language.PROCESSCUBE, "the file is ProcessCube's", False)
    because = f"the condition in line {witness.position.line} makes this a file of ProcessCube"
    return Notation(Language.PROCESSCUBE, because, strict)


def _notation_of_plain(root: Element) -> Notation:
    declared = declared_language(root)
    if declared is not None:
        because = f"the expressionLanguage of the file is {declared.name}"
        return Notation(declared, because, True)
    witness = next((element for element in root.descendants() if _is_in_braces(element)), None)
    if witness is None:
        return Notation(Language.FEEL, "this file is written in FEEL", True)
    line = witness.position.line
    return Notation(Language.JUEL, f"the expression in line {line} makes JUEL the language of this file", True)


def declared_language(root: Element) -> Language | None:
    """What the attribute ``expressionLanguage`` says, where it names a language that is known."""
    declared = (root.get("expressionLanguage") or "").lower()
    if "feel" in declared:
        return Language.FEEL
    return Language.JUEL if "juel" in declared or "java.com/java" in declared else None


def _is_in_braces(element: Element) -> bool:
    return element.name in _FORMAL_EXPRESSIONS and element.text.lstrip().startswith(("${", "#{"))
