"""`evaluate`: the value of an expression with certain bindings."""

from __future__ import annotations

from stellwerk.json_values import DEPTH_MAX, JsonValue
from stellwerk.model.expressions.diagnosis import why_null
from stellwerk.model.expressions.failures import EvaluationError, ExpressionFailed
from stellwerk.model.expressions.frames import FUEL_MAX, Bindings, Frame
from stellwerk.model.expressions.juel_semantics import coerce_to_boolean
from stellwerk.model.expressions.methods import truthy
from stellwerk.model.expressions.syntax import Expression, Language
from stellwerk.model.expressions.values import check_size, described

__all__ = [
    "Bindings",
    "ExpressionFailed",
    "evaluate",
    "evaluate_condition",
    "evaluate_mapping_condition",
    "is_true",
]


def evaluate(expression: Expression, bindings: Bindings, *, depth_max: int = DEPTH_MAX) -> JsonValue:
    """A canonical JSON value. It may share lists and objects with the bindings: change neither.

    :param depth_max: how deep a list or object that the expression makes may be nested.
    :raises ExpressionFailed: with the expression and the reason.
    """
    frame = Frame(bindings, FUEL_MAX - expression.size)
    try:
        value = expression.evaluator(frame)
        if isinstance(value, list | dict) and not expression.is_path:
            check_size(value, depth_max=depth_max)
    except EvaluationError as error:
        raise ExpressionFailed(expression.source, error.reason) from None
    except RecursionError:
        raise ExpressionFailed(expression.source, "it is nested too deeply") from None
    return value


def is_true(value: JsonValue, language: Language = Language.FEEL) -> bool:
    """Whether a condition with this value holds.

    FEEL: true only. JUEL: true, and the string ``true`` in any case. ProcessCube: what JavaScript takes for true.
    Nothing else, null among it, holds.
    """
    match language:
        case Language.FEEL:
            return value is True
        case Language.JUEL:
            return value is True or (isinstance(value, str) and coerce_to_boolean(value))
        case Language.PROCESSCUBE:
            return truthy(value)


def evaluate_condition(expression: Expression, bindings: Bindings) -> bool:
    """Whether a condition holds, by the rules of its language (see `is_true`).

    :raises ExpressionFailed: also when a FEEL or JUEL condition gives no boolean, null among it: Zeebe and Camunda 7
        raise an incident there, too, and a token that silently goes the other way would be worse.
    """
    value = evaluate(expression, bindings)
    if _may_be_condition(value, expression.language):
        return is_true(value, expression.language)
    reason = f"a condition must give true or false, not {described(value)}"
    why = why_null(expression, bindings) if value is None else None
    raise ExpressionFailed(expression.source, f"{reason}: {why}" if why else reason)


def evaluate_mapping_condition(expression: Expression, bindings: Bindings) -> bool:
    """Whether an error mapping of an external task applies. One that gives null does not, as in Camunda 7: most of
    them ask for a message or a variable that is there only when something went wrong.

    :raises ExpressionFailed: it gives neither a boolean nor null.
    """
    value = evaluate(expression, bindings)
    if value is not None and not _may_be_condition(value, expression.language):
        raise ExpressionFailed(expression.source, f"a condition must give true or false, not {described(value)}")
    return is_true(value, expression.language)


def _may_be_condition(value: JsonValue, language: Language) -> bool:
    match language:
        case Language.FEEL:
            return isinstance(value, bool)
        case Language.JUEL:
            return isinstance(value, bool) or (isinstance(value, str) and value.lower() in ("true", "false"))
        case Language.PROCESSCUBE:
            return True
