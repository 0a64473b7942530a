"""Expressions, mappings and variables of a running instance."""

from __future__ import annotations

from collections.abc import Iterable

from stellwerk.core import facts as f
from stellwerk.core.instance import ActivityInstance, Token
from stellwerk.core.step import Step
from stellwerk.errors import BpmnFault
from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.model.expressions import Bindings, Expression, evaluate
from stellwerk.model.process import Dialect, Mapped

__all__ = [
    "bindings",
    "evaluate_integer",
    "evaluate_mappings",
    "evaluate_text",
    "inner_scope",
    "is_processcube",
    "propagate",
    "set_path",
]

_INTEGER_MAX = 2**31 - 1


def bindings(step: Step, token: Token | None, variables: JsonObject) -> Bindings:
    """What an expression sees that is evaluated for `token`."""
    if token is not None and is_processcube(step):
        return Bindings(
            variables=variables,
            token_payload=token.payload,
            token_history=step.state.results,
            now_ms=step.context.now_ms,
        )
    return Bindings(variables=variables, now_ms=step.context.now_ms)


def is_processcube(step: Step) -> bool:
    return step.context.definition.dialect is Dialect.PROCESSCUBE


def evaluate_text(what: str, expression: Expression, seen: Bindings) -> str:
    """A text, or a number's text.

    :raises BpmnFault: also for an empty text or anything else.
    """
    value = evaluate(expression, seen)
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
    step: Step, token: Token, mappings: Iterable[Mapped], variables: JsonObject, into: JsonObject
) -> JsonObject:
    """The variables that `mappings` give, `into` included; each mapping sees what the ones before it gave."""
    result = into
    for mapped in mappings:
        seen = {**variables, **result} if result else variables
        value = evaluate(mapped.source, bindings(step, token, seen))
        result = set_path(result, seen, mapped.target, value)
    return result


def set_path(result: JsonObject, seen: JsonObject, path: str, value: JsonValue) -> JsonObject:
    """`result` with ``path`` set, which may lead into an object (``order.total``); nothing given is changed."""
    name, _, rest = path.partition(".")
    if not rest:
        return {**result, name: value}
    inside = seen.get(name)
    inner: JsonObject = {str(key): item for key, item in inside.items()} if isinstance(inside, dict) else {}
    return {**result, name: set_path(inner, inner, rest, value)}


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
