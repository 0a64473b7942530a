"""A nursery wraps even a single error; who opens an engine wants to catch the error itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Body", "without_group"]


class Body:
    """The caller's own code in a context."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """What leaves this block is the caller's error, to be given back as it is: also if it is a group."""
        try:
            yield
        except BaseException as error:
            self._error = error
            raise

    def unwrapped(self, group: BaseExceptionGroup[BaseException]) -> BaseException:
        """The caller's error if the group holds nothing else, or what is alone in it; else the group."""
        leaves = _leaves(group)
        # By their leaves: on its way through cancel scopes a group is taken apart and made anew.
        if self._error is not None and {id(leaf) for leaf in leaves} == {id(leaf) for leaf in _leaves(self._error)}:
            return self._error
        return leaves[0] if len(leaves) == 1 else group


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


@contextmanager
def without_group() -> Iterator[Body]:
    """An error that leaves this block alone, however deeply wrapped in groups, leaves it bare. Several stay a group."""
    body = Body()
    try:
        yield body
    except BaseExceptionGroup as group:
        only = body.unwrapped(group)
        if only is group:
            raise
        context = only.__context__
        try:
            raise only
        finally:
            # Raising it here sets the group, which wraps this very error, as what went before it.
            only.__context__ = context
            del only, group
