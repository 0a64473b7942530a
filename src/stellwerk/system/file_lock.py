"""A lock on a file that one process has at a time, and that ends with the process, also by SIGKILL."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from stellwerk.errors import StoreUnavailable

__all__ = ["FileLock"]


class FileLock:
    """flock(2) on ``<path>.lock``; the lock file names the holder's pid, for people, and stays when released."""

    def __init__(self, path: Path | str) -> None:
        self._guarded = Path(path)
        # Two names of one file must mean one lock.
        self._path = Path(os.path.realpath(path) + ".lock")
        self._descriptor: int | None = None

    def __repr__(self) -> str:
        return f"FileLock({str(self._path)!r}, {'free' if self._descriptor is None else 'held'})"

    def acquire(self) -> None:
        """:raises StoreUnavailable: when another process (or another engine of this one) has it."""
        assert self._descriptor is None, f"{self!r} is acquired twice"
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreUnavailable(f"{self._path} cannot be created: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreUnavailable(f"{self._guarded} is in use by another engine (pid {holder or '?'})") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Does nothing when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
