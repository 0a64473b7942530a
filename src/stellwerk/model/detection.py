"""Which dialect and which expression language a file is written in. Decided once, for the whole file."""

from __future__ import annotations

import re

from stellwerk.model.expressions import Language
from stellwerk.model.process import Dialect
from stellwerk.model.vocabulary import CAMUNDA_LIKE, MODELER, STELLWERK, ZEEBE
from stellwerk.model.xml import Document, Element

__all__ = ["dialect_of", "expression_language_of"]

_PROCESSCUBE_EXPORTERS = ("5minds", "bpmn studio", "processcube")
# What only a condition in JavaScript's manner has, before or instead of a mark for another language.
_JAVASCRIPT = re.compile(r"(?!\s*([$#]\{|=))(?s:.*)(\btoken\.(current|history)\b|[!=]==)")
_FORMAL_EXPRESSIONS = frozenset(
    (
        "conditionExpression",
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
    """From the namespaces that are used, the exporting tool, and else from the namespaces that are declared."""
    used = _used_namespaces(document.root)
    if ZEEBE in used:
        return Dialect.ZEEBE
    if _is_processcube(document.root):
        return Dialect.PROCESSCUBE
    if used.intersection(CAMUNDA_LIKE):
        return Dialect.CAMUNDA
    if STELLWERK in used:
        return Dialect.STELLWERK
    return _dialect_by_declaration(document)


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


def _is_processcube(root: Element) -> bool:
    exporter = (root.get("exporter") or "").lower()
    if any(name in exporter for name in _PROCESSCUBE_EXPORTERS):
        return True
    return any(_speaks_processcube(element) for element in root.descendants())


def _speaks_processcube(element: Element) -> bool:
    if element.name == "property" and element.namespace in CAMUNDA_LIKE:
        return (element.get("name") or "").startswith("engine.")
    return element.name == "conditionExpression" and _JAVASCRIPT.match(element.text) is not None


def expression_language_of(document: Document, dialect: Dialect) -> Language:
    """The dialect's language; plain files say it in ``expressionLanguage`` or show it in their expressions."""
    match dialect:
        case Dialect.CAMUNDA:
            return Language.JUEL
        case Dialect.ZEEBE:
            return Language.FEEL
        case Dialect.PROCESSCUBE:
            return Language.PROCESSCUBE
        case Dialect.PLAIN | Dialect.STELLWERK:
            return Language.JUEL if _is_written_in_juel(document.root) else Language.FEEL


def _is_written_in_juel(root: Element) -> bool:
    declared = (root.get("expressionLanguage") or "").lower()
    if "feel" in declared:
        return False
    if "juel" in declared or "java.com/java" in declared:
        return True
    return any(
        element.name in _FORMAL_EXPRESSIONS and element.text.lstrip().startswith(("${", "#{"))
        for element in root.descendants()
    )
