"""A start or a message that is sent again after the engine was killed: the caller cannot know whether it was done."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

START = {"process_def_id": "order", "variables": {"amount": 1}, "business_key": "k"}
MESSAGE = {"name": "paid", "key": "k-1", "variables": {"amount": 1}}


def post(engine: Any, path: str, body: object, key: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=30)
    try:
        connection.request("POST", f"/api/v1{path}", json.dumps(body), {"Idempotency-Key": key})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def send_only(engine: Any, path: str, body: object, key: str) -> None:
    """Nobody reads the answer, and the engine may be killed before, while, or after it does what is asked."""
    text = json.dumps(body).encode()
    head = f"POST /api/v1{path} HTTP/1.1\r\nHost: here\r\nIdempotency-Key: {key}\r\nContent-Length: {len(text)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", engine.port), timeout=30) as connection:
        connection.sendall(head.encode() + text)


def ids(engine: Any, what: str, name: str) -> list[str]:
    return sorted(row[name] for row in engine.request("GET", f"/api/v1/{what}")[what.replace("process-", "")])


def test_what_is_sent_again_after_a_kill_has_the_same_answer_and_is_done_once(engine: Any) -> None:
    engine.deploy_tasks("order")
    started, published = post(engine, "/process-instances", START, "a"), post(engine, "/messages", MESSAGE, "a")
    assert (started[0], published[0]) == (201, 201)
    for key in ("b", "c", "d"):
        send_only(engine, "/process-instances", START, key)
    engine.kill()
    engine.start()
    assert post(engine, "/process-instances", START, "a") == started
    assert post(engine, "/messages", MESSAGE, "a") == published
    again = [post(engine, "/process-instances", START, key) for key in ("b", "c", "d", "b", "c", "d")]
    assert [status for status, _ in again] == [201] * 6
    assert again[:3] == again[3:]
    for change in ({"variables": {"amount": 2}}, {"business_key": "other"}):
        status, answer = post(engine, "/process-instances", {**START, **change}, "a")
        assert (status, answer["code"]) == (422, "idempotency_conflict")
    status, answer = post(engine, "/messages", {**MESSAGE, "key": "k-2"}, "a")
    assert (status, answer["code"]) == (422, "idempotency_conflict")
    answered = {started[1]["instance_id"], *(answer["instance_id"] for _, answer in again)}
    assert ids(engine, "process-instances", "instance_id") == sorted(answered)
    assert len(answered) == 4
    assert ids(engine, "messages", "message_id") == ["a"]
