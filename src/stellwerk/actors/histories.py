"""Reading histories, in slices: a long life is never read from the store in one piece, so that work goes on between."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

import attrs

from stellwerk.core.events import EventCategory, HistoryEvent, events_of
from stellwerk.errors import NotFound
from stellwerk.ports import HistoryStep, Store

__all__ = ["ALL_EVENTS", "EventFilter", "HistoryPage", "HistoryPages", "recorded_steps"]

_SLICE_STEPS = 25
"""A millisecond of the store's time; and the steps of a slice are in memory at once, however much each has written."""
_PLACES_MAX = 1_000


async def recorded_steps(store: Store, instance_id: str) -> list[HistoryStep]:
    """The whole history.

    :raises NotFound: there is no such instance.
    """
    found: list[HistoryStep] = []
    while len(steps := await store.history(instance_id, after=len(found), limit=_SLICE_STEPS)) == _SLICE_STEPS:
        found += steps
    found += steps
    if not found:
        raise NotFound(f"there is no instance {instance_id}")
    return found


@attrs.frozen(kw_only=True)
class EventFilter:
    """Which events: both conditions hold. None: whatever it is."""

    category: EventCategory | None = None
    event_type: str | None = None
    """The name of a fact."""

    def fits(self, event: HistoryEvent) -> bool:
        return self.category in (None, event.category) and self.event_type in (None, event.event_type)


ALL_EVENTS = EventFilter()


@attrs.frozen
class HistoryPage:
    events: Sequence[HistoryEvent]
    more: bool


@attrs.frozen
class _Place:
    """In a history, between two steps."""

    version: int = 0
    facts: int = 0
    """In all steps up to here."""


_Key: TypeAlias = tuple[str, int, int, EventFilter]
"""Instance, its start (one that was pruned may be started again), the last sequence of a page, and what was wanted."""


class HistoryPages:
    """Histories by pages of events.

    The store finds steps, not events, so the place where a page ended is kept in mind for whoever goes on from there;
    it is found again by counting otherwise.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._places: OrderedDict[_Key, _Place] = OrderedDict()

    async def page(self, instance_id: str, *, after: int, limit: int, wanted: EventFilter = ALL_EVENTS) -> HistoryPage:
        """The first `limit` events behind sequence `after` that are wanted.

        :raises NotFound: there is no such instance.
        """
        summary = await self._store.instance(instance_id)
        if summary is None:
            raise NotFound(f"there is no instance {instance_id}")
        place = self._places.get((instance_id, summary.started_at_ms, after, wanted), _Place())
        events, place = await self._events(instance_id, place, after, limit + 1, wanted)
        page = events[:limit]
        if page:
            self._remember((instance_id, summary.started_at_ms, page[-1].sequence, wanted), place)
        return HistoryPage(page, more=len(events) > limit)

    async def _events(
        self, instance_id: str, place: _Place, after: int, count: int, wanted: EventFilter
    ) -> tuple[list[HistoryEvent], _Place]:
        """At least so many, if there are, and the place before the step of the last one that is wanted."""
        events: list[HistoryEvent] = []
        while True:
            steps = await self._store.history(instance_id, after=place.version, limit=_SLICE_STEPS)
            for step in steps:
                behind = (event for event in events_of(step, place.facts) if event.sequence > after)
                events += [event for event in behind if wanted.fits(event)]
                if len(events) >= count:
                    return events, place
                place = _Place(step.version, place.facts + len(step.facts))
            if len(steps) < _SLICE_STEPS:
                return events, place

    def _remember(self, key: _Key, place: _Place) -> None:
        self._places[key] = place
        self._places.move_to_end(key)
        if len(self._places) > _PLACES_MAX:
            self._places.popitem(last=False)
