"""Requests to the engine's HTTP API that are repeated, on any node, until somebody has answered for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import trio

from simulations.cluster.http_client import Answer, HttpClient, Unanswered
from simulations.cluster.surroundings import Surroundings
from simulations.kernel.draws import between
from simulations.world.hosts import Host
from stellwerk.json_values import JsonValue

__all__ = ["Caller", "ClientCall", "ClientObserver", "Known"]

_TIMEOUT_SECONDS = 4.0
_REPEAT_SECONDS = (0.1, 0.8)
_NOT_FOR_GOOD = (500, 503)
"""Ask again: unavailable, or a fault of the engine's, which its log has made a violation already."""


@attrs.frozen(kw_only=True)
class ClientCall:
    """One request."""

    place: str
    key: str
    """Of what it is for: the same in all its repetitions."""
    number: int
    """Counts the repetitions from 1."""
    target: str
    method: str
    path: str
    body: JsonValue


class ClientObserver(Protocol):
    def asked(self, call: ClientCall) -> None:
        """About to be sent."""

    def answered(self, call: ClientCall, answer: Answer) -> None: ...

    def unanswered(self, call: ClientCall, was_sent: bool) -> None:
        """Nobody knows whether it was done or still will be; `was_sent` False: it was not, and will not be."""


@attrs.frozen
class Known:
    """What became of a request in the end."""

    answer: Answer
    unanswered: int
    """Requests before the answered one of which nobody knows whether they were done."""


class Caller:
    """For one host that is a client."""

    def __init__(self, surroundings: Surroundings, host: Host, observers: Sequence[ClientObserver] = ()) -> None:
        self._surroundings = surroundings
        self._host = host
        self._observers = observers
        self._http = HttpClient(surroundings.network, host.name)
        self._balancer = surroundings.balancer()
        self._numbers: Counter[str] = Counter()

    async def until_known(
        self,
        key: str,
        method: str,
        path: str,
        body: JsonValue = None,
        *,
        headers: Mapping[str, str] | None = None,
        unanswered: int = 0,
    ) -> Known:
        """Ask, each time another node, until one answers for good.

        :param unanswered: requests for the same thing that were made before, without an answer.
        """
        while True:
            self._numbers[key] += 1
            number = self._numbers[key]
            call = self._call(key, number, method, path, body)
            try:
                answer = await self._ask(call, headers)
            except Unanswered as error:
                unanswered += error.was_sent
                self._balancer.failed(call.target)
            else:
                if answer.status not in _NOT_FOR_GOOD:
                    return Known(answer, unanswered)
                # It may have been done for all that: a commit whose answer got lost, say.
                unanswered += 1
            await trio.sleep(between(self._surroundings.simulation.seed, *_REPEAT_SECONDS, "repeat", key, number))

    def _call(self, key: str, number: int, method: str, path: str, body: JsonValue) -> ClientCall:
        target = self._balancer.order("client", key, number)[0]
        return ClientCall(
            place=self._host.place, key=key, number=number, target=target, method=method, path=path, body=body
        )

    async def _ask(self, call: ClientCall, headers: Mapping[str, str] | None) -> Answer:
        """:raises Unanswered: see there."""
        named = {"key": call.key, "number": call.number}
        trace = self._surroundings.trace
        trace(call.place, "request", **named, to=call.target, method=call.method, path=call.path)
        for observer in self._observers:
            observer.asked(call)
        try:
            answer = await self._http.request(
                call.target, call.method, call.path, call.body, headers=headers, timeout=_TIMEOUT_SECONDS
            )
        except Unanswered as error:
            trace(call.place, "answer", **named, lost=str(error), was_sent=error.was_sent)
            for observer in self._observers:
                observer.unanswered(call, error.was_sent)
            raise
        trace(call.place, "answer", **named, status=answer.status, **_said(answer))
        for observer in self._observers:
            observer.answered(call, answer)
        return answer

    async def close(self) -> None:
        await self._http.close()


def _said(answer: Answer) -> dict[str, object]:
    """Who was refused is told why."""
    if answer.status < 400 or not isinstance(answer.json, dict):
        return {}
    return {"code": answer.json.get("code"), "message": answer.json.get("message")}
