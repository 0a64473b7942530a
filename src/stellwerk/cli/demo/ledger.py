"""The workers' ledgers, and the world outside in which each piece of work may happen only once.

A worker writes every event as one line of JSON with a single unbuffered write: what was written stays, also when the
process is killed a moment later. Instants are nanoseconds of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

import attrs
import cattrs
import cattrs.preconf.json

__all__ = ["EventKind", "Ledger", "LedgerEvent", "LedgerReader", "Outside", "open_runs", "read_ledgers"]


class EventKind(Enum):
    BEGIN = "begin"
    """A handler run starts."""
    DONE = "done"
    """This run did the work in the world outside."""
    FOUND = "found"
    """The work had been done by an earlier run: the idempotency key was known."""
    END = "end"
    """The run returns its result."""
    BUSINESS_ERROR = "business_error"
    TECHNICAL_ERROR = "technical_error"
    ABORTED = "aborted"
    """The lease was revoked or lost, and the run gave up."""
    RENEWED = "renewed"
    """The engine renewed the lease. Belongs to no run."""


@attrs.frozen(kw_only=True)
class LedgerEvent:
    at_ns: int
    worker: str
    kind: EventKind
    topic: str = ""
    order: str = ""
    task_id: str = ""
    fence: int = 0
    attempt: int = 0


_converter = cattrs.preconf.json.make_converter()


class Ledger:
    """One worker's file. Only appended to."""

    def __init__(self, directory: Path, worker: str) -> None:
        self.worker = worker
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(directory / f"{worker}.jsonl", flags, 0o644)

    def write(
        self,
        kind: EventKind,
        *,
        topic: str = "",
        order: str = "",
        task_id: str = "",
        fence: int = 0,
        attempt: int = 0,
    ) -> None:
        event = LedgerEvent(
            at_ns=time.monotonic_ns(),
            worker=self.worker,
            kind=kind,
            topic=topic,
            order=order,
            task_id=task_id,
            fence=fence,
            attempt=attempt,
        )
        os.write(self._file, _converter.dumps(event).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class LedgerReader:
    """Reads what the workers have written since the last time, while they go on writing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}

    def read_new(self) -> list[LedgerEvent]:
        """By time. A line without its line break is not taken yet, and never if its worker was killed over it."""
        events = [event for path in sorted(self._directory.glob("*.jsonl")) for event in self._read_new_of(path)]
        return sorted(events, key=lambda event: event.at_ns)

    def _read_new_of(self, path: Path) -> Iterator[LedgerEvent]:
        offset = self._offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offsets[path] = offset + len(whole)
        for line in whole.splitlines():
            yield _converter.loads(line, LedgerEvent)


def read_ledgers(directory: Path) -> list[LedgerEvent]:
    """All events of all workers, by time. A line that a killed worker left unfinished is skipped."""
    return LedgerReader(directory).read_new()


_RUN_ENDS = {EventKind.END, EventKind.BUSINESS_ERROR, EventKind.TECHNICAL_ERROR, EventKind.ABORTED}


def open_runs(events: Iterable[LedgerEvent], worker: str) -> set[tuple[str, int]]:
    """(task_id, fence) of the runs that `worker` has begun and not ended."""
    runs: set[tuple[str, int]] = set()
    for event in events:
        if event.worker != worker:
            continue
        if event.kind is EventKind.BEGIN:
            runs.add((event.task_id, event.fence))
        elif event.kind in _RUN_ENDS:
            runs.discard((event.task_id, event.fence))
    return runs


class Outside:
    """Warehouse, bank and carrier: a directory in which a file that exists cannot be created again.

    This is how a worker should treat the real ones: every call carries an idempotency key, and a repeated call changes
    nothing. The file appears at once and whole, or not at all.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def do_once(self, key: str, note: str) -> bool:
        """Do the work named `key`; False when it had been done before."""
        draft = self._directory / f".{key}.{os.getpid()}.{time.monotonic_ns()}"
        draft.write_text(note, encoding="utf-8")
        try:
            os.link(draft, self._directory / key)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def keys(self) -> set[str]:
        return {path.name for path in self._directory.iterdir() if not path.name.startswith(".")}
