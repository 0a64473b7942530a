"""Parser of FEEL (DMN 1.5, chapter 10.3): the part without iteration, ranges, filters, dates and function literals."""

from __future__ import annotations

from typing import Final

from stellwerk.model.expressions.failures import ExpressionSyntaxError
from stellwerk.model.expressions.feel_functions import FEEL_FUNCTIONS, OTHER_FEEL_FUNCTIONS
from stellwerk.model.expressions.lexer import FEEL_TOKENS, tokens
from stellwerk.model.expressions.nodes import (
    Arithmetic,
    Between,
    Call,
    Comparison,
    Conjunction,
    Constant,
    Disjunction,
    If,
    Index,
    ListLiteral,
    MapLiteral,
    Name,
    Negative,
    Node,
    Not,
    Property,
)
from stellwerk.model.expressions.parsing import Parser, check_arguments

__all__ = ["parse_feel"]

_STRENGTHS: Final = {"=": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "+": 4, "-": 4, "*": 5, "/": 5, "**": 6}
_WORD_STRENGTHS: Final = {"or": 1, "and": 2, "between": 3, "in": 3}
_COMPARISON: Final = 3
_NEGATION: Final = 7
"""Stronger than every infix operator: DMN has -5 ** 2 as 25."""
_KEYWORDS: Final = frozenset(
    [
        "and",
        "or",
        "between",
        "in",
        "if",
        "then",
        "else",
        "for",
        "return",
        "some",
        "every",
        "satisfies",
        "instance",
        "of",
        "true",
        "false",
        "null",
        "function",
    ]
)
_LATER: Final = frozenset({"for", "some", "every", "function", "instance"})
_NOT_YET: Final = "is not available in expressions yet"
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_NAMES_WITH_SPACES: Final = tuple(
    sorted(
        (tuple(name.split()) for name in {*FEEL_FUNCTIONS, *OTHER_FEEL_FUNCTIONS} if " " in name), key=len, reverse=True
    )
)


def parse_feel(text: str) -> Node:
    """The tree of the whole text; a leading ``=`` is not part of the expression."""
    start = len(text) - len(text.lstrip())
    if text.startswith("=", start):
        start += 1
    return _FeelParser(tokens(text, FEEL_TOKENS, start, len(text))).whole()


class _FeelParser(Parser):
    def _strength(self) -> int:
        token = self._token
        if token.kind == "operator":
            return _STRENGTHS.get(token.text, 0)
        if token.kind == "word":
            if token.text == "instance":
                raise ExpressionSyntaxError(f"instance of {_NOT_YET}", token.offset)
            return _WORD_STRENGTHS.get(token.text, 0)
        return 0

    def _combine(self, left: Node, strength: int) -> Node:
        if strength == _COMPARISON:
            return self._comparison(left)
        chain = self._chain(strength)
        if strength <= 2:
            operands = (left, *(operand for _, operand in chain))
            return Disjunction(operands) if strength == 1 else Conjunction(operands)
        return Arithmetic(left, tuple((operator.text, operand) for operator, operand in chain))

    def _comparison(self, left: Node) -> Node:
        operator = self._advance().text
        if operator == "between":
            low = self._expression(_COMPARISON)
            self._expect("and", "word")
            return Between(left, low, self._expression(_COMPARISON))
        right = self._expression(_COMPARISON)
        return Comparison("==" if operator == "=" else operator, left, right)

    def _operand(self) -> Node:
        if not self._take("-"):
            return self._suffixes(self._primary())
        return Negative(self._expression(_NEGATION))

    def _suffixes(self, tree: Node) -> Node:
        while True:
            if self._take("."):
                tree = Property(tree, self._name())
            elif self._at("["):
                tree = self._index(tree)
            elif self._at("("):
                raise ExpressionSyntaxError("only functions by name can be called", self._token.offset)
            else:
                return tree

    def _index(self, base: Node) -> Node:
        offset = self._advance().offset
        index = self._expression(0)
        self._expect("]")
        if isinstance(index, Comparison | Conjunction | Disjunction | Between | Not):
            raise ExpressionSyntaxError(f"a filter {_NOT_YET}", offset)
        return Index(base, index)

    def _primary(self) -> Node:
        if (literal := self._literal()) is not None:
            return literal
        token = self._token
        if token.kind in ("word", "quoted name"):
            return self._word()
        if self._take("("):
            tree = self._expression(0)
            self._expect(")")
            return tree
        if self._take("["):
            return self._list_literal()
        if self._take("{"):
            return MapLiteral(self._entries(self._key, lambda _: self._value()))
        if token.text in ("@", "?"):
            raise ExpressionSyntaxError(f"{token.text} {_NOT_YET}", token.offset)
        raise self._unexpected("a value")

    def _list_literal(self) -> Node:
        if self._following().text == ".." or self._following(2).text == "..":
            raise ExpressionSyntaxError(f"a range {_NOT_YET}", self._token.offset)
        return ListLiteral(self._list("]"))

    def _key(self) -> str:
        token = self._token
        if token.kind == "string":
            self._advance()
            assert isinstance(token.value, str)
            return token.value
        return self._name()

    def _value(self) -> Node:
        self._expect(":")
        return self._expression(0)

    def _word(self) -> Node:
        token = self._token
        if token.kind == "word":
            if token.text in _CONSTANTS:
                self._advance()
                return Constant(_CONSTANTS[token.text])
            if token.text == "if":
                return self._if()
            if token.text in _LATER:
                raise ExpressionSyntaxError(f"{token.text} {_NOT_YET}", token.offset)
        name = self._function_name_with_spaces() or self._name()
        return self._call(name, token.offset) if self._at("(") else Name(name)

    def _if(self) -> Node:
        self._advance()
        condition = self._expression(0)
        self._expect("then", "word")
        then = self._expression(0)
        self._expect("else", "word")
        return If(condition, then, self._expression(0))

    def _function_name_with_spaces(self) -> str | None:
        """Some of these contain keywords, as ``day of week`` does."""
        for words in _NAMES_WITH_SPACES:
            found = all(self._following(distance).text == word for distance, word in enumerate(words))
            if found and self._following(len(words)).text == "(":
                self._position += len(words)
                return " ".join(words)
        return None

    def _name(self) -> str:
        """One name. FEEL allows spaces in it: words that follow each other are one name."""
        if self._token.kind == "quoted name":
            return self._advance().text
        words: list[str] = []
        while self._token.kind == "word" and self._token.text not in _KEYWORDS:
            words.append(self._advance().text)
        if not words:
            raise self._unexpected("a name")
        return " ".join(words)

    def _call(self, name: str, offset: int) -> Node:
        self._advance()
        if name not in FEEL_FUNCTIONS and name != "not":
            known = f" {_NOT_YET}" if name in OTHER_FEEL_FUNCTIONS else " is not a function of FEEL"
            raise ExpressionSyntaxError(f"{name}(){known}", offset)
        arguments = self._list(")")
        if name == "not":
            if len(arguments) != 1:
                raise ExpressionSyntaxError(f"not() cannot take {len(arguments)} arguments", offset)
            return Not(arguments[0])
        check_arguments(FEEL_FUNCTIONS, name, arguments, offset)
        return Call(name, arguments)
