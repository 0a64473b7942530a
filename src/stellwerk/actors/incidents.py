"""Finding open incidents by what they are about, and putting many of them back to work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs
import trio

from stellwerk.errors import CallerError, PeerError, StellwerkError
from stellwerk.instants import InstantMs
from stellwerk.ports import Store

__all__ = ["IncidentFilter", "IncidentRetry", "RefusedRetry", "RetriedIncidents", "matching_incidents"]

_PAGE_ROWS = 1_000
_AT_ONCE = 100
"""Instances asked at the same time: their steps land in a few transactions."""


@attrs.frozen(kw_only=True)
class IncidentFilter:
    """Which open incidents: all conditions hold together. None: whatever it is."""

    incident_ids: Sequence[str] | None = None
    instance_id: str | None = None
    process_key: str | None = None
    element_id: str | None = None
    kind: str | None = None
    topic: str | None = None
    """Of the external task that it stands at."""
    opened_before_ms: InstantMs | None = None
    """Wall clock."""


@attrs.frozen
class RefusedRetry:
    incident_id: str
    error: StellwerkError


@attrs.frozen(kw_only=True)
class RetriedIncidents:
    """What became of a retry: re-queued is not solved, the same may go wrong again."""

    requeued: Sequence[str]
    refused: Sequence[RefusedRetry]
    """Still open, because the instance could not go on from there. Those that are gone are in neither list."""
    topics: frozenset[str]
    """Of the tasks that are offered again."""
    last: str | None
    """The greatest id that was looked at; None: no incident matched."""
    more: bool
    """Others match too."""


async def matching_incidents(
    store: Store, wanted: IncidentFilter, *, limit: int, after: str | None = None
) -> list[Mapping[str, object]]:
    """By id; `after` is the last id of the page before."""
    if wanted.incident_ids is not None:
        return await _named_incidents(store, wanted, limit, after)
    found: list[Mapping[str, object]] = []
    while True:
        page = await store.incidents(wanted.instance_id, limit=_PAGE_ROWS, after=after)
        for row in page:
            if await _matches(store, row, wanted):
                found.append(row)
            if len(found) == limit:
                return found
        if len(page) < _PAGE_ROWS:
            return found
        after = str(page[-1]["incident_id"])


async def _named_incidents(
    store: Store, wanted: IncidentFilter, limit: int, after: str | None
) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = []
    for incident_id in sorted({*(wanted.incident_ids or ())}):
        row = await store.incident(incident_id) if after is None or incident_id > after else None
        if row is not None and await _matches(store, row, wanted):
            found.append(row)
        if len(found) == limit:
            break
    return found


async def _matches(store: Store, row: Mapping[str, object], wanted: IncidentFilter) -> bool:
    if wanted.instance_id not in (None, row["instance_id"]) or wanted.kind not in (None, row["kind"]):
        return False
    if wanted.element_id not in (None, row["element_id"]):
        return False
    opened_at_ms = row["opened_at_ms"]
    assert isinstance(opened_at_ms, int)
    if wanted.opened_before_ms is not None and opened_at_ms >= wanted.opened_before_ms:
        return False
    if wanted.process_key is not None:
        summary = await store.instance(str(row["instance_id"]))
        if summary is None or summary.process_key != wanted.process_key:
            return False
    return wanted.topic is None or wanted.topic == await _topic_of(store, row)


async def _topic_of(store: Store, row: Mapping[str, object]) -> str | None:
    """Of the task that the incident stands at, if it stands at one."""
    task = None if row["task_id"] is None else await store.task(str(row["task_id"]))
    return None if task is None else task.topic


class IncidentRetry:
    """One retry of many incidents, a hundred instances at a time."""

    def __init__(self, store: Store, resolve: Callable[[Mapping[str, object]], Awaitable[None]]) -> None:
        """:param resolve: retries one, given its row."""
        self._store = store
        self._resolve = resolve
        self._waiting: list[Mapping[str, object]] = []
        self._requeued: list[str] = []
        self._refused: list[RefusedRetry] = []
        self._topics: set[str] = set()
        self._failure: StellwerkError | None = None

    async def run(
        self, wanted: IncidentFilter, *, limit: int, after: str | None, progress: Callable[[int], None]
    ) -> RetriedIncidents:
        """Retry the first `limit` that match behind id `after`.

        :param progress: told how many are done so far.
        :raises StoreUnavailable: some may be re-queued already; they are not open any more.
        """
        found = await matching_incidents(self._store, wanted, limit=limit + 1, after=after)
        rows = found[:limit]
        self._waiting = rows[::-1]
        async with trio.open_nursery() as nursery:
            for _ in range(min(_AT_ONCE, len(rows))):
                nursery.start_soon(self._retry_waiting, progress)
        if self._failure is not None:
            raise self._failure
        return RetriedIncidents(
            requeued=sorted(self._requeued),
            refused=sorted(self._refused, key=lambda refused: refused.incident_id),
            topics=frozenset(self._topics),
            last=str(rows[-1]["incident_id"]) if rows else None,
            more=len(found) > limit,
        )

    async def _retry_waiting(self, progress: Callable[[int], None]) -> None:
        while self._waiting and self._failure is None:
            row = self._waiting.pop()
            try:
                await self._retry(row)
            except StellwerkError as error:
                self._failure = error
                return
            progress(len(self._requeued))

    async def _retry(self, row: Mapping[str, object]) -> None:
        incident_id = str(row["incident_id"])
        topic = await _topic_of(self._store, row)
        try:
            await self._resolve(row)
        except (CallerError, PeerError) as error:
            # Somebody else may have resolved it, or the instance has ended.
            if await self._store.incident(incident_id) is not None:
                self._refused.append(RefusedRetry(incident_id, error))
            return
        self._requeued.append(incident_id)
        if topic is not None:
            self._topics.add(topic)
