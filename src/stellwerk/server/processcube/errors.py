"""Errors as ProcessCube's clients read them: the class is found by its name, and gives the code."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.errors import StellwerkError, Unauthenticated
from stellwerk.server.http.answers import encoded, headers_of, status_of

__all__ = ["InstanceNotFinished", "answer_error"]

_CLASSES = {
    400: "BadRequestError",
    401: "UnauthorizedError",
    403: "ForbiddenError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    422: "UnprocessableEntityError",
    429: "TooManyRequestsError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavaliableError",  # as the clients spell it
}
_EXPIRED = re.compile("expired", re.IGNORECASE)


class InstanceNotFinished(StellwerkError):
    """Somebody waits for an end event of an instance that went wrong."""

    code = "instance_not_finished"


def answer_error(error: StellwerkError, _request: Request) -> Response:
    """409 is the one status on which the genuine worker lets go of its task."""
    status = 500 if isinstance(error, InstanceNotFinished) else status_of(error)
    body = {
        "errorClassName": _CLASSES.get(status, "InternalServerError"),
        "code": status,
        "message": _message(error),
        "callStack": "",
        "errorType": "Error",
        "additionalInformation": {"code": error.code, "detail": error.message},
    }
    return Response(encoded(body), status, headers_of(status), media_type="application/json")


def _message(error: StellwerkError) -> str:
    """The clients take an error that says "expired" for one of the token: they fetch another and ask again, for ever.
    (What the message says in full stands in the additional information.)"""
    if isinstance(error, Unauthenticated):
        return error.message
    return _EXPIRED.sub("run out", error.message)
