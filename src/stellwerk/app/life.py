"""Calls end with their engine: who asks from outside its block must not wait for an answer that nobody gives."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import trio

from stellwerk.app.arguments import argument_check
from stellwerk.errors import StoreUnavailable

__all__ = ["EngineLife", "while_open"]

P = ParamSpec("P")
R = TypeVar("R")


class EngineLife:
    def __init__(self) -> None:
        self._calls: set[trio.CancelScope] = set()
        self._has_ended = False

    def end(self) -> None:
        """Calls under way raise, and later ones do."""
        self._has_ended = True
        for scope in list(self._calls):
            scope.cancel()

    async def run(self, call: Callable[[], Awaitable[R]]) -> R:
        """:raises StoreUnavailable: the engine has ended, or ends before there is an answer."""
        if self._has_ended:
            raise StoreUnavailable("this engine has ended: its block was left")
        with trio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await call()
            except StoreUnavailable:
                # Who is cancelled together with the engine hears that, not that the engine has stopped first.
                await trio.lowlevel.checkpoint_if_cancelled()
                raise
            finally:
                self._calls.discard(scope)
        raise StoreUnavailable("this engine has ended meanwhile; what was asked may have been done or not")


class _Living(Protocol):
    _life: EngineLife


L = TypeVar("L", bound=_Living)


def while_open(
    method: Callable[Concatenate[L, P], Awaitable[R]],
) -> Callable[Concatenate[L, P], Coroutine[Any, Any, R]]:
    """Decorator for methods of an engine, whose arguments are checked (`argument_check`)."""
    check = argument_check(method)

    @functools.wraps(method)
    async def run(self: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
        check(self, *args, **kwargs)
        return await self._life.run(lambda: method(self, *args, **kwargs))

    return run
