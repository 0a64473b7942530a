"""A lock on a file that one process has at a time, and that ends with the process, also by SIGKILL."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from stellwerk.errors import StoreUnavailable

__all__ = ["FileLock"]

_Identity: TypeAlias = tuple[int, int]
"""Device and inode: what a file is, under whatever name."""

_FLOCK = "hhqqi4x"
"""``struct flock`` of Linux: type, whence, start, length, pid."""
_LOCKED_BYTE = 1 << 62
"""Beyond every byte that SQLite locks; a lock needs no byte of the file to be there."""
_TAKEN_BY_ANOTHER = (errno.EAGAIN, errno.EACCES)

_guard = threading.Lock()
_held_here: set[_Identity] = set()
"""Files that this process has locked. They are never opened a second time: closing any descriptor of a file drops
all POSIX locks that the process has on it, and SQLite lives on those."""


class FileLock:
    """An open file description lock (fcntl(2)) on the file itself, which is created where there is none.

    It holds for every name of the file, and no other file can be removed to get around it. Its length in bytes is the
    holder's pid: the kernel tells that to whoever is refused. SQLite's own locks are left alone by it and leave it
    alone, unlike a plain POSIX lock. Systems without such locks get flock(2) on ``<path>.lock`` instead.

    Release it only after SQLite has closed the file.
    """

    def __init__(self, path: Path | str) -> None:
        self._guarded = Path(path)
        self._path = Path(os.path.realpath(path))
        self._identity: _Identity | None = None
        self._descriptor: int | None = None
        self._unlock: Callable[[int], object] = _unlock_description
        self._holder: int | None = None
        """The process that has acquired it; one that it forks has the descriptor too."""

    def __repr__(self) -> str:
        return f"FileLock({str(self._path)!r}, {'free' if self._descriptor is None else 'held'})"

    def acquire(self) -> None:
        """:raises StoreUnavailable: when another process (or another engine of this one) has it."""
        assert self._descriptor is None, f"{self!r} is acquired twice"
        with _guard:
            if _identity_at(self._path) in _held_here:
                raise StoreUnavailable(f"{self._guarded} is in use by another engine (pid {os.getpid()})")
            opened = self._open(self._path)
            status = os.fstat(opened)
            self._descriptor = self._lock(opened)
            self._holder = os.getpid()
            self._identity = status.st_dev, status.st_ino
            _held_here.add(self._identity)

    def release(self) -> None:
        """Does nothing when it is not held."""
        with _guard:
            if self._descriptor is not None:
                if self._holder == os.getpid():
                    # Closing alone would leave it to processes that were forked meanwhile.
                    self._unlock(self._descriptor)
                os.close(self._descriptor)
                self._descriptor = None
            if self._identity is not None:
                _held_here.discard(self._identity)
                self._identity = None

    def _lock(self, opened: int) -> int:
        """→ the descriptor that holds the lock; `opened` is closed when it is not that one."""
        is_locked = False
        try:
            is_locked = _has_description_locks() and self._lock_description(opened)
        finally:
            if not is_locked:
                os.close(opened)
        self._unlock = _unlock_description if is_locked else _unlock_file
        return opened if is_locked else self._lock_beside()

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be opened: {error.strerror}") from error

    def _lock_description(self, descriptor: int) -> bool:
        """→ False when the file system knows no such locks."""
        wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_BYTE, os.getpid(), 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno in _TAKEN_BY_ANOTHER:
                raise self._refusal(_holder_of(descriptor, wanted)) from error
            if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                return False
            raise StoreUnavailable(f"{self._guarded} cannot be locked: {error.strerror}") from error
        return True

    def _lock_beside(self) -> int:
        descriptor = self._open(Path(f"{self._path}.lock"))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).strip()
            os.close(descriptor)
            raise self._refusal(int(holder) if holder.isdigit() else None) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor

    def _refusal(self, holder: int | None) -> StoreUnavailable:
        who = f"another process (pid {holder or '?'}): an engine, or another stellwerk command"
        return StoreUnavailable(f"{self._guarded} is in use by {who}")


def _identity_at(path: Path) -> _Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _unlock_description(descriptor: int) -> None:
    free = struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, _LOCKED_BYTE, os.getpid(), 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, free)


def _unlock_file(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _has_description_locks() -> bool:
    return sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


def _holder_of(descriptor: int, wanted: bytes) -> int | None:
    """The pid of the process whose lock is in the way; None when it has just gone."""
    found = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted))
    kind, start, length = int(found[0]), int(found[2]), int(found[3])
    return length if kind != fcntl.F_UNLCK and start == _LOCKED_BYTE else None
