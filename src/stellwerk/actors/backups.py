"""Copies of the store's file: to a place of the caller's, or beside the file for as long as one is being sent."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeAlias

from stellwerk.errors import Conflict
from stellwerk.ports import Ports

__all__ = ["BackupCopy", "Backups"]

_Write: TypeAlias = Callable[[Path, Callable[[float], None]], Awaitable[None]]
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Backups:
    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._copy: BackupCopy | None = None

    async def write(self, target: Path, progress: Callable[[float], None]) -> None:
        """See `Store.backup`."""
        await self._ports.store.backup(target, progress)
        self._ports.log.info("backup written", file=str(target))

    def new_copy(self) -> BackupCopy:
        """One at a time: each takes as much room as the file, and much of the disk's attention.

        :raises Conflict: the store has no file, or another copy is there.
        """
        file = self._ports.store.file
        if self._ports.store.is_shared:
            raise Conflict("this engine keeps everything in PostgreSQL: use pg_dump, or the backups of your database")
        if file is None:
            raise Conflict("this engine keeps everything in memory: there is no file to copy")
        if self._copy is not None and not self._copy.is_closed:
            raise Conflict("another backup is under way", code="busy")
        self._copy = BackupCopy(file, self._ports, self.write)
        return self._copy


class BackupCopy:
    """A temporary copy beside the store's file. Whoever has it calls `close` in the end."""

    def __init__(self, file: Path, ports: Ports, write: _Write) -> None:
        self.is_closed = False
        self._file = file
        self._path = file.with_name(f"{file.name}.backup-{ports.entropy.uuid()}")
        self._ports = ports
        self._write = write

    async def write(self) -> None:
        """:raises StoreUnavailable: it cannot be written."""
        await self._ports.background.run_sync(partial(_delete_copies, self._file))
        await self._write(self._path, lambda _done: None)

    def open(self) -> BinaryIO:
        """Blocks. The copy has no name any more from here on: it is gone when the reader is closed, by whatever.

        :raises FileNotFoundError: it was not written.
        """
        reader = self._path.open("rb")
        self._path.unlink()
        return reader

    def close(self) -> None:
        """Not awaited: it has to be gone also when everything is being cancelled."""
        self.is_closed = True
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._ports.log.warning("a copy cannot be deleted", file=str(self._path), reason=str(error))


def _delete_copies(file: Path) -> None:
    """Of an engine that was killed while it wrote one: who has the file has them too."""
    name = re.compile(re.escape(file.name) + r"\.backup-" + _UUID + r"(\.stellwerk-partial)?")
    for other in file.parent.iterdir():
        if name.fullmatch(other.name):
            other.unlink(missing_ok=True)
