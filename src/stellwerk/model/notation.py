"""Texts that are written in another language than their file: what they are in, and what to write instead."""

from __future__ import annotations

import re
from enum import Enum

import attrs

from stellwerk.model.expressions import ExpressionSyntaxError, Language, parse

__all__ = ["Foreign", "Notation", "shown"]

_SHOWN_CHARS_MAX = 80
_BRACES = re.compile(r"\s*[$#]\{([^{}]*)\}\s*")
_FEEL_MARK = re.compile(r"\s*=(?![=>])")
_PROCESSCUBE_BRACES = re.compile(r"[^$]*\$\{\s*(token|identity)\b")
_TOKEN = re.compile(r"(?<![\w.])token\.(current|history)\b")
_FEEL_OPERATORS = (("==", "="), ("&&", " and "), ("||", " or "))


class Foreign(Enum):
    """Another language's notation."""

    BRACES = "JUEL"
    EQUALS_SIGN = "FEEL"
    DOTTED = "ProcessCube's"


@attrs.frozen
class Notation:
    """The language of a file, and how it came to be that."""

    language: Language
    because: str
    """A clause for findings: ``a file with stellwerk: in it is written in FEEL``."""
    strict: bool
    """Whether another notation is an error also where text may stand: no vendor's tool wrote the file."""

    def foreign(self, text: str, *, whole: bool) -> Foreign | None:
        """The other language that `text` is marked as; `whole`: all of it is an expression, marked or not."""
        match self.language:
            case Language.FEEL:
                return self._foreign_to_feel(text, whole=whole)
            case Language.JUEL:
                return Foreign.EQUALS_SIGN if _FEEL_MARK.match(text) else None
            case Language.PROCESSCUBE:
                if _FEEL_MARK.match(text):
                    return Foreign.EQUALS_SIGN
                is_juel = self.strict and "${" in text and not _PROCESSCUBE_BRACES.match(text)
                return Foreign.BRACES if is_juel else None

    def _foreign_to_feel(self, text: str, *, whole: bool) -> Foreign | None:
        start = text.lstrip()
        marked = start.startswith("=")
        if not marked and (start.startswith(("${", "#{")) or (not whole and ("${" in text or "#{" in text))):
            return Foreign.BRACES
        return Foreign.DOTTED if (marked or whole) and self.strict and _TOKEN.search(text) else None

    def advice(self, foreign: Foreign, text: str) -> str:
        """The finding: what the text is, why that is wrong here, and what to write."""
        if foreign is Foreign.DOTTED:
            return f'{shown(text)} is {foreign.value} notation, and {self.because}: "token" is a variable\'s name here'
        return f"{shown(text)} is {foreign.value}, and {self.because}: write {self._rewritten(foreign, text)}"

    def _rewritten(self, foreign: Foreign, text: str) -> str:
        match self.language:
            case Language.FEEL:
                return self._in_feel(text)
            case Language.JUEL:
                candidate = f"${{{text.strip().removeprefix('=').strip()}}}"
                return shown(candidate) if _is_readable(candidate, Language.JUEL) else "an expression like ${n > 1}"
            case Language.PROCESSCUBE if foreign is Foreign.BRACES:
                return "an expression like token.current.n > 1, and all others in the same language"
            case Language.PROCESSCUBE:
                return "an expression like token.current.n > 1"

    @staticmethod
    def _in_feel(text: str) -> str:
        match = _BRACES.fullmatch(text)
        if match is None:
            return 'an expression like =n > 1, or ="Order " + number where text stands beside it'
        inner = match[1].strip()
        for theirs, ours in _FEEL_OPERATORS:
            inner = inner.replace(theirs, ours)
        if '"' not in inner:
            inner = inner.replace("'", '"')
        candidate = "=" + " ".join(inner.split())
        return shown(candidate) if _is_readable(candidate, Language.FEEL) else "an expression like =n > 1"


def _is_readable(text: str, language: Language) -> bool:
    try:
        parse(text, language)
    except ExpressionSyntaxError:
        return False
    return True


def shown(text: str) -> str:
    """In quotes, on one line and not too long. Not more of `text` is looked at than is shown."""
    short = " ".join(text[: 4 * _SHOWN_CHARS_MAX].split())
    return f'"{short[: _SHOWN_CHARS_MAX - 1]}…"' if len(short) > _SHOWN_CHARS_MAX else f'"{short}"'
