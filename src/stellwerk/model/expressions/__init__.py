"""Expressions: one interface, three notations (FEEL, JUEL, ProcessCube's JavaScript-like one).

`parse` gives a frozen `Expression`; `evaluate` gives a JSON value. Neither touches the world: no clock, no classes,
no functions beyond a closed list. Work, depth and size are bounded.
"""

from __future__ import annotations

from stellwerk.model.expressions.evaluation import Bindings, ExpressionFailed, evaluate, evaluate_condition, is_true
from stellwerk.model.expressions.syntax import (
    Expression,
    ExpressionSyntaxError,
    Language,
    literal,
    parse,
    parse_template,
)

__all__ = [
    "Bindings",
    "Expression",
    "ExpressionFailed",
    "ExpressionSyntaxError",
    "Language",
    "evaluate",
    "evaluate_condition",
    "is_true",
    "literal",
    "parse",
    "parse_template",
]
