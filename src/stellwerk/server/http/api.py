"""The HTTP API (docs/http-api): its endpoints in one application, and how errors become answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, compile_path

from stellwerk.actors.node import Node
from stellwerk.errors import Forbidden, InvariantBroken, StellwerkError, Unauthenticated
from stellwerk.ports import ANYBODY, Entropy, Identity, Log
from stellwerk.server.auth.audit import Audit
from stellwerk.server.auth.gate import KEY_SECONDS_MAX, NOBODY, Gate
from stellwerk.server.bpm_engine.dialect import bpm_engine
from stellwerk.server.camunda.dialect import camunda
from stellwerk.server.http.answers import answer_error, answer_http_exception, status_of
from stellwerk.server.http.bodies import HeldBody
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.context import (
    HELD_BODY,
    STILL_ALLOWED,
    ApiContext,
    Dialect,
    Endpoint,
    RunEndpoint,
    identity_of,
)
from stellwerk.server.http.endpoints.definitions import DefinitionEndpoints
from stellwerk.server.http.endpoints.documents import DocumentEndpoints
from stellwerk.server.http.endpoints.external_tasks import ExternalTaskEndpoints
from stellwerk.server.http.endpoints.histories import HistoryEndpoints
from stellwerk.server.http.endpoints.incidents import IncidentEndpoints
from stellwerk.server.http.endpoints.instances import InstanceEndpoints
from stellwerk.server.http.endpoints.keys import KeyEndpoints
from stellwerk.server.http.endpoints.operations import HealthEndpoints, OperationEndpoints
from stellwerk.server.http.endpoints.people import PeopleEndpoints
from stellwerk.server.http.endpoints.tasks import TaskEndpoints
from stellwerk.server.http.leases import give_back_polled, has_polled
from stellwerk.server.http.siblings import Siblings
from stellwerk.server.http.sites import is_foreign, is_public_name
from stellwerk.server.processcube.dialect import processcube

__all__ = ["Api", "documented_endpoints"]

_PREFIX = "/api/v1"


class _Area(Protocol):
    def __init__(self, context: ApiContext) -> None: ...

    @property
    def endpoints(self) -> Sequence[Endpoint]: ...


_AREAS: Sequence[type[_Area]] = (
    DefinitionEndpoints,
    InstanceEndpoints,
    HistoryEndpoints,
    ExternalTaskEndpoints,
    TaskEndpoints,
    PeopleEndpoints,
    IncidentEndpoints,
    OperationEndpoints,
)
_METHODS = ("GET", "POST", "PUT", "DELETE")
_HEADERS = ("authorization", "content-type", "idempotency-key", "x-api-key")
"""Those that pages of other origins may use, where their origin is allowed."""

_READING = ("GET", "HEAD")
_ANY_METHOD = (*_METHODS, "HEAD", "PATCH", "OPTIONS")


class Api:
    def __init__(
        self,
        node: Node,
        *,
        entropy: Entropy,
        log: Log,
        draining: Draining,
        siblings: Siblings | None = None,
        gate: Gate | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        """:param gate: None: nobody needs a credential.
        :param origins: of other sites whose pages may use it, as browsers say them (``https://shop.example``).
        """
        self._gate = gate
        self._origins = tuple(origins)
        self._clock = node.ports.clock
        self._audit = Audit(log, self._clock)
        self._context = ApiContext(node, draining, siblings)
        self._entropy = entropy
        self.log = log

    def application(self) -> Starlette:
        application = Starlette(
            routes=[route for dialect in self._dialects() for route in self._routes(dialect)],
            exception_handlers={HTTPException: answer_http_exception},
            middleware=self._middleware(),
        )
        # A redirect would be to whatever the Host header says.
        application.router.redirect_slashes = False
        return application

    def _middleware(self) -> Sequence[Middleware]:
        if not self._origins:
            return ()
        return (
            Middleware(
                CORSMiddleware, allow_origins=self._origins, allow_methods=_METHODS, allow_headers=_HEADERS, max_age=600
            ),
        )

    def _dialects(self) -> Iterable[Dialect]:
        health = HealthEndpoints(self._context).endpoints
        native = list(self._native_endpoints())
        documents = DocumentEndpoints(self._context, {_PREFIX: native, "": health})
        yield Dialect(prefix="", endpoints=health, answer_error=answer_error)
        yield Dialect(prefix=_PREFIX, endpoints=[*native, *documents.endpoints], answer_error=answer_error)
        yield from processcube(self._context)
        yield camunda(self._context)
        yield bpm_engine(self._context)

    def _native_endpoints(self) -> Iterable[Endpoint]:
        for area in _AREAS:
            yield from area(self._context).endpoints
        yield from KeyEndpoints(self._context, self._gate).endpoints

    def _routes(self, dialect: Dialect) -> list[Route]:
        by_path: dict[str, dict[str, RunEndpoint]] = {}
        for endpoint in dialect.endpoints:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = self._guarded(endpoint, dialect)
        words = _read_as_ids(by_path) if dialect.prefix == _PREFIX else ()
        return [
            Route(dialect.prefix + path, _by_method(methods), methods=_ANY_METHOD if path in words else list(methods))
            for path, methods in by_path.items()
        ]

    def _guarded(self, endpoint: Endpoint, dialect: Dialect) -> RunEndpoint:
        """Every error becomes an answer; what is our mistake is logged, and told by a reference only."""
        action = f"{endpoint.method} {dialect.prefix}{endpoint.path}"

        async def run_endpoint(request: Request) -> Response:
            began = self._clock.monotonic()
            try:
                response = await endpoint.run(request)
                if request.method in _READING or has_polled(request):
                    # What is durable is told all the same: nobody repeats what was done.
                    await self._check_still(request, self._clock.monotonic() - began)
                return response
            except BaseException:
                give_back_polled(request)
                raise

        async def run(request: Request) -> Response:
            try:
                self._check_site(request, endpoint)
                await self._admit(request, endpoint)
                response = await run_endpoint(request)
                self._tell_done(request, endpoint, action, response.status_code)
                return response
            except StellwerkError as error:
                self._tell_refused(request, endpoint, action, error)
                # No second name for the error: it knows this frame, which would keep it, and all that its frames hold
                # (a body of megabytes), until somebody looks for cycles.
                return dialect.answer_error(
                    error if status_of(error) != 500 else self._mistake_of_ours(request), request
                )
            except (ClientDisconnect, HTTPException):
                raise
            except Exception:  # noqa: BLE001 — it is logged
                return dialect.answer_error(self._mistake_of_ours(request), request)
            finally:
                held = request.scope.pop(HELD_BODY, None)
                if isinstance(held, HeldBody):
                    held.release()

        return run

    def _check_site(self, request: Request, endpoint: Endpoint) -> None:
        """:raises Forbidden: a page of another site sends what would change something, or asks anything by a name of
        its own where everybody may do everything."""
        origin, host = request.headers.get("origin"), request.headers.get("host")
        if self._gate is not None and self._gate.is_open and is_public_name(host):
            raise Forbidden(
                f"without a credential this engine is for this machine only, and {host} may be anybody's name: ask for "
                "localhost or 127.0.0.1, or make an API key (stellwerk keys create)"
            )
        if (
            (request.method != "GET" or endpoint.changes_something)
            and origin not in self._origins
            and is_foreign(origin, host)
        ):
            raise Forbidden("another site's page may not do this")

    async def _admit(self, request: Request, endpoint: Endpoint) -> None:
        """:raises Unauthenticated: the caller is not known; Forbidden: it may not do such things."""
        if self._gate is None:
            return
        if endpoint.scope is None:
            _identify(request, ANYBODY if self._gate.is_open else NOBODY)
            return
        is_trusted = request.scope.get("stellwerk.trusted") is True
        identity = ANYBODY if is_trusted else await self._gate.caller(request.scope["headers"])
        _identify(request, identity)
        began = self._clock.monotonic()

        async def check_again() -> None:
            await self._check_still(request, self._clock.monotonic() - began)

        request.scope[STILL_ALLOWED] = check_again
        if not identity.has(endpoint.scope):
            raise Forbidden(f"{identity.name} may not do this: it needs the scope {endpoint.scope}")

    async def _check_still(self, request: Request, seconds: float) -> None:
        """A request may wait for minutes, and its credential end meanwhile: what it found is not for the caller then.

        :raises Unauthenticated: it has ended.
        """
        if self._gate is None or seconds < KEY_SECONDS_MAX or request.scope.get("stellwerk.trusted") is True:
            return
        identity = request.scope.get("stellwerk.identity", NOBODY)
        if identity != NOBODY:
            await self._gate.check(identity)
            self._gate.check_end(identity)

    def _tell_refused(self, request: Request, endpoint: Endpoint, action: str, error: StellwerkError) -> None:
        if self._gate is None:
            return
        if isinstance(error, Unauthenticated | Forbidden):
            who, peer = request.scope.get("stellwerk.identity"), request.scope["client"]
            target = request.path_params
            self._audit.refused(error.code, error.message, who=who, action=action, target=target, peer=peer)
        else:
            self._tell_done(request, endpoint, action, status_of(error))

    def _tell_done(self, request: Request, endpoint: Endpoint, action: str, status: int) -> None:
        if self._gate is not None:
            who, peer = identity_of(request), request.scope["client"]
            target = {**request.path_params, **request.scope.get("stellwerk.target", {})}
            self._audit.done(endpoint.scope, status, who=who, action=action, target=target, peer=peer)

    def _mistake_of_ours(self, request: Request) -> InvariantBroken:
        """Logs what is being handled."""
        reference = self._entropy.uuid()
        self.log.exception("request_failed", reference=reference, path=request.scope["path"])
        return InvariantBroken(f"an internal error; the log has it under {reference}")


def documented_endpoints() -> Mapping[str, Sequence[Endpoint]]:
    """By prefix, without an engine behind them: what the document needs. Those of the documents are not in it."""
    # A table only names methods: it needs nothing of what `__init__` takes.
    areas = [area.__new__(area) for area in _AREAS]
    native = [endpoint for area in (*areas, KeyEndpoints.__new__(KeyEndpoints)) for endpoint in area.endpoints]
    return {_PREFIX: native, "": HealthEndpoints.__new__(HealthEndpoints).endpoints}


def _identify(request: Request, identity: Identity) -> None:
    request.scope["stellwerk.identity"] = identity


def _by_method(endpoints: Mapping[str, RunEndpoint]) -> RunEndpoint:
    async def run(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        if method not in endpoints:
            raise HTTPException(405, headers={"Allow": ", ".join(endpoints)})
        return await endpoints[method](request)

    return run


def _read_as_ids(paths: Iterable[str]) -> frozenset[str]:
    """Those that another one takes for an id of its own: asked with a method that only the other one has, there would
    be no thing with such an id."""
    patterns = {path: compile_path(path)[0] for path in paths}
    return frozenset(
        path
        for path in patterns
        for other, pattern in patterns.items()
        if path != other and "{" not in path and pattern.match(path)
    )
