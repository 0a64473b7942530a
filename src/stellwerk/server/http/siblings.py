"""Processes that share a port: whichever of them is asked for figures has those of all, over sockets in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h11
import msgspec
import trio

from stellwerk.server.http.figures import NodeFigures

__all__ = ["FIGURES_TYPE", "Siblings"]

FIGURES_TYPE = "application/x-stellwerk-figures+json"
"""Asked for by `Accept`: the figures of the one process that answers."""
_ANSWER_SECONDS_MAX = 1.0
"""A node that is busier or dead is left out."""
_ANSWER_BYTES_MAX = 1024 * 1024
_SUFFIX = ".socket"
_FAULTS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError, msgspec.MsgspecError)


class Siblings:
    def __init__(self, directory: Path, own: str) -> None:
        """:param directory: nobody else may use it.
        :param own: a name that none of the others has."""
        self._directory = directory
        self.socket = directory / f"{own}{_SUFFIX}"
        """Where the others ask this one."""

    async def figures(self) -> Sequence[NodeFigures]:
        """Those of the others that answer."""
        found: list[NodeFigures] = []

        async def ask(socket: Path) -> None:
            try:
                with trio.move_on_after(_ANSWER_SECONDS_MAX):
                    found.append(msgspec.json.decode(await _ask(socket), type=NodeFigures))
            except _FAULTS:
                return  # it ends, or has died

        async with trio.open_nursery() as nursery:
            for socket in sorted(self._directory.glob(f"*{_SUFFIX}")):
                if socket != self.socket:
                    nursery.start_soon(ask, socket)
        return sorted(found, key=lambda figures: figures.node)


async def _ask(socket: Path) -> bytes:
    http = h11.Connection(h11.CLIENT)
    headers = [("host", "sibling"), ("accept", FIGURES_TYPE), ("connection", "close")]
    request = http.send(h11.Request(method="GET", target="/metrics", headers=headers))
    async with await trio.open_unix_socket(socket) as stream:
        await stream.send_all((request or b"") + (http.send(h11.EndOfMessage()) or b""))
        body = b""
        while len(body) <= _ANSWER_BYTES_MAX:
            match http.next_event():
                case h11.NEED_DATA:
                    http.receive_data(bytes(await stream.receive_some()))
                case h11.Data(data=data):
                    body += data
                case h11.EndOfMessage() | h11.ConnectionClosed():
                    return body
                case _:
                    pass
    return b""
