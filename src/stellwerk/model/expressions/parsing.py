"""What the parsers of all notations have in common: a cursor over tokens, precedence climbing, bounds on nesting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from stellwerk.model.expressions.failures import ExpressionSyntaxError
from stellwerk.model.expressions.lexer import Token
from stellwerk.model.expressions.nodes import Constant, Node, measure
from stellwerk.model.expressions.routines import Routine

__all__ = ["NESTING_MAX", "Parser", "check_arguments"]

NESTING_MAX: Final = 100
"""Brackets in brackets, and nodes in nodes of the tree."""


class Parser(ABC):
    """Reads one expression from tokens that end with an end token.

    A language gives the binding strength of its infix operators; operators of one strength are handed to `_combine`
    as one chain, since a sum of a thousand parts must not become a tree of that depth.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._nesting = 0

    def whole(self) -> Node:
        """The tree of all tokens.

        :raises ExpressionSyntaxError: also when something is left over, or the tree is too deep.
        """
        first = self._token
        if first.kind == "end":
            raise ExpressionSyntaxError("the expression is empty", first.offset)
        tree = self._expression(0)
        if self._token.kind != "end":
            raise self._unexpected("the end")
        if measure(tree)[1] > NESTING_MAX:
            raise ExpressionSyntaxError(f"nested deeper than {NESTING_MAX}", first.offset)
        return tree

    # --- the cursor ----------------------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._position]

    def _following(self, distance: int = 1) -> Token:
        return self._tokens[min(self._position + distance, len(self._tokens) - 1)]

    def _advance(self) -> Token:
        token = self._token
        if token.kind != "end":
            self._position += 1
        return token

    def _at(self, text: str, kind: str = "operator") -> bool:
        token = self._tokens[self._position]
        return token.text == text and token.kind == kind

    def _take(self, text: str, kind: str = "operator") -> bool:
        if self._at(text, kind):
            self._position += 1
            return True
        return False

    def _expect(self, text: str, kind: str = "operator") -> None:
        if not self._take(text, kind):
            raise self._unexpected(text)

    def _unexpected(self, expected: str) -> ExpressionSyntaxError:
        token = self._token
        found = "the end" if token.kind == "end" else token.text[:40]
        return ExpressionSyntaxError(f"{expected} is expected, not {found}", token.offset)

    # --- expressions ---------------------------------------------------------------------------------------------

    def _expression(self, minimum: int) -> Node:
        """An expression of operators that bind stronger than `minimum`."""
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise ExpressionSyntaxError(f"nested deeper than {NESTING_MAX}", self._token.offset)
        tree = self._operand()
        while (strength := self._strength()) > minimum:
            tree = self._combine(tree, strength)
        self._nesting -= 1
        return tree

    @abstractmethod
    def _operand(self) -> Node:
        """What stands between infix operators, with its prefixes and suffixes."""

    @abstractmethod
    def _strength(self) -> int:
        """How strong the infix operator at the cursor binds; 0 when there is none."""

    @abstractmethod
    def _combine(self, left: Node, strength: int) -> Node:
        """`left` with the chain of operators of that strength that follow it."""

    def _chain(self, strength: int) -> list[tuple[Token, Node]]:
        """All ``operator operand`` pairs of one strength from the cursor on."""
        result: list[tuple[Token, Node]] = []
        while self._strength() == strength:
            operator = self._advance()
            result.append((operator, self._expression(strength)))
        return result

    def _list(self, end: str) -> tuple[Node, ...]:
        """Expressions between commas up to `end`, which is taken too."""
        items: list[Node] = []
        if self._take(end):
            return ()
        while True:
            items.append(self._expression(0))
            if self._take(end):
                return tuple(items)
            if not self._take(","):
                raise self._unexpected(f", or {end}")

    def _entries(self, key: Callable[[], str], value: Callable[[str], Node]) -> tuple[tuple[str, Node], ...]:
        """``key: value`` pairs between commas up to ``}``; a later pair of the same key replaces the earlier one."""
        entries: dict[str, Node] = {}
        if self._take("}"):
            return ()
        while True:
            name = key()
            entries[name] = value(name)
            if self._take("}"):
                return tuple(entries.items())
            if not self._take(","):
                raise self._unexpected(", or }")

    def _literal(self) -> Constant | None:
        token = self._token
        if token.kind in ("number", "string"):
            self._position += 1
            return Constant(token.value)
        return None


def check_arguments(routines: Mapping[str, Routine], name: str, arguments: Sequence[Node], offset: int) -> None:
    """That the closed list has a routine `name` for so many arguments."""
    routine = routines[name]
    if not routine.arguments_min <= len(arguments) <= routine.arguments_max:
        raise ExpressionSyntaxError(f"{name}() cannot take {len(arguments)} arguments", offset)
