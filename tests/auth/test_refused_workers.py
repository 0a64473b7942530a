"""A worker whose credential is refused says so, and ends."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
import trio

from stellwerk.worker import Worker, WorkerGaveUp

CASES: dict[str, tuple[dict[str, Any] | None, tuple[str, ...]]] = {
    "none": (None, ("a credential is needed: an API key or a token", "it has none: give it one as Worker(token=...)")),
    "wrong": ({}, ("the API key is not valid", "its credential is that of Worker(token=...)")),
    "scope": ({"scopes": ["client"]}, ("the scope worker",)),
    "worker id": ({"scopes": ["worker"], "worker_ids": ["b-*"]}, ('may not be worker "a-1"',)),
    "topic": ({"scopes": ["worker"], "topics": ["stock"]}, ('may not take tasks of topic "payment"',)),
}


@pytest.mark.parametrize("transport", ["websocket", "http"])
@pytest.mark.parametrize("case", CASES)
async def test_a_refused_worker_says_what_is_missing_and_ends(
    serve: Any, caplog: pytest.LogCaptureFixture, case: str, transport: Any
) -> None:
    allowed, reasons = CASES[case]
    caplog.set_level(logging.INFO, logger="stellwerk.worker")
    async with serve() as client:
        admin = await client.make_key()
        key = None
        if allowed is not None:
            key = await client.make_key(by=admin, **allowed) if allowed else f"sw_{'A' * 11}_{'b' * 43}"
        worker = Worker(client.engine.url, worker_id="a-1", token=key, transport=transport, reconnect_seconds_max=0.05)

        @worker.task("payment")
        async def pay(payload: object, task: object) -> None:
            raise AssertionError("it gets none")

        with pytest.raises(WorkerGaveUp) as gave_up:
            await worker.serve()
    said = f"{client.engine.url} refuses this worker: "
    assert said in str(gave_up.value)
    assert all(reason in str(gave_up.value) for reason in reasons)
    lines = [record.getMessage() for record in caplog.records if record.name == "stellwerk.worker"]
    assert [line for line in lines if "until it succeeds" in line or "not connected" in line] == []
    (refusal,) = [line for line in lines if line.startswith(f"not authorized: {said}")]
    assert all(reason in refusal for reason in reasons)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_worker_that_something_in_between_refuses_at_the_upgrade_ends_too(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.INFO, logger="stellwerk.worker")

    async def refuse(stream: trio.SocketStream) -> None:
        await stream.receive_some(65_536)
        await stream.send_all(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        await stream.aclose()

    (listener,) = await nursery.start(partial(trio.serve_tcp, refuse, 0, host="127.0.0.1"))
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    worker = Worker(url, worker_id="a-1", token="x", reconnect_seconds_max=0.05)

    @worker.task("payment")
    async def pay(payload: object, task: object) -> None:
        raise AssertionError("it gets none")

    with pytest.raises(WorkerGaveUp, match=f"{url} refuses this worker: .* with HTTP status {status}"):
        await worker.serve()
    assert "until it succeeds" not in caplog.text
