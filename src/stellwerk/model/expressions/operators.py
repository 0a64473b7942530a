"""Parser of the notations with JavaScript's operators: JUEL and ProcessCube's expressions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import ClassVar, Final

from stellwerk.model.expressions.failures import ExpressionSyntaxError
from stellwerk.model.expressions.lexer import JAVASCRIPT_TOKENS, JUEL_TOKENS, Token, tokens
from stellwerk.model.expressions.methods import JAVASCRIPT_FUNCTIONS, JAVASCRIPT_METHODS, JUEL_METHODS
from stellwerk.model.expressions.nodes import (
    Arithmetic,
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
from stellwerk.model.expressions.numbers import parse_number
from stellwerk.model.expressions.parsing import Parser, check_arguments
from stellwerk.model.expressions.routines import Routine

__all__ = ["parse_javascript", "parse_juel"]

_TERNARY: Final = 1
_COALESCE: Final = 2
_OR: Final = 3
_AND: Final = 4
_EQUALITY: Final = 5
_RELATION: Final = 6
_CONCATENATION: Final = 7
_SUM: Final = 8
_PRODUCT: Final = 9
_PREFIX: Final = 10
_STRENGTHS: Final = {
    "?": _TERNARY,
    "??": _COALESCE,
    "||": _OR,
    "&&": _AND,
    **dict.fromkeys(("==", "!=", "===", "!=="), _EQUALITY),
    **dict.fromkeys(("<", "<=", ">", ">="), _RELATION),
    "+=": _CONCATENATION,
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/", "%"), _PRODUCT),
}


class _OperatorParser(Parser):
    """The common grammar; what a language has more or less stands in its subclass."""

    methods: ClassVar[Mapping[str, Mapping[str, Routine]]]
    functions: ClassVar[Mapping[str, Routine]]
    constants: ClassVar[Mapping[str, Constant]]

    def _strength(self) -> int:
        token = self._token
        return _STRENGTHS.get(token.text, 0) if token.kind == "operator" else 0

    def _combine(self, left: Node, strength: int) -> Node:
        if strength == _TERNARY:
            return self._conditional(left)
        chain = self._chain(strength)
        operands = (left, *(operand for _, operand in chain))
        match strength:
            case 2:
                return Coalesce(operands)
            case 3:
                return Disjunction(operands)
            case 4:
                return Conjunction(operands)
            case 5 | 6:
                for operator, operand in chain:
                    left = Comparison(operator.text, left, operand)
                return left
            case 7:
                return Concatenation(operands)
            case _:
                return self._arithmetic(left, chain)

    def _arithmetic(self, left: Node, chain: Iterable[tuple[Token, Node]]) -> Node:
        return Arithmetic(left, tuple((operator.text, operand) for operator, operand in chain))

    def _conditional(self, condition: Node) -> Node:
        self._advance()
        then = self._expression(0)
        self._expect(":")
        return If(condition, then, self._expression(0))

    def _operand(self) -> Node:
        if self._take("!"):
            return Not(self._expression(_PREFIX))
        if self._take("-"):
            return Negative(self._expression(_PREFIX))
        return self._suffixes(self._primary())

    def _suffixes(self, tree: Node) -> Node:
        """Behind a ``?.`` all that follows in the chain is null on null, too."""
        optional = False
        while True:
            if self._at(".") or self._at("?."):
                optional = self._advance().text == "?." or optional
                tree = self._member(tree, optional)
            elif self._take("["):
                tree = Index(tree, self._expression(0))
                self._expect("]")
            elif self._at("("):
                raise ExpressionSyntaxError("only functions and methods by name can be called", self._token.offset)
            else:
                return tree

    def _member(self, base: Node, optional: bool) -> Node:
        token = self._token
        if token.kind != "word":
            raise self._unexpected("a name")
        self._advance()
        if not self._take("("):
            return Property(base, token.text, optional)
        name = token.text
        qualified = f"{base.name}.{name}" if isinstance(base, Name) else ""
        arguments = self._list(")")
        if qualified in self.functions:
            check_arguments(self.functions, qualified, arguments, token.offset)
            return Call(qualified, arguments)
        self._check_method(name, len(arguments), token.offset)
        return MethodCall(base, name, arguments, optional)

    def _check_method(self, name: str, count: int, offset: int) -> None:
        candidates = [methods[name] for methods in self.methods.values() if name in methods]
        if not candidates:
            raise ExpressionSyntaxError(
                f"method {name}() is not available: expressions see plain data, no objects with code", offset
            )
        if not any(method.arguments_min <= count <= method.arguments_max for method in candidates):
            raise ExpressionSyntaxError(f"{name}() cannot take {count} arguments", offset)

    def _primary(self) -> Node:
        if (literal := self._literal()) is not None:
            return literal
        if self._token.kind == "word":
            return self._word()
        if self._take("("):
            tree = self._expression(0)
            self._expect(")")
            return tree
        if self._take("["):
            return ListLiteral(self._list("]"))
        if self._take("{"):
            return MapLiteral(self._entries(self._key, self._value))
        raise self._unexpected("a value")

    def _word(self) -> Node:
        token = self._advance()
        if token.text in self.constants:
            return self.constants[token.text]
        if self._take("("):
            if token.text not in self.functions:
                raise ExpressionSyntaxError(f"function {token.text}() is not available in expressions", token.offset)
            arguments = self._list(")")
            check_arguments(self.functions, token.text, arguments, token.offset)
            return Call(token.text, arguments)
        return Name(token.text)

    def _key(self) -> str:
        token = self._token
        if token.kind not in ("word", "string", "number"):
            raise self._unexpected("a name")
        self._advance()
        return str(token.value) if token.kind == "string" else token.text

    @abstractmethod
    def _value(self, key: str) -> Node:
        """What follows a key in a map literal."""


class _JuelParser(_OperatorParser):
    methods = JUEL_METHODS
    functions: ClassVar[Mapping[str, Routine]] = {}
    constants: ClassVar[Mapping[str, Constant]] = {
        "true": Constant(True),
        "false": Constant(False),
        "null": Constant(None),
    }

    def _operand(self) -> Node:
        if self._take("empty", "word"):
            return Emptiness(self._expression(_PREFIX))
        return super()._operand()

    def _arithmetic(self, left: Node, chain: Iterable[tuple[Token, Node]]) -> Node:
        """JUEL's ``+`` adds numbers, also those in strings. From an operand on that is text for sure, it concatenates.

        Decided by the expression alone, never by the values: '1' and '2' in variables are always added.
        """
        steps: list[tuple[str, Node]] = []
        for operator, operand in chain:
            if operator.text == "+" and (_is_text(operand) or (not steps and _is_text(left))):
                left = Concatenation((*_parts(_sum(left, steps)), operand))
                steps = []
            else:
                steps.append((operator.text, operand))
        return _sum(left, steps)

    def _word(self) -> Node:
        token = self._token
        if token.text == "instanceof":
            raise ExpressionSyntaxError("instanceof is not available in expressions", token.offset)
        function = self._following(2)
        qualified = self._following().text == ":" and self._following(3).text == "("
        if qualified and function.kind == "word" and _adjacent(token, self._following(), function):
            name = f"{token.text}:{function.text}"
            raise ExpressionSyntaxError(f"function {name}() is not available in expressions", token.offset)
        return super()._word()

    def _value(self, key: str) -> Node:
        self._expect(":")
        return self._expression(0)


class _JavaScriptParser(_OperatorParser):
    methods = JAVASCRIPT_METHODS
    functions = JAVASCRIPT_FUNCTIONS
    constants: ClassVar[Mapping[str, Constant]] = {
        "true": Constant(True),
        "false": Constant(False),
        "null": Constant(None),
        "undefined": Constant(None),
    }

    def _value(self, key: str) -> Node:
        """``{name}`` stands for ``{name: name}``."""
        if self._at(",") or self._at("}"):
            return Name(key)
        self._expect(":")
        return self._expression(0)


def _is_text(node: Node) -> bool:
    match node:
        case Constant(value=str() as text):
            return parse_number(text.strip()) is None and bool(text)
        case Concatenation():
            return True
        case _:
            return False


def _sum(left: Node, steps: list[tuple[str, Node]]) -> Node:
    return Arithmetic(left, tuple(steps)) if steps else left


def _parts(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Concatenation) else (node,)


def _adjacent(*following: Token) -> bool:
    return all(one.offset + len(one.text) == other.offset for one, other in pairwise(following))


_JUEL_WORDS: Final = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
    "div": "/",
    "mod": "%",
}


def parse_juel(text: str, start: int, end: int | None = None) -> tuple[Node, int]:
    """The tree of one JUEL expression, and where it ends.

    `end` None: it begins behind ``${`` and ends before the matching ``}``.
    """
    found = tokens(text, JUEL_TOKENS, start, len(text) if end is None else end, in_braces=end is None)
    return _JuelParser(list(_with_word_operators(found))).whole(), found[-1].offset


def _with_word_operators(found: Iterable[Token]) -> Iterable[Token]:
    """``a.mod`` is a property, ``a mod b`` is not."""
    previous = ""
    for token in found:
        operator = _JUEL_WORDS.get(token.text) if token.kind == "word" and previous != "." else None
        yield token if operator is None else Token("operator", operator, token.offset)
        previous = token.text


def parse_javascript(text: str, start: int, end: int | None = None) -> tuple[Node, int]:
    """Like `parse_juel`, for ProcessCube's expressions."""
    found = tokens(text, JAVASCRIPT_TOKENS, start, len(text) if end is None else end, in_braces=end is None)
    return _JavaScriptParser(found).whole(), found[-1].offset
