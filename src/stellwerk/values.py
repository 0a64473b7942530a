"""Frozen values that are quick to make: steps, rows and messages are made of a dozen of them each.

`attrs.frozen` sets every field through ``object.__setattr__``, which makes a value of ten fields seven times as
expensive as an unguarded one. Here the type checker alone keeps values from being changed: to it, `frozen` is
`attrs.frozen`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

__all__ = ["frozen"]

if TYPE_CHECKING:
    from attrs import frozen
else:

    def frozen(cls: type | None = None, **options: Any) -> Any:
        """As `attrs.frozen`: slots, equality and a hash by value."""
        return attrs.define(cls, unsafe_hash=True, **options)
