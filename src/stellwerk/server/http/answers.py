"""Answers of the HTTP API: values as JSON, errors as ``{code, message, findings?}`` with the status that fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import (
    CallerError,
    Conflict,
    LimitExceeded,
    NotFound,
    PeerError,
    StellwerkError,
    StoreUnavailable,
)

__all__ = ["answer", "answer_error", "answer_http_exception", "answer_text", "encoded", "status_of"]

_encoder = msgspec.json.Encoder(enc_hook=str)
_RETRY_AFTER_SECONDS = 1


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return answer_text(encoded(value), status, headers)


def encoded(value: object) -> bytes:
    """JSON text."""
    return _encoder.encode(value)


def answer_text(text: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """:param text: JSON, encoded before."""
    return Response(text, status, headers, media_type="application/json")


def status_of(error: StellwerkError) -> int | None:
    """None: a mistake of ours."""
    match error:
        case NotFound():
            return 404
        case Conflict() | PeerError():
            return 409
        case LimitExceeded():
            return 413
        case CallerError():
            return 400
        case StoreUnavailable():
            return 503
        case _:
            return None


def answer_error(error: StellwerkError, status: int, **more: Any) -> Response:
    headers = {"retry-after": str(_RETRY_AFTER_SECONDS)} if status == 503 else None
    return answer({"code": error.code, "message": error.message, **more}, status, headers)


async def answer_http_exception(_request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid")
    message = {404: "there is no such path", 405: "the path does not take this method"}
    text = message.get(error.status_code, error.detail)
    return answer({"code": code, "message": text}, error.status_code, error.headers)
