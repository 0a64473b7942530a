"""Small documents from files and web servers, within a time and a size."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from email.message import Message
from functools import partial
from pathlib import Path
from typing import IO

import trio

from stellwerk.system.clock import is_virtual_time

__all__ = ["document_at"]

_SECONDS_MAX = 10.0
_BYTES_MAX = 1024 * 1024
_PIECE_BYTES = 64 * 1024


def document_at(place: str) -> Callable[[], Awaitable[bytes]]:
    """:param place: an http or https URL, or the name of a file.

    → reads it, each time anew. :raises OSError: it cannot be read, or is too long.
    """
    read = partial(_read_url if place.startswith(("https://", "http://")) else _read_file, place)

    async def fetch() -> bytes:
        if is_virtual_time():
            return read()
        # Who stops the engine does not wait for a web server that is slow.
        return await trio.to_thread.run_sync(read, abandon_on_cancel=True)

    return fetch


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Whom we trust is who was named."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        raise urllib.error.HTTPError(req.full_url, code, "a redirect, which is not followed", headers, fp)


def _read_url(url: str) -> bytes:
    deadline = time.monotonic() + _SECONDS_MAX
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(url, timeout=_SECONDS_MAX) as body:
            content = b""
            while piece := body.read1(_PIECE_BYTES):
                content += piece
                if len(content) > _BYTES_MAX:
                    raise OSError(f"{url}: longer than {_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{url}: took longer than {_SECONDS_MAX:g} s")
            return content
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"{url}: status {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise OSError(f"{url}: {error.reason}") from None
    except (ValueError, http.client.HTTPException) as error:
        raise OSError(f"{url}: {error}") from None


def _read_file(name: str) -> bytes:
    with Path(name).open("rb") as stream:
        content = stream.read(_BYTES_MAX + 1)
    if len(content) > _BYTES_MAX:
        raise OSError(f"{name}: longer than {_BYTES_MAX} bytes")
    return content
