"""Notifications: over Socket.IO by polling (namespace ``/api``), and one at a time by long polling."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from stellwerk.errors import Forbidden, NotServed, Overloaded, StoreUnavailable
from stellwerk.ports import Identity, Scope
from stellwerk.server.http.answers import answer
from stellwerk.server.http.context import ApiContext, Endpoint, identity_of
from stellwerk.server.processcube.engine_io import MalformedPackets, Queues, SocketClient
from stellwerk.server.processcube.notification_hub import NotificationHub
from stellwerk.server.processcube.notification_names import LONG_POLLING, NOT_SERVED
from stellwerk.server.processcube.notification_reading import Notification

__all__ = ["LongPollingEndpoints", "SocketEndpoints"]

_CLIENTS_MAX = 1_000
_BODY_BYTES_MAX = 1_000_000
_PATH = "/notifications/long_polling/"
_TRANSPORT_UNKNOWN, _SESSION_UNKNOWN, _BAD_REQUEST, _UNSUPPORTED_VERSION = 0, 1, 3, 5
_COMPLAINTS = {
    _TRANSPORT_UNKNOWN: "Transport unknown",
    _SESSION_UNKNOWN: "Session ID unknown",
    _BAD_REQUEST: "Bad request",
    _UNSUPPORTED_VERSION: "Unsupported protocol version",
}
_CLOSE = "1"


def _check_alone(context: ApiContext) -> None:
    """:raises NotServed: each request may come to another process, which knows nothing of the others."""
    if context.siblings is not None:
        raise NotServed("notifications are not served where several processes share a port: ask one node by itself")


class SocketEndpoints:
    """``/socket.io/``. There is no upgrade to WebSocket: its clients do without."""

    def __init__(self, context: ApiContext, hub: NotificationHub) -> None:
        self._context = context
        self._node = context.node
        self._hub = hub
        self._clients: dict[str, SocketClient] = {}
        self._queues = Queues()
        self._reasons: OrderedDict[str, str] = OrderedDict()
        """By id of a session that was closed: what its client did not do."""

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", "/socket.io/", self.fetch, Scope.CLIENT, changes_something=True),
            Endpoint("POST", "/socket.io/", self.send, Scope.CLIENT),
        )

    async def fetch(self, request: Request) -> Response:
        _check_alone(self._context)
        query = request.query_params
        if query.get("EIO") != "4":
            return _refusal(_UNSUPPORTED_VERSION)
        if query.get("transport") != "polling":
            return _refusal(_TRANSPORT_UNKNOWN)
        if "sid" not in query:
            return _packets(self._open(request).opening())
        client = self._client(request)
        if client is None:
            return self._unknown(request)
        if client.is_polled:
            client.close()
            return _refusal(_BAD_REQUEST)
        found = await self._context.unless_gone(request, client.packets)
        if found is None:
            client.close()  # its client has gone, or shall connect to a node that does not stop
        return _packets(_CLOSE if found is None else found)

    async def send(self, request: Request) -> Response:
        _check_alone(self._context)
        client = self._client(request)
        if client is None:
            return self._unknown(request)
        body = await self._context.raw_body(request, _BODY_BYTES_MAX)
        try:
            client.receive(body.decode())
        except (UnicodeDecodeError, MalformedPackets):
            client.close()
            return _refusal(_BAD_REQUEST)
        return PlainTextResponse("ok")

    def _open(self, request: Request) -> SocketClient:
        for client in tuple(self._clients.values()):
            if client.is_lost:
                client.close()
        if len(self._clients) >= _CLIENTS_MAX:
            raise Overloaded(f"there are {_CLIENTS_MAX} clients that want to be notified already")
        ports = self._node.ports
        client = SocketClient(ports.entropy.uuid(), identity_of(request), ports.clock, self._forget, self._queues)
        self._clients[client.session_id] = client
        self._hub.add(client)
        return client

    def _forget(self, client: SocketClient) -> None:
        self._clients.pop(client.session_id, None)
        self._hub.remove(client)
        if client.closed_for is not None:
            self._reasons[client.session_id] = client.closed_for
            if len(self._reasons) > _CLIENTS_MAX:
                self._reasons.popitem(last=False)
            self._node.ports.log.warning(
                "a client of notifications is disconnected", who=client.identity.name, reason=client.closed_for
            )

    def _unknown(self, request: Request) -> Response:
        reason = self._reasons.get(request.query_params.get("sid", ""))
        return _refusal(_SESSION_UNKNOWN, "" if reason is None else f": it was closed, because {reason}")

    def _client(self, request: Request) -> SocketClient | None:
        """:raises Forbidden: it is somebody else's."""
        client = self._clients.get(request.query_params.get("sid", ""))
        if client is not None and _who(client.identity) != _who(identity_of(request)):
            raise Forbidden("this session is somebody else's")
        return client


class _OneNotification:
    """The first of a name."""

    def __init__(self, name: str, identity: Identity) -> None:
        self._name = name
        self._identity = identity
        self._found: Notification | None = None
        self._come = trio.Event()

    def notify(self, notification: Notification) -> None:
        if self._found is None and notification.name == self._name and self._identity.may_see(notification.process_key):
            self._found = notification
            self._come.set()

    async def wait(self) -> Notification:
        await self._come.wait()
        assert self._found is not None
        return self._found


class LongPollingEndpoints:
    def __init__(self, context: ApiContext, hub: NotificationHub) -> None:
        self._context = context
        self._hub = hub

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return (Endpoint("GET", _PATH + "{name}", self.wait, Scope.CLIENT),)

    async def wait(self, request: Request) -> Response:
        """Until it happens, for as long as the client waits."""
        _check_alone(self._context)
        name = request.path_params["name"]
        if name in NOT_SERVED or name not in LONG_POLLING:
            raise NotServed(f'there are no notifications of "{name[:100]}"')
        one = _OneNotification(LONG_POLLING[name], identity_of(request))
        with self._hub.told(one):
            found = await self._context.unless_gone(request, one.wait)
        if found is None:
            raise StoreUnavailable("the engine is about to stop")
        return answer(found.message)


def _packets(text: str) -> Response:
    return PlainTextResponse(text)


def _refusal(code: int, more: str = "") -> Response:
    return answer({"code": code, "message": _COMPLAINTS[code] + more}, 400)


def _who(identity: Identity) -> Identity:
    """The same caller, who may do the same; also with a token that replaced another."""
    return attrs.evolve(identity, expires_at_ms=None)
