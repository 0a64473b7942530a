"""API keys: ``sw_<key_id>_<secret>``. Only a digest of the secret is kept; 256 random bits need no slow hash."""

from __future__ import annotations

import hashlib
import hmac
import re

from stellwerk.ports import ApiKeyRow, Entropy
from stellwerk.values import frozen

__all__ = ["PresentedKey", "digest_of", "is_right", "looks_like_key", "new_key", "read_key", "without_secrets"]

_PREFIX = "sw_"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""Neither dashes nor underscores: a double click selects a whole part."""
_ID_BITS = 64
_ID_DIGITS = 11
_SECRET_BITS = 256
_SECRET_DIGITS = 43
_KEY = re.compile(rf"sw_([0-9A-Za-z]{{{_ID_DIGITS}}})_([0-9A-Za-z]{{{_SECRET_DIGITS}}})", re.ASCII)
_MAYBE_KEY = re.compile(r"sw_[0-9A-Za-z]+_[0-9A-Za-z]+")
_NO_DIGEST = "0" * 64
"""Compared with where there is no such key: it takes the same time."""


@frozen
class PresentedKey:
    """What somebody says is a key."""

    key_id: str
    secret: str


def new_key(entropy: Entropy) -> tuple[str, PresentedKey]:
    """→ the text for its owner, who is the only one to get it, and its parts."""
    key = PresentedKey(
        _text_of(entropy.integer(_ID_BITS), _ID_DIGITS), _text_of(entropy.integer(_SECRET_BITS), _SECRET_DIGITS)
    )
    return f"{_PREFIX}{key.key_id}_{key.secret}", key


def looks_like_key(credential: str) -> bool:
    """No JWT begins like this."""
    return credential.startswith(_PREFIX)


def read_key(credential: str) -> PresentedKey | None:
    """None: it has not the form of a key."""
    parts = _KEY.fullmatch(credential)
    return None if parts is None else PresentedKey(parts[1], parts[2])


def digest_of(secret: str) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_right(row: ApiKeyRow | None, secret: str) -> bool:
    """Takes the same time whether there is such a key or not, and however much of the secret is right."""
    expected = _NO_DIGEST if row is None else row.secret_digest
    return hmac.compare_digest(expected, digest_of(secret)) and row is not None


def without_secrets(text: str) -> str:
    """For logs: somebody may have put a key where none belongs."""
    return _MAYBE_KEY.sub("sw_…", text)


def _text_of(number: int, digits: int) -> str:
    found = ""
    for _ in range(digits):
        number, digit = divmod(number, len(_DIGITS))
        found += _DIGITS[digit]
    return found
