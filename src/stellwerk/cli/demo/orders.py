"""The orders of the demo: what each one carries, and how it has to end.

Everything follows from a seed. An order's data decides its fate (a card that will be declined, an address that nobody
knows), so that the workers need no plan: they look at the order, as real ones would.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import Enum

import attrs

__all__ = ["SHIPPED_TRAIL", "TOPICS", "Fate", "Order", "PlannedOrder", "make_orders"]

RESERVE, CHARGE, SHIP, REFUND, RELEASE = "reserve-stock", "charge-card", "ship", "refund-card", "release-stock"
TOPICS = (RESERVE, CHARGE, SHIP, REFUND, RELEASE)
SHIPPED_TRAIL = (RESERVE, CHARGE, SHIP)

FOR_EVER = 1_000
"""So many technical failures that no number of retries helps."""


@attrs.frozen(kw_only=True)
class Order:
    """The variables of an instance, as the handlers see them."""

    order: str
    """The order's number: the idempotency key of everything done in the world outside."""
    amount_cents: int
    card: str
    address: str
    patience: str
    """How long shipping may take: an ISO 8601 duration, read by the timer in the model."""
    seconds: Mapping[str, float] = attrs.field(factory=dict)
    """How long the work of a topic takes, where it is slow."""
    failures_before: Mapping[str, int] = attrs.field(factory=dict)
    """How often a topic's handler fails technically before it has done anything."""
    failures_after: Mapping[str, int] = attrs.field(factory=dict)
    """How often it fails although the work is already done: the dangerous kind."""


class Fate(Enum):
    """How an order ends."""

    SHIPPED = "shipped"
    CARD_DECLINED = "card declined"
    ADDRESS_UNKNOWN = "address unknown"
    CARRIER_LATE = "carrier too late"
    CARRIER_BROKEN = "carrier broken for good"

    @property
    def trail(self) -> tuple[str, ...]:
        """What has to be done in the world outside, in this order and each once."""
        match self:
            case Fate.SHIPPED:
                return SHIPPED_TRAIL
            case Fate.CARD_DECLINED:
                return (RESERVE, RELEASE)
            case Fate.ADDRESS_UNKNOWN | Fate.CARRIER_LATE | Fate.CARRIER_BROKEN:
                return (RESERVE, CHARGE, REFUND, RELEASE)

    @property
    def status(self) -> str:
        """The instance's status at the end: FAILED only where the failure policy did the unwinding, not the model."""
        return "FAILED" if self is Fate.CARRIER_BROKEN else "COMPLETED"


@attrs.frozen
class PlannedOrder:
    order: Order
    fate: Fate


_SHARES = (
    (Fate.CARD_DECLINED, 0.08),
    (Fate.ADDRESS_UNKNOWN, 0.06),
    (Fate.CARRIER_LATE, 0.04),
    (Fate.CARRIER_BROKEN, 0.03),
)
SLOW_SHARE = 0.12
FLAKY_SHARE = 0.15


def make_orders(count: int, seed: int) -> list[PlannedOrder]:
    """The same `count` and `seed` always give the same orders."""
    generator = random.Random(seed)  # noqa: S311 - test data, not a secret
    fates = _fates(count)
    generator.shuffle(fates)
    return [_plan(number, fate, generator) for number, fate in enumerate(fates, start=1)]


def _fates(count: int) -> list[Fate]:
    fates: list[Fate] = []
    for fate, share in _SHARES:
        fates.extend([fate] * round(count * share))
    return fates + [Fate.SHIPPED] * (count - len(fates))


def _plan(number: int, fate: Fate, generator: random.Random) -> PlannedOrder:
    seconds: dict[str, float] = {}
    failures_before: dict[str, int] = {}
    failures_after: dict[str, int] = {}
    if generator.random() < SLOW_SHARE:
        seconds[generator.choice((RESERVE, CHARGE))] = round(generator.uniform(1.5, 2.5), 2)
    if generator.random() < FLAKY_SHARE:
        failures = generator.choice((failures_before, failures_after))
        failures[generator.choice(_steps_that_finish(fate))] = generator.choice((1, 2))
    if fate is Fate.CARRIER_BROKEN:
        failures_before[SHIP] = FOR_EVER
    if fate is Fate.CARRIER_LATE:
        seconds[SHIP] = 60.0
    order = Order(
        order=f"order-{number:04}",
        amount_cents=generator.randrange(500, 50_000),
        card="declined" if fate is Fate.CARD_DECLINED else f"4000-{generator.randrange(10_000):04}",
        address="unknown" if fate is Fate.ADDRESS_UNKNOWN else f"{generator.randrange(1, 200)} Station Road",
        patience="PT2S" if fate is Fate.CARRIER_LATE else "PT1H",
        seconds=seconds,
        failures_before=failures_before,
        failures_after=failures_after,
    )
    return PlannedOrder(order, fate)


def _steps_that_finish(fate: Fate) -> tuple[str, ...]:
    """Topics of the order whose work gets done, so that a failure of theirs is repeated and healed."""
    return fate.trail
