"""ProcessCube (5Minds): ``camunda:`` attributes, and properties with names of its own."""

from __future__ import annotations

from stellwerk.model.extensions import Extensions, Reading
from stellwerk.model.vocabulary import is_true
from stellwerk.model.xml import Element

__all__ = ["read_properties"]

_SINGLE_TRY = "engine.isSingleTry"
_PAYLOAD = "payload"


def read_properties(element: Element, found: Extensions, reading: Reading) -> None:
    """Takes the engine's own properties out of the headers; all others stay there for the worker."""
    single_try = found.headers.pop(_SINGLE_TRY, None)
    if single_try is not None:
        found.single_try = is_true(single_try)
    payload = found.headers.pop(_PAYLOAD, None)
    if payload is not None and payload.strip():
        found.payload = reading.texts.expression(element, payload)
