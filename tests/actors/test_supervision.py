"""Services that fail are started again, and a store that stays away does not fill the log."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
import structlog

from stellwerk.actors.supervisor import supervise
from stellwerk.errors import StoreUnavailable
from stellwerk.testing.store_contract import ManualClock


class Enough(BaseException):
    """Ends the service, and with it the supervision."""


@attrs.define
class Service:
    """Fails after five seconds each time, until ten minutes are over."""

    clock: ManualClock
    reasons: tuple[str, ...]
    runs: int = 0

    async def run(self) -> None:
        if self.clock.monotonic() > 1_600:
            raise Enough
        self.runs += 1
        self.clock.advance(5_000)
        raise StoreUnavailable(self.reasons[min(self.runs, len(self.reasons)) - 1])


async def _told(service: Service) -> list[str]:
    with structlog.testing.capture_logs() as lines, pytest.raises(Enough):
        await supervise("locks", service.run, clock=service.clock, log=structlog.get_logger())
    assert {(line["event"], line["service"]) for line in lines} == {("store unavailable", "locks")}
    return [line["reason"] for line in lines]


async def test_store_that_stays_away_is_told_once_a_minute_for_each_service() -> None:
    service = Service(ManualClock(), ("cannot be reached",))
    told = await _told(service)
    assert service.runs > 100
    assert 9 <= len(told) <= 11


async def test_another_reason_is_told_at_once() -> None:
    told = await _told(Service(ManualClock(), ("starting up", "cannot be reached", "its disk is full")))
    assert told[:3] == ["starting up", "cannot be reached", "its disk is full"]
    assert Counter(told).keys() == {"starting up", "cannot be reached", "its disk is full"}
