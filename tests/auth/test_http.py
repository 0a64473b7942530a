"""Who gets in by HTTP and WebSocket, what they may do there, and what is told of it."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.trio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from stellwerk.app import CannotListen, open_engine, serve_engine
from stellwerk.app.config import AppConfig
from stellwerk.server.auth.gate import KEY_SECONDS_MAX
from stellwerk.system.logging import LogLevel
from stellwerk.worker import Worker, WorkerGaveUp

PASSWORD_LIKE = "sw_AAAAAAAAAAA_" + "B" * 43


# --- before and after the first key ----------------------------------------------------------------------------------


async def test_without_a_credential_everybody_on_this_machine_may_do_everything(serve: Any, log: Any) -> None:
    async with serve() as client:
        assert (await client.ask("GET", "/process-instances")).status == 200
        assert (await client.ask("GET", "/keys", credential="whatever")).status == 200
    assert "only this machine, without a credential" in log.read()


async def test_the_first_key_closes_the_engine_at_once(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        refused = await client.ask("GET", "/process-instances")
        assert (refused.status, refused.body["code"]) == (401, "unauthenticated")
        assert refused.headers["www-authenticate"] == 'Bearer realm="stellwerk"'
        assert refused.headers["content-type"] == "application/problem+json"
        assert (await client.ask("GET", "/process-instances", credential=admin)).status == 200
        assert (await client.ask("POST", "/keys", {"name": "x", "scopes": ["admin"]})).status == 401


async def test_an_address_that_others_can_reach_needs_a_credential(tmp_path: Path, make_issuer: Any) -> None:
    config = AppConfig(db=tmp_path / "x.db", host="0.0.0.0", port=0, log_level=LogLevel.ERROR)
    with pytest.raises(CannotListen, match=r"stellwerk keys create --db .*--jwt-issuer"):
        async with serve_engine(config):
            pytest.fail("it listens")


async def test_an_address_that_others_can_reach_is_served_with_keys_or_tokens(
    serve: Any, make_issuer: Any, tmp_path: Path
) -> None:
    async with serve(db=tmp_path / "x.db") as client:
        key = await client.make_key()
    async with serve(db=tmp_path / "x.db", host="0.0.0.0") as client:
        assert (await client.ask("GET", "/keys", credential=key)).status == 200
        assert (await client.ask("DELETE", f"/keys/{key.split('_')[1]}?force=true", credential=key)).status == 200
        assert (await client.ask("GET", "/keys")).status == 401, "it does not open with the last key"
    issuer = make_issuer(_now())
    async with serve(host="0.0.0.0", jwt=issuer.config()) as client:
        assert (await client.ask("GET", "/process-instances")).status == 401
        assert (await client.ask("GET", "/process-instances", credential=issuer.token())).status == 200


def _now() -> int:
    import time

    return int(time.time())


async def test_health_is_told_while_the_store_is_away(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as client:

        async def hangs(*_: object) -> Any:
            await trio.sleep_forever()

        for name in ("has_api_keys", "api_keys", "api_key"):
            monkeypatch.setattr(client.engine.node.ports.store, name, hangs)
        await trio.sleep(2.5)
        assert (await client.ask("GET", "//livez")).status == 200
        assert (await client.ask("GET", "/statistics")).status == 200


# --- what a key may do -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        "Authorization: Bearer {0}\r\n",
        "Authorization: {0}\r\n",
        "Authorization: Basic {1}\r\n",
        "X-API-Key: {0}\r\n",
        "Authorization: Bearer ZHVtbXlfdG9rZW4=\r\nX-API-Key: {0}\r\n",
    ],
)
async def test_a_credential_in_every_form_that_clients_know(serve: Any, headers: str) -> None:
    async with serve() as client:
        key = await client.make_key()
        line = headers.format(key, base64.b64encode(f"user:{key}".encode()).decode())
        assert (await client.ask("GET", "/keys", headers=line)).status == 200


@pytest.mark.parametrize(
    "scopes, allowed",
    [
        (["worker"], {"poll"}),
        (["client"], {"read", "start"}),
        (["operator"], {"read", "start", "prune"}),
        (["admin"], {"read", "start", "prune", "keys", "poll"}),
    ],
)
async def test_scopes(serve: Any, scopes: list[str], allowed: set[str]) -> None:
    requests: dict[str, tuple[str, str, object]] = {
        "read": ("GET", "/process-instances", None),
        "start": ("POST", "/process-instances", {"process_def_id": "order"}),
        "prune": ("POST", "/prune", {"older_than_ms": 60_000}),
        "keys": ("GET", "/keys", None),
        "poll": ("POST", "/external-tasks/fetch-and-lock", {"worker_id": "w", "task_types": ["payment"]}),
    }
    async with serve() as client:
        admin = await client.make_key()
        key = await client.make_key(by=admin, scopes=scopes)
        got = {name: await client.ask(*request, credential=key) for name, request in requests.items()}
    assert {name for name, reply in got.items() if reply.status in (200, 201)} == allowed
    refused = [reply for name, reply in got.items() if name not in allowed]
    assert {(reply.status, reply.body["code"]) for reply in refused} <= {(403, "forbidden")}


async def test_health_needs_no_credential_and_figures_do(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        assert (await client.ask("GET", "//livez")).status == 200
        assert (await client.ask("GET", "//readyz")).status == 200
        assert (await client.ask("GET", "//metrics")).status == 401
        assert (await client.ask("GET", "//metrics", credential=admin)).status == 200


async def test_I3_names_that_a_key_does_not_have_are_refused_over_http(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        restricted: dict[str, Any] = {"worker_ids": ["w-1"], "topics": ["payment"], "processes": ["order"]}
        key = await client.make_key(by=admin, scopes=["worker", "operator"], **restricted)
        poll: dict[str, Any] = {"worker_id": "w-1", "task_types": ["payment"]}
        for field, value, named in [("worker_id", "w-2", "w-2"), ("task_types", ["payment", "stock"], "stock")]:
            reply = await client.ask("POST", "/external-tasks/fetch-and-lock", {**poll, field: value}, credential=key)
            assert (reply.status, named in reply.body["detail"]) == (403, True), reply
        assert (await client.ask("POST", "/external-tasks/fetch-and-lock", poll, credential=key)).status == 200


async def test_I3_what_belongs_to_other_processes_is_neither_seen_nor_changed(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        key = await client.make_key(by=admin, scopes=["operator"], processes=["order"])
        ids = {}
        requests: list[tuple[str, str, object]]
        for process in ("order", "secret"):
            started = await client.ask("POST", "/process-instances", {"process_def_id": process}, credential=admin)
            ids[process] = started.body["instance_id"]
        assert (
            await client.ask("POST", "/process-instances", {"process_def_id": "secret"}, credential=key)
        ).status == 403
        listed = await client.ask("GET", "/process-instances", credential=key)
        assert [row["instance_id"] for row in listed.body["instances"]] == [ids["order"]]
        definitions = await client.ask("GET", "/process-definitions", credential=key)
        assert [row["definition_id"] for row in definitions.body["definitions"]] == ["order:1"]
        tasks = await client.ask("GET", "/external-tasks", credential=key)
        assert [row["instance_id"] for row in tasks.body["tasks"]] == [ids["order"]]
        for query, seen in {"is_locked=false": [ids["order"]], "process=secret": [], "worker_id=w": []}.items():
            tasks = await client.ask("GET", f"/external-tasks?{query}", credential=key)
            assert [row["instance_id"] for row in tasks.body["tasks"]] == seen, query
        requests = [
            ("GET", "", None),
            ("GET", "/wait?timeout_ms=0", None),
            ("GET", "/history", None),
            ("GET", "/trace", None),
            ("GET", "/state", None),
            ("POST", "/cancel", {"reason": "because"}),
            ("POST", "/variables", {"variables": {"a": 1}}),
        ]
        for method, path, body in requests:
            foreign = await client.ask(method, f"/process-instances/{ids['secret']}{path}", body, credential=key)
            assert foreign.status in (403, 404), (path, foreign)
        requests = [
            ("GET", "/backup", None),
            ("POST", "/prune", {"older_than_ms": 1}),
            ("POST", "/incidents/retry", {"all": True}),
            ("POST", "/incidents/retry", {"process": "secret"}),
            ("POST", "/messages", {"name": "paid"}),
            ("GET", "/messages", None),
            ("GET", "/process-definitions/secret:1/xml", None),
            ("DELETE", "/process-definitions/secret:1", None),
        ]
        for method, path, body in requests:
            assert (await client.ask(method, path, body, credential=key)).status == 403, path
        own = await client.ask("GET", f"/process-instances/{ids['order']}", credential=key)
        assert own.status == 200


# --- keys ------------------------------------------------------------------------------------------------------------


async def test_keys_are_shown_once_and_listed_without_their_secrets(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key(name="ops")
        wanted = {"name": "billing", "scopes": ["worker"], "topics": ["payment"], "expires_in_ms": 60_000}
        made = await client.ask("POST", "/keys", wanted, credential=admin)
        assert made.headers["cache-control"] == "no-store"
        key, _ = made.body.pop("key"), made.body.pop("warning")
        listed = await client.ask("GET", "/keys", credential=admin)
        assert listed.body["keys"][1] == made.body
        assert [row["name"] for row in listed.body["keys"]] == ["ops", "billing"]
        assert key.split("_")[2] not in json.dumps(listed.body)
        assert (await client.ask("DELETE", "/keys/nonsense", credential=admin)).status == 404
        for _ in range(2):
            assert (await client.ask("DELETE", f"/keys/{made.body['key_id']}", credential=admin)).status == 200
        assert (await client.ask("GET", "/topics", credential=key)).status == 401


@pytest.mark.parametrize(
    "wrong, path",
    [
        ({"scopes": ["root"]}, "$.scopes[0]"),
        ({"scopes": []}, "$.scopes"),
        ({"name": ""}, "$.name"),
        ({"topics": []}, "$.topics"),
        ({"topics": [""]}, "$.topics[0]"),
        ({"topics": "payment"}, "$.topics"),
        ({"expires_in_ms": 0}, "$.expires_in_ms"),
        ({"topic": ["payment"]}, "$"),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(serve: Any, wrong: dict[str, object], path: str) -> None:
    async with serve() as client:
        reply = await client.ask("POST", "/keys", {"name": "x", "scopes": ["admin"], **wrong})
        assert (reply.status, reply.body["path"]) == (400, path)
        assert (await client.ask("GET", "/keys")).status == 200, "the engine is still open"


# --- what is told ----------------------------------------------------------------------------------------------------


async def test_refusals_and_what_operators_do_stand_in_the_log_and_no_secret_does(
    serve: Any, log: Any, make_issuer: Any
) -> None:
    issuer = make_issuer(_now())
    secrets = [PASSWORD_LIKE.split("_")[2]]
    async with serve(jwt=issuer.config()) as client:
        token = issuer.token(scope="admin")
        admin = await client.make_key(by=token, name="ops")
        worker = await client.make_key(by=admin, name="billing", scopes=["worker"])
        secrets += [token, admin.split("_")[2], worker.split("_")[2]]
        await client.ask("POST", "/prune", {"older_than_ms": 60_000}, credential=worker)
        await client.ask("POST", "/prune", {"older_than_ms": 60_000}, credential=admin)
        await client.ask("GET", "/keys", credential=PASSWORD_LIKE)
        await client.ask("GET", "/keys", credential=token[:-10])
        await client.ask("GET", f"/process-instances/{admin}", credential=admin)
        await client.ask("DELETE", f"/keys/{admin}", credential=admin)
        async with worker_session(client, credential=PASSWORD_LIKE) as session:
            assert (await session.next("error"))["code"] == "unauthenticated"
    text = log.read()
    assert [secret for secret in secrets if secret in text] == []
    told = [(line["outcome"], line["who"], line["action"], line.get("code")) for line in log.audit()]
    assert told == [
        ("done", "alice", "POST /api/v1/keys", None),
        ("done", "ops", "POST /api/v1/keys", None),
        ("refused", "billing", "POST /api/v1/prune", "forbidden"),
        ("done", "ops", "POST /api/v1/prune", None),
        ("refused", None, "GET /api/v1/keys", "unauthenticated"),
        ("refused", None, "GET /api/v1/keys", "unauthenticated"),
        ("failed", "ops", "DELETE /api/v1/keys/{key_id}", None),
        ("refused", None, "worker session", "unauthenticated"),
    ]
    assert log.audit()[1]["target"].endswith("name=billing scopes=worker")
    assert log.audit()[2]["peer"].startswith("127.0.0.1:")


async def test_who_is_refused_again_and_again_does_not_fill_the_log(serve: Any, log: Any) -> None:
    async with serve() as client:
        await client.make_key()
        for _ in range(130):
            await client.ask("GET", "/keys")
    assert len(log.audit()) == 101


# --- workers ---------------------------------------------------------------------------------------------------------


class Session:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._waiting: list[dict[str, Any]] = []

    async def say(self, **message: object) -> None:
        await self._connection.send(json.dumps(message))

    async def next(self, kind: str) -> dict[str, Any]:
        with trio.fail_after(10):
            while True:
                for message in self._waiting:
                    if message["type"] == kind:
                        self._waiting.remove(message)
                        return message
                frame = json.loads(await self._connection.recv())
                self._waiting += frame if isinstance(frame, list) else [frame]


@asynccontextmanager
async def worker_session(
    client: Any, *, credential: str | None = None, header: str | None = None, worker_id: str = "w-1"
) -> AsyncIterator[Session]:
    url = client.engine.url.replace("http", "ws") + "/workers"
    headers = {} if header is None else {"Authorization": f"Bearer {header}"}
    async with connect(url, subprotocols=[Subprotocol("stellwerk.v1")], additional_headers=headers) as connection:
        session = Session(connection)
        token = {} if credential is None else {"token": credential}
        await session.say(type="hello", worker_id=worker_id, boot_id="b", session_no=1, client="test/1", **token)
        yield session


async def test_a_worker_says_its_credential_in_hello_or_in_the_upgrade_request(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        key = await client.make_key(by=admin, scopes=["worker"], worker_ids=["w-1"], topics=["payment"])
        async with worker_session(client, credential=key) as session:
            assert await session.next("welcome")
        async with worker_session(client, header=key) as session:
            await session.next("welcome")
            await session.say(type="subscribe", topic="stock", max_tasks=1)
            error = await session.next("error")
            assert (error["code"], '"stock"' in error["message"]) == ("forbidden", True)
        async with worker_session(client) as session:
            assert (await session.next("error"))["code"] == "unauthenticated"
        async with worker_session(client, credential=key, worker_id="w-2") as session:
            assert (await session.next("error"))["code"] == "forbidden"


async def test_fault_145_the_sdk_brings_fresh_tokens_on_the_same_connection(
    serve: Any, make_issuer: Any, nursery: trio.Nursery
) -> None:
    """Tokens of three seconds: it works on through two of them, without connecting again."""
    issuer = make_issuer(_now())
    done: list[str] = []
    given: list[str] = []

    def token() -> str:
        given.append(issuer.token(exp=_now() + 4, scope="worker", stellwerk={"topics": ["payment"]}))
        return given[-1]

    async with serve(jwt=issuer.config()) as client:
        worker = Worker(client.engine.url, token=token)

        @worker.task("payment")
        async def pay(payload: object, task: object) -> None:
            done.append("paid")

        await nursery.start(worker.serve)
        with trio.fail_after(20):
            while len(given) < 3:
                await trio.sleep(0.05)
        await client.engine.node.start_instance("order", {})
        with trio.fail_after(10):
            while not done:
                await trio.sleep(0.02)
        (seen,) = await client.engine.node.workers()
        worker.stop()
    assert seen.worker_id == worker.worker_id
    assert worker.health().consecutive_critical_errors == 0


async def test_fault_145_a_poll_that_waits_gets_no_task_after_its_key_was_revoked(
    serve: Any, nursery: trio.Nursery
) -> None:
    async with serve() as client:
        admin = await client.make_key()
        key = await client.make_key(by=admin, scopes=["worker"])
        replies: list[Any] = []

        async def poll() -> None:
            body = {"worker_id": "w", "task_types": ["payment"], "wait_ms": 9000}
            replies.append(await client.ask("POST", "/external-tasks/fetch-and-lock", body, credential=key))

        nursery.start_soon(poll)
        await trio.sleep(2.2)
        assert (await client.ask("DELETE", f"/keys/{key.split('_')[1]}", credential=admin)).status == 200
        started = await client.ask("POST", "/process-instances", {"process_def_id": "order"}, credential=admin)
        with trio.fail_after(8):
            while not replies:
                await trio.sleep(0.05)
            path = f"/process-instances/{started.body['instance_id']}"
            while (await client.ask("GET", path, credential=admin)).body["tasks"][0]["state"] != "READY":
                await trio.sleep(0.05)
        assert (replies[0].status, replies[0].body["detail"]) == (401, "the API key was revoked")


# --- pages of other sites --------------------------------------------------------------------------------------------


async def test_pages_of_other_sites_may_use_it_where_their_origin_is_named(serve: Any) -> None:
    ask = "Origin: https://shop.example\r\nAccess-Control-Request-Method: POST\r\n"
    async with serve(origins=("https://shop.example",)) as client:
        allowed = await client.ask("OPTIONS", "/process-instances", headers=ask)
        assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
        other = await client.ask("OPTIONS", "/process-instances", headers=ask.replace("shop", "evil"))
        assert "access-control-allow-origin" not in other.headers
        body = {"process_def_id": "order"}
        started = await client.ask("POST", "/process-instances", body, headers="Origin: https://shop.example\r\n")
        assert started.status == 201
        refused = await client.ask("POST", "/process-instances", body, headers="Origin: https://evil.example\r\n")
        assert refused.status == 403
    async with serve() as client:
        off = await client.ask("OPTIONS", "/process-instances", headers=ask)
        assert (off.status, "access-control-allow-origin" in off.headers) == (405, False)


# --- within the engine's own process ---------------------------------------------------------------------------------


async def test_workers_within_the_process_need_no_credential(serve: Any, tmp_path: Path) -> None:
    done = trio.Event()
    async with serve(db=tmp_path / "x.db") as client:
        await client.make_key()
    async with open_engine(tmp_path / "x.db", port=0) as engine:
        worker = engine.worker()

        @worker.task("payment")
        async def pay(payload: object, task: object) -> None:
            done.set()

        await engine.start_worker(worker)
        await engine.start("order")
        with trio.fail_after(10):
            await done.wait()
        stranger = Worker(engine.url)
        stranger.task("stock")(pay)
        with pytest.raises(WorkerGaveUp, match="a credential is needed"):
            await stranger.serve()


async def test_I3_over_websocket_nobody_acts_on_leases_that_are_not_its_own(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        names: dict[str, Any] = {"topics": ["payment"], "processes": ["order"]}
        bound = await client.make_key(by=admin, scopes=["worker"], worker_ids=["w-1"], **names)
        for process in ("order", "secret"):
            await client.ask("POST", "/process-instances", {"process_def_id": process}, credential=admin)
        polls = [("victim", "payment", "lease_lost"), ("w-1", "stock", "forbidden")]
        async with worker_session(client, credential=bound) as session:
            await session.next("welcome")
            for ref, (worker_id, topic, code) in enumerate(polls):
                poll = {"worker_id": worker_id, "task_types": [topic]}
                fetched = await client.ask("POST", "/external-tasks/fetch-and-lock", poll, credential=admin)
                lease = {"task_id": fetched.body[0]["task_id"], "fence": fetched.body[0]["fence"]}
                requests: list[dict[str, Any]] = [
                    {"type": "extend", "lock_duration_ms": 60_000},
                    {"type": "release", "started": False},
                    {"type": "complete", "variables": {"stolen": True}},
                    {"type": "fail", "message": "no"},
                    {"type": "bpmn_error", "code": "E"},
                ]
                for number, request in enumerate(requests):
                    await session.say(ref=10 * ref + number, **request, **lease)
                    nack = await session.next("nack")
                    assert (nack["ref"], nack["code"]) == (10 * ref + number, code), request
                done = {"worker_id": worker_id, "fence": lease["fence"]}
                path = f"/external-tasks/{lease['task_id']}/complete"
                assert (await client.ask("POST", path, done, credential=admin)).status == 200


async def test_who_is_bound_to_some_names_makes_no_keys_that_are_not(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        for names in ({"processes": ["order"]}, {"topics": ["payment"]}, {"worker_ids": ["w"]}):
            bound = await client.make_key(by=admin, scopes=["admin"], **names)
            made = await client.ask("POST", "/keys", {"name": "free", "scopes": ["admin"]}, credential=bound)
            revoked = await client.ask("DELETE", f"/keys/{admin.split('_')[1]}", credential=bound)
            assert (made.status, revoked.status) == (403, 403)
        assert (await client.ask("GET", "/keys", credential=admin)).status == 200


async def test_a_start_whose_key_is_revoked_while_its_body_comes_is_not_done(serve: Any) -> None:
    async with serve() as client:
        admin = await client.make_key()
        key = await client.make_key(by=admin, scopes=["client"])
        body = b'{"process_def_id": "order"}'
        head = f"POST /api/v1/process-instances HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {key}\r\n"
        stream = await trio.open_tcp_stream("127.0.0.1", int(client.engine.url.rpartition(":")[2]))
        async with stream:
            await stream.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
            assert (await client.ask("DELETE", f"/keys/{key.split('_')[1]}", credential=admin)).status == 200
            await trio.sleep(KEY_SECONDS_MAX + 0.1)  # a request that comes at once is not looked at again
            await stream.send_all(body[5:])
            with trio.fail_after(10):
                assert bytes(await stream.receive_some(65536)).startswith(b"HTTP/1.1 401 ")
        assert (await client.ask("GET", "/process-instances", credential=admin)).body["instances"] == []


async def test_what_was_done_is_told_although_the_credential_ended_meanwhile(serve: Any, nursery: trio.Nursery) -> None:
    async with serve() as client:
        admin = await client.make_key()
        key = await client.make_key(by=admin, scopes=["client"])

        async def revoke() -> None:
            await trio.sleep(0.2)
            await client.ask("DELETE", f"/keys/{key.split('_')[1]}", credential=admin)

        nursery.start_soon(revoke)
        wait_ms = int(KEY_SECONDS_MAX * 1000) + 500
        started = await client.ask(
            "POST", "/process-instances", {"process_def_id": "order", "wait_ms": wait_ms}, credential=key
        )
        assert started.status == 201
        rows = (await client.ask("GET", "/process-instances", credential=admin)).body["instances"]
        assert [row["instance_id"] for row in rows] == [started.body["instance_id"]]
