"""Work that a Java engine does inside itself (a class, a delegate, a bean, a script) and that workers can take over."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stellwerk.model.expressions import Expression, literal
from stellwerk.model.extensions import JAVA_HEADERS, Reading

__all__ = ["adopted_topic", "java_implementation"]

_BEAN = re.compile(r"[$#]\{\s*([A-Za-z_]\w*)\s*\}", re.ASCII)


def java_implementation(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """What implements an element inside Java, as (``class``, ``com.example.Charge``); None where nothing does."""
    return next(((name.removeprefix("java."), headers[name]) for name in JAVA_HEADERS if name in headers), None)


def adopted_topic(element_id: str, headers: Mapping[str, str], reading: Reading) -> Expression | None:
    """The topic for what ran inside Java, if the deployer asks: the class, the bean, or else the element's id."""
    implementation = java_implementation(headers)
    if implementation is None or not reading.adopt_java:
        return None
    kind, value = implementation
    bean = _BEAN.fullmatch(value.strip())
    if kind == "class" and value.strip():
        topic = value.strip()
    elif kind == "delegateExpression" and bean is not None:
        topic = bean[1]
    else:
        topic = element_id
    return literal(topic)
