"""Supervision: a service that fails is logged and started again; it never takes the node with it.

A failed service keeps nothing in doubt: what it works on stands in the store, and it scans again when it starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVarTuple

import trio

from stellwerk.errors import StoreUnavailable
from stellwerk.ports import Clock, Log

__all__ = ["STOPPED", "start_actor", "supervise"]

Arguments = TypeVarTuple("Arguments")

STOPPED = "the engine stops; the request may be repeated"

_PAUSE_SECONDS_FIRST = 0.05
_PAUSE_SECONDS_MAX = 2.0
_REPEAT_SECONDS = 60.0
"""A store that stays away fails every service again and again: the log has it once in so long."""


async def supervise(name: str, service: Callable[[], Awaitable[None]], *, clock: Clock, log: Log) -> NoReturn:
    """Run `service` for ever, with growing pauses between failures that follow each other closely."""
    pause = _PAUSE_SECONDS_FIRST
    told, told_at = "", 0.0
    while True:
        began = clock.monotonic()
        try:
            await service()
        except StoreUnavailable as error:
            if str(error) != told or clock.monotonic() - told_at >= _REPEAT_SECONDS:
                told, told_at = str(error), clock.monotonic()
                log.warning("store unavailable", service=name, reason=told)
        except Exception:  # the one place where any fault of a service ends
            log.exception("service failed and starts again", service=name)
        if clock.monotonic() - began > _PAUSE_SECONDS_MAX:
            pause = _PAUSE_SECONDS_FIRST
        await clock.sleep(pause)
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)


def start_actor(
    nursery: trio.Nursery,
    name: str,
    run: Callable[[*Arguments], Awaitable[None]],
    *arguments: *Arguments,
) -> None:
    """Start an actor in the node's nursery.

    :raises StoreUnavailable: the node has stopped. Some still ask then: who was waiting for a thread when everything
        was cancelled, or shields itself to tidy up.
    """
    try:
        nursery.start_soon(run, *arguments, name=name)
    except RuntimeError:  # trio says no more than that: the nursery is closed
        raise StoreUnavailable(STOPPED) from None
