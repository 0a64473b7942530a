"""Which tokens are good. Everything else is answered 401, whatever an attacker thinks of."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives import hashes, hmac
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from stellwerk.errors import InvalidInput, StoreUnavailable, Unauthenticated
from stellwerk.ports import Identity, Scope
from stellwerk.server.auth.jwt import ALGORITHMS_DEFAULT, JwtConfig
from stellwerk.server.auth.signatures import JwtVerifier, SigningKeys
from stellwerk.system.clock import VirtualClock
from stellwerk.system.documents import document_at
from stellwerk.system.logging import LogLevel, open_log

LOG = open_log(LogLevel.ERROR)


class Verifier:
    def __init__(self, issuer: Any, clock: VirtualClock) -> None:
        self.issuer = issuer
        self.clock = clock
        self.reads = 0
        self.use()

    def use(self, **options: Any) -> None:
        config = self.issuer.config(**options)
        self.verifier = JwtVerifier(config, SigningKeys(self._read, self.clock, LOG), self.clock, LOG)

    async def _read(self) -> bytes:
        self.reads += 1
        return await document_at(str(self.issuer.file))()

    async def identify(self, token: str) -> Identity:
        return await self.verifier.identify(token)


@pytest.fixture
def verifier(autojump_clock: object, make_issuer: Callable[[int], Any]) -> Callable[[], Verifier]:
    def make() -> Verifier:
        clock = VirtualClock()
        return Verifier(make_issuer(clock.wall_ms() // 1000), clock)

    return make


def part(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


# --- what is good ----------------------------------------------------------------------------------------------------


async def test_I3_claims_say_what_one_may_do(autojump_clock: object, verifier: Any) -> None:
    it = verifier()
    names = {"worker_ids": ["w-*"], "topics": ["payment", "stock"], "processes": ["order"]}
    token = it.issuer.token(scope="openid stellwerk:worker", scp=["client"], stellwerk=names)
    identity = await it.identify(token)
    assert identity == Identity(
        name="alice",
        scopes=(Scope.WORKER, Scope.CLIENT),
        worker_ids=("w-*",),
        topics=("payment", "stock"),
        processes=("order",),
        expires_at_ms=(it.issuer.now + 600) * 1000,
    )


async def test_scopes_of_others_allow_nothing(autojump_clock: object, verifier: Any) -> None:
    it = verifier()
    assert (await it.identify(it.issuer.token(scope="openid other:admin administrator"))).scopes == ()


@pytest.mark.parametrize("algorithm", ALGORITHMS_DEFAULT)
async def test_every_algorithm_of_the_default_works(autojump_clock: object, verifier: Any, algorithm: str) -> None:
    it = verifier()
    made: dict[str, Any] = {
        "ES256": partial(ECKey.generate_key, "P-256"),
        "ES384": partial(ECKey.generate_key, "P-384"),
        "ES512": partial(ECKey.generate_key, "P-521"),
        "Ed25519": partial(OKPKey.generate_key, "Ed25519"),
        "EdDSA": partial(OKPKey.generate_key, "Ed25519"),
    }
    key = made[algorithm]({"kid": "one"}) if algorithm in made else it.issuer.key
    it.issuer.publish(key)
    assert (await it.identify(it.issuer.token(key=key, header={"alg": algorithm}))).name == "alice"


async def test_a_token_without_kid_is_good_where_only_one_key_fits(autojump_clock: object, verifier: Any) -> None:
    it = verifier()
    token = it.issuer.token(header={"kid": None})
    assert (await it.identify(token)).name == "alice"
    it.issuer.publish(it.issuer.key, RSAKey.generate_key(2048, {"kid": "two"}))
    it.use()
    with pytest.raises(Unauthenticated, match="no key of the issuer fits"):
        await it.identify(token)


async def test_clocks_may_differ_by_some_seconds(autojump_clock: object, verifier: Any) -> None:
    it = verifier()
    assert await it.identify(it.issuer.token(exp=it.issuer.now - 5, nbf=it.issuer.now + 5))


# --- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claims, message",
    [
        ({"exp": 1}, "has expired"),
        ({"exp": None}, "has no end"),
        ({"exp": "soon"}, "no number"),
        ({"exp": True}, "no number"),
        ({"exp": float("inf")}, "no number"),
        ({"exp": 1e300}, "no time"),
        ({"nbf": 9_999_999_999}, "not valid yet"),
        ({"iss": "https://issuer.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "somebody"}, "another audience"),
        ({"aud": ["somebody", "else"]}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": {"stellwerk": 1}}, "another audience"),
        ({"stellwerk": {"topic": ["payment"]}}, "may hold worker_ids, topics, processes"),
        ({"stellwerk": {"topics": "payment"}}, "must be a list of names"),
        ({"stellwerk": {"topics": [""]}}, "must be a list of names"),
        ({"stellwerk": ["payment"]}, "may hold"),
    ],
)
async def test_claims_that_are_not_good(
    autojump_clock: object, verifier: Any, claims: dict[str, Any], message: str
) -> None:
    it = verifier()
    with pytest.raises(Unauthenticated, match=message):
        await it.identify(it.issuer.token(**claims))


async def test_hostile_tokens(autojump_clock: object, verifier: Any) -> None:
    it = verifier()
    good = it.issuer.token()
    head, claims, signature = good.split(".")
    pem = it.issuer.key.as_pem(private=False)
    signer = hmac.HMAC(pem, hashes.SHA256())
    signer.update(f"{part({'alg': 'HS256', 'kid': 'one'})}.{claims}".encode())
    other = RSAKey.generate_key(2048, {"kid": "one"})
    hostile = {
        "none": f"{part({'alg': 'none'})}.{claims}.",
        "None": f"{part({'alg': 'None', 'kid': 'one'})}.{claims}.{signature}",
        "HMAC with the public key": f"{part({'alg': 'HS256', 'kid': 'one'})}.{claims}.{part(signer.finalize())}",
        "signed by somebody else": it.issuer.token(key=other),
        "own key in the head": it.issuer.token(key=other, header={"jwk": other.as_dict(private=False)}),
        "key elsewhere": it.issuer.token(key=other, header={"jku": "https://evil.example/jwks"}),
        "unknown kid": it.issuer.token(header={"kid": "two"}),
        "kid as a path": it.issuer.token(header={"kid": "../../dev/null"}),
        "kid no text": f"{part({'alg': 'RS256', 'kid': ['one']})}.{claims}.{signature}",
        "alg no text": f"{part({'alg': ['RS256'], 'kid': 'one'})}.{claims}.{signature}",
        "no alg": f"{part({'kid': 'one'})}.{claims}.{signature}",
        "crit": f"{part({'alg': 'RS256', 'kid': 'one', 'crit': ['exp'], 'exp': 1})}.{claims}.{signature}",
        "other claims": f"{head}.{part(it.issuer.claims(sub='mallory'))}.{signature}",
        "no signature": f"{head}.{claims}.",
        "two parts": f"{head}.{claims}",
        "four parts": f"{good}.AAAA",
        "five parts": f"{head}.{claims}.{signature}.{claims}.{signature}",
        "empty": "",
        "dots": "..",
        "no base64": "ä.ö.ü",
        "head no JSON": f"{part(b'nonsense')}.{claims}.{signature}",
        "head an array": f"{part([])}.{claims}.{signature}",
        "head deep": f"{part(b'[' * 9_000)}.{claims}.{signature}",
        "claims an array": jws.serialize_compact({"alg": "RS256", "kid": "one"}, b"[]", it.issuer.key),
        "claims deep": jws.serialize_compact({"alg": "RS256", "kid": "one"}, b"[" * 9_000, it.issuer.key),
        "claims no JSON": jws.serialize_compact({"alg": "RS256", "kid": "one"}, b"\xff", it.issuer.key),
        "huge": it.issuer.token(padding="x" * 20_000),
        "lone surrogate": "\ud800." * 3,
    }
    for name, token in hostile.items():
        with pytest.raises(Unauthenticated):
            assert not await it.identify(token), name
    assert (await it.identify(good)).name == "alice"


async def test_a_shared_secret_works_only_where_it_is_wanted(autojump_clock: object, verifier: Any) -> None:
    it = verifier()
    secret = OctKey.generate_key(256, {"kid": "one"})
    it.issuer.file.write_text(json.dumps({"keys": [secret.as_dict(private=True)]}))
    token = it.issuer.token(key=secret, header={"alg": "HS256"})
    with pytest.raises(Unauthenticated, match="not signed in an allowed way"):
        await it.identify(token)
    it.use(algorithms=("HS256",))
    assert (await it.identify(token)).name == "alice"


async def test_keys_for_encryption_and_of_unknown_kinds_are_left_out(autojump_clock: object, verifier: Any) -> None:
    it = verifier()
    listed = [{"kty": "new"}, 7, {**it.issuer.key.as_dict(private=False), "use": "enc"}]
    it.issuer.file.write_text(json.dumps({"keys": listed}))
    with pytest.raises(Unauthenticated, match="no key of the issuer fits"):
        await it.identify(it.issuer.token())
    it.issuer.file.write_text(json.dumps({"keys": [*listed, it.issuer.key.as_dict(private=False)]}))
    await trio.sleep(60)
    assert await it.identify(it.issuer.token())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"algorithms": ("none",)}, "JWT algorithms are some of"),
        ({"algorithms": ()}, "JWT algorithms are some of"),
        ({"jwks": "http://issuer.example/jwks"}, "over https"),
        ({"issuer": ""}, "issuer is empty"),
    ],
)
def test_a_configuration_that_would_let_anybody_in_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        JwtConfig(**{"issuer": "i", "audience": "a", "jwks": "https://issuer.example/jwks", **options})


# --- the issuer's keys change ----------------------------------------------------------------------------------------


async def test_a_new_key_is_found_and_strange_ones_do_not_ask_the_issuer_again_and_again(
    autojump_clock: object, verifier: Any
) -> None:
    it = verifier()
    await it.identify(it.issuer.token())
    assert it.reads == 1
    new = RSAKey.generate_key(2048, {"kid": "two"})
    it.issuer.publish(it.issuer.key, new)
    await trio.sleep(11)
    rotated = it.issuer.token(key=new, header={"kid": "two"})
    assert (await it.identify(rotated)).name == "alice"
    assert it.reads == 2
    for _ in range(50):
        with pytest.raises(Unauthenticated):
            await it.identify(it.issuer.token(header={"kid": "three"}))
    assert it.reads == 2


async def test_a_withdrawn_key_is_forgotten(autojump_clock: object, verifier: Any, nursery: trio.Nursery) -> None:
    it = verifier()
    nursery.start_soon(it.verifier.keys.run)
    await it.identify(it.issuer.token(exp=it.issuer.now + 9_000))
    it.issuer.publish(RSAKey.generate_key(2048, {"kid": "two"}))
    await trio.sleep(330)
    with pytest.raises(Unauthenticated):
        await it.identify(it.issuer.token(exp=it.issuer.now + 9_000))


async def test_without_the_issuers_keys_it_cannot_be_told_now(autojump_clock: object, verifier: Any) -> None:
    it = verifier()
    it.issuer.file.write_text("{}")
    with pytest.raises(StoreUnavailable, match="cannot be had"):
        await it.identify(it.issuer.token())
    it.issuer.publish(it.issuer.key)
    await trio.sleep(11)
    await it.identify(it.issuer.token())
    it.issuer.file.unlink()
    await trio.sleep(60)
    assert await it.identify(it.issuer.token()), "those that are known stay"


# --- from a web server -----------------------------------------------------------------------------------------------


@pytest.fixture
async def web(nursery: trio.Nursery) -> dict[str, Any]:
    """``answer`` is what it sends, ``url`` where it is."""
    told: dict[str, Any] = {"answer": b""}

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(65536)
            await stream.send_all(told["answer"])

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    told["url"] = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/jwks"
    nursery.start_soon(trio.serve_listeners, serve, listeners)
    return told


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 1_100_000,
        b"nonsense\r\n\r\n",
        b"",
    ],
)
async def test_what_is_no_document_is_an_error(web: dict[str, Any], answer: bytes) -> None:
    web["answer"] = answer
    with pytest.raises(OSError):
        await document_at(web["url"])()


async def test_a_document_from_a_web_server(web: dict[str, Any]) -> None:
    web["answer"] = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"keys":[]}'
    assert await document_at(web["url"])() == b'{"keys":[]}'
