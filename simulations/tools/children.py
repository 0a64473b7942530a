"""Processes that run plans for us, each with its own hash seed: what depends on it shows as a difference."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO, TypeVar, cast

from simulations.plans.plan import Plan, to_json
from simulations.tools.outcomes import Outcome

__all__ = ["Child", "ChildFailed", "Children", "Launch", "first_done"]

T = TypeVar("T")

_RUNS_MAX = 200
"""Then a child is replaced: what it has piled up shall not be what is tested."""
_RUN_SECONDS_MAX = 300.0
"""Of real time: a run that takes longer hangs, in code that gives trio no turn, or the kernel would have ended it."""
_LAST_WORDS_SECONDS = 5.0
"""A process that hangs says where within that, and is killed."""
_LAST_WORDS = 8_000
"""Characters: the stack of a task under trio needs some thousands, and begins with what is of interest."""


class ChildFailed(Exception):
    """A run ended without a result: it raised, its process died, or it took too long. The message says which."""


class Launch(Protocol):
    def __call__(self, hash_seed: int) -> Child: ...


class Child:
    """One process, and one run at a time."""

    def __init__(
        self,
        hash_seed: int,
        *,
        python: str = sys.executable,
        simulate: str | None = None,
        seconds_max: float = _RUN_SECONDS_MAX,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """:param python: which interpreter; it must have what the engine needs.
        :param simulate: ``module:function`` in place of the real one."""
        self.hash_seed = hash_seed
        self.runs = 0
        self._seconds_max = seconds_max
        self._errors = _Tail()
        self._process = subprocess.Popen(
            [python, "-m", "simulations.tools.child", *([simulate] if simulate else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=Path(__file__).parents[2],
            env={**(environment or os.environ), "PYTHONHASHSEED": str(hash_seed)},
        )
        assert self._process.stderr is not None
        threading.Thread(target=self._errors.read, args=(self._process.stderr,), daemon=True).start()

    @property
    def is_worn(self) -> bool:
        return self.runs >= _RUNS_MAX or self._process.poll() is not None

    def run(self, plan: Plan, *, mutant: str | None = None, trace: Path | None = None) -> Outcome:
        """:param trace: a file to write the trace to.
        :raises ChildFailed: see there."""
        self.runs += 1
        request = {"plan": to_json(plan), "mutant": mutant, "trace": None if trace is None else str(trace)}
        answer = self._ask(json.dumps(request))
        if "error" in answer:
            raise ChildFailed(answer["error"])
        return Outcome(**answer["outcome"])

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        began = time.monotonic()
        watchdog = threading.Timer(self._seconds_max, self._stop)
        watchdog.start()
        try:
            with suppress(BrokenPipeError):
                self._process.stdin.write(f"{line}\n")
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if answer.endswith("\n"):
            return cast("dict[str, Any]", json.loads(answer))
        code = self._process.wait()
        is_late = time.monotonic() - began >= self._seconds_max
        self._errors.done.wait(_LAST_WORDS_SECONDS)
        why = f"took more than {self._seconds_max:g} s" if is_late else f"ended with code {code}"
        raise ChildFailed(f"the process {why}: {self._errors.text}")

    def _stop(self) -> None:
        """The child writes where it is (see `child`), which ends it."""
        self._process.send_signal(signal.SIGUSR1)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_SECONDS)
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._errors.done.wait(5)
        if self._process.stderr is not None:
            self._process.stderr.close()


class _Tail:
    """The last of what a process wrote; reading it keeps the process from waiting."""

    def __init__(self) -> None:
        self.text = ""
        self.done = threading.Event()

    def read(self, stream: TextIO) -> None:
        for line in stream:
            self.text = (self.text + line)[-_LAST_WORDS:]
        self.done.set()


class Children:
    """A pool of `jobs` children. Orders are given with `submit`; a child that failed or is worn is replaced."""

    def __init__(self, jobs: int, launch: Launch = Child) -> None:
        self._launch = launch
        self._threads = ThreadPoolExecutor(jobs)
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._hash_seeds = count(1)
        self._is_closed = False

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """What is under way is stopped."""
        with self._lock:
            self._is_closed = True
            children = list(self._all)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.close()
        self._threads.shutdown()

    def submit(self, plan: Plan, *, mutant: str | None = None) -> Future[Outcome]:
        """The future raises `ChildFailed`."""
        return self._threads.submit(lambda: self._run(plan, mutant, [None])[0])

    def submit_twins(
        self, plan: Plan, traces: Sequence[Path | None], *, mutant: str | None = None
    ) -> Future[tuple[Outcome, ...]]:
        """Once for each file that a trace goes to (or for None), one after the other, in as many processes, whose hash
        seeds differ. The future raises `ChildFailed`."""
        return self._threads.submit(self._run, plan, mutant, traces)

    def _run(self, plan: Plan, mutant: str | None, traces: Sequence[Path | None]) -> tuple[Outcome, ...]:
        with ExitStack() as taken:
            return tuple(taken.enter_context(self._child()).run(plan, mutant=mutant, trace=trace) for trace in traces)

    @contextmanager
    def _child(self) -> Iterator[Child]:
        """Nobody else has it; whoever fails is not used again."""
        child = self._take()
        try:
            yield child
        except ChildFailed:
            self._discard(child)
            raise
        self._give(child)

    def _take(self) -> Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if self._is_closed:
                raise ChildFailed("stopped")
            child = self._launch(next(self._hash_seeds))
            self._all.add(child)
            return child

    def _give(self, child: Child) -> None:
        if child.is_worn:
            self._discard(child)
        else:
            with self._lock:
                self._idle.append(child)

    def _discard(self, child: Child) -> None:
        with self._lock:
            self._all.discard(child)
        child.close()


def first_done(futures: Sequence[Future[T]], seconds: float) -> list[Future[T]]:
    """Those that have ended; waits until there is one, but no longer than that."""
    done, _ = wait(futures, timeout=seconds, return_when=FIRST_COMPLETED)
    return [future for future in futures if future in done]
