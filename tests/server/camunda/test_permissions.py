"""Who may do what on ``/engine-rest``: the same scopes and names as everywhere, refused in Camunda's form."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from stellwerk.app import ServedEngine


@pytest.fixture
async def keyed(camunda: Any) -> Callable[..., Any]:
    """``await keyed(scopes=["worker"], topics=[…])`` gives a header for the other requests."""
    admin = await camunda.api.post("/keys", {"name": "admin", "scopes": ["admin"]})
    assert admin.status == 201, admin
    bearer = f"Authorization: Bearer {admin.body['key']}\r\n"

    async def make(**rights: object) -> str:
        if rights == {"scopes": ["admin"]}:
            return bearer
        reply = await camunda.api.post("/keys", {"name": "some", **rights}, bearer)
        assert reply.status == 201, reply
        text = base64.b64encode(f"user:{reply.body['key']}".encode()).decode()
        return f"Authorization: Basic {text}\r\n"

    return make


FETCH: dict[str, Any] = {"workerId": "w-1", "maxTasks": 1, "topics": [{"topicName": "pack", "lockDuration": 20_000}]}


async def send(camunda: Any, header: str, method: str, path: str, body: object = None) -> Any:
    return await camunda.send(method, path, body, headers=header)


async def test_without_a_credential_everything_is_401_in_camundas_form(camunda: Any, keyed: Any) -> None:
    for method, path in (("POST", "/external-task/fetchAndLock"), ("GET", "/process-definition"), ("GET", "/task")):
        reply = await camunda.send(method, path)
        assert (reply.status, reply.body["type"]) == (401, "AuthorizationException")
        assert reply.headers["www-authenticate"]


async def test_a_worker_has_its_topics_and_its_name_only(camunda: Any, keyed: Any) -> None:
    admin = await keyed(scopes=["admin"])
    started = await send(camunda, admin, "POST", "/process-definition/key/shipping/start", {})
    assert started.status == 200, started
    worker = await keyed(scopes=["worker"], topics=["pack"], worker_ids=["w-*"])
    (task,) = (await send(camunda, worker, "POST", "/external-task/fetchAndLock", FETCH)).body
    other_topic = {**FETCH, "topics": [{"topicName": "pay", "lockDuration": 20_000}]}
    complete = f"/external-task/{task['id']}/complete"
    stranger = await keyed(scopes=["worker"], topics=["pay"], worker_ids=["w-*"])
    for header, path, body in (
        (worker, "/external-task/fetchAndLock", other_topic),
        (worker, "/external-task/fetchAndLock", {**FETCH, "workerId": "x"}),
        (worker, complete, {"workerId": "x"}),
        (stranger, complete, {"workerId": "w-1"}),
        (stranger, f"/external-task/{task['id']}/unlock", None),
        (worker, "/process-definition/key/shipping/start", {}),
        (worker, "/message", {"messageName": "paid"}),
    ):
        reply = await send(camunda, header, "POST", path, body)
        assert (reply.status, reply.body["type"]) == (403, "AuthorizationException"), path
    assert (await send(camunda, worker, "POST", f"/external-task/{task['id']}/unlock")).status == 204
    (again,) = (await send(camunda, worker, "POST", "/external-task/fetchAndLock", FETCH)).body
    assert (await send(camunda, worker, "POST", complete, {"workerId": "w-1"})).status == 204
    assert again["id"] == task["id"]


async def test_a_worker_unlocks_no_others_lock_and_an_operator_any(camunda: Any, keyed: Any) -> None:
    admin = await keyed(scopes=["admin"])
    await send(camunda, admin, "POST", "/process-definition/key/shipping/start", {})
    (task,) = (await send(camunda, admin, "POST", "/external-task/fetchAndLock", FETCH)).body
    path = f"/external-task/{task['id']}/unlock"
    other = await keyed(scopes=["worker"], worker_ids=["x"])
    assert (await send(camunda, other, "POST", path)).status == 403
    operator = await keyed(scopes=["operator", "worker"], worker_ids=["x"])
    assert (await send(camunda, operator, "POST", path)).status == 204


async def test_lists_and_polls_leave_out_what_the_caller_may_not_see(camunda: Any, keyed: Any) -> None:
    admin = await keyed(scopes=["admin"])
    for key in ("shipping", "approval"):
        assert (await send(camunda, admin, "POST", f"/process-definition/key/{key}/start", {})).status == 200
    limited = await keyed(scopes=["client", "worker"], processes=["pay*"])
    for path in ("/external-task", "/process-instance", "/task"):
        assert (await send(camunda, limited, "GET", path)).body == [], path
        assert (await send(camunda, limited, "GET", f"{path}/count")).body == {"count": 0}, path
    assert [row["key"] for row in (await send(camunda, limited, "GET", "/process-definition")).body] == ["payment"]
    fetches = (
        FETCH,
        {**FETCH, "topics": [{**FETCH["topics"][0], "processDefinitionKey": "shipping"}]},
    )
    for fetch in fetches:
        assert (await send(camunda, limited, "POST", "/external-task/fetchAndLock", fetch)).body == []
    (task,) = (await send(camunda, admin, "GET", "/task")).body
    (external,) = (await send(camunda, admin, "GET", "/external-task")).body
    for method, path in (
        ("GET", f"/task/{task['id']}"),
        ("POST", f"/task/{task['id']}/complete"),
        ("POST", f"/task/{task['id']}/claim"),
        ("GET", f"/external-task/{external['id']}"),
        ("GET", f"/process-instance/{task['processInstanceId']}"),
        ("GET", f"/process-instance/{task['processInstanceId']}/variables"),
        ("GET", "/process-definition/key/shipping"),
        ("GET", "/process-definition/shipping:1/xml"),
        ("POST", "/process-definition/shipping:1/start"),
        ("POST", "/process-definition/key/shipping/start"),
    ):
        reply = await send(camunda, limited, method, path, {"userId": "ann"} if method == "POST" else None)
        assert (reply.status, reply.body["type"]) == (403, "AuthorizationException"), path
    to_anybody = await send(camunda, limited, "POST", "/message", {"messageName": "paid"})
    assert (to_anybody.status, to_anybody.body["type"]) == (403, "AuthorizationException")


async def test_a_client_repairs_and_deploys_nothing(camunda: Any, keyed: Any, engine: ServedEngine) -> None:
    client = await keyed(scopes=["client"])
    for method, path in (
        ("POST", "/deployment/create"),
        ("DELETE", "/process-definition/approval:1"),
        ("DELETE", "/process-instance/x"),
        ("PUT", "/process-instance/x/variables/a"),
        ("PUT", "/external-task/x/retries"),
        ("PUT", "/external-task/x/priority"),
        ("POST", "/external-task/x/complete"),
    ):
        reply = await send(camunda, client, method, path)
        assert (reply.status, reply.body["type"]) == (403, "AuthorizationException"), path


async def test_who_may_use_some_processes_deploys_no_others(camunda: Any, keyed: Any) -> None:
    operator = await keyed(scopes=["operator"], processes=["pay*"])
    model = (await send(camunda, await keyed(scopes=["admin"]), "GET", "/process-definition/key/shipping/xml")).body
    part = 'Content-Disposition: form-data; name="data"; filename="m.bpmn"'
    form = f"--x\r\n{part}\r\n\r\n{model['bpmn20Xml']}\r\n--x--\r\n".encode()
    reply = await camunda.send("POST", "/deployment/create", form, "multipart/form-data; boundary=x", headers=operator)
    assert (reply.status, reply.body["type"]) == (403, "AuthorizationException")


async def test_topics_are_told_to_those_who_may_see_them_only(camunda: Any, keyed: Any) -> None:
    """Names of topics tell what others do."""
    admin = await keyed(scopes=["admin"])
    await send(camunda, admin, "POST", "/process-definition/key/shipping/start", {})

    async def told(header: str) -> tuple[Any, Any]:
        names = (await send(camunda, header, "GET", "/external-task/topic-names")).body
        native = await camunda.api.ask(f"GET /api/v1/topics HTTP/1.1\r\nHost: here\r\n{header}\r\n".encode())
        return names, [topic["topic"] for topic in native.body["topics"]]

    assert await told(admin) == (["pack"], ["pack"])
    for rights in ({"processes": ["shipping"]}, {"processes": ["ship*"], "topics": ["pack", "pay"]}):
        assert await told(await keyed(scopes=["client", "worker"], **rights)) == (["pack"], ["pack"]), rights
    for rights in ({"processes": ["payment"]}, {"topics": ["pay"]}, {"processes": ["shipping"], "topics": ["pay"]}):
        assert await told(await keyed(scopes=["client", "worker"], **rights)) == ([], []), rights


async def test_workers_are_told_with_the_topics_that_the_caller_may_see(camunda: Any, keyed: Any) -> None:
    admin = await keyed(scopes=["admin"])
    poll = {"workerId": "w-1", "maxTasks": 1, "topics": [{"topicName": "pack", "lockDuration": 20_000}]}
    await send(camunda, admin, "POST", "/external-task/fetchAndLock", poll)

    async def told(header: str) -> Any:
        reply = await camunda.api.ask(f"GET /api/v1/workers HTTP/1.1\r\nHost: here\r\n{header}\r\n".encode())
        return [(worker["worker_id"], [one["topic"] for one in worker["topics"]]) for worker in reply.body["workers"]]

    assert await told(admin) == [("w-1", ["pack"])]
    assert await told(await keyed(scopes=["client"], processes=["shipping"])) == [("w-1", ["pack"])]
    assert await told(await keyed(scopes=["client"], processes=["payment"])) == []
