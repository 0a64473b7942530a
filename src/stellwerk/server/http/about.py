"""What the document of the API says of an endpoint, beside its method, path and scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from stellwerk.server.http.requests import NoQuery

__all__ = ["About", "about", "about_of"]

F = TypeVar("F", bound=Callable[..., object])

_ATTRIBUTE = "__about__"


@attrs.frozen
class About:
    summary: str
    answer: object = None
    """A class of `shapes`, or ``tuple[C, ...]`` of one. None: it is no JSON."""
    body: type | None = attrs.field(default=None, kw_only=True)
    query: type = attrs.field(default=NoQuery, kw_only=True)
    """The classes that the endpoint structures its body and its query as."""
    status: int = attrs.field(default=200, kw_only=True)
    content_type: str = attrs.field(default="application/json", kw_only=True)
    codes: Sequence[str] = attrs.field(default=(), kw_only=True)
    """Errors beside those that any endpoint of its kind may answer."""
    plain_errors: Mapping[int, str] = attrs.field(factory=dict, kw_only=True)
    """Instead of errors with codes: statuses whose answer is text, and what they say."""
    headers: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """Those of the answer that a client may need, and what they say."""
    has_idempotency_key: bool = attrs.field(default=False, kw_only=True)


def about(summary: str, answer: object = None, **more: Any) -> Callable[[F], F]:
    """Decorates the handler of an endpoint; the arguments are those of `About`."""
    description = About(summary, answer, **more)

    def describe(handler: F) -> F:
        setattr(handler, _ATTRIBUTE, description)
        return handler

    return describe


def about_of(handler: Callable[..., object]) -> About | None:
    """None: the endpoint is not in the document."""
    found = getattr(handler, _ATTRIBUTE, None)
    assert found is None or isinstance(found, About)
    return found
