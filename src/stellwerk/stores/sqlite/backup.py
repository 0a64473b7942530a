"""A consistent copy of the database file, written while work goes on.

The copy reads through a connection of its own, inside one read transaction: the writer goes on beside it, and what it
commits meanwhile is not in the copy. The copy grows under another name in the target's directory, is flushed to the
disk, and only then gets its name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import trio

from stellwerk.errors import Conflict, StellwerkError, StoreUnavailable
from stellwerk.ports import ThreadRunner

__all__ = ["PARTIAL_SUFFIX", "FileCopy", "copy_file", "partial_file"]

PARTIAL_SUFFIX = ".stellwerk-partial"
"""Behind the target's name while the copy is not whole. One that a killed process left is reused by the next copy."""

_SLICE_PAGES = 512
"""4 MiB: between slices the copy hears that it shall stop."""
_SLICES_BETWEEN_FLUSHES = 8
"""One flush of gigabytes at the end would hold up the writer's commits on the same disk."""
_COMPANIONS = ("-wal", "-journal")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems answer that know no hard links."""


class _Stopped(Exception):
    """Raised between two slices."""


class FileCopy:
    """One copy of `source` to `target`; `run` blocks, and everything else may be called from another thread."""

    def __init__(self, source: Path, target: Path, begin: Callable[[sqlite3.Connection], None]) -> None:
        """:param begin: starts the read transaction, and refuses a file that is not the store's own any more."""
        self._source = source
        self._target = target
        self._begin = begin
        self._is_stopped = False
        self._slices = 0
        self.fraction = 0.0
        """How much is done, in [0, 1]."""
        self.on_progress: Callable[[], object] = lambda: None
        """Called in the thread of `run` when `fraction` has changed."""

    def __repr__(self) -> str:
        return f"FileCopy({str(self._source)!r}, {str(self._target)!r}, {self.fraction:.0%})"

    def stop(self) -> None:
        """Let `run` end soon, in an error and without a trace, unless it is at its end already."""
        self._is_stopped = True

    def run(self) -> None:
        """:raises Conflict: the target exists, or is being written; StoreUnavailable: it cannot be written."""
        _check_target(self._target)
        try:
            with partial_file(self._target, os.stat(self._source).st_mode & 0o777) as (partial, descriptor):
                self._copy_pages(partial, descriptor)
                os.fsync(descriptor)
                _give_name(partial, self._target)
        except OSError as error:
            raise StoreUnavailable(f"the backup {self._target} cannot be written: {error.strerror}") from error
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the backup {self._target} cannot be written: {error}") from error
        except _Stopped:
            raise StoreUnavailable(f"the backup {self._target} was stopped before its end") from None

    def _copy_pages(self, partial: Path, descriptor: int) -> None:
        def after_slice(_status: int, remaining: int, total: int) -> None:
            if self._is_stopped:
                raise _Stopped
            self._slices += 1
            if self._slices % _SLICES_BETWEEN_FLUSHES == 0:
                os.fsync(descriptor)
            self.fraction = (total - remaining) / total if total else 1.0
            self.on_progress()

        with closing(_connect(self._source)) as source, closing(_connect(partial)) as copy:
            # It has no name yet and is flushed below: neither a journal nor SQLite's own flushes are of use.
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            self._begin(source)
            source.backup(copy, pages=_SLICE_PAGES, progress=after_slice)
            source.execute("ROLLBACK")


def _connect(path: Path) -> sqlite3.Connection:
    # mode=rw: never creates a file.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)


def _check_target(target: Path) -> None:
    if os.path.lexists(target):
        raise Conflict(f"the backup {target} was not written: there is a file of that name")
    for companion in (f"{target}{suffix}" for suffix in _COMPANIONS):
        if os.path.lexists(companion):
            # SQLite would take it for the log of the copy, and spoil that with it.
            raise Conflict(f"the backup {target} was not written: {companion} is in the way")
    if not target.parent.is_dir():
        raise StoreUnavailable(f"the backup {target} cannot be written: there is no directory {target.parent}")


@contextmanager
def partial_file(target: Path, mode: int) -> Iterator[tuple[Path, int]]:
    """An empty file beside the target, locked, with its descriptor; what has not got its name by the end is deleted.

    :raises Conflict: another one is being written there. OSError: it cannot be written.
    """
    partial = target.with_name(target.name + PARTIAL_SUFFIX)
    _drop_second_name(partial)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not _is_ours(descriptor, partial):
            raise Conflict(f"the backup {target} was not written: another one is being written there")
        try:
            os.ftruncate(descriptor, 0)
            os.fchmod(descriptor, mode)
            yield partial, descriptor
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()
    finally:
        os.close(descriptor)


def _is_ours(descriptor: int, partial: Path) -> bool:
    """Lock it. → False when another process writes to it, or has just made a backup of it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(partial))
    except (BlockingIOError, FileNotFoundError):
        return False


def _drop_second_name(partial: Path) -> None:
    """Of a backup whose process was killed just before it could remove the first name: it is whole, and stays."""
    with suppress(FileNotFoundError):
        if partial.lstat().st_nlink > 1:
            partial.unlink()


def _give_name(partial: Path, target: Path) -> None:
    """:raises Conflict: when there is a file of that name by now; it stays."""
    try:
        os.link(partial, target)
        partial.unlink(missing_ok=True)
    except FileExistsError:
        raise Conflict(f"the backup {target} was not written: there is a file of that name") from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _check_target(target)
        os.rename(partial, target)
    _flush_directory(target.parent)


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- in trio -------------------------------------------------------------------------------------------------------


async def copy_file(runner: ThreadRunner, copy: FileCopy, progress: Callable[[float], None]) -> None:
    """Run `copy` in `runner`, which waits for its end even when cancelled: then the copy is stopped.

    :raises Exception: what `progress` raises, and as `FileCopy.run`.
    """
    failures: list[Exception] = []
    bell = _Bell()
    copy.on_progress = bell.ring
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell, copy, bell, progress, failures)
        try:
            await runner.run_sync(copy.run)
        except StellwerkError as error:
            failures.append(error)
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]
    progress(1.0)


async def _tell(copy: FileCopy, bell: _Bell, progress: Callable[[float], None], failures: list[Exception]) -> None:
    """Ends when it is cancelled, or when `progress` fails; either ends the copy."""
    try:
        while True:
            await bell.wait()
            progress(copy.fraction)
    except Exception as error:  # noqa: BLE001 -- it is the caller's own, and is raised there
        failures.append(error)
    finally:
        copy.stop()


class _Bell:
    """Wakes one task of trio from any thread; several rings before it wakes are one."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._rung = trio.Event()

    def ring(self) -> None:
        self._token.run_sync_soon(self._set, idempotent=True)

    def _set(self) -> None:
        self._rung.set()

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung = trio.Event()
