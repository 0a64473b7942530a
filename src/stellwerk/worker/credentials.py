"""The worker's credential: given once, or fetched by a function of the program."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import trio

from stellwerk.worker.errors import ErrorKind
from stellwerk.worker.reports import Reports
from stellwerk.worker.settings import CRITICAL_ERRORS_MAX, TokenSource
from stellwerk.worker.system import Threads

__all__ = ["Credentials", "NoCredential"]


class NoCredential(Exception):
    """No credential could be had."""


class Credentials:
    def __init__(self, source: TokenSource, threads: Threads, reports: Reports) -> None:
        self._source = source
        self._threads = threads
        self._reports = reports
        self._failures = 0
        self._known: str | None = None
        self._fetching = trio.Lock()
        self.failed_critically = False

    @property
    def origin(self) -> str:
        """For whoever has to mend it."""
        if self._source is None:
            return "it has none: give it one as Worker(token=...), in STELLWERK_TOKEN of `stellwerk worker`, or --token"
        if isinstance(self._source, str):
            return "its credential is that of Worker(token=...), STELLWERK_TOKEN or --token"
        return "its credential is what the function given as Worker(token=...) has fetched"

    async def fresh(self) -> str | None:
        """:raises NoCredential: after it was reported why."""
        source = self._source
        if source is None or isinstance(source, str):
            return source
        try:
            token = await self._call(source)
        except Exception as error:
            self._failures += 1
            self._reports.error(ErrorKind.IDENTITY_REFRESH, error)
            if self._failures >= CRITICAL_ERRORS_MAX and not self.failed_critically:
                self.failed_critically = True
                self._reports.error(ErrorKind.CRITICAL_IDENTITY_FAILURE, error)
            raise NoCredential(f"no credential: {error}") from error
        self._failures, self.failed_critically = 0, False
        return token

    async def known(self, *, refused: str | None = None) -> str | None:
        """The one that was fetched last, unless it is `refused`; many requests that need a new one fetch one together.

        :raises NoCredential: as `fresh`.
        """
        async with self._fetching:
            if self._known is None or self._known == refused:
                self._known = await self.fresh()
            return self._known

    async def _call(self, source: Callable[[], str | Awaitable[str]]) -> str:
        if inspect.iscoroutinefunction(source):
            answer: str | Awaitable[str] = source()
        else:
            answer = await self._threads.run_sync(source)
        return answer if isinstance(answer, str) else await answer
