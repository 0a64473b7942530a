"""What a mutant is."""

from __future__ import annotations

from contextlib import AbstractContextManager

import attrs

from simulations.mutants.patching import Patch, applied

__all__ = ["Mutant"]


@attrs.frozen(kw_only=True)
class Mutant:
    """A deliberate bug: a slip that a good engineer could make, put into the running code from outside."""

    name: str
    what: str
    """What goes wrong, in a sentence."""
    invariants: tuple[str, ...]
    """Which of them should be broken first; others may follow from it."""
    patches: tuple[Patch, ...]
    number: int | None = None
    """In the table of 26 that the design began with; None: one of our own."""
    needs: tuple[str, ...] = ()
    """What a plan must have, or the bug cannot show: ``shared`` (a store of several nodes), ``sqlite``."""

    def apply(self) -> AbstractContextManager[object]:
        """The bug is there for the time of the context. One mutant at a time.

        :raises PatchFailed: the code that it changes is not what it was; nothing is changed then.
        """
        return applied(*self.patches)
