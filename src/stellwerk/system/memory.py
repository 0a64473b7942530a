"""The garbage collector, set for a server."""

from __future__ import annotations

import gc

__all__ = ["collect_seldom"]

_YOUNG_MAX = 50_000
_SURVIVALS_OF_YOUNG = 20
_SURVIVALS_OF_MIDDLE = 100


def collect_seldom() -> None:
    """For a process that is an engine and nothing else: a quarter of its time went into looking for cycles, of which
    it makes few (reference counts free nearly everything). What is loaded by now stays and is not looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, _SURVIVALS_OF_YOUNG, _SURVIVALS_OF_MIDDLE)
