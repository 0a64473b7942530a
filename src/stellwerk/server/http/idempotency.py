"""The ``Idempotency-Key`` header: the same request again, and only that one, is not done a second time."""

from __future__ import annotations

from starlette.requests import Request

from stellwerk.errors import InvalidInput

__all__ = ["idempotency_key"]

_HEADER = "idempotency-key"


def idempotency_key(request: Request, in_body: str | None, field: str) -> str | None:
    """The key of a request, from its header or from a field of its body. In quotes, as the draft of the header has it,
    or without.

    :param field: the name of the field, for errors.
    :raises InvalidInput: there are two that differ, or it is empty.
    """
    given = {_unquoted(value.strip()) for value in request.headers.getlist(_HEADER)}
    if "" in given:
        raise InvalidInput("the header Idempotency-Key is empty")
    if in_body is not None:
        given.add(in_body)
    if len(given) > 1:
        raise InvalidInput(f"the header Idempotency-Key says something else @ $.{field}")
    return next(iter(given), None)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
