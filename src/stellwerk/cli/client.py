"""The command line's client of the HTTP API (docs/http-api), over the network or within this process (`offline`)."""

from __future__ import annotations

import http.client
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from stellwerk.cli.mistakes import CommandFailed, EngineUnreachable, Mistake

__all__ = ["API", "Client", "EngineClient", "Refused", "Sink", "segment"]

T = TypeVar("T")

API: Final = "/api/v1"

Sink: TypeAlias = Callable[[bytes, int | None], None]
"""Takes the next piece of a download, and how many bytes the whole has where that is known."""

_ANSWER_SECONDS_MAX = 30.0
_DOWNLOAD_SECONDS_MAX = 3_600.0
"""Until the first byte: a large database is copied before any of it is sent."""
_PIECE_BYTES = 1024 * 1024
_PAGE_ROWS = 1000
"""The most that the API gives at once."""
_CONTEXT_CHARS = 30
_DB_VARIABLE = "STELLWERK_DB"
"""Only ``serve`` takes its database from there."""
_HTTP_SCHEMES = {"ws": "http", "wss": "https"}
_PROBE_SECONDS_MAX = 3.0
_BAD_URL = "the engine's URL must look like http://127.0.0.1:10560, not {!r}"
"""In the words of the worker SDK, which also takes ws and wss."""


class Refused(Mistake):
    """The engine says that the request is wrong."""

    def __init__(self, status: int, answer: Mapping[str, Any]) -> None:
        super().__init__(_with_options(str(answer.get("detail", f"the engine answered with status {status}"))))
        self.status = status
        self.answer = answer


_FIELD = re.compile(r" @ (?:\$|query)\.([a-z_]+)((?:[.\[]\S*)?)(?=;|$)", re.MULTILINE)
"""Where in a request something is wrong, as the API says it."""
_OPTIONS: Final = {
    "process_def_id": "PROCESS",
    "incident_ids": "INCIDENT",
    "name": "NAME",
    "definition_id": "--version",
    "element_id": "--element",
    "expires_in_ms": "--expires",
    "force": "--yes",
    "instance_id": "--instance",
    "older_than_ms": "--older-than",
    "start_event_id": "--start-event",
    "started_before": "--before",
    "started_from": "--since",
    "ttl_ms": "--ttl-seconds",
    "worker_ids": "--worker",
}
"""Arguments and options whose names differ from the fields'."""
_SAME_NAME: Final = frozenset(
    {"after", "at", "business_key", "key", "kind", "limit", "message_id", "process", "reason", "request_id", "retries"}
    | {"processes", "scopes", "topic", "topics", "variables"}
)


def _with_options(message: str) -> str:
    """Places in a request as whoever types a command knows them: `` @ $.at`` is ``--at``."""
    return _FIELD.sub(_option, message)


def _option(place: re.Match[str]) -> str:
    field = place[1]
    if field not in _SAME_NAME and field not in _OPTIONS:
        return place[0]
    option = _OPTIONS.get(field, f"--{field.replace('_', '-')}")
    return f" ({option}{f', in ${place[2]}' if place[2] else ''})"


def segment(text: str) -> str:
    """An id as a piece of a path."""
    if not text or "/" in text:
        raise Mistake(f"{text!r} is no id")
    return quote(_checked(text), safe="")


class Client(ABC):
    """Asks an engine. A context manager: what it holds open is closed with it."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - most have nothing open between requests
        pass

    def get(self, path: str, query: Mapping[str, object] | None = None, *, seconds_max: float = 0.0) -> dict[str, Any]:
        """`seconds_max`: how long the engine may think, beyond the usual.

        :raises Refused: for 4xx; EngineUnreachable: when there is no answer; CommandFailed: for other answers.
        """
        return self._request("GET", _target(path, query), None, seconds_max)

    def post(self, path: str, body: Mapping[str, object], *, seconds_max: float = 0.0) -> dict[str, Any]:
        """Like `get`; what is None in the body is left out."""
        given = {name: value for name, value in body.items() if value is not None}
        content = _checked(json.dumps(given, ensure_ascii=False)).encode()
        return self._request("POST", _target(path, None), content, seconds_max)

    def delete(self, path: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Like `get`."""
        return self._request("DELETE", _target(path, query), None, 0.0)

    def pages(
        self, path: str, plural: str, query: Mapping[str, object], cursor: str
    ) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Everything in a list, page after page.

        :param cursor: the field of a row after which the next page begins.
        """
        after: object = None
        while True:
            answer = self.get(path, {**query, "limit": _PAGE_ROWS, "after": after})
            rows: Sequence[Mapping[str, Any]] = answer[plural]
            yield rows
            if not answer["more"]:
                return
            after = rows[-1][cursor]

    def download(self, path: str, sink: Sink) -> None:
        """Hand what is there to `sink`, piece by piece.

        :raises Refused: and the others of `get`; whatever `sink` raises.
        """
        status, body = self._exchange("GET", _target(path, None), None, _DOWNLOAD_SECONDS_MAX, sink)
        if status >= HTTPStatus.BAD_REQUEST:
            self._answer(status, body)

    def _request(self, method: str, target: str, body: bytes | None, seconds_max: float) -> dict[str, Any]:
        return self._answer(*self._exchange(method, target, body, _ANSWER_SECONDS_MAX + seconds_max, None))

    @abstractmethod
    def _exchange(
        self, method: str, target: str, body: bytes | None, seconds_max: float, sink: Sink | None
    ) -> tuple[int, bytes]:
        """Status and body of the answer; with a `sink`, a good answer's body goes there."""

    def _refused(self, status: int, answer: Mapping[str, Any]) -> Refused:
        """For 4xx."""
        return Refused(status, answer)

    @abstractmethod
    def _no_engine(self, status: int) -> CommandFailed:
        """For an answer that no engine gives."""

    @abstractmethod
    def _unavailable(self, message: str) -> CommandFailed:
        """For 503."""

    @abstractmethod
    def _broken(self, message: str) -> CommandFailed:
        """For the other 5xx."""

    def _answer(self, status: int, body: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._no_engine(status)
        if status < HTTPStatus.BAD_REQUEST:
            return answer
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise self._refused(status, answer)
        message = str(answer.get("detail", f"status {status}"))
        raise self._unavailable(message) if status == HTTPStatus.SERVICE_UNAVAILABLE else self._broken(message)


class EngineClient(Client):
    """An engine at a URL. One request at a time, each on a connection of its own."""

    def __init__(self, url: str, credential: str | None = None) -> None:
        self._credential = credential
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:
            raise Mistake(_BAD_URL.format(url)) from None
        if parts.scheme in _HTTP_SCHEMES and parts.hostname:
            rest = url.partition("://")[2]
            raise Mistake(f"{url}: commands ask over HTTP: {_HTTP_SCHEMES[parts.scheme]}://{rest}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Mistake(_BAD_URL.format(url))
        self._url = url
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname
        self._base = parts.path.rstrip("/")

    def _exchange(
        self, method: str, target: str, body: bytes | None, seconds_max: float, sink: Sink | None
    ) -> tuple[int, bytes]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        if self._credential is not None:
            headers["Authorization"] = f"Bearer {self._credential}"
        connection = self._connection(seconds_max)

        def ask() -> http.client.HTTPResponse:
            connection.request(method, self._base + target, body, headers)
            return connection.getresponse()

        try:
            response = self._attempt(ask)
            if sink is None or response.status >= HTTPStatus.BAD_REQUEST:
                return response.status, self._attempt(response.read)
            self._hand_on(response, sink)
            return response.status, b""
        finally:
            connection.close()

    def _hand_on(self, response: http.client.HTTPResponse, sink: Sink) -> None:
        length = response.length
        received = 0
        while piece := self._attempt(lambda: response.read(_PIECE_BYTES)):
            received += len(piece)
            sink(piece, length)
        if length is not None and received != length:
            raise EngineUnreachable(f"the engine at {self._url} has gone after {received} of {length} bytes")

    def _attempt(self, action: Callable[[], T]) -> T:
        """:raises EngineUnreachable: when there is no answer; Mistake: when the URL is none."""
        try:
            return action()
        except (UnicodeError, http.client.InvalidURL):
            # A name or path with characters that URLs do not have.
            raise Mistake(_BAD_URL.format(self._url)) from None
        except (OSError, http.client.HTTPException) as error:
            trouble = self._tls_trouble(error)
            if trouble is not None:
                raise EngineUnreachable(f"no connection to {self._url}: {trouble}") from None
            raise EngineUnreachable(f"no engine answers at {self._url}: {_reason(error)}; {_way_out(error)}") from None

    def _tls_trouble(self, error: Exception) -> str | None:
        """None: TLS is not what is wrong."""
        if self._is_secure:
            from stellwerk.worker.tls_troubles import tls_trouble

            return tls_trouble(error)
        if isinstance(error, http.client.BadStatusLine | ConnectionResetError) and self._finds_tls():
            from stellwerk.worker.tls_troubles import SPEAKS_TLS

            return SPEAKS_TLS
        return None

    def _finds_tls(self) -> bool:
        from stellwerk.worker.tls_troubles import unchecked_context

        connection = http.client.HTTPSConnection(
            self._host, self._port or http.client.HTTP_PORT, timeout=_PROBE_SECONDS_MAX, context=unchecked_context()
        )
        try:
            connection.connect()
        except OSError:
            return False
        else:
            return True
        finally:
            connection.close()

    def _connection(self, seconds_max: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=seconds_max)

    def _refused(self, status: int, answer: Mapping[str, Any]) -> Refused:
        if status != HTTPStatus.UNAUTHORIZED:
            return Refused(status, answer)
        detail = str(answer.get("detail", "a credential is needed"))
        place = (
            "set STELLWERK_TOKEN, or give --token" if self._credential is None else "from STELLWERK_TOKEN or --token"
        )
        return Refused(status, {**answer, "detail": f"{detail} ({place})"})

    def _no_engine(self, status: int) -> CommandFailed:
        return EngineUnreachable(f"what answers at {self._url} is no stellwerk engine (status {status})")

    def _unavailable(self, message: str) -> CommandFailed:
        return EngineUnreachable(f"the engine at {self._url} cannot answer now: {message}")

    def _broken(self, message: str) -> CommandFailed:
        return CommandFailed(f"the engine at {self._url} failed: {message}")


def _target(path: str, query: Mapping[str, object] | None) -> str:
    given = {name: _query_text(value) for name, value in (query or {}).items() if value is not None}
    return API + path + (f"?{urlencode(given)}" if given else "")


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


def _way_out(error: Exception) -> str:
    if isinstance(error, ConnectionResetError | TimeoutError):  # something has taken the connection, most often
        return "it may still be starting, or wait for its database: ask again in a moment"
    way_out = "start one with `stellwerk serve`, or name another with --url"
    if os.environ.get(_DB_VARIABLE):
        way_out += f', or ask the database without an engine: --db "${_DB_VARIABLE}"'
    return way_out


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
