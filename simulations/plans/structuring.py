"""JSON objects into attrs classes and back, strictly: an unknown name, a missing one or a wrong type is an error that
tells what and where. Nothing is coerced; whole numbers are fine where a decimal is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import cattrs

__all__ = ["structure", "unstructure"]

T = TypeVar("T")

JsonLeaf: TypeAlias = str | int | float | bool | None


def structure(value: object, kind: type[T]) -> T:
    """:raises ValueError: every complaint as ``what @ $.path[3]``, joined by semicolons."""
    try:
        return _converter.structure(value, kind)
    except cattrs.BaseValidationError as error:
        complaints = cattrs.transform_error(error, format_exception=_complaint)
        raise ValueError("; ".join(complaints)) from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_complaint(error, None)} @ $") from None


def unstructure(value: object) -> object:
    """Lists and objects; a field that has its default is there too."""
    return _converter.unstructure(value)


def _complaint(error: BaseException, _kind: type | None) -> str:
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"unknown: {', '.join(sorted(error.extra_fields))}"
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error)


def _strictly(kind: type[T], name: str) -> Callable[[object, type[T]], T]:
    def check(value: object, _kind: type[T]) -> T:
        if type(value) is kind:
            return value
        raise ValueError(f"{name} is expected, not {value!r}")

    return check


def _decimal(value: object, _kind: type[float]) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"a number is expected, not {value!r}")
    return float(value)  # type: ignore[arg-type]  # looked at above


def _leaf(value: object, _kind: object) -> JsonLeaf:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"a simple value is expected, not {value!r}")


def _is_words(kind: Any) -> bool:
    origin: object = get_origin(kind)
    return origin is Literal


def _word(value: object, kind: Any) -> object:
    words: tuple[str, ...] = get_args(kind)
    if value in words:
        return value
    raise ValueError(f"{value} is none of {', '.join(words)}")


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, unstruct_collection_overrides={tuple: list})
    converter.register_structure_hook(JsonLeaf, _leaf)
    converter.register_structure_hook_func(_is_words, _word)
    converter.register_structure_hook(str, _strictly(str, "a text"))
    converter.register_structure_hook(int, _strictly(int, "a whole number"))
    converter.register_structure_hook(bool, _strictly(bool, "true or false"))
    converter.register_structure_hook(float, _decimal)
    return converter


_converter = _make_converter()
