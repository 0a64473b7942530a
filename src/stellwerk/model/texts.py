"""Expressions as they stand in a file, read in the file's language. A syntax error is a finding, never an exception."""

from __future__ import annotations

import re

import attrs

from stellwerk.model.expressions import Expression, ExpressionSyntaxError, Language, literal, parse, parse_template
from stellwerk.model.findings import Findings
from stellwerk.model.notation import Foreign, Notation, shown
from stellwerk.model.process import Severity
from stellwerk.model.xml import Element

__all__ = ["NUMBER_MAX", "Texts"]

NUMBER_MAX = 2**31 - 1
"""What the core takes for an integer."""

_NUMBER = re.compile(r"\s*-?\d{1,18}\s*", re.ASCII)
_PROCESSCUBE_EXPRESSION = re.compile(r"\s*(token|identity)\s*[.\[?]")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@attrs.frozen
class _Outcome:
    """What became of a text: the same text may stand in a file many times, or be referred to many times."""

    expression: Expression
    severity: Severity | None = None
    what: str = ""


class Texts:
    """Reads the texts of one file."""

    def __init__(self, notation: Notation, findings: Findings) -> None:
        self._notation = notation
        self._findings = findings
        self._outcomes: dict[tuple[str, bool], _Outcome] = {}

    @property
    def language(self) -> Language:
        return self._notation.language

    def is_foreign(self, text: str) -> bool:
        """Whether a text is marked as an expression of another language: reading it as a template tells that."""
        return self._notation.foreign(text, whole=False) is not None

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
        return self._checked(element, text, whole=False)

    def optional_template(self, element: Element, text: str | None) -> Expression | None:
        return self.template(element, text) if text is not None and text.strip() else None

    def expression(self, element: Element, text: str) -> Expression:
        """An expression, marked as one or not."""
        return self._checked(element, text, whole=True)

    def condition(self, element: Element, text: str) -> Expression:
        """The text of a formal expression whose value is a boolean (a flow's condition, say)."""
        if not self._is_understood(element, text):
            return literal(False)
        if self.language is Language.JUEL and not self.is_expression(text) and not self.is_foreign(text):
            self._findings.error(element, f"the condition is no expression like ${{…}}: {shown(text)}")
            return literal(False)
        return self.expression(element, text)

    def number(
        self, element: Element, text: str, *, minimum: int = -NUMBER_MAX, maximum: int = NUMBER_MAX
    ) -> Expression | None:
        """A whole number, or an expression where the text is marked as one. Bounds hold for what is constant."""
        if self._is_refused(text):
            return self.template(element, text)
        if self.is_expression(text):
            value = self.template(element, text)
            if not value.is_literal:
                return value
            number = value.literal_value
        else:
            number = int(text) if _NUMBER.fullmatch(text) else None
        if isinstance(number, int) and not isinstance(number, bool) and minimum <= number <= maximum:
            return literal(number)
        self._findings.error(element, f"a whole number from {minimum} to {maximum} is expected, not {shown(text)}")
        return None

    def count(self, element: Element, text: str) -> Expression:
        """A whole number or an expression, marked as one or not."""
        return literal(int(text)) if _NUMBER.fullmatch(text) else self.expression(element, text)

    def variable(self, element: Element, text: str) -> Expression:
        """A variable's name, or an expression where the text is marked as one."""
        if self.is_expression(text) or self._is_refused(text):
            return self.template(element, text)
        if not _NAME.fullmatch(text.strip()):
            self._findings.error(element, f"a variable's name is expected, not {shown(text)}")
            return literal(None)
        path = f"token.current.{text.strip()}" if self.language is Language.PROCESSCUBE else text.strip()
        return self._checked(element, path, whole=True)

    def _is_refused(self, text: str) -> bool:
        """Whether reading the text as a template gives the error that it is in another language."""
        return self._notation.strict and self.is_foreign(text) and not self.is_expression(text)

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

    def _checked(self, element: Element, text: str, *, whole: bool) -> Expression:
        outcome = self._outcomes.get((text, whole))
        if outcome is None:
            outcome = self._outcomes[text, whole] = self._read(text.strip(), whole=whole)
        if outcome.severity is Severity.ERROR:
            self._findings.error(element, outcome.what)
        elif outcome.severity is Severity.WARNING:
            self._findings.warning(element, outcome.what)
        return outcome.expression

    def _read(self, text: str, *, whole: bool) -> _Outcome:
        foreign = self._notation.foreign(text, whole=whole)
        what = "" if foreign is None else self._notation.advice(foreign, text)
        if foreign is not None and foreign is not Foreign.DOTTED and (whole or self._notation.strict):
            return _Outcome(literal(None), Severity.ERROR, what)
        try:
            expression = parse(text, self.language) if whole else parse_template(text, self.language)
        except ExpressionSyntaxError as error:
            what = f"{error.what} at character {error.offset + 1} of {shown(text)}"
            return _Outcome(literal(None), Severity.ERROR, what)
        return _Outcome(expression, None if foreign is None else Severity.WARNING, what)
