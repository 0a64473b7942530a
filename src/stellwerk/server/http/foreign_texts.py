"""The texts in requests of other engines' APIs: how long they may be, and what no text may hold.

Nobody there says how long an id is. What is longer than any of ours names nothing, and is refused rather than looked
for. Of bodies, `loads` has refused what no text may hold before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

import attrs
from starlette.requests import Request

from stellwerk.errors import InvalidInput, LimitExceeded
from stellwerk.json_values import canonical
from stellwerk.server.http.structuring import wire_name

__all__ = ["FREE", "LONG", "check_name", "check_texts", "query_pairs"]

_CHARS_MAX = 255
_BOUND = "chars_max"
LONG = {_BOUND: 4_000}
"""Metadata of a field: what people have written, as the name of a task."""
FREE = {_BOUND: None}
"""Metadata of a field whose length the engine looks at."""


def query_pairs(request: Request) -> list[tuple[str, str]]:
    """:raises InvalidInput: one is not UTF-8, or has a NUL."""
    try:
        pairs = parse_qsl(request.scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput("not UTF-8 @ query") from None
    for name, text in pairs:
        canonical(name, "query")
        canonical(text, f"query.{name}")
    return pairs


def check_name(text: str, where: str) -> None:
    """:param where: as ``path.name``.
    :raises InvalidInput: it has a NUL; LimitExceeded: it is too long.
    """
    canonical(text, where)
    _check(text, where, _CHARS_MAX)


def check_texts(shape: attrs.AttrsInstance, where: str) -> None:
    """All in a body or a query that became `shape`, but values of the process. In a query a text with commas is a list.

    :param where: of it, as ``$`` or ``query``.
    :raises LimitExceeded: one is too long.
    """
    for field, chars_max in _bounded(type(shape)):
        _check(getattr(shape, field.name), f"{where}.{wire_name(field)}", chars_max)


@cache
def _bounded(kind: type[attrs.AttrsInstance]) -> Sequence[tuple[attrs.Attribute[Any], int]]:
    """Fields that hold texts, and how long these may be."""
    hints = get_type_hints(kind)
    bounds = [(field, field.metadata.get(_BOUND, _CHARS_MAX)) for field in attrs.fields(kind)]
    return [(field, bound) for field, bound in bounds if bound is not None and hints[field.name] is not object]


def _check(value: object, where: str, chars_max: int) -> None:
    match value:
        case str():
            longest = max(map(len, value.split(","))) if where.startswith("query.") else len(value)
            if longest > chars_max:
                raise LimitExceeded(f"{longest} characters, at most {chars_max} are allowed @ {where}")
        case tuple():
            for index, item in enumerate(value):
                _check(item, f"{where}[{index}]", chars_max)
        case _ if attrs.has(type(value)):
            check_texts(value, where)  # type: ignore[arg-type]
        case _:
            pass
