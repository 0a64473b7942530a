"""The values of Camunda's input and output parameters: text, expressions, lists and maps of these, scripts."""

from __future__ import annotations

from stellwerk.json_values import JsonValue, dumps
from stellwerk.model.expressions import Expression, literal
from stellwerk.model.extensions import Reading
from stellwerk.model.vocabulary import CAMUNDA_LIKE
from stellwerk.model.xml import Element

__all__ = ["parameter_value"]


def parameter_value(parameter: Element, reading: Reading) -> Expression:
    """What a parameter, list value or map entry holds. Without text it is null."""
    structure = _structure(parameter)
    if structure is None:
        text = parameter.text.strip()
        return reading.texts.template(parameter, text) if text else literal(None)
    if structure.name == "script":
        reading.findings.error(structure, "a script in a mapping cannot run")
        return literal(None)
    if any(reading.texts.is_expression(element.text) for element in structure.descendants()):
        return reading.texts.expression(structure, f"${{{_source_of_structure(structure, reading)}}}")
    return literal(_constant_of_structure(structure, reading))


def _structure(parameter: Element) -> Element | None:
    names = ("list", "map", "script")
    return next((c for c in parameter.children if c.name in names and c.namespace in CAMUNDA_LIKE), None)


def _entries(structure: Element) -> list[Element]:
    return [child for child in structure.children if child.namespace in CAMUNDA_LIKE]


def _constant_of_structure(structure: Element, reading: Reading) -> JsonValue:
    if structure.name == "map":
        return {entry.get("key") or "": _constant(entry, reading) for entry in _entries(structure)}
    return [_constant(entry, reading) for entry in _entries(structure)]


def _constant(entry: Element, reading: Reading) -> JsonValue:
    structure = _structure(entry)
    if structure is None:
        is_script = entry.name == "script"
        if is_script:
            reading.findings.error(entry, "a script in a mapping cannot run")
        return entry.text.strip() or None
    if structure.name == "script":
        reading.findings.error(structure, "a script in a mapping cannot run")
        return None
    return _constant_of_structure(structure, reading)


def _source_of_structure(structure: Element, reading: Reading) -> str:
    """The structure written as one expression, since its parts are expressions."""
    if structure.name == "map":
        pairs = (f"{_quoted(entry.get('key') or '')}: {_source(entry, reading)}" for entry in _entries(structure))
        return "{" + ", ".join(pairs) + "}"
    return "[" + ", ".join(_source(entry, reading) for entry in _entries(structure)) + "]"


def _source(entry: Element, reading: Reading) -> str:
    structure = _structure(entry)
    text = entry.text.strip()
    if structure is not None and structure.name != "script":
        return _source_of_structure(structure, reading)
    if structure is not None or entry.name == "script":
        reading.findings.error(entry, "a script in a mapping cannot run")
        return "null"
    if not reading.texts.is_expression(text):
        return _quoted(text) if text else "null"
    inner = text[2:-1]
    if not text.startswith(("${", "#{")) or not text.endswith("}") or "${" in inner or "#{" in inner:
        reading.findings.error(entry, "text and expression cannot be mixed within a list or map")
        return "null"
    return f"({inner})"


def _quoted(text: str) -> str:
    return dumps(text).decode()
