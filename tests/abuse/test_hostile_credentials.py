"""Credentials that are forged, run out or belong to somebody else, at a real process. Each rule of its own is tested in
tests/auth; here they come in floods, over HTTP and WebSocket, while somebody with a good one is served."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

ISSUER, AUDIENCE = "https://issuer.example/", "stellwerk"


@attrs.frozen
class Guarded:
    engine: Any
    key: RSAKey

    def token(self, *, signed_by: RSAKey | None = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
        whole = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "alice",
            "exp": int(time.time()) + 600,
            "scope": "client worker",
        }
        head = {"alg": "RS256", "kid": "one", **(header or {})}
        kept = {name: value for name, value in {**whole, **claims}.items() if value is not None}
        return jwt.encode({name: value for name, value in head.items() if value}, kept, signed_by or self.key)


@pytest.fixture(scope="module")
def guarded(start_engine: Callable[..., Any], deploy: Callable[..., None], tmp_path_factory: Any) -> Guarded:
    key = RSAKey.generate_key(2048, {"kid": "one"})
    file: Path = tmp_path_factory.mktemp("issuer") / "jwks.json"
    file.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    options = ("--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-jwks", str(file))
    it = Guarded(start_engine(*options), key)
    deploy(it.engine, {"Authorization": f"Bearer {it.token(scope='operator')}"})
    return it


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def forged(guarded: Guarded) -> dict[str, str]:
    good = guarded.token()
    _, claims, signature = good.split(".")
    by_hmac = f"{part({'alg': 'HS256', 'kid': 'one'})}.{claims}"
    mac = hmac.digest(guarded.key.as_pem(private=False), by_hmac.encode(), hashlib.sha256)
    return {
        "none": f"{part({'alg': 'none'})}.{claims}.",
        "HMAC with the RSA key": f"{by_hmac}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}",
        "another's key": guarded.token(signed_by=RSAKey.generate_key(2048, {"kid": "one"})),
        "unknown kid": guarded.token(header={"kid": "two"}),
        "no kid, another's key": guarded.token(signed_by=RSAKey.generate_key(2048), header={"kid": None}),
        "expired": guarded.token(exp=int(time.time()) - 3600),
        "no end": guarded.token(exp=None),
        "another audience": guarded.token(aud="somebody"),
        "another issuer": guarded.token(iss="https://evil.example/"),
        "no signature": good.removesuffix(signature),
        "huge": guarded.token(padding="x" * 16_000),
        "no token": "sw_0123456789_secret",
    }


async def test_forged_tokens_get_in_nowhere_and_others_are_served(guarded: Guarded, other_works: Any) -> None:
    tokens, engine = forged(guarded), guarded.engine
    good = f"Authorization: Bearer {guarded.token()}\r\n"
    poll = {"worker_id": "w", "task_types": ["abused"]}
    async with engine.all_returns(), other_works(engine, good) as other, engine.asker() as ask:
        for _ in range(25):
            for name, token in tokens.items():
                header = f"Authorization: Bearer {token}\r\n"
                reply = await ask("POST", "/api/v1/external-tasks/fetch-and-lock", poll, header)
                assert (reply.status, reply.body["code"]) == (401, "unauthenticated"), (name, reply)
        for name, token in tokens.items():
            async with engine.worker() as session:
                hello = {"type": "hello", "worker_id": "w", "boot_id": name, "session_no": 1, "client": "test"}
                await session.say({**hello, "token": token})
                assert (await session.next("welcome", "error"))["code"] == "unauthenticated", name
        await other.served()
    assert "Traceback" not in engine.log
    assert not [token for token in tokens.values() if token.rpartition(".")[2] and token in engine.log]


async def test_names_of_another_identity_are_refused_and_its_tasks_stay(guarded: Guarded, other_works: Any) -> None:
    engine = guarded.engine
    mine = guarded.token(stellwerk={"worker_ids": ["me"], "topics": ["mine"]})
    header = f"Authorization: Bearer {mine}\r\n"
    good = f"Authorization: Bearer {guarded.token()}\r\n"
    start = await engine.ask("POST", "/api/v1/process-instances", {"process_def_id": "abused"}, good)
    assert start.status == 201
    poll = {"worker_id": "owner", "task_types": ["abused"], "lock_duration_ms": 600_000}
    (task,) = (await engine.ask("POST", "/api/v1/external-tasks/fetch-and-lock", poll, good)).body
    path = f"/api/v1/external-tasks/{task['task_id']}"
    async with engine.all_returns(), other_works(engine, good), engine.asker() as ask:
        for body in ({**poll, "worker_id": "me"}, {**poll, "task_types": ["mine"]}):
            reply = await ask("POST", "/api/v1/external-tasks/fetch-and-lock", body, header)
            assert (reply.status, reply.body["code"]) == (403, "forbidden"), reply
        for worker_id in ("owner", "me"):
            for action in ("complete", "unlock"):
                reply = await ask("POST", f"{path}/{action}", {"worker_id": worker_id, "fence": task["fence"]}, header)
                assert (reply.status, reply.body["code"]) == (403, "forbidden"), reply
        hello = {"type": "hello", "boot_id": "b", "session_no": 1, "client": "test", "token": mine}
        async with engine.worker() as session:
            await session.say({**hello, "worker_id": "owner"})
            assert (await session.next("welcome", "error"))["code"] == "forbidden"
        async with engine.worker({**hello, "worker_id": "me"}) as session:
            report = {"type": "complete", "ref": 1, "task_id": task["task_id"], "fence": task["fence"]}
            await session.say(report)
            assert (await session.next("ack", "nack"))["code"] in ("forbidden", "lease_lost", "not_found")
            await session.say({"type": "subscribe", "topic": "abused"})
            assert (await session.next("error"))["code"] == "forbidden"
    assert (await engine.ask("POST", f"{path}/complete", {"worker_id": "owner"}, good)).status == 200
