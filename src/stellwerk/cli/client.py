"""The command line's client of the HTTP API (docs/http-api)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from stellwerk.cli.mistakes import CommandFailed, EngineUnreachable, Mistake

__all__ = ["EngineClient", "Refused", "segment"]

_ANSWER_SECONDS_MAX = 30.0
_CONTEXT_CHARS = 30
_BAD_URL = "the engine's URL must look like http://127.0.0.1:10560, not {!r}"
"""In the words of the worker SDK, which also takes ws and wss."""


class Refused(Mistake):
    """The engine says that the request is wrong."""

    def __init__(self, status: int, answer: Mapping[str, Any]) -> None:
        super().__init__(str(answer.get("message", f"the engine answered with status {status}")))
        self.status = status
        self.answer = answer


def segment(text: str) -> str:
    """An id as a piece of a path."""
    if not text or "/" in text:
        raise Mistake(f"{text!r} is no id")
    return quote(_checked(text), safe="")


class EngineClient:
    """One request at a time, each on a connection of its own."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:
            raise Mistake(_BAD_URL.format(url)) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Mistake(_BAD_URL.format(url))
        self._url = url
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname
        self._base = parts.path.rstrip("/") + "/api/v1"

    def get(self, path: str, query: Mapping[str, object] | None = None, *, seconds_max: float = 0.0) -> dict[str, Any]:
        """`seconds_max`: how long the engine may think, beyond the usual."""
        given = {name: _query_text(value) for name, value in (query or {}).items() if value is not None}
        return self._request("GET", path + (f"?{urlencode(given)}" if given else ""), None, seconds_max)

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        given = {name: value for name, value in body.items() if value is not None}
        return self._request("POST", path, _checked(json.dumps(given, ensure_ascii=False)).encode(), 0.0)

    def _request(self, method: str, path: str, body: bytes | None, seconds_max: float) -> dict[str, Any]:
        """
        :raises Refused: for 4xx; EngineUnreachable: when there is no answer; CommandFailed: for other answers;
            Mistake: when the URL is none.
        """
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection = self._connection(_ANSWER_SECONDS_MAX + seconds_max)
        try:
            connection.request(method, self._base + path, body, headers)
            response = connection.getresponse()
            return self._answer(response.status, response.read())
        except (UnicodeError, http.client.InvalidURL):
            # A name or path with characters that URLs do not have.
            raise Mistake(_BAD_URL.format(self._url)) from None
        except (OSError, http.client.HTTPException) as error:
            way_out = "start one with `stellwerk serve`, or name another with --url"
            raise EngineUnreachable(f"no engine answers at {self._url}: {_reason(error)}; {way_out}") from None
        finally:
            connection.close()

    def _connection(self, seconds_max: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=seconds_max)

    def _answer(self, status: int, body: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineUnreachable(f"what answers at {self._url} is no stellwerk engine (status {status})")
        if status < http.HTTPStatus.BAD_REQUEST:
            return answer
        if status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise Refused(status, answer)
        message = answer.get("message", f"status {status}")
        if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise EngineUnreachable(f"the engine at {self._url} cannot answer now: {message}")
        raise CommandFailed(f"the engine at {self._url} failed: {message}")


def _query_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else _checked(str(value))


def _checked(text: str) -> str:
    """:raises Mistake: for a command line that is no UTF-8: Python hands such bytes on as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        before = text[max(0, error.start - _CONTEXT_CHARS) : error.end]
        raise Mistake(f"not UTF-8 text: {before!r}") from None
    return text


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
