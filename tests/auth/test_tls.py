"""TLS on the engine's port, with certificates that are made here: server, worker and command line."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trustme

from stellwerk.app import CannotListen, TlsConfig
from stellwerk.app.access import Certificate
from stellwerk.app.config import AppConfig
from stellwerk.app.serving import serve_engine
from stellwerk.cli.main import run
from stellwerk.server.http.limits import HttpLimits
from stellwerk.system.logging import LogLevel, open_log
from stellwerk.worker import Worker


@attrs.frozen
class Authority:
    """Certificates for localhost, and who trusts them."""

    directory: Path
    ca: trustme.CA

    @classmethod
    def make(cls, directory: Path) -> Authority:
        found = cls(directory, trustme.CA())
        found.ca.cert_pem.write_to_path(str(found.roots))
        found.issue()
        return found

    @property
    def roots(self) -> Path:
        return self.directory / "roots.pem"

    @property
    def config(self) -> TlsConfig:
        return TlsConfig(certificate=self.directory / "chain.pem", key=self.directory / "key.pem")

    def issue(self) -> None:
        made = self.ca.issue_cert("localhost", "127.0.0.1")
        self.config.certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        self.config.key.write_bytes(made.private_key_pem.bytes())

    def context(self) -> ssl.SSLContext:
        """Of a client that trusts them."""
        return ssl.create_default_context(cafile=str(self.roots))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path)


@pytest.fixture
def trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks the system for its roots gets ours."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.roots))


def secured(client: Any, authority: Authority) -> Any:
    return attrs.evolve(client, tls=authority.context())


async def test_requests_over_tls(serve: Any, authority: Authority) -> None:
    async with serve(tls=authority.config) as plain:
        assert plain.engine.url.startswith("https://127.0.0.1:")
        client = secured(plain, authority)
        assert (await client.ask("GET", "//livez")).body == "ok"
        key = await client.make_key()
        assert (await client.ask("GET", "/keys")).status == 401
        assert (await client.ask("GET", "/keys", credential=key)).status == 200


async def test_an_answer_to_a_body_that_is_too_long_arrives(serve: Any, authority: Authority) -> None:
    async with serve(tls=authority.config) as plain:
        client = secured(plain, authority)
        reply = await client.ask("POST", "/keys", {"name": "x" * 200_000})
        assert reply.status == 413


@pytest.mark.usefixtures("trusted")
async def test_a_worker_over_tls(serve: Any, authority: Authority, nursery: trio.Nursery) -> None:
    done = trio.Event()
    async with serve(tls=authority.config) as plain:
        client = secured(plain, authority)
        admin = await client.make_key()
        key = await client.make_key(by=admin, scopes=["worker"], topics=["payment"])
        worker = Worker(plain.engine.url, token=key)

        @worker.task("payment")
        async def pay(payload: object, task: object) -> None:
            done.set()

        await nursery.start(worker.serve)
        started = await client.ask("POST", "/process-instances", {"process_def_id": "order"}, credential=admin)
        with trio.fail_after(10):
            await done.wait()
            waiting = f"/process-instances/{started.body['instance_id']}/wait?timeout_ms=8000"
            assert (await client.ask("GET", waiting, credential=admin)).body["status"] == "COMPLETED"
        worker.stop()


async def test_the_command_line_over_tls(
    serve: Any, authority: Authority, trusted: None, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    async def stellwerk(*arguments: str) -> int:
        return await trio.to_thread.run_sync(
            run, (*arguments, "--url", client.engine.url.replace("127.0.0.1", "localhost"))
        )

    monkeypatch.delenv("STELLWERK_TOKEN", raising=False)
    async with serve(tls=authority.config) as client:
        admin = await secured(client, authority).make_key()
        assert await stellwerk("instances") == 2
        assert await stellwerk("instances", "--token", admin) == 0
        monkeypatch.setenv("STELLWERK_TOKEN", admin)
        assert await stellwerk("keys", "list") == 0
        monkeypatch.delenv("SSL_CERT_FILE")
        assert await stellwerk("instances") == 3, "a certificate that nobody vouches for is no engine"
    assert admin.split("_")[2] not in log.read()


async def test_who_speaks_no_tls_or_says_nothing_is_let_go(serve: Any, authority: Authority) -> None:
    limits = HttpLimits(head_seconds_max=0.3)
    async with serve(tls=authority.config, http_limits=limits) as plain:
        port = int(plain.engine.url.rpartition(":")[2])
        for said in (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"", b"\x16\x03\x01"):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                if said:
                    await stream.send_all(said)
                with trio.fail_after(5):
                    assert b"HTTP" not in await rest_of(stream)
        assert (await secured(plain, authority).ask("GET", "//livez")).status == 200


async def rest_of(stream: trio.SocketStream) -> bytes:
    found = b""
    try:
        while piece := await stream.receive_some(65536):
            found += bytes(piece)
    except trio.BrokenResourceError:
        pass
    return found


async def test_old_versions_of_tls_are_not_spoken(serve: Any, authority: Authority) -> None:
    async with serve(tls=authority.config) as plain:
        old = authority.context()
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(trio.BrokenResourceError):
            await attrs.evolve(plain, tls=old).ask("GET", "//livez")


async def test_a_renewed_certificate_is_taken_without_a_restart(
    serve: Callable[..., Any], authority: Authority, tmp_path: Path
) -> None:
    certificate = Certificate(authority.config)
    log = open_log(LogLevel.ERROR)

    async def serial() -> str:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        listeners = [trio.SSLListener(listener, certificate.context)]
        port = listener.socket.getsockname()[1]

        async def hold(stream: trio.SSLStream[trio.SocketStream]) -> None:
            try:
                await stream.do_handshake()
                await stream.receive_some(1)
            except trio.BrokenResourceError:
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, hold, listeners)
            peer = await trio.open_ssl_over_tcp_stream("localhost", port, ssl_context=authority.context())
            await peer.do_handshake()
            number = str(peer.getpeercert()["serialNumber"])
            await trio.aclose_forcefully(peer)
            nursery.cancel_scope.cancel()
        return number

    first = await serial()
    certificate.look(log)
    assert await serial() == first
    authority.issue()
    os.utime(authority.config.key, ns=(1, 1))  # whatever the resolution of the clock of files
    certificate.look(log)
    second = await serial()
    assert second != first
    authority.config.certificate.write_text("half of a fi")
    certificate.look(log)
    assert await serial() == second


@pytest.mark.parametrize("broken", ["missing", "nonsense", "another key"])
async def test_what_is_no_certificate_and_its_key_is_one_clear_error(
    authority: Authority, tmp_path: Path, broken: str
) -> None:
    match broken:
        case "missing":
            authority.config.key.unlink()
        case "nonsense":
            authority.config.certificate.write_text("nonsense")
        case _:
            made = authority.ca.issue_cert("localhost")
            authority.config.key.write_bytes(made.private_key_pem.bytes())
    with pytest.raises(CannotListen, match=r"TLS with .*chain\.pem and .*key\.pem: "):
        async with serve_engine(AppConfig(db=":memory:", port=0, tls=authority.config, log_level=LogLevel.ERROR)):
            pytest.fail("it listens")


# --- what does not fit is told ----------------------------------------------------------------------------------------

CASES = {
    "plain to tls": ("http", "speaks TLS, so that the URL must begin with https://"),
    "tls to plain": ("https", "speaks no TLS: the URL that fits begins with http://"),
    "unknown authority": ("https", "nobody whom this machine trusts vouches for the certificate"),
    "another name": ("https", "the certificate is for another name"),
}


def misfit(case: str, client: Any) -> str:
    """The URL that does not fit."""
    host = "127.1" if case == "another name" else "127.0.0.1"  # the same place, which no certificate names so
    return f"{CASES[case][0]}://{host}:{client.engine.url.rpartition(':')[2]}"


def options_for(case: str, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.delenv("STELLWERK_TOKEN", raising=False)
    if case == "another name":
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.roots))
    else:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return {} if case == "tls to plain" else {"tls": authority.config}


@pytest.mark.parametrize("case", CASES)
async def test_the_command_line_says_what_of_tls_does_not_fit(
    serve: Any,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
) -> None:
    options = options_for(case, authority, monkeypatch)
    async with serve(**options, log_level=LogLevel.ERROR) as client:
        url = misfit(case, client)
        assert await trio.to_thread.run_sync(run, ("instances", "--url", url)) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"stellwerk: no connection to {url}: "), line
    assert CASES[case][1] in line
    assert ("SSL_CERT_FILE" in line) == (case == "unknown authority")


@pytest.mark.parametrize("transport", ["websocket", "http"])
@pytest.mark.parametrize("case", CASES)
async def test_a_worker_says_what_of_tls_does_not_fit(
    serve: Any,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    nursery: trio.Nursery,
    case: str,
    transport: Any,
) -> None:
    options = options_for(case, authority, monkeypatch)
    said: list[str] = []
    told = trio.Event()
    async with serve(**options) as client:
        url = misfit(case, client)
        if transport == "websocket":
            url = url.replace("http", "ws", 1)
        worker = Worker(url, transport=transport)

        @worker.task("payment")
        async def pay(payload: object, task: object) -> None:
            raise AssertionError("it is not reached")

        @worker.on_error
        def note(_kind: object, error: Exception, _task: object) -> None:
            said.append(str(error))
            told.set()

        await nursery.start(worker.serve)
        with trio.fail_after(20):
            await told.wait()
        worker.stop()
    assert said[0].startswith("no connection to "), said
    assert CASES[case][1] in said[0]
    assert "\n" not in said[0]
    assert ("SSL_CERT_FILE" in said[0]) == (case == "unknown authority")
