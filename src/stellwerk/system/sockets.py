"""Listening sockets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

__all__ = ["BACKLOG", "adopt_listeners", "listening_port", "open_listeners", "open_unix_listener"]

BACKLOG = 1024
"""Connections that wait to be accepted: a whole fleet of workers reconnects at once when an engine restarts."""


async def open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on every address of `host`. Port 0: a free one, on the first address only (all must have one number).

    :raises OSError: when the port is taken, the address is not ours or the name is unknown.
    """
    listeners: list[trio.SocketListener] = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    if port != 0:
        return listeners
    for superfluous in listeners[1:]:
        await superfluous.aclose()
    return listeners[:1]


def adopt_listeners(descriptors: Sequence[int]) -> list[trio.SocketListener]:
    """Those of sockets that listen already, which another process made. Closing them does not end its own."""
    return [trio.SocketListener(trio.socket.socket(fileno=descriptor)) for descriptor in descriptors]


async def open_unix_listener(path: Path) -> trio.SocketListener:
    """:raises OSError: there is something at the path, or it is too long for a socket."""
    listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    try:
        await listening.bind(str(path))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return trio.SocketListener(listening)


def listening_port(listeners: Sequence[trio.SocketListener]) -> int:
    port: int = listeners[0].socket.getsockname()[1]
    return port
