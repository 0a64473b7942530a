"""Where a credential stands in the head of a request, in every form that clients know."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from stellwerk.errors import Unauthenticated

__all__ = ["credential_in"]

_AUTHORIZATION = b"authorization"
_API_KEY = b"x-api-key"
_DUMMY_TOKENS = frozenset({"ZHVtbXlfdG9rZW4="})
"""What clients of ProcessCube send where they have none."""


def credential_in(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """From ``Authorization`` (Bearer, Basic with the credential as the password, or nothing but the credential) or
    ``X-API-Key``. None: there is none.

    :param headers: as h11 and ASGI have them, with names in small letters.
    :raises Unauthenticated: it cannot be read, or there are two different ones.
    """
    found = {credential for name, value in headers if (credential := _credential_of(name, value.strip())) is not None}
    if len(found) > 1:
        raise Unauthenticated("the request has more than one credential")
    return next(iter(found), None)


def _credential_of(name: bytes, value: bytes) -> str | None:
    if name == _API_KEY:
        return _given(value)
    if name != _AUTHORIZATION:
        return None
    scheme, _, rest = value.partition(b" ")
    match scheme.lower():
        case b"bearer":
            return _given(rest.strip())
        case b"basic":
            return _given(_password_in(rest.strip()))
        case _ if not rest:
            return _given(value)
        case _:
            raise Unauthenticated("Authorization must be Bearer or Basic")


def _given(value: bytes) -> str | None:
    text = value.decode("latin-1")
    return None if not text or text in _DUMMY_TOKENS else text


def _password_in(value: bytes) -> bytes:
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        raise Unauthenticated("Authorization: Basic must be followed by base64 of user:credential") from None
