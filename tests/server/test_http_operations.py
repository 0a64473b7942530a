"""Pruning and backups over the HTTP API."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from stellwerk.app import AppConfig, ServedEngine, serve_engine
from stellwerk.system.logging import LogLevel


@pytest.fixture
async def on_file(file_engine: ServedEngine, connect_to: Any) -> AsyncIterator[Any]:
    async with connect_to(file_engine) as client:
        yield client


def copies(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if "backup" in path.name]


# --- pruning -------------------------------------------------------------------------------------------------------


async def test_prune_deletes_slice_by_slice_what_ended_long_ago(on_file: Any, file_engine: ServedEngine) -> None:
    ended = [await on_file.start("approval") for _ in range(5)]
    running = await on_file.start("approval")
    for instance_id in ended:
        await file_engine.node.cancel_instance(instance_id, "not wanted")
    await trio.sleep(0.002)
    answer = await on_file.post("/prune", {"older_than_ms": 60_000})
    assert answer.body == {"instances": 0, "more": False}, "they ended just now"
    deleted, rounds, more = 0, 0, True
    while more:
        answer = (await on_file.post("/prune", {"older_than_ms": 0, "limit": 2})).body
        assert answer["instances"] <= 2
        deleted, rounds, more = deleted + answer["instances"], rounds + 1, answer["more"]
    assert (deleted, rounds) == (5, 4)
    assert [row["instance_id"] for row in (await on_file.get("/process-instances")).body["instances"]] == [running]
    assert (await on_file.get(f"/process-instances/{ended[0]}/history")).status == 404
    assert (await on_file.post(f"/process-instances/{ended[0]}/cancel", {})).status == 404


async def test_prune_by_the_node_tells_how_far_it_is(on_file: Any, file_engine: ServedEngine) -> None:
    start = file_engine.node.start_instance
    async with trio.open_nursery() as nursery:
        for _ in range(150):
            nursery.start_soon(partial(start, "paid", {}, start_event_id="s3"))
    await trio.sleep(0.002)
    steps: list[int] = []
    assert await file_engine.node.prune(0, steps.append) == 150
    assert steps == sorted(steps)
    assert (len(steps) > 1, steps[-1]) == (True, 150)


# --- backups -------------------------------------------------------------------------------------------------------


async def test_backup_is_an_engine_as_it_was(on_file: Any, tmp_path: Path, connect_to: Any) -> None:
    instance_id = await on_file.start("approval", variables={"a": 1})
    reply = await on_file.get("/backup")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/octet-stream")
    assert copies(tmp_path) == []
    await on_file.post(f"/process-instances/{instance_id}/cancel", {})
    copy = tmp_path / "copy.db"
    copy.write_bytes(reply.body)
    config = AppConfig(db=copy, port=0, log_level=LogLevel.ERROR)
    async with serve_engine(config) as restored, connect_to(restored) as client:
        view = (await client.get(f"/process-instances/{instance_id}")).body
        assert (view["status"], view["variables"]) == ("RUNNING", {"a": 1})
        (task,) = view["user_tasks"]
        assert (await client.post(f"/user-tasks/{task['user_task_id']}/complete", {})).status == 200


async def test_large_backup_comes_in_pieces_while_work_goes_on(
    on_file: Any, file_engine: ServedEngine, tmp_path: Path, connect_to: Any
) -> None:
    for _ in range(12):
        await on_file.start("approval", variables={"text": "x" * 1_000_000})
    await on_file.stream.send_all(b"GET /api/v1/backup HTTP/1.1\r\nHost: here\r\n\r\n")
    with trio.fail_after(10):
        status, headers = await on_file.head()
        assert (status, copies(tmp_path)) == (200, []), "the file has no name any more, nothing of it can be left"
        async with connect_to(file_engine) as other:
            await other.start("approval")
            busy = await other.get("/backup")
            assert (busy.status, busy.body["code"]) == (409, "busy")
        body = await on_file.body(headers)
    copy = tmp_path / "copy.db"
    copy.write_bytes(body)
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM instances").fetchone() == (12,)


@pytest.mark.parametrize("end", ["the client leaves", "the engine drains", "the engine ends"])
async def test_copy_is_deleted_when_it_is_not_sent_to_its_end(tmp_path: Path, connect_to: Any, end: str) -> None:
    config = AppConfig(db=tmp_path / "engine.db", port=0, log_level=LogLevel.ERROR, synchronous="NORMAL")
    async with serve_engine(config) as engine:
        model = b"""<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t">
          <process id="p" isExecutable="true"><startEvent id="s"/><sequenceFlow id="f" sourceRef="s" targetRef="u"/>
          <userTask id="u"/></process></definitions>"""
        await engine.node.deploy([("p.bpmn", model)])
        for _ in range(12):
            await engine.node.start_instance("p", {"text": "x" * 1_000_000})
        async with connect_to(engine) as client:
            await client.stream.send_all(b"GET /api/v1/backup HTTP/1.1\r\nHost: here\r\n\r\n")
            with trio.fail_after(10):
                await client.head()
                if end == "the client leaves":
                    await client.stream.aclose()
                    async with connect_to(engine) as other:
                        while (await other.get("/backup")).status == 409:
                            await trio.sleep(0.01)
                elif end == "the engine drains":
                    await engine.drain(0)
    assert copies(tmp_path) == []


async def test_copy_of_an_engine_that_was_killed_is_deleted_by_the_next(on_file: Any, tmp_path: Path) -> None:
    for name in ("", ".stellwerk-partial"):
        (tmp_path / f"engine.db.backup-0199f2a4-7c1e-7a2b-b0d3-5d0e0f1a2b3c{name}").write_bytes(b"half of it")
    ours, foreign = (
        tmp_path / "engine.db.backup-monday",
        tmp_path / "other.db.backup-0199f2a4-7c1e-7a2b-b0d3-5d0e0f1a2b3c",
    )
    for path in (ours, foreign):
        path.write_bytes(b"a person's")
    assert (await on_file.get("/backup")).status == 200
    assert sorted(copies(tmp_path)) == sorted([ours.name, foreign.name])


async def test_backup_that_cannot_be_written_is_no_backup(tmp_path: Path, connect_to: Any) -> None:
    """Here because there is no room for its name."""
    config = AppConfig(db=tmp_path / ("d" * 240), port=0, log_level=LogLevel.ERROR)
    async with serve_engine(config) as engine, connect_to(engine) as client:
        for _ in range(2):
            reply = await client.get("/backup")
            assert (reply.status, reply.body["code"]) == (503, "unavailable")
            assert copies(tmp_path) == []


async def test_page_of_another_site_gets_no_backup(on_file: Any) -> None:
    request = b"GET /api/v1/backup HTTP/1.1\r\nHost: here\r\nSec-Fetch-Site: cross-site\r\n\r\n"
    assert (await on_file.ask(request)).status == 403


async def test_head_of_a_backup_writes_none(on_file: Any, tmp_path: Path) -> None:
    await on_file.stream.send_all(b"HEAD /api/v1/backup HTTP/1.1\r\nHost: here\r\n\r\n")
    status, _headers = await on_file.head()
    assert (status, copies(tmp_path)) == (200, [])
