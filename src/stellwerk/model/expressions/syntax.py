"""From text to `Expression`: for each language, and for attributes where only marked text is an expression."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias, assert_never

import attrs

from stellwerk.json_values import JsonValue, canonical, dumps
from stellwerk.model.expressions.compilation import compiled
from stellwerk.model.expressions.failures import EvaluationError, ExpressionSyntaxError
from stellwerk.model.expressions.feel import parse_feel
from stellwerk.model.expressions.feel_semantics import FEEL_SEMANTICS
from stellwerk.model.expressions.frames import FUEL_MAX, Bindings, Frame
from stellwerk.model.expressions.javascript_semantics import JAVASCRIPT_SEMANTICS
from stellwerk.model.expressions.juel_semantics import JUEL_SEMANTICS
from stellwerk.model.expressions.lexer import check_text
from stellwerk.model.expressions.nodes import (
    Concatenation,
    Constant,
    Index,
    ListLiteral,
    MapLiteral,
    Name,
    Node,
    Property,
    is_constant,
    measure,
)
from stellwerk.model.expressions.operators import parse_javascript, parse_juel
from stellwerk.model.expressions.semantics import Evaluator, Semantics

__all__ = ["SEMANTICS", "Expression", "ExpressionSyntaxError", "Language", "literal", "parse", "parse_template"]


class Language(Enum):
    """The dialect of a file decides which one its expressions are in."""

    FEEL = "feel"
    JUEL = "juel"
    PROCESSCUBE = "processcube"


@attrs.frozen
class Expression:
    """An expression that was read; equal when text, language and the way of reading are."""

    source: str
    """As it was written; JSON for a `literal`."""
    language: Language
    is_template: bool = False
    """Read by `parse_template`: text without a mark is literal."""
    tree: Node = attrs.field(eq=False, repr=False, kw_only=True)
    evaluator: Evaluator = attrs.field(eq=False, repr=False, kw_only=True)
    """For `evaluate` alone: it keeps the bounds."""
    size: int = attrs.field(eq=False, repr=False, kw_only=True)
    """Nodes of the tree: each is visited once at most, so this is the fuel an evaluation takes without its loops."""
    is_literal: bool = attrs.field(eq=False, repr=False, kw_only=True)
    """Whether the value is the same whatever the bindings are."""
    is_path: bool = attrs.field(eq=False, repr=False, kw_only=True)
    """Whether the value is a part of a variable, which needs no check of its size."""

    @property
    def literal_value(self) -> JsonValue:
        """The constant value; None when `is_literal` is false (or when null is the constant)."""
        if not self.is_literal:
            return None
        if isinstance(self.tree, Constant):
            return self.tree.value
        return self.evaluator(Frame(Bindings(), FUEL_MAX))


SEMANTICS: Final = {
    Language.FEEL: FEEL_SEMANTICS,
    Language.JUEL: JUEL_SEMANTICS,
    Language.PROCESSCUBE: JAVASCRIPT_SEMANTICS,
}


def literal(value: JsonValue) -> Expression:
    """The expression that always gives `value`: its JSON is FEEL.

    :raises InvalidInput: when it is no JSON value.
    """
    value = canonical(value)
    return _expression(dumps(value).decode(), Language.FEEL, _literal_tree(value))


def parse(text: str, language: Language) -> Expression:
    """The whole text as one expression.

    FEEL: a leading ``=`` may stand before it. JUEL and ProcessCube: in ``${…}`` (JUEL: or ``#{…}``), or without.
    One such pair of braces keeps the value's type; several, or text around them, make a string. ProcessCube: ``;`` may
    stand at the end.

    :raises ExpressionSyntaxError: also for functions and methods outside the closed lists.
    """
    check_text(text)
    return _guarded(lambda: _expression(text, language, _tree(text, language)))


def parse_template(text: str, language: Language) -> Expression:
    """Text that is literal unless it is marked as an expression, as in most attributes.

    FEEL: a leading ``=`` marks it. JUEL: each ``${…}`` and ``#{…}``. ProcessCube: each ``${…}``, and text that begins
    with ``token.`` or ``identity.``.

    :raises ExpressionSyntaxError: as `parse`, for the marked parts.
    """
    check_text(text)
    return _guarded(lambda: _expression(text, language, _template_tree(text, language), is_template=True))


def _guarded(read: Callable[[], Expression]) -> Expression:
    try:
        return read()
    except RecursionError:
        # The bounds on nesting come first, unless the caller's own stack is already deep.
        raise ExpressionSyntaxError("nested too deeply", 0) from None


def _expression(text: str, language: Language, tree: Node, *, is_template: bool = False) -> Expression:
    semantics = SEMANTICS[language]
    tree, evaluator, constant = _folded(tree, semantics, entries_are_names=language is Language.FEEL)
    return Expression(
        text,
        language,
        is_template,
        tree=tree,
        evaluator=evaluator,
        size=measure(tree)[0],
        is_literal=constant,
        is_path=_is_path(tree) and language is not Language.PROCESSCUBE,
    )


def _folded(tree: Node, semantics: Semantics, *, entries_are_names: bool) -> tuple[Node, Evaluator, bool]:
    """A constant scalar is computed now; lists and contexts are made anew each time, so that nobody shares them."""
    evaluator = compiled(tree, semantics, entries_are_names=entries_are_names)
    if isinstance(tree, Constant) or not is_constant(tree):
        return tree, evaluator, isinstance(tree, Constant)
    try:
        value = evaluator(Frame(Bindings(), FUEL_MAX))
    except EvaluationError:
        return tree, evaluator, False
    if value is None or isinstance(value, bool | int | float | str):
        tree = Constant(value)
        evaluator = compiled(tree, semantics, entries_are_names=entries_are_names)
    return tree, evaluator, True


def _is_path(tree: Node) -> bool:
    while isinstance(tree, Property | Index):
        tree = tree.base
    return isinstance(tree, Name)


def _literal_tree(value: JsonValue) -> Node:
    match value:
        case list():
            return ListLiteral(tuple(map(_literal_tree, value)))
        case dict():
            return MapLiteral(tuple((name, _literal_tree(item)) for name, item in value.items()))
        case None | bool() | int() | float() | str():
            return Constant(value)
        case _:
            raise AssertionError(f"canonical() let {type(value).__name__} pass")


# --- whole expressions -------------------------------------------------------------------------------------------


def _tree(text: str, language: Language) -> Node:
    match language:
        case Language.FEEL:
            return parse_feel(text)
        case Language.JUEL:
            return _pieces(text, _JUEL) if re.search(r"[$#]\{", text) else parse_juel(text, 0, len(text))[0]
        case Language.PROCESSCUBE:
            end = _end_before_semicolons(text)
            if text.lstrip().startswith("${"):
                return _pieces(text[:end], _PROCESSCUBE)
            return parse_javascript(text, 0, end)[0]
        case _:
            assert_never(language)


def _template_tree(text: str, language: Language) -> Node:
    match language:
        case Language.FEEL:
            return parse_feel(text) if text.lstrip().startswith("=") else Constant(text)
        case Language.JUEL:
            return _pieces(text, _JUEL)
        case Language.PROCESSCUBE:
            if re.match(r"\s*(?:token|identity)\s*[.\[?]", text):
                return parse_javascript(text, 0, _end_before_semicolons(text))[0]
            return _pieces(text, _PROCESSCUBE)
        case _:
            assert_never(language)


def _end_before_semicolons(text: str) -> int:
    return len(text.rstrip("; \t\r\n"))


# --- pieces ------------------------------------------------------------------------------------------------------

_Pieces: TypeAlias = tuple[re.Pattern[str], Callable[[str, int], tuple[Node, int]]]
"""What begins an expression in text (with a backslash before it, it does not), and how to read it."""

_JUEL: Final[_Pieces] = (re.compile(r"(\\?)([$#]\{)"), parse_juel)
_PROCESSCUBE: Final[_Pieces] = (re.compile(r"(\\?)(\$\{)"), parse_javascript)


def _pieces(text: str, language: _Pieces) -> Node:
    """Text and expressions in braces by turns. Blanks around a single expression are layout of the file."""
    begin, read = language
    parts: list[Node] = []
    text_so_far, offset = "", 0
    while (mark := begin.search(text, offset)) is not None:
        text_so_far += text[offset : mark.start()]
        if mark.group(1):
            text_so_far += mark.group(2)
            offset = mark.end()
            continue
        if text_so_far:
            parts.append(Constant(text_so_far))
            text_so_far = ""
        tree, end = read(text, mark.end())
        parts.append(tree)
        offset = end + 1
    text_so_far += text[offset:]
    return _joined([*parts, Constant(text_so_far)] if text_so_far else parts)


def _joined(parts: list[Node]) -> Node:
    if not parts:
        return Constant("")
    if len(parts) == 1:
        return parts[0]
    layout = [isinstance(part, Constant) and not str(part.value).strip() for part in parts]
    if layout.count(False) == 1:
        return parts[layout.index(False)]
    return Concatenation(tuple(parts))
