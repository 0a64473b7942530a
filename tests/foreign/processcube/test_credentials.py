"""ProcessCube's genuine clients with tokens: bad ones, ones that name what may be done, ones that end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

ISSUER = "https://login.example.com"
Token = Callable[..., str]


@pytest.fixture(scope="module")
def signing_key() -> ECKey:
    return ECKey.generate_key("P-256", {"kid": "k1"})


@pytest.fixture(scope="module")
def token(signing_key: ECKey) -> Token:
    """``token("worker client", ends_in=60)``: with these scopes, for so many seconds."""

    def make(scope: str, *, ends_in: float = 3_600, **restrictions: object) -> str:
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": "stellwerk",
            "sub": "somebody",
            "iat": now - 100,
            "exp": now + int(ends_in),
            "scope": scope,
            "stellwerk": restrictions,
        }
        return jwt.encode({"alg": "ES256", "kid": "k1"}, claims, signing_key)

    return make


@pytest.fixture(scope="module")
def engine(start_engine: Any, signing_key: ECKey, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One that lets nobody in without a token of the issuer's."""
    keys = tmp_path_factory.mktemp("keys") / "jwks.json"
    Path(keys).write_text(json.dumps({"keys": [signing_key.as_dict(private=False)]}))
    return start_engine("--jwt-issuer", ISSUER, "--jwt-audience", "stellwerk", "--jwt-jwks", str(keys))


@pytest.fixture(scope="module")
def operator(drive: Any, start_node_for_module: Any, engine: Any, token: Token) -> Any:
    return drive(start_node_for_module("processcube.mjs", engine.url, token("admin")))


def test_nobody_gets_in_without_a_token(genuine: Any, refused: Any) -> None:
    """But the genuine client sends one of its own then, which counts as none."""
    assert genuine.call("applicationInfo.getApplicationInfo")["name"] == "stellwerk"
    with pytest.raises(refused) as nobody:
        genuine.call("processModels.getAll")
    assert (nobody.value.name, nobody.value.code) == ("UnauthorizedError", 401)
    assert "expired" not in nobody.value.message


def test_a_worker_whose_token_has_expired_fetches_another_and_goes_on(
    operator: Any, token: Token, model: Any, service: Any, unique: str
) -> None:
    operator.call("processDefinitions.persistProcessDefinitions", model(unique, service(unique)))
    operator.call("processModels.startProcessInstance", {"processModelId": unique})
    expired, good = token("worker", ends_in=-60), token("worker", topics=[unique])

    operator.start_worker("worker", unique, tokens=[expired, good])

    told = operator.event("worker_error", worker="worker")
    assert (told["type"], told["code"]) == ("fetchAndLock", 401)
    assert "expired" in told["message"]
    assert operator.event("task", worker="worker")["task"]["topic"] == unique
    operator.stop_worker("worker")


def test_a_worker_takes_only_what_its_token_names(operator: Any, token: Token, unique: str) -> None:
    operator.start_worker("worker", unique, tokens=[token("worker", topics=["another"])])
    told = operator.event("worker_error", worker="worker")
    assert (told["type"], told["name"], told["code"]) == ("fetchAndLock", "ForbiddenError", 403)
    operator.stop_worker("worker")


def test_notifications_come_for_a_token_without_bearer_and_only_of_its_processes(
    operator: Any, drive: Any, start_node: Any, engine: Any, token: Token, model: Any, service: Any, unique: str
) -> None:
    for process in (f"{unique}-mine", f"{unique}-other"):
        operator.call("processDefinitions.persistProcessDefinitions", model(process, service(process)))
    client = drive(start_node("processcube.mjs", engine.url, token("client", processes=[f"{unique}-mine"])))
    client.listen("notification.onProcessStarted")
    client.connect()

    for process in (f"{unique}-other", f"{unique}-mine"):
        operator.call("processModels.startProcessInstance", {"processModelId": process})

    assert client.event("notified")["message"]["processModelId"] == f"{unique}-mine"
