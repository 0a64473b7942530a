"""The closed list of error codes of the HTTP API (docs/http-api, Errors): clients may rely on it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

__all__ = ["CODES", "LEASE_CODES", "STATE_CODES", "ErrorCode"]


@attrs.frozen
class ErrorCode:
    status: int
    text: str
    """What it means, as Markdown."""


CODES: Mapping[str, ErrorCode] = {
    "invalid": ErrorCode(400, "The request is malformed"),
    "deploy_refused": ErrorCode(400, "A file cannot run; see `findings`"),
    "unauthenticated": ErrorCode(401, "There is no credential, or it is not good (any more)"),
    "forbidden": ErrorCode(403, "The credential does not allow this"),
    "not_found": ErrorCode(404, "There is no such thing"),
    "not_awaited": ErrorCode(404, "Nothing waits for the message, and it is not kept"),
    "method_not_allowed": ErrorCode(405, "The path does not take this method"),
    "conflict": ErrorCode(409, "It does not fit the state that the thing is in"),
    "ended": ErrorCode(409, "The instance has ended"),
    "exists": ErrorCode(409, "There is one already"),
    "not_open": ErrorCode(409, "It is not open (any more)"),
    "ambiguous_start": ErrorCode(409, "The start event has to be named"),
    "busy": ErrorCode(409, "Another one is under way"),
    "assigned": ErrorCode(409, "Somebody else has it"),
    "in_use": ErrorCode(409, "There are instances of it"),
    "disabled": ErrorCode(409, "Nothing of this process starts now"),
    "lease_lost": ErrorCode(409, "The lock ran out, or somebody else has the task"),
    "already_finished": ErrorCode(409, "The lease ended with another request"),
    "cancelled": ErrorCode(409, "The process does not need the task any more"),
    "too_large": ErrorCode(413, "A documented limit is exceeded"),
    "idempotency_conflict": ErrorCode(422, "The key was used before, for something else"),
    "internal": ErrorCode(500, "A mistake of the engine's; the log has it"),
    "not_implemented": ErrorCode(501, "The engine has no answer to this"),
    "unavailable": ErrorCode(503, "The store cannot answer now"),
    "overloaded": ErrorCode(503, "Too much is under way, or the engine is about to stop"),
}
"""By code. Beside these statuses, a connection gives up with 408 (`invalid`) and 431 (`too_large`)."""

LEASE_CODES = ("lease_lost", "already_finished", "cancelled")
"""Whoever gets one of these lets go of the task."""
STATE_CODES = ("conflict", "ended", "not_open")
