"""``stellwerk serve`` as an operator meets it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

UPGRADE = (
    b"GET /workers HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: stellwerk.v1\r\n\r\n"
)

HELLO_TEXT = b'{"type":"hello","worker_id":"w","boot_id":"b","session_no":1,"client":"t"}'
HELLO = bytes([0x81, 0x80 | len(HELLO_TEXT)]) + bytes(4) + HELLO_TEXT
"""As a WebSocket frame."""


def receive_until(peer: socket.socket, mark: bytes) -> None:
    received = b""
    while mark not in received:
        data = peer.recv(1000)
        assert data, received
        received += data


def get(engine: Any, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_engine_answers_as_soon_as_it_says_so(start_engine: Run) -> None:
    engine = start_engine()
    assert get(engine, "/livez") == (200, b"ok")
    assert get(engine, "/readyz") == (200, b"ok")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_stops_the_engine_well(start_engine: Run, number: int) -> None:
    engine = start_engine()
    engine.process.send_signal(number)
    assert engine.process.wait(10) == 0
    assert "Traceback" not in engine.log.read_text()


def test_second_hangup_hurries_nobody(start_engine: Run) -> None:
    """A terminal that is closed sends one, and the shell in it another."""
    engine = start_engine()
    with socket.create_connection(("127.0.0.1", engine.port), 20) as worker:
        worker.sendall(UPGRADE + HELLO)
        receive_until(worker, b"welcome")
        engine.process.send_signal(signal.SIGHUP)
        receive_until(worker, b"goaway")
        engine.process.send_signal(signal.SIGHUP)
        assert engine.process.wait(10) == 0
    assert "draining" in engine.log.read_text()


def test_stopping_takes_at_most_five_seconds_whoever_is_connected(start_engine: Run) -> None:
    engine = start_engine()
    idle, waiting, worker, slow = (socket.create_connection(("127.0.0.1", engine.port), 20) for _ in range(4))
    slow.sendall(b"POST /api/v1/instances HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n")
    waiting.sendall(b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n")
    assert waiting.recv(100).startswith(b"HTTP/1.1 200")
    worker.sendall(UPGRADE + HELLO)
    receive_until(worker, b"welcome")
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(5) == 0
    assert "Traceback" not in engine.log.read_text()
    for peer in (idle, waiting, worker, slow):
        peer.close()


def test_second_signal_stops_at_once(start_engine: Run) -> None:
    engine = start_engine()
    with socket.create_connection(("127.0.0.1", engine.port), 20) as worker:
        worker.sendall(UPGRADE + HELLO)
        receive_until(worker, b"welcome")
        engine.process.send_signal(signal.SIGTERM)
        receive_until(worker, b"goaway")
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(2) == 128 + signal.SIGTERM


def test_taken_port_is_one_clear_line(start_engine: Run, stellwerk: Run) -> None:
    engine = start_engine()
    ended = stellwerk("serve", "--db", ":memory:", "--port", str(engine.port))
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert f"cannot listen on 127.0.0.1 port {engine.port}: Address already in use" in ended.err


def test_second_engine_on_a_file_is_refused_in_one_clear_line(start_engine: Run, stellwerk: Run) -> None:
    engine = start_engine("--db", "shared.db")
    ended = stellwerk("serve", "--db", "shared.db", "--port", "0")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert "shared.db" in ended.err
    assert str(engine.process.pid) in ended.err


def test_file_that_is_no_database_is_one_clear_line(stellwerk: Run, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear Sir or Madam, " * 500)
    ended = stellwerk("serve", "--db", "letter.txt", "--port", "0")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert "letter.txt" in ended.err
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("name, what", [("x" * 300, "File name too long"), ("", "--db: the name of a file")])
def test_name_that_no_file_can_have_is_one_clear_line(stellwerk: Run, name: str, what: str) -> None:
    ended = stellwerk("serve", "--db", name, "--port", "0")
    assert (ended.exit_code, ended.is_one_clear_line) == (2, True), ended
    assert what in ended.err


def test_port_is_free_again_after_a_kill(start_engine: Run) -> None:
    engine = start_engine("--db", "kept.db")
    with socket.create_connection(("127.0.0.1", engine.port), 20):
        engine.process.kill()
        engine.process.wait()
        again = start_engine("--db", "kept.db", "--port", str(engine.port))
        assert again.port == engine.port
        assert get(again, "/livez") == (200, b"ok")


def test_log_is_json_for_programs(start_engine: Run) -> None:
    engine = start_engine("--db", ":memory:", "--log-format", "json", "--log-level", "debug")
    with socket.create_connection(("127.0.0.1", engine.port), 20) as worker:
        worker.sendall(UPGRADE + HELLO)
        receive_until(worker, b"welcome")
    engine.stop()
    lines = [json.loads(line) for line in engine.log.read_text().splitlines()]
    assert (lines[0]["event"], lines[0]["level"], lines[0]["url"]) == ("listening", "info", engine.url)
    assert (lines[1]["event"], lines[1]["worker"]) == ("worker connected", "w")
    events = [line["event"] for line in lines if line["level"] == "info"]
    assert sorted(events[2:-1]) == ["draining", "worker gone"]
    assert events[-1] == "stopped"


def test_engine_goes_on_when_nobody_reads_its_output(start_engine: Run) -> None:
    engine = start_engine()
    engine.process.stdout.close()
    assert get(engine, "/livez") == (200, b"ok")
    assert engine.stop() == 0
