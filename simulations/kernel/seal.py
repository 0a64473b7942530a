"""The seal around a run: entropy comes from the seed, clocks show virtual time, and the way out is shut.

What it cannot reach (C code that asks the operating system itself, such as ``random.Random()`` without a seed or
``datetime.now()``) is kept out of the engine by lint rules, and found by comparing two runs.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import trio

from simulations.kernel.clock import SimulatedClock
from simulations.kernel.draws import Draws, sub_seed
from simulations.kernel.limits import Limits

__all__ = ["EPOCH_MS", "Escape", "sealed"]

EPOCH_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the wall time at the start of every simulation."""


class Escape(BaseException):
    """Something under simulation reached for the world outside. No handler of ours may swallow it."""


@contextmanager
def sealed(seed: int, clock: SimulatedClock, on_escape: Callable[[str], None]) -> Iterator[None]:
    """:param on_escape: told what was reached for, since the `Escape` that is raised there may be lost."""

    def shut(what: str) -> Callable[..., NoReturn]:
        def refuse(*_: object, **__: object) -> NoReturn:
            on_escape(what)
            raise Escape(f"{what} is outside the simulation")

        return refuse

    draws = Draws(seed, "os.urandom")
    state = random.getstate()
    with ExitStack() as patches:
        for target, name, replacement in _replacements(draws, clock, shut):
            patches.enter_context(patch.object(target, name, replacement))
        random.seed(sub_seed(seed, "random"))
        try:
            yield
        finally:
            random.setstate(state)


def _replacements(
    draws: Draws, clock: SimulatedClock, shut: Callable[[str], Callable[..., NoReturn]]
) -> list[tuple[Any, str, object]]:
    limits = Limits(clock)
    return [
        # The masks and keys of WebSockets, uuid4, secrets, and every generator that seeds itself in Python.
        (os, "urandom", draws.bytes),
        (random, "_urandom", draws.bytes),
        (time, "time", lambda: EPOCH_MS / 1000 + clock.seconds),
        (time, "time_ns", lambda: EPOCH_MS * 1_000_000 + round(clock.seconds * 1e9)),
        (time, "monotonic", lambda: clock.seconds),
        (time, "monotonic_ns", lambda: round(clock.seconds * 1e9)),
        (trio, "sleep", clock.sleep),
        (trio, "sleep_until", clock.sleep_until),
        (trio, "move_on_after", limits.move_on_after),
        (trio, "fail_after", limits.fail_after),
        (time, "sleep", shut("time.sleep")),
        (threading.Thread, "start", shut("threading.Thread.start")),
        (trio.to_thread, "run_sync", shut("trio.to_thread.run_sync")),
        (trio.socket, "socket", shut("trio.socket.socket")),
        (trio, "open_tcp_stream", shut("trio.open_tcp_stream")),
        (trio, "open_tcp_listeners", shut("trio.open_tcp_listeners")),
        (trio, "run_process", shut("trio.run_process")),
        (socket.socket, "connect", shut("socket.connect")),
        (socket.socket, "bind", shut("socket.bind")),
    ]
