"""A server: HTTP and WebSocket connections on the same listeners."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from stellwerk.server.http.connection import HttpConnection, HttpHost

__all__ = ["Server"]

_REFUSALS_TOLD_EVERY_SECONDS = 5.0
"""Whoever connects again and again must not fill the log."""


class Server:
    """Serves connections until it is cancelled or stopped. A fault in one of them never ends another."""

    def __init__(self, host: HttpHost) -> None:
        self._host = host
        self._accepting = trio.CancelScope()
        self.connections = 0
        """Open now, WebSockets included."""
        self._refused = 0
        self._refusals_told_at = -_REFUSALS_TOLD_EVERY_SECONDS
        self.ended = trio.Event()
        """The last connection has ended after `stop_accepting`."""

    def __repr__(self) -> str:
        return f"<Server connections={self.connections} draining={self._host.draining.begun}>"

    async def serve(
        self,
        listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """After `stop_accepting` it returns when the last connection has ended. Closes the listeners."""
        async with trio.open_nursery() as connections:
            with self._accepting:
                task_status.started()
                await trio.serve_listeners(self._serve_connection, list(listeners), handler_nursery=connections)
        self.ended.set()

    def drain(self) -> None:
        """Each connection ends with its next answer. WebSockets go on until their sessions end."""
        self._host.draining.begin()

    async def wait_quiet(self) -> None:
        """Until no connection is open but WebSockets. After `drain` each is closed by its peer, after its next answer,
        or when it has been idle for as long as any may be."""
        await self._host.draining.wait_quiet()

    def stop_accepting(self) -> None:
        """Free the port. What is connected goes on."""
        self._accepting.cancel()

    def hang_up(self) -> None:
        """Stop accepting, and close connections on which no request is under way."""
        self.stop_accepting()
        self._host.draining.hang_up()

    async def _shake_hands(self, stream: trio.abc.Stream) -> bool:
        """Of TLS, if that is spoken. False: it did not come about, and the stream is closed."""
        if not isinstance(stream, trio.SSLStream):
            return True
        with trio.move_on_after(self._host.limits.head_seconds_max):
            try:
                await stream.do_handshake()
                return True
            except trio.BrokenResourceError as error:
                self._host.log.debug("no TLS connection", reason=str(error.__cause__ or error))
        await trio.aclose_forcefully(stream)
        return False

    def _tell_refused(self) -> None:
        self._refused += 1
        now = self._host.clock.monotonic()
        if now - self._refusals_told_at >= _REFUSALS_TOLD_EVERY_SECONDS:
            self._refusals_told_at = now
            self._host.log.warning("connections refused", refused=self._refused, connections=self.connections)

    async def _serve_connection(self, stream: trio.abc.Stream) -> None:
        if self.connections >= self._host.limits.connections_max:
            self._tell_refused()
            await trio.aclose_forcefully(stream)
            return
        self.connections += 1
        try:
            if await self._shake_hands(stream):
                await HttpConnection(stream, self._host).serve()
        except Exception:
            self._host.log.exception("connection_failed")
        finally:
            self.connections -= 1
