"""The expressions of public models, when those are at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lxml import etree

from stellwerk.model.expressions import ExpressionSyntaxError, Language, parse, parse_template

MODELS = Path(__file__).parents[2] / "../shared/data/bpmn"
NOT_EVALUATED = re.compile(
    r"executeLogic\(|stringEquals\(|(?:group|user)2\(|day of week\(|^ErrorThrown = ",
)
"""Calls of beans, of functions of other engines, of FEEL's dates; and one that is no JUEL."""
CONDITIONS = ("conditionExpression", "completionCondition", "condition", "loopCardinality")
TEXTS = ("inputParameter", "outputParameter", "timeDuration", "timeDate", "timeCycle")


def expressions_of(path: Path) -> Iterator[tuple[bool, str, Language]]:
    """(whether all of it is an expression, text, language)"""
    document = etree.parse(path, etree.XMLParser(resolve_entities=False))
    default = Language.FEEL if b"camunda.org/schema/zeebe" in path.read_bytes() else Language.JUEL
    for element in document.iter(etree.Element):
        name, text = etree.QName(element).localname, (element.text or "").strip()
        if name in CONDITIONS and text:
            javascript = text.startswith("token.") or text.endswith(";")
            yield True, text, Language.PROCESSCUBE if javascript else default
        elif name in TEXTS and text and len(element) == 0:
            yield False, text, default
        elif name in ("input", "output") and element.get("source"):
            yield True, element.get("source"), default
        elif name == "property" and element.get("name") == "payload":
            yield True, element.get("value"), Language.PROCESSCUBE
        yield from ((False, value, default) for value in element.attrib.values() if re.search(r"[$#]\{", value))


def test_expressions_of_public_models_are_read() -> None:
    if not MODELS.is_dir():
        pytest.skip("the public models are not beside this checkout")
    read, refused = 0, []
    for path in sorted([*MODELS.rglob("*.bpmn"), *MODELS.rglob("*.xml")]):
        try:
            found = list(expressions_of(path))
        except etree.XMLSyntaxError:
            continue
        for whole, text, language in found:
            try:
                parse(text, language) if whole else parse_template(text, language)
                read += 1
            except ExpressionSyntaxError as error:
                refused.append((text, str(error)))
    assert read > 80
    assert [(text, error) for text, error in refused if not NOT_EVALUATED.search(text)] == []
