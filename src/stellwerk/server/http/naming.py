"""For APIs of other engines: what this engine calls a field, and what the request has called it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from stellwerk.errors import StellwerkError

__all__ = ["named"]

_PLACE = re.compile(r"(?<= @ )\$\.([a-z_]+)(?![A-Za-z])")
_SUBJECT = re.compile(r"^[a-z]+(?:_[a-z]+)+(?= is )")
_COMMON = {"worker_id": "$.workerId", "task_id": "path.id"}


@contextmanager
def named(**places: str) -> Iterator[None]:
    """Around a call of the engine: its errors name places of this request.

    :param places: by the engine's name, where that is in the request, as ``code="$.errorCode"``.
    """
    try:
        yield
    except StellwerkError as error:
        error.message = _renamed(error.message, {**_COMMON, **places})
        raise


def _renamed(message: str, places: Mapping[str, str]) -> str:
    message = _PLACE.sub(lambda place: places.get(place[1], place[0]), message)
    return _SUBJECT.sub(lambda name: places.get(name[0], name[0]).rpartition(".")[2], message)
