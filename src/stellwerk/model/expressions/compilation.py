"""From syntax tree to closures: reading happens once, at deploy, evaluation each time a token passes."""

from __future__ import annotations

from collections.abc import Iterable

from stellwerk.json_values import JsonValue
from stellwerk.model.expressions.failures import EvaluationError, Misuse
from stellwerk.model.expressions.frames import Frame
from stellwerk.model.expressions.nodes import (
    Arithmetic,
    Between,
    Call,
    Coalesce,
    Comparison,
    Concatenation,
    Conjunction,
    Constant,
    Disjunction,
    Emptiness,
    If,
    Index,
    ListLiteral,
    MapLiteral,
    MethodCall,
    Name,
    Negative,
    Node,
    Not,
    Property,
)
from stellwerk.model.expressions.routines import Routine
from stellwerk.model.expressions.semantics import Evaluator, Semantics
from stellwerk.model.expressions.values import concatenate, described, kind_of

__all__ = ["compiled"]


def compiled(tree: Node, semantics: Semantics, *, entries_are_names: bool) -> Evaluator:
    """One closure for the tree.

    :param entries_are_names: FEEL: the entries of a context are names for the entries behind them.
    """
    return _Compiler(semantics, entries_are_names=entries_are_names).node(tree)


class _Compiler:
    def __init__(self, semantics: Semantics, *, entries_are_names: bool) -> None:
        self._semantics = semantics
        self._entries_are_names = entries_are_names
        self._bound: list[str] = []
        """Names that the expression binds itself around the node being compiled."""

    def node(self, node: Node) -> Evaluator:
        match node:
            case Constant(value=value):
                return lambda frame: value
            case Name(name=name):
                return self._name(name)
            case Property() | Index():
                return self._access(node)
            case ListLiteral(items=items):
                return _list(self._all(items))
            case MapLiteral(entries=entries):
                return self._map(entries)
            case Comparison() | Between() | Conjunction() | Disjunction() | Not() | Emptiness():
                return self._logic(node)
            case If() | Coalesce():
                return self._choice(node)
            case Arithmetic() | Negative() | Concatenation():
                return self._computation(node)
            case Call() | MethodCall():
                return self._call(node)

    def _all(self, nodes: Iterable[Node]) -> tuple[Evaluator, ...]:
        return tuple(map(self.node, nodes))

    def _name(self, name: str) -> Evaluator:
        if name in self._bound:
            return lambda frame: frame.local.get(name)
        return self._semantics.name(name)

    def _access(self, node: Property | Index) -> Evaluator:
        base = self.node(node.base)
        if isinstance(node, Index):
            index_of, index = self._semantics.index, self.node(node.index)
            return lambda frame: index_of(base(frame), index(frame), frame)
        name, optional = node.name, node.optional
        property_of = self._semantics.property

        def access(frame: Frame) -> JsonValue:
            value = base(frame)
            if isinstance(value, list):
                frame.spend_items(len(value))
            elif value is None and optional:
                return None
            return property_of(value, name)

        return access

    def _map(self, entries: tuple[tuple[str, Node], ...]) -> Evaluator:
        if self._entries_are_names:
            return self._context(entries)
        evaluators = tuple((name, self.node(value)) for name, value in entries)
        return lambda frame: {name: evaluator(frame) for name, evaluator in evaluators}

    def _context(self, entries: tuple[tuple[str, Node], ...]) -> Evaluator:
        """Each entry is a name for those behind it; a name of the same spelling around it comes back afterwards."""
        evaluators: list[tuple[str, Evaluator]] = []
        for name, value in entries:
            evaluators.append((name, self.node(value)))
            self._bound.append(name)
        del self._bound[len(self._bound) - len(entries) :]

        def context(frame: Frame) -> JsonValue:
            outer = {name: frame.local.get(name) for name, _ in evaluators}
            result: dict[str, JsonValue] = {}
            for name, evaluator in evaluators:
                result[name] = frame.local[name] = evaluator(frame)
            frame.local.update(outer)
            return result

        return context

    def _logic(self, node: Comparison | Between | Conjunction | Disjunction | Not | Emptiness) -> Evaluator:
        match node:
            case Comparison(operator=operator, left=left, right=right):
                return self._comparison(operator, self.node(left), self.node(right))
            case Between(operand=operand, low=low, high=high):
                return self._between(self.node(operand), self.node(low), self.node(high))
            case Conjunction(operands=operands):
                return self._semantics.conjunction(self._all(operands))
            case Disjunction(operands=operands):
                return self._semantics.disjunction(self._all(operands))
            case Not(operand=operand):
                negation, evaluator = self._semantics.negation, self.node(operand)
                return lambda frame: negation(evaluator(frame))
            case Emptiness(operand=operand):
                inner = self.node(operand)
                return lambda frame: inner(frame) in (None, "", [], {})

    def _comparison(self, operator: str, left: Evaluator, right: Evaluator) -> Evaluator:
        compare = self._semantics.comparisons[operator]
        return lambda frame: compare(left(frame), right(frame), frame)

    def _between(self, operand: Evaluator, low: Evaluator, high: Evaluator) -> Evaluator:
        at_least, at_most = self._semantics.comparisons[">="], self._semantics.comparisons["<="]

        def between(frame: Frame) -> JsonValue:
            value = operand(frame)
            above, below = at_least(value, low(frame), frame), at_most(value, high(frame), frame)
            if above is False or below is False:
                return False
            return True if above is True and below is True else None

        return between

    def _choice(self, node: If | Coalesce) -> Evaluator:
        if isinstance(node, Coalesce):
            return _first_not_null(self._all(node.operands))
        condition, then, otherwise = self._all((node.condition, node.then, node.otherwise))
        holds = self._semantics.condition
        return lambda frame: then(frame) if holds(condition(frame)) else otherwise(frame)

    def _computation(self, node: Arithmetic | Negative | Concatenation) -> Evaluator:
        match node:
            case Arithmetic(first=first, steps=steps):
                return self._arithmetic(self.node(first), steps)
            case Negative(operand=operand):
                negative, evaluator = self._semantics.negative, self.node(operand)
                return lambda frame: negative(evaluator(frame))
            case Concatenation(parts=parts):
                text, evaluators = self._semantics.text, self._all(parts)
                return lambda frame: concatenate((text(part(frame), frame) for part in evaluators), frame)

    def _arithmetic(self, first: Evaluator, steps: tuple[tuple[str, Node], ...]) -> Evaluator:
        compute = self._semantics.arithmetic
        evaluators = tuple((operator, self.node(operand)) for operator, operand in steps)

        def arithmetic(frame: Frame) -> JsonValue:
            result = first(frame)
            for operator, operand in evaluators:
                result = compute(operator, result, operand(frame), frame)
            return result

        return arithmetic

    def _call(self, node: Call | MethodCall) -> Evaluator:
        arguments = self._all(node.arguments)
        if isinstance(node, MethodCall):
            return self._method(node, self.node(node.base), arguments)
        call = _called(self._semantics.functions[node.function], arguments)
        return call if not self._semantics.null_on_misuse else _null_on_misuse(call)

    def _method(self, node: MethodCall, base: Evaluator, arguments: tuple[Evaluator, ...]) -> Evaluator:
        name, methods, count = node.method, self._semantics.methods, len(arguments)

        def call(frame: Frame) -> JsonValue:
            receiver = base(frame)
            if receiver is None and node.optional:
                return None
            method = methods[kind_of(receiver)].get(name)
            if method is None or not method.arguments_min <= count <= method.arguments_max:
                raise EvaluationError(f"{described(receiver)} has no method {name}() with {count} arguments")
            return method.body(frame, [receiver, *(argument(frame) for argument in arguments)])

        return call


def _list(items: tuple[Evaluator, ...]) -> Evaluator:
    return lambda frame: [item(frame) for item in items]


def _first_not_null(operands: tuple[Evaluator, ...]) -> Evaluator:
    def first(frame: Frame) -> JsonValue:
        for operand in operands:
            value = operand(frame)
            if value is not None:
                return value
        return None

    return first


def _called(routine: Routine, arguments: tuple[Evaluator, ...]) -> Evaluator:
    body = routine.body
    return lambda frame: body(frame, [argument(frame) for argument in arguments])


def _null_on_misuse(call: Evaluator) -> Evaluator:
    def null_on_misuse(frame: Frame) -> JsonValue:
        try:
            return call(frame)
        except Misuse:
            return None

    return null_on_misuse
