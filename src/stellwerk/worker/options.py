"""Options of a worker, checked. What is wrong raises `InvalidInput`, which names the option."""

from __future__ import annotations

from typing import Literal, TypeAlias

from stellwerk.errors import InvalidInput
from stellwerk.wire.pull import WAIT_MS_MAX

__all__ = ["Transport", "check_grace", "check_pause", "check_polls", "checked_transport"]

Transport: TypeAlias = Literal["websocket", "http"]
"""How tasks come: pushed over a WebSocket, or polled over HTTP."""

_IDLE_S_MAX = 3_600.0


def check_grace(seconds: object) -> None:
    """Infinite is a number of seconds too."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not seconds >= 0:  # type: ignore[operator]
        raise InvalidInput(f"a grace period is a number of seconds from 0, not {seconds!r}")


def check_pause(seconds: object) -> None:
    """Between attempts to connect."""
    if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise InvalidInput(f"reconnect_seconds_max must be positive seconds, not {seconds!r}")


def check_polls(idle_timeout: object, long_polling_timeout: object) -> None:
    _check_seconds("idle_timeout", idle_timeout, _IDLE_S_MAX)
    _check_seconds("long_polling_timeout", long_polling_timeout, WAIT_MS_MAX / 1000)


def _check_seconds(name: str, seconds: object, most: float) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= most:  # type: ignore[operator]
        raise InvalidInput(f"{name} must be from 0 to {most:g} seconds, not {seconds!r}")


def checked_transport(transport: object) -> Transport:
    match transport:
        case "websocket":
            return "websocket"
        case "http":
            return "http"
        case _:
            raise InvalidInput(f"transport must be 'websocket' or 'http', not {transport!r}")
