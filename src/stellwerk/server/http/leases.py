"""Answers that carry leases: whoever does not get one whole must not keep its tasks locked."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stellwerk.actors.polls import PolledTasks

__all__ = ["LeasesResponse", "give_back_polled", "has_polled", "note_polled"]

_POLLED = "stellwerk.polled"


class LeasesResponse(Response):
    """Gives the leases back where the answer could not be written whole: nothing of it was read then, for no reader
    takes half of a JSON text. When it was, the operating system has it, and the peer's confirmation is not known."""

    def __init__(
        self, body: bytes, polled: PolledTasks, headers: dict[str, str] | None = None, *, status: int = 200
    ) -> None:
        super().__init__(body, status, headers, media_type="application/json" if body else None)
        self._polled = polled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except BaseException:
            self._polled.give_back()
            raise


def note_polled(request: Request, polled: PolledTasks) -> None:
    """From here to a `LeasesResponse` the request answers for the leases, see `give_back_polled`."""
    request.scope.setdefault(_POLLED, []).append(polled)


def has_polled(request: Request) -> bool:
    """Its answer hands over leases."""
    return bool(request.scope.get(_POLLED, ()))


def give_back_polled(request: Request) -> None:
    """The request fails between its poll and its answer."""
    found: Sequence[PolledTasks] = request.scope.get(_POLLED, ())
    for polled in found:
        polled.give_back()
