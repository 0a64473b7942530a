"""The child processes of the demo: started with their output in a file, and never left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

__all__ = ["Child", "ChildFailed", "Children", "log_tail", "wait_for_listening_url"]

STOP_SECONDS_MAX = 5.0
"""A child that does not end on SIGTERM within this time is killed."""
POLL_SECONDS = 0.02
LINE_CHARS_MAX = 1_000
_LISTENING = re.compile(r"listening on (http://\S+)")


class ChildFailed(Exception):
    """A child ended, or did not say what it should have said in time."""


@attrs.define(eq=False)
class Child:
    name: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL: the process has no chance to tidy up."""
        self.process.kill()
        self.process.wait()


class Children:
    """A context that stops every child it has started, whatever ends it."""

    def __init__(self, log_directory: Path) -> None:
        self._log_directory = log_directory
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    def start(self, name: str, arguments: Sequence[str]) -> Child:
        """Start ``python ARGUMENTS``. A child of the same name goes on in the same log."""
        log = self._log_directory / f"{name}.log"
        with log.open("ab") as output:
            # A session of its own: Ctrl-C in the terminal reaches the demo only, which then stops its children itself.
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        child = Child(name, log, process)
        self._children.append(child)
        return child

    def stop_all(self) -> None:
        """SIGTERM to all, and SIGKILL to those that have not ended after `STOP_SECONDS_MAX`."""
        running = [child for child in self._children if child.running]
        for child in running:
            child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for child in running:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()


def wait_for_listening_url(child: Child, seconds_max: float, *, log_offset: int = 0) -> str:
    """The URL that an engine prints once it accepts connections.

    :param log_offset: where in its log to begin: what an earlier process wrote there is not meant.
    :raises ChildFailed: when it ends, or says nothing for `seconds_max`.
    """
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        ended = not child.running
        text = child.log.read_bytes()[log_offset:].decode(errors="replace")
        if match := _LISTENING.search(text):
            return match.group(1)
        if ended:
            raise ChildFailed(f"the {child.name} ended with exit code {child.process.returncode}")
        time.sleep(POLL_SECONDS)
    raise ChildFailed(f"the {child.name} did not listen within {seconds_max:g} s")


def log_tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, long ones cut; empty when there is none."""
    if not log.exists():
        return ""
    last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return "\n".join(line if len(line) <= LINE_CHARS_MAX else line[:LINE_CHARS_MAX] + "…" for line in last)
