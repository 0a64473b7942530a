"""``stellwerk keys``, and the credential that every command sends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from stellwerk.app import TlsConfig
from stellwerk.cli.serving import ServeOptions

Run = Callable[..., Any]
StartEngine = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STELLWERK_TOKEN", raising=False)


def test_a_key_is_printed_once_alone_on_standard_output(stellwerk: Run) -> None:
    made = stellwerk(
        "keys", "create", "--db", "x.db", "--scopes", "worker,client", "--worker", "w1", "--topics", "a, b*", "--yes"
    )
    assert made.exit_code == 0, made
    assert made.out.startswith("sw_")
    assert len(made.out.splitlines()) == 1
    key_id = made.out.split("_")[1]
    assert key_id in made.err
    listed = json.loads(stellwerk("keys", "list", "--db", "x.db", "--json").out)
    assert [(row["key_id"], row["name"], row["scopes"], row["worker_ids"], row["topics"]) for row in listed] == [
        (key_id, "w1", ["worker", "client"], ["w1"], ["a", "b*"])
    ]
    shown = stellwerk("keys", "list", "--db", "x.db").out
    assert key_id in shown
    assert made.out.split("_")[2].strip() not in shown
    assert stellwerk("keys", "revoke", key_id, "--db", "x.db").out == f"revoked {key_id}\n"
    assert "revoked" in stellwerk("keys", "list", "--db", "x.db").out


@pytest.mark.parametrize(
    "arguments, what",
    [
        (["create", "--scopes", "root"], "a scope is one of worker, client, operator, admin (--scopes, in $[0])"),
        (["create", "--scopes", "worker", "--topics", "a,,b"], "--topics a,,b: names separated by commas"),
        (["create", "--scopes", "worker", "--expires", "90"], "--expires 90: a number with its unit"),
        (["revoke", "sw_AAAAAAAAAAA_secret"], "only the id of the key is wanted"),
        (["revoke", "AAAAAAAAAAA"], "there is no API key with this id"),
        (["create"], "--scopes"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(stellwerk: Run, arguments: list[str], what: str) -> None:
    stellwerk("keys", "create", "--db", "x.db", "--scopes", "admin")
    ended = stellwerk("keys", *arguments, "--db", "x.db")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert what in ended.err
    assert "secret" not in ended.err


def test_commands_send_the_credential_and_the_engine_is_closed_by_the_first_key(
    stellwerk: Run, start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start_engine()
    assert stellwerk("instances", "--url", engine.url).exit_code == 0
    key = stellwerk("keys", "create", "--scopes", "admin", "--url", engine.url).out.strip()
    refused = stellwerk("instances", "--url", engine.url)
    assert (refused.exit_code, refused.is_one_clear_line) == (2, True), refused
    assert "a credential is needed" in refused.err
    assert stellwerk("instances", "--url", engine.url, "--token", key).exit_code == 0
    monkeypatch.setenv("STELLWERK_TOKEN", key)
    assert stellwerk("keys", "list", "--url", engine.url).exit_code == 0
    reader = stellwerk("keys", "create", "--scopes", "client", "--url", engine.url).out.strip()
    monkeypatch.setenv("STELLWERK_TOKEN", reader)
    forbidden = stellwerk("prune", "--older-than", "1d", "--url", engine.url)
    assert (forbidden.exit_code, "needs the scope operator" in forbidden.err) == (2, True), forbidden
    log = engine.log.read_text()
    assert "only this machine, without a credential" in log
    assert "event=audit outcome=refused who=client" in log
    assert key.split("_")[2] not in log


def test_an_address_that_others_can_reach_needs_a_credential(
    stellwerk: Run, start_engine: StartEngine, tmp_path: Path
) -> None:
    refused = stellwerk("serve", "--db", "x.db", "--host", "0.0.0.0", "--port", "0")
    assert refused.exit_code == 2
    assert "stellwerk keys create --db" in refused.err
    assert refused.out == ""
    assert not (tmp_path / "x.db").exists()
    key = stellwerk("keys", "create", "--db", "x.db", "--scopes", "admin").out.strip()
    engine = start_engine("--db", "x.db")
    assert stellwerk("keys", "list", "--url", engine.url, "--token", key).exit_code == 0


def test_the_worker_command_sends_it_too(
    stellwerk: Run, start_engine: StartEngine, start_process: Run, tmp_path: Path
) -> None:
    engine = start_engine()
    admin = stellwerk("keys", "create", "--scopes", "admin", "--url", engine.url).out.strip()
    (tmp_path / "work.py").write_text(
        "from stellwerk.worker import Worker\nworker = Worker('http://127.0.0.1:1')\n"
        "@worker.task('pay')\ndef handle(payload, task): pass\n"
    )
    key = stellwerk(
        "keys", "create", "--scopes", "worker", "--topics", "pay", "--url", engine.url, "--token", admin
    ).out.strip()
    worker = start_process("worker", "work.py", "--url", engine.url, "--token", key)
    seen: list[dict[str, Any]] = []
    for _ in range(200):
        seen = json.loads(stellwerk("workers", "--json", "--url", engine.url, "--token", admin).out)
        if seen and seen[0]["topics"]:  # it subscribes once it is welcomed
            break
    assert [topic["topic"] for topic in seen[0]["topics"]] == ["pay"]
    assert worker.stop() == 0


@pytest.mark.parametrize(
    "options, what",
    [
        (["--jwt-issuer", "https://i.example"], "--jwt-issuer, --jwt-audience and --jwt-jwks"),
        (
            ["--jwt-issuer", "i", "--jwt-audience", "a", "--jwt-jwks", "http://i.example/keys"],
            "http://i.example/keys: keys must come over https",
        ),
        (
            ["--jwt-issuer", "i", "--jwt-audience", "a", "--jwt-jwks", "keys.json", "--jwt-algorithms", "none"],
            "JWT algorithms are some of",
        ),
        (["--tls-cert", "chain.pem"], "both --tls-cert and --tls-key"),
        (["--tls-cert", "chain.pem", "--tls-key", "key.pem"], "No such file"),
        (["--cors", "*"], "--cors *: an origin looks like https://shop.example"),
        (["--cors", "https://shop.example/path"], "--cors https://shop.example/path"),
    ],
)
def test_serve_refuses_what_would_let_in_too_many(stellwerk: Run, options: list[str], what: str) -> None:
    ended = stellwerk("serve", "--db", "x.db", "--port", "0", *options)
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert what in ended.err


def test_every_node_of_a_fleet_gets_the_same(tmp_path: Path) -> None:
    """Options go to the processes as JSON."""
    options = ServeOptions(
        db="postgresql://h/d",
        listen_db=None,
        host="0.0.0.0",
        port=1,
        synchronous="full",
        failure_policy=None,
        keep_ended_ms=None,
        log_level="info",
        log_format="text",
        jwt_issuer="https://i.example",
        jwt_audience="a",
        jwt_jwks="https://i.example/keys",
        jwt_algorithms="RS256, ES256",
        tls_cert="/chain.pem",
        tls_key="/key.pem",
        cors=("https://shop.example",),
    )
    config = ServeOptions.of(json.loads(json.dumps(attrs.asdict(options)))).config()
    assert config.jwt is not None
    assert (config.jwt.issuer, config.jwt.audience) == ("https://i.example", "a")
    assert config.jwt.algorithms == ("RS256", "ES256")
    assert config.tls == TlsConfig(certificate=Path("/chain.pem"), key=Path("/key.pem"))
    assert config.origins == ("https://shop.example",)


# --- what a beginner meets --------------------------------------------------------------------------------------------


def test_a_first_key_that_locks_everybody_out_takes_a_yes(stellwerk: Run) -> None:
    refused = stellwerk("keys", "create", "--db", "x.db", "--scopes", "worker")
    assert (refused.exit_code, refused.is_one_clear_line) == (2, True), refused
    assert "say that you mean it (--yes)" in refused.err
    assert json.loads(stellwerk("keys", "list", "--db", "x.db", "--json").out) == []
    made = stellwerk("keys", "create", "--db", "x.db", "--scopes", "worker", "--yes")
    assert made.exit_code == 0
    assert made.err.startswith("stellwerk: the first API key closes the engine")


def test_the_last_admins_key_takes_a_yes_too(stellwerk: Run) -> None:
    key_id = stellwerk("keys", "create", "--db", "x.db", "--scopes", "admin").out.split("_")[1]
    refused = stellwerk("keys", "revoke", key_id, "--db", "x.db")
    assert (refused.exit_code, refused.is_one_clear_line) == (2, True), refused
    assert "the last API key that can make and revoke others" in refused.err
    assert "(--yes)" in refused.err
    revoked = stellwerk("keys", "revoke", key_id, "--db", "x.db", "--yes")
    assert (revoked.exit_code, revoked.out) == (0, f"revoked {key_id}\n")
    assert "keys create --db" in revoked.err


def test_without_scopes_it_says_which_there_are(stellwerk: Run) -> None:
    refused = stellwerk("keys", "create", "--db", "x.db")
    assert (refused.exit_code, refused.is_one_clear_line) == (2, True), refused
    for word in ("worker (take tasks", "client (start", "operator (deploy", "admin (everything", "--scopes admin"):
        assert word in refused.err


@pytest.mark.parametrize(
    "options, name",
    [
        (["--scopes", "worker", "--worker", "billing-*"], "billing"),
        (["--scopes", "worker", "--worker", "billing-*,stock-1"], "billing, stock-1"),
        (["--scopes", "worker", "--worker", "*"], "worker"),
        (["--scopes", "client,operator"], "client, operator"),
        (["--scopes", "worker", "--worker", "billing-*", "--name", "given"], "given"),
    ],
)
def test_a_key_without_a_name_gets_one_that_is_no_pattern(stellwerk: Run, options: list[str], name: str) -> None:
    assert stellwerk("keys", "create", "--db", "x.db", *options, "--yes").exit_code == 0
    (row,) = json.loads(stellwerk("keys", "list", "--db", "x.db", "--json").out)
    assert row["name"] == name


def test_a_refusal_says_where_the_credential_comes_from(stellwerk: Run, start_engine: StartEngine) -> None:
    engine = start_engine()
    admin = stellwerk("keys", "create", "--scopes", "admin", "--url", engine.url).out.strip()
    without = stellwerk("instances", "--url", engine.url)
    assert without.is_one_clear_line
    assert "(set STELLWERK_TOKEN, or give --token)" in without.err
    wrong = stellwerk("instances", "--url", engine.url, "--token", admin[:-1] + ("x" if admin[-1] != "x" else "y"))
    assert wrong.is_one_clear_line
    assert "(from STELLWERK_TOKEN or --token)" in wrong.err
    reader = stellwerk("keys", "create", "--scopes", "client", "--url", engine.url, "--token", admin).out.strip()
    forbidden = stellwerk("keys", "list", "--url", engine.url, "--token", reader)
    assert "needs the scope admin" in forbidden.err
    websocket = engine.url.replace("http", "ws", 1)
    assert f"commands ask over HTTP: {engine.url}" in stellwerk("instances", "--url", websocket).err


def test_a_worker_under_the_name_that_its_key_is_for(
    stellwerk: Run, stellwerk_process: Run, start_engine: StartEngine, start_process: Run, tmp_path: Path
) -> None:
    engine = start_engine()
    admin = stellwerk("keys", "create", "--scopes", "admin", "--url", engine.url).out.strip()
    (tmp_path / "work.py").write_text(
        "from stellwerk.worker import Worker\nworker = Worker('http://127.0.0.1:1', reconnect_seconds_max=0.1)\n"
        "@worker.task('pay')\ndef handle(payload, task): pass\n"
    )
    key = stellwerk(
        "keys", "create", "--scopes", "worker", "--worker", "billing-*", "--url", engine.url, "--token", admin
    ).out.strip()
    refused = stellwerk_process("worker", "work.py", "--url", engine.url, "--token", key)
    assert refused.exit_code == 1
    assert "refuses this worker: billing may not be worker" in refused.err
    assert stellwerk("worker", "work.py", "--worker-id", "").err == "stellwerk: --worker-id: 1 to 255 characters\n"
    worker = start_process("worker", "work.py", "--url", engine.url, "--token", key, "--worker-id", "billing-1")
    seen: list[dict[str, Any]] = []
    for _ in range(200):
        seen = json.loads(stellwerk("workers", "--json", "--url", engine.url, "--token", admin).out)
        if seen:
            break
    assert [row["worker_id"] for row in seen] == ["billing-1"]
    assert worker.stop() == 0


def test_serve_refuses_a_file_of_keys_that_is_none(stellwerk: Run, tmp_path: Path) -> None:
    options = ["--jwt-issuer", "i", "--jwt-audience", "a", "--jwt-jwks", "keys.json"]
    for text in (None, "{}"):
        if text is not None:
            (tmp_path / "keys.json").write_text(text)
        ended = stellwerk("serve", "--db", "x.db", "--port", "0", *options)
        assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
        assert "keys.json" in ended.err
    assert not (tmp_path / "x.db").exists()


def test_a_process_that_is_not_deployed_may_be_a_typo(stellwerk: Run) -> None:
    stellwerk("keys", "create", "--db", "x.db", "--scopes", "admin")
    made = stellwerk("keys", "create", "--db", "x.db", "--scopes", "client", "--processes", "order,ship*")
    assert made.exit_code == 0
    assert made.err.splitlines()[0] == 'no process "order" is deployed'
    assert "ship" not in made.err
