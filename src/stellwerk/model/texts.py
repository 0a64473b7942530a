"""Expressions as they stand in a file, read in the file's language. A syntax error is a finding, never an exception."""

from __future__ import annotations

import re
from collections.abc import Callable

from stellwerk.model.expressions import Expression, ExpressionSyntaxError, Language, literal, parse, parse_template
from stellwerk.model.findings import Findings
from stellwerk.model.xml import Element

__all__ = ["Texts"]

_NUMBER = re.compile(r"\s*-?\d{1,18}\s*", re.ASCII)
_PROCESSCUBE_EXPRESSION = re.compile(r"\s*(token|identity)\s*[.\[?]")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SHOWN_CHARS_MAX = 80


class Texts:
    """Reads the texts of one file."""

    def __init__(self, language: Language, findings: Findings) -> None:
        self.language = language
        self._findings = findings

    def is_expression(self, text: str) -> bool:
        """Whether a text that may be either is marked as an expression, in this file's language."""
        match self.language:
            case Language.FEEL:
                return text.lstrip().startswith("=")
            case Language.JUEL:
                return "${" in text or "#{" in text
            case Language.PROCESSCUBE:
                return "${" in text or _PROCESSCUBE_EXPRESSION.match(text) is not None

    def template(self, element: Element, text: str) -> Expression:
        """A literal, or an expression where the text is marked as one."""
        return self._checked(element, text.strip(), parse_template)

    def optional_template(self, element: Element, text: str | None) -> Expression | None:
        return self.template(element, text) if text is not None and text.strip() else None

    def expression(self, element: Element, text: str) -> Expression:
        """An expression, marked as one or not."""
        return self._checked(element, text.strip(), parse)

    def condition(self, element: Element, text: str) -> Expression:
        """The text of a formal expression whose value is a boolean (a flow's condition, say)."""
        if not self._is_understood(element, text):
            return literal(False)
        if self.language is Language.JUEL and not self.is_expression(text):
            self._findings.error(element, f"the condition is no expression like ${{…}}: {_shown(text)}")
            return literal(False)
        return self.expression(element, text)

    def number(self, element: Element, text: str, *, minimum: int | None = None) -> Expression | None:
        """A whole number, or an expression where the text is marked as one."""
        if self.is_expression(text):
            return self.template(element, text)
        if _NUMBER.fullmatch(text) and (minimum is None or int(text) >= minimum):
            return literal(int(text))
        lowest = "" if minimum is None else f" from {minimum} on"
        self._findings.error(element, f"a whole number{lowest} is expected, not {_shown(text)}")
        return None

    def count(self, element: Element, text: str) -> Expression:
        """A whole number or an expression, marked as one or not."""
        return literal(int(text)) if _NUMBER.fullmatch(text) else self.expression(element, text)

    def variable(self, element: Element, text: str) -> Expression:
        """A variable's name, or an expression where the text is marked as one."""
        if self.is_expression(text):
            return self.template(element, text)
        if not _NAME.fullmatch(text.strip()):
            self._findings.error(element, f"a variable's name is expected, not {_shown(text)}")
            return literal(None)
        path = f"token.current.{text.strip()}" if self.language is Language.PROCESSCUBE else text.strip()
        return self._checked(element, path, parse)

    def _is_understood(self, element: Element, text: str) -> bool:
        """A formal expression may name its own language: only the file's own one is read."""
        named = (element.get("language") or "").strip()
        lowered = named.lower()
        if not named or text.lstrip().startswith(("${", "#{", "=")):
            return True
        known = ("feel", "juel", "java.com/java") if self.language is not Language.PROCESSCUBE else ("javascript",)
        if any(name in lowered for name in known):
            return True
        self._findings.error(element, f'the expression language "{named}" is not supported')
        return False

    def _checked(self, element: Element, text: str, read: Callable[[str, Language], Expression]) -> Expression:
        try:
            return read(text, self.language)
        except ExpressionSyntaxError as error:
            self._findings.error(element, f"{error.what} at character {error.offset + 1} of {_shown(text)}")
            return literal(None)


def _shown(text: str) -> str:
    short = " ".join(text.split())
    return f'"{short[: _SHOWN_CHARS_MAX - 1]}…"' if len(short) > _SHOWN_CHARS_MAX else f'"{short}"'
