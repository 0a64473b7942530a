"""Requests to the engine's HTTP API, each on a kept connection of its own while it is under way."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import attrs
import h11
import trio

from stellwerk.worker.connection import CONNECT_TIMEOUT_S, FRAME_BYTES_MAX, finds_tls, shake_hands
from stellwerk.worker.errors import ConnectionLost
from stellwerk.worker.system import Clock, Dial, Endpoint
from stellwerk.worker.tls_troubles import SPEAKS_TLS, tls_trouble

__all__ = ["HttpAnswer", "HttpCall", "HttpClient"]

_IDLE_CONNECTIONS_MAX = 32
_RECEIVE_BYTES = 65_536
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError, OSError, h11.RemoteProtocolError)


@attrs.frozen
class HttpAnswer:
    status: int
    headers: dict[str, str]
    """Their names in lower case."""
    body: bytes
    sent_ms: float
    """What our clock showed before the request was sent: whatever the engine did was later."""


class HttpCall:
    """One request, repeatable, and given up from outside if its answer is not wanted any more."""

    def __init__(self, path: str, body: bytes, timeout_s: float) -> None:
        """:param timeout_s: from dialling to the end of the answer."""
        self.path = path
        self.body = body
        self.timeout_s = timeout_s
        self.is_given_up = False
        self._scope: trio.CancelScope | None = None
        self._connection: _Connection | None = None

    def open_scope(self) -> trio.CancelScope:
        self._scope = trio.CancelScope(deadline=trio.current_time() + self.timeout_s)
        return self._scope

    def goes_over(self, connection: _Connection) -> None:
        self._connection = connection

    async def give_up(self, patience_s: float) -> None:
        """Tell the engine that nobody waits any more; an answer that is on its way already still arrives.

        Closing the connection at once would lose it, and leave what it hands over locked. So only our side is closed:
        the engine either notices, and then hands nothing over, or it had answered before, and that is read.
        """
        self.is_given_up = True
        scope, connection = self._scope, self._connection
        if scope is None:
            return
        scope.deadline = min(scope.deadline, trio.current_time() + patience_s)
        if connection is None or not await connection.close_our_side():
            scope.cancel()


class HttpClient:
    """As many connections as there are requests under way; a few are kept for the next ones."""

    def __init__(self, dial: Dial, endpoint: Endpoint, clock: Clock) -> None:
        self._dial = dial
        self._endpoint = endpoint
        self._clock = clock
        self._idle: deque[_Connection] = deque()

    def __repr__(self) -> str:
        return f"<HttpClient for {self._endpoint.http_url}, {len(self._idle)} idle>"

    async def post(self, call: HttpCall, token: str | None) -> HttpAnswer:
        """
        :raises ConnectionLost: no answer came in time, or none at all.
        """
        connecting = False
        with call.open_scope() as scope:
            while not call.is_given_up:
                connecting = not self._idle
                connection = self._idle.pop() if self._idle else await self._connect()
                connecting = False
                answer = await self._exchange(connection, call, token)
                if answer is not None:
                    return answer
        if call.is_given_up:
            raise ConnectionLost(f"a request to {self._endpoint.http_url} was given up")
        assert scope.cancelled_caught
        if connecting:
            raise ConnectionLost(f"no connection to {self._endpoint.http_url} within {call.timeout_s:g} s")
        raise ConnectionLost(f"{self._endpoint.http_url} did not answer within {call.timeout_s:g} s")

    async def close(self) -> None:
        """The idle connections; those of requests are closed by them."""
        with trio.CancelScope(shield=True):  # or a cancelled worker would close the first one and leave the others
            while self._idle:
                await trio.aclose_forcefully(self._idle.pop().stream)

    async def _connect(self) -> _Connection:
        where = self._endpoint.http_url
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                stream = await self._dial(self._endpoint)
                if isinstance(stream, trio.SSLStream):
                    await shake_hands(stream)
        except trio.TooSlowError:
            raise ConnectionLost(f"no connection to {where} within {CONNECT_TIMEOUT_S:g} s") from None
        except (OSError, trio.BrokenResourceError) as error:
            raise ConnectionLost(f"no connection to {where}: {_reason(error)}") from error
        return _Connection(stream)

    async def _exchange(self, connection: _Connection, call: HttpCall, token: str | None) -> HttpAnswer | None:
        """None: the engine had closed the kept connection before, so the request is to be sent on another one."""
        call.goes_over(connection)
        try:
            sent_ms = self._clock.monotonic() * 1000
            head, body = await connection.exchange(self._request(call, token), call.body)
        except _BROKEN as error:
            if connection.is_stale and not call.is_given_up:
                return None
            if connection.is_new and await finds_tls(self._dial, self._endpoint):
                raise ConnectionLost(f"no connection to {self._endpoint.http_url}: {SPEAKS_TLS}") from None
            raise ConnectionLost(f"the connection to {self._endpoint.http_url} broke: {_reason(error)}") from error
        finally:
            await self._put_back(connection)
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        return HttpAnswer(head.status_code, headers, body, sent_ms)

    def _request(self, call: HttpCall, token: str | None) -> h11.Request:
        headers = [
            ("host", self._endpoint.host_header),
            ("user-agent", "stellwerk-python"),
            ("accept", "application/json"),
            ("content-type", "application/json"),
            ("content-length", str(len(call.body))),
        ]
        if token is not None:
            headers.append(("authorization", f"Bearer {token}"))
        return h11.Request(method="POST", target=self._endpoint.target(call.path), headers=headers)

    async def _put_back(self, connection: _Connection) -> None:
        if connection.ready_for_next() and len(self._idle) < _IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            await trio.aclose_forcefully(connection.stream)


def _reason(error: BaseException) -> str:
    """trio's own says nothing where it has a cause."""
    trouble = tls_trouble(error)
    if trouble is not None:
        return trouble
    return str(error) or (str(error.__cause__) if error.__cause__ is not None else type(error).__name__)


class _Connection:
    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._answers = 0
        self._heard = False
        self._is_half_closed = False

    @property
    def is_new(self) -> bool:
        """Nothing was answered on it yet."""
        return self._answers == 0

    @property
    def is_stale(self) -> bool:
        """It was good once, and of this answer nothing has come: the other side had closed it meanwhile."""
        return self._answers > 0 and not self._heard

    async def exchange(self, request: h11.Request, body: bytes) -> tuple[h11.Response, bytes]:
        self._heard = False
        data = [self._http.send(event) or b"" for event in (request, h11.Data(data=body), h11.EndOfMessage())]
        with suppress(trio.BrokenResourceError):  # whoever refuses a request may say why without having read it
            await self.stream.send_all(b"".join(data))
        answer = await self._receive()
        self._answers += 1
        return answer

    async def _receive(self) -> tuple[h11.Response, bytes]:
        head: h11.Response | None = None
        body = bytearray()
        while True:
            match await self._next_event():
                case h11.Response() as head:
                    pass
                case h11.Data(data=data):
                    body += data
                    if len(body) > FRAME_BYTES_MAX:
                        raise h11.RemoteProtocolError(f"an answer of more than {FRAME_BYTES_MAX} bytes")
                case h11.EndOfMessage():
                    assert head is not None
                    return head, bytes(body)
                case h11.InformationalResponse():
                    pass
                case _:
                    raise h11.RemoteProtocolError("it was closed instead of an answer")

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = bytes(await self.stream.receive_some(_RECEIVE_BYTES))
            self._heard = self._heard or bool(data)
            self._http.receive_data(data)
        return event

    def ready_for_next(self) -> bool:
        """Whether the exchange ended so that another one can follow."""
        is_done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if not is_done or self._is_half_closed or self._http.trailing_data != (b"", False):
            return False
        self._http.start_next_cycle()
        return True

    async def close_our_side(self) -> bool:
        """False: the engine cannot have the whole request yet."""
        # TLS has no half of a connection to close, but the TCP connection below it has.
        stream = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        self._is_half_closed = True
        if not isinstance(stream, trio.abc.HalfCloseableStream):
            return True
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # whoever reads it learns the same
            try:
                await stream.send_eof()
            except trio.BusyResourceError:
                return False
        return True
