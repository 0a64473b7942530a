"""Namespaces that are almost the right ones: else one wrong letter would make all extensions of a vendor vanish."""

from __future__ import annotations

import re

from stellwerk.model.findings import Findings
from stellwerk.model.vocabulary import BPMN, BPMN_LIKE, CAMUNDA_LIKE, MODELER, STELLWERK, ZEEBE
from stellwerk.model.xml import Document, Element

__all__ = ["check_namespaces"]

_KNOWN = frozenset((STELLWERK, ZEEBE, MODELER, *CAMUNDA_LIKE, *BPMN_LIKE))
_NAMESPACE_CHARS_MAX = 300
_OUR_HOST = "stellwerk.dev"
_ALMOST_BPMN = re.compile(r"omg\.org/spec/BPMN(?!/non-normative)(?!.*/(BPMN)?DI\b)", re.IGNORECASE)
_VARIES = re.compile(r"^https?://(www\.)?|[\d./]+$", re.IGNORECASE)
"""Where an address differs from another of the same thing: its scheme, its version, a slash at its end."""
_BY_PREFIX = {"stellwerk": (STELLWERK,), "zeebe": (ZEEBE,), "camunda": CAMUNDA_LIKE}
"""What the prefixes are called by convention, with what they may stand for."""


def _essence(namespace: str) -> str:
    return _VARIES.sub("", namespace).lower()


_BY_ESSENCE = {_essence(namespace): namespace for namespace in (ZEEBE, *reversed(CAMUNDA_LIKE))}


def check_namespaces(document: Document, findings: Findings) -> None:
    """A finding for each namespace that is close to one we read; an error where BPMN itself would not be read."""
    target = document.root.get("targetNamespace")
    firsts = _first_uses(document.root)
    for prefix, namespace in sorted(document.declarations):
        if namespace in _KNOWN or len(namespace) > _NAMESPACE_CHARS_MAX:
            continue
        element = firsts.get(namespace, document.root)
        if _ALMOST_BPMN.search(namespace) and element.namespace == namespace:
            findings.error(element, f'the namespace is "{namespace}": BPMN has "{BPMN}"')
            continue
        right = _meant(prefix, namespace, target)
        if right is not None:
            findings.warning(element, f'nothing of the namespace "{namespace}" is read: did you mean "{right}"?')


def _first_uses(root: Element) -> dict[str, Element]:
    firsts: dict[str, Element] = {}
    for element in root.descendants():
        firsts.setdefault(element.namespace, element)
        for namespace, _ in element.attributes:
            firsts.setdefault(namespace, element)
    return firsts


def _meant(prefix: str, namespace: str, target: str | None) -> str | None:
    """The namespace that was probably meant; a file's own target namespace may be called as it likes."""
    by_prefix = _BY_PREFIX.get(prefix.lower())
    if by_prefix is not None:
        return by_prefix[0]
    if namespace == target:
        return None
    return STELLWERK if _OUR_HOST in namespace.lower() else _BY_ESSENCE.get(_essence(namespace))
