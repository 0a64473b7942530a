"""Requests on ``/bpm-engine`` whose content is hostile: each gets a clear refusal, and nothing of it is done."""

from __future__ import annotations

from typing import Any

import pytest

FETCH = "/external-tasks/fetch-and-lock"
BODIES: list[tuple[str, dict[str, Any]]] = [
    (FETCH, {"worker_id": "w", "task_types": ["charge"], "max_tasks": 1, "lock_duration_ms": 30_000}),
    ("/external-tasks/nobody/complete", {"worker_id": "w", "variables": {"a": "b"}}),
    ("/external-tasks/nobody/fail", {"worker_id": "w", "error": "no", "retry_after_ms": 0}),
    ("/external-tasks/nobody/extend-lock", {"worker_id": "w", "extension_ms": 30_000}),
    ("/process-definitions", {"id": "order", "version": "1", "definition": "<definitions/>"}),
    ("/process-instances", {"process_def_id": "nothing", "variables": {"a": "b"}}),
    ("/tasks/nobody/complete", {"variables": {"a": "b"}}),
]
KINDS: list[object] = [None, True, -1, 1.5, 2**64, "\0", "", "x" * 3_000_000, [], [[]], [None], {}, {"\0": 1}]
READS = ("/process-instances/{}", "/process-instances/{}/history", "/process-instances/{}/trace", "/tasks?type={}")
NAMES = ("%00", "x" * 5_000, "%F0%9F%9A%82", "..%2F..", "'%20OR%201=1", "%25")


@pytest.mark.parametrize(("path", "body"), BODIES, ids=lambda value: value if isinstance(value, str) else "")
async def test_any_field_of_another_kind_or_size_is_refused(client: Any, path: str, body: dict[str, Any]) -> None:
    for name, good in body.items():
        for hostile in KINDS:
            reply = await client.post(path, {**body, name: hostile})
            if reply.status == 200:  # what is asked for is possible after all
                assert (path, reply.body) == (FETCH, []), (name, hostile)
            else:
                assert reply.status in (400, 404, 413, 501), (name, str(hostile)[:50], reply)
                assert reply.body["error"]
                assert len(reply.text) < 5_000
            if (
                type(hostile) is not type(good)
                and hostile not in (None, True)
                and name not in ("definition", "version")
            ):
                assert reply.status in (400, 413), (name, hostile)
    assert (await client.api.get("/process-instances")).body["instances"] == []
    assert len((await client.api.get("/process-definitions")).body["definitions"]) == 3


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"1", b"\xff", b"{}" * 3, b'{"a":NaN}'], ids=str)
async def test_what_is_no_object_is_refused(client: Any, body: bytes) -> None:
    for path, _ in BODIES:
        reply = await client.post(path, body)
        # A body that may be left out counts as an empty one.
        assert reply.status == (404 if (body, path) == (b"", "/tasks/nobody/complete") else 400), (path, reply)
        assert reply.body["error"]


async def test_names_in_paths_and_queries_find_nothing(client: Any) -> None:
    instance_id = await client.start()
    for name in NAMES:
        for path in READS:
            reply = await client.get(path.format(name))
            assert reply.status in (400, 404, 413, 501 if "%2F" in name else 404), (path, reply)
            assert reply.body["error"]
        for query in ("token_id", "event_type"):
            reply = await client.get(f"/process-instances/{instance_id}/history?{query}={name}")
            assert reply.status == 400 or reply.body["events"] == [], (query, reply)
    twice = await client.get(f"/process-instances/{instance_id}/history?limit=1&limit=2")
    assert twice.status == 400
