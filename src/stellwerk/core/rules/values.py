"""Expressions, mappings and variables of a running instance."""

from __future__ import annotations

from collections.abc import Sequence

from stellwerk.core import facts as f
from stellwerk.core.instance import ActivityInstance, Token
from stellwerk.core.step import Step
from stellwerk.errors import BpmnFault
from stellwerk.json_values import DEPTH_MAX, JsonObject, JsonValue
from stellwerk.model.expressions import Bindings, Expression, evaluate
from stellwerk.model.expressions.failures import EvaluationError
from stellwerk.model.expressions.values import check_size
from stellwerk.model.process import Dialect, Mapped

__all__ = [
    "bindings",
    "check_visible",
    "evaluate_integer",
    "evaluate_mappings",
    "evaluate_text",
    "inner_scope",
    "is_processcube",
    "propagate",
    "set_path",
]

_INTEGER_MAX = 2**31 - 1
_VARIABLE_DEPTH_MAX = DEPTH_MAX - 1
"""Of a variable's value: all variables together are one object, which every reader takes no deeper than `DEPTH_MAX`."""
_PROCESSCUBE = Dialect.PROCESSCUBE
_VALUES_UNWEIGHED = 16
"""So many variables do not get too heavy: none is larger than what a request or an expression may bring."""


def bindings(step: Step, token: Token | None, variables: JsonObject) -> Bindings:
    """What an expression sees that is evaluated for `token`."""
    if token is not None and step.context.definition.dialect is _PROCESSCUBE:
        return Bindings(
            variables=variables,
            token_payload=token.payload,
            token_history=step.state.results,
            now_ms=step.context.now_ms,
        )
    return Bindings(variables=variables, now_ms=step.context.now_ms)


def is_processcube(step: Step) -> bool:
    return step.context.definition.dialect is _PROCESSCUBE


def evaluate_text(what: str, expression: Expression, seen: Bindings) -> str:
    """A text, or a number's text.

    :raises BpmnFault: also for an empty text or anything else.
    """
    value = expression.literal_value if expression.is_literal else evaluate(expression, seen)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise BpmnFault(f"{what} must be a text, not {_shown(value)}")


def evaluate_integer(what: str, expression: Expression, seen: Bindings) -> int:
    """An integer of 32 bits, also written as text or as a float without fraction (dialects store both).

    :raises BpmnFault: for anything else.
    """
    value = evaluate(expression, seen)
    number = _as_integer(value)
    if number is None or abs(number) > _INTEGER_MAX:
        raise BpmnFault(f"{what} must be an integer, not {_shown(value)}")
    return number


def _as_integer(value: JsonValue) -> int | None:
    match value:
        case bool():
            return None
        case int():
            return value
        case float():
            return int(value) if value.is_integer() else None
        case str():
            try:
                return int(value)
            except ValueError:
                return None
        case _:
            return None


def _shown(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "…"


def evaluate_mappings(
    step: Step, token: Token, mappings: Sequence[Mapped], variables: JsonObject, into: JsonObject
) -> JsonObject:
    """The variables that `mappings` give, `into` included; each mapping sees what the ones before it gave.

    :raises BpmnFault: an expression fails, or what they give is too deep or too much to be kept.
    """
    result = into
    weight = 0
    for number, mapped in enumerate(mappings):
        seen = {**variables, **result} if result else variables
        value = evaluate(mapped.source, bindings(step, token, seen), depth_max=_VARIABLE_DEPTH_MAX)
        result = set_path(result, seen, mapped.target, value)
        if number >= _VALUES_UNWEIGHED:
            weight += step.scale.weight(value)
            step.scale.check(weight)
    for name in {name for name, dot, _ in (mapped.target.partition(".") for mapped in mappings) if dot}:
        _check_variable(name, result[name])
    return result


def _check_variable(name: str, value: JsonValue) -> None:
    """What a path leads into grows with each mapping, in depth and in size, unlike what an expression gives."""
    try:
        check_size(value, depth_max=_VARIABLE_DEPTH_MAX)
    except EvaluationError as error:
        raise BpmnFault(f'the variable "{name}" cannot be kept: {error.reason}') from None


def set_path(result: JsonObject, seen: JsonObject, path: str, value: JsonValue) -> JsonObject:
    """`result` with ``path`` set, which may lead into an object (``order.total``); nothing given is changed.

    :raises BpmnFault: when the path alone is deeper than any value may be.
    """
    if path.count(".") > DEPTH_MAX:
        raise BpmnFault(f"a mapping's target has {path.count('.') + 1} parts: no value is nested so deeply")
    return _set_parts(result, seen, path, value)


def _set_parts(result: JsonObject, seen: JsonObject, path: str, value: JsonValue) -> JsonObject:
    name, _, rest = path.partition(".")
    if not rest:
        return {**result, name: value}
    inside = seen.get(name)
    inner: JsonObject = {str(key): item for key, item in inside.items()} if isinstance(inside, dict) else {}
    return {**result, name: _set_parts(inner, inner, rest, value)}


def check_visible(step: Step, variables: JsonObject) -> None:
    """Of a task that is to be created with them.

    :raises BpmnFault: when they alone are more than one step may write.
    """
    if len(variables) > _VALUES_UNWEIGHED:
        step.scale.check(step.scale.weight(variables))


def propagate(step: Step, scope_id: str, variables: JsonObject) -> None:
    """Set each variable where it is found going outwards from the scope, else in the process's own scope."""
    if not variables:
        return
    state = step.state
    if scope_id == state.root_scope_id:
        step.emit(f.VariablesSet(scope_id, variables))
        return
    found: dict[str, JsonObject] = {}
    for name, value in variables.items():
        home = next((scope.id for scope in state.outwards(scope_id) if name in scope.variables), state.root_scope_id)
        found.setdefault(home, {})[name] = value
    for home, values in found.items():
        step.emit(f.VariablesSet(home, values))


def inner_scope(activity: ActivityInstance) -> str:
    """The innermost scope whose variables the activity sees."""
    return activity.inner_scope_id or activity.scope_id
