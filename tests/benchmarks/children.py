"""Child processes that are told what to do by lines of JSON on their standard input, and answer in the same way."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["Child", "ChildFailed"]

_CHECKOUT = Path(__file__).parents[2]
_END_SECONDS_MAX = 20.0
_READ_BYTES = 65_536


class ChildFailed(Exception):
    """With the end of what it wrote to standard error."""


class Child:
    """One child; a context manager that ends it, whatever state it is in."""

    def __init__(self, command: Sequence[str], log: Path, *, cwd: Path = _CHECKOUT) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0, cwd=cwd
            )
        self._lines: deque[bytes] = deque()
        self._rest = b""

    @classmethod
    def of_module(cls, module: str, arguments: Sequence[str], log: Path, *, before: Sequence[str] = ()) -> Child:
        """``before``: arguments of the interpreter."""
        return cls([sys.executable, *before, "-m", f"tests.benchmarks.{module}", *arguments], log)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # that is how it is told to end
        try:
            self._process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """At once, as a failing machine would."""
        self._process.kill()
        self._process.wait()

    def tell(self, **command: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
        except BrokenPipeError:
            self._raise_failed()

    def answer(self, seconds_max: float | None = None) -> Any:
        """The next line that it writes.

        :raises ChildFailed: it ended instead, or wrote nothing for so long.
        """
        assert self._process.stdout is not None
        deadline = None if seconds_max is None else time.monotonic() + seconds_max
        while not self._lines:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise ChildFailed(f"{self._process.args!r} said nothing for {seconds_max:g} s:\n{self._tail()}")
            self._read()
        return json.loads(self._lines.popleft())

    def answers(self, seconds: float) -> Iterator[Any]:
        """The lines that it has written, after at most so long a wait for the first of them."""
        assert self._process.stdout is not None
        if not self._lines and select.select([self._process.stdout], [], [], seconds)[0]:
            self._read()
        while self._lines:
            yield json.loads(self._lines.popleft())

    def _read(self) -> None:
        assert self._process.stdout is not None
        piece = os.read(self._process.stdout.fileno(), _READ_BYTES)
        if not piece:
            self._raise_failed()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        self._lines += lines

    def ask(self, seconds_max: float | None = None, **command: object) -> Any:
        self.tell(**command)
        return self.answer(seconds_max)

    def finish(self) -> Any:
        """Close its input, and give the last line that it writes before it ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        rest = self._rest + self._process.stdout.read()
        lines = [*self._lines, *rest.splitlines()]
        if not lines or self._process.wait(_END_SECONDS_MAX) != 0:
            self._raise_failed()
        return json.loads(lines[-1])

    def _raise_failed(self) -> NoReturn:
        code = self._process.wait(_END_SECONDS_MAX)
        raise ChildFailed(f"{self._process.args!r} ended with exit code {code}:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
