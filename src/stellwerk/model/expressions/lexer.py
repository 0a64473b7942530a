"""From text to tokens, for all three notations: they differ in operators and words, hardly in shape."""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

import attrs

from stellwerk.model.expressions.failures import ExpressionSyntaxError
from stellwerk.model.expressions.nodes import Scalar
from stellwerk.model.expressions.numbers import parse_number

__all__ = [
    "FEEL_TOKENS",
    "JAVASCRIPT_TOKENS",
    "JUEL_TOKENS",
    "TEXT_LENGTH_MAX",
    "Token",
    "TokenKind",
    "check_text",
    "tokens",
]

TEXT_LENGTH_MAX: Final = 10_000

TokenKind: TypeAlias = Literal["word", "quoted name", "number", "string", "operator", "end"]


@attrs.frozen
class Token:
    kind: TokenKind
    text: str
    offset: int
    value: Scalar = None
    """Of a number or string."""


_SHAPES: Final = r"""
    (?P<blank>\s+{comment})
  | (?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
  | (?P<string>{string})
  | (?P<word>[^\W\d][\w$]*|\$[\w$]*)
  | (?P<operator>{operator})
"""
_SINGLE: Final = r"'(?:[^'\\]|\\.)*'"
_DOUBLE: Final = r'"(?:[^"\\]|\\.)*"'
_COMMENT: Final = r"|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/"


def _language(*, string: str, comment: str, operator: str) -> re.Pattern[str]:
    return re.compile(_SHAPES.format(string=string, comment=comment, operator=operator), re.VERBOSE | re.DOTALL)


FEEL_TOKENS: Final = _language(
    string=rf"{_DOUBLE}|`[^`]+`", comment=_COMMENT, operator=r"\*\*|!=|<=|>=|\.\.|/(?!\*)|[-+*=<>()\[\]{}:,.@?]"
)
JUEL_TOKENS: Final = _language(
    string=f"{_SINGLE}|{_DOUBLE}", comment="", operator=r"\+=|==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]{}]"
)
JAVASCRIPT_TOKENS: Final = _language(
    string=f"{_SINGLE}|{_DOUBLE}|`[^`$\\\\]*`",
    comment=_COMMENT,
    operator=r"===|!==|==|!=|<=|>=|&&|\|\||\?\?|\?\.(?![0-9])|/(?!\*)|[-+*%<>!?:.,()\[\]{}]",
)

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{6}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", "'": "'", '"': '"'}


def check_text(text: str) -> None:
    """What is refused in every language, before anything is read."""
    if len(text) > TEXT_LENGTH_MAX:
        raise ExpressionSyntaxError(f"{len(text)} characters, at most {TEXT_LENGTH_MAX} are allowed", TEXT_LENGTH_MAX)
    if "\x00" in text:
        raise ExpressionSyntaxError("NUL character", text.index("\x00"))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ExpressionSyntaxError("lone surrogate", error.start) from None


def tokens(text: str, language: re.Pattern[str], start: int, end: int, *, in_braces: bool = False) -> list[Token]:
    """The tokens of ``text[start:end]`` with an end token behind them.

    With `in_braces` the text goes on behind the expression: the end is the first ``}`` without a ``{``.
    """
    result: list[Token] = []
    offset, open_braces = start, 0
    while offset < end:
        match = language.match(text, offset, end)
        if match is None:
            raise ExpressionSyntaxError(_unreadable(text, offset), offset)
        token = _token(match)
        if in_braces and token is not None and token.text in ("{", "}") and token.kind == "operator":
            open_braces += 1 if token.text == "{" else -1
            if open_braces < 0:
                break
        if token is not None:
            result.append(token)
        offset = match.end()
    else:
        if in_braces:
            raise ExpressionSyntaxError("the closing } is missing", end)
    result.append(Token("end", "", offset))
    return result


def _unreadable(text: str, offset: int) -> str:
    character = text[offset]
    if character in "'\"`":
        return f"the string that begins with {character} does not end, or has a quote that this language does not know"
    hint = " (equality is ==)" if character == "=" else ""
    return f"unexpected character {character!r}{hint}"


def _token(match: re.Match[str]) -> Token | None:
    text, offset = match.group(), match.start()
    match match.lastgroup:
        case "number":
            value = parse_number(text)
            if value is None:
                raise ExpressionSyntaxError("the number is too large", offset)
            return Token("number", text, offset, value)
        case "string" if text[0] == "`" and match.re is FEEL_TOKENS:
            return Token("quoted name", text[1:-1], offset)
        case "string":
            return Token("string", text, offset, _unescaped(text[1:-1], offset + 1))
        case "word":
            return Token("word", text, offset)
        case "operator":
            return Token("operator", text, offset)
        case _:
            return None


def _unescaped(text: str, offset: int) -> str:
    if "\\" not in text:
        return text

    def character(match: re.Match[str]) -> str:
        escape = match.group(1)
        if len(escape) > 1:
            code = int(escape[1:], 16)
            if 0 < code < 0x110000:
                return chr(code)
        elif escape in _ESCAPED:
            return _ESCAPED[escape]
        raise ExpressionSyntaxError(f"unknown escape \\{escape[:7]}", offset + match.start())

    try:
        # Two escapes can make one character beyond the basic plane; a half of such a pair is no text.
        return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ExpressionSyntaxError("lone surrogate", offset) from None
