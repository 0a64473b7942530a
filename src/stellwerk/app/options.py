"""Options as programs give them, checked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Literal, TypeAlias, TypeVar

from stellwerk.errors import InvalidInput
from stellwerk.instants import EPOCH, InstantMs
from stellwerk.model.process import FailurePolicy
from stellwerk.stores.sqlite.connection import Synchronous

__all__ = ["PolicyOption", "duration_ms", "instant_of", "member_of", "policy_of", "port_of", "synchronous_of"]

E = TypeVar("E", bound=Enum)

PolicyOption: TypeAlias = FailurePolicy | Literal["incident", "compensate"]


def member_of(name: str, value: object, enum: type[E]) -> E:
    """The member, or the one with this value.

    :raises InvalidInput: there is none.
    """
    try:
        return enum(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in enum)
        raise InvalidInput(f"{name} must be one of {known}, not {value!r}") from None


def policy_of(value: PolicyOption | None) -> FailurePolicy | None:
    return None if value is None else member_of("failure_policy", value, FailurePolicy)


def synchronous_of(value: Synchronous) -> Synchronous:
    if value not in ("FULL", "NORMAL"):
        raise InvalidInput(f"synchronous must be 'FULL' or 'NORMAL', not {value!r}")
    return value


def port_of(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 65535:
        raise InvalidInput(f"port must be a number from 0 to 65535, or None for no port, not {value!r}")
    return value


def instant_of(name: str, value: datetime | None) -> InstantMs | None:
    """:raises InvalidInput: it has no time zone."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise InvalidInput(f"{name} must have a time zone, as in datetime(2026, 1, 31, tzinfo=UTC)")
    return (value.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1)


def duration_ms(name: str, value: timedelta) -> int:
    """:raises InvalidInput: it is negative."""
    if value < timedelta(0):
        raise InvalidInput(f"{name} must not be negative, as {value} is")
    return value // timedelta(milliseconds=1)
