"""The HTTP API: one small function for each endpoint (docs/http-api)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from stellwerk.actors.definitions import DeployRefused
from stellwerk.actors.node import Node
from stellwerk.actors.views import InstanceView
from stellwerk.errors import InvalidInput, LimitExceeded, StellwerkError
from stellwerk.json_values import loads
from stellwerk.model.process import FailurePolicy
from stellwerk.ports import Entropy, Log
from stellwerk.server.http import requests, views
from stellwerk.server.http.answers import (
    answer,
    answer_error,
    answer_http_exception,
    answer_text,
    encoded,
    status_of,
)
from stellwerk.server.http.connection import Draining
from stellwerk.wire.messages import SUBPROTOCOL, WORKERS_PATH

__all__ = ["Api", "is_foreign"]

T = TypeVar("T")
Page = TypeVar("Page", bound=requests.PageQuery)
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_ENVELOPE_BYTES_MAX = 64 * 1024
"""What a request may hold beside its variables."""
_ESCAPED_PER_BYTE_MAX = 3
"""Many clients write characters beyond ASCII as escapes: é, two bytes, takes six. The limit is not about that."""
_DEPLOYMENT_FILES_WORTH = 4
"""A deployment may be as long as so many of the largest files."""
_PAGE_ROWS_MAX = 1000
_QUICK_ROWS_MAX = 200
"""An instance of so many steps and tasks is encoded within a few milliseconds. A larger one must not hold up others."""
_WAIT_MS_MAX = 600_000
_KEY_CHARS_MAX = 255
"""Business keys, correlation keys, names and ids that the caller gives; as long as Camunda has them."""
_DECLARED_ENCODING = re.compile(r"""^\ufeff?<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")


class Api:
    def __init__(self, node: Node, *, entropy: Entropy, log: Log, draining: Draining) -> None:
        self._node = node
        self._entropy = entropy
        self.log = log
        self._draining = draining

    def application(self) -> Starlette:
        application = Starlette(
            routes=[
                Route("/livez", self._guarded(self.livez)),
                Route("/readyz", self._guarded(self.readyz)),
                Route(WORKERS_PATH, self._guarded(self.workers)),
                *self._api_routes(),
            ],
            exception_handlers={HTTPException: answer_http_exception},
        )
        # A redirect would be to whatever the Host header says.
        application.router.redirect_slashes = False
        return application

    def _api_routes(self) -> list[Route]:
        table: list[tuple[str, str, Endpoint]] = [
            ("POST", "/definitions", self.deploy),
            ("GET", "/definitions", self.definitions),
            ("POST", "/instances", self.start),
            ("GET", "/instances", self.instances),
            ("GET", "/instances/{instance_id}", self.instance),
            ("GET", "/instances/{instance_id}/wait", self.wait),
            ("POST", "/instances/{instance_id}/cancel", self.cancel),
            ("POST", "/instances/{instance_id}/variables", self.set_variables),
            ("POST", "/messages", self.publish),
            ("GET", "/user-tasks", self.user_tasks),
            ("POST", "/user-tasks/{user_task_id}/complete", self.complete_user_task),
            ("GET", "/incidents", self.incidents),
            ("POST", "/incidents/{incident_id}/resolve", self.resolve),
            ("GET", "/statistics", self.statistics),
        ]
        paths = dict.fromkeys(path for _, path, _ in table)
        return [
            Route(
                "/api/v1" + path,
                _by_method({method: self._guarded(run) for method, other, run in table if other == path}),
                methods=[method for method, other, _ in table if other == path],
            )
            for path in paths
        ]

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """Every error becomes an answer; what is our mistake is logged, and told by a reference only."""

        async def run(request: Request) -> Response:
            try:
                if request.method != "GET" and is_foreign(request.headers.get("origin"), request.headers.get("host")):
                    return answer({"code": "forbidden", "message": "another site's page may not do this"}, 403)
                return await endpoint(request)
            except DeployRefused as error:
                findings = [views.finding_view(file, finding) for file, finding in error.findings]
                return answer_error(error, 400, findings=findings)
            except StellwerkError as error:
                status = status_of(error)
                if status is not None:
                    return answer_error(error, status)
                reference = self._entropy.uuid()
                self.log.exception("request_failed", reference=reference, path=request.scope["path"])
            except (ClientDisconnect, HTTPException):
                raise
            except Exception:
                reference = self._entropy.uuid()
                self.log.exception("request_failed", reference=reference, path=request.scope["path"])
            return answer({"code": "internal", "message": f"an internal error; the log has it under {reference}"}, 500)

        return run

    # --- health

    async def livez(self, _request: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(self, _request: Request) -> Response:
        if self._draining.begun:
            return PlainTextResponse("draining", 503)
        return PlainTextResponse("ok")

    async def workers(self, _request: Request) -> Response:
        message = f"this path takes WebSocket connections with subprotocol {SUBPROTOCOL}"
        return answer({"code": "invalid", "message": message}, 400)

    # --- definitions

    async def deploy(self, request: Request) -> Response:
        bytes_max = _DEPLOYMENT_FILES_WORTH * self._node.limits.definition_bytes_max
        body = await _body(request, requests.DeployRequest, bytes_max)
        deployment = await self._node.deploy(
            [(file.name, _file_bytes(file, index)) for index, file in enumerate(body.files)],
            failure_policy=None if body.failure_policy is None else FailurePolicy(body.failure_policy),
            adopt_java=body.adopt_java,
        )
        return answer(
            {
                "definitions": [views.definition_view(row) for row in deployment.definitions],
                "unchanged": list(deployment.unchanged),
                "warnings": [views.finding_view(file, finding) for file, finding in deployment.warnings],
            },
            201,
        )

    async def definitions(self, request: Request) -> Response:
        _query(request, requests.NoQuery)
        return answer({"definitions": [views.definition_view(row) for row in await self._node.definitions()]})

    # --- instances

    async def start(self, request: Request) -> Response:
        body = await self._payload(request, requests.StartRequest)
        _check_lengths(business_key=body.business_key, request_id=body.request_id)
        instance_id = await self._node.start_instance(
            body.process,
            body.variables,
            business_key=body.business_key,
            request_id=body.request_id,
            start_event_id=body.start_event_id,
            version=body.version,
        )
        location = f"/api/v1/instances/{instance_id}"
        return answer({"instance_id": instance_id}, 201, {"location": location})

    async def instances(self, request: Request) -> Response:
        query = _page_query(request, requests.InstancesQuery)
        found = await self._node.instances(
            status=query.status, process_key=query.process, limit=query.limit + 1, after=query.after
        )
        return _answer_page("instances", found, query.limit, views.summary_view)

    async def instance(self, request: Request) -> Response:
        query = _query(request, requests.InstanceQuery)
        view = await self._node.view(request.path_params["instance_id"], with_history=query.history)
        if len(view.steps or ()) + len(view.tasks) <= _QUICK_ROWS_MAX:
            return answer_text(_whole_text(view))
        return answer_text(await self._node.ports.background.run_sync(partial(_whole_text, view)))

    async def wait(self, request: Request) -> Response:
        query = _query(request, requests.WaitQuery)
        if query.timeout_ms > _WAIT_MS_MAX:
            raise InvalidInput(f"at most {_WAIT_MS_MAX} @ query.timeout_ms")
        instance_id = request.path_params["instance_id"]
        summary = await self._unless_gone(
            request,
            lambda: self._node.wait_for_end(
                instance_id, timeout_seconds=query.timeout_ms / 1000, or_incident=query.or_incident
            ),
        )
        if summary is None:
            # Nobody is there any more, or somebody who only closed the sending side, or we drain.
            summary = await self._node.wait_for_end(instance_id, timeout_seconds=0)
        return answer(views.summary_view(summary))

    async def cancel(self, request: Request) -> Response:
        body = await self._payload(request, requests.CancelRequest)
        await self._node.cancel_instance(request.path_params["instance_id"], body.reason)
        return answer({})

    async def set_variables(self, request: Request) -> Response:
        body = await self._payload(request, requests.SetVariablesRequest)
        await self._node.set_variables(request.path_params["instance_id"], body.variables)
        return answer({})

    # --- messages, people, incidents

    async def publish(self, request: Request) -> Response:
        body = await self._payload(request, requests.MessageRequest)
        _check_lengths(name=body.name, key=body.key, message_id=body.message_id)
        message_id = await self._node.publish_message(
            body.name, body.key, body.variables, ttl_ms=body.ttl_ms, message_id=body.message_id
        )
        return answer({"message_id": message_id}, 201)

    async def user_tasks(self, request: Request) -> Response:
        query = _page_query(request, requests.OpenRowsQuery)
        found = await self._node.user_tasks(query.instance_id, limit=query.limit + 1, after=query.after)
        return _answer_page("user_tasks", found, query.limit, views.mapping_view)

    async def complete_user_task(self, request: Request) -> Response:
        body = await self._payload(request, requests.CompleteUserTaskRequest)
        await self._node.complete_user_task(request.path_params["user_task_id"], body.variables)
        return answer({})

    async def incidents(self, request: Request) -> Response:
        query = _page_query(request, requests.OpenRowsQuery)
        found = await self._node.incidents(query.instance_id, limit=query.limit + 1, after=query.after)
        return _answer_page("incidents", found, query.limit, views.mapping_view)

    async def resolve(self, request: Request) -> Response:
        body = await self._payload(request, requests.ResolveRequest)
        if body.retries < 1:
            raise InvalidInput("at least 1 @ $.retries")
        await self._node.resolve_incident(request.path_params["incident_id"], body.retries)
        return answer({})

    async def statistics(self, request: Request) -> Response:
        _query(request, requests.NoQuery)
        return answer(self._node.statistics())

    async def _payload(self, request: Request, kind: type[T]) -> T:
        escaped_bytes_max = _ESCAPED_PER_BYTE_MAX * self._node.limits.payload_bytes_max
        return await _body(request, kind, escaped_bytes_max + _ENVELOPE_BYTES_MAX)

    async def _unless_gone(self, request: Request, function: Callable[[], Awaitable[T]]) -> T | None:
        """None as soon as the client has left or the server drains."""
        results: list[T] = []
        errors: list[StellwerkError] = []

        async def watch_client() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        async def watch_drain() -> None:
            await self._draining.wait_begun()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_client)
            nursery.start_soon(watch_drain)
            try:
                results.append(await function())
            except StellwerkError as error:
                errors.append(error)
            nursery.cancel_scope.cancel()
        if errors:
            raise errors[0]
        return results[0] if results else None


def is_foreign(origin: str | None, host: str | None) -> bool:
    """Whether a browser says that a page of another site sends this request. Programs send no origin."""
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != host
    except ValueError:
        return True


def _by_method(endpoints: dict[str, Endpoint]) -> Endpoint:
    async def run(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await endpoints[method](request)

    return run


def _query(request: Request, kind: type[T]) -> T:
    return requests.structure_query(request.query_params, kind)


def _page_query(request: Request, kind: type[Page]) -> Page:
    query = _query(request, kind)
    if not 1 <= query.limit <= _PAGE_ROWS_MAX:
        raise InvalidInput(f"limit is from 1 to {_PAGE_ROWS_MAX} @ query.limit")
    return query


def _answer_page(name: str, found: Sequence[T], limit: int, view: Callable[[T], object]) -> Response:
    """:param found: one row beyond the limit, if there are more."""
    return answer({name: [view(row) for row in found[:limit]], "more": len(found) > limit})


async def _body(request: Request, kind: type[T], bytes_max: int) -> T:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise LimitExceeded(f"{declared} bytes, at most {bytes_max} are allowed")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > bytes_max:
            raise LimitExceeded(f"more than {bytes_max} bytes")
    return requests.structure_body(loads(bytes(body)) if body else {}, kind)


def _check_lengths(**texts: str | None) -> None:
    for name, text in texts.items():
        if text is not None and len(text) > _KEY_CHARS_MAX:
            raise LimitExceeded(f"{len(text)} characters, at most {_KEY_CHARS_MAX} are allowed @ $.{name}")


def _file_bytes(file: requests.DeployFile, index: int) -> bytes:
    where = f"$.files[{index}]"
    if (file.xml is None) == (file.xml_base64 is None):
        raise InvalidInput(f"either xml or xml_base64 @ {where}")
    if file.xml is not None:
        return _encoded_as_declared(file.xml, where)
    assert file.xml_base64 is not None
    try:
        return base64.b64decode(file.xml_base64, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"not base64 @ {where}.xml_base64") from None


def _encoded_as_declared(text: str, where: str) -> bytes:
    """The reader obeys the encoding that the XML declares, so the text must be in it."""
    declared = _DECLARED_ENCODING.match(text)
    encoding = "utf-8" if declared is None else declared[1]
    try:
        return text.encode(encoding)
    except (LookupError, UnicodeError):
        raise InvalidInput(f"the text cannot be encoded as the {encoding} that it declares @ {where}.xml") from None


def _whole_text(view: InstanceView) -> bytes:
    # Piece by piece: one long call of the encoder would stop all threads as long as it takes.
    whole: dict[str, object] = {
        **views.summary_view(view.summary),
        "reason": view.reason,
        "tokens": [views.token_view(token) for token in view.tokens],
        "variables": view.variables,
        "tasks": [_piece(views.task_view(task, attempts)) for task, attempts in view.tasks],
        "incidents": [views.mapping_view(row) for row in view.incidents],
        "user_tasks": [views.mapping_view(row) for row in view.user_tasks],
    }
    if view.steps is not None:
        whole["history"] = [_piece(views.step_view(step)) for step in view.steps]
    return encoded(whole)


def _piece(value: object) -> msgspec.Raw:
    return msgspec.Raw(encoded(value))
