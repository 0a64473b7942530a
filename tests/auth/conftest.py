"""An engine with credentials, a client that sends them, and an issuer of tokens."""

from __future__ import annotations

import json
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from joserfc import jws
from joserfc.jwk import RSAKey

from stellwerk.app import MEMORY, AppConfig, ServedEngine, serve_engine
from stellwerk.server.auth.jwt import JwtConfig
from stellwerk.system.logging import LogFormat, LogLevel

ISSUER = "https://issuer.example/"
AUDIENCE = "stellwerk"
MODEL = """<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <process id="{key}" isExecutable="true">
    <startEvent id="s"/><serviceTask id="charge" stellwerk:topic="{topic}"/><endEvent id="e"/>
    <sequenceFlow id="f1" sourceRef="s" targetRef="charge"/><sequenceFlow id="f2" sourceRef="charge" targetRef="e"/>
  </process>
</definitions>"""


@attrs.frozen
class Reply:
    status: int
    headers: dict[str, str]
    body: Any


@attrs.define
class Client:
    """A connection for each request."""

    engine: ServedEngine
    tls: ssl.SSLContext | None = None

    async def ask(
        self, method: str, path: str, body: object = None, *, credential: str | None = None, headers: str = ""
    ) -> Reply:
        """`credential`: as a bearer token. `headers`: further lines, each with its end."""
        if credential is not None:
            headers += f"Authorization: Bearer {credential}\r\n"
        content = b"" if body is None else json.dumps(body).encode()
        target = path[1:] if path.startswith("//") else f"/api/v1{path}"
        head = f"{method} {target} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{headers}"
        with trio.fail_after(10):
            async with await self._connect() as stream:
                await stream.send_all(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
                answer = b""
                while piece := await stream.receive_some(65536):
                    answer += bytes(piece)
        return _reply(answer)

    async def make_key(self, *, by: str | None = None, **wanted: Any) -> str:
        """→ the key."""
        reply = await self.ask("POST", "/keys", {"name": "test", "scopes": ["admin"], **wanted}, credential=by)
        assert reply.status == 201, reply
        return str(reply.body["key"])

    async def _connect(self) -> trio.abc.Stream:
        port = int(self.engine.url.rpartition(":")[2])
        if self.tls is None:
            return await trio.open_tcp_stream("127.0.0.1", port)
        return await trio.open_ssl_over_tcp_stream("localhost", port, https_compatible=True, ssl_context=self.tls)


def _reply(answer: bytes) -> Reply:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    is_json = "json" in headers.get("content-type", "")
    return Reply(int(status.split(" ")[1]), headers, json.loads(body) if is_json else body.decode())


@attrs.define
class Log:
    """What the engine has logged."""

    _capture: pytest.CaptureFixture[str]
    text: str = ""

    def read(self) -> str:
        self.text += self._capture.readouterr().err
        return self.text

    def audit(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.read().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "audit"]


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Log:
    return Log(capsys)


@pytest.fixture
def serve(log: Log) -> Callable[..., Any]:
    """``async with serve(**config) as client``: an engine with processes ``order`` (topic payment) and ``secret``
    (topic stock), on a free port."""

    @asynccontextmanager
    async def open_it(**config: Any) -> AsyncIterator[Client]:
        defaults: dict[str, Any] = {
            "db": MEMORY,
            "port": 0,
            "log_level": LogLevel.DEBUG,
            "log_format": LogFormat.JSON,
        }
        async with serve_engine(AppConfig(**{**defaults, **config})) as engine:
            models = [("order", "payment"), ("secret", "stock")]
            await engine.node.deploy(
                [(f"{key}.bpmn", MODEL.format(key=key, topic=topic).encode()) for key, topic in models]
            )
            yield Client(engine)

    return open_it


class Issuer:
    """Of tokens: its keys are in a file."""

    def __init__(self, file: Path, now: int) -> None:
        self.file = file
        self.now = now
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.publish(self.key)

    def publish(self, *keys: Any) -> None:
        self.file.write_text(json.dumps({"keys": [key.as_dict(private=False) for key in keys]}))

    def config(self, **options: Any) -> JwtConfig:
        return JwtConfig(issuer=ISSUER, audience=AUDIENCE, jwks=str(self.file), **options)

    def claims(self, **others: Any) -> dict[str, Any]:
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "alice",
            "exp": self.now + 600,
            "scope": "openid worker client operator",
            **others,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, *, key: Any = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A good one, but for what is given. A claim that is None is left out."""
        head = {"alg": "RS256", "kid": "one", "typ": "JWT", **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        payload = json.dumps(self.claims(**claims)).encode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # EdDSA has a new name
            return jws.serialize_compact(head, payload, key or self.key, algorithms=[head["alg"]])


@pytest.fixture
def make_issuer(tmp_path: Path) -> Callable[[int], Issuer]:
    """``make_issuer(now)``: seconds since 1970."""
    return lambda now: Issuer(tmp_path / "jwks.json", now)
