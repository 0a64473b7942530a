"""Whether an issuer has signed a token (JWS, RFC 7515), by the keys that it publishes. Needs the extra ``jwt``."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import trio
from joserfc import jws
from joserfc.jwk import JWKRegistry

from stellwerk.errors import StellwerkError, StoreUnavailable, Unauthenticated
from stellwerk.ports import Clock, Identity, Log
from stellwerk.server.auth.jwt import ALGORITHMS, TOKEN_CHARS_MAX, JwtConfig, identity_of_claims

__all__ = ["JwtVerifier", "SigningKeys"]

_REFRESH_SECONDS = 300.0
"""A key that the issuer has withdrawn is good for so long."""
_AGAIN_SECONDS = 10.0
"""So far apart are two attempts to get the keys, whatever tokens come."""
_KEYS_MAX = 1000
_FOR_ENCRYPTION = "enc"


@attrs.frozen
class _Key:
    kid: str | None
    algorithm: str | None
    """The only one that it is for; None: whatever fits its type."""
    key: Any

    def fits(self, kid: str | None, algorithm: str) -> bool:
        if self.key.key_type != ALGORITHMS[algorithm] or self.algorithm not in (None, algorithm):
            return False
        return kid is None or kid == self.kid


class SigningKeys:
    """An issuer's keys, read again every now and then, and when a token names one that is not known."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], clock: Clock, log: Log, *, place: str = "") -> None:
        """:param fetch: gives the JSON of a JWK set; OSError when it cannot. :param place: where from, for the log."""
        self._fetch = fetch
        self._place = place
        self._clock = clock
        self._log = log
        self._keys: Sequence[_Key] | None = None
        """None: there were none yet."""
        self._tried_at = float("-inf")
        self._reading = trio.Lock()

    async def read_first(self) -> None:
        """:raises OSError: they cannot be had. ValueError: they are no JWK set, or none of them is for signatures."""
        self._keys = _read_keys(await self._fetch())
        self._tried_at = self._clock.monotonic()
        if not self._keys:
            raise ValueError("it holds no key that can verify signatures")

    async def run(self) -> None:
        """Keep them fresh, for ever."""
        while True:
            await self._refresh()
            await self._clock.sleep(_REFRESH_SECONDS if self._keys is not None else _AGAIN_SECONDS)

    async def find(self, kid: str | None, algorithm: str) -> Any:
        """:raises Unauthenticated: there is no such key, or several fit a token that names none.
        :raises StoreUnavailable: the keys cannot be had now.
        """
        fitting = self._fitting(kid, algorithm)
        if not fitting:
            await self._refresh()
            fitting = self._fitting(kid, algorithm)
        if self._keys is None:
            raise StoreUnavailable("the keys of the tokens' issuer cannot be had now")
        if len(fitting) != 1:
            raise Unauthenticated("no key of the issuer fits the token")
        return fitting[0].key

    def _fitting(self, kid: str | None, algorithm: str) -> Sequence[_Key]:
        return [key for key in self._keys or () if key.fits(kid, algorithm)]

    async def _refresh(self) -> None:
        """Whoever comes meanwhile waits for the same answer. Without one the keys stay as they are."""
        async with self._reading:
            if self._clock.monotonic() - self._tried_at < _AGAIN_SECONDS:
                return
            try:
                self._keys = _read_keys(await self._fetch())
            except (OSError, ValueError, RecursionError) as error:
                self._log.warning(
                    "the keys of the tokens' issuer cannot be had",
                    jwks=self._place,
                    reason=str(error),
                    so="no token is good until they can" if self._keys is None else "those known stay good",
                )
            finally:
                self._tried_at = self._clock.monotonic()


def _read_keys(text: bytes) -> Sequence[_Key]:
    """:raises ValueError: it is no JWK set. Keys that are not for signatures, or of unknown kinds, are left out."""
    document = json.loads(text)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > _KEYS_MAX:
        raise ValueError('no JWK set: {"keys": [...]} is expected')
    return [key for one in listed if (key := _read_key(one)) is not None]


def _read_key(value: object) -> _Key | None:
    if not isinstance(value, dict) or value.get("use") == _FOR_ENCRYPTION:
        return None
    try:
        key = JWKRegistry.import_key(value)
    except Exception:  # noqa: BLE001 - of whatever kind it is, the others are still good
        return None
    return _Key(value.get("kid"), value.get("alg"), key)


class JwtVerifier:
    def __init__(self, config: JwtConfig, keys: SigningKeys, clock: Clock, log: Log) -> None:
        self.keys = keys
        self._config = config
        self._clock = clock
        self._log = log

    @property
    def leeway_ms(self) -> int:
        return round(self._config.leeway_seconds * 1000)

    async def identify(self, token: str) -> Identity:
        """:raises Unauthenticated: it is not good. StoreUnavailable: that cannot be told now."""
        if len(token) > TOKEN_CHARS_MAX:
            raise Unauthenticated(f"the token is longer than {TOKEN_CHARS_MAX} characters")
        header = _header_of(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._config.algorithms:
            raise Unauthenticated("the token is not signed in an allowed way")
        if kid is not None and not isinstance(kid, str):
            raise Unauthenticated(_NO_JWT)
        key = await self.keys.find(kid, algorithm)
        return identity_of_claims(self._claims_in(token, key, algorithm), self._config, self._clock.wall_ms())

    def _claims_in(self, token: str, key: Any, algorithm: str) -> Mapping[str, object]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # EdDSA has got a second name, and issuers use the first one
                claims = json.loads(jws.deserialize_compact(token, key, algorithms=[algorithm]).payload)
        except StellwerkError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a hostile token makes of the library: it is not good
            self._log.debug("token refused", reason=type(error).__name__)
            raise Unauthenticated("the token's signature is not right") from None
        if not isinstance(claims, dict):
            raise Unauthenticated(_NO_JWT)
        return claims


_NO_JWT = "this is neither an API key nor a signed JWT"


def _header_of(token: str) -> Mapping[str, object]:
    """Nothing of it is to be believed yet."""
    first = token.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except (ValueError, RecursionError):
        raise Unauthenticated(_NO_JWT) from None
    if not isinstance(header, dict):
        raise Unauthenticated(_NO_JWT)
    return header
