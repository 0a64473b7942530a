"""A file as an answer, in pieces: never more than one of them in memory."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from typing import BinaryIO, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stellwerk.errors import StoreUnavailable
from stellwerk.ports import ThreadRunner
from stellwerk.server.http.answers import answer_error

__all__ = ["FileDownload", "TemporaryFile"]

_PIECE_BYTES = 256 * 1024


class TemporaryFile(Protocol):
    def open(self) -> BinaryIO:
        """:raises FileNotFoundError: nothing was written."""

    def close(self) -> None:
        """Delete it, if that has not happened yet."""


class FileDownload(Response):
    """Sends a file and closes it, whatever happens on the way."""

    media_type = "application/octet-stream"

    def __init__(self, file: TemporaryFile, *, name: str, runner: ThreadRunner) -> None:
        super().__init__(headers={"content-disposition": f'attachment; filename="{name}"'})
        self._file = file
        self._runner = runner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send_file(scope, receive, send)
        finally:
            self._file.close()

    async def _send_file(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reader = await self._runner.run_sync(self._file.open)
        except FileNotFoundError:
            # Given up: the client is gone, or the server is about to be.
            await answer_error(StoreUnavailable("the copy was given up"))(scope, receive, send)
            return
        with closing(reader):
            self.headers["content-length"] = str(os.fstat(reader.fileno()).st_size)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while data := await self._runner.run_sync(partial(reader.read, _PIECE_BYTES)):
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
