"""Standard input, output and error as they are: full, closed, or without the characters that we have to say."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO, TypeVar, cast

__all__ = ["GuardedOutput", "OutputFailed", "ReaderGone", "as_it_is", "guarded_output", "occupy_closed_descriptors"]

T = TypeVar("T")


class OutputFailed(Exception):
    """Nothing can be written to standard output: the disk is full, say, or it is closed."""


class ReaderGone(OutputFailed):
    """Whoever read our output has enough, as in ``… | head``."""


class GuardedOutput:
    """A stream for `sys.stdout` that tells its own failure from every other OSError."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream
        """None: closed when Python started."""
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # Better an escape than no answer where a terminal has ASCII only.
            stream.reconfigure(errors="backslashreplace")

    @property
    def encoding(self) -> str:
        return (self.stream and self.stream.encoding) or "utf-8"

    def isatty(self) -> bool:
        return self.stream is not None and self.stream.isatty()

    def write(self, text: str) -> int:
        """:raises OutputFailed: also for what was written before, and only now goes out."""
        stream = self.stream
        if stream is None:
            raise OutputFailed("standard output is closed")
        return self._attempt(lambda: stream.write(text))

    def flush(self) -> None:
        """:raises OutputFailed: see `write`."""
        if self.stream is not None:
            self._attempt(self.stream.flush)

    def _attempt(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except BrokenPipeError:
            self._drop_the_rest()
            raise ReaderGone("nobody reads standard output any more") from None
        except OSError as error:
            self._drop_the_rest()
            raise OutputFailed(f"cannot write to standard output: {error.strerror or error}") from None

    def _drop_the_rest(self) -> None:
        """What is buffered would fail once more when Python exits, with a complaint and an exit code of its own."""
        with suppress(OSError, ValueError):
            assert self.stream is not None
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


@contextmanager
def guarded_output() -> Iterator[None]:
    """`sys.stdout` is a `GuardedOutput` within."""
    with redirect_stdout(cast("TextIO", GuardedOutput(sys.stdout))):
        yield


@contextmanager
def as_it_is() -> Iterator[None]:
    """`sys.stdout` is Python's own again: for code of the user's."""
    output: object = sys.stdout
    with redirect_stdout(output.stream if isinstance(output, GuardedOutput) else sys.stdout):
        yield


def occupy_closed_descriptors() -> None:
    """Or the first file or socket that we open becomes the standard output of our children."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free: this one
