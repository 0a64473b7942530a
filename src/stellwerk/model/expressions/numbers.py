"""Arithmetic with decimal results: 0.1 + 0.2 is 0.3, whole numbers stay exact, and nothing grows without a bound.

FEEL asks for decimals; the other languages get the same, since amounts of money are what models compute with.
Operands that are no whole numbers are taken by their shortest decimal text, the result is rounded to a double again.
"""

from __future__ import annotations

import decimal
import re
from decimal import Decimal
from typing import Final, TypeAlias

from stellwerk.model.expressions.failures import EvaluationError, Misuse

__all__ = [
    "INTEGER_BITS_MAX",
    "Number",
    "add",
    "ceiling",
    "divide",
    "floor",
    "modulo",
    "multiply",
    "negate",
    "number_text",
    "parse_number",
    "power",
    "remainder",
    "subtract",
]

Number: TypeAlias = int | float

INTEGER_BITS_MAX: Final = 1024
"""As far as a double reaches."""
EXPONENT_MAX: Final = 1024
_DIGITS_MAX: Final = 308
_EXACT_MAX: Final = 2**53
"""Whole results below it are given as int: every reader of JSON takes those unharmed."""

_context = decimal.Context(prec=34, rounding=decimal.ROUND_HALF_EVEN, Emin=-6143, Emax=6144, traps=[])
"""Decimal128, as DMN 1.5, 10.3.2.3.1 has it."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")


def parse_number(text: str) -> Number | None:
    """The number that decimal `text` stands for; None when it is none or too large."""
    if len(text) > 2 * _DIGITS_MAX or not _NUMBER.fullmatch(text):
        return None
    if text.lstrip("+-").isdigit():
        return int(text) if len(text) <= _DIGITS_MAX else None
    value = float(text)
    return None if value in (float("inf"), float("-inf")) else value + 0.0


def number_text(value: Number) -> str:
    """Decimal text without a needless fraction: ``3.0`` is ``3``."""
    if isinstance(value, int):
        return str(_bounded(value))
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return repr(value)


def add(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int):
        return _bounded(left + right)
    return _rounded(_context.add(_decimal(left), _decimal(right)))


def subtract(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int):
        return _bounded(left - right)
    return _rounded(_context.subtract(_decimal(left), _decimal(right)))


def multiply(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int):
        return _bounded(_bounded(left) * _bounded(right))
    return _rounded(_context.multiply(_decimal(left), _decimal(right)))


def divide(left: Number, right: Number) -> Number:
    """A whole number when it is exact.

    :raises EvaluationError: division by zero (FEEL's null is up to the caller).
    """
    _not_zero(right)
    if isinstance(left, int) and isinstance(right, int) and _bounded(left) % _bounded(right) == 0:
        return left // right
    return _rounded(_context.divide(_decimal(left), _decimal(right)))


def remainder(left: Number, right: Number) -> Number:
    """With the sign of the dividend, as Java and JavaScript have it."""
    _not_zero(right)
    if isinstance(left, int) and isinstance(right, int):
        result = abs(_bounded(left)) % abs(_bounded(right))
        return -result if left < 0 else result
    return _rounded(_context.remainder(_decimal(left), _decimal(right)))


def modulo(left: Number, right: Number) -> Number:
    """With the sign of the divisor, as FEEL has it."""
    result = remainder(left, right)
    return add(result, right) if result != 0 and (result < 0) != (right < 0) else result


def power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > EXPONENT_MAX:
        raise EvaluationError(f"the exponent {number_text(exponent)} is beyond ±{EXPONENT_MAX}")
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if _bounded(base).bit_length() * exponent > 2 * INTEGER_BITS_MAX:
            raise EvaluationError("the result is too large")
        return _bounded(base**exponent)
    return _rounded(_context.power(_decimal(base), _decimal(exponent)))


def negate(value: Number) -> Number:
    return _bounded(-value) if isinstance(value, int) else 0.0 - value


def floor(value: Number) -> int:
    return value if isinstance(value, int) else int(_decimal(value).to_integral_value(decimal.ROUND_FLOOR))


def ceiling(value: Number) -> int:
    return value if isinstance(value, int) else int(_decimal(value).to_integral_value(decimal.ROUND_CEILING))


def _bounded(value: int) -> int:
    if value.bit_length() > INTEGER_BITS_MAX:
        raise EvaluationError(f"a whole number has more than {INTEGER_BITS_MAX} bits")
    return value


def _not_zero(divisor: Number) -> None:
    if divisor == 0:
        raise Misuse("division by zero")


def _decimal(value: Number) -> Decimal:
    return Decimal(_bounded(value)) if isinstance(value, int) else Decimal(repr(value))


def _rounded(value: Decimal) -> Number:
    if value.is_nan():
        raise EvaluationError("the result is not a number")
    if value == value.to_integral_value() and abs(value) < _EXACT_MAX:
        return int(value)
    result = float(value)
    if result in (float("inf"), float("-inf")):
        raise EvaluationError("the result is too large")
    return result + 0.0
