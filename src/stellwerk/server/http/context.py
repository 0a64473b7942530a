"""What the endpoints share: the node, and how requests are read and lists answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias, TypeVar

import attrs
import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response

from stellwerk.actors.node import Node
from stellwerk.actors.polls import Poll, PolledTasks
from stellwerk.errors import InvalidInput, LimitExceeded, Overloaded, StellwerkError
from stellwerk.json_values import JsonValue, loads
from stellwerk.ports import ANYBODY, Identity, Scope
from stellwerk.server.http.answers import answer_text, encoded
from stellwerk.server.http.bodies import Bodies, HeldBody
from stellwerk.server.http.connection import Draining
from stellwerk.server.http.leases import note_polled
from stellwerk.server.http.requests import NoQuery, PageQuery
from stellwerk.server.http.siblings import Siblings
from stellwerk.server.http.structuring import structure_body, structure_query

__all__ = [
    "HELD_BODY",
    "QUICK_ROWS_MAX",
    "STILL_ALLOWED",
    "ApiContext",
    "Dialect",
    "Endpoint",
    "RunEndpoint",
    "check_lengths",
    "check_limit",
    "identity_of",
    "piece",
]

T = TypeVar("T")
HELD_BODY = "stellwerk.held_body"
"""In the scope of a request: the `HeldBody` of what was read of it."""
STILL_ALLOWED = "stellwerk.still_allowed"
"""In the scope of a request: raises `Unauthenticated` when its credential has ended since it was looked at."""
Page = TypeVar("Page", bound=PageQuery)
RunEndpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

QUICK_ROWS_MAX = 200
"""So many rows are encoded within a few milliseconds. More must not hold up others: they are in the background."""
_PAGE_ROWS_MAX = 1000
_ENVELOPE_BYTES_MAX = 64 * 1024
"""What a request may hold beside its variables."""
_QUICK_BYTES_MAX = 64 * 1024
"""Of a body: so much becomes values within a few milliseconds. More must not hold up others: in the background."""
_ESCAPED_PER_BYTE_MAX = 3
"""Many clients write characters beyond ASCII as escapes: é, two bytes, takes six. The limit is not about that."""
_WHOLE_AT_ONCE = 2
_DEPLOYMENT_FILES_WORTH = 4
_LOOKS_FOR_CLIENT = 2
"""One in which the loop hears of it, one in which whoever watches the client does."""
_KEY_CHARS_MAX = 255
"""Business keys, correlation keys, names and ids that the caller gives; as long as Camunda has them."""


@attrs.frozen
class Endpoint:
    method: str
    path: str
    """Behind the dialect's prefix."""
    run: RunEndpoint
    scope: Scope | None
    """What the caller needs. None: nothing, not even a credential."""
    changes_something: bool = False
    """Though it is a GET: pages of other sites may not do it."""


@attrs.frozen(kw_only=True)
class Dialect:
    """One of the HTTP APIs: its endpoints, and how it says that something went wrong."""

    prefix: str
    endpoints: Sequence[Endpoint]
    answer_error: Callable[[StellwerkError, Request], Response]
    """For errors of every class, mistakes of ours included (`InvariantBroken`, whose message is fit for the caller)."""


def identity_of(request: Request) -> Identity:
    """Who sends it. Endpoints check names against it: the scope was checked before."""
    identity = request.scope.get("stellwerk.identity", ANYBODY)
    assert isinstance(identity, Identity)
    return identity


@attrs.frozen
class ApiContext:
    node: Node
    draining: Draining
    siblings: Siblings | None = None
    """Other processes behind the same port."""
    whole_instances: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(_WHOLE_AT_ONCE))
    """For what reads everything about an instance: the lives of fifty large ones do not fit into memory at once."""
    bodies: Bodies = attrs.field(init=False)

    @bodies.default
    def _bodies_of_requests(self) -> Bodies:
        return Bodies(self.node.limits.bodies_bytes_max)

    @property
    def deployment_bytes_max(self) -> int:
        """A deployment may be as long as so many of the largest files."""
        return _DEPLOYMENT_FILES_WORTH * self.node.limits.definition_bytes_max

    # --- requests

    def query(self, request: Request, kind: type[T]) -> T:
        """:raises InvalidInput: naming everything that is wrong."""
        return structure_query(request.query_params.multi_items(), kind)

    def page_query(self, request: Request, kind: type[Page]) -> Page:
        query = self.query(request, kind)
        check_limit(query.limit, "query.limit")
        return query

    async def payload(self, request: Request, kind: type[T]) -> T:
        """A body that holds variables.

        :raises InvalidInput: naming everything that is wrong; LimitExceeded: it is too long.
        """
        return await self.body(request, kind, self.payload_request_bytes_max)

    @property
    def payload_request_bytes_max(self) -> int:
        """How long a body may be that holds variables."""
        return _ESCAPED_PER_BYTE_MAX * self.node.limits.payload_bytes_max + _ENVELOPE_BYTES_MAX

    async def body(self, request: Request, kind: type[T], bytes_max: int = _ENVELOPE_BYTES_MAX) -> T:
        """Everything is in it: a query beside it is refused."""
        self.query(request, NoQuery)
        return await self.read_body(request, bytes_max, lambda value: structure_body(value, kind))

    async def json_body(self, request: Request, bytes_max: int = _ENVELOPE_BYTES_MAX) -> JsonValue:
        """No body at all counts as an empty object."""
        return await self.read_body(request, bytes_max, lambda value: value)

    async def read_body(self, request: Request, bytes_max: int, make: Callable[[JsonValue], T]) -> T:
        """:param make: what to make of the JSON value, which is an empty object where there is no body at all.

        :raises InvalidInput: it is no JSON, and whatever ``make`` raises; LimitExceeded: it is longer.
        """
        text = await self.raw_body(request, bytes_max)
        return await self.worked_out(lambda: make(loads(text) if text else {}), len(text))

    async def worked_out(self, function: Callable[[], T], size: int) -> T:
        """:param size: of the text that it reads, in bytes."""
        return function() if size <= _QUICK_BYTES_MAX else await self.node.ports.background.run_sync(function)

    async def raw_body(self, request: Request, bytes_max: int) -> bytes:
        """:raises LimitExceeded: it is longer; Overloaded: other bodies leave no room for it."""
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > bytes_max:
            raise LimitExceeded(f"{declared} bytes, at most {bytes_max} are allowed")
        held = request.scope.setdefault(HELD_BODY, self.bodies.begin())
        assert isinstance(held, HeldBody)
        body, size, has_room = bytearray(), 0, True
        async with aclosing(request.stream()) as pieces:
            async for more in pieces:
                size += len(more)
                if size > bytes_max:
                    raise LimitExceeded(f"more than {bytes_max} bytes")
                has_room = has_room and held.add(len(more))
                if has_room:
                    body += more
                else:  # The rest is read and dropped: who is still sending would not hear the answer.
                    body.clear()
        if not has_room:
            raise Overloaded("the bodies of other requests take all the room that there is: send it again later")
        held.read()
        # A body may come slowly, and the credential end meanwhile.
        still_allowed = request.scope.get(STILL_ALLOWED)
        if still_allowed is not None:
            await still_allowed()
        return bytes(body)

    # --- answers

    async def answer_page(self, name: str, found: Sequence[T], limit: int, view: Callable[[T], object]) -> Response:
        """:param found: one row beyond the limit, if there are more."""
        return await self.answer_rows(name, found[:limit], view, more=len(found) > limit)

    async def answer_rows(
        self, name: str, rows: Sequence[T], view: Callable[[T], object], **others: object
    ) -> Response:
        """``{name: [row, …], **others}``."""

        def text() -> bytes:
            return encoded({name: [piece(view(row)) for row in rows], **others})

        return await self.answer_long(text, len(rows))

    async def answer_long(self, make_text: Callable[[], bytes], rows: int) -> Response:
        """:param rows: how long it takes to make, in rows of a list."""
        if rows <= QUICK_ROWS_MAX:
            return answer_text(make_text())
        return answer_text(await self.node.ports.background.run_sync(make_text))

    async def poll(self, request: Request, poll: Poll) -> PolledTasks:
        """Fetch and lock, for a `LeasesResponse`. A client that leaves while it waits gets nothing."""
        found: list[PolledTasks] = []

        async def fetch() -> bool:
            found.append(await self.node.fetch_and_lock(poll))
            for _ in range(_LOOKS_FOR_CLIENT):
                # It may have left before: the loop has to look at its socket first, and cancels this then.
                await trio.lowlevel.checkpoint()
            return True

        try:
            is_there = await self.unless_gone(request, fetch)
        except BaseException:
            _give_back(found)
            raise
        if not is_there or not found:
            _give_back(found)
            return PolledTasks(tasks=(), deadlines=(), give_back=lambda: None)
        note_polled(request, found[0])
        return found[0]

    async def unless_gone(self, request: Request, function: Callable[[], Awaitable[T]]) -> T | None:
        """None as soon as the client has left or the server drains."""
        results: list[T] = []
        errors: list[StellwerkError] = []

        async def watch_client() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        async def watch_drain() -> None:
            await self.draining.wait_begun()
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


def _give_back(found: Sequence[PolledTasks]) -> None:
    for polled in found:
        polled.give_back()


def piece(value: object) -> msgspec.Raw:
    """Encoded for itself: one long call of the encoder would stop all threads as long as it takes."""
    return msgspec.Raw(encoded(value))


def check_limit(limit: int, where: str) -> None:
    if not 1 <= limit <= _PAGE_ROWS_MAX:
        raise InvalidInput(f"limit is from 1 to {_PAGE_ROWS_MAX} @ {where}")


def check_lengths(**texts: str | None) -> None:
    for name, text in texts.items():
        if text is not None and len(text) > _KEY_CHARS_MAX:
            raise LimitExceeded(f"{len(text)} characters, at most {_KEY_CHARS_MAX} are allowed @ $.{name}")
