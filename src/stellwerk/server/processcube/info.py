"""What the engine says of itself."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint

__all__ = ["InfoEndpoints"]

_NAME = "stellwerk"


class InfoEndpoints:
    """Asked before there is a credential."""

    def __init__(self, context: ApiContext) -> None:
        self._node = context.node

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/info", self.info, None),
            Endpoint("GET", "/authority", self.authority, None),
        )

    async def info(self, _request: Request) -> Response:
        identity = self._node.config.identity
        return answer(
            {
                "id": identity.node_id,
                "name": _NAME,
                "packageName": _NAME,
                "version": identity.version,
                "authorityUrl": "",
                "allowAnonymousRootAccess": False,
                "loadedExtensions": [],
                "extraInfo": {},
            }
        )

    async def authority(self, _request: Request) -> Response:
        """There is none: tokens come from whoever issues them, or are API keys."""
        return answer("")
