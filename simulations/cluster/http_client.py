"""A small HTTP/1.1 client over the simulated network: an answer, or none and then nobody knows what was done."""

from __future__ import annotations

from collections.abc import Mapping

import h11
import trio

from simulations.world.network import Network
from stellwerk.errors import InvalidInput
from stellwerk.json_values import JsonValue, dumps, loads
from stellwerk.values import frozen

__all__ = ["Answer", "HttpClient", "Unanswered"]

_RECEIVE_BYTES = 64 * 1024
_DIAL_SECONDS = 1.0


@frozen
class Answer:
    status: int
    json: JsonValue
    """The body; None where it is not JSON."""


class Unanswered(Exception):
    """No answer came. What was asked for may have been done, may still be done, or never happen."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        """False: nobody was connected, so that nothing will happen."""


class _Connection:
    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)

    async def exchange(self, request: h11.Request, body: bytes) -> tuple[int, bytes]:
        """:raises h11.RemoteProtocolError, trio.BrokenResourceError: the connection ends before the answer does."""
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        await self.stream.send_all(b"".join(self._http.send(event) or b"" for event in events))
        status, pieces = 0, list[bytes]()
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
            elif isinstance(event, h11.ConnectionClosed):
                raise trio.BrokenResourceError("the connection was closed")
        return status, b"".join(pieces)

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(bytes(await self.stream.receive_some(_RECEIVE_BYTES)))
        return event

    def is_reusable(self) -> bool:
        """Prepares it for the next request."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True


class HttpClient:
    """Keeps one connection to each server, as clients do: the server may close it just when it is used again."""

    def __init__(self, network: Network, host: str) -> None:
        self._network = network
        self._host = host
        self._kept: dict[str, _Connection] = {}

    async def request(
        self,
        target: str,
        method: str,
        path: str,
        body: JsonValue = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Answer:
        """:param target: a host. :param path: with query. :param timeout: true seconds, for all of it.

        :raises Unanswered: there is no connection, or it broke, or it took too long.
        """
        encoded = b"" if body is None else dumps(body)
        request = _request(target, method, path, encoded, headers or {})
        connection: _Connection | None = None
        try:
            with trio.fail_after(timeout):
                connection = await self._connection(target)
                status, text = await connection.exchange(request, encoded)
        except trio.TooSlowError:
            await self._drop(connection)
            raise Unanswered(f"no answer within {timeout:g} s", was_sent=connection is not None) from None
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError) as error:
            await self._drop(connection)
            raise Unanswered(f"{type(error).__name__}: {error}", was_sent=connection is not None) from None
        await self._keep(target, connection)
        return Answer(status, _json(text))

    async def _connection(self, target: str) -> _Connection:
        kept = self._kept.pop(target, None)
        if kept is not None:
            return kept
        return _Connection(await self._network.dial(self._host, target, timeout=_DIAL_SECONDS))

    async def _keep(self, target: str, connection: _Connection) -> None:
        if connection.is_reusable() and target not in self._kept:
            self._kept[target] = connection
        else:
            await self._drop(connection)

    async def _drop(self, connection: _Connection | None) -> None:
        if connection is not None:
            await trio.aclose_forcefully(connection.stream)

    async def close(self) -> None:
        for connection in self._kept.values():
            await trio.aclose_forcefully(connection.stream)
        self._kept.clear()


def _request(target: str, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> h11.Request:
    given = {"host": target, "content-type": "application/json", "content-length": str(len(body)), **headers}
    return h11.Request(method=method, target=path, headers=list(given.items()))


def _json(text: bytes) -> JsonValue:
    try:
        return loads(text)
    except InvalidInput:
        return None
