"""JWTs of an identity provider (RFC 7519): what is asked of them, and what their claims allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from stellwerk.errors import InvalidInput, Unauthenticated
from stellwerk.instants import InstantMs
from stellwerk.ports import Identity, Scope
from stellwerk.values import frozen

__all__ = ["ALGORITHMS", "ALGORITHMS_DEFAULT", "TOKEN_CHARS_MAX", "JwtConfig", "identity_of_claims"]

ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("Ed25519", "EdDSA"), "OKP"),
    **dict.fromkeys(("HS256", "HS384", "HS512"), "oct"),
}
"""And the type of key (JWK ``kty``) that each needs: no public key may serve as a shared secret."""
ALGORITHMS_DEFAULT = tuple(name for name, kind in ALGORITHMS.items() if kind != "oct")
TOKEN_CHARS_MAX = 16 * 1024
_NAME_CHARS_MAX = 200
_NAMES_MAX = 1000
_EXPIRY_MAX = 2**40
"""Seconds: some 30,000 years on. Milliseconds of it are exact."""
_SCOPE_PREFIX = "stellwerk:"
_RESTRICTIONS_CLAIM = "stellwerk"
_RESTRICTIONS = ("worker_ids", "topics", "processes")
_LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


@frozen(kw_only=True)
class JwtConfig:
    """Which tokens are good."""

    issuer: str
    """Claim ``iss``."""
    audience: str
    """One of claim ``aud``."""
    jwks: str
    """Where the issuer's keys are (RFC 7517): an https URL, or a file."""
    algorithms: tuple[str, ...] = ALGORITHMS_DEFAULT
    leeway_seconds: float = 10.0
    """By how much clocks may differ."""

    def __attrs_post_init__(self) -> None:
        """:raises InvalidInput: naming what is wrong."""
        for name in ("issuer", "audience", "jwks"):
            if not getattr(self, name):
                raise InvalidInput(f"the JWT {name} is empty")
        unknown = [name for name in self.algorithms if name not in ALGORITHMS]
        if unknown or not self.algorithms:
            raise InvalidInput(
                f"JWT algorithms are some of {', '.join(ALGORITHMS)}, not {', '.join(unknown) or 'none'}"
            )
        parts = urlsplit(self.jwks)
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK_HOSTS:
            raise InvalidInput(f"{self.jwks}: keys must come over https: on the way anybody could put in their own")

    @property
    def jwks_is_url(self) -> bool:
        return self.jwks.startswith(("https://", "http://"))


def identity_of_claims(claims: Mapping[str, object], config: JwtConfig, now_ms: InstantMs) -> Identity:
    """:param claims: of a token whose signature is right.

    :raises Unauthenticated: it is for somebody else, of somebody else, or not valid now.
    """
    if claims.get("iss") != config.issuer:
        raise Unauthenticated("the token is of another issuer")
    audience = claims.get("aud")
    if config.audience not in (audience if isinstance(audience, list) else [audience]):
        raise Unauthenticated("the token is for another audience")
    expires_at = _seconds(claims, "exp")
    if expires_at is None:
        raise Unauthenticated("the token has no end (exp)")
    if now_ms >= (expires_at + config.leeway_seconds) * 1000:
        raise Unauthenticated("the token has expired")
    begins_at = _seconds(claims, "nbf")
    if begins_at is not None and now_ms < (begins_at - config.leeway_seconds) * 1000:
        raise Unauthenticated("the token is not valid yet")
    restrictions = _restrictions_in(claims)
    return Identity(
        name=_name_in(claims),
        scopes=_scopes_in(claims),
        worker_ids=restrictions.get("worker_ids"),
        topics=restrictions.get("topics"),
        processes=restrictions.get("processes"),
        expires_at_ms=int(expires_at * 1000),
    )


def _seconds(claims: Mapping[str, object], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unauthenticated(f"the token's {name} is no number of seconds")
    if not 0 <= value <= _EXPIRY_MAX:
        raise Unauthenticated(f"the token's {name} is no time")
    return value


def _name_in(claims: Mapping[str, object]) -> str:
    name = claims.get("sub")
    return name[:_NAME_CHARS_MAX] if isinstance(name, str) and name else "a token without a subject"


def _scopes_in(claims: Mapping[str, object]) -> tuple[Scope, ...]:
    """Those of ours; a token may have others, for other services."""
    given: list[object] = []
    for name in ("scope", "scp"):
        value = claims.get(name)
        given += value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    ours = {one.removeprefix(_SCOPE_PREFIX) for one in given if isinstance(one, str)}
    return tuple(scope for scope in Scope if scope.value in ours)


def _restrictions_in(claims: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """What is misspelt would allow more than was meant: such a token is not good."""
    given = claims.get(_RESTRICTIONS_CLAIM)
    if given is None:
        return {}
    if not isinstance(given, dict) or not set(given) <= set(_RESTRICTIONS):
        raise Unauthenticated(f"the token's claim {_RESTRICTIONS_CLAIM} may hold {', '.join(_RESTRICTIONS)}")
    return {name: _names_in(name, value) for name, value in given.items() if value is not None}


def _names_in(claim: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _NAMES_MAX or not _are_names(value):
        raise Unauthenticated(f"the token's claim {_RESTRICTIONS_CLAIM}.{claim} must be a list of names")
    return tuple(value)


def _are_names(values: Sequence[object]) -> bool:
    return all(isinstance(one, str) and one for one in values)
