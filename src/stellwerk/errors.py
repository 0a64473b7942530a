"""The errors of stellwerk. The class says who is to blame: the caller, the peer that holds a lease, the store, or us.

Every error carries a ``code`` from a closed list (the one on the wire and in HTTP answers) and a message for people.
"""

from __future__ import annotations

__all__ = [
    "BpmnFault",
    "CallerError",
    "Conflict",
    "Forbidden",
    "IdempotencyConflict",
    "InvalidInput",
    "InvariantBroken",
    "LimitExceeded",
    "NotFound",
    "NotServed",
    "Overloaded",
    "PeerError",
    "StellwerkError",
    "StoreUnavailable",
    "Unauthenticated",
]


class StellwerkError(Exception):
    """Base of all errors that stellwerk raises on purpose."""

    code = "error"
    retryable = False

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class CallerError(StellwerkError):
    """The request cannot be done as it was given; repeating it unchanged is useless."""

    code = "invalid"


class InvalidInput(CallerError):
    """Something in the request is malformed; the message names what and where (``$.path[3]``)."""


class LimitExceeded(CallerError):
    """The request is larger than a documented limit."""

    code = "too_large"


class NotFound(CallerError):
    """The request names something that does not exist."""

    code = "not_found"


class Conflict(CallerError):
    """The request does not fit the state that the thing it names is in."""

    code = "conflict"


class IdempotencyConflict(CallerError):
    """A key that was used before comes with another request. Nothing was done."""

    code = "idempotency_conflict"


class Unauthenticated(CallerError):
    """There is no credential, or it is not valid (any more). The message never quotes it."""

    code = "unauthenticated"


class Forbidden(CallerError):
    """The caller is known, and may not do this."""

    code = "forbidden"


class NotServed(CallerError):
    """A request of a known API that this engine has no answer to."""

    code = "not_implemented"


class Overloaded(StellwerkError):
    """There is too much to do just now. Nothing was done; the same request may be sent again a little later."""

    code = "overloaded"
    retryable = True


class PeerError(StellwerkError):
    """The peer acts on a lease that it does not hold any more."""

    code = "lease_lost"


class StoreUnavailable(StellwerkError):
    """The store cannot answer now (locked, full, restarting, gone). Nothing was acknowledged."""

    code = "unavailable"
    retryable = True


class InvariantBroken(StellwerkError):
    """A mistake of ours: the actor that raises it is dropped and comes back from the store."""

    code = "internal"


class BpmnFault(StellwerkError):
    """A fault of the model at run time (an expression that fails, no flow to take): becomes an incident."""

    code = "model_fault"
