"""``stellwerk prune`` and ``backup``."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import Parameter

from stellwerk.cli.client import Client
from stellwerk.cli.connection import HERE, Engine
from stellwerk.cli.mistakes import Mistake
from stellwerk.cli.options import AsJson, flag
from stellwerk.cli.output import counted, print_json, say
from stellwerk.cli.progress import progress
from stellwerk.cli.times import DURATIONS, duration_ms, instant

__all__ = ["backup", "prune"]

_WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""How a file system says that it has no hard links."""
_FILE_MODE = 0o600
_ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def prune(
    *,
    older_than: Annotated[str, Parameter(help=f"Only what ended longer ago than this: {DURATIONS}.")],
    dry_run: Annotated[bool, flag(help="Only count what would be deleted.")] = False,
    engine: Engine = HERE,
    json: AsJson = False,
) -> int:
    """Delete ended instances with all that belongs to them: history, tasks, attempts. Running ones are never touched.

    It asks nothing, works in small steps between which others' work goes on, and can be stopped at any time. The file
    does not shrink; the room is used again. A start or message whose id is repeated afterwards is new again.

    For example:

        stellwerk prune --older-than 30d --dry-run
        stellwerk prune --older-than 30d
    """
    milliseconds = duration_ms("--older-than", older_than)
    with engine.open() as client:
        number = _would_prune(client, older_than) if dry_run else _prune(client, milliseconds)
    if json:
        print_json({"instances": number, "dry_run": dry_run})
        return 0
    say(f"{'would delete' if dry_run else 'deleted'} {counted(number, 'instance')}")
    return 0


def _prune(client: Client, older_than_ms: int) -> int:
    deleted = 0
    began = time.monotonic()
    with progress("Deleting") as report:
        while True:
            # What ends from now on is none of ours: on a busy engine there would always be more.
            since_ms = int((time.monotonic() - began) * 1000)
            answer = client.post("/prune", {"older_than_ms": older_than_ms + since_ms})
            deleted += int(answer["instances"])
            report(deleted, None)
            if not answer["more"]:
                return deleted


def _would_prune(client: Client, older_than: str) -> int:
    before = instant("--older-than", older_than)
    assert before is not None
    number = seen = 0
    with progress("Counting") as report:
        for status in _ENDED:
            # What ended before then started before then.
            query = {"status": status, "started_before": before}
            for page in client.pages("/process-instances", "instances", query, "instance_id"):
                number += sum(row["ended_at"] < before for row in page)
                seen += len(page)
                report(seen, None)
    return number


def backup(
    file: Annotated[Path, Parameter(name="FILE", help="Where the copy goes.")],
    /,
    *,
    force: Annotated[bool, flag(help="Replace the file if there is one.")] = False,
    engine: Engine = HERE,
) -> int:
    """Copy an engine's database to a file on this machine, consistent, while the engine works on.

    The file is there whole or not at all. An engine started on it goes on from where the copy was made.

    For example:

        stellwerk backup orders-backup.db
        stellwerk backup /backups/orders.db --force --url http://engine.example:10560
    """
    _check_place(file, force)
    if engine.file is not None and _is_same(engine.file, file):
        raise Mistake(f"{file}: is the database itself")
    began = time.monotonic()
    received = 0
    with engine.open() as client, _new_file(file, force) as stream, progress("Copying", is_bytes=True) as report:

        def write(piece: bytes, length: int | None) -> None:
            nonlocal received
            with _told_as_mistake(file):
                stream.write(piece)
            received += len(piece)
            report(received, length)

        client.download("/backup", write)
    say(f"copied {received / 1024**2:.1f} MiB to {file} in {time.monotonic() - began:.1f} s")
    return 0


def _check_place(file: Path, force: bool) -> None:
    if file.is_dir():
        raise Mistake(f"{file}: is a directory")
    _refuse_existing(file, force)
    if file.exists():
        _refuse_used(file)
    log = Path(f"{file}-wal")
    if log.exists():
        # SQLite would take what is in it for the copy's own last commits.
        raise Mistake(f"{log}: belongs to another database of that name; remove it, or choose another name")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _refuse_used(file: Path) -> None:
    from stellwerk.errors import StoreUnavailable
    from stellwerk.system.file_lock import FileLock

    lock = FileLock(file)
    try:
        lock.acquire()
    except StoreUnavailable as error:
        raise Mistake(f"{error.message}: choose another name") from None
    lock.release()


def _refuse_existing(file: Path, force: bool) -> None:
    if not force and os.path.lexists(file):
        raise Mistake(f"{file}: is there already; --force replaces it")


@contextmanager
def _new_file(file: Path, force: bool) -> Iterator[BinaryIO]:
    """A file that gets its name when it is whole and on the disk; nothing is left of it otherwise.

    :raises Mistake: it cannot be written, or (unless `force`) there is one of this name.
    """
    from stellwerk.errors import Conflict
    from stellwerk.stores.sqlite.backup import partial_file

    try:
        with _told_as_mistake(file), partial_file(file, _FILE_MODE) as (temporary, descriptor):
            with open(descriptor, "wb", closefd=False) as stream:
                yield stream
            os.fsync(descriptor)
            _refuse_existing(file, force)
            _give_name(temporary, file, force)
    except Conflict as error:
        raise Mistake(error.message) from None


def _give_name(temporary: Path, file: Path, force: bool) -> None:
    if force:
        os.replace(temporary, file)
    else:
        _link(temporary, file)
    directory = os.open(file.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _link(temporary: Path, file: Path) -> None:
    """Unlike a renaming, a link never replaces what somebody else has put there meanwhile."""
    try:
        os.link(temporary, file)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        os.rename(temporary, file)


@contextmanager
def _told_as_mistake(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Mistake(f"{file}: {error.strerror}") from None
