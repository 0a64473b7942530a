"""Why an expression cannot be read or evaluated."""

from __future__ import annotations

from stellwerk.errors import BpmnFault, CallerError

__all__ = ["EvaluationError", "ExpressionFailed", "ExpressionSyntaxError", "Misuse"]


class ExpressionSyntaxError(CallerError):
    """The text is no expression of its language, or uses what stellwerk does not evaluate: a finding at deploy.

    `what` says what is wrong; `offset` counts characters from the beginning of the text, from 0.
    """

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"{what} (character {offset + 1} of the expression)")
        self.what = what
        self.offset = offset


class ExpressionFailed(BpmnFault):
    """The expression gives no value with these variables: an incident. The message names expression and reason."""

    def __init__(self, source: str, reason: str) -> None:
        shown = source if len(source) <= 200 else source[:200] + "…"
        super().__init__(f"expression {shown!r} failed: {reason}", code="expression_failed")
        self.source = source
        self.reason = reason


class EvaluationError(Exception):
    """A reason, on its way up to `evaluate`, which knows the expression."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Misuse(EvaluationError):
    """A function got what it does not take: null in FEEL, a failure elsewhere. Bounds on work and size are none."""
