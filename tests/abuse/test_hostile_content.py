"""Requests and frames whose content is hostile: each gets a clear answer, and others are served meanwhile.

What is refused is generated from the classes that say what there is: no field of the native API, and none of the push
protocol, can be forgotten. (Camunda's API has the like in tests/server/camunda/test_hostile_requests.py.)
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import attrs
import msgspec
import pytest
import trio
from starlette.routing import Route

from stellwerk.app import MEMORY, AppConfig, serve_engine
from stellwerk.server.http import requests
from stellwerk.server.http.api import Api
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.endpoints.keys import NewKey
from stellwerk.system.entropy import SystemEntropy
from stellwerk.system.logging import LogLevel
from stellwerk.wire import messages as wire
from stellwerk.wire.codec import class_type_name

NUL = "a\0b"

# --- NUL in every field of a body ------------------------------------------------------------------------------------

BODIES: dict[type, str] = {
    requests.DeployRequest: "/process-definitions",
    requests.StartRequest: "/process-instances",
    requests.CancelRequest: "/process-instances/nobody/cancel",
    requests.MessageRequest: "/messages",
    requests.CorrelateRequest: "/messages/correlate",
    requests.ClaimRequest: "/user-tasks/nobody/claim",
    requests.EmptyRequest: "/user-tasks/nobody/unclaim",
    requests.CompleteUserTaskRequest: "/user-tasks/nobody/complete",
    requests.SetVariablesRequest: "/process-instances/nobody/variables",
    requests.ResolveRequest: "/incidents/nobody/resolve",
    requests.RetryRequest: "/incidents/retry",
    requests.PruneRequest: "/prune",
    requests.FetchAndLockRequest: "/external-tasks/fetch-and-lock",
    requests.CompleteTaskRequest: "/external-tasks/nobody/complete",
    requests.FailTaskRequest: "/external-tasks/nobody/fail",
    requests.BpmnErrorRequest: "/external-tasks/nobody/bpmn-error",
    requests.ExtendLockRequest: "/external-tasks/nobody/extend-lock",
    requests.UnlockRequest: "/external-tasks/nobody/unlock",
    requests.TaskRetriesRequest: "/external-tasks/nobody/retries",
    requests.TaskPriorityRequest: "/external-tasks/nobody/priority",
    NewKey: "/keys",
}
"""Where a body of each class goes."""


def test_every_class_of_bodies_is_abused_here() -> None:
    classes = {getattr(requests, name) for name in requests.__all__ if name.endswith("Request")}
    assert classes | {NewKey} == BODIES.keys()


def whole(kind: Any) -> Any:
    """A value of a type that fits, as far as types say."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return whole(next(each for each in arguments if each is not type(None)))
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return [whole(arguments[0])]
    if attrs.has(kind):
        return {field.name: whole(hint) for field, hint in hinted(kind)}
    if kind is msgspec.Raw or kind is object or origin is dict:
        return {"name": "text"}
    return {str: "text", bool: True, float: 1.5}.get(getattr(kind, "__supertype__", kind), 1)


def hinted(kind: type) -> list[tuple[Any, Any]]:
    hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in attrs.fields(kind)]


def with_nul(value: Any, where: str = "$") -> Iterator[tuple[str, Any]]:
    """`value` with a NUL in one of its texts or names, each in turn, and where that is."""
    match value:
        case str():
            yield where, NUL
        case list():
            for index, item in enumerate(value):
                for place, changed in with_nul(item, f"{where}[{index}]"):
                    yield place, [*value[:index], changed, *value[index + 1 :]]
        case dict():
            for name, item in value.items():
                for place, changed in with_nul(item, f"{where}.{name}"):
                    yield place, {**value, name: changed}
        case _:
            pass


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
async def test_a_nul_in_any_field_of_a_body_is_refused_with_its_place(engine: Any, kind: type) -> None:
    body = whole(kind)
    hostile = [*with_nul(body), ("$", {**body, NUL: 1})]
    if kind is requests.StartRequest:
        hostile.append(("$.variables", {**body, "variables": {NUL: 1}}))
    async with engine.peer() as peer:
        for place, changed in hostile:
            reply = await peer.ask("POST", f"/api/v1{BODIES[kind]}", changed)
            assert (reply.status, reply.body["code"]) == (400, "invalid"), (place, reply)
            assert reply.body["detail"] == f"NUL character @ {place}"


def test_there_are_texts_in_most_bodies() -> None:
    """The generator finds them."""
    found = {kind.__name__: len(list(with_nul(whole(kind)))) for kind in BODIES}
    assert {name for name, number in found.items() if number == 0} == {
        "EmptyRequest",
        "PruneRequest",
        "ResolveRequest",
        "TaskPriorityRequest",
        "TaskRetriesRequest",
    }
    assert (found["NewKey"], found["FetchAndLockRequest"], found["DeployRequest"]) == (5, 4, 4)


# --- NUL in every field of a message ---------------------------------------------------------------------------------

MESSAGES = typing.get_args(wire.WorkerMessage)
HELLO = {"type": "hello", "worker_id": "w", "boot_id": "hostile", "session_no": 1, "client": "test"}


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
async def test_a_nul_in_any_field_of_a_message_is_refused(engine: Any, kind: type) -> None:
    """As `nack` of a request, or as the `error` that ends the session; what is for people only is cut out or kept."""
    message = whole(kind)
    for place, changed in with_nul(message):
        is_hello = kind is wire.Hello
        async with engine.worker(None if is_hello else HELLO) as session:
            await session.say({"type": class_type_name(kind), **changed}, {"type": "goodbye"})
            answer = await session.next("nack", "error")
        assert answer["code"] == "invalid", (place, answer)
        assert "NUL character" in answer["message"], (place, answer)


# --- every endpoint --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def routes() -> list[tuple[str, str]]:
    """Method and path of every endpoint of every API."""

    async def read() -> list[tuple[str, str]]:
        async with serve_engine(AppConfig(db=MEMORY, port=None, log_level=LogLevel.ERROR)) as served:
            log = served.node.ports.log
            application = Api(served.node, entropy=SystemEntropy(), log=log, draining=Draining()).application()
        found = [route for route in application.routes if isinstance(route, Route)]
        return [(method, route.path) for route in found for method in sorted(route.methods or ()) if method != "HEAD"]

    return trio.run(read)


GARBAGE: tuple[bytes, ...] = (
    b"",
    b"{",
    b"\xff\xfe{}",
    b'{"a": "\xff"}',
    b'"\\ud800"',
    b"[" * 60_000,
    b'{"a":' * 12_000,
    b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}",
    b"[]",
    b"null",
    b"NaN",
    b'{"\\u0000": 1}',
    b"1" * 5_000,
)
NAMES = ("%00", "%FF", "%ED%A0%80", "..%2F..%2Fetc", "x" * 5_000)


REFUSALS = (400, 404, 405, 413, 415, 501)
READING = ("engine-rest", "atlas_engine", "socket.io")
"""These APIs have questions that are asked by POST, and may leave out everything."""


async def test_garbage_is_refused_by_every_endpoint(engine: Any, other_works: Any, routes: Any) -> None:
    """Never a mistake of ours (500), and never something that was done."""
    assert len(routes) > 100
    changing = [(method, path) for method, path in routes if method != "GET"]
    async with engine.all_returns(), other_works(engine) as other, engine.asker() as ask:
        for method, path in changing:
            for body in GARBAGE:
                reply = await ask(method, filled(path, "nobody"), body)
                is_fine = reply.status < 300 and path.lstrip("/").startswith(READING)
                assert is_fine or reply.status in REFUSALS, (method, path, body[:20], reply)
        await other.served()


def filled(path: str, value: str) -> str:
    """With that in place of each of its parameters."""
    head, opened, rest = path.partition("{")
    return head if not opened else head + value + filled(rest.partition("}")[2], value)


async def test_hostile_names_in_paths_find_nothing(engine: Any, other_works: Any, routes: Any) -> None:
    named = [(method, path) for method, path in routes if "{" in path]
    async with engine.all_returns(), other_works(engine) as other, engine.asker() as ask:
        for method, path in named:
            for name in NAMES:
                reply = await ask(method, filled(path, name), b"{}" if method != "GET" else None)
                is_fine = method == "GET" and is_unknown(reply)
                assert is_fine or reply.status in REFUSALS, (method, path, name[:20], reply)
        await other.served()


def is_unknown(reply: Any) -> bool:
    """A message of which nothing is known may have been one; and foreign APIs answer some questions with nothing."""
    is_nothing = reply.body in (b"", [], {})
    return is_nothing or (reply.status == 200 and reply.body["status"] == "expired-or-unknown")
