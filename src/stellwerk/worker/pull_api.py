"""The engine's API for workers that poll: what is asked, and what its answers mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from stellwerk.errors import InvalidInput
from stellwerk.values import frozen
from stellwerk.wire.messages import NackCode, TaskOffer
from stellwerk.wire.pull import (
    API_PATH,
    FETCH_PATH,
    WAITED_HEADER,
    FetchAndLock,
    decode_extension,
    decode_problem,
    decode_tasks,
    encode_extension,
    encode_fetch,
    encode_final,
    final_verb,
)
from stellwerk.wire.session import lease_deadline_ms, surely_left
from stellwerk.worker.credentials import Credentials
from stellwerk.worker.errors import Refused
from stellwerk.worker.finals import LEASE_IS_GONE
from stellwerk.worker.handler import Handler
from stellwerk.worker.http_client import HttpAnswer, HttpCall, HttpClient
from stellwerk.worker.leases import FinalRequest, Lease

__all__ = ["Arrival", "PullApi", "RefusedRequest"]

_ANSWER_TIMEOUT_S = 10.0
_RETRY_AFTER_S_MAX = 60.0
_FOREIGN_TEXT_CHARS_MAX = 200
_HEADER_TEXT = re.compile(r"[\x21-\x7e]+")


class RefusedRequest(Refused):
    """The engine answered something else than that it is done."""

    def __init__(
        self, message: str, *, code: str, status: int, retryable: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s


@frozen
class Arrival:
    """A task, and until when it surely is ours; ms on our clock."""

    offer: TaskOffer
    deadline_ms: float


class PullApi:
    def __init__(self, client: HttpClient, credentials: Credentials, worker_id: str) -> None:
        self._client = client
        self._credentials = credentials
        self._worker_id = worker_id

    def fetching(self, handlers: Sequence[Handler], max_tasks: int, wait_s: float) -> HttpCall:
        """The request for tasks of the handlers' topics, for `fetch`. But for the topic they are alike.

        :param max_tasks: of all topics together.
        """
        handler, wait_ms = handlers[0], round(wait_s * 1000)
        request = FetchAndLock(
            worker_id=self._worker_id,
            task_types=tuple([each.topic for each in handlers]),
            max_tasks=max_tasks,
            lock_duration_ms=handler.lock_duration_ms,
            wait_ms=wait_ms,
            filter=handler.filter,
            variables=handler.variables,
        )
        return HttpCall(API_PATH + FETCH_PATH, encode_fetch(request), _ANSWER_TIMEOUT_S + wait_ms / 1000)

    async def fetch(self, call: HttpCall) -> list[Arrival]:
        """
        :raises ConnectionLost: no answer came. RefusedRequest: the engine said no. NoCredential: none could be had.
        :raises InvalidInput: the answer is none of this API.
        """
        answer = await self._post(call)
        made_ms = answer.sent_ms + surely_left(_waited_ms(answer))
        return [
            Arrival(task.as_offer(), lease_deadline_ms(made_ms, task.lock_remaining_ms))
            for task in decode_tasks(answer.body)
        ]

    async def hand_in(self, request: FinalRequest) -> None:
        """Raises as `fetch` does."""
        path = _path(request.task_id, final_verb(request))
        await self._post(HttpCall(path, encode_final(self._worker_id, request), _ANSWER_TIMEOUT_S))

    async def extend(self, lease: Lease, duration_ms: int, timeout_s: float) -> float:
        """→ until when the lease surely is ours. Raises as `fetch` does."""
        body = encode_extension(self._worker_id, lease.offer.fence, duration_ms)
        path = _path(lease.offer.task_id, "extend-lock")
        answer = await self._post(HttpCall(path, body, min(timeout_s, _ANSWER_TIMEOUT_S)))
        remaining_ms = decode_extension(answer.body).lock_remaining_ms
        return lease_deadline_ms(answer.sent_ms, min(remaining_ms, lease.unsure_ms))

    async def _post(self, call: HttpCall) -> HttpAnswer:
        """A credential that is refused is replaced once."""
        token = _checked(await self._credentials.known())
        answer = await self._client.post(call, token)
        if answer.status == 401 and token is not None:
            newer = _checked(await self._credentials.known(refused=token))
            if newer != token:
                answer = await self._client.post(call, newer)
        if not 200 <= answer.status <= 299:
            raise _refusal(answer)
        return answer


def _path(task_id: str, verb: str) -> str:
    return f"{API_PATH}/external-tasks/{quote(task_id, safe='')}/{verb}"


def _checked(token: str | None) -> str | None:
    """:raises InvalidInput: it cannot stand in a header. The message does not quote it."""
    if token is not None and not _HEADER_TEXT.fullmatch(token):
        raise InvalidInput("the credential has characters that no HTTP header can carry, or none at all")
    return token


def _waited_ms(answer: HttpAnswer) -> int:
    text = answer.headers.get(WAITED_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _refusal(answer: HttpAnswer) -> RefusedRequest:
    problem = decode_problem(answer.body)
    text = problem.detail or answer.body[:_FOREIGN_TEXT_CHARS_MAX].decode("utf-8", "replace") or "nothing"
    code, retryable = _meaning(answer.status, problem.code)
    return RefusedRequest(
        f"{text} (HTTP status {answer.status})",
        code=code,
        status=answer.status,
        retryable=retryable,
        retry_after_s=_retry_after_s(answer),
    )


def _meaning(status: int, code: str) -> tuple[str, bool]:
    """→ a code, and whether the same request may be taken later.

    What is no answer of the engine's API (there is no code in it) comes from something in between: that may pass.
    """
    match status:
        case 401:
            return NackCode.UNAUTHENTICATED, True
        case 403:
            return NackCode.FORBIDDEN, True
        case 404:
            return NackCode.NOT_FOUND, not code
        case 409:
            return code if code in LEASE_IS_GONE else NackCode.LEASE_LOST, False
        case 413:
            return NackCode.TOO_LARGE, False
        case 408 | 425 | 429:
            return NackCode.UNAVAILABLE, True
        case 500 if code == NackCode.INTERNAL:
            return NackCode.INTERNAL, True
        case _ if status >= 500:
            return NackCode.UNAVAILABLE, True
        case _:
            return NackCode.INVALID, not code


def _retry_after_s(answer: HttpAnswer) -> float:
    """Of its two forms only the number of seconds."""
    text = answer.headers.get("retry-after", "")
    return min(float(text), _RETRY_AFTER_S_MAX) if text.isascii() and text.isdigit() else 0.0
